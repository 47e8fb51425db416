"""What does a budget change? Jobs with a deadline and a budget, on recorded spot availability (see spot_contract.py).

    python benchmarks/contract_budget.py --traces DIR [--deadline-h 52,70] [--restart-h 0.05,0.2] [--every-h 300]

Budgets are --factors x the cost that is stated at the start of each job for its deadline alone. A budget is hard: a job
that has used it stops. Each job is played twice: by the policy that knows of its budget, and by one that does not and
is stopped. Told are the shares of jobs that kept deadline and budget, that were done within the budget (late perhaps,
by --late x the deadline at most), and what was spent; and what was stated at the start as the chance of both, beside
what came. The last factor is an ample one: there, both must do the same.

Bars: done within the budget not less often than without knowledge of it, at each factor; ample budgets change nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bars import Bar, show
from contracting.calibration import table
from contracting.ours import USD, Ours
from contracting.world import NOTHING, Flags, Run, Sight, Task, play
from spot_contract import LATE_S, Trace, files, made_up, numbers, read

from tradewind.autoscaler.contract.outlook import outlook

PLAYS = 200
AMPLE = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One job with one budget, played twice."""

    factor: float
    deadline_s: float
    stated: float  # chance of both, before it began
    aware: Run
    blind: Run

    def kept(self, run: Run) -> bool:
        return run.finish_s <= self.deadline_s + LATE_S


def jobs(traces: Sequence[Trace], options: argparse.Namespace) -> Iterator[Job]:
    for deadline_h in options.deadline_h:
        for restart_h in options.restart_h:
            for trace in traces:
                restart_s = float(round(restart_h * 3600.0))
                task = Task(options.work_h * 3600.0, deadline_h * 3600.0, restart_s, trace.gap_s, options.spot_price)
                for window in windows(trace, task, options):
                    yield from played(task, window, [*options.factors, AMPLE])


def windows(trace: Trace, task: Task, options: argparse.Namespace) -> list[Flags]:
    """With time to be late in."""
    ticks = math.ceil(options.late * task.deadline_s / trace.gap_s)
    step = max(1, round(options.every_h * 3600.0 / trace.gap_s))
    return [trace.has_spot[:, at : at + ticks] for at in range(0, trace.has_spot.shape[1] - ticks + 1, step)]


def played(task: Task, window: Flags, factors: Sequence[float]) -> Iterator[Job]:
    expected = stated(task, window, None)[1]
    for factor in factors:
        budget = factor * expected
        aware, blind = (play(task, window, Ours(task, budget=known), budget) for known in (budget, None))
        yield Job(factor, task.deadline_s, stated(task, window, budget)[0], aware, blind)


def stated(task: Task, window: Flags, budget: float | None) -> tuple[float, float]:
    """Before the job begins: the chance of both, and the cost."""
    ours = Ours(task, budget=budget)
    ours.watch.see(0.0, window[:, 0].tolist())
    found = outlook(ours.view(Sight(0, 0.0, task.work_s, NOTHING, 0.0, window[:, 0])), PLAYS, seed=1)
    return found.chance, found.cost_uusd / USD * 3600.0


def row(factor: float, found: Sequence[Job]) -> dict[str, float]:
    def share(name: str, which: str) -> float:
        runs = [(job, getattr(job, name)) for job in found]
        return float(np.mean([job.kept(run) if which == "both" else math.isfinite(run.finish_s) for job, run in runs]))

    shares = {f"{which}_{name}": share(name, which) for which in ("both", "done") for name in ("blind", "aware")}
    spent = {
        f"spent_h_{name}": float(np.mean([getattr(job, name).cost for job in found])) / 3600.0
        for name in ("blind", "aware")
    }
    return {"factor": factor, "jobs": len(found), **shares, **spent}


def tell(line: dict[str, float], as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: round(value, 4) for name, value in line.items()}), flush=True)
        return
    print(
        "budget {factor:g} x expected, {jobs} jobs: both kept {both_blind:.1%} -> {both_aware:.1%}, done within it "
        "{done_blind:.1%} -> {done_aware:.1%}, spent {spent_h_blind:.2f} -> {spent_h_aware:.2f} h of on-demand".format(
            **line
        ),
        file=sys.stderr,
    )


def bars_of(lines: Sequence[dict[str, float]], ample: Sequence[Job]) -> list[Bar]:
    gains = [line["done_aware"] - line["done_blind"] for line in lines]
    changed = float(sum(job.aware != job.blind for job in ample))
    return [
        Bar("done within the budget: gain, worst factor", min(gains), {}, 0.0, min(gains), ">= 0", min(gains) >= 0.0),
        Bar("jobs with ample budgets that ran otherwise", changed, {}, 0.0, changed, "0", changed == 0.0),
    ]


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", type=Path, help="a folder of traces (*.json), or one; none: made up from --seed")
    parser.add_argument("--deadline-h", type=numbers, default=[52.0, 70.0])
    parser.add_argument("--restart-h", type=numbers, default=[0.05, 0.2])
    parser.add_argument("--factors", type=numbers, default=[0.6, 0.8, 1.0, 1.2])
    parser.add_argument("--work-h", type=float, default=48.0)
    parser.add_argument("--spot-price", type=float, default=0.3, help="on-demand is 1")
    parser.add_argument("--every-h", type=float, default=300.0, help="hours of a trace from job to job")
    parser.add_argument("--late", type=float, default=2.5, help="x the deadline: so long a job may take")
    parser.add_argument("--seed", type=int, default=1, help="of traces that are made up")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    traces = [read(path) for path in files([options.traces])] if options.traces else made_up(options.seed)
    found = list(jobs(traces, options))
    if not found:
        raise SystemExit(f"no trace is {options.late:g} times as long as a deadline")
    lines = [row(factor, [job for job in found if job.factor == factor]) for factor in options.factors]
    for line in lines:
        tell(line, options.json)
    told, _ = table([(job.stated, job.kept(job.aware)) for job in found if job.factor != AMPLE])
    print("\n".join(told), file=sys.stderr)
    return show(bars_of(lines, [job for job in found if job.factor == AMPLE]), options.json)


if __name__ == "__main__":
    sys.exit(main())
