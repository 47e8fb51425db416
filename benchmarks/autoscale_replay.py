"""Does the forecast spare waiting, and what does that cost? A job trace, replayed through the policies of the loop.

    python benchmarks/autoscale_replay.py --jobs FILE [--submit COL --duration COL --gpus COL] [--group COL]
    python benchmarks/autoscale_replay.py             a trace that is made up from --seed

Each job asks for its GPUs at once and holds them for its duration. Nodes have --gpus-per-node GPUs, boot for --boot-s
(paid), and are let go when they have been idle for --idle-s. There is no limit on nodes unless --max-nodes sets one.
Ticks lie --tick-s apart. Dollars count from each launch until the last submission of the trace.

    reactive      nothing is bought before it is asked for
    head-room N   as many nodes as are wanted, and N more (or, of nodes with several GPUs, a part of one), at all times;
                  others are let go after --idle-s, or (marked "quick") after as long as a boot takes, or ("quickest")
                  as soon as ours lets go of nodes: the best one counts
    ours          buys ahead and lets go by the forecast of growth, at the default price of waiting
    clairvoyant   knows which jobs will be submitted until a node that is launched now has booted, and a tick longer

All four are the same policies (`make_plan`) with different knowledge. --factors gives further prices of waiting (in
prices of the node), which show our own curve, from reactive on. Curves are read on straight lines between any two of
their points: who takes each of two policies for a part of the time lies there.

Bars, for each trace: at the default price, less wait than the head-room curve has at our dollars (goal: at most 0.9 of
it); and our curve, at 5 % more dollars than reactive, closes at least half of the gap between reactive and clairvoyant.
Where the clairvoyant himself needs more than 5 %, the second bar does not apply, and this is said. Exit status 1 where
a bar does not hold.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
        if self.ours.uusd > max(each.uusd for each in (self.reactive, *self.curve)):
            return 0.0
        return wait_at(self.ours.uusd, (self.reactive, *self.curve))

    @property
    def is_in_reach(self) -> bool:
        """Whether 5 % more dollars are enough for whoever knows the future."""
        return self.clairvoyant.uusd <= EXTRA * self.reactive.uusd

    @property
    def wait_in_budget_s(self) -> float:
        """Of our curve at 5 % more dollars than reactive. Between two of its points lies who takes each for a part of
        the time."""
        return wait_at(EXTRA * self.reactive.uusd, (self.reactive, self.ours, *self.others))

    def gap_closed(self, wait_s: float) -> float:
        gap = self.reactive.mean_wait_s - self.clairvoyant.mean_wait_s
        return (self.reactive.mean_wait_s - wait_s) / gap if gap > 0 else 1.0


def wait_at(uusd: float, outcomes: Sequence[Outcome]) -> float:
    """The least mean wait for so many dollars. Any two outcomes may be mixed: who takes each of two policies for a part
    of the time lies on the straight line between them. Where all cost more, the cheapest counts."""
    points = sorted((float(each.uusd), each.mean_wait_s) for each in outcomes)
    below = [point for point in points if point[0] <= uusd] or points[:1]
    above = [point for point in points if point[0] > uusd]
    mixed = [w + (uusd - spent) * (v - w) / (more - spent) for spent, w in below for more, v in above if spent <= uusd]
    return min(*(wait_s for _, wait_s in below), *mixed, math.inf)


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
    rooms = head_rooms(options)
    quick = replace(scenario, settings=replace(scenario.settings, spare_timeout_s=options.boot_s))
    curve = [run(f"head-room {n:g}", plain, HeadRoom(n * options.gpus_per_node)) for n in rooms]
    for how, where in (("quick", quick), ("quickest", scenario)):
        curve += [run(f"head-room {n:g}, {how}", where, HeadRoom(n * options.gpus_per_node)) for n in (0.0, *rooms)]
    others = []
    for factor in options.factors:
        other = replace(scenario, settings=replace(scenario.settings, waiting_factor=factor))
        others.append(run(f"ours, waiting x {factor:g}", other, Learned(other.settings)))
    ours = run(f"ours (x {scenario.settings.waiting_factor:g})", scenario, Learned(scenario.settings))
    clairvoyant = run("clairvoyant", quick, Clairvoyant(trace.jobs, scenario.key, reach_s, options.tick_s))
    found = Result(trace.name, reactive, tuple(curve), ours, tuple(others), clairvoyant)
    for note in notes_of(found, trace):
        print(f"  {note}", file=sys.stderr)
    return found


def head_rooms(options: argparse.Namespace) -> list[float]:
    """In nodes. Where a node has several GPUs, parts of one as well: so many GPUs are free at all times."""
    parts = [gpus / options.gpus_per_node for gpus in (1, 2, 4, 6) if gpus < options.gpus_per_node]
    return [*parts, *map(float, options.head_room)]


def notes_of(result: Result, trace: Trace) -> list[str]:
    span_h = (trace.jobs[-1].submit_s - trace.jobs[0].submit_s) / 3600.0
    nodes = result.reactive.node_h / span_h if span_h else 0.0
    found = [
        f"reactive has {nodes:.1f} nodes on average: 5 % more dollars are {0.05 * nodes:.2f} of a node at all times"
    ]
    if not result.is_in_reach:
        more = result.clairvoyant.uusd / max(result.reactive.uusd, 1)
        found.append(f"the clairvoyant himself costs {more:.3f} x: half of the gap for 5 % is not asked of us")
    return found


def tell(name: str, outcome: Outcome, reactive: Outcome) -> None:
    wait, p90 = outcome.mean_wait_s, outcome.wait_quantile_s(0.9)
    more = outcome.uusd / reactive.uusd if reactive.uusd else 1.0
    dollars = f"${outcome.uusd / USD:,.0f} ({more:.3f} x reactive)"
    print(
        f"  {name:25} wait mean {wait:6.0f} s, p90 {p90:6.0f} s  {dollars}  {outcome.launches} nodes", file=sys.stderr
    )


def bars_of(result: Result) -> list[Bar]:
    ours, curve = result.ours, result.head_room_wait_s
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
    return [below, _closed_bar(result)] if result.is_in_reach else [below]


def _closed_bar(result: Result) -> Bar:
    share = result.gap_closed(result.wait_in_budget_s)
    head_room_s = wait_at(EXTRA * result.reactive.uusd, (result.reactive, *result.curve))
    more = result.ours.uusd / max(result.reactive.uusd, 1)
    return Bar(
        f"{result.name}: share of the gap to clairvoyant that is closed at {EXTRA} x the dollars",
        share,
        {
            "head-room": result.gap_closed(head_room_s),
            f"at the default price of waiting ({more:.3f} x)": result.gap_closed(result.ours.mean_wait_s),
        },
        HALF,
        share,
        f">= {HALF}",
        share >= HALF,
    )


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
        "--factors",
        type=float,
        nargs="*",
        default=[4.0, 8.0, 30.0, 60.0],
        help="further prices of waiting, in node prices",
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
