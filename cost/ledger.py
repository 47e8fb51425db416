"""All cost, as a fold over the event log: who paid what, when, for what. Pure; receipts and bills are read off it.

`apply` takes events in the order of the log. Reports of jobs may come late, twice and out of order; prices and
holdings are ordered by their own times. The figures are worked out when they are asked for, at any `now_s`; what was
settled for an earlier question is kept (`books.py`), so that a living fleet is never billed from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tradewind.cost.account import Entry, NodeAccount, account_of, cost_of
from tradewind.cost.books import Books, Cell, NodeCost
from tradewind.cost.extras import Save
from tradewind.cost.history import MINIMUM_BILLED_MS, NodeHistory, PriceHistory
from tradewind.cost.resting import Rests, Turn
from tradewind.cost.settle import Statement
from tradewind.cost.timeline import Timeline
from tradewind.errors import JobNotFound
from tradewind.events import (
    AnyEvent,
    BudgetChanged,
    CheckpointCommitted,
    ControllerStarted,
    DecisionRecorded,
    EnergyMeasured,
    HoldingChanged,
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
)
from tradewind.model import Offer, Phase
from tradewind.states import JobState, is_over
from tradewind.units import to_ms

_NO_PRICES = PriceHistory()


@dataclass(slots=True)
class JobHistory:
    """What the ledger keeps of a job beside its timeline. Named after its id until its submission is seen."""

    job_id: str
    name: str
    tenant: str = "default"
    team: str = ""
    budget_uusd: int | None = None
    saves: list[Save] = field(default_factory=list)
    state: JobState = JobState.QUEUED
    submitted_ms: int | None = None
    ended_ms: int | None = None
    nodes: dict[str, None] = field(default_factory=dict)  # launch ids that it ever held, in order
    rests: Rests = field(default_factory=Rests)


@dataclass(slots=True)
class Ledger:
    nodes: dict[str, NodeHistory] = field(default_factory=dict)
    jobs: dict[str, JobHistory] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)  # by job
    prices: dict[str, PriceHistory] = field(default_factory=dict)  # by market
    simulated: bool = False  # the local cloud, or emulators: every amount is a pretence
    minimum_ms: Mapping[str, int] = field(default_factory=lambda: MINIMUM_BILLED_MS)  # by cloud
    offers: dict[str, Offer] = field(default_factory=dict)  # by market: the last that was asked for there
    _nodes_of_job: dict[str, dict[str, None]] = field(default_factory=dict, repr=False)
    _job_ends_ms: dict[str, int] = field(default_factory=dict, repr=False)
    _one_offer: dict[Offer, Offer] = field(default_factory=dict, repr=False)  # equal ones are one object
    _bought_for: dict[str, list[str]] = field(default_factory=dict, repr=False)  # launch ids by job
    _books: Books = field(init=False, repr=False)
    _closed: dict[str, tuple[int, NodeAccount]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self._books = Books(self.nodes, self.prices, self.timelines, self._nodes_of_job, self._job_ends_ms)

    @classmethod
    def fold(cls, events: Iterable[AnyEvent], minimum_ms: Mapping[str, int] = MINIMUM_BILLED_MS) -> Ledger:
        ledger = cls(minimum_ms=minimum_ms)
        for event in events:
            ledger.apply(event)
        return ledger

    def apply(self, event: AnyEvent) -> None:
        handler = _HANDLERS.get(type(event))  # a table, not a `match`: a million events are folded in seconds
        if handler is not None:
            handler(self, event)

    # --- questions -----------------------------------------------------------------------------------------------

    def accounts(self, now_s: float) -> tuple[NodeAccount, ...]:
        """Every node that was launched by `now_s`, in order of launch."""
        self._books.settle(to_ms(now_s))
        found = [self._account(launch_id) for launch_id in self.nodes]
        return tuple(sorted((each for each in found if each), key=lambda each: (each.launched_ms, each.launch_id)))

    def job_accounts(self, job_id: str, now_s: float) -> tuple[NodeAccount, ...]:
        """The nodes that a job ever held. Their entries tell the other jobs' parts too."""
        self._books.settle(to_ms(now_s))
        found = [self._account(launch_id) for launch_id in self.job(job_id).nodes]
        return tuple(each for each in found if each)

    def job_cost(self, job_id: str, now_s: float) -> int:
        accounts = self.job_accounts(job_id, now_s)
        return sum(entry.cost_uusd for account in accounts for entry in account.entries if entry.job_id == job_id)

    def node_costs(self, now_s: float) -> Iterator[NodeCost]:
        """As `accounts`, without who paid what for: that takes a tenth of the time."""
        self._books.settle(to_ms(now_s))
        for book in self._books.by_node.values():
            found = book.final or cost_of(book, self.prices.get(book.market, _NO_PRICES), self._books.now_ms)
            if found is not None:
                yield found

    def entries(self, now_s: float) -> tuple[Entry, ...]:
        return tuple(entry for account in self.accounts(now_s) for entry in account.entries)

    def cells(self, now_s: float, *, from_day: int | None = None, days: bool = False) -> Iterator[Cell]:
        """All cost in parts: by market, job and label; with `days` by day and label; from a day on by all of these. The
        same kind of part may come more than once: add them up."""
        self._books.settle(to_ms(now_s))
        if from_day is not None:
            return self._books.by_all(from_day)
        return self._books.by_day() if days else self._books.by_owner()

    def statements(self, now_s: float) -> Iterator[tuple[NodeHistory, int, Statement]]:
        """The bill of each node and day (counted from 1970, UTC), in the order in which nodes were asked for."""
        self._books.settle(to_ms(now_s))
        for book in self._books.by_node.values():
            yield from ((book.node, day, rows) for day, rows in (*book.days, *book.running))

    def job(self, job_id: str) -> JobHistory:
        if job_id not in self.jobs:
            raise JobNotFound(f"there is no job {job_id!r} in this ledger")
        return self.jobs[job_id]

    def _account(self, launch_id: str) -> NodeAccount | None:
        """Of the moment at which the books were settled. That of a closed node is kept: it costs the same at every
        later moment, until something new is heard of its past."""
        book = self._books.by_node[launch_id]
        known = self._closed.get(launch_id)
        if known is not None and book.is_closed and book.closings == known[0]:
            return known[1]
        prices = self.prices.get(book.market, _NO_PRICES)
        found = account_of(book, prices, self._books.now_ms)
        if found is not None and book.is_closed:
            self._closed[launch_id] = (book.closings, found)
        return found

    # --- events --------------------------------------------------------------------------------------------------

    def _started(self, event: ControllerStarted) -> None:
        self.simulated = event.simulated

    def _requested(self, event: LaunchRequested) -> None:
        offer = self._one_offer.setdefault(event.offer, event.offer)
        minimum_ms = self.minimum_ms.get(offer.market.cloud, 0)
        node = NodeHistory(event.launch_id, offer, to_ms(event.at_s), minimum_ms, role=event.role)
        self.nodes.setdefault(event.launch_id, node)
        self.offers[offer.market.key] = offer
        self._books.heard_of_node(event.launch_id)

    def _refused(self, event: LaunchRefused) -> None:
        self.nodes[event.launch_id].refused = True

    def _budgeted(self, event: BudgetChanged) -> None:
        self._known_job(event.job_id).budget_uusd = event.budget_uusd

    def _decided(self, event: DecisionRecorded) -> None:
        node = self.nodes.get(event.subject)
        if event.action == "launch" and node is not None and event.jobs:
            node.bought_for = event.jobs
            for job_id in event.jobs:
                self._bought_for.setdefault(job_id, []).append(event.subject)
            self._books.heard_of_node(event.subject)

    def _launched(self, event: NodeLaunched) -> None:
        node = self.nodes[event.launch_id]
        node.launched_ms = _first(node.launched_ms, event.at_s)
        node.instance_id = event.instance_id
        self._books.heard_of_node(event.launch_id)

    def _joined(self, event: NodeJoined) -> None:
        node = self.nodes[event.launch_id]
        node.joined_ms = _first(node.joined_ms, event.at_s)
        self._books.heard_of_node(event.launch_id)

    def _noticed(self, event: NoticeReceived) -> None:
        node = self.nodes[event.launch_id]
        node.notice_ms = _first(node.notice_ms, event.at_s)

    def _gone(self, event: NodeGone) -> None:
        node = self.nodes[event.launch_id]
        known_ms = node.ended_ms
        node.ended_ms, node.end = to_ms(event.at_s), event.end
        joined_ms = node.in_ray_from_ms
        had_joined = joined_ms is not None and joined_ms <= node.ended_ms  # else it never booted, but failed
        self._books.heard_of_node(event.launch_id, node.ended_ms if had_joined and known_ms is None else 0)

    def _measured(self, event: EnergyMeasured) -> None:
        node = self.nodes.get(event.launch_id)
        if node is not None:  # a node that nobody launched is on no receipt
            node.measure(event)
            self._closed.pop(event.launch_id, None)

    def _priced(self, event: PriceChanged) -> None:
        prices = self.prices.get(event.market)
        if prices is None:
            prices = self.prices[event.market] = PriceHistory()
        prices.add(to_ms(event.at_s), event.price_uusd_per_h)
        self._books.heard_of_price(event.market, to_ms(event.at_s))

    def _submitted(self, event: JobSubmitted) -> None:
        job = self._known_job(event.job_id)
        job.name, job.tenant, job.submitted_ms = event.spec.name, event.spec.tenant, to_ms(event.at_s)
        job.team, job.budget_uusd = event.spec.team, event.spec.contract.budget_uusd
        # Who did not say what its workers need may be no training job at all, until it reports.
        self.timelines[event.job_id].taught(event.foreign or not event.spec.max_workers)
        self._books.heard[event.job_id] = None

    def _job_changed(self, event: JobStateChanged) -> None:
        job = self._known_job(event.job_id)
        job.state = event.state
        if event.state is JobState.STOPPING:
            job.rests.stops_ms.append(to_ms(event.at_s))
        before_ms, job.ended_ms = job.ended_ms, to_ms(event.at_s) if is_over(event.state) else None
        if job.ended_ms is None:
            self._job_ends_ms.pop(event.job_id, None)
        else:
            self._job_ends_ms[event.job_id] = job.ended_ms
        if job.ended_ms != before_ms:  # what was bought for it waits for it no longer
            from_ms = min(at_ms for at_ms in (before_ms, job.ended_ms) if at_ms is not None)
            for launch_id in self._bought_for.get(event.job_id, ()):
                self._books.heard_of_node(launch_id, from_ms)

    def _moves(self, event: MoveRequested) -> None:
        rests = self._known_job(event.job_id).rests
        (rests.called_off_ms if event.called_off else rests.stops_ms).append(to_ms(event.at_s))

    def _held(self, event: HoldingChanged) -> None:
        node = self.nodes.get(event.launch_id)
        if node is None:
            return  # a node that nobody launched (the cell's head) has no bill to share
        at_ms, first_ms = to_ms(event.at_s), node.in_ray_from_ms
        self._known_job(event.job_id).nodes[event.launch_id] = None
        node.hold(at_ms, event.job_id, event.resources)
        is_first = len(node.changes) == 1 or first_ms is None or at_ms < first_ms
        self._books.heard_of_node(event.launch_id, 0 if is_first else at_ms)

    def _phase(self, event: PhaseChanged) -> None:
        self._known_job(event.job_id)
        turn = Turn(to_ms(event.at_s), event.attempt, event.sequence)
        self.jobs[event.job_id].rests.turns[turn] = event.phase is Phase.RESTING
        self.timelines[event.job_id].add_phase(to_ms(event.at_s), event.attempt, event.sequence, event.phase)
        self._books.heard[event.job_id] = None

    def _steps(self, event: StepCommitted) -> None:
        timeline = self.timelines.get(event.job_id)
        if timeline is None:
            self._known_job(event.job_id)
            timeline = self.timelines[event.job_id]
        timeline.add_steps(
            round(event.began_s * 1000),  # `to_ms`, without the call
            round(event.at_s * 1000),
            event.attempt,
            event.sequence,
            event.first_step,
            event.last_step,
            event.samples,
        )
        if event.total_steps is not None:
            timeline.total_steps = event.total_steps
        self._books.heard[event.job_id] = None

    def _saved(self, event: CheckpointCommitted) -> None:
        job, at_ms = self._known_job(event.job_id), to_ms(event.at_s)
        scheme = event.path.partition("://")[0] if "://" in event.path else ""
        nodes = (self.nodes[launch_id] for launch_id in job.nodes)
        there = {node.offer.market.cloud for node in nodes if node.ended_ms is None or node.ended_ms > at_ms}
        job.saves.append(Save(at_ms, event.size_bytes, scheme, tuple(sorted(there))))

    def _known_job(self, job_id: str) -> JobHistory:
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = JobHistory(job_id, job_id)
            self._nodes_of_job[job_id] = job.nodes
            self.timelines[job_id] = Timeline(foreign=True)  # until its submission says that it is ours
            for launch_id in self._bought_for.get(job_id, ()):  # these wait for it, since it is there
                self._books.heard_of_node(launch_id)
        return job


_HANDLERS: dict[type, Callable[[Ledger, Any], None]] = {
    ControllerStarted: Ledger._started,
    LaunchRequested: Ledger._requested,
    LaunchRefused: Ledger._refused,
    NodeLaunched: Ledger._launched,
    NodeJoined: Ledger._joined,
    NoticeReceived: Ledger._noticed,
    NodeGone: Ledger._gone,
    EnergyMeasured: Ledger._measured,
    PriceChanged: Ledger._priced,
    JobSubmitted: Ledger._submitted,
    BudgetChanged: Ledger._budgeted,
    JobStateChanged: Ledger._job_changed,
    MoveRequested: Ledger._moves,
    HoldingChanged: Ledger._held,
    DecisionRecorded: Ledger._decided,
    CheckpointCommitted: Ledger._saved,
    PhaseChanged: Ledger._phase,
    StepCommitted: Ledger._steps,
}


def _first(known_ms: int | None, at_s: float) -> int:
    return to_ms(at_s) if known_ms is None else min(known_ms, to_ms(at_s))
