"""A made-up month of a large fleet, as events in order of time: for benchmarks/ledger.py.

Nodes come at any time and live for ten days on average, so that about a third is alive at the end. Jobs hold eight
nodes for some days each, report every ten minutes, and restart once a day. Prices move every two hours in each market,
or as they really did.
"""

from __future__ import annotations

import csv
import gzip
import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

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
)
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.states import JobState
from tradewind.units import usd_to_uusd

DAY_S = 86_400.0
GANG = 8  # nodes of a job
TENANTS = ("research", "vision", "speech", "ads")


@dataclass(frozen=True, slots=True)
class Move:
    """One change of one market's price."""

    at_s: float
    zone: str
    instance_type: str
    price_uusd_per_h: int


def price_moves(path: Path, markets: int = 60) -> list[Move]:
    """Of the markets that move most, from the file's first moment on. Columns: time, zone, type, dollars an hour."""
    packed = path.read_bytes()
    text = (gzip.decompress(packed) if path.suffix == ".gz" else packed).decode()
    rows = list(csv.reader(text.splitlines()))[1:]
    most = {key for key, _ in Counter((row[1], row[2]) for row in rows).most_common(markets)}
    kept = sorted((_seconds(row[0]), row[1], row[2], row[3]) for row in rows if (row[1], row[2]) in most)
    return [Move(at_s - kept[0][0], zone, kind, usd_to_uusd(price)) for at_s, zone, kind, price in kept]


def _seconds(text: str) -> float:
    if text.replace(".", "", 1).isdigit():
        return float(text)
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def _random_moves(days: int, chance: random.Random) -> list[Move]:
    return [
        Move(hour * 3600.0 + chance.uniform(0, 3000), f"use1-az{i % 6}", f"g{5 + i // 6}.xlarge", 400_000 + i * 977)
        for hour in range(0, days * 24, 2)
        for i in sorted(chance.sample(range(60), 60))
    ]


def month(nodes: int, days: int, moves: Sequence[Move] | None = None, seed: int = 7) -> Iterator[AnyEvent]:
    chance = random.Random(seed)
    moves = moves if moves is not None else _random_moves(days, chance)
    first: dict[tuple[str, str], Move] = {}
    for move in moves:
        first.setdefault((move.zone, move.instance_type), move)
    offers = [_offer(move) for move in first.values()]
    by_day: dict[int, list[tuple[float, int, AnyEvent]]] = defaultdict(list)
    order = 0
    gangs = [_gang(number, offers, days, chance) for number in range(-(-nodes // GANG))]
    for number, gang in enumerate(gangs):
        for event in gang.setting(min(GANG, nodes - number * GANG), days, chance):
            by_day[int(event.at_s // DAY_S)].append((event.at_s, order := order + 1, event))
    by_move_day: dict[int, list[Move]] = defaultdict(list)
    for move in moves:
        by_move_day[int(move.at_s // DAY_S)].append(move)
    for day in range(days):
        told = [(event.at_s, event) for gang in gangs for event in gang.reports(day, days)]
        told += [(at_s, event) for at_s, _, event in by_day.pop(day, [])]
        told += [(move.at_s, _price(move)) for move in by_move_day.pop(day, [])]
        yield from (event for _, event in sorted(told, key=lambda each: each[0]))


def _offer(move: Move) -> Offer:
    market = Market("aws", move.zone.rstrip("abcdef"), move.zone, move.instance_type, Capacity.SPOT)
    return Offer(market, 8.0, 32.0, "A10G", 1.0, 1, move.price_uusd_per_h, 3 * move.price_uusd_per_h)


def _price(move: Move) -> PriceChanged:
    key = f"aws/{move.zone}/{move.instance_type}/spot"
    return PriceChanged(at_s=move.at_s, market=key, price_uusd_per_h=move.price_uusd_per_h)


@dataclass(slots=True)
class Gang:
    """One job and its nodes."""

    number: int
    offer: Offer
    from_s: float
    until_s: float
    step: int = 0
    sequence: int = 0

    @property
    def job_id(self) -> str:
        return f"job-{self.number}"

    def setting(self, nodes: int, days: int, chance: random.Random) -> Iterator[AnyEvent]:
        """Everything but the reports."""
        spec = JobSpec(name=self.job_id, entrypoint="x", tenant=TENANTS[self.number % len(TENANTS)])
        yield JobSubmitted(at_s=self.from_s, job_id=self.job_id, spec=spec)
        for i in range(nodes):
            name, at_s = f"node-{self.number}-{i}", self.from_s + chance.uniform(0, 120)
            yield LaunchRequested(at_s=at_s, launch_id=name, offer=self.offer, reason="bench")
            yield DecisionRecorded(at_s=at_s, action="launch", subject=name, reason="bench", jobs=(self.job_id,))
            yield NodeLaunched(at_s=at_s + 2, launch_id=name, instance_id=name)
            yield NodeJoined(at_s=at_s + 90, launch_id=name, ray_node_id=name)
            held = {"CPU": 8.0, "GPU": 1.0}
            yield HoldingChanged(at_s=self.from_s + 300, job_id=self.job_id, launch_id=name, resources=held)
            if self.until_s < days * DAY_S:
                yield HoldingChanged(at_s=self.until_s, job_id=self.job_id, launch_id=name)
                yield NodeGone(at_s=self.until_s + chance.uniform(5, 90), launch_id=name, end=EndReason.TERMINATED)
        if self.until_s < days * DAY_S:
            yield JobStateChanged(at_s=self.until_s, job_id=self.job_id, state=JobState.SUCCEEDED)

    def reports(self, day: int, days: int) -> Iterator[AnyEvent]:
        """Of one day: steps every ten minutes, a restart once a day."""
        at_s = max(self.from_s + 310, day * DAY_S)
        until_s = min(self.until_s, (day + 1) * DAY_S, days * DAY_S)
        restart_s = day * DAY_S + 3600.0 * (self.number % 24)
        while at_s + 600 < until_s:
            if at_s <= restart_s < at_s + 600:
                self.step = max(self.step - 20, 0)
                for phase, after_s in ((Phase.RESTARTING, 0.0), (Phase.TRAINING, 20.0)):
                    self.sequence += 1
                    yield PhaseChanged(
                        at_s=at_s + after_s,
                        job_id=self.job_id,
                        attempt=1,
                        sequence=self.sequence,
                        phase=phase,
                        workers=GANG,
                    )
                at_s += 30.0
            self.sequence += 1
            yield StepCommitted(
                at_s=at_s + 600,
                began_s=at_s,
                job_id=self.job_id,
                attempt=1,
                sequence=self.sequence,
                first_step=self.step + 1,
                last_step=self.step + 100,
                workers=GANG,
                samples=6400,
            )
            at_s, self.step = at_s + 600, self.step + 100


def _gang(number: int, offers: Sequence[Offer], days: int, chance: random.Random) -> Gang:
    from_s = chance.uniform(0, days - 0.5) * DAY_S
    return Gang(number, chance.choice(offers), from_s, from_s + max(chance.expovariate(1 / (10 * DAY_S)), 3600.0))


def last_steps(job_id: str, at_s: float) -> StepCommitted:
    """A fresh report of a job that lives."""
    return StepCommitted(
        at_s=at_s,
        began_s=at_s - 0.5,
        job_id=job_id,
        attempt=1,
        sequence=round(at_s),
        first_step=10**9 + round(at_s),
        last_step=10**9 + round(at_s),
        workers=GANG,
        samples=64,
    )
