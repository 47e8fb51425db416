"""Reads series for the forecast benchmark from CSV files: tables with a time column, and lists of jobs."""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tradewind.autoscaler.forecast.series import series_of_jobs

Array = npt.NDArray[np.float64]
SUBMIT = ("submission_time", "submit_time", "submit", "timestamp", "time", "creation_time")
DURATION = ("duration", "run_time", "runtime", "duration_s")
END = ("end_time", "end", "finish_time", "finished_time", "completion_time", "deletion_time")
GPUS = ("num_gpu", "num_gpus", "gpus", "gpu_num", "gpu", "num_replicas")
GROUPS = ("cluster", "vc", "tenant")


@dataclass(frozen=True, slots=True)
class Named:
    """A regular series with a name for people."""

    name: str
    times_s: Array
    values: Array


@dataclass(frozen=True, slots=True)
class JobColumns:
    """Which columns of a job list mean what; an empty name is found by itself. A list that tells when its jobs ended
    needs no durations."""

    submit: str = ""
    duration: str = ""
    gpus: str = ""
    group: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class JobRow:
    group: str  # empty where the list has none
    submit_s: float
    duration_s: float
    gpus: float


def read_table(path: Path, time: str, columns: Sequence[str], group: str, step_s: float) -> list[Named]:
    """One series for each column and each value of the group column. Finer data are averaged over the step; a step
    without data keeps the value before it. A series that is zero all along has nothing to forecast: left out."""
    rows = _rows(path, (time, *columns, *filter(None, [group])))
    by_group: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in rows:
        by_group[row[group] if group else ""].append(row)
    found = []
    for name, members in sorted(by_group.items()):
        for column in columns:
            pairs = [(seconds(row[time]), _number(row[column])) for row in members]
            times_s, values = _regular([pair for pair in pairs if not math.isnan(pair[1])], step_s)
            label = " ".join(filter(None, [path.stem, name, column if len(columns) > 1 else ""]))
            found.append(Named(label, times_s, values))
    return [series for series in found if series.values.any()]


def read_jobs(path: Path, columns: JobColumns, step_s: float) -> list[Named]:
    """Accelerators that all jobs together want, for each value of the group column."""
    by_group: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
    for row in job_rows(path, columns):
        by_group[row.group].append((row.submit_s, row.duration_s, row.gpus))
    found = []
    for name, jobs in sorted(by_group.items()):
        steps = series_of_jobs(jobs, step_s)
        found.append(Named(f"{path.stem} {name}".strip(), steps.times_s, steps.values))
    return [series for series in found if series.values.any()]


def job_rows(path: Path, columns: JobColumns) -> Iterator[JobRow]:
    """A row without a time, a duration (or an end) or GPUs asks for nothing: left out."""
    with path.open(newline="") as file:
        header = next(csv.reader(file), [])
    submit, gpus = _pick(header, columns.submit, SUBMIT, path), _pick(header, columns.gpus, GPUS, path)
    end = _end(header, columns)
    until = end or _pick(header, columns.duration, DURATION, path)
    group = columns.group or next((name for name in GROUPS if name in header), "")
    for line, row in enumerate(_rows(path, (submit, until, gpus, *filter(None, [group]))), start=2):
        if all((row[name] or "").strip() for name in (submit, until, gpus)):
            try:
                begin_s, asked = seconds(row[submit]), float(row[gpus])
                duration_s = seconds(row[until]) - begin_s if end else float(row[until])
            except ValueError as problem:
                raise SystemExit(f"{path}, row {line}: {problem}; leave the field empty if it is not known") from None
            yield JobRow(row[group] if group else "", begin_s, duration_s, asked)


def _end(header: Sequence[str], columns: JobColumns) -> str:
    """The column that tells when a job ended, where it is asked for, or no column has durations."""
    if columns.end or columns.duration or any(name in header for name in DURATION):
        return columns.end
    return next((name for name in END if name in header), "")


def seconds(text: str) -> float:
    """A number of seconds, or an ISO date, which is UTC when it does not say otherwise."""
    try:
        return float(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _regular(pairs: Iterable[tuple[float, float]], step_s: float) -> tuple[Array, Array]:
    cells: dict[int, list[float]] = defaultdict(list)
    for at_s, value in pairs:
        cells[math.floor(at_s / step_s)].append(max(value, 0.0))
    if not cells:
        return np.zeros(0), np.zeros(0)
    numbers = range(min(cells), max(cells) + 1)
    values: list[float] = []
    for number in numbers:
        values.append(sum(cells[number]) / len(cells[number]) if number in cells else values[-1])
    return np.array(numbers) * step_s, np.array(values)


def _rows(path: Path, needed: Sequence[str]) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in needed if name not in (reader.fieldnames or ())]
        if missing:
            raise SystemExit(f"{path}: no column {', '.join(missing)}; it has {', '.join(reader.fieldnames or ())}")
        return list(reader)


def _pick(header: Sequence[str], given: str, known: Sequence[str], path: Path) -> str:
    found = given or next((name for name in known if name in header), "")
    if found not in header:
        wanted, there = given or known[0], ", ".join(header)
        raise SystemExit(
            f"{path}: which column is {wanted}? It has {there}; say it with --submit, --duration (or --end), --gpus"
        )
    return found


def _number(text: str) -> float:
    return float(text) if text.strip() else math.nan
