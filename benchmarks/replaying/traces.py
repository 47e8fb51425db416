"""Reads job traces for the replay benchmark from CSV files."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from forecasting.load import JobColumns, job_rows

from tradewind.autoscaler.simulate import TraceJob

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    jobs: tuple[TraceJob, ...]


def read_traces(path: Path, columns: JobColumns, skip_days: float, days: float) -> list[Trace]:
    """One for each value of the group column. Of each, `days` from `skip_days` after its first submission on."""
    by_group: dict[str, list[TraceJob]] = defaultdict(list)
    for row in job_rows(path, columns):
        job = TraceJob(row.submit_s, row.duration_s, math.ceil(row.gpus))
        if job.duration_s > 0 and job.workers > 0 and math.isfinite(job.submit_s):
            by_group[row.group].append(job)
    return [
        Trace(f"{path.stem} {name}".strip(), _window(jobs, skip_days, days)) for name, jobs in sorted(by_group.items())
    ]


def _window(jobs: list[TraceJob], skip_days: float, days: float) -> tuple[TraceJob, ...]:
    first_s = min(job.submit_s for job in jobs) + skip_days * DAY_S
    return tuple(sorted(job for job in jobs if first_s <= job.submit_s < first_s + days * DAY_S))
