"""How long does one decision take, and how dear is it? Ours and Ray's own schedulers on the same random cluster.

    python benchmarks/plan_scale.py --nodes 10000 --requests 10000 --scenario mixed --seed 1

A case is drawn from the seed: nodes that exist (most are full, some have room, some are idle or booting), requests that
wait, and offers of many clouds and regions, spot and on-demand. Ours is the full decision (`make_plan`, all policies,
with reasons and fallbacks). Ray's autoscalers (v1 and v2, as installed) get every offer as a node type; each runs in a
child process for at most --peer-limit seconds, and where it needs longer its time is that limit, marked ">".

The bound is a price below which no plan can serve the demand; it fits the scenario (labels, anti-affinity, bundles that
must lie together). Growth runs ours at a tenth, a third and the whole of the size.

With --cells N the same nodes and requests are N cells, with what a running loop knows: markets and the nodes of all
other cells (both put together within the time that is taken), recent prices, sizes that were seen, limits that count
the whole fleet. A loop of each cell decides by itself, in a thread of its own, so the slowest cell is one bar; they
share one controller, so the CPU of all of them together is another. Twice: with as many offers in every cell (a region
sells some hundred types, zones and ways to pay), and with those of its own regions, so that the cells share the offers
out. "From the record" is the same with the view built from the log's record, the clouds' lists and Ray's word, as at
every tick; --gone N puts N nodes that are gone on that record. The bound is not reckoned: cells share no nodes, and
choose by effective prices.

Scenarios: uniform (one shape), mixed (some 70 shapes, fractions of GPUs among them), gangs (half of the requests in
placement groups of all four strategies), labels (most requests with label selectors, some with alternatives).
"""

from __future__ import annotations

import argparse
import gc
import math
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from bars import Bar, show
from planning.bound import lower_bound
from planning.cases import SCENARIOS, Case, make_case
from planning.cells import Cell, cells_of
from planning.peers import Answer, ask, ray_v1, ray_v2

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.plan import make_plan

SPEEDUP, LIMIT_S, COST, MEMORY_MB, GROWTH = 100.0, 0.100, 1.02, 500.0, 1.3


def measure(case: Case, repeat: int) -> tuple[float, float, Plan]:
    """(median seconds, median CPU seconds, the plan). The two differ where other programs run beside; the bar is on the
    first all the same."""
    plan = make_plan(case.view)
    walls, cpus = [], []
    for _ in range(repeat):
        gc.collect()
        began_s, cpu_s = time.perf_counter(), time.process_time()
        plan = make_plan(case.view)
        walls.append(time.perf_counter() - began_s)
        cpus.append(time.process_time() - cpu_s)
    return statistics.median(walls), statistics.median(cpus), plan


def measure_cells(cells: Sequence[Cell], repeat: int) -> dict[str, float]:
    """In seconds, medians over the rounds. The cells decide one after the other. As in the controller, the collector
    does not look again and again at what was folded."""
    gc.collect()
    gc.freeze()
    rounds = []
    for _ in range(repeat + 1):  # the first warms up
        gc.collect()
        rounds.append([_decide(cell) for cell in cells])
    walls, cpus = (np.array([[each[part] for each in one] for one in rounds[1:]]) for part in (0, 1))
    whole_s = [sum(_from_record(cell) for cell in cells) for _ in range(repeat)]
    return {
        "from the record, CPU": statistics.median(whole_s),
        "slowest cell": float(np.median(walls.max(axis=1))),
        "slowest cell, CPU": float(np.median(cpus.max(axis=1))),
        "all cells": float(np.median(walls.sum(axis=1))),
        "all cells, CPU": float(np.median(cpus.sum(axis=1))),
    }


def _decide(cell: Cell) -> tuple[float, float]:
    began_s, cpu_s = time.perf_counter(), time.process_time()
    make_plan(cell.look())
    return time.perf_counter() - began_s, time.process_time() - cpu_s


def _from_record(cell: Cell) -> float:
    """Seconds of CPU from the record to the plan, the view included: what a tick thinks, without its calls."""
    cpu_s = time.process_time()
    make_plan(cell.look_at_record())
    return time.process_time() - cpu_s


def growth(options: argparse.Namespace, whole_s: float) -> list[tuple[int, int, float]]:
    """(nodes, requests, seconds), the smallest first."""
    found = []
    for part in (10, 3):
        nodes, requests = options.nodes // part, options.requests // part
        case = make_case(options.scenario, nodes, requests, options.offers, options.seed)
        found.append((nodes, requests, measure(case, options.repeat)[0]))
    return [*found, (options.nodes, options.requests, whole_s)]


def ratio_to(bound: float, price: float) -> float:
    """Nothing to buy is as cheap as can be."""
    return price / bound if bound > 0 else (1.0 if price == 0 else float("inf"))


def text_of(name: str, answer: Answer, case: Case, bound: float) -> str:
    if answer.capped:
        return f"  {name:8} > {answer.seconds:8.3f} s  (ended by the time limit)"
    price = answer.price_uusd_per_h(case.view.offers)
    count = sum(answer.launches.values())
    cost = f"{price / 1e6:10.2f} $/h, {ratio_to(bound, price):.3f} x the bound"
    return f"  {name:8}   {answer.seconds:8.3f} s  {cost}, {count} nodes, {answer.unserved} unserved"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--scenario", choices=SCENARIOS, default="mixed")
    parser.add_argument("--offers", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument(
        "--peer-limit", type=float, default=60.0, help="seconds for each of Ray's schedulers; 0: skip them"
    )
    parser.add_argument("--bound-limit", type=float, default=60.0, help="seconds for the lower bound, about")
    parser.add_argument("--cells", type=int, default=0, help="so many cells, with all that a loop knows; 0: one, bare")
    parser.add_argument("--gone", type=int, default=0, help="with --cells: so many nodes on record that are gone")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    case = make_case(options.scenario, options.nodes, options.requests, options.offers, options.seed)
    if options.cells > 0:
        return show(cells_bars(options, case), options.json)
    ours_s, cpu_s, plan = measure(case, options.repeat)
    price = float(sum(launch.offer.price_uusd_per_h or 0 for launch in plan.launches))
    memory_mb = peak_mb()
    sizes = growth(options, ours_s)
    peers = {}
    if options.peer_limit > 0:
        peers = {"ray-v1": ask(ray_v1, case, options.peer_limit), "ray-v2": ask(ray_v2, case, options.peer_limit)}
    bound = lower_bound(case, options.bound_limit)
    if not options.json:
        print(f"{options.scenario}: {options.nodes} nodes, {options.requests} requests, {options.offers} offers")
        print(f"  bound                {bound / 1e6:16.2f} $/h")
        cost = f"{price / 1e6:10.2f} $/h, {ratio_to(bound, price):.3f} x the bound"
        print(f"  {'ours':8}   {ours_s:8.3f} s  {cost}, {len(plan.launches)} nodes, {len(plan.holds)} held")
        print(f"             {cpu_s:8.3f} s of CPU; {memory_mb:.0f} MB")
        for name, answer in peers.items():
            print(text_of(name, answer, case, bound))
        for nodes, requests, seconds in sizes:
            print(f"  growth: {nodes} x {requests}: {seconds * 1e3:.1f} ms")
    answer = peers.get("ray-v2")
    if answer is not None and answer.capped and answer.seconds < SPEEDUP * ours_s:
        more_s = math.ceil(SPEEDUP * ours_s)
        print(f"Ray v2 was ended too early to tell who is faster: give --peer-limit {more_s} or more", file=sys.stderr)
    bars = make_bars(options, ours_s, ratio_to(bound, price), memory_mb, sizes, peers, case, bound)
    return show(bars, options.json)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def cells_bars(options: argparse.Namespace, case: Case) -> list[Bar]:
    found = []
    for everywhere, offered in ((True, "all offers each"), (False, "the offers of their regions")):
        name = f"{options.scenario} {options.nodes} x {options.requests} in {options.cells} cells, {offered}"
        took_s = measure_cells(cells_of(case, options.cells, everywhere, options.gone), options.repeat)
        for what in ("slowest cell", "all cells, CPU"):
            ours_s = took_s.pop(what)
            found.append(Bar(f"{name}: {what}, s", ours_s, {}, LIMIT_S, LIMIT_S / ours_s, ">= 1", ours_s <= LIMIT_S))
        found[-1] = replace(found[-1], peers=took_s)
    memory_mb = peak_mb()
    ratio, holds = memory_mb / MEMORY_MB, memory_mb <= MEMORY_MB
    return [*found, Bar(f"{options.cells} cells, memory, MB", memory_mb, {}, MEMORY_MB, ratio, "<= 1", holds)]


def make_bars(
    options: argparse.Namespace,
    ours_s: float,
    cost: float,
    memory_mb: float,
    sizes: list[tuple[int, int, float]],
    peers: dict[str, Answer],
    case: Case,
    bound: float,
) -> list[Bar]:
    name = f"{options.scenario} {options.nodes} x {options.requests}"
    seconds = {f"{peer} >" if answer.capped else peer: answer.seconds for peer, answer in peers.items()}
    prices = {
        peer: ratio_to(bound, answer.price_uusd_per_h(case.view.offers))
        for peer, answer in peers.items()
        if not answer.capped
    }
    bars = [
        Bar(f"{name}, one decision, s", ours_s, seconds, LIMIT_S, LIMIT_S / ours_s, ">= 1", ours_s <= LIMIT_S),
        Bar(f"{name}, price / bound", cost, prices, COST, cost, f"<= {COST}", cost <= COST),
        Bar(f"{name}, memory, MB", memory_mb, {}, MEMORY_MB, memory_mb / MEMORY_MB, "<= 1", memory_mb <= MEMORY_MB),
    ]
    if "ray-v2" in peers:
        faster = peers["ray-v2"].seconds / ours_s
        bars.append(
            Bar(f"{name}, faster than Ray v2", ours_s, seconds, peers["ray-v2"].seconds / SPEEDUP, faster,
                f">= {SPEEDUP:.0f}", faster >= SPEEDUP)
        )  # fmt: skip
    (_, _, small_s), (_, _, whole_s) = sizes[0], sizes[-1]
    by_size = (whole_s / small_s) / (options.nodes / max(1, options.nodes // 10))
    peers_s = {f"{nodes} x {requests}": seconds for nodes, requests, seconds in sizes}
    bars.append(
        Bar(f"{name}, growth / growth of size", by_size, peers_s, GROWTH, by_size, f"<= {GROWTH}", by_size <= GROWTH)
    )
    return bars


if __name__ == "__main__":
    sys.exit(main())
