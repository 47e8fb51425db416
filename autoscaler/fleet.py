"""Nodes and jobs as a fold over the event log: the requested truth. Pure; the state tables are held here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from tradewind.autoscaler import job_fold
from tradewind.autoscaler.census import Census
from tradewind.autoscaler.copier import Copier
from tradewind.autoscaler.forecast.demand_log import Told, told_after
from tradewind.autoscaler.knowledge import Experience
from tradewind.autoscaler.pace import Pace
from tradewind.autoscaler.quotes import QUOTES_KEPT_S, Quote, with_quote
from tradewind.autoscaler.records import JobRecord, NodeRecord
from tradewind.autoscaler.roll import Roll
from tradewind.autoscaler.sightings import Spells
from tradewind.errors import PriceTooHigh, Scope, Stockout
from tradewind.events import (
    AnyEvent,
    CheckpointCommitted,
    ClockJumped,
    ControllerStarted,
    DecisionRecorded,
    DemandChanged,
    DrainRefused,
    DrainRequested,
    HoldingChanged,
    JobPlaced,
    JobStateChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    MoveRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    PriceChanged,
    StepCommitted,
    TerminateRequested,
)
from tradewind.model import Capacity, EndReason, Offer, Role
from tradewind.states import NodeState, is_alive, is_over, move_node

__all__ = ["FleetState", "JobRecord", "NodeRecord"]


def _group(node: NodeRecord) -> tuple[str, Role, Offer]:
    return node.cell, node.role, node.offer


_NONE_TO_BE_HAD = frozenset({Stockout.__name__, PriceTooHigh.__name__})
_NODE_TIMES = tuple(each.name for each in fields(NodeRecord) if each.name.endswith("_s"))
_node_with = Copier(NodeRecord)


@dataclass(slots=True)
class FleetState:
    """`apply` every event in order; the dictionaries are the present state."""

    nodes: Roll = field(default_factory=Roll)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    refusals: list[LaunchRefused] = field(default_factory=list)
    experience: Experience = field(default_factory=Experience)  # of markets
    census: Census = field(default_factory=Census)  # of nodes that are alive, in all cells
    never_joined: set[str] = field(default_factory=set)  # launched, given up or gone, and never in Ray
    paces: dict[str, Pace] = field(default_factory=dict)  # of jobs with a contract
    spells: dict[str, Spells] = field(default_factory=dict)  # of spot markets, by key
    courses: dict[str, str] = field(default_factory=dict)  # by job: what was last decided for its contract
    asked: dict[str, Told] = field(default_factory=dict)  # by cell
    prices: dict[str, tuple[Quote, ...]] = field(default_factory=dict)  # by market: those of the last hour
    simulated: bool = False
    config: str = ""  # a digest of the fleet file, and since when it is this one
    config_since_s: float = float("-inf")
    shifted_s: float = 0.0  # by all clocks that were set
    _offers: dict[Offer, Offer] = field(default_factory=dict, repr=False, compare=False)  # equal ones are one object
    _parts: dict[str, FleetState] = field(default_factory=dict, repr=False, compare=False)  # by cell
    _whole: FleetState | None = field(default=None, repr=False, compare=False)  # of a part: what it is a part of
    name: str = ""  # of the cell, where this is its part

    def __post_init__(self) -> None:
        for node in self.alive_nodes:
            self.census.born(*_group(node))

    @classmethod
    def fold(cls, events: Iterable[AnyEvent]) -> FleetState:
        """The same as `apply` one by one. Most of a log is steps, each of which makes the ones before it obsolete: a
        step waits until something else happens to its job."""
        state = cls()
        waiting: dict[str, StepCommitted] = {}
        for event in events:
            job_id = getattr(event, "job_id", "")
            last = waiting.get(job_id)
            if isinstance(event, StepCommitted):
                state._note_steps(event)
                if last is None or event.sequence > last.sequence:
                    waiting[job_id] = event
                continue
            if last is not None:
                state.apply(waiting.pop(job_id))
            state.apply(event)
        for step in waiting.values():
            state.apply(step)
        return state

    @property
    def alive_nodes(self) -> list[NodeRecord]:
        return self.nodes.alive

    @property
    def newest_s(self) -> float:
        """When the last thing happened to a node."""
        return max((node.state_since_s for node in list(self.nodes.values())), default=0.0)

    @property
    def open_jobs(self) -> list[JobRecord]:
        """Copied first: the loop's thread reads while another one submits a job."""
        return [job for job in list(self.jobs.values()) if not is_over(job.state)]

    # --- cells ------------------------------------------------------------------------------------------------

    @property
    def whole(self) -> FleetState:
        """Of the part of a cell: the fleet. Limits are about that."""
        return self._whole or self

    @property
    def is_part(self) -> bool:
        return self._whole is not None

    def cell(self, name: str) -> FleetState:
        """The part of one cell: its nodes, and the jobs that are placed there. It follows what is applied here."""
        if name not in self._parts:
            part = FleetState(experience=self.experience, census=self.census, name=name, _whole=self)
            part.paces, part.spells, part.courses, part.asked = self.paces, self.spells, self.courses, self.asked
            part.prices = self.prices
            self._parts[name] = part
            self._fill(name, part)
        return self._parts[name]

    def is_elsewhere(self, name: str) -> bool:
        """Whether this node or job is another cell's affair."""
        whole = self.whole
        return name not in self.nodes and name not in self.jobs and (name in whole.nodes or name in whole.jobs)

    def _fill(self, name: str, part: FleetState) -> None:
        part.nodes.update((key, node) for key, node in self.nodes.items() if node.cell == name)
        part.jobs.update((key, job) for key, job in self.jobs.items() if job.cell == name)
        part.refusals[:] = [refusal for refusal in self.refusals if refusal.launch_id in part.nodes]
        part.never_joined.update(self.never_joined & part.nodes.keys())
        part.simulated = self.simulated
        part.config, part.config_since_s = self.config, self.config_since_s

    def apply(self, event: AnyEvent) -> None:
        self._apply(event)
        if not self._parts:
            return
        if isinstance(event, ClockJumped | ControllerStarted):
            for name, part in self._parts.items():
                self._fill(name, part)
        if (launch_id := getattr(event, "launch_id", "")) in self.nodes:
            self._pass_on_node(launch_id, event)
        if (job := self.jobs.get(getattr(event, "job_id", ""))) is not None:
            for name, part in self._parts.items():
                if name == job.cell:
                    part.jobs[job.job_id] = job
                else:
                    part.jobs.pop(job.job_id, None)

    def _pass_on_node(self, launch_id: str, event: AnyEvent) -> None:
        node = self.nodes[launch_id]
        part = self._parts.get(node.cell)
        if part is None:
            return
        changed = (launch_id, *node.replaces) if isinstance(event, LaunchRequested | LaunchRefused) else (launch_id,)
        part.nodes.update((key, self.nodes[key]) for key in changed if key in self.nodes)
        if isinstance(event, LaunchRefused):
            part.refusals.append(event)
        if launch_id in self.never_joined:
            part.never_joined.add(launch_id)

    def _apply(self, event: AnyEvent) -> None:
        match event:
            case StepCommitted():  # first, since most events are steps
                self._note_steps(event)
                self.jobs[event.job_id] = job_fold.after(self.jobs[event.job_id], event)
            case PriceChanged():
                known = self.prices.get(event.market, ())
                self.prices[event.market] = with_quote(known, event.at_s, event.price_uusd_per_h, QUOTES_KEPT_S)
            case DemandChanged():
                self.asked[event.cell] = told_after(self.asked.get(event.cell), event)
            case ControllerStarted():
                self.simulated = event.simulated
                if event.config and event.config != self.config:
                    self.config, self.config_since_s = event.config, event.at_s
            case ClockJumped():
                self._shift(event.jump_s)
            case DecisionRecorded(action="contract"):
                self.courses[event.subject] = event.reason
            case _:
                self._apply_to_node(event)

    # --- nodes ------------------------------------------------------------------------------------------------

    def _apply_to_node(self, event: AnyEvent) -> None:
        match event:
            case LaunchRequested():
                self._requested(event)
            case LaunchRefused():
                self._refused(event)
            case NodeLaunched():
                self._launched(event)
            case NodeJoined():
                joined = {"ray_node_id": event.ray_node_id, "joined_at_s": event.at_s}
                node = self._move(event.launch_id, NodeState.READY, event.at_s, **joined)
                self.experience.joined(node.offer.market, event.at_s, node.requested_at_s)
            case NoticeReceived():
                self._noticed(event)
            case DrainRequested():
                self._move(event.launch_id, NodeState.DRAINING, event.at_s, drain_deadline_s=event.deadline_s)
            case DrainRefused():
                self._move(event.launch_id, NodeState.READY, event.at_s, drain_deadline_s=None)
            case TerminateRequested():
                node = self._move(event.launch_id, NodeState.TERMINATING, event.at_s, detail=event.reason)
                self._note_never_joined(node)
            case NodeGone():
                ended = {"ended_at_s": event.at_s, "end": event.end, "detail": event.detail}
                self._note_end(self._move(event.launch_id, NodeState.GONE, event.at_s, **ended), event)
            case _:
                self._apply_to_job(event)

    def _requested(self, event: LaunchRequested) -> None:
        self._add(
            NodeRecord(
                launch_id=event.launch_id,
                offer=self._offers.setdefault(event.offer, event.offer),
                cell=event.cell,
                reason=event.reason,
                state=NodeState.REQUESTED,
                requested_at_s=event.at_s,
                state_since_s=event.at_s,
                replaces=event.replaces,
                tenants=event.tenants,
                role=event.role,
                jobs=event.jobs,
                placement_group=event.placement_group,
            )
        )
        self._note_try(event.replaces, event.at_s)

    def _refused(self, event: LaunchRefused) -> None:
        self.refusals.append(event)
        self._note_refusal(event)
        self._note_try(self.nodes[event.launch_id].replaces, None)
        detail = f"{event.error}: {event.message}"
        self._move(event.launch_id, NodeState.FAILED, event.at_s, ended_at_s=event.at_s, detail=detail)

    def _launched(self, event: NodeLaunched) -> None:
        since_s = event.at_s if event.seen_at_s is None else event.seen_at_s
        known = {"instance_id": event.instance_id, "launched_at_s": event.at_s}
        node = self._move(event.launch_id, NodeState.BOOTING, since_s, **known)
        self.experience.launched(node.offer.market, event.at_s, node.requested_at_s)
        if spells := self._spells_of(node):
            spells.sold(event.at_s)

    def _noticed(self, event: NoticeReceived) -> None:
        node = self.nodes[event.launch_id]
        self.nodes[event.launch_id] = _node_with(node, notice_deadline_s=event.deadline_s)
        if node.notice_deadline_s is None:
            self.experience.taken(node.offer.market, event.at_s)
            if spells := self._spells_of(node):
                spells.none_left(event.at_s)

    # --- jobs -------------------------------------------------------------------------------------------------

    def _apply_to_job(self, event: AnyEvent) -> None:
        match event:
            case JobSubmitted():
                self.jobs[event.job_id] = job_fold.submitted(event)
            case JobPlaced() | MoveRequested() | JobStateChanged():
                self.jobs[event.job_id] = job_fold.after(self.jobs[event.job_id], event)
            case HoldingChanged() | PhaseChanged() | CheckpointCommitted():
                job = self.jobs[event.job_id]
                self._note_pace(job, event)
                self.jobs[event.job_id] = job_fold.after(job, event)
                if isinstance(event, HoldingChanged) and event.launch_id in self.nodes:
                    node = self.nodes[event.launch_id]
                    self.nodes[event.launch_id] = _node_with(node, held_since_s=event.at_s, last_job=event.job_id)
            case _:
                pass

    def _add(self, node: NodeRecord) -> None:
        known = self.nodes.get(node.launch_id)
        if known is not None and is_alive(known.state):
            self.census.died(*_group(known))
        self.nodes[node.launch_id] = node
        self.census.born(*_group(node))

    def _note_try(self, replaced: Iterable[str], at_s: float | None) -> None:
        for launch_id in replaced:
            if launch_id in self.nodes:
                self.nodes[launch_id] = _node_with(self.nodes[launch_id], tried_s=at_s)

    def _note_end(self, node: NodeRecord, event: NodeGone) -> None:
        """A notice has been counted before. One that vanished without our asking was taken, as far as can be told."""
        market = node.offer.market
        if event.end in (EndReason.PREEMPTED, EndReason.LOST) and node.notice_deadline_s is None:
            self.experience.taken(market, event.at_s)
        if node.launched_at_s is not None:
            self.experience.ended(market, event.at_s)
            if spells := self._spells_of(node):
                spells.ended(event.at_s, taken=event.end in (EndReason.PREEMPTED, EndReason.LOST))
        self._note_never_joined(node)

    # --- what contracts are kept by ---------------------------------------------------------------------------

    def _pace_of(self, job: JobRecord) -> Pace | None:
        """Only of jobs that were promised something: most of a log is steps."""
        return None if job.spec.contract.is_empty else self.paces.setdefault(job.job_id, Pace())

    def _note_pace(self, job: JobRecord, event: HoldingChanged | PhaseChanged | CheckpointCommitted) -> None:
        if isinstance(event, HoldingChanged) and not event.resources:
            return
        if (pace := self._pace_of(job)) is None:
            return
        match event:
            case HoldingChanged():
                pace.held(event.at_s)
            case PhaseChanged():
                pace.changed(event)
            case CheckpointCommitted():
                pace.saved(event, job.checkpoint_step or 0)

    def _note_steps(self, event: StepCommitted) -> None:
        job = self.jobs.get(event.job_id)
        if job is not None and (pace := self._pace_of(job)):
            held = (self.nodes[name].offer.accelerator for name in job.holdings if name in self.nodes)
            pace.stepped(event, next(held, ""))

    def _spells_of(self, node: NodeRecord) -> Spells | None:
        is_spot = node.offer.market.capacity is Capacity.SPOT and node.role is Role.WORKER
        return self.spells.setdefault(node.offer.market.key, Spells()) if is_spot else None

    def _note_refusal(self, event: LaunchRefused) -> None:
        is_sold_out = event.error in _NONE_TO_BE_HAD and event.scope != Scope.GROUP  # outside of it there may be some
        if is_sold_out and (spells := self._spells_of(self.nodes[event.launch_id])):
            spells.none_left(event.at_s)

    def _note_never_joined(self, node: NodeRecord) -> None:
        if node.launched_at_s is not None and node.joined_at_s is None:
            self.never_joined.add(node.launch_id)

    def _shift(self, jump_s: float) -> None:
        """All times of nodes and refusals by the new clock, so that ages, and the time that is left until a deadline,
        stay what they were."""
        for launch_id, node in self.nodes.items():
            times = {name: getattr(node, name) for name in _NODE_TIMES}
            self.nodes[launch_id] = _node_with(
                node, **{name: at_s + jump_s for name, at_s in times.items() if at_s is not None}
            )
        self.refusals = [replace(refusal, at_s=refusal.at_s + jump_s) for refusal in self.refusals]
        self.config_since_s += jump_s
        self.shifted_s += jump_s
        for market, quotes in self.prices.items():
            self.prices[market] = tuple((at_s + jump_s, price) for at_s, price in quotes)
        folds: list[Pace | Spells] = [*self.paces.values(), *self.spells.values()]
        for fold in folds:
            fold.shift(jump_s)

    def _move(self, launch_id: str, to: NodeState, at_s: float, **changes: object) -> NodeRecord:
        node = self.nodes[launch_id]
        state = move_node(node.state, to, launch_id)
        if is_alive(node.state) and not is_alive(state):
            self.census.died(*_group(node))
        moved = self.nodes[launch_id] = _node_with(node, state=state, state_since_s=at_s, **changes)
        return moved
