"""Records of markets from files: how many nodes could be had, and what they cost. Told apart by their content.

    JSON  {"metadata": {"gap_seconds": 300}, "data": [4, 4, 0, ...]}    nodes that could be had, tick by tick
    CSV   ms,add|remove,node                                           one node comes or goes
    text  date, time, count                                            nodes held at that time
    CSV   timestamp_utc,az,instance_type,spot_price_usd_h              prices, when they changed; also with the columns
                                                                       ts_utc, InstanceType, AvailabilityZone, SpotPrice

A record that knows only 0 and 1 says whether there was a machine, not how many: it opens and closes the market. Where a
record has a gap (null, or a pause of more than an hour and ten times the usual), nothing could be had, and this is
said. Rows that are not in order are sorted. Time 0 is the begin of each file.
"""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

from tradewind.autoscaler.simulate.job_files import open_text, seconds
from tradewind.autoscaler.simulate.place import ANY_NUMBER
from tradewind.autoscaler.simulate.steps import Steps
from tradewind.errors import ConfigError, Problem
from tradewind.units import usd_to_uusd

_SUFFIXES = (".json", ".csv", ".csv.gz", ".txt")
_PRICE_COLUMNS = (
    ("timestamp_utc", "az", "instance_type", "spot_price_usd_h"),
    ("ts_utc", "AvailabilityZone", "InstanceType", "SpotPrice"),
)
_PAUSE_S = 3600.0
_HINT = (
    'give JSON {"metadata": {"gap_seconds": 300}, "data": [counts]}, lines of `ms,add|remove,node` or of '
    "`date, time, count`, or CSV of prices with the columns " + ",".join(_PRICE_COLUMNS[0])
)


@dataclass(slots=True)
class Records:
    """All that was read. `stocks` by the name of the file, `prices` by (zone, instance type)."""

    stocks: dict[str, Steps] = field(default_factory=dict)
    prices: dict[tuple[str, str], Steps] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # for people: what was mended, what was left out


def read_records(paths: Sequence[Path]) -> Records:
    """Files, and the files of folders. Raises ConfigError with the file and the row that is wrong."""
    found = Records()
    for path in _files(paths, found):
        text = ""
        if not path.name.endswith(".gz"):
            with open_text(path) as file:
                text = file.read().strip()
            if not text:
                raise _error(path, "", "is empty")
        if path.suffix == ".json":
            found.stocks[path.stem] = _json(path, text, found)
        elif path.name.endswith(".gz") or not text[0].isdigit():
            _prices(path, found)
        else:
            found.stocks[path.stem] = _lines(path, text, found)
    if not found.stocks and not found.prices:
        raise _error(paths[0], "", f"has no record of a market ({', '.join(_SUFFIXES)})")
    return found


def _files(paths: Sequence[Path], found: Records) -> Iterator[Path]:
    for path in paths:
        if not path.exists():
            raise _error(path, "", "does not exist")
        if path.is_file():
            yield path
            continue
        there = sorted(each for each in path.iterdir() if each.is_file())
        yield from (each for each in there if each.name.endswith(_SUFFIXES))
        others = [each.name for each in there if not each.name.endswith(_SUFFIXES)]
        if others:
            found.notes.append(f"{path}: not looked at: {', '.join(others[:5])}")


# --- how many nodes could be had ------------------------------------------------------------------------------------


def _json(path: Path, text: str, found: Records) -> Steps:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise _error(path, f"line {error.lineno}", f"is not JSON: {error.msg}") from error
    gap_s = content.get("metadata", {}).get("gap_seconds") if isinstance(content, dict) else None
    if not isinstance(gap_s, int | float) or isinstance(gap_s, bool) or not 0 < gap_s < math.inf:
        raise _error(path, "metadata.gap_seconds", f"is {gap_s!r}; it must be a number of seconds above 0")
    data = content.get("data")
    if not isinstance(data, list) or not data:
        raise _error(path, "data", "must be a list of counts, and not empty")
    counts = [_count(path, f"data[{number}]", value) for number, value in enumerate(data)]
    missing = sum(value is None for value in data)
    if missing:
        found.notes.append(f"{path.name}: {missing} of {len(data)} ticks are missing: nothing could be had in them")
    points = [(number * float(gap_s), count) for number, count in enumerate(counts)]
    return _stock(points, len(counts) * float(gap_s))


def _count(path: Path, where: str, value: object) -> int:
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or value < 0 or value % 1:
        raise _error(path, where, f"{value!r} is not a number of nodes: 0, 1, 2, ..., or null for a gap")
    return int(value)


def _lines(path: Path, text: str, found: Records) -> Steps:
    rows = [(number, [cell.strip() for cell in row]) for number, row in enumerate(csv.reader(text.splitlines()), 1)]
    rows = [(number, row) for number, row in rows if row]
    short = next((number for number, row in rows if len(row) < 3), None)
    if short is not None:
        raise _error(path, f"line {short}", "has fewer than three fields")
    points = list(_events(path, rows) if rows[0][1][1] in ("add", "remove") else _counts(path, rows))
    if len(points) < 2:
        raise _error(path, "", "has one moment only; a record needs two at least")
    return _stock(_with_gaps(path, points, found), points[-1][0] - points[0][0])


def _events(path: Path, rows: Sequence[tuple[int, list[str]]]) -> Iterator[tuple[float, int]]:
    held: set[str] = set()
    told = []
    for number, (at_ms, what, node, *_) in rows:
        at = seconds(at_ms)
        if at is None or what not in ("add", "remove"):
            raise _error(path, f"line {number}", f"{at_ms},{what} is not `ms,add` or `ms,remove`")
        told.append((at / 1000.0, what, node))
    for at_s, what, node in sorted(told, key=lambda each: each[0]):
        held = held | {node} if what == "add" else held - {node}
        yield at_s, len(held)


def _counts(path: Path, rows: Sequence[tuple[int, list[str]]]) -> list[tuple[float, int]]:
    found = []
    for number, (day, clock, count, *_) in rows:
        at_s = seconds(f"{day} {clock}")
        if at_s is None or not count.isdigit():
            raise _error(path, f"line {number}", f"{day}, {clock}, {count} is not `date, time, number of nodes`")
        found.append((at_s, int(count)))
    return sorted(found, key=lambda point: point[0])


def _with_gaps(path: Path, points: list[tuple[float, int]], found: Records) -> list[tuple[float, int]]:
    """A pause in which nobody looked: nothing could be had from a usual step after its begin on."""
    times_s = [at_s for at_s, _ in points]
    steps_s = [later - earlier for earlier, later in pairwise(times_s) if later > earlier]
    usual_s = median(steps_s) if steps_s else 0.0
    filled, gaps = [], 0
    for number, (at_s, count) in enumerate(points):
        filled.append((at_s, count))
        next_s = times_s[number + 1] if number + 1 < len(points) else at_s
        if next_s - at_s > max(_PAUSE_S, 10.0 * usual_s):
            filled.append((at_s + usual_s, 0))
            gaps += 1
    if gaps:
        found.notes.append(f"{path.name}: {gaps} gaps: nothing could be had in them")
    return filled


def _stock(points: Sequence[tuple[float, int]], length_s: float) -> Steps:
    is_yes_or_no = max(count for _, count in points) <= 1
    return Steps.of([(at_s, ANY_NUMBER if is_yes_or_no and count else count) for at_s, count in points], length_s)


# --- what they cost ---------------------------------------------------------------------------------------------------


def _prices(path: Path, found: Records) -> None:
    rows: dict[tuple[str, str], list[tuple[float, int]]] = {}
    unknown = 0
    with open_text(path) as file:
        reader = csv.DictReader(file)
        header = list(reader.fieldnames or ())
        columns = next((each for each in _PRICE_COLUMNS if set(each) <= set(header)), None)
        if columns is None:
            raise _error(path, "line 1", f"unknown columns: {', '.join(header) or 'none'}")
        when, zone, kind, price = columns
        for row in reader:
            at_s, text = seconds(row[when] or ""), (row[price] or "").strip()
            if at_s is None:
                raise _error(path, f"line {reader.line_num}", f"{when} {row[when]!r} is no time")
            if not text:
                unknown += 1
                continue
            rows.setdefault((row[zone], row[kind]), []).append((at_s, _price(path, reader.line_num, text)))
    if not rows:
        raise _error(path, "", "has no prices")
    if unknown:
        found.notes.append(f"{path.name}: {unknown} rows have no price: the last known one stays")
    first_s = min(at_s for points in rows.values() for at_s, _ in points)
    last_s = max(at_s for points in rows.values() for at_s, _ in points)
    for key, points in rows.items():
        ordered = sorted(points, key=lambda point: point[0])
        # All begin with the file: before its first price a market has this price already.
        found.prices[key] = Steps.of([(first_s, ordered[0][1]), *ordered], max(last_s - first_s, 1.0))


def _price(path: Path, line: int, text: str) -> int:
    try:
        value = usd_to_uusd(text)
    except (ValueError, ArithmeticError):
        value = 0
    if value <= 0:
        raise _error(path, f"line {line}", f"price {text!r} is not a number of dollars above 0")
    return value


def _error(path: Path, where: str, message: str) -> ConfigError:
    return ConfigError([Problem(str(path), where, message)], _HINT)
