"""What does it cost to be ready for a loss that does not come? Steps/s of `tw.fit` against plain DDP.

    python benchmarks/steady.py [--blocks 60] [--json]

Two workers on two Ray nodes of this machine. In the same processes, blocks of about a third of a second of our
loop and of a plain loop (`DistributedDataParallel`, gloo, over a process group of its own) alternate: same model, data,
batch and threads, and whatever else the machine does meets both. Each block of ours is compared with the mean of the
plain ones before and after it; the median of these ratios counts. Two models: the smaller one shows the cost of each
step more.

What runs beside the workers (Ray's own processes, the controller, the coordinator) takes its share of the cores from
both; it is printed apart, as it has the head's cores for itself elsewhere. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bars
import psutil
from training.cell import BenchmarkFailed, Cell, open_cell
from training.steady_job import PARTS, SHAPES, WORKERS

from tradewind.autoscaler.providers.raylets import processes

GOAL = 0.98
TIMEOUT_S = 600.0
FIRST = 2  # blocks that are left out: memory is found, buckets are arranged


def measure(cell: Cell, folder: Path, name: str, blocks: int) -> dict[str, Any]:
    own = folder / name
    own.mkdir()
    with cell.start("training.steady_job", [str(own), name, str(blocks)], own) as driver:
        before_s, began_s = busy_s(cell), time.monotonic()
        driver.wait(TIMEOUT_S)
        beside = (busy_s(cell) - before_s) / (time.monotonic() - began_s)
    found: dict[str, Any] = json.loads((own / "blocks.json").read_text())
    return found | {"beside": beside}


def busy_s(cell: Cell) -> float:
    """CPU time of all processes on the head: those of Ray, and the controller and the coordinator of the job."""
    total = 0.0
    for pid in processes(cell.head.folder):
        try:
            spent = psutil.Process(pid).cpu_times()
        except psutil.NoSuchProcess:
            continue  # it has ended since it was listed
        total += spent.user + spent.system
    return total


def ratios(ours_s: Sequence[float], plain_s: Sequence[float]) -> list[float]:
    """Plain is block 0, ours is block 1, plain is block 2, ...: each of ours against the mean of its neighbours."""
    around = zip(plain_s, plain_s[1:], ours_s, strict=False)
    return [(before + after) / 2 / mine for before, after, mine in around][FIRST:]


def make_bar(name: str, found: dict[str, Any]) -> bars.Bar:
    block = SHAPES[name].block
    ours, plain = (statistics.median(found[who]["blocks_s"][FIRST:]) for who in ("ours", "plain"))
    ratio = statistics.median(ratios(found["ours"]["blocks_s"], found["plain"]["blocks_s"]))
    return bars.Bar(
        name=f"{name} model: steps/s",
        ours=block / ours,
        peers={"plain DDP": block / plain},
        limit=GOAL * block / plain,
        ratio=ratio,
        goal=f">= {GOAL:g}",
        holds=ratio >= GOAL,
    )


def print_parts(name: str, found: dict[str, Any]) -> None:
    quarters = statistics.quantiles(ratios(found["ours"]["blocks_s"], found["plain"]["blocks_s"]), n=4)
    print(f"{name} model, ratios: quartiles {' '.join(f'{each:.3f}' for each in quarters)}")
    print(f"  {'ms, median':12}{'ours':>9}{'plain':>9}")
    for number, part in enumerate(PARTS):
        ours, plain = (1000 * statistics.median(found[who]["parts_s"][number]) for who in ("ours", "plain"))
        print(f"  {part:12}{ours:9.3f}{plain:9.3f}")
    print(f"  beside the workers, on the head: {found['beside']:.2f} cores, start and end included\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=60, help="of each kind")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.blocks < FIRST + 3:
        parser.error(f"--blocks must be at least {FIRST + 3}")
    try:
        with tempfile.TemporaryDirectory(prefix="steady") as folder, open_cell(WORKERS) as cell:
            found = {name: measure(cell, Path(folder), name, given.blocks) for name in SHAPES}
    except BenchmarkFailed as error:
        print(error, file=sys.stderr)
        return 1
    if not given.json:
        for name, figures in found.items():
            print_parts(name, figures)
    return bars.show([make_bar(name, figures) for name, figures in found.items()], given.json)


if __name__ == "__main__":
    sys.exit(main())
