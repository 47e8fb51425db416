"""Does the forecast spare waiting, and what does that cost? A job trace, replayed through the policies of the loop.

    python benchmarks/autoscale_replay.py --jobs FILE [--submit COL --duration COL --gpus COL] [--end COL] [--group COL]
    python benchmarks/autoscale_replay.py             a trace that is made up from --seed

Each job asks for its GPUs at once and holds them for its duration. Nodes have --gpus-per-node GPUs, boot for --boot-s
(paid), and are let go when they have been idle for --idle-s. There is no limit on nodes unless --max-nodes sets one.
Ticks lie --tick-s apart. Dollars count from each launch until the last submission of the trace.

    reactive      nothing is bought before it is asked for
    head-room N   as many nodes as are wanted, and N more (or, of nodes with several GPUs, a part of one), at all times;
                  others are let go after --idle-s, or (marked "quick") after as long as a boot takes, or ("quickest")
                  as soon as ours lets go of nodes: the best one counts
    after rises   with --hindsight: so many GPUs more than are wanted for so long after demand rose by two or more;
                  twelve such rules, of which the best two are chosen and mixed when all is over
    ours          buys ahead and lets go by the forecast of growth, at the default price of waiting
    clairvoyant   knows which jobs will be submitted until a node that is launched now has booted, and a tick longer

All are the same policies (`make_plan`) with different knowledge. --factors gives further prices of waiting (in
prices of the node), which show our own curve, from reactive on. Curves are read on straight lines between any two of
their points: who takes each of two policies for a part of the time lies there.

Bars, for each file: at the default price, less wait than the head-room curve has at our dollars (goal: at most 0.9 of
it); and our curve, at 5 % more dollars than reactive, closes at least half of the gap between reactive and clairvoyant.
Beside it stands what a constant head-room closes and, with --hindsight, what the best rules do, chosen when the trace
has been seen.
Where a file has several clusters (--group), each has a fleet of its own and is compared at its own dollars; what counts
is the wait of all jobs of the file. What each cluster has alone is told beside it. Where the clairvoyant himself needs
more than 5 %, the second bar does not apply, and this is said. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from bars import Bar, show
from forecasting.load import JobColumns
from replaying.results import EXTRA, Result, Whole
from replaying.traces import Trace, read_traces

from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate import (
    AfterRises,
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
HALF = 0.5
USD = 1_000_000
HEAD_ROOM, RULES, OURS, OTHERS = "head-room ", "after rises ", "ours (x ", "ours, waiting x "  # how names begin
RISE, WHILES_H, EXTRAS = 2, (0.5, 1.0, 4.0), (5, 10, 20, 40)  # GPUs, hours, GPUs


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


def policies_on(trace: Trace, options: argparse.Namespace) -> dict[str, tuple[Scenario, Foresight]]:
    """By name, in the order in which they are told."""
    scenario = scenario_of(options)
    settings, rooms = scenario.settings, head_rooms(options)
    plain = replace(scenario, settings=replace(settings, spare_timeout_s=settings.idle_timeout_s))
    quick = replace(scenario, settings=replace(settings, spare_timeout_s=options.boot_s))
    found: dict[str, tuple[Scenario, Foresight]] = {"reactive": (plain, Nothing())}
    for how, where in (("", plain), (", quick", quick), (", quickest", scenario)):
        for n in rooms if where is plain else (0.0, *rooms):
            found[f"{HEAD_ROOM}{n:g}{how}"] = where, HeadRoom(n * options.gpus_per_node)
    for while_h, extra in itertools.product(WHILES_H, EXTRAS) if options.hindsight else ():
        found[f"{RULES}{extra} for {while_h:g} h"] = quick, AfterRises(extra, while_h * 3600.0, RISE)
    for factor in options.factors:
        other = replace(scenario, settings=replace(settings, waiting_factor=factor))
        found[f"{OTHERS}{factor:g}"] = other, Learned(other.settings)
    found[f"{OURS}{settings.waiting_factor:g})"] = scenario, Learned(settings)
    reach_s = options.boot_s + options.tick_s
    found["clairvoyant"] = quick, Clairvoyant(trace.jobs, scenario.key, reach_s, options.tick_s)
    return found


def replay_all(trace: Trace, options: argparse.Namespace, pool: Executor) -> Result:
    print(f"\n{trace.name}: {len(trace.jobs)} jobs", file=sys.stderr)
    policies = policies_on(trace, options)
    longest_first = sorted(policies, key=lambda name: not isinstance(policies[name][1], Learned))
    runs = {name: pool.submit(replay, trace.jobs, *policies[name]) for name in longest_first}
    outcomes: dict[str, Outcome] = {}
    for name in policies:
        outcomes[name] = runs[name].result()
        tell(name, outcomes[name], outcomes["reactive"])
    room, rules, ours, others = (
        tuple(each for name, each in outcomes.items() if name.startswith(begin))
        for begin in (HEAD_ROOM, RULES, OURS, OTHERS)
    )
    found = Result(trace.name, outcomes["reactive"], room, rules, ours[0], others, outcomes["clairvoyant"])
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
    alone = Whole((result,))
    closed = alone.gap_closed(lambda each: each.wait_in_budget_s)
    found.append(f"alone: {alone.ratio:.3f} of the head-room's wait, {closed:.3f} of the gap closed")
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


def bars_of(name: str, whole: Whole) -> list[Bar]:
    """Of all traces of a file, each at its own dollars."""
    head_room_s = whole.mean(lambda each: each.head_room_wait_s)
    below = Bar(
        f"{name}: mean wait at equal dollars, s",
        whole.mean(lambda each: each.ours.mean_wait_s),
        {
            "head-room": head_room_s,
            "reactive": whole.mean(lambda each: each.reactive.mean_wait_s),
            "clairvoyant": whole.mean(lambda each: each.clairvoyant.mean_wait_s),
        },
        CLEARLY * head_room_s,
        whole.ratio,
        f"<= {CLEARLY} x head-room",
        whole.ratio <= CLEARLY,
    )
    return [below, _closed_bar(name, whole.in_reach)] if whole.in_reach.results else [below]


def _closed_bar(name: str, whole: Whole) -> Bar:
    share = whole.gap_closed(lambda each: each.wait_in_budget_s)
    in_hindsight = whole.gap_closed(lambda each: each.rules_in_budget_s)
    at_default = whole.gap_closed(lambda each: each.ours.mean_wait_s)
    return Bar(
        f"{name}: share of the gap to clairvoyant that is closed at {EXTRA} x the dollars",
        share,
        {
            "head-room": whole.gap_closed(lambda each: each.head_room_in_budget_s),
            **({"after rises, in hindsight": in_hindsight} if any(each.rules for each in whole.results) else {}),
            f"at the default price of waiting ({whole.dollars:.3f} x)": at_default,
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
    parser.add_argument("--end", default="", help="instead of --duration: when a job ended")
    parser.add_argument("--gpus", default="")
    parser.add_argument("--group", default="", help="a column that tells clusters apart: each has a fleet of its own")
    parser.add_argument("--only", default="", help="only traces whose name contains this")
    parser.add_argument("--skip-days", type=float, default=0.0, help="of the trace, left out at its begin")
    parser.add_argument("--days", type=float, default=28.0, help="of the trace that are replayed (default 28)")
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
    parser.add_argument("--hindsight", action="store_true", help="head-rooms after rises, too: half as long again")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count(), help="side by side (default: as many as cores)"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(arguments)


def read_files(options: argparse.Namespace) -> dict[str, list[Trace]]:
    """By file, the traces in it."""
    columns = JobColumns(options.submit, options.duration, options.gpus, options.group, options.end)
    found = {str(path): read_traces(path, columns, options.skip_days, options.days) for path in options.jobs}
    if not options.jobs:
        name = f"made up from seed {options.seed}"
        found = {name: [Trace(name, tuple(made_up(options.seed, options.days)))]}
    chosen = {
        file: [each for each in traces if options.only in each.name and each.jobs] for file, traces in found.items()
    }
    return {file: traces for file, traces in chosen.items() if traces}


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    files = read_files(options)
    if not files:
        print("no jobs to replay: look at --only, --skip-days and --days", file=sys.stderr)
        return 2
    bars: list[Bar] = []
    with ProcessPoolExecutor(options.processes) as pool:
        for file, traces in files.items():
            whole = Whole(tuple(replay_all(trace, options, pool) for trace in traces))
            bars += bars_of(Path(file).stem if len(traces) > 1 else traces[0].name, whole)
    return show(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
