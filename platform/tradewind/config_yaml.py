"""YAML text -> a checked model, or a ConfigError with one readable Problem per mistake. Knows no particular file.

The text is composed to YAML's node tree, whose nodes know their lines; pydantic names a mistake by its path in the
data; the two meet in `Document.line`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from tradewind.config_types import did_you_mean, found, nearest
from tradewind.errors import ConfigError, Problem

Place = tuple[str | int, ...]  # ("local", "script", 0, "at")
Model = TypeVar("Model", bound=BaseModel)


def load(path: Path, model: type[Model], context: Mapping[str, Any] | None = None) -> Model:
    """A file as a model. Raises ConfigError with everything that is wrong with it."""
    return parse(read(path), str(path), model, context)


def parse(text: str, name: str, model: type[Model], context: Mapping[str, Any] | None = None) -> Model:
    return check(compose(text, name), model, context)


def check(document: Document, model: type[Model], context: Mapping[str, Any] | None = None) -> Model:
    name = document.name
    if not isinstance(document.data, dict):
        empty = document.data is None
        wrong = "the file is empty" if empty else f"found {found(document.data)} at the top"
        raise ConfigError([Problem(name, "", f"{wrong}; allowed: `key: value` lines ({', '.join(_keys(model))})")])
    try:
        checked, problems = model.model_validate(document.data, context=dict(context or {})), list(document.problems)
    except ValidationError as error:
        problems = [*document.problems, *_problems(document, model, error.errors(include_url=False))]
    if problems:
        raise ConfigError(sorted(dict.fromkeys(problems), key=_line_of))  # an anchor's mistakes are found at each use
    return checked


def read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError([Problem(str(path), "", f"not a UTF-8 text file (byte {error.start})")]) from error
    except OSError as error:
        raise ConfigError([Problem(str(path), "", error.strerror or str(error))], "check the path") from error


# --- YAML ------------------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """YAML 1.2's plain values: in 1.1, which PyYAML speaks, 1:30 is the number 90 and `no` is false."""


_CORE = {
    "tag:yaml.org,2002:bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "tag:yaml.org,2002:null": (r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    "tag:yaml.org,2002:int": (r"[-+]?(0|[1-9][0-9_]*)", "-+0123456789"),
    "tag:yaml.org,2002:float": (
        r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
    ),
    "tag:yaml.org,2002:merge": (r"<<", "<"),
}
_Loader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _CORE.items():
    _Loader.add_implicit_resolver(_tag, re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(slots=True)
class Document:
    """A YAML text as plain data, with the line of every value."""

    name: str
    data: Any = None
    lines: dict[Place, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def where(self, place: Place) -> str:
        """The line of the nearest thing that is there: of a missing key, its section's."""
        while place and place not in self.lines:
            place = place[:-1]
        return f"{self.name}:{self.lines.get(place, 1)}"

    def part(self, place: Place) -> Document:
        """What stands below a key, as a document of its own, with the lines of the whole."""
        data = self.data
        for key in place:
            data = data[key]
        size = len(place)
        lines = {below[size:]: line for below, line in self.lines.items() if below[:size] == place}
        return Document(self.name, data, lines, self.problems)


def compose(text: str, name: str) -> Document:
    """Raises ConfigError where the text is not YAML; keys that stand twice are problems of the document."""
    document = Document(name)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is not None:
            document.data = _build(loader, node, (), document, ())
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a tag that does not fit its value, `!!int x`
        raise ConfigError([_syntax_problem(name, text, error)]) from error
    finally:
        loader.dispose()
    return document


def _build(loader: _Loader, node: yaml.Node, place: Place, document: Document, above: tuple[yaml.Node, ...]) -> Any:
    document.lines.setdefault(place, node.start_mark.line + 1)
    if node in above:
        raise yaml.constructor.ConstructorError(None, None, "an alias that contains itself", node.start_mark)
    if isinstance(node, yaml.MappingNode):
        return dict(_entries(loader, node, place, document, (*above, node)))
    if isinstance(node, yaml.SequenceNode):
        return [_build(loader, item, (*place, i), document, (*above, node)) for i, item in enumerate(node.value)]
    return loader.construct_object(node)


def _entries(
    loader: _Loader, node: yaml.MappingNode, place: Place, document: Document, above: tuple[yaml.Node, ...]
) -> Iterator[tuple[str, Any]]:
    _find_duplicates(node, place, document)
    loader.flatten_mapping(node)  # `<<: *defaults`
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain word", key.start_mark)
        below = (*place, key.value)
        document.lines[below] = key.start_mark.line + 1
        yield key.value, _build(loader, value, below, document, above)


def _find_duplicates(node: yaml.MappingNode, place: Place, document: Document) -> None:
    first: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if isinstance(key, yaml.ScalarNode) and first.setdefault(key.value, line) != line:
            message = f"stands twice, here and in line {first[key.value]}; keep one"
            document.problems.append(Problem(f"{document.name}:{line}", _path((*place, key.value)), message))


def _syntax_problem(name: str, text: str, error: Exception) -> Problem:
    mark = getattr(error, "problem_mark", None)
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    if mark is None:
        return Problem(name, "", f"not YAML: {what}")
    line = text.splitlines()[mark.line] if mark.line < len(text.splitlines()) else ""
    if "\t" in line[: mark.column + 1]:
        what = "a tab; indent with spaces"
    return Problem(f"{name}:{mark.line + 1}", "", f"not YAML: {what} (column {mark.column + 1})")


# --- pydantic's errors in words --------------------------------------------------------------------------------

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "string_type": "text (put it in quotes)",
    "dict_type": "a mapping (`key: value` lines)",
    "model_type": "a mapping (`key: value` lines)",
    "tuple_type": "a list (`- ...` lines)",
    "list_type": "a list (`- ...` lines)",
}
_BOUNDS = {
    "greater_than_equal": "{ge:g} or more",
    "greater_than": "more than {gt:g}",
    "less_than_equal": "{le:g} or less",
    "less_than": "less than {lt:g}",
}


def _problems(document: Document, model: type[BaseModel], errors: Sequence[ErrorDetails]) -> list[Problem]:
    """One per mistake: where `nmae` stands, `name` is not missing on top of it."""
    unknown = [error["loc"] for error in errors if error["type"] == "extra_forbidden"]
    meant = {(*loc[:-1], nearest(loc[-1], _keys(_section(model, loc[:-1]) or model))) for loc in unknown}
    told = (error for error in errors if not (error["type"] == "missing" and error["loc"] in meant))
    return [_problem(document, model, error) for error in told]


def _problem(document: Document, model: type[BaseModel], error: ErrorDetails) -> Problem:
    place = error["loc"]
    if place[-1:] == ("[key]",) and error["type"] != "extra_forbidden":
        place = place[:-1]  # how pydantic says that the key, not its value, is wrong; a file may have such a key, too
    message = _missing(model, place) if error["type"] == "missing" else _wrong(model, place, error)
    return Problem(document.where(place), _path(place), message)


def _wrong(model: type[BaseModel], place: Place, error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        return _unknown_key(model, place)
    if kind == "value_error":
        words = str(context["error"])
        return words if isinstance(error["input"], dict) else f"found {found(error['input'])}; {words}"
    return f"found {found(error['input'])}; allowed: {_allowed(model, place, error)}"


def _allowed(model: type[BaseModel], place: Place, error: ErrorDetails) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", context["expected"])
        return ", ".join(choices) + did_you_mean(error["input"], choices)
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    if kind == "string_pattern_mismatch":
        return _description(model, place) or f"text that matches {context['pattern']}"
    return _EXPECTED.get(kind, error["msg"])


def _missing(model: type[BaseModel], place: Place) -> str:
    description = _description(model, place)
    return f"is missing; allowed: {description}" if description else "is missing"


def _unknown_key(model: type[BaseModel], place: Place) -> str:
    *above, key = place
    section = _section(model, tuple(above))
    allowed = _keys(section) if section else []
    homes = [_path(home) for home in _homes(model, str(key))]
    hint = did_you_mean(key, allowed) or (f" (it belongs under {' or '.join(homes)})" if homes else "")
    return f"is not a key here{hint}; allowed: {', '.join(allowed)}"


# --- finding the way in a model --------------------------------------------------------------------------------


def _fields(model: type[BaseModel]) -> dict[str, Any]:
    return {info.alias or name: info for name, info in model.model_fields.items()}


def _keys(model: type[BaseModel]) -> list[str]:
    return list(_fields(model))


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model inside of `tuple[Step, ...]`, `Step | None` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((inner for part in get_args(annotation) if (inner := _model_in(part))), None)


def _section(model: type[BaseModel], place: Place) -> type[BaseModel] | None:
    current: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, str) and current is not None:
            info = _fields(current).get(part)
            current = _model_in(info.annotation) if info else None
    return current


def _description(model: type[BaseModel], place: Place) -> str:
    section = _section(model, place[:-1])
    info = _fields(section).get(str(place[-1])) if section and place else None
    text = (info.description or "").rstrip(".") if info else ""
    return text[:1].lower() + text[1:]


def _homes(model: type[BaseModel], key: str, place: Place = ()) -> Iterator[Place]:
    """Sections that have such a key."""
    for name, info in _fields(model).items():
        if name == key and place:
            yield place
        inner = _model_in(info.annotation)
        if inner:
            yield from _homes(inner, key, (*place, name))


def _path(place: Sequence[str | int]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
    return text.removeprefix(".")


def _line_of(problem: Problem) -> int:
    return int(problem.where.rpartition(":")[2])
