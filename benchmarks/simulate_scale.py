"""How fast is the simulator, and how much memory does it take, from 10^4 to 10^6 jobs?

    python benchmarks/simulate_scale.py [--jobs 10000,100000,1000000] [--policy reactive] [--seed 0] [--json]

Each size runs in a process of its own. Jobs are made up from the seed, streamed, and come at the same rate at every
size (1,200 an hour, some 500 GPUs in nodes of eight, four spot markets that open and close, and on-demand), so ten
times the jobs are ten times the simulated time: events a second should stay what they are, and memory, too.

Beside them: 10,000 jobs on up to 5,000 GPUs for a month; and one job that takes most of a year, with a deadline, under
the same policy and under contract (which moves it to another market several times a day). Time is CPU time of the
process, so that what runs beside it does not count. The floor is a plain event loop (a heap, an event for each
submission, end and join, no policy, no statistics) over as many events, measured in the same process: what a simulator
in Python could do at the most.

Bars: events/s at the largest size at least half of those at the smallest; peak memory at most 1.2 of it; the month in
at most 10 minutes; a year in less than a second each. Exit status 1 where one does not hold.
"""

from __future__ import annotations

import argparse
import heapq
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from bars import Bar, show

from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.simulate.contestants import CONTESTANTS
from tradewind.autoscaler.simulate.engine import Setting, simulate
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.place import Venue
from tradewind.autoscaler.simulate.workload import DAY_S, Workload, spells
from tradewind.autoscaler.simulate.world import Physics
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.model import Capacity

SLOWEST, MEMORY, MONTH_S, YEAR_S = 0.5, 1.2, 600.0, 1.0


def setting(max_nodes: int, seed: int) -> Setting:
    """Four spot markets at 30 to 39 % of the price of on-demand, nodes of eight GPUs."""
    kind = {"gpus": 8.0, "cpus": 96.0, "memory_gib": 1000.0}
    zones = ["us-east-1a", "us-east-1b", "us-east-2a", "us-west-2a"]
    venues = [
        Venue(make_offer(f"aws/{zone}/gpu8", usd_per_h=7.2 + 0.7 * number, **kind), spells(f"{seed}/{zone}"))
        for number, zone in enumerate(zones)
    ]
    dear = make_offer("aws/us-east-1a/gpu8", usd_per_h=24.0, capacity=Capacity.ON_DEMAND, **kind)
    limits = Limits(max_nodes=max_nodes, launches_per_minute=None)
    loop = LoopSettings(fleet="scale", limits=limits, idle_timeout_s=600.0)
    return Setting([*venues, Venue(dear)], loop, Physics())


def jobs_of(case: str, seed: int) -> tuple[int, Iterator[SimJob]]:
    """(the most nodes, jobs)"""
    if case == "month":
        month = Workload(10_000, 10_000 / 720.0, median_s=6 * 3600.0, spread=1.2, sizes=(8, 8, 16, 32, 64))
        return 625, month.jobs(seed)
    if case == "year":
        return 625, iter([SimJob(0.0, 300 * DAY_S, 8, 364 * DAY_S)])
    return 625, Workload(int(case), 1200.0).jobs(seed)


def child(case: str, policy: str, seed: int) -> None:
    """One simulation in this process; its figures as a line of JSON."""
    nodes, jobs = jobs_of(case, seed)
    world = setting(nodes, seed)
    begin_s = time.process_time()
    tally = simulate(world, jobs, CONTESTANTS[policy], seed)
    took_s = time.process_time() - begin_s
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    whole = tally.total()
    figures = {
        "cpu_s": took_s,
        "peak_mb": peak_mb,
        "events": tally.events,
        "plans": tally.plans,
        "decisions": tally.decisions,
        "jobs": whole.jobs,
        "days": tally.end_s / DAY_S,
        "gpus": whole.paid_gpu_s / max(tally.end_s, 1.0),
        "floor_per_s": floor(tally.events),
    }
    print(json.dumps(figures))


def floor(events: int) -> float:
    """Events a second of a heap alone."""
    number = min(events, 1_000_000)
    heap: list[tuple[float, int]] = []
    begin_s = time.process_time()
    for order in range(number // 2):
        heapq.heappush(heap, (order * 3.0, order))
        if order > 500:
            at_s, what = heapq.heappop(heap)
            heapq.heappush(heap, (at_s + 1500.0, what))
            heapq.heappop(heap)
    return number / max(time.process_time() - begin_s, 1e-9)


def measure(case: str, policy: str, seed: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--child", case, "--policy", policy, "--seed", str(seed)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the simulation of {case} failed:\n{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout)
    return found


def middle(runs: list[dict[str, float]]) -> dict[str, float]:
    """By CPU time: one run of a second is easily disturbed."""
    return sorted(runs, key=lambda run: run["cpu_s"])[len(runs) // 2]


def bars_of(sizes: Sequence[str], policy: str, seed: int, as_json: bool) -> list[Bar]:
    found = {}
    for case, who in [*((size, policy) for size in sizes), ("month", policy)]:
        found[case] = measure(case, who, seed)
        if not as_json:
            print(text_of(case, found[case]), flush=True)
    years = {who: middle([measure("year", who, seed) for _ in range(3)]) for who in dict.fromkeys((policy, "contract"))}
    for who, each in years.items() if not as_json else ():
        print(text_of(f"year, {who}", each), flush=True)
    first, last = found[sizes[0]], found[sizes[-1]]
    speeds = [each["events"] / each["cpu_s"] for each in (first, last)]
    month = found["month"]
    peers = {"heap alone": last["floor_per_s"]}
    return [
        Bar(
            f"events/s at {sizes[-1]} jobs, to those at {sizes[0]}",
            speeds[1],
            peers,
            SLOWEST * speeds[0],
            speeds[1] / speeds[0],
            f">= {SLOWEST:g}",
            speeds[1] >= SLOWEST * speeds[0],
        ),
        Bar(
            f"peak MB at {sizes[-1]} jobs, to that at {sizes[0]}",
            last["peak_mb"],
            {},
            MEMORY * first["peak_mb"],
            last["peak_mb"] / first["peak_mb"],
            f"<= {MEMORY:g}",
            last["peak_mb"] <= MEMORY * first["peak_mb"],
        ),
        *(
            Bar(name, each["cpu_s"], {}, limit, each["cpu_s"] / limit, "<= 1", each["cpu_s"] <= limit)
            for name, each, limit in (
                ("CPU seconds for 10,000 jobs on 5,000 GPUs for a month", month, MONTH_S),
                *((f"CPU seconds for a year of one job, {who}", each, YEAR_S) for who, each in years.items()),
            )
        ),
    ]


def text_of(case: str, found: dict[str, float]) -> str:
    speed = found["events"] / found["cpu_s"]
    return (
        f"  {case:>14}: {found['cpu_s']:8.2f} s CPU, {found['peak_mb']:6.0f} MB, {found['events']:10,.0f} events "
        f"({speed:,.0f}/s; heap alone {found['floor_per_s']:,.0f}/s), {found['plans']:,.0f} plans, "
        f"{found['decisions']:,.0f} decisions, {found['jobs']:,.0f} jobs in {found['days']:.1f} days, "
        f"{found['gpus']:,.0f} GPUs on the mean"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", default="10000,100000,1000000", help="sizes, the smallest first")
    parser.add_argument("--policy", default="reactive", choices=sorted(CONTESTANTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.child:
        child(options.child, options.policy, options.seed)
        return 0
    sizes = [size.strip() for size in options.jobs.split(",")]
    if not all(size.isdigit() and int(size) for size in sizes):
        parser.error(f"--jobs {options.jobs}: give numbers, like 10000,100000")
    return show(bars_of(sizes, options.policy, options.seed, options.json), options.json)


if __name__ == "__main__":
    sys.exit(main())
