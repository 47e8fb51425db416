"""What does a deadline cost? Jobs with one, on recorded spot availability: ours, others, and the omniscient optimum.

    python benchmarks/spot_contract.py --traces DIR [--deadline-h 52,60,70,92] [--work-h 48] [--restart-h 0.05,0.2]
    python benchmarks/spot_contract.py --markets DIR/a.json DIR/b.json ...   the job may move between these markets
    python benchmarks/spot_contract.py              traces that are made up from --seed

A trace is {"metadata": {"gap_seconds": 300}, "data": [1, 0, ...]}: machines that could be had in each tick; the job
needs one. A job of --work-h hours starts every --every-h hours of a trace, in every window where the whole deadline
still fits in; traces that are shorter are named.
On-demand costs 1, spot --spot-price; a new machine costs --restart-h without progress, paid. All policies meet the same
world (contracting/world.py). Ours starts each job without any knowledge of the market.

    on-demand         from start to end
    greedy            spot or nothing, until only on-demand can keep the deadline
    uniform-progress  the published policy (NSDI 2024), by its rules
    optimum           knows the whole trace: dynamic program, exact

Bars: no deadline missed; the mean over all settings of (mean cost / mean cost of the optimum), and the mean over all
jobs of cost / optimum, at most 1.08 (with --markets 1.15); in no setting dearer than Uniform Progress on the mean; a
decision in at most 5 ms of CPU time, on the mean and at 99 %. --calibration also asks, at the start of each job and in
its middle, how likely certain budgets are to be kept, and shows how many were. --json prints one line for each setting
and one for each bar. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bars import Bar, show
from contracting.calibration import Asking, table
from contracting.optimum import optimum
from contracting.ours import Ours
from contracting.peers import Greedy, OnDemand, UniformProgress
from contracting.world import Chooser, Flags, Task, play

MAX_MS = 5.0
LATE_S = 1e-3
MAX_ERROR = 0.1
PEERS: dict[str, Callable[[Task], Chooser]] = {
    "on-demand": OnDemand,
    "greedy": Greedy,
    "uniform-progress": UniformProgress,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """One market, or several over the same time."""

    name: str
    gap_s: float
    has_spot: Flags  # [market, tick]


@dataclass(frozen=True, slots=True)
class Setting:
    deadline_h: float
    restart_h: float
    costs: dict[str, list[float]]  # by policy, one for each job
    misses: dict[str, int]

    def ratio(self, policy: str) -> float:
        return float(np.mean(self.costs[policy]) / np.mean(self.costs["optimum"]))

    def ratios(self, policy: str) -> list[float]:
        return [cost / least for cost, least in zip(self.costs[policy], self.costs["optimum"], strict=True)]


def read(path: Path) -> Trace:
    """Raises ValueError where it is no trace."""
    found = json.loads(path.read_text())
    gap_s, counts = float(found["metadata"]["gap_seconds"]), np.array(found["data"], float)
    if (
        counts.ndim != 1
        or not len(counts)
        or not np.isfinite(counts).all()
        or counts.min() < 0
        or not gap_s > 0
        or gap_s % 1.0
    ):
        raise ValueError(
            f"{path}: needs gap_seconds above 0 (whole ones: the optimum is exact), and counts of machines"
        )
    return Trace(path.stem, gap_s, (counts >= 1)[None])


def together(traces: Sequence[Trace]) -> Trace:
    """Side by side from the first tick of each, as long as all last, in the shortest of their ticks."""
    gap_s = min(trace.gap_s for trace in traces)
    ticks = int(min(trace.has_spot.shape[1] * trace.gap_s for trace in traces) / gap_s)
    at_s = np.arange(ticks) * gap_s
    rows = [trace.has_spot[0][(at_s / trace.gap_s).astype(int)] for trace in traces]
    return Trace(f"{len(traces)} markets", gap_s, np.array(rows))


def made_up(seed: int, count: int = 3, days: float = 20.0, gap_s: float = 600.0) -> list[Trace]:
    """Spells of both kinds, most of them short, a few long."""
    random = np.random.default_rng(seed)
    found = []
    for number in range(count):
        flags: list[bool] = []
        means_h = random.uniform(1.0, 10.0), random.uniform(0.5, 4.0)
        while len(flags) * gap_s < days * 86400.0:
            is_up = not flags or not flags[-1]
            mean_h = means_h[0 if is_up else 1] * (0.1 if random.random() < 0.5 else 2.0)
            flags += [is_up] * max(1, round(random.exponential(mean_h) * 3600.0 / gap_s))
        found.append(Trace(f"made up {number}", gap_s, np.array([flags])))
    return found


def measure(traces: Sequence[Trace], deadline_h: float, restart_h: float, options: argparse.Namespace) -> Setting:
    costs: dict[str, list[float]] = {name: [] for name in (*PEERS, "ours", "optimum")}
    misses = dict.fromkeys((*PEERS, "ours"), 0)
    for trace in traces:
        restart_s = float(round(restart_h * 3600.0))
        task = Task(options.work_h * 3600.0, deadline_h * 3600.0, restart_s, trace.gap_s, options.spot_price)
        found = windows(trace, task, options.every_h)
        if not found:
            print(f"left out, shorter than {deadline_h:g} h: {trace.name}", file=sys.stderr)
        for window in found:
            ours = Ours(task, len(window))
            asking = Asking(ours)
            players = {name: make(task) for name, make in PEERS.items()}
            for name, player in {**players, "ours": asking if options.calibration else ours}.items():
                run = play(task, window, player)
                costs[name].append(run.cost)
                misses[name] += run.finish_s > task.deadline_s + LATE_S
            costs["optimum"].append(optimum(task, window))
            options.took_s.extend(ours.took_s)
            options.outcomes.extend(asking.outcomes(run))  # ours was the last
    return Setting(deadline_h, restart_h, costs, misses)


def windows(trace: Trace, task: Task, every_h: float) -> list[Flags]:
    ticks = math.ceil(task.deadline_s / trace.gap_s)
    step = max(1, round(every_h * 3600.0 / trace.gap_s))
    return [trace.has_spot[:, at : at + ticks] for at in range(0, trace.has_spot.shape[1] - ticks + 1, step)]


def tell(setting: Setting, as_json: bool) -> None:
    jobs = len(setting.costs["optimum"])
    if as_json:
        shown = {
            "deadline_h": setting.deadline_h,
            "restart_h": setting.restart_h,
            "jobs": jobs,
            "mean_cost_h": {name: round(float(np.mean(costs)) / 3600.0, 3) for name, costs in setting.costs.items()},
            "ratio": {name: round(setting.ratio(name), 4) for name in (*PEERS, "ours")},
            "missed": setting.misses,
        }
        print(json.dumps(shown), flush=True)
        return
    ratios = "  ".join(f"{name} {setting.ratio(name):.3f}" for name in (*PEERS, "ours"))
    hours = np.mean(setting.costs["optimum"]) / 3600.0
    missed = ", ".join(f"{name} {number}" for name, number in setting.misses.items() if number) or "none"
    print(
        f"deadline {setting.deadline_h:g} h, restart {setting.restart_h:g} h: {jobs} jobs, optimum {hours:.2f} h of "
        f"on-demand; x optimum: {ratios}; missed: {missed}",
        file=sys.stderr,
        flush=True,
    )


def bars_of(settings: Sequence[Setting], took_s: Sequence[float], most: float) -> list[Bar]:
    ratio = float(np.mean([setting.ratio("ours") for setting in settings]))
    each = {
        name: float(np.mean([ratio for setting in settings for ratio in setting.ratios(name)]))
        for name in (*PEERS, "ours")
    }
    each_peer = {name: each[name] for name in PEERS}
    peers = {name: float(np.mean([setting.ratio(name) for setting in settings])) for name in PEERS}
    missed = float(sum(setting.misses["ours"] for setting in settings))
    margins = [setting.ratio("ours") / setting.ratio("uniform-progress") for setting in settings]
    times_ms = {"mean": 1e3 * float(np.mean(took_s)), "p99": 1e3 * float(np.quantile(took_s, 0.99))}
    peers_missed = {name: float(sum(setting.misses[name] for setting in settings)) for name in PEERS}
    return [
        Bar("deadlines missed", missed, peers_missed, 0.0, missed, "0", missed == 0),
        Bar("cost / optimum, mean of all settings", ratio, peers, most, ratio, f"<= {most}", ratio <= most),
        Bar(
            "cost / optimum, mean of all jobs",
            each["ours"],
            each_peer,
            most,
            each["ours"],
            f"<= {most}",
            each["ours"] <= most,
        ),
        Bar("cost / Uniform Progress, worst setting", max(margins), {}, 1.0, max(margins), "<= 1", max(margins) <= 1.0),
        Bar(
            "CPU time of a decision, ms (mean; p99 beside)",
            times_ms["mean"],
            {"p99": times_ms["p99"], "median": 1e3 * float(np.median(took_s)), "longest": 1e3 * max(took_s)},
            MAX_MS,
            max(times_ms.values()) / MAX_MS,
            f"<= {MAX_MS:g} ms",
            max(times_ms.values()) <= MAX_MS,
        ),
    ]


def calibration(options: argparse.Namespace) -> list[Bar]:
    if not options.outcomes:
        return []
    lines, error = table(options.outcomes)
    print("\n".join(lines), file=sys.stderr)
    name = "calibration: |stated - kept|, mean of all cases"
    return [Bar(name, error, {}, MAX_ERROR, error, f"<= {MAX_ERROR}", error <= MAX_ERROR)]


def numbers(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--traces", type=Path, help="a folder of traces (*.json), each a market of its own, or one file"
    )
    parser.add_argument(
        "--markets", type=Path, nargs="+", help="traces that are markets of one job; or a folder of them"
    )
    parser.add_argument("--deadline-h", type=numbers, default=[52.0, 60.0, 70.0, 92.0])
    parser.add_argument("--work-h", type=float, default=48.0)
    parser.add_argument("--restart-h", type=numbers, default=[0.05, 0.2])
    parser.add_argument("--spot-price", type=float, default=0.3, help="on-demand is 1")
    parser.add_argument("--every-h", type=float, default=72.0, help="hours of a trace from job to job")
    parser.add_argument("--calibration", action="store_true", help="also the table of stated probabilities")
    parser.add_argument("--seed", type=int, default=1, help="of traces that are made up")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments, argparse.Namespace(took_s=[], outcomes=[]))


def traces_of(options: argparse.Namespace) -> list[Trace]:
    if options.markets:
        return [together([read(path) for path in files(options.markets)])]
    if options.traces:
        return [read(path) for path in files([options.traces])]
    return made_up(options.seed)


def files(given: Sequence[Path]) -> list[Path]:
    found = [path for each in given for path in (sorted(each.glob("*.json")) if each.is_dir() else [each])]
    if not found:
        raise SystemExit(f"no traces (*.json) in {', '.join(map(str, given))}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    traces = traces_of(options)
    settings = []
    for deadline_h in options.deadline_h:
        for restart_h in options.restart_h:
            setting = measure(traces, deadline_h, restart_h, options)
            if not setting.costs["optimum"]:
                raise SystemExit(f"no trace is as long as the deadline of {deadline_h:g} h")
            tell(setting, options.json)
            settings.append(setting)
    bars = bars_of(settings, options.took_s, 1.15 if options.markets else 1.08)
    return show([*bars, *calibration(options)], options.json)


if __name__ == "__main__":
    sys.exit(main())
