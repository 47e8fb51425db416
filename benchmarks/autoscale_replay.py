"""Does the forecast spare waiting, and what does that cost? A job trace, replayed through the policies of the loop.

    python benchmarks/autoscale_replay.py --jobs FILE [--submit COL --duration COL --gpus COL] [--group COL]
    python benchmarks/autoscale_replay.py             a trace that is made up from --seed

Each job asks for its GPUs at once and holds them for its duration. Nodes have --gpus-per-node GPUs, boot for --boot-s
(paid), and are let go when they have been idle for --idle-s. There is no limit on nodes unless --max-nodes sets one.
Ticks lie --tick-s apart. Dollars count from each launch until the last submission of the trace.

    reactive      nothing is bought before it is asked for
    head-room N   as many nodes as are wanted, and N more, at all times; others are let go after --idle-s, or (marked
                  "quick") after as long as a boot takes, as ours does: the better one counts
    ours          buys ahead and lets go by the forecast of growth, at the default price of waiting
    clairvoyant   knows which jobs will be submitted until a node that is launched now has booted, and a tick longer

All four are the same policies (`make_plan`) with different knowledge. --factors gives further prices of waiting (in
prices of the node), which show our own curve. Bars, for each trace: at the default price, less wait than the head-room
curve has at our dollars (goal: at most 0.9 of it); and, on our curve within 5 % more dollars than reactive, at least
half of the gap between reactive and clairvoyant is closed. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from bars import Bar, show
from forecasting.load import JobColumns
from replaying.traces import Trace, read_traces

from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate import (
    Clairvoyant,
    Foresight,
    HeadRoom,
    Learned,
    Nothing,
    Outcome,
    Scenario,
    made_up,
    replay,
)
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.model import Capacity, Market, Offer

CLEARLY = 0.9
EXTRA = 1.05
HALF = 0.5
USD = 1_000_000


@dataclass(frozen=True, slots=True)
class Result:
    """All policies on one trace."""

    name: str
    reactive: Outcome
    curve: tuple[Outcome, ...]
    ours: Outcome  # at the default price of waiting
    others: tuple[Outcome, ...]  # ours at other prices
    clairvoyant: Outcome

    @property
    def head_room_wait_s(self) -> float:
        """Of the head-room curve at our dollars. Where we spend less than any point of it, its first one counts; beyond
        its last one nothing is known (0, so the bar does not hold: give more --head-room)."""
        points = sorted((each.uusd, each.mean_wait_s) for each in (self.reactive, *self.curve))
        best = np.minimum.accumulate([wait_s for _, wait_s in points])
        return float(np.interp(self.ours.uusd, [uusd for uusd, _ in points], best, right=0.0))

    @property
    def within_budget(self) -> Outcome:
        """Of ours, the one with the least wait that costs at most 5 % more than reactive; otherwise the cheapest."""
        mine = (self.ours, *self.others)
        allowed = [each for each in mine if each.uusd <= EXTRA * self.reactive.uusd]
        return min(allowed, key=lambda each: each.mean_wait_s) if allowed else min(mine, key=lambda each: each.uusd)

    def gap_closed(self, outcome: Outcome) -> float:
        gap = self.reactive.mean_wait_s - self.clairvoyant.mean_wait_s
        return (self.reactive.mean_wait_s - outcome.mean_wait_s) / gap if gap > 0 else 1.0


def scenario_of(options: argparse.Namespace) -> Scenario:
    offer = Offer(
        market=Market("replay", "region", "zone", f"{options.gpus_per_node}-gpu", Capacity.ON_DEMAND),
        vcpus=8.0 * options.gpus_per_node,
        memory_gib=64.0 * options.gpus_per_node,
        accelerator="GPU",
        accelerator_count=float(options.gpus_per_node),
        price_uusd_per_h=round(options.usd_per_gpu_h * options.gpus_per_node * USD),
    )
    settings = LoopSettings(
        fleet="replay",
        buy_ahead=True,
        limits=Limits(max_nodes=options.max_nodes, launches_per_minute=None),
        idle_timeout_s=options.idle_s,
        usual_boot_s=options.boot_s,
    )
    return Scenario(Shape.of({"GPU": 1.0}), (offer,), settings, options.tick_s)


def replay_all(trace: Trace, options: argparse.Namespace) -> Result:
    scenario = scenario_of(options)
    plain = replace(scenario, settings=replace(scenario.settings, spare_timeout_s=scenario.settings.idle_timeout_s))
    reach_s = options.boot_s + options.tick_s

    def run(name: str, where: Scenario, foresight: Foresight) -> Outcome:
        outcome = replay(trace.jobs, where, foresight)
        tell(name, outcome, reactive if name != "reactive" else outcome)
        return outcome

    print(f"\n{trace.name}: {len(trace.jobs)} jobs", file=sys.stderr)
    reactive = run("reactive", plain, Nothing())
    curve = [run(f"head-room {n}", plain, HeadRoom(n * options.gpus_per_node)) for n in options.head_room]
    curve += [
        run(f"head-room {n}, quick", scenario, HeadRoom(n * options.gpus_per_node)) for n in (0, *options.head_room)
    ]
    others = []
    for factor in options.factors:
        other = replace(scenario, settings=replace(scenario.settings, waiting_factor=factor))
        others.append(run(f"ours, waiting x {factor:g}", other, Learned(other.settings)))
    ours = run(f"ours (x {scenario.settings.waiting_factor:g})", scenario, Learned(scenario.settings))
    clairvoyant = run("clairvoyant", scenario, Clairvoyant(trace.jobs, scenario.key, reach_s, options.tick_s))
    return Result(trace.name, reactive, tuple(curve), ours, tuple(others), clairvoyant)


def tell(name: str, outcome: Outcome, reactive: Outcome) -> None:
    wait, p90 = outcome.mean_wait_s, outcome.wait_quantile_s(0.9)
    more = outcome.uusd / reactive.uusd if reactive.uusd else 1.0
    dollars = f"${outcome.uusd / USD:,.0f} ({more:.3f} x reactive)"
    print(
        f"  {name:22} wait mean {wait:6.0f} s, p90 {p90:6.0f} s  {dollars}  {outcome.launches} nodes", file=sys.stderr
    )


def bars_of(result: Result) -> list[Bar]:
    ours, curve, best = result.ours, result.head_room_wait_s, result.within_budget
    more, share = best.uusd / max(result.reactive.uusd, 1), result.gap_closed(best)
    peers = {"reactive": result.reactive.mean_wait_s, "clairvoyant": result.clairvoyant.mean_wait_s}
    ratio = ours.mean_wait_s / curve if curve else 1.0
    below = Bar(
        f"{result.name}: mean wait at equal dollars, s",
        ours.mean_wait_s,
        {"head-room": curve, **peers},
        CLEARLY * curve,
        ratio,
        f"<= {CLEARLY} x head-room",
        ratio <= CLEARLY,
    )
    closed = Bar(
        f"{result.name}: share of the gap to clairvoyant that is closed, at {more:.3f} x the dollars",
        share,
        {"at the default price of waiting": result.gap_closed(ours)},
        HALF,
        share,
        f">= {HALF} for <= {EXTRA} x dollars",
        share >= HALF and more <= EXTRA,
    )
    return [below, closed]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--jobs", type=Path, action="append", default=[], help="CSV with one row per job; may be repeated"
    )
    parser.add_argument("--submit", default="", help="its columns, where they are not found by themselves")
    parser.add_argument("--duration", default="")
    parser.add_argument("--gpus", default="")
    parser.add_argument("--group", default="", help="a column that tells clusters apart; each is replayed alone")
    parser.add_argument("--only", default="", help="only traces whose name contains this")
    parser.add_argument("--skip-days", type=float, default=0.0, help="of the trace, left out at its begin")
    parser.add_argument("--days", type=float, default=14.0, help="of the trace that are replayed (default 14)")
    parser.add_argument("--boot-s", type=float, default=300.0)
    parser.add_argument("--idle-s", type=float, default=600.0)
    parser.add_argument("--tick-s", type=float, default=60.0)
    parser.add_argument("--gpus-per-node", type=int, default=1)
    parser.add_argument("--usd-per-gpu-h", type=float, default=1.0)
    parser.add_argument("--max-nodes", type=int)
    parser.add_argument("--head-room", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="nodes (default 1 2 4 8 16)")
    parser.add_argument(
        "--factors", type=float, nargs="*", default=[1.0, 4.0, 30.0], help="further prices of waiting, in node prices"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    columns = JobColumns(options.submit, options.duration, options.gpus, options.group)
    traces = [t for path in options.jobs for t in read_traces(path, columns, options.skip_days, options.days)]
    if not options.jobs:
        traces = [Trace(f"made up from seed {options.seed}", tuple(made_up(options.seed, options.days)))]
    traces = [trace for trace in traces if options.only in trace.name and trace.jobs]
    if not traces:
        print("no jobs to replay: look at --only, --skip-days and --days", file=sys.stderr)
        return 2
    return show([bar for trace in traces for bar in bars_of(replay_all(trace, options))], options.json)


if __name__ == "__main__":
    sys.exit(main())
