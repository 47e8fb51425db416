"""How benchmarks print bars: one JSON line each with `--json`, an aligned table without. Not a benchmark itself."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """One figure that must hold, beside the peers' figures that were measured in the same run."""

    name: str
    ours: float
    peers: Mapping[str, float]
    limit: float  # where the bar lies, in the unit of `ours`
    ratio: float
    goal: str  # what is asked of the ratio, in words: ">= 20"
    holds: bool


def show(bars: Sequence[Bar], as_json: bool) -> int:
    """Print them; the exit status of the benchmark: 1 where one does not hold."""
    for line in map(_json, bars) if as_json else _table(bars):
        print(line)
    return 0 if all(bar.holds for bar in bars) else 1


def _json(bar: Bar) -> str:
    fields = asdict(bar)
    figures = {name: round(fields[name], 4) for name in ("ours", "limit", "ratio")}
    peers = {name: round(value, 4) for name, value in bar.peers.items()}
    return json.dumps({"bar": fields.pop("name"), **fields, **figures, "peers": peers})


def _table(bars: Sequence[Bar]) -> list[str]:
    rows = [("bar", "ours", "limit", "ratio", "goal", "", "peers")]
    for bar in bars:
        peers = ", ".join(f"{name} {value:.4g}" for name, value in bar.peers.items())
        figures = (f"{value:.4g}" for value in (bar.ours, bar.limit, bar.ratio))
        rows.append((bar.name, *figures, bar.goal, "holds" if bar.holds else "DOES NOT HOLD", peers))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
