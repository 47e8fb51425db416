"""What goes between a controller and the agent on a cell's head: words, calls and answers, as JSON. Pure.

The agent dials out, so calls run in reverse: the controller puts one into the cell's line (line.py), the agent takes
it with its next poll, carries it out (dial.py) and sends the answer. Both sides read and write by the table of `CALLS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pydantic import TypeAdapter, ValidationError

from tradewind import __version__
from tradewind.autoscaler.ray_snapshot import DrainReason, RayReport, RaySnapshot
from tradewind.errors import RayError
from tradewind.model import Resources, Target
from tradewind.node.join_desk import EnergyReport

PROTOCOL = "1"  # of these values: raised when an older side could not read them
GZIP_FROM_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Hello:
    """The first words of an agent: who it is, and where its cell is reached from inside."""

    launch_id: str  # of the head that it runs on
    gcs_address: str
    dashboard_url: str = ""
    join_url: str = ""  # the join desk, for workers
    versions: Mapping[str, str] = field(default_factory=dict)  # "tradewind", "ray", "python", "torch", ...
    started_at_s: float = 0.0  # of the agent: after it started again on the same head, the later one counts
    protocol: str = PROTOCOL


@dataclass(frozen=True, slots=True)
class Welcome:
    session: str  # the agent's name from now on


@dataclass(frozen=True, slots=True)
class Poll:
    session: str
    wait_s: float


@dataclass(frozen=True, slots=True)
class Call:
    call_id: str
    name: str  # a key of CALLS
    arguments: Any  # JSON


@dataclass(frozen=True, slots=True)
class Answer:
    session: str
    value: Any = None  # JSON
    error: str = ""  # class name; empty: there is a value
    message: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    """What the controller reads of a row of Ray's job table (its own type needs Ray to be imported)."""

    submission_id: str | None
    status: str
    message: str | None = None


HELLO: TypeAdapter[Hello] = TypeAdapter(Hello)
WELCOME: TypeAdapter[Welcome] = TypeAdapter(Welcome)
POLL: TypeAdapter[Poll] = TypeAdapter(Poll)
POLLED: TypeAdapter[tuple[Call, ...]] = TypeAdapter(tuple[Call, ...])
ANSWER: TypeAdapter[Answer] = TypeAdapter(Answer)

# A JSON object has texts as keys: what jobs hold travels as rows.
_Held = tuple[tuple[str, str, Resources], ...]
_WireSnapshot = tuple[RaySnapshot, _Held]


class Signature:
    """The types of one call. Adapters are built when first used: building them all takes a while."""

    def __init__(self, arguments: Any, result: Any) -> None:
        self._arguments, self._result = arguments, result

    @cached_property
    def arguments(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._arguments)

    @cached_property
    def result(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._result)


CALLS: Mapping[str, Signature] = {
    "ray.snapshot": Signature(tuple[()], _WireSnapshot),
    "ray.drain": Signature(tuple[str, DrainReason, str, float | None], tuple[bool, str]),
    "ray.report": Signature(tuple[RayReport], None),
    "jobs.list_jobs": Signature(tuple[()], tuple[JobRow, ...]),
    "jobs.submit_job": Signature(tuple[str, str, dict[str, Any] | None, dict[str, str]], str),
    "jobs.stop_job": Signature(tuple[str], bool),
    "jobs.get_job_logs": Signature(tuple[str], str),
    "coordinators.poll": Signature(tuple[str, int], dict[str, Any] | None),
    "coordinators.set_target": Signature(tuple[str, Target], bool),
    "node.log": Signature(tuple[str], str),
    "node.energy": Signature(tuple[()], tuple[EnergyReport, ...]),
    "node.reports": Signature(tuple[()], tuple[tuple[str, str], ...]),  # (launch id, why it did not come up)
}


def write_arguments(name: str, arguments: Sequence[Any]) -> Any:
    return CALLS[name].arguments.dump_python(tuple(arguments), mode="json")


def read_arguments(call: Call) -> tuple[Any, ...]:
    """Raises ValueError where they are not of the call's types, or there is no such call."""
    if call.name not in CALLS:
        raise ValueError(f"there is no call {call.name!r}")
    found: tuple[Any, ...] = CALLS[call.name].arguments.validate_python(call.arguments, strict=False)
    return found


def write_result(name: str, value: Any) -> Any:
    if isinstance(value, RaySnapshot):
        held = tuple((job_id, node_id, amounts) for (job_id, node_id), amounts in value.holdings.items())
        value = (replace(value, holdings={}), held)
    return CALLS[name].result.dump_python(value, mode="json")


def read_result(name: str, value: Any) -> Any:
    try:
        found = CALLS[name].result.validate_python(value, strict=False)
    except ValidationError as error:
        problem = error.errors()[0]
        raise RayError(
            f"the answer to {name} cannot be read: {problem['msg']} at {'.'.join(map(str, problem['loc']))}",
            "head and controller may be of different versions",
        ) from error
    if name == "ray.snapshot":
        snapshot, held = found
        found = replace(snapshot, holdings={(job_id, node_id): amounts for job_id, node_id, amounts in held})
    return found


# --- errors ------------------------------------------------------------------------------------------------------

# As the ports raise them (RayPort, JobsPort, CoordinatorsPort): the caller's own `except` goes on working.
_ERRORS: Mapping[str, type[Exception]] = {
    "RayError": RayError,
    "TimeoutError": TimeoutError,
    "OSError": ConnectionError,
    "RuntimeError": RuntimeError,
    "ValueError": ValueError,
}


def error_name(error: Exception) -> str:
    """The nearest of these; what is not among them is told as a RayError with its own name in the message."""
    kinds = (RayError, TimeoutError, OSError, RuntimeError, ValueError)
    return next((kind.__name__ for kind in kinds if isinstance(error, kind)), "RayError")


def error_text(error: Exception) -> str:
    known = isinstance(error, RayError | TimeoutError | OSError | RuntimeError | ValueError)
    if isinstance(error, RayError):
        return error.message
    return str(error) if known else f"{type(error).__name__}: {error}"


def error_of(answer: Answer) -> Exception:
    return _ERRORS.get(answer.error, RayError)(answer.message)


def refusal_of(hello: Hello) -> str:
    """Why an agent with these words cannot be used; empty: it can."""
    theirs = hello.versions.get("tradewind", "of an unknown version")
    if hello.protocol != PROTOCOL or theirs != __version__:
        return f"the head runs tradewind {theirs}, the controller {__version__}"
    return ""
