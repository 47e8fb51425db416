"""Traces of spot nodes -> a replay: how many nodes there are, for how long. Pure; `chaos_train.py` acts on it.

Three formats, told apart by their content:
- JSON, `{"metadata": {"gap_seconds": 300}, "data": [4, 4, 3, ...]}`: nodes that could be had in each tick;
- CSV, `ms,add|remove,node`: one node comes or goes;
- text, `date, time, count`: nodes held at that time.

What is done with them, for a cell of at most `max_nodes` nodes:
- a trace of a single node (0 or 1) stands for `max_nodes` of them, which begin at different places of it;
- counts above `max_nodes` are mapped evenly, the trace's smallest (but 0) to 1, its largest to `max_nodes`; 0 stays 0;
- a trace that ends too early begins again.
"""

from __future__ import annotations

import csv
import json
import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, pairwise

from tradewind.errors import JobError

DEFAULT_GAP_S = 60.0  # of a JSON trace that does not tell
_HINT = 'give JSON with "data": [counts], or lines of `ms,add|remove,node`, or of `date, time, count`'


@dataclass(frozen=True, slots=True)
class Level:
    """So many nodes, for so long, in the trace's own time."""

    nodes: int
    duration_s: float


def parse(text: str) -> list[Level]:
    """The levels of a trace, in its own counts. Raises JobError where it is none."""
    stripped = text.lstrip("\ufeff \t\r\n")
    if not stripped:
        raise JobError("the trace is empty", _HINT)
    try:
        points = _parse_json(stripped) if stripped[0] in "{[" else _parse_lines(stripped)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise JobError(f"the trace cannot be read: {type(error).__name__}: {error}", _HINT) from error
    if any(count < 0 for _, count in points):
        raise JobError("the trace has a negative number of nodes", _HINT)
    return _levels(points)


def make_up(seed: int, most: int = 4, count: int = 100) -> list[Level]:
    """A trace for machines that have none: steps up and down, now and then nothing at all."""
    draw = random.Random(seed)
    counts = draw.choices(range(most + 1), weights=[1, *[2] * most], k=count)
    return _merge([Level(nodes, draw.expovariate(1 / 600)) for nodes in counts])


def replay(levels: Sequence[Level], max_nodes: int) -> Iterator[Level]:
    """For ever: levels of at most `max_nodes` nodes, each different from the one before. Raises JobError where the
    number of nodes never changes."""
    if len(levels) > 1 and max(level.nodes for level in levels) == 1:
        levels = _side_by_side(levels, max_nodes)
    mapped = _merge([Level(_fit(level.nodes, levels, max_nodes), level.duration_s) for level in levels])
    if len(mapped) < 2:
        raise JobError("the number of nodes never changes in this trace", "give a trace in which nodes come and go")
    last = None
    while True:
        for level in mapped:
            if level.nodes != last:
                yield level
            last = level.nodes


def _fit(nodes: int, levels: Sequence[Level], max_nodes: int) -> int:
    """A count of the trace -> a count of the cell."""
    highest = max(level.nodes for level in levels)
    if nodes == 0 or highest <= max_nodes:
        return nodes
    lowest = min(level.nodes for level in levels if level.nodes > 0)
    if lowest == highest:
        return max_nodes
    return 1 + round((nodes - lowest) / (highest - lowest) * (max_nodes - 1))


def _side_by_side(levels: Sequence[Level], copies: int) -> list[Level]:
    """The sum of `copies` of a trace, each of them begun an equal part of its length later, in a circle."""
    ends_ms = list(accumulate(max(1, round(level.duration_s * 1000)) for level in levels))
    whole_ms, starts_ms = ends_ms[-1], [0, *ends_ms[:-1]]
    offsets_ms = [whole_ms * copy // copies for copy in range(copies)]

    def nodes(at_ms: int) -> int:
        return levels[bisect_right(starts_ms, at_ms % whole_ms) - 1].nodes

    times_ms = sorted({(start + offset) % whole_ms for start in starts_ms for offset in offsets_ms})
    points = [(at_ms / 1000, sum(nodes(at_ms - offset) for offset in offsets_ms)) for at_ms in times_ms]
    return _levels([*points, (whole_ms / 1000, points[-1][1])])


def _parse_json(text: str) -> list[tuple[float, int]]:
    found = json.loads(text)
    data = found["data"] if isinstance(found, dict) else found
    gap_s = (
        float(found.get("metadata", {}).get("gap_seconds", DEFAULT_GAP_S)) if isinstance(found, dict) else DEFAULT_GAP_S
    )
    counts = [_whole(value) for value in data]
    if not counts or not 0 < gap_s < float("inf"):
        raise ValueError("it needs counts, and a time between them")
    return [(number * gap_s, count) for number, count in enumerate([*counts, *counts[-1:]])]


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError(f"{value!r} is not a number of nodes")
    return int(value)


def _parse_lines(text: str) -> list[tuple[float, int]]:
    rows = [
        [cell.strip() for cell in row] for row in csv.reader(text.splitlines()) if row and not row[0].startswith("#")
    ]
    if rows and not rows[0][0][:1].isdigit():
        rows = rows[1:]  # names of columns
    if any(len(row) < 3 for row in rows) or not rows:
        raise ValueError("a line has fewer than three fields")
    return _parse_events(rows) if rows[0][1] in ("add", "remove") else _parse_counts(rows)


def _parse_events(rows: Sequence[Sequence[str]]) -> list[tuple[float, int]]:
    held: set[str] = set()
    points = []
    for at_ms, what, node in sorted(((float(row[0]), row[1], row[2]) for row in rows), key=lambda row: row[0]):
        if what not in ("add", "remove"):
            raise ValueError(f"{what!r} is neither add nor remove")
        held = held | {node} if what == "add" else held - {node}
        points.append((at_ms / 1000, len(held)))
    return points


def _parse_counts(rows: Sequence[Sequence[str]]) -> list[tuple[float, int]]:
    points = [(datetime.fromisoformat(f"{row[0]} {row[1]}").timestamp(), int(row[2])) for row in rows]
    return sorted(points)


def _levels(points: Sequence[tuple[float, int]]) -> list[Level]:
    """(time, count) by time -> levels. What happens at one time is one change; the last point ends the one before."""
    at = dict(points)  # the last count of each time
    return _merge([Level(at[begin], end - begin) for begin, end in pairwise(at)] + [Level(points[-1][1], 0.0)])


def _merge(levels: Sequence[Level]) -> list[Level]:
    """Neighbours of the same count are one level."""
    merged: list[Level] = []
    for level in levels:
        if merged and merged[-1].nodes == level.nodes:
            merged[-1] = Level(level.nodes, merged[-1].duration_s + level.duration_s)
        else:
            merged.append(level)
    return merged
