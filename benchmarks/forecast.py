"""Is our forecast better than what one would take otherwise, on real demand?

    python benchmarks/forecast.py --series FILE --time COL --column COL [--column COL] [--group COL] --horizons 1,2,6
    python benchmarks/forecast.py --jobs FILE [--jobs FILE ...] [--submit COL --duration COL --gpus COL] [--end COL]
    python benchmarks/forecast.py --data FOLDER      Helios, MS-ITP, Philly and ServeGen in their usual folders

Ours, persistence, same hour yesterday, statsforecast's AutoETS and LightGBM (quantile objective, on the change from the
last value) forecast the same steps from the same origins: every step after the first week, each knowing only what was
before. Horizons are in steps (of an hour, see --step). Figures: WAPE of the median (sum of absolute errors by sum of
demand) and pinball loss of the 90 % quantile (on the same scale), per series and horizon, then averaged. Coverage
counts outcomes at or under the 90 % quantile. Many series stand still, and an outcome exactly at the quantile may be
counted on either side: so a series is outside of the band only when both counts are. AutoETS and LightGBM are fitted
anew every --refit-every origins; in between they see all new values. Who has used --peer-cpu-s seconds on a series is
not fitted anew any more, which is said.

Bars: on average over all series and horizons at least as good as the best peer; on no series (mean over its horizons)
more than 2 % worse than persistence; coverage between 85 and 95 %; less than 10 ms of CPU for an update with its
forecast. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bars import Bar, show
from forecasting.load import Array, JobColumns, Named, read_jobs, read_table
from forecasting.peers import Task, available

from tradewind.autoscaler.forecast import Forecaster, Step

OURS = "ours"
DAY_S = 86400.0
WORSE = 1.02
BAND = (0.85, 0.95)
LIMIT_MS = 10.0


@dataclass(frozen=True, slots=True)
class Score:
    """One forecaster on one series, by horizon."""

    wape: Array
    pinball: Array
    under: Array  # share of outcomes under the 90 % quantile
    covered: Array  # under or at it


def ours(task: Task) -> tuple[Array, list[float], str]:
    """Answers like a peer's, the CPU milliseconds of each update and forecast, and the models in use at the end."""
    step_s = float(task.times_s[1] - task.times_s[0])
    forecaster = Forecaster(step_s, [horizon * step_s for horizon in task.horizons])
    answers, took_ms = np.zeros((len(task.origins), len(task.horizons), 2)), []
    for row, (at_s, value) in enumerate(zip(task.times_s, task.values, strict=True), start=-task.origins.start):
        began_s = time.process_time()
        forecaster.add(Step(float(at_s), float(value)))
        forecast = forecaster.forecast()
        took_ms.append((time.process_time() - began_s) * 1000.0)
        if 0 <= row < len(answers):
            answers[row] = [(outlook.p50, outlook.p90) for outlook in forecast.outlooks]
    models = "; ".join(f"{each.horizon_s / step_s:g}: {each.model}" for each in forecast.outlooks)
    return answers, took_ms, models


def score(task: Task, answers: Array) -> Score:
    origins = np.array(task.origins)
    actual = np.stack([task.values[origins + horizon] for horizon in task.horizons], axis=1)
    total = actual.sum(axis=0)
    total[total == 0.0] = np.nan
    error = actual - answers[:, :, 1]
    return Score(
        wape=np.abs(actual - answers[:, :, 0]).sum(axis=0) / total,
        pinball=np.maximum(0.9 * error, -0.1 * error).sum(axis=0) / total,
        under=(error < 0.0).mean(axis=0),
        covered=(error <= 0.0).mean(axis=0),
    )


def task_of(
    series: Named, horizons: tuple[int, ...], step_s: float, refit_every: int, budget_s: float = float("inf")
) -> Task | None:
    day = max(round(DAY_S / step_s), 1)
    origins = range(7 * day, len(series.values) - max(horizons))
    if len(origins) < day:
        return None
    return Task(series.times_s, series.values, horizons, origins, day, refit_every, budget_s)


def show_scores(name: str, scores: Mapping[str, Score], horizons: Sequence[int], models: str) -> None:
    print(f"\n{name}\n  used at the end: {models}")
    for column, horizon in enumerate(horizons):
        cells = "  ".join(
            f"{who} {each.wape[column]:.3f}/{each.pinball[column]:.4f}/{each.covered[column]:.0%}"
            for who, each in scores.items()
        )
        print(f"  {horizon} ahead, WAPE/P90 pinball/coverage: {cells}")


def mean_of(results: Sequence[Mapping[str, Score]], field: str) -> dict[str, float]:
    """By forecaster, over all series and horizons in which something was wanted."""
    return {who: float(np.nanmean([getattr(each[who], field) for each in results])) for who in results[0]}


def best_peer_bar(name: str, means: dict[str, float]) -> Bar:
    own, peers = means[OURS], {who: value for who, value in means.items() if who != OURS}
    best = min(peers.values())
    return Bar(name, own, peers, best, own / best, "<= 1 x the best peer", own <= best)


def worst_bar(name: str, results: Sequence[Mapping[str, Score]], field: str) -> Bar:
    """The series on which we lose most against persistence."""
    means = [
        (float(np.nanmean(getattr(each[OURS], field))), float(np.nanmean(getattr(each["persistence"], field))))
        for each in results
    ]
    own, base = max((pair for pair in means if pair[1] > 0), key=lambda pair: pair[0] / pair[1], default=(0.0, 1.0))
    return Bar(name, own, {"persistence": base}, base * WORSE, own / base, f"<= {WORSE} x", own <= WORSE * base)


def coverage_bars(results: Sequence[Mapping[str, Score]]) -> list[Bar]:
    means = mean_of(results, "covered")
    own = means.pop(OURS)
    goal = f"{BAND[0]:.0%} to {BAND[1]:.0%}"
    inside = [bool(each[OURS].under.mean() <= BAND[1] and each[OURS].covered.mean() >= BAND[0]) for each in results]
    share = sum(inside) / len(inside)
    return [
        Bar("coverage of P90, mean", own, means, BAND[1], own / 0.9, goal, BAND[0] <= own <= BAND[1]),
        Bar("share of series with P90 coverage in the band", share, {}, 1.0, share, f"1: each {goal}", share == 1.0),
    ]


def bars_of(
    results: Sequence[Mapping[str, Score]], took_ms: Sequence[float], peers_ms: Mapping[str, float] | None = None
) -> list[Bar]:
    """`took_ms` are ours, one for each step; the peers' are means over all origins, fits included."""
    cost_ms = float(np.median(took_ms))
    return [
        best_peer_bar("WAPE, mean over series and horizons", mean_of(results, "wape")),
        best_peer_bar("P90 pinball, mean over series and horizons", mean_of(results, "pinball")),
        worst_bar("WAPE on our worst series", results, "wape"),
        worst_bar("P90 pinball on our worst series", results, "pinball"),
        *coverage_bars(results),
        Bar(
            "update and forecast of one series, ms of CPU",
            cost_ms,
            dict(peers_ms or {}),
            LIMIT_MS,
            cost_ms / LIMIT_MS,
            "< 10",
            cost_ms < LIMIT_MS,
        ),
    ]


def default_set(folder: Path, step_s: float) -> list[Named]:
    """Helios, MS-ITP, Philly, ServeGen, as far as they are there."""
    found: list[Named] = []
    helios, servegen = folder / "compact/helios_earth_vc_hourly.csv", folder / "compact/servegen_rate.csv"
    if helios.exists():
        found += read_table(helios, "time", ("running_gpu_num", "pending_gpu_num"), "vc", step_s)
    if servegen.exists():
        found += read_table(servegen, "t", ("total_rps",), "model", step_s)
    for path in (*sorted(folder.glob("jobs_ms_itp/raw__*.csv")), *sorted(folder.glob("jobs_philly/*.csv"))):
        found += read_jobs(path, JobColumns(), step_s)
    return found


def read(options: argparse.Namespace) -> list[Named]:
    found: list[Named] = []
    for path in options.series:
        if not (options.time and options.column):
            raise SystemExit("--series needs --time and --column: which columns are they?")
        found += read_table(path, options.time, options.column, options.group, options.step)
    columns = JobColumns(options.submit, options.duration, options.gpus, options.group, options.end)
    for path in options.jobs:
        found += read_jobs(path, columns, options.step)
    if options.data:
        found += default_set(options.data, options.step)
    skipped = [each for each in found if any(word in each.name for word in options.skip)]
    return (
        skipped
        if options.only_skipped
        else [each for each in found if all(word not in each.name for word in options.skip)]
    )


def parse_arguments(given: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series", type=Path, action="append", default=[], help="CSV with one row per time")
    parser.add_argument("--time", default="", help="its time column: seconds or ISO dates")
    parser.add_argument("--column", action="append", default=[], help="a column to forecast; may be given again")
    parser.add_argument("--group", default="", help="a column that tells series apart")
    parser.add_argument("--jobs", type=Path, action="append", default=[], help="CSV with one row per job")
    parser.add_argument("--submit", default="", help="its columns, where they are not found by themselves")
    parser.add_argument("--duration", default="")
    parser.add_argument("--end", default="", help="instead of --duration: when a job ended")
    parser.add_argument("--gpus", default="")
    parser.add_argument("--data", type=Path, help="folder with the default set")
    parser.add_argument("--skip", action="append", default=[], help="leave out series whose name contains this")
    parser.add_argument("--only-skipped", action="store_true", help="take those alone: a hold-out, reported apart")
    parser.add_argument("--horizons", default="1,2,6", help="steps ahead (default 1,2,6)")
    parser.add_argument("--step", type=float, default=3600.0, help="seconds of a step (default 3600)")
    parser.add_argument(
        "--refit-every", type=int, default=96, help="origins between two fits of the peers (default 96)"
    )
    parser.add_argument(
        "--peer-cpu-s", type=float, default=60.0, help="CPU seconds of one peer on one series (default 60)"
    )
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(given)


def main() -> int:
    options = parse_arguments()
    horizons = tuple(sorted({int(part) for part in options.horizons.split(",")}))
    peers, missing = available()
    series = read(options)
    tasks = {
        each.name: task_of(each, horizons, options.step, options.refit_every, options.peer_cpu_s) for each in series
    }
    usable = {name: task for name, task in tasks.items() if task is not None}
    if not usable:
        print(
            "no series to forecast: give --series, --jobs or --data, with at least eight days of data", file=sys.stderr
        )
        return 0 if not (options.series or options.jobs or options.data) else 2
    results, took_ms = [], []
    peers_s = dict.fromkeys(peers, 0.0)
    for name, task in usable.items():
        answers, times_ms, models = ours(task)
        took_ms += times_ms
        scores = {OURS: score(task, answers)}
        for who, peer in peers.items():
            began_s = time.process_time()
            scores[who] = score(task, peer(task))
            peers_s[who] += time.process_time() - began_s
        results.append(scores)
        if not options.json:
            show_scores(name, scores, horizons, models)
    for line in (*missing, *notes_of(tasks, options), f"ours: 95 % within {np.quantile(took_ms, 0.95):.1f} ms of CPU"):
        print(line, file=sys.stderr)
    origins = sum(len(task.origins) for task in usable.values())
    peers_ms = {who: spent_s * 1000.0 / origins for who, spent_s in peers_s.items()}
    return show(bars_of(results, took_ms, peers_ms), options.json)


def notes_of(tasks: Mapping[str, Task | None], options: argparse.Namespace) -> list[str]:
    usable = {name: task for name, task in tasks.items() if task is not None}
    short = [f"{name}: left out, less than eight days" for name in tasks if name not in usable]
    capped = [f"{name}: {', '.join(sorted(task.capped))} capped" for name, task in usable.items() if task.capped]
    rules = f"refitted every {options.refit_every} origins, at most {options.peer_cpu_s:g} s of CPU on a series"
    return [*short, *capped, f"{len(usable)} series; AutoETS and LightGBM are {rules}"]


if __name__ == "__main__":
    sys.exit(main())
