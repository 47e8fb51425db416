"""Job traces and markets that are made up from a seed, one by one as they are asked for: for benchmarks and tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.place import ANY_NUMBER
from tradewind.autoscaler.simulate.steps import Steps

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Workload:
    """`number` jobs, at random times; durations are lognormal."""

    number: int
    per_hour: float
    median_s: float = 600.0
    spread: float = 1.0  # of the logarithm of a duration
    sizes: Sequence[int] = (1, 1, 1, 1, 2, 4, 8)
    slack: float | None = None  # a deadline after so many times the duration
    tenants: int = 4

    def jobs(self, seed: int) -> Iterator[SimJob]:
        draw = random.Random(seed)
        at_s = 0.0
        for _ in range(self.number):
            at_s += draw.expovariate(self.per_hour / 3600.0)
            long_s = self.median_s * draw.lognormvariate(0.0, self.spread)
            deadline_s = None if self.slack is None else at_s + self.slack * long_s + 1800.0
            yield SimJob(at_s, long_s, draw.choice(self.sizes), deadline_s, f"tenant-{draw.randrange(self.tenants)}")


def spells(
    seed: int | str, up_h: float = 6.0, down_h: float = 2.0, days: float = 14.0, nodes: int = ANY_NUMBER
) -> Steps:
    """A market that is open and closed in turn, for exponential times."""
    draw = random.Random(seed)
    points, at_s, is_up = [], 0.0, True
    while at_s < days * DAY_S:
        points.append((at_s, nodes if is_up else 0))
        at_s += draw.expovariate(1.0 / (up_h if is_up else down_h)) * 3600.0
        is_up = not is_up
    return Steps.of(points, days * DAY_S)
