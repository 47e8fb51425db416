"""What goes over the wire between the controller and people: shared by server and client, so that both agree.

Everything here is a frozen value, or the Protocol that the server asks (`ControllerPort`). Pure.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from pydantic import Field

from tradewind import errors
from tradewind.errors import ConfigError, ControllerError, JobNotFound, NotFound, Problem, TradewindError
from tradewind.model import Capacity, EndReason, JobSpec, Phase, Role
from tradewind.states import JobState, NodeState

if TYPE_CHECKING:
    from tradewind.api_requests import ResumeRequest
    from tradewind.cost.ledger import Ledger

SERVICE = "tradewind"  # how /healthz tells our server from another one on a re-used port
MAX_WAIT_S = 30.0  # the longest that a long poll holds a connection

FORECAST_HOURS = 12.0  # of history, unless told otherwise
FORECAST_SERIES = 3

About = Literal["node", "job", "now"]  # what a story can be about
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    service: str
    version: str
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractInfo:
    """What a job was promised, and how it stands. Figures are None where nothing is known yet; `reason` says why.
    Ranges hold four of five cases. Costs are those of the whole job, moments are by the clock."""

    deadline_at_s: float | None = None
    budget_uusd: int | None = None
    course: str = ""  # where it is to run now
    reason: str = ""
    chance: float | None = None  # that all of it is kept
    deadline_chance: float | None = None
    budget_chance: float | None = None  # that it is done within the budget, late perhaps
    cost_uusd: int | None = None
    cost_range_uusd: tuple[int, int] | None = None
    finish_at_s: float | None = None
    finish_range_s: tuple[float, float] | None = None
    as_of_s: float | None = None  # when this was found out
    basis: str = ""  # what it rests on, where that is no more than what was stated
    kept: bool | None = None  # of a job that is over


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInfo:
    job_id: str
    name: str
    tenant: str
    state: JobState
    submitted_at_s: float
    phase: Phase | None = None
    foreign: bool = False  # sent by plain `ray job submit`
    workers: int = 0
    min_workers: int = 0
    max_workers: int = 0
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None  # None too where it is not a number
    started_at_s: float | None = None
    ended_at_s: float | None = None
    reason: str = ""
    cost_uusd: int = 0
    nodes: tuple[str, ...] = ()  # launch ids that it holds something on
    attempts: int = 0
    cell: str = ""  # where it runs; empty: nowhere yet
    contract: ContractInfo | None = None  # None: nothing was promised
    warning: str = ""  # in the answer to a submission: why its workers would never start on what the fleet may buy


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeInfo:
    launch_id: str
    cloud: str
    zone: str
    instance_type: str
    capacity: Capacity
    state: NodeState
    since_s: float  # when it came into this state
    accelerator: str = ""
    accelerator_count: float = 0.0  # of one host
    hosts: int = 1  # a TPU slice is one node of several hosts
    price_uusd_per_h: int | None = None  # of all hosts together; None: unknown
    jobs: tuple[str, ...] = ()
    cost_uusd: int = 0
    end: EndReason | None = None
    detail: str = ""
    reason: str = ""  # why it was bought
    cell: str = ""
    role: Role = Role.WORKER


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandLine:
    """Something that is asked for and not there; `hold` says why it is not being bought (empty: it is)."""

    what: str
    count: int = 1
    hold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionLine:
    at_s: float
    action: str
    subject: str
    reason: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CellInfo:
    """One Ray cluster of the fleet."""

    cell: str
    cloud: str
    region: str
    head: str  # "ready", or what is the matter
    head_node: str = ""  # launch id; empty: it is a process beside the controller, or there is none
    ray_address: str = ""
    nodes: int = 0  # that the cloud may bill, without the head
    jobs: int = 0  # open ones


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetStatus:
    fleet: str
    version: str
    simulated: bool  # the local cloud, or emulators: every amount is a pretence
    uptime_s: float
    ray_address: str = ""
    dashboard_url: str = ""
    ray_env: Mapping[str, str] = field(default_factory=dict)  # what plain `ray` needs to be let in; no secret itself
    nodes: tuple[NodeInfo, ...] = ()  # those that the cloud may bill
    jobs: tuple[JobInfo, ...] = ()  # open ones, and the last that ended
    cost_uusd: int = 0  # so far
    price_uusd_per_h: int = 0  # now
    demand: tuple[DemandLine, ...] = ()
    decisions: tuple[DecisionLine, ...] = ()  # the latest, oldest first
    dry_run: bool = False  # nothing is launched or ended
    cells: tuple[CellInfo, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryLine:
    """One thing that was decided or happened."""

    what: str
    at_s: float | None = None
    group: str = ""  # the heading under which it stands; empty: none
    reason: str = ""
    beat: tuple[str, ...] = ()  # alternatives that could be had, and were worse
    tied: tuple[str, ...] = ()  # alternatives that could be had, and cost the same
    refused: tuple[str, ...] = ()  # asked before it, in this order, each with its answer
    ruled_out: tuple[str, ...] = ()  # not asked at all, each with the reason
    count: int = 1  # how often it was decided alike; `at_s` is the last time
    since_s: float | None = None  # the first time, where it is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """Why a node is or was there, why a job is as it is, or what goes on now: told from the event log."""

    about: About
    subject: str  # launch id, job id, or the fleet's name
    title: str
    facts: tuple[tuple[str, str], ...] = ()  # (name, text)
    lines: tuple[StoryLine, ...] = ()  # oldest first within their group
    notes: tuple[str, ...] = ()  # what the record does not hold, or what was left out

    def __str__(self) -> str:
        from tradewind.render import story_text

        return story_text(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandPoint:
    """How much was wanted, on average over the time to the point before it; of the last point: at this moment."""

    at_s: float
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastPoint:
    """Demand is under each quantile as often as its name says."""

    at_s: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonForecast:
    """What will be wanted, and how good such forecasts have been on this series; newer ones count more."""

    ahead_s: float
    point: ForecastPoint
    has_interval: bool  # False: too few past errors are known, and every quantile is the last value
    model: str
    reason: str  # why this model
    scored: int  # past forecasts whose outcome is known
    wape: float | None = None  # absolute errors of the median by demand; None: nothing was wanted yet
    persistence_wape: float | None = None
    # Share of outcomes under p90, and under or at it: demand often stands still, and then meets it exactly.
    under_p90: float | None = None
    covered_p90: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesForecast:
    """The demand of one tenant for one shape. Amounts count requests of the shape."""

    tenant: str
    shape: str
    now: float  # wanted at this moment
    history: tuple[DemandPoint, ...]
    ahead: tuple[HorizonForecast, ...] = ()  # by horizon; empty: too little history
    said: tuple[ForecastPoint, ...] = ()  # what had been forecast for the past, `said_ahead_s` before each moment
    said_ahead_s: float = 0.0
    since_s: float = 0.0  # when it was first asked for, as far as is looked back
    needed_s: float = 0.0  # how much of history it takes before quantiles are given
    is_used: bool = False  # whether nodes are bought by a forecast of this series
    use: str = ""  # why, or why not


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """What was wanted, what will be, and how far to trust it: told from the event log. Print it to see charts."""

    fleet: str
    made_at_s: float
    hours: float  # of history
    series: tuple[SeriesForecast, ...] = ()  # the most wanted first
    others: tuple[str, ...] = ()  # series that were left out: tenant and shape
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        from tradewind.forecast_text import forecast_text

        return forecast_text(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptReply:
    launch_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """A piece of what a job printed. Ask again from `next_offset`."""

    text: str
    next_offset: int  # in bytes
    more: bool = False  # there is more at once
    over: bool = False  # the job has ended: nothing will be added


@dataclass(frozen=True, slots=True, kw_only=True)
class EventLine:
    """One event of the log; `event` is its JSON, `kind` and `at_s` included."""

    sequence: int
    event: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShutdownReport:
    """What an end of the fleet ended, and what the clouds still list afterwards (must be empty)."""

    jobs_stopped: tuple[str, ...] = ()
    nodes_ended: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    cost_uusd: int = 0
    simulated: bool = False
    fleet: str = ""  # its name


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorBody:
    """An error of the tree as JSON; the client raises the same class again."""

    error: str  # class name in errors.py
    message: str
    hint: str = ""
    problems: tuple[Problem, ...] = ()  # of a ConfigError

    @classmethod
    def of(cls, error: TradewindError) -> ErrorBody:
        problems = error.problems if isinstance(error, ConfigError) else ()
        return cls(error=type(error).__name__, message=error.message, hint=error.hint, problems=problems)

    def to_exception(self) -> TradewindError:
        found = getattr(errors, self.error, None)
        if found is ConfigError:
            return ConfigError(self.problems, self.hint)
        if isinstance(found, type) and issubclass(found, TradewindError):
            return found(self.message, self.hint)
        return ControllerError(f"{self.error}: {self.message}", self.hint)


class ControllerPort(Protocol):
    """What the HTTP server asks of a controller. Called from several threads at once.

    Unknown job ids raise JobNotFound, unknown nodes NotFound. `wait_s` is a long poll: return as soon as there is
    something after `offset`/`after`, or (logs) the job is over, and at the latest after `wait_s` seconds.
    """

    def status(self) -> FleetStatus: ...

    def jobs(self) -> Sequence[JobInfo]:
        """All of them, oldest first."""
        ...

    def job(self, job_id: str) -> JobInfo: ...

    def submit(self, spec: JobSpec) -> JobInfo: ...

    def stop(self, job_id: str) -> JobInfo:
        """Asks it to stop and returns at once; a job that is over stays as it is."""
        ...

    def resume(self, job_id: str, request: ResumeRequest) -> JobInfo:
        """Changes the budget of an open job; of one that is over, starts another that goes on from its checkpoints."""
        ...

    def logs(self, job_id: str, *, offset: int = 0, tail: int | None = None, wait_s: float = 0.0) -> LogChunk:
        """What it printed from byte `offset` on; with `tail`, the last so many lines instead."""
        ...

    def node_log(self, launch_id: str) -> str:
        """What its machine wrote while it booted; a beginning of the id is enough."""
        ...

    def receipt(self, job_id: str) -> dict[str, Any]:
        """JSON of cost.receipt.Receipt."""
        ...

    def bill(self) -> dict[str, Any]:
        """JSON of cost.receipt.Bill."""
        ...

    def ledger(self) -> AbstractContextManager[tuple[Ledger, float]]:
        """The ledger and the present moment. Nothing changes in it while it is held, so hold it shortly."""
        ...

    def events(self, *, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> Sequence[EventLine]: ...

    def nodes(self) -> Sequence[NodeInfo]:
        """All of them, ended ones included, oldest first."""
        ...

    def why(self, about: About, subject: str = "", last: int | None = None) -> Story:
        """`subject` is an id or a beginning that only one has; `last` is how many lines at the most."""
        ...

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """`what` is a tenant, or (a part of) a shape; empty: all. At the most so many series, the most wanted first.
        Raises NotFound where nothing like it was asked for."""
        ...

    def preempt(self, target: str, notice_s: float | None) -> Sequence[str]:
        """The launch ids that will be taken. Raises Unsupported on a real cloud."""
        ...

    def shutdown(self) -> ShutdownReport:
        """Stops jobs, ends nodes, and returns when the clouds list none any more (or have not in time).

        The process ends by itself soon after the answer was given.
        """
        ...


def job_not_found(job_id: str, known: Iterable[str]) -> JobNotFound:
    """With the nearest id that there is."""
    return JobNotFound(f"there is no job {job_id}", f"{_did_you_mean(job_id, known)}{JobNotFound.default_hint}")


def node_not_found(launch_id: str, known: Iterable[str]) -> NotFound:
    """Likewise."""
    hint = f"{_did_you_mean(launch_id, known)}`tradewind nodes --all` lists them"
    return NotFound(f"there is no node {launch_id}", hint)


def pick(given: str, known: Iterable[str], not_found: Callable[[str, Iterable[str]], TradewindError]) -> str:
    """The id that is given whole, or by a beginning that no other has. Raises what `not_found` makes."""
    names = list(known)
    found = [given] if given in names else [name for name in names if given and name.startswith(given)]
    if len(found) > 1:
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        raise type(not_found(given, ()))(f"{given} is the beginning of {len(found)} ids: {shown}", "give more of it")
    if not found:
        raise not_found(given, names)
    return found[0]


def _did_you_mean(given: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5) or [name for name in names if given in name]
    return f"did you mean {near[0]}? " if near else ""
