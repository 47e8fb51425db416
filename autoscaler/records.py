"""What the log knows of one node and of one job: values that `fleet.py` folds. Import them from there."""

from __future__ import annotations

from dataclasses import dataclass, field

from tradewind.model import EndReason, JobSpec, Offer, Phase, Role
from tradewind.states import JobState, NodeState

# Those who are left after a loss hold what is not saved yet. A group that failed as a whole tells of no workers.
_HOLDING = frozenset({Phase.TRAINING, Phase.CHECKPOINTING, Phase.RESIZING, Phase.RESTARTING})


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """What the log knows of one node."""

    launch_id: str
    offer: Offer
    cell: str
    reason: str
    state: NodeState
    requested_at_s: float
    state_since_s: float
    instance_id: str = ""
    ray_node_id: str = ""
    launched_at_s: float | None = None
    joined_at_s: float | None = None
    ended_at_s: float | None = None
    notice_deadline_s: float | None = None
    drain_deadline_s: float | None = None
    end: EndReason | None = None
    detail: str = ""
    replaces: tuple[str, ...] = ()  # launch ids whose work it is to take over
    held_since_s: float | None = None  # when what jobs hold on it last changed
    tried_s: float | None = None  # when something was last bought to take over its work
    tenants: tuple[str, ...] = ()  # for whom it was bought
    role: Role = Role.WORKER
    jobs: tuple[str, ...] = ()  # on whose behalf it was bought, as far as it is known
    placement_group: str = ""  # in which it was asked for
    last_job: str = ""  # which last took or left something there


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What the log knows of one job."""

    job_id: str
    spec: JobSpec
    state: JobState
    submitted_at_s: float
    foreign: bool = False
    cell: str = ""  # where it runs; empty: nowhere yet
    placements: int = 0
    moving: str = ""  # why it is to leave its cell
    moves_put_off: int = 0  # since its last save: it was to leave, and could not save
    reason: str = ""
    started_at_s: float | None = None
    ended_at_s: float | None = None
    phase: Phase | None = None
    phase_reason: str = ""
    attempt: int = 0
    workers: int = 0
    step: int = 0
    total_steps: int | None = None
    loss: float | None = None
    checkpoint_step: int | None = None
    reported_sequence: int = 0
    holdings: dict[str, dict[str, float]] = field(default_factory=dict)  # launch id -> resources

    @property
    def holds_state(self) -> bool:
        """Its workers have what is lost with them, unless it is saved first."""
        return self.workers > 0 and self.phase in _HOLDING
