"""A trace of jobs: read by others, or made up from a seed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

DAY_S = 86400.0


@dataclass(frozen=True, slots=True, order=True)
class TraceJob:
    """Asks for `workers` of the scenario's shape at once, all or none, and holds them for `duration_s`."""

    submit_s: float
    duration_s: float
    workers: int = 1


def made_up(seed: int, days: float = 14.0, jobs_per_day: float = 300.0) -> list[TraceJob]:
    """Jobs as people send them: by day more than by night, few at weekends, now and then a sweep of many at once."""
    random = np.random.default_rng(seed)
    found: list[TraceJob] = []
    at_s = 0.0
    peak_per_s = 2.0 * jobs_per_day / DAY_S
    while (at_s := at_s + random.exponential(1.0 / peak_per_s)) < days * DAY_S:
        if random.random() > _rhythm(at_s):
            continue
        copies = int(random.integers(4, 16)) if random.random() < 0.02 else 1
        workers = int(random.choice([1, 1, 1, 1, 2, 4, 8]))
        found += [TraceJob(at_s, float(random.lognormal(8.0, 1.2)), workers) for _ in range(copies)]
    return found


def _rhythm(at_s: float) -> float:
    """Between 0 and 1: how busy the hour is."""
    by_hour = 0.5 - 0.4 * np.cos(2 * np.pi * (at_s % DAY_S) / DAY_S)
    return float(by_hour) * (0.3 if at_s // DAY_S % 7 >= 5 else 1.0)
