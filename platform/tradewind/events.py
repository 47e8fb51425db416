"""Everything that happens, as frozen values. Jobs, nodes and cost are folds over these; nothing else is stored.

Each event is a dataclass with a `kind` of its own, and `at_s`: when it happened, in seconds since the epoch.
Adding a field with a default needs no new schema version. Anything else does: raise SCHEMA_VERSION and add an
upgrade to `UPGRADES`, so that older logs are still read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, get_args

from pydantic import ConfigDict, Discriminator, TypeAdapter

from tradewind.model import Asked, EndReason, JobSpec, Offer, Phase, Role
from tradewind.states import JobState

SCHEMA_VERSION = 1

Payload = dict[str, Any]
# (kind, version) -> how a payload of that version is turned into one of the next
Upgrades = Mapping[tuple[str, int], Callable[[Payload], Payload]]
UPGRADES: Upgrades = {}


@dataclass(frozen=True, slots=True)
class Schema:
    """A version, and how payloads of older ones are brought to it."""

    version: int = SCHEMA_VERSION
    upgrades: Upgrades = field(default_factory=lambda: UPGRADES)


CURRENT = Schema()


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStarted:
    at_s: float
    fleet: str
    pid: int
    version: str
    simulated: bool  # the local cloud, or emulators: every amount is a pretence
    config: str = ""  # a digest of the fleet file
    kind: Literal["controller_started"] = "controller_started"


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerStopped:
    at_s: float
    reason: str
    kind: Literal["controller_stopped"] = "controller_stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockJumped:
    """The machine's clock was set by so much. Times on record before this are told by the old clock."""

    at_s: float  # by the new one
    jump_s: float
    kind: Literal["clock_jumped"] = "clock_jumped"


# --- nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequested:
    """Intent: on record before the cloud is called. The launch id names the node for the rest of its life."""

    at_s: float
    launch_id: str
    offer: Offer
    reason: str
    cell: str = "local"
    replaces: tuple[str, ...] = ()  # launch ids whose work it is to take over: they are drained once it is ready
    tenants: tuple[str, ...] = ()  # on whose behalf; empty: where no limit asks for it
    role: Role = Role.WORKER
    jobs: tuple[str, ...] = ()  # on whose behalf, as far as it is known
    placement_group: str = ""  # beside whose other nodes the cloud is asked to put it; empty: anywhere in the zone
    kind: Literal["launch_requested"] = "launch_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRefused:
    at_s: float
    launch_id: str
    error: str  # class name in the error tree: "Stockout"
    message: str
    scope: str  # what is ruled out: a value of errors.Scope
    block_s: float
    kind: Literal["launch_refused"] = "launch_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLaunched:
    """The cloud has it, and bills it from `at_s` on, by the cloud's clock."""

    at_s: float
    launch_id: str
    instance_id: str
    seen_at_s: float | None = None  # when we learnt it, by our clock; None: in logs of older versions
    kind: Literal["node_launched"] = "node_launched"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined:
    at_s: float
    launch_id: str
    ray_node_id: str
    kind: Literal["node_joined"] = "node_joined"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReceived:
    """The cloud says that it will take the node at `deadline_s`."""

    at_s: float
    launch_id: str
    deadline_s: float
    kind: Literal["notice_received"] = "notice_received"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequested:
    at_s: float
    launch_id: str
    reason: str
    deadline_s: float | None = None
    kind: Literal["drain_requested"] = "drain_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRefused:
    """Ray did not take the drain (the node got work meanwhile): the node is ready again."""

    at_s: float
    launch_id: str
    message: str
    kind: Literal["drain_refused"] = "drain_refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminateRequested:
    at_s: float
    launch_id: str
    reason: str
    kind: Literal["terminate_requested"] = "terminate_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGone:
    """The cloud no longer has it; billing ended at `at_s`."""

    at_s: float
    launch_id: str
    end: EndReason
    detail: str = ""
    kind: Literal["node_gone"] = "node_gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class EnergyMeasured:
    """What one host of a node took in its first `seconds`, by its own counters. A longer one replaces a shorter one."""

    at_s: float
    launch_id: str
    seconds: float
    card_joules: float | None = None  # None: its cards have no counter, or it has none
    processor_joules: float | None = None
    host: str = ""  # which one, of a slice
    kind: Literal["energy_measured"] = "energy_measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChanged:
    at_s: float
    market: str  # Market.key
    price_uusd_per_h: int
    kind: Literal["price_changed"] = "price_changed"


# --- jobs ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    """A job of ours, or (`foreign`) one that was sent by plain `ray job submit` and adopted when it was seen."""

    at_s: float
    job_id: str
    spec: JobSpec
    foreign: bool = False
    cell: str = ""  # of an adopted one: where it was seen. Others are placed
    kind: Literal["job_submitted"] = "job_submitted"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlaced:
    """From now on the job runs in this cell. In another one it has run before: it goes on from its checkpoint."""

    at_s: float
    job_id: str
    cell: str
    reason: str
    kind: Literal["job_placed"] = "job_placed"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRequested:
    """Intent: the job is to leave its cell. It saves and is stopped there, goes back to the queue, and is placed anew.
    `called_off`: it stays after all."""

    at_s: float
    job_id: str
    reason: str
    called_off: bool = False
    kind: Literal["move_requested"] = "move_requested"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged:
    """From now on the job may cost so much in all, whatever it was submitted with."""

    at_s: float
    job_id: str
    budget_uusd: int
    kind: Literal["budget_changed"] = "budget_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStateChanged:
    at_s: float
    job_id: str
    state: JobState
    reason: str = ""
    kind: Literal["job_state_changed"] = "job_state_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldingChanged:
    """What a job holds on a node from `at_s` on; empty resources: nothing any more."""

    at_s: float
    job_id: str
    launch_id: str
    resources: Mapping[str, float] = field(default_factory=dict)
    kind: Literal["holding_changed"] = "holding_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandChanged:
    """What is asked of a cell's Ray from `at_s` on, beside the workers that jobs have stated: what jobs hold, tasks,
    actors and placement groups that wait, and `request_resources`. Told when it changes, but not again at once.

    A cell tells the whole list now and then, and in between (`goes_on`) only what is new in it: `asked` stands at the
    end of the list then, and `changes` are new amounts by place in it (0: no longer asked for)."""

    at_s: float
    cell: str
    asked: tuple[Asked, ...] = ()  # the largest, where there are many
    goes_on: bool = False
    changes: tuple[tuple[int, float], ...] = ()
    kind: Literal["demand_changed"] = "demand_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged:
    """Told by the job's coordinator, at least once; (job_id, attempt, sequence) tells a repetition."""

    at_s: float
    job_id: str
    attempt: int  # counts the worker groups of this job, from 1
    sequence: int  # counts the coordinator's messages
    phase: Phase
    workers: int
    reason: str = ""
    kind: Literal["phase_changed"] = "phase_changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCommitted:
    """Optimizer steps `first_step` to `last_step` (counted from 1) were taken between `began_s` and `at_s`."""

    at_s: float
    job_id: str
    attempt: int
    sequence: int
    began_s: float
    first_step: int
    last_step: int
    workers: int
    samples: int  # in these steps, over all workers
    total_steps: int | None = None
    loss: float | None = None
    kind: Literal["step_committed"] = "step_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    at_s: float
    job_id: str
    attempt: int
    sequence: int
    step: int
    path: str
    duration_s: float
    size_bytes: int = 0  # 0: not told
    kind: Literal["checkpoint_committed"] = "checkpoint_committed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecorded:
    """One action of a plan, with its reason and what it beat."""

    at_s: float
    action: str  # "launch", "drain", "terminate", "hold", "adopt", "grant", "contract", "budget", "clean", "unsaved"
    subject: str  # launch id, job id (of a grant, a contract), or what was asked for
    reason: str
    alternatives: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()  # on whose behalf; empty: not known, or nobody's in particular
    refused: tuple[str, ...] = ()  # launch ids that were refused for the same need just before, in this order
    ruled_out: tuple[str, ...] = ()  # offers that were not asked at all, each with the reason
    kind: Literal["decision_recorded"] = "decision_recorded"


AnyEvent = (
    ControllerStarted
    | ControllerStopped
    | ClockJumped
    | LaunchRequested
    | LaunchRefused
    | NodeLaunched
    | NodeJoined
    | NoticeReceived
    | DrainRequested
    | DrainRefused
    | TerminateRequested
    | NodeGone
    | EnergyMeasured
    | PriceChanged
    | JobSubmitted
    | JobPlaced
    | MoveRequested
    | BudgetChanged
    | JobStateChanged
    | HoldingChanged
    | DemandChanged
    | PhaseChanged
    | StepCommitted
    | CheckpointCommitted
    | DecisionRecorded
)
Event = Annotated[AnyEvent, Discriminator("kind")]

EVENT_TYPES: tuple[type[AnyEvent], ...] = get_args(AnyEvent)
KINDS: frozenset[str] = frozenset(str(each.__dataclass_fields__["kind"].default) for each in EVENT_TYPES)
# A loss may well be NaN. By default it would be written as null, which reads back as another value or not at all.
_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(Event, config=ConfigDict(ser_json_inf_nan="strings"))


def encode(event: AnyEvent) -> bytes:
    """One event as JSON."""
    return _ADAPTER.dump_json(event)


def decode(payload: bytes | str) -> AnyEvent:
    """An event of the present schema version. Raises ValueError for anything else."""
    return _ADAPTER.validate_json(payload)


def upgrade(payload: Payload, version: int, schema: Schema = CURRENT) -> AnyEvent:
    """An event of an older schema version, brought to the present one. Raises ValueError when it does not fit."""
    for step in range(version, schema.version):
        change = schema.upgrades.get((payload["kind"], step))
        payload = change(payload) if change else payload
    return _ADAPTER.validate_python(payload, strict=False)
