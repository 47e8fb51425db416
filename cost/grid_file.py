"""Hourly figures of electricity grids (gCO2/kWh, or a price) from a CSV file. Pure but for `read_grid`.

A line has a zone, a time and the figure. Several within an hour (grids tell every 5, 15 or 30 minutes) count as their
mean. Hours that are missing repeat the last one that is known.
"""

from __future__ import annotations

import csv
import gzip
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from tradewind.errors import ConfigError, Problem

HOUR_S = 3600.0
KEPT_H = 366 * 24  # what a forecast looks at


@dataclass(frozen=True, slots=True)
class Grid:
    """By zone: figures by hour (counted from 1970, UTC)."""

    hours: Mapping[str, Mapping[int, float]] = field(default_factory=dict)

    def newest_hour(self, zone: str) -> int:
        return max(self.hours.get(zone, {}), default=-(10**9))

    def past(self, zone: str, hour: int) -> list[float]:
        """Up to that hour, oldest first. What lies ahead in the file is not looked at: it would be a forecast."""
        known = self.hours.get(zone, {})
        here = [at for at in known if hour - KEPT_H < at <= hour]
        if not here:
            return []
        found, last = list[float](), known[min(here)]
        for at in range(min(here), hour + 1):
            last = known.get(at, last)
            found.append(last)
        return found

    def mean(self, zone: str, from_s: float, until_s: float) -> float | None:
        """Of the hours of a stretch of time that are known. None: of none."""
        known = self.hours.get(zone, {})
        hours = range(int(from_s // HOUR_S), max(math.ceil(until_s / HOUR_S), int(from_s // HOUR_S) + 1))
        found = [known[hour] for hour in hours if hour in known]
        return sum(found) / len(found) if found else None


def read_grid(path: Path, column: str) -> Grid:
    try:
        with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
            return parse_grid(file, column, str(path))
    except (OSError, UnicodeDecodeError, EOFError, zlib.error, csv.Error) as error:
        raise _wrong(str(path), f"could not be read: {error}") from error


def parse_grid(lines: Iterable[str], column: str, name: str = "grid") -> Grid:
    rows = csv.DictReader(lines)
    missing = [each for each in ("zone", "ts", column) if each not in (rows.fieldnames or ())]
    if missing:
        raise _wrong(name, f"has no column {' and no '.join(missing)}")
    found: dict[str, dict[int, list[float]]] = {}
    for number, row in enumerate(rows, start=2):
        if row[column]:
            figures = found.setdefault(row["zone"], {}).setdefault(_hour(row["ts"], name, number), [])
            figures.append(_figure(row[column], name, number))
    return Grid({zone: {hour: fmean(figures) for hour, figures in hours.items()} for zone, hours in found.items()})


def _hour(text: str, name: str, number: int) -> int:
    try:
        at = datetime.fromisoformat(text)
    except (ValueError, TypeError) as error:  # a short row has None
        raise _wrong(name, f"line {number}: {text!r} is no time") from error
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() // HOUR_S)


def _figure(text: str, name: str, number: int) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise _wrong(name, f"line {number}: {text!r} is no number")
    return value


def _wrong(name: str, what: str) -> ConfigError:
    problem = Problem(name, "carbon", what)
    return ConfigError([problem], "it needs the columns zone, ts (hours) and the one that `carbon.column` names")
