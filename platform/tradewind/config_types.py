"""The values that people write in YAML in more than one form (durations, money, workers): each becomes one typed value.

Every type here is a validator in front of one plain type, not a union: so one mistake gives one message.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    WithJsonSchema,
    model_validator,
)
from pydantic.fields import FieldInfo

from tradewind.model import Capacity
from tradewind.units import parse_duration_s, parse_usd

_DURATION = "like 90s, 5m, 6h, 2d or 1h30m; a bare number is seconds"
_DURATIONS = ["90s", "5m", "6h", "1h30m"]  # stay in the schema where a field has a description of its own
_NUMBER_OR_TEXT = ["number", "string"]
_WORKERS = r"\s*(\d+)\s*(?:\.\.\s*(\d+)\s*)?"
_NONE_WORDS = (None, "none")

# `yes` is not 1, and "4" is not 4: what a file says is taken as it stands.
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


def found(value: object) -> str:
    """What stands in the file, in words."""
    match value:
        case None:
            return "nothing (null)"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list() | tuple():
            return f"a list of {len(value)}"
        case str():
            return f"{value if len(value) <= 60 else value[:57] + '...'!r} (text)"
        case _:
            return str(value)


def nearest(word: object, choices: Iterable[str]) -> str:
    """The valid name that a typo was meant to be, or ""."""
    near = difflib.get_close_matches(str(word).lower(), list(choices), n=1, cutoff=0.6)
    return near[0] if near else ""


def did_you_mean(word: object, choices: Iterable[str]) -> str:
    name = nearest(word, choices)
    return f" (did you mean {name!r}?)" if name else ""


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def to_duration_s(value: object) -> float:
    try:
        if _number(value) or isinstance(value, str):
            return parse_duration_s(value)  # type: ignore[arg-type]
    except ValueError:
        pass  # the same words as for any other value
    raise ValueError(f"allowed: a duration, {_DURATION}")


def to_uusd(value: object) -> int:
    try:
        if _number(value) or isinstance(value, str):
            return parse_usd(value)  # type: ignore[arg-type]
    except ValueError:
        pass  # the same words as for any other value
    raise ValueError("allowed: an amount of US dollars, like 12.50")


def to_duration_range_s(value: object) -> tuple[float, float]:
    ends = value if isinstance(value, list | tuple) else [value, value]
    if len(ends) != 2:
        raise ValueError(f"allowed: a duration, or [shortest, longest], each {_DURATION}")
    shortest, longest = (to_duration_s(end) for end in ends)
    if not 0 <= shortest <= longest:
        raise ValueError("allowed: [shortest, longest], with 0 <= shortest <= longest")
    return shortest, longest


def to_capacities(value: object) -> tuple[Capacity, ...]:
    names = value if isinstance(value, list | tuple) else [value]
    if names and all(name in list(Capacity) for name in names):
        return tuple(dict.fromkeys(Capacity(str(name)) for name in names))
    hint = next((hint for name in names if (hint := did_you_mean(name, map(str, Capacity)))), "")
    raise ValueError(f"allowed: spot, on-demand, or a list of both{hint}")


def to_hazards(value: object) -> object:
    """A rate for all markets is a mapping with the glob that fits all."""
    return {"*": value} if _number(value) else value


def to_workers(value: object) -> tuple[int, int]:
    fewest, most = _ends(value)
    if not (isinstance(fewest, int) and isinstance(most, int)) or isinstance(fewest, bool) or isinstance(most, bool):
        raise ValueError("allowed: a whole number, 2..4, [2, 4] or {min: 2, max: 4}")
    if fewest < 1:
        raise ValueError("allowed: 1 worker or more")
    if fewest > most:
        raise ValueError(f"the minimum ({fewest}) is above the maximum ({most})")
    return fewest, most


def _ends(value: object) -> Sequence[object]:
    match value:
        case {"min": fewest, "max": most, **rest} if not rest:
            return fewest, most
        case [fewest, most]:
            return fewest, most
        case str() if match := re.fullmatch(_WORKERS, value):
            return int(match[1]), int(match[2] or match[1])
        case _:
            return value, value


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point in time, or a span from the moment of submission."""

    at_s: float | None = None
    after_s: float | None = None

    def resolve_s(self, now_s: float) -> float:
        return self.at_s if self.at_s is not None else now_s + (self.after_s or 0.0)


def to_deadline(value: object) -> Deadline:
    moment = _moment(value)
    if moment is None:
        return _span(value)
    if moment.tzinfo is None:
        raise ValueError("the time zone is missing: write it like 2030-05-01T18:00Z or 2030-05-01T18:00+02:00")
    return Deadline(at_s=moment.timestamp())


def _moment(value: object) -> datetime | None:
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) and "-" in value else None
    except ValueError:
        return None


def _span(value: object) -> Deadline:
    try:
        after_s = to_duration_s(value)
    except ValueError:
        raise ValueError("allowed: a duration like 6h, or a time like 2030-05-01T18:00Z") from None
    if after_s <= 0:
        raise ValueError("allowed: a duration above zero")
    return Deadline(after_s=after_s)


def to_text(value: object) -> object:
    """Whole numbers are fine as text (ports, counts); 1.10 or true would not come out as they were written."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def to_optional_duration_s(value: object) -> float | None:
    try:
        return None if value in _NONE_WORDS else to_duration_s(value)
    except ValueError as error:
        raise ValueError(f"{error}; or none") from None


Duration = Annotated[
    float,
    BeforeValidator(to_duration_s),
    Field(ge=0),
    WithJsonSchema({"type": _NUMBER_OR_TEXT, "description": f"A duration, {_DURATION}.", "examples": _DURATIONS}),
]
OptionalDuration = Annotated[
    Annotated[float, Field(ge=0)] | None,
    BeforeValidator(to_optional_duration_s),
    WithJsonSchema(
        {
            "type": [*_NUMBER_OR_TEXT, "null"],
            "description": f"A duration, {_DURATION}; or none.",
            "examples": [*_DURATIONS, "none"],
        }
    ),
]
DurationRange = Annotated[
    tuple[float, float],
    BeforeValidator(to_duration_range_s),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": _NUMBER_OR_TEXT},
                {"type": "array", "items": {"type": _NUMBER_OR_TEXT}, "minItems": 2, "maxItems": 2},
            ],
            "description": f"A duration, or [shortest, longest], {_DURATION}.",
        }
    ),
]
Usd = Annotated[
    int,
    BeforeValidator(to_uusd),
    Field(gt=0),
    WithJsonSchema({"type": _NUMBER_OR_TEXT, "description": "An amount of US dollars.", "examples": [12.50, "$12.50"]}),
]
Capacities = Annotated[
    tuple[Capacity, ...],
    BeforeValidator(to_capacities),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [str(each) for each in Capacity]},
                {"type": "array", "items": {"enum": [str(each) for each in Capacity]}, "minItems": 1},
            ],
            "description": "How it may be bought: spot, on-demand, or a list of both.",
        }
    ),
]
Rate = Annotated[Number, Field(ge=0)]
Hazards = Annotated[
    dict[str, Rate],
    BeforeValidator(to_hazards),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 0},
                {"type": "object", "additionalProperties": {"type": "number", "minimum": 0}},
            ],
            "description": "Preemptions per node and hour: one rate, or rates by glob over cloud/zone/type/capacity.",
        }
    ),
]
Workers = Annotated[
    tuple[int, int],
    PlainValidator(to_workers),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": f"^{_WORKERS}$"},
                {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2, "maxItems": 2},
                {
                    "type": "object",
                    "properties": {"min": {"type": "integer"}, "max": {"type": "integer"}},
                    "required": ["min", "max"],
                    "additionalProperties": False,
                },
            ],
            "description": "How many: 4, 2..4, [2, 4] or {min: 2, max: 4}.",
        }
    ),
]
DeadlineField = Annotated[
    Deadline,
    PlainValidator(to_deadline),
    WithJsonSchema(
        {"type": _NUMBER_OR_TEXT, "description": "A duration like 6h, or a time with its zone like 2030-05-01T18:00Z."}
    ),
]
EnvText = Annotated[str, BeforeValidator(to_text), WithJsonSchema({"type": ["string", "integer"]})]


# --- what all sections of a file have in common ------------------------------------------------------------------


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _empty_sections_are_left_out(cls, data: Any) -> Any:
        """`limits:` with every line below it commented out is no mistake."""
        if not isinstance(data, dict):
            return data
        fields = {info.alias or name: info for name, info in cls.model_fields.items()}
        sections = {key for key, info in fields.items() if isinstance(_default(info), BaseModel | tuple | dict)}
        return {key: value for key, value in data.items() if value is not None or key not in sections}


def _default(info: FieldInfo) -> Any:
    return info.get_default(call_default_factory=True, validated_data={})
