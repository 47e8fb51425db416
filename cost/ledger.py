"""All cost, as a fold over the event log: who paid what, when, for what. Pure; receipts and bills are read off it.

`apply` takes events in the order of the log. Reports of jobs may come late, twice and out of order; prices and
holdings are ordered by their own times. The figures are worked out when they are asked for, at any `now_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tradewind.cost.history import NodeHistory, PriceHistory
from tradewind.cost.settle import Entry, NodeAccount, settle
from tradewind.cost.timeline import Timeline
from tradewind.errors import JobNotFound
from tradewind.events import (
    AnyEvent,
    ControllerStarted,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    PriceChanged,
    StepCommitted,
)
from tradewind.states import JobState, is_over
from tradewind.units import to_ms


@dataclass(slots=True)
class JobHistory:
    """What the ledger keeps of a job beside its timeline. Named after its id until its submission is seen."""

    job_id: str
    name: str
    tenant: str = "default"
    state: JobState = JobState.QUEUED
    submitted_ms: int | None = None
    ended_ms: int | None = None
    nodes: dict[str, None] = field(default_factory=dict)  # launch ids that it ever held, in order


@dataclass(slots=True)
class Ledger:
    nodes: dict[str, NodeHistory] = field(default_factory=dict)
    jobs: dict[str, JobHistory] = field(default_factory=dict)
    timelines: dict[str, Timeline] = field(default_factory=dict)  # by job
    prices: dict[str, PriceHistory] = field(default_factory=dict)  # by market
    simulated: bool = False  # the local cloud: every amount is a pretence
    _settled: dict[str, tuple[tuple[int, ...], NodeAccount]] = field(default_factory=dict, repr=False)

    @classmethod
    def fold(cls, events: Iterable[AnyEvent]) -> Ledger:
        ledger = cls()
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
        now_ms = to_ms(now_s)
        found = [self._account(node, now_ms) for node in self.nodes.values()]
        return tuple(sorted((each for each in found if each), key=lambda each: (each.launched_ms, each.launch_id)))

    def job_accounts(self, job_id: str, now_s: float) -> tuple[NodeAccount, ...]:
        """The nodes that a job ever held. Their entries tell the other jobs' parts too."""
        now_ms = to_ms(now_s)
        found = [self._account(self.nodes[launch_id], now_ms) for launch_id in self.job(job_id).nodes]
        return tuple(each for each in found if each)

    def entries(self, now_s: float) -> tuple[Entry, ...]:
        return tuple(entry for account in self.accounts(now_s) for entry in account.entries)

    def job(self, job_id: str) -> JobHistory:
        if job_id not in self.jobs:
            raise JobNotFound(f"there is no job {job_id!r} in this ledger")
        return self.jobs[job_id]

    def _account(self, node: NodeHistory, now_ms: int) -> NodeAccount | None:
        launched_ms = node.launched_ms
        if launched_ms is None or launched_ms > now_ms:
            return None
        prices = self.prices.get(node.offer.market.key) or PriceHistory()
        if node.ended_ms is None or node.ended_ms > now_ms:
            return settle(node, launched_ms, prices, self.timelines, now_ms)
        return self._closed(node, launched_ms, prices, now_ms)

    def _closed(self, node: NodeHistory, launched_ms: int, prices: PriceHistory, now_ms: int) -> NodeAccount:
        """A node that has ended costs the same at every later `now`, until something new is heard of its past."""
        jobs = {job_id for _, job_id, _ in node.changes}
        stamp = (node.version, len(prices.times_ms), *(self.timelines[job].version for job in sorted(jobs)))
        known = self._settled.get(node.launch_id)
        if known is None or known[0] != stamp:
            known = (stamp, settle(node, launched_ms, prices, self.timelines, now_ms))
            self._settled[node.launch_id] = known
        return known[1]

    # --- events --------------------------------------------------------------------------------------------------

    def _started(self, event: ControllerStarted) -> None:
        self.simulated = event.simulated

    def _requested(self, event: LaunchRequested) -> None:
        node = NodeHistory(event.launch_id, event.offer, to_ms(event.at_s))
        self.nodes.setdefault(event.launch_id, node)

    def _launched(self, event: NodeLaunched) -> None:
        node = self.nodes[event.launch_id]
        node.launched_ms = _first(node.launched_ms, event.at_s)
        node.version += 1

    def _joined(self, event: NodeJoined) -> None:
        node = self.nodes[event.launch_id]
        node.joined_ms = _first(node.joined_ms, event.at_s)
        node.version += 1

    def _noticed(self, event: NoticeReceived) -> None:
        node = self.nodes[event.launch_id]
        node.notice_ms = _first(node.notice_ms, event.at_s)

    def _gone(self, event: NodeGone) -> None:
        node = self.nodes[event.launch_id]
        node.ended_ms, node.end = to_ms(event.at_s), event.end
        node.version += 1

    def _priced(self, event: PriceChanged) -> None:
        prices = self.prices.get(event.market)
        if prices is None:
            prices = self.prices[event.market] = PriceHistory()
        prices.add(to_ms(event.at_s), event.price_uusd_per_h)

    def _submitted(self, event: JobSubmitted) -> None:
        job = self._known_job(event.job_id)
        job.name, job.tenant, job.submitted_ms = event.spec.name, event.spec.tenant, to_ms(event.at_s)
        timeline = self.timelines[event.job_id]
        timeline.foreign = event.foreign
        timeline.version += 1

    def _job_changed(self, event: JobStateChanged) -> None:
        job = self._known_job(event.job_id)
        job.state = event.state
        job.ended_ms = to_ms(event.at_s) if is_over(event.state) else None

    def _held(self, event: HoldingChanged) -> None:
        node = self.nodes.get(event.launch_id)
        if node is None:
            return  # a node that nobody launched (the cell's head) has no bill to share
        self._known_job(event.job_id).nodes[event.launch_id] = None
        node.hold(to_ms(event.at_s), event.job_id, event.resources)
        node.version += 1

    def _phase(self, event: PhaseChanged) -> None:
        self._known_job(event.job_id)
        self.timelines[event.job_id].add_phase(to_ms(event.at_s), event.attempt, event.sequence, event.phase)

    def _steps(self, event: StepCommitted) -> None:
        timeline = self.timelines.get(event.job_id)
        if timeline is None:
            self._known_job(event.job_id)
            timeline = self.timelines[event.job_id]
        timeline.add_steps(
            to_ms(event.began_s),
            to_ms(event.at_s),
            event.attempt,
            event.sequence,
            event.first_step,
            event.last_step,
            event.samples,
        )

    def _known_job(self, job_id: str) -> JobHistory:
        job = self.jobs.get(job_id)
        if job is None:
            job = self.jobs[job_id] = JobHistory(job_id, job_id)
            self.timelines[job_id] = Timeline(foreign=True)  # until its submission says that it is ours
        return job


_HANDLERS: dict[type, Callable[[Ledger, Any], None]] = {
    ControllerStarted: Ledger._started,
    LaunchRequested: Ledger._requested,
    NodeLaunched: Ledger._launched,
    NodeJoined: Ledger._joined,
    NoticeReceived: Ledger._noticed,
    NodeGone: Ledger._gone,
    PriceChanged: Ledger._priced,
    JobSubmitted: Ledger._submitted,
    JobStateChanged: Ledger._job_changed,
    HoldingChanged: Ledger._held,
    PhaseChanged: Ledger._phase,
    StepCommitted: Ledger._steps,
}


def _first(known_ms: int | None, at_s: float) -> int:
    return to_ms(at_s) if known_ms is None else min(known_ms, to_ms(at_s))
