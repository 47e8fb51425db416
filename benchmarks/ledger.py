"""How long does the ledger take to fold a long log and to answer, and how much memory does it keep?

Folds made-up logs (spot nodes that come and go, moving prices, jobs that are interrupted, reports that come twice and
out of order) or, with --log, a file with one encoded event a line; and a fleet of --nodes nodes over --days days
(billing/month.py), which is then asked as a living controller is: figures by day, by job, after each new event. Only
the fold and the questions are timed, in CPU seconds, not the making or decoding of events. There is no peer: no other
scheduler keeps such a ledger. With --prices, a CSV of real prices (time, zone, type, price), the month's nodes are
bought and billed at these.
"""

from __future__ import annotations

import argparse
import gc
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import psutil
from bars import Bar, show
from billing.month import last_steps, month, price_moves

from tradewind.cost.figures import summary
from tradewind.cost.ledger import Ledger
from tradewind.cost.receipt import bill, receipt
from tradewind.events import (
    AnyEvent,
    HoldingChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    PhaseChanged,
    PriceChanged,
    StepCommitted,
    decode,
)
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.views import Costs

NODES, JOBS, BLOCK = 100, 10, 1_000
OFFERS = [
    Offer(
        market=Market("aws", "us-east-1", f"use1-az{zone}", "g5.xlarge", Capacity.SPOT),
        vcpus=4.0,
        memory_gib=16.0,
        accelerator="A10G",
        accelerator_count=1.0,
        price_uusd_per_h=400_000 + zone,
        on_demand_uusd_per_h=1_006_000,
    )
    for zone in range(6)
]


@dataclass
class Result:
    events: int
    fold_s: float
    bill_s: float
    receipt_s: float
    kept_mib: float


@dataclass
class Training:
    """One made-up job: its clock, its step, its nodes."""

    job_id: str
    now_s: float = 0.0
    step: int = 0
    attempt: int = 1
    sequence: int = 0

    def steps(self) -> StepCommitted:
        self.sequence += 1
        began_s, first = self.now_s, self.step + 1
        self.now_s, self.step = self.now_s + 5.0, self.step + 10
        return StepCommitted(
            at_s=self.now_s,
            job_id=self.job_id,
            attempt=self.attempt,
            sequence=self.sequence,
            began_s=began_s,
            first_step=first,
            last_step=self.step,
            workers=8,
            samples=640,
        )

    def phase(self, phase: Phase, after_s: float) -> PhaseChanged:
        self.sequence += 1
        self.now_s += after_s
        return PhaseChanged(
            at_s=self.now_s,
            job_id=self.job_id,
            attempt=self.attempt,
            sequence=self.sequence,
            phase=phase,
            workers=8,
        )


def made_up(seed: int = 1) -> Iterator[AnyEvent]:
    """An endless log. One report in fifty comes twice, one in a hundred late; a node is lost every 200 events."""
    chance = random.Random(seed)
    jobs = [Training(f"job-{i}") for i in range(JOBS)]
    nodes = {f"node-{i}": jobs[i % JOBS] for i in range(NODES)}
    for job in jobs:
        yield JobSubmitted(at_s=0.0, job_id=job.job_id, spec=JobSpec(name=job.job_id, entrypoint="x"))
    for name, job in nodes.items():
        yield from arrival(name, job, chance)
    late: list[AnyEvent] = []
    for number in range(NODES, sys.maxsize):
        for _ in range(200):
            yield from reports(chance.choice(jobs), chance, late)
        yield from loss(nodes, f"node-{number}", chance)
        yield from late
        late.clear()


def arrival(name: str, job: Training, chance: random.Random) -> Iterator[AnyEvent]:
    at_s = job.now_s
    yield LaunchRequested(at_s=at_s, launch_id=name, offer=chance.choice(OFFERS), reason="bench")
    yield NodeLaunched(at_s=at_s + 1.0, launch_id=name, instance_id=name)
    yield NodeJoined(at_s=at_s + 60.0, launch_id=name, ray_node_id=name)
    held = {"CPU": 4.0, "GPU": 1.0}
    yield HoldingChanged(at_s=at_s + 61.0, job_id=job.job_id, launch_id=name, resources=held)


def loss(nodes: dict[str, Training], successor: str, chance: random.Random) -> Iterator[AnyEvent]:
    name = chance.choice(list(nodes))
    job = nodes.pop(name)
    yield NodeGone(at_s=job.now_s, launch_id=name, end=EndReason.PREEMPTED)
    job.attempt, job.step = job.attempt + 1, max(job.step - 15, 0)
    yield job.phase(Phase.RESTARTING, 2.0)
    yield from arrival(successor, job, chance)
    yield job.phase(Phase.TRAINING, 8.0)
    nodes[successor] = job


def reports(job: Training, chance: random.Random, late: list[AnyEvent]) -> Iterator[AnyEvent]:
    dice = chance.random()
    if dice < 0.02:
        price = round(400_000 * chance.uniform(0.5, 2.0))
        yield PriceChanged(at_s=job.now_s, market=chance.choice(OFFERS).market.key, price_uusd_per_h=price)
        return
    if dice < 0.04:
        yield job.phase(Phase.CHECKPOINTING, 0.0)
        yield job.phase(Phase.TRAINING, 1.0)
    report = job.steps()
    if dice < 0.05:
        late.append(report)
        return
    yield report
    if dice < 0.07:
        yield report


def measure(events: Iterable[AnyEvent], count: int) -> Result:
    gc.collect()
    memory, before = psutil.Process().memory_info, psutil.Process().memory_info().rss
    ledger, fold_s, seen, now_s, events = Ledger(), 0.0, 0, 0.0, iter(events)
    while block := list(islice(events, min(BLOCK, count - seen))):
        started_s = time.process_time()
        for event in block:
            ledger.apply(event)
        fold_s += time.process_time() - started_s
        seen, now_s = seen + len(block), max(now_s, block[-1].at_s)
    del block
    bill_s = timed(lambda: bill(ledger, now_s))
    receipt_s = timed(lambda: receipt(ledger, next(iter(ledger.jobs)), now_s)) if ledger.jobs else 0.0
    gc.collect()
    return Result(seen, fold_s, bill_s, receipt_s, (memory().rss - before) / 2**20)


def timed(question: Callable[[], object]) -> float:
    started_s = time.process_time()
    question()
    return time.process_time() - started_s


def median(results: list[Result]) -> Result:
    by_time = sorted(results, key=lambda result: result.fold_s + result.bill_s)
    middle = by_time[len(by_time) // 2]
    return Result(
        middle.events,
        middle.fold_s,
        middle.bill_s,
        middle.receipt_s,
        statistics.median(result.kept_mib for result in results),
    )


def bar(name: str, ours: float, limit: float, unit: str) -> Bar:
    return Bar(name, ours, {}, limit, limit / ours if ours else float("inf"), f"<= {limit:g} {unit}", ours <= limit)


def bars(result: Result) -> list[Bar]:
    limit_s = max(10.0 * result.events / 1_000_000, 3.0)
    return [
        bar(f"ledger: fold + bill of {result.events:,} events, CPU s", result.fold_s + result.bill_s, limit_s, "s"),
        bar(f"ledger: memory kept after {result.events:,} events, MiB", result.kept_mib, 1024, "MiB"),
    ]


def month_bars(nodes: int, days: int, prices: Path | None) -> list[Bar]:
    """Fold the log of a large fleet, settle it once, then ask as a living controller does."""
    gc.collect()
    memory, before = psutil.Process().memory_info, psutil.Process().memory_info().rss
    ledger, fold_s, seen = Ledger(), 0.0, 0
    log = month(nodes, days, price_moves(prices) if prices else None)
    while block := list(islice(log, BLOCK)):
        started_s = time.process_time()
        for event in block:
            ledger.apply(event)
        fold_s, seen = fold_s + time.process_time() - started_s, seen + len(block)
    del block
    now_s = days * 86_400.0
    fold_s += timed(lambda: (Costs.at(ledger, now_s), summary(ledger, "day", now_s)))  # as a controller that starts
    gc.collect()
    gc.freeze()  # as the service does after it has read its log
    kept_mib = (memory().rss - before) / 2**20
    what = f"{nodes:,} nodes x {days} days, {seen:,} events"
    slowest_s = {name: max(times) for name, times in _asked(ledger, now_s).items()}
    alive = sum(1 for node in ledger.nodes.values() if node.ended_ms is None)
    print(f"{what}, {alive:,} alive at the end; questions, CPU ms: ", end="", file=sys.stderr)
    print(", ".join(f"{name} {1000 * found_s:.0f}" for name, found_s in slowest_s.items()), file=sys.stderr)
    return [
        bar(f"ledger: fold and settle {what}, CPU s", fold_s, 10, "s"),
        bar(f"ledger: memory kept of {what}, MiB", kept_mib, 1024, "MiB"),
        bar(f"ledger: slowest question to {what}, CPU ms", 1000 * max(slowest_s.values()), 100, "ms"),
    ]


def _asked(ledger: Ledger, now_s: float) -> dict[str, list[float]]:
    """CPU seconds by question. Between questions time goes on, a job reports and a price moves."""
    found: dict[str, list[float]] = {}
    jobs, markets = list(ledger.jobs), list(ledger.offers)
    for turn in range(5):
        at_s = now_s + 10.0 * turn
        for number, by in enumerate(("day", "tenant", "job", "market", "label")):
            ledger.apply(PriceChanged(at_s=at_s, market=markets[turn % len(markets)], price_uusd_per_h=400_000 + turn))
            ledger.apply(last_steps(jobs[-1 - turn], at_s + number))
            found.setdefault(by, []).append(timed(lambda by=by, at=at_s + number: summary(ledger, by, at)))
        at_s, job_id = at_s + 6.0, jobs[-1 - turn]
        found.setdefault("receipt", []).append(timed(lambda at=at_s, job=job_id: receipt(ledger, job, at)))
        found.setdefault("screen", []).append(timed(lambda at=at_s: Costs.at(ledger, at)))
    return found


def read(path: Path) -> Iterator[AnyEvent]:
    with path.open("rb") as lines:
        yield from (decode(line) for line in lines if line.strip())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--log", type=Path, help="fold this file (one encoded event a line) instead")
    parser.add_argument("--nodes", type=int, default=10_000, help="of the large fleet; 0: leave it out")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--prices", type=Path, help="real spot prices for the large fleet (CSV, may be gzip)")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    counts = [sys.maxsize] if args.log else args.events
    found: list[Bar] = []
    for count in counts:
        runs = [measure(read(args.log) if args.log else made_up(), count) for _ in range(args.repeat)]
        result = median(runs)
        found += bars(result)
        print(
            f"{result.events:>9,} events: fold {result.fold_s:6.2f} s, bill {result.bill_s:6.3f} s, "
            f"receipt {result.receipt_s:6.3f} s, keeps {result.kept_mib:6.1f} MiB",
            file=sys.stderr,
        )
    if args.nodes:
        found += month_bars(args.nodes, args.days, args.prices)
    return show(found, args.json)


if __name__ == "__main__":
    raise SystemExit(main())
