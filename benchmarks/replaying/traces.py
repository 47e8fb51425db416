"""Reads job traces for the replay benchmark from CSV files."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from forecasting.load import DURATION, GPUS, GROUPS, SUBMIT, JobColumns, seconds

from tradewind.autoscaler.simulate import TraceJob

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Trace:
    name: str
    jobs: tuple[TraceJob, ...]


def read_traces(path: Path, columns: JobColumns, skip_days: float, days: float) -> list[Trace]:
    """One for each value of the group column. Of each, `days` from `skip_days` after its first submission on. A row
    without a time, a duration or GPUs asks for nothing: left out."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or ())
        submit, duration, gpus = (
            _pick(header, given, known, path)
            for given, known in ((columns.submit, SUBMIT), (columns.duration, DURATION), (columns.gpus, GPUS))
        )
        group = columns.group or next((name for name in GROUPS if name in header), "")
        by_group: dict[str, list[TraceJob]] = defaultdict(list)
        for row in reader:
            job = _job(row[submit], row[duration], row[gpus])
            if job is not None:
                by_group[row[group] if group else ""].append(job)
    return [
        Trace(f"{path.stem} {name}".strip(), _window(jobs, skip_days, days)) for name, jobs in sorted(by_group.items())
    ]


def _window(jobs: list[TraceJob], skip_days: float, days: float) -> tuple[TraceJob, ...]:
    first_s = min(job.submit_s for job in jobs) + skip_days * DAY_S
    return tuple(sorted(job for job in jobs if first_s <= job.submit_s < first_s + days * DAY_S))


def _job(submit: str, duration: str, gpus: str) -> TraceJob | None:
    if not (submit.strip() and duration.strip() and gpus.strip()):
        return None
    job = TraceJob(seconds(submit), float(duration), math.ceil(float(gpus)))
    return job if job.duration_s > 0 and job.workers > 0 and math.isfinite(job.submit_s) else None


def _pick(header: list[str], given: str, known: tuple[str, ...], path: Path) -> str:
    found = given or next((name for name in known if name in header), "")
    if found not in header:
        there = ", ".join(header)
        raise SystemExit(
            f"{path}: no column {given or known[0]}; it has {there}: say it with --submit, --duration, --gpus"
        )
    return found
