"""How much carbon does waiting for clean hours save, against perfect foresight and "as yesterday"?

    python benchmarks/carbon.py --grid grid_2021_2023.csv.gz [--column ci_direct_g_per_kwh] [--zone GB] [--json]

The file has hourly rows (zone, ts, then figures per kWh). In every zone a job of --hours with --slack begins every
--every hours, from the day on at which there is enough past. It is asked every hour whether to run; each start costs
--restart seconds of running without work, and is counted. Ours forecasts from the zone's past alone, fitted anew every
week; "as yesterday" decides alike, with that as its forecast; perfect foresight knows what comes. Savings are against
running at once. Bars: ours saves at least 75 % of what perfect foresight saves, on the mean of the zones; and no
deadline is missed.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from bars import Bar, show

from tradewind.cost.carbon import HOUR_S, Work, carbon_window
from tradewind.cost.carbon_forecast import MIN_PAST_H, GridModel, Series, fit, forecast

GOAL = 0.75
WEEK_H = 168


@dataclass(frozen=True)
class Case:
    hours: float
    slack_h: float
    restart_s: float
    every_h: int

    @property
    def window_h(self) -> int:
        return int(self.hours + self.slack_h)


Forecast = Callable[[int, int], list[float]]  # (hour, how many) -> of that hour and those after it


def read(path: Path, column: str) -> dict[str, Series]:
    """Hours without a figure repeat the last one."""
    found: dict[str, list[float]] = {}
    with gzip.open(path, "rt") if path.suffix == ".gz" else open(path) as file:
        for row in sorted(csv.DictReader(file), key=lambda row: (row["zone"], row["ts"])):
            values = found.setdefault(row["zone"], [])
            if row[column] or values:
                values.append(float(row[column]) if row[column] else values[-1])
    return {zone: np.array(values) for zone, values in found.items()}


def emitted(series: Series, begin: int, case: Case, told: Forecast | None) -> tuple[float, bool]:
    """Per kW, and whether it was done in time; without a forecast it runs at once. An hour that is begun is run on."""
    left_s, running, total = case.hours * HOUR_S, False, 0.0
    deadline_s = (begin + case.window_h) * HOUR_S
    for hour in range(begin, begin + case.window_h):
        left_hours = begin + case.window_h - hour
        work = Work(left_s, deadline_s, case.restart_s, running)
        run = told is None or carbon_window(hour * HOUR_S, work, told(hour, left_hours)).run
        if run:
            lost_s = 0.0 if running else case.restart_s
            done_s = min(left_s, HOUR_S - lost_s)
            total += series[hour] * (done_s + lost_s) / HOUR_S
            left_s -= done_s
        running = run
        if left_s <= 0:
            break
    return total, left_s <= 0


def forecasts(series: Series, case: Case) -> dict[str, Forecast]:
    models: dict[int, GridModel | None] = {}

    def ours(hour: int, hours: int) -> list[float]:
        week = hour // WEEK_H
        if week not in models:
            models[week] = fit(series[: week * WEEK_H], case.window_h)
        return forecast(series[: hour + 1], hours, models[week])

    return {
        "ours": ours,
        "as yesterday": lambda hour, hours: forecast(series[: hour + 1], hours),
        "perfect foresight": lambda hour, hours: [float(each) for each in series[hour : hour + hours]],
    }


def measure(series: Series, case: Case) -> tuple[dict[str, float], int, int]:
    """By policy the share that is saved; how many runs; how many of them were late."""
    policies: dict[str, Forecast | None] = {"at once": None, **forecasts(series, case)}
    totals, late, runs = dict.fromkeys(policies, 0.0), 0, 0
    for begin in range(MIN_PAST_H + 2 * WEEK_H, len(series) - case.window_h, case.every_h):
        runs += 1
        for name, told in policies.items():
            total, in_time = emitted(series, begin, case, told)
            totals[name] += total
            late += name == "ours" and not in_time
    base = totals.pop("at once")
    return {name: 1.0 - total / base for name, total in totals.items()}, runs, late


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--grid", type=Path, help="hourly figures by zone, CSV or CSV.gz")
    parser.add_argument("--column", default="ci_direct_g_per_kwh")
    parser.add_argument("--zone", action="append", help="only this one; may be repeated")
    parser.add_argument("--hours", type=float, default=12.0)
    parser.add_argument("--slack", type=float, default=24.0)
    parser.add_argument("--restart", type=float, default=300.0, help="seconds")
    parser.add_argument("--every", type=int, default=97, help="hours; prime to 24, so that all hours are met")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.grid is None or not given.grid.is_file():
        print("skipped: give hourly figures with --grid FILE (see --help)")
        return 0
    case = Case(given.hours, given.slack, given.restart, given.every)
    zones = {
        zone: each for zone, each in read(given.grid, given.column).items() if not given.zone or zone in given.zone
    }
    saved, late = [], 0
    for zone, series in zones.items():
        found, runs, missed = measure(series, case)
        late += missed
        if runs:
            saved.append(found)
        if not given.json:
            told = ", ".join(f"{name} {each:.1%}" for name, each in found.items())
            print(f"{zone}: {runs} runs, {missed} late, saved: {told}", flush=True)
    mean = {name: float(np.mean([each[name] for each in saved])) for name in saved[0]}
    best = mean["perfect foresight"]
    ratio = mean["ours"] / best
    peers = {name: mean[name] for name in ("as yesterday", "perfect foresight")}
    bars = [
        Bar("carbon saved, mean of the zones", mean["ours"], peers, GOAL * best, ratio, f">= {GOAL}", ratio >= GOAL),
        Bar("deadlines missed", late, {}, 0, late, "0", late == 0),
    ]
    return show(bars, given.json)


if __name__ == "__main__":
    sys.exit(main())
