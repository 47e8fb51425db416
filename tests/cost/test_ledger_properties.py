"""Random histories: every sum is exact, and every entry agrees with a plain count of milliseconds, one by one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.cost.figures import BY, summary
from tradewind.cost.labels import JOB_LABELS, OVERHEAD, Label
from tradewind.cost.ledger import Ledger
from tradewind.cost.receipt import bill, receipt
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    PhaseChanged,
    PriceChanged,
    StepCommitted,
    decode,
    encode,
)
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.states import JobState

END_MS = 60
MINIMUM_MS = {"aws": 25}  # of a node's bill
JOBS = ("a", "b", "c")
MARKETS = tuple(Market("aws", "r", zone, "t", Capacity.SPOT) for zone in ("z1", "z2"))
MS = st.integers(0, END_MS)
PRICES = st.integers(0, 5 * 10**9)  # high, so that milliseconds cost something
PHASE_LABELS = {
    Phase.STARTING: Label.STARTING,
    Phase.CHECKPOINTING: Label.CHECKPOINTING,
    Phase.RESIZING: Label.RESIZING,
    Phase.RESTARTING: Label.RESTARTING,
    Phase.DONE: Label.ENDING,
    Phase.RESTING: Label.RESIZING,
}


def fold(events: Iterable[AnyEvent]) -> Ledger:
    return Ledger.fold(events, MINIMUM_MS)


@st.composite
def nodes(draw: st.DrawFn, name: str) -> list[AnyEvent]:
    times = sorted(draw(st.lists(MS, min_size=4, max_size=4)))
    accelerators = draw(st.sampled_from([0.0, 1.0, 3.0]))
    offer = Offer(
        market=draw(st.sampled_from(MARKETS)),
        vcpus=4.0,
        memory_gib=8.0,
        accelerator="X" if accelerators else "",
        accelerator_count=accelerators,
        price_uusd_per_h=draw(st.none() | PRICES),
        on_demand_uusd_per_h=draw(st.none() | PRICES),
    )
    events: list[AnyEvent] = [
        LaunchRequested(at_s=times[0] / 1000, launch_id=name, offer=offer, reason=""),
        NodeLaunched(at_s=times[1] / 1000, launch_id=name, instance_id="i"),
    ]
    if draw(st.booleans()):
        jobs = tuple(draw(st.lists(st.sampled_from(JOBS), max_size=2)))
        events.append(DecisionRecorded(at_s=times[0] / 1000, action="launch", subject=name, reason="", jobs=jobs))
    if draw(st.booleans()):
        events.append(NodeJoined(at_s=times[2] / 1000, launch_id=name, ray_node_id="r"))
    for at_ms in draw(st.lists(st.integers(times[2], END_MS), max_size=5)):
        amounts = st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0])
        held = {"CPU": draw(amounts), "GPU": draw(amounts)}
        job = draw(st.sampled_from(JOBS))
        events.append(HoldingChanged(at_s=at_ms / 1000, job_id=job, launch_id=name, resources=held))
    if draw(st.booleans()):
        events.append(NodeGone(at_s=times[3] / 1000, launch_id=name, end=EndReason.PREEMPTED))
    return events


@st.composite
def reports(draw: st.DrawFn, job: str) -> list[PhaseChanged | StepCommitted]:
    found: list[PhaseChanged | StepCommitted] = []
    for sequence in range(draw(st.integers(0, 7))):
        attempt, began, at = sequence // 3 + 1, *sorted((draw(MS), draw(MS)))
        if draw(st.booleans()):
            phase = draw(st.sampled_from(list(Phase)))
            found.append(
                PhaseChanged(at_s=at / 1000, job_id=job, attempt=attempt, sequence=sequence, phase=phase, workers=1)
            )
            continue
        first = draw(st.integers(1, 12))
        found.append(
            StepCommitted(
                at_s=at / 1000,
                began_s=began / 1000,
                job_id=job,
                attempt=attempt,
                sequence=sequence,
                first_step=first,
                last_step=first + draw(st.integers(0, 4)),
                workers=1,
                samples=7,
            )
        )
    return found


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[AnyEvent], list[AnyEvent]]:
    """Events of nodes, prices and jobs in their order, and reports in any."""
    events: list[AnyEvent] = []
    for job in JOBS[: draw(st.integers(0, 3))]:
        spec = JobSpec(name=job, entrypoint="x", min_workers=1, max_workers=1)
        events.append(JobSubmitted(at_s=0.0, job_id=job, spec=spec, foreign=draw(st.booleans())))
        if draw(st.booleans()):
            events.append(JobStateChanged(at_s=draw(MS) / 1000, job_id=job, state=JobState.STOPPED))
    for at_ms, market, price in draw(st.lists(st.tuples(MS, st.sampled_from(MARKETS), PRICES), max_size=4)):
        events.append(PriceChanged(at_s=at_ms / 1000, market=market.key, price_uusd_per_h=price))
    for number in range(draw(st.integers(1, 3))):
        events += draw(nodes(f"n{number}"))
    return events, [report for job in JOBS for report in draw(reports(job))]


DAY_S = 86_400.0
OFFSETS_S = st.sampled_from([0.0, DAY_S - 0.03])  # the second puts a midnight into the middle


def shifted(events: Iterable[AnyEvent], by_s: float) -> list[AnyEvent]:
    moved = []
    for event in events:
        times = {name: getattr(event, name) + by_s for name in ("at_s", "began_s") if hasattr(event, name)}
        moved.append(replace(event, **times))
    return moved


# --- the plain count ---------------------------------------------------------------------------------------------


def _start(report: PhaseChanged | StepCommitted) -> tuple[float, int, int]:
    at_s = report.began_s if isinstance(report, StepCommitted) else report.at_s
    return (at_s, report.attempt, report.sequence)


class PlainTimeline:
    """What a job did in the millisecond after `t`, looked up afresh each time."""

    def __init__(self, found: Sequence[PhaseChanged | StepCommitted], foreign: bool) -> None:
        self.reports = sorted(found, key=_start)
        self.foreign = foreign

    def again(self, i: int) -> int:
        step = self.reports[i]
        assert isinstance(step, StepCommitted)
        done = {n for before in self.reports[:i] if isinstance(before, StepCommitted) for n in (before.last_step,)}
        return sum(1 for n in range(step.first_step, step.last_step + 1) if n <= max(done, default=0))

    def first_label(self, i: int) -> Label:
        return Label.RECOMPUTED if self.again(i) else Label.USEFUL

    def label(self, t: int) -> Label:
        if not self.reports:
            return Label.UNMEASURED if self.foreign else Label.STARTING
        for i, report in enumerate(self.reports):
            if isinstance(report, StepCommitted) and round(report.began_s * 1000) <= t < round(report.at_s * 1000):
                count = report.last_step - report.first_step + 1
                began, length = round(report.began_s * 1000), round(report.at_s * 1000) - round(report.began_s * 1000)
                return Label.RECOMPUTED if t < began + length * self.again(i) // count else Label.USEFUL
        return self.waiting(t)

    def waiting(self, t: int) -> Label:
        before = [i for i, report in enumerate(self.reports) if round(_start(report)[0] * 1000) <= t]
        label, training, stepped = Label.STARTING, False, False
        for i in before:
            label, training, stepped = self.after(i, label, training, stepped)
        if not stepped:
            return label
        for i in range(len(before), len(self.reports)):
            report = self.reports[i]
            if isinstance(report, StepCommitted):
                return self.first_label(i)
            if report.phase is not Phase.TRAINING:
                return self.after(i, label, training, stepped)[0]
        return Label.UNMEASURED

    def after(self, i: int, label: Label, training: bool, stepped: bool) -> tuple[Label, bool, bool]:
        report = self.reports[i]
        if isinstance(report, StepCommitted):
            return label, True, True
        if report.phase is Phase.TRAINING:
            return label, True, stepped and training
        if report.phase is not Phase.STARTING:
            return PHASE_LABELS[report.phase], False, False
        if not training and label in (Label.RESIZING, Label.RESTARTING):
            return label, False, False
        worked = any(isinstance(each, StepCommitted) for each in self.reports[:i])
        return (Label.RESTARTING if worked else Label.STARTING), False, False


def plain_weights(events: Sequence[AnyEvent], found: Sequence[Any]) -> dict[tuple[str, str, Label], Fraction]:
    """Exact micro-dollars by (node, job, label), one millisecond after another, up to END_MS."""
    foreign = {event.job_id: event.foreign for event in events if isinstance(event, JobSubmitted)}
    lines = {job: PlainTimeline([r for r in found if r.job_id == job], foreign.get(job, True)) for job in JOBS}
    weights: dict[tuple[str, str, Label], Fraction] = defaultdict(Fraction)
    for request in (event for event in events if isinstance(event, LaunchRequested)):
        mine = [event for event in events if getattr(event, "launch_id", "") == request.launch_id]
        moments = {type(event): round(event.at_s * 1000) for event in mine if not isinstance(event, HoldingChanged)}
        holdings = [event for event in mine if isinstance(event, HoldingChanged)]
        used = [round(event.at_s * 1000) for event in holdings if any(event.resources.values())]
        joined = min([moments.get(NodeJoined, END_MS + 1), *used])
        gone = moments.get(NodeGone, END_MS)
        failed = NodeGone in moments and joined > gone
        billed = max(gone, moments[NodeLaunched] + MINIMUM_MS["aws"]) if NodeGone in moments else gone
        queued = queued_until(events, found, request.launch_id, min(used, default=END_MS))
        for t in range(moments[NodeLaunched], min(billed, END_MS)):
            price = price_at(events, request, moments[LaunchRequested], t)
            if t < joined or failed:
                boot = Label.FAILED if failed else Label.BOOTING
                weights[request.launch_id, "", boot] += price
                continue
            shares = shares_at(holdings, request.offer, t) if t < gone else {}
            for job, share in shares.items():
                weights[request.launch_id, job, lines[job].label(t)] += price * share
            unused = Label.QUEUED if not shares and t < min(queued, gone) else Label.IDLE
            weights[request.launch_id, "", unused] += price * (1 - sum(shares.values()))
    return weights


def queued_until(events: Sequence[AnyEvent], found: Sequence[Any], launch_id: str, used_ms: int) -> int:
    """When a job first takes something of it, or none of those that it was bought for is left."""
    known = {event.job_id for event in (*events, *found) if hasattr(event, "job_id")}
    ends = {event.job_id: round(event.at_s * 1000) for event in events if isinstance(event, JobStateChanged)}
    bought = [event.jobs for event in events if isinstance(event, DecisionRecorded) and event.subject == launch_id]
    left = [ends.get(job, END_MS) for jobs in bought for job in jobs if job in known]
    return min(used_ms, max(left, default=0))


def price_at(events: Sequence[AnyEvent], request: LaunchRequested, requested_ms: int, t: int) -> Fraction:
    price, since = request.offer.price_uusd_per_h, -1
    for event in events:
        if isinstance(event, PriceChanged) and event.market == request.offer.market.key:
            at = round(event.at_s * 1000)
            if requested_ms < at <= t and at >= since:
                price, since = event.price_uusd_per_h, at
    return Fraction(price or 0, 3_600_000)


def shares_at(holdings: Sequence[HoldingChanged], offer: Offer, t: int) -> dict[str, Fraction]:
    held: dict[str, HoldingChanged] = {}
    for event in sorted(holdings, key=lambda event: event.at_s):
        if round(event.at_s * 1000) <= t:
            held[event.job_id] = event
    shares = {}
    for job, event in held.items():
        gpus = event.resources["GPU"] / offer.accelerator_count if offer.accelerator_count else 0.0
        share = min(gpus or event.resources["CPU"] / offer.vcpus, 1.0)
        if any(event.resources.values()):
            shares[job] = Fraction(round(share * 10**6), 10**6)
    whole = sum(shares.values())
    return {job: share / whole if whole > 1 else share for job, share in shares.items()}


# --- the properties ----------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(histories(), OFFSETS_S)
def test_entries_agree_with_a_plain_count(history: tuple[list[AnyEvent], list[AnyEvent]], by_s: float) -> None:
    events, found = history
    expected = plain_weights(events, found)
    actual = {
        (entry.launch_id, entry.job_id, entry.label): entry.cost_uusd
        for entry in fold(shifted(events + found, by_s)).entries(by_s + END_MS / 1000)
    }
    for key in expected.keys() | actual.keys():
        # a micro-dollar of rounding a day, and where shares are shrunk to fit, a millionth of the node
        exact = expected.get(key, Fraction(0))
        node_uusd = sum(cost for (node, _, _), cost in expected.items() if node == key[0])
        assert abs(exact - actual.get(key, 0)) < (2 if by_s else 1) + node_uusd / 10**6, key


@settings(max_examples=200, deadline=None)
@given(histories(), MS, OFFSETS_S)
def test_everything_adds_up(history: tuple[list[AnyEvent], list[AnyEvent]], now_ms: int, by_s: float) -> None:
    now_s = by_s + now_ms / 1000
    check_sums(fold(shifted(history[0] + history[1], by_s)), now_s)


def check_sums(ledger: Ledger, now_s: float) -> None:
    told = bill(ledger, now_s)
    receipts = {job: receipt(ledger, job, now_s) for job in ledger.jobs}
    for node in told.nodes:
        assert sum(node.labels_uusd.values()) == node.cost_uusd
    for account in ledger.accounts(now_s):
        assert sum(entry.cost_uusd for entry in account.entries) == account.cost_uusd
        assert all(entry.cost_uusd >= 0 and entry.duration_ms >= 0 for entry in account.entries)
    assert sum(node.cost_uusd for node in told.nodes) == told.total_uusd
    assert sum(told.labels_uusd.values()) == told.total_uusd
    assert sum(line.cost_uusd for line in told.markets) == told.total_uusd
    assert sum(line.cost_uusd for line in told.jobs) == told.jobs_uusd
    assert told.jobs_uusd + told.overhead_uusd == told.total_uusd
    assert sum(each.total_uusd for each in receipts.values()) == told.jobs_uusd
    for each in receipts.values():
        assert sum(each.labels_uusd.values()) == each.total_uusd
        assert sum(line.cost_uusd for line in each.markets) == each.total_uusd
    for label in JOB_LABELS:
        assert sum(each.labels_uusd[label] for each in receipts.values()) == told.labels_uusd[label]
    assert sum(told.labels_uusd[label] for label in OVERHEAD) == told.overhead_uusd
    for by in BY:
        found = summary(ledger, by, now_s)
        assert sum(line.cost_uusd for line in found.lines) == found.total.cost_uusd == told.total_uusd
        assert all(sum(line.labels_uusd.values()) == line.cost_uusd for line in found.lines)
        assert summary(ledger, by, now_s, from_s=0.0).lines == found.lines


@pytest.mark.slow
@pytest.mark.timeout(1800)  # two minutes of CPU, on machines that may be shared
@settings(max_examples=10_000, deadline=None)
@given(histories(), st.lists(MS, min_size=1, max_size=3), OFFSETS_S)
def test_ten_thousand_histories_add_up_event_by_event(
    history: tuple[list[AnyEvent], list[AnyEvent]], moments_ms: list[int], by_s: float
) -> None:
    """Asked in between, too: what was settled for one question must not spoil the answer to the next."""
    ledger = Ledger(minimum_ms=MINIMUM_MS)
    log = shifted(history[0] + history[1], by_s)
    for i, event in enumerate(log):
        ledger.apply(event)
        if i % 5 == 4:
            ledger.accounts(by_s + moments_ms[i // 5 % len(moments_ms)] / 1000)
    for now_ms in moments_ms:
        check_sums(ledger, by_s + now_ms / 1000)
        assert ledger.entries(by_s + now_ms / 1000) == fold(log).entries(by_s + now_ms / 1000)


@settings(max_examples=100, deadline=None)
@given(histories(), st.randoms(use_true_random=False), OFFSETS_S)
def test_reports_in_any_order_and_number_and_asked_at_any_time(
    history: tuple[list[AnyEvent], list[AnyEvent]], chance: Any, by_s: float
) -> None:
    events, found = shifted(history[0], by_s), shifted(history[1], by_s)
    expected = fold(events + found)
    shuffled = found + [report for report in found if chance.random() < 0.5]
    chance.shuffle(shuffled)
    asked = fold(events)
    for report in shuffled:
        asked.apply(report)
        if chance.random() < 0.3:
            bill(asked, by_s + chance.randint(0, END_MS) / 1000)
    now_s = by_s + END_MS / 1000
    assert asked.entries(now_s) == expected.entries(now_s)
    for job in found and {report.job_id for report in found}:
        assert receipt(asked, job, now_s) == receipt(expected, job, now_s)


@settings(max_examples=100, deadline=None)
@given(histories(), MS, MS)
def test_a_bill_only_grows_and_replays_alike(
    history: tuple[list[AnyEvent], list[AnyEvent]], one_ms: int, other_ms: int
) -> None:
    log = [event for part in history for event in part]
    ledger = fold(log)
    early, late = (bill(ledger, at / 1000) for at in sorted((one_ms, other_ms)))
    assert early.total_uusd <= late.total_uusd
    replayed = fold(decode(encode(event)) for event in log)
    assert bill(replayed, late.until_s) == late


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 10**9), st.lists(st.integers(1, 10**7), min_size=1, max_size=6))
def test_how_finely_holdings_are_cut_makes_no_difference(price: int, lengths_ms: list[int]) -> None:
    offer = Offer(MARKETS[0], 4.0, 8.0, price_uusd_per_h=price)
    events: list[AnyEvent] = [
        LaunchRequested(at_s=0.0, launch_id="n", offer=offer, reason=""),
        NodeLaunched(at_s=0.0, launch_id="n", instance_id="i"),
        NodeJoined(at_s=0.0, launch_id="n", ray_node_id="r"),
    ]
    hold = HoldingChanged(at_s=0.0, job_id="a", launch_id="n", resources={"CPU": 4.0})
    moments = [sum(lengths_ms[:i]) / 1000 for i in range(len(lengths_ms) + 1)]
    whole = fold([*events, hold])
    cut = fold([*events, *(replace(hold, at_s=at_s) for at_s in moments)])
    assert whole.entries(moments[-1]) == cut.entries(moments[-1])
    assert bill(cut, moments[-1]).total_uusd == price * sum(lengths_ms) // 3_600_000
