"""Job traces from CSV files: one row a job. A trace in the order of time is streamed; any other is sorted first.

The columns are found by their names; others are not looked at. Times are seconds or dates. A row without a duration or
without GPUs asks for nothing and is left out; what is negative, or no number at all, is an error that names the line.
"""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

from tradewind.autoscaler.limits import NOBODY
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.errors import ConfigError, Problem

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "submit": ("submission_time", "submit_time", "submit_s", "submit", "timestamp", "time"),
    "duration": ("duration", "duration_s", "run_time", "runtime"),
    "gpus": ("num_gpu", "num_gpus", "gpus", "gpu_num", "num_replicas", "workers"),
    "deadline": ("deadline", "deadline_s"),
    "tenant": ("tenant", "cluster", "vc", "user"),
}
_HINT = (
    "a job trace is CSV with a header: submission_time, duration (seconds), num_gpu; and, if you like, deadline, tenant"
)


@dataclass(frozen=True, slots=True)
class JobFile:
    """A trace that was looked through once. `jobs()` may be called again and again."""

    path: Path
    number: int
    first_s: float  # its first submission: time 0 of the simulation
    last_s: float
    left_out: int  # rows that ask for nothing
    with_deadline: int
    is_sorted: bool
    duration_s: float | None  # of rows that say none
    days: float | None = None  # only so much of it
    slack: float | None = None  # jobs without a deadline get one: so many times their duration

    def jobs(self) -> Iterator[SimJob]:
        found = (job for _, job in _rows(self.path, self.duration_s) if job is not None)
        ordered = found if self.is_sorted else iter(sorted(found, key=lambda job: job.submit_s))
        for job in ordered:
            at_s = job.submit_s - self.first_s
            if self.days is not None and at_s >= self.days * 86400.0:
                return
            yield replace(job, submit_s=at_s, deadline_s=self._deadline_s(job))

    def _deadline_s(self, job: SimJob) -> float | None:
        if job.deadline_s is not None:
            return job.deadline_s - self.first_s
        return None if self.slack is None else job.submit_s - self.first_s + self.slack * job.duration_s


def look_through(
    path: Path, duration_s: float | None = None, days: float | None = None, slack: float | None = None
) -> JobFile:
    """Reads all of it once. Raises ConfigError with the line that is wrong."""
    number = left_out = with_deadline = 0
    first_s, last_s, is_sorted = math.inf, -math.inf, True
    for _, job in _rows(path, duration_s):
        if job is None:
            left_out += 1
            continue
        number += 1
        is_sorted = is_sorted and job.submit_s >= last_s
        first_s, last_s = min(first_s, job.submit_s), max(last_s, job.submit_s)
        with_deadline += job.deadline_s is not None
    if not number:
        raise _error(path, 0, "", "has no jobs" if not left_out else f"none of its {left_out} rows asks for anything")
    return JobFile(path, number, first_s, last_s, left_out, with_deadline, is_sorted, duration_s, days, slack)


def _rows(path: Path, duration_s: float | None) -> Iterator[tuple[int, SimJob | None]]:
    with open_text(path) as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if not header:
            raise _error(path, 0, "", "is empty")
        columns = _find(path, header, duration_s)
        for row in reader:
            if row:
                yield reader.line_num, _job(path, reader.line_num, row, columns, duration_s)


def _find(path: Path, header: Sequence[str], duration_s: float | None) -> dict[str, int]:
    low = [name.lower() for name in header]
    found = {
        what: low.index(name) for what, names in COLUMNS.items() for name in names[::-1] if name in low
    }  # the first of the names wins
    for what in ("submit", "duration", "gpus"):
        if what not in found and not (what == "duration" and duration_s is not None):
            hint = " or give --duration" if what == "duration" else ""
            message = f"has no column for it; it has {', '.join(header)}. Allowed: {', '.join(COLUMNS[what])}{hint}"
            raise _error(path, 1, what, message)
    return found


def _job(path: Path, line: int, row: Sequence[str], columns: Mapping[str, int], usual_s: float | None) -> SimJob | None:
    texts = {what: row[place].strip() if place < len(row) else "" for what, place in columns.items()}
    duration = texts.get("duration", "")
    if not texts["submit"] or not texts["gpus"] or not (duration or usual_s):
        return None
    submit_s = _time(path, line, "submit", texts["submit"])
    duration_s = _number(path, line, "duration", duration) if duration else (usual_s or 0.0)
    gpus = math.ceil(_number(path, line, "gpus", texts["gpus"]))
    if not duration_s or not gpus:
        return None
    deadline_s = _time(path, line, "deadline", texts["deadline"]) if texts.get("deadline") else None
    if deadline_s is not None and deadline_s <= submit_s:
        raise _error(path, line, "deadline", f"{texts['deadline']} is not after the submission at {texts['submit']}")
    return SimJob(submit_s, duration_s, gpus, deadline_s, texts.get("tenant") or NOBODY)


def _number(path: Path, line: int, field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise _error(path, line, field, f"{text!r} is not a number that is 0 or more")
    return value


def _time(path: Path, line: int, field: str, text: str) -> float:
    found = seconds(text)
    if found is None:
        raise _error(path, line, field, f"{text!r} is neither a number of seconds nor a date like 2024-01-31 12:00:00")
    return found


def seconds(text: str) -> float | None:
    """A number of seconds, or a date (UTC where it does not say)."""
    try:
        value = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return value if math.isfinite(value) else None


@contextmanager
def open_text(path: Path) -> Iterator[TextIO]:
    """Of a file that may be compressed."""
    try:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", newline="", encoding="utf-8-sig") as file:
                yield file
        else:
            with path.open(newline="", encoding="utf-8-sig") as file:
                yield file
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise _error(path, 0, "", f"cannot be read: {why}") from error


def _error(path: Path, line: int, field: str, message: str) -> ConfigError:
    return ConfigError([Problem(f"{path}:{line}" if line else str(path), field, message)], _HINT)
