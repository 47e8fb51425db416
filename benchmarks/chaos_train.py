"""Does training that is disturbed all the time come to the same end as training that is not?

    python benchmarks/chaos_train.py --trace FILE [--changes 50] [--max-nodes 4] [--seed 0] [--json] [--keep FOLDER]

Replays a trace of spot nodes (any of the formats in training/spot_trace.py, which says how counts become nodes) on real
Ray nodes, until the training group has changed `--changes` times: each new group counts, and each end of a group that
leaves none. Time is compressed: a level of the trace lasts as long as the job needs to follow, and a little more in the
proportion of the trace; every fourth change (by the seed) follows at once, while the one before is still under way.
Half of the removals (by the seed) come with notice, of 12 s or of 2 s, which is too short for anything slow: the node
is killed at the deadline, or when its worker has gone. The others are killed without a word.

Then the same training is run in one plain process, undisturbed. Bars: the loss of the last step is the same to 1e-9
relative (double precision; sums in another order differ by 1e-16 in a step, and training carries that on), no sample is
skipped, none repeated. There is no peer: stock Ray Train keeps no position in the data, and would need most of an hour.
Exit status 1 where a bar does not hold, 2 where the trace cannot be replayed.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import bars
from training import chaos_job, spot_trace
from training.cell import BenchmarkFailed, Cell, open_cell
from training.step_log import Stamp, StepReader

from tradewind.autoscaler.providers.raylets import LocalNode
from tradewind.errors import JobError
from tradewind.jobs.sample_ledger import Audit, audit
from tradewind.model import JOB_ID_ENV

TOLERANCE = 1e-9
STEPS_PER_CHANGE, CHANGE_S = 100, 10.0  # how long a change takes is not known before the first
RESERVE = 8  # changes: the last ones may take longer than those before, and need steps to disturb
FOLLOW_TIMEOUT_S = 150.0
HOLD_S, MAX_HOLD_S = 1.0, 5.0  # after a change: of a level of median length; of a long one
NOTICES_S = (12.0, 2.0)
HASTY, NOTICED = 0.25, 0.5  # shares of changes that follow at once, and of removals with notice


@dataclass
class Chaos:
    """Disturbs one training job."""

    cell: Cell
    folder: Path
    steps: int
    random: random.Random
    driver: Any
    began_s: float = field(default_factory=time.monotonic)
    blackouts: int = 0
    removed: dict[str, int] = field(default_factory=lambda: {"killed": 0, "noticed": 0})
    added: int = 0

    def __post_init__(self) -> None:
        self._reader = StepReader(self.folder)

    def changes(self) -> int:
        """Groups after the first, and ends of groups that left none."""
        return max(0, len({stamp.attempt for stamp in self._reader.read()}) - 1) + self.blackouts

    def go_to(self, count: int) -> None:
        nodes = self.cell.nodes
        leaving = self.random.sample(nodes, max(0, len(nodes) - count))
        noticed = {node.launch_id: time.time() for node in leaving if self.random.random() < NOTICED}
        deadlines = {name: self.cell.drain(node, self.random.choice(NOTICES_S)) for name, node in self._named(noticed)}
        for node in leaving:
            if node.launch_id not in noticed:
                self.cell.kill(node)
                self.removed["killed"] += 1
        for name, node in self._named(noticed):
            self._await_departure(node, noticed[name], deadlines[name])
            self.cell.kill(node)
            self.removed["noticed"] += 1
        while len(nodes) < count:
            self.cell.add()
            self.added += 1

    def _named(self, names: dict[str, float]) -> list[tuple[str, LocalNode]]:
        return [(node.launch_id, node) for node in list(self.cell.nodes) if node.launch_id in names]

    def _await_departure(self, node: LocalNode, told_s: float, deadline_s: float) -> None:
        while time.time() < deadline_s and not self._has_left(node, told_s):
            time.sleep(0.1)

    def _has_left(self, node: LocalNode, told_s: float) -> bool:
        group = self._last_group()
        whole = bool(group) and len({stamp.node for stamp in group}) == group[0].workers and group[0].at_s > told_s
        return whole and all(stamp.node != node.address_ip for stamp in group)

    def _last_group(self) -> list[Stamp]:
        stamps = self._reader.read()
        last = max((stamp.attempt for stamp in stamps), default=0)
        return [stamp for stamp in stamps if stamp.attempt == last]

    def follow(self) -> None:
        """Wait until the group is as large as there are nodes, and takes steps."""
        wanted, since_s = {node.address_ip for node in self.cell.nodes}, time.time()
        if not wanted:
            return

        def holds() -> bool:
            group = self._last_group()
            fresh = {stamp.node for stamp in group if stamp.at_s > since_s}
            return fresh == wanted and group[0].workers == len(wanted)

        self.driver.wait_for(holds, f"steps on each of {len(wanted)} nodes", FOLLOW_TIMEOUT_S)

    def pace(self, made: int, left: int) -> None:
        """As fast as the changes come, so that there are always steps left to disturb."""
        done = max((stamp.step for stamp in self._reader.read()), default=0)
        change_s = (CHANGE_S + time.monotonic() - self.began_s) / (1 + made)
        set_pace(self.folder, (left + RESERVE) * change_s / max(1, self.steps - done))


def disturb(chaos: Chaos, levels: Iterator[spot_trace.Level], changes: int, median_s: float) -> None:
    chaos.follow()
    while (made := chaos.changes()) < changes:
        level = next(levels)
        chaos.pace(made, changes - made)
        _say(f"{made} changes; {len(chaos.cell.nodes)} -> {level.nodes} nodes")
        chaos.go_to(level.nodes)
        if level.nodes == 0:
            chaos.blackouts += 1
        if chaos.random.random() >= HASTY:
            chaos.follow()
            time.sleep(min(MAX_HOLD_S, HOLD_S * level.duration_s / median_s))
    if not chaos.cell.nodes:
        chaos.go_to(1)
    set_pace(chaos.folder, 0.0)


def run_chaos(cell: Cell, folder: Path, levels: list[spot_trace.Level], given: argparse.Namespace) -> Chaos:
    steps, replay = given.changes * STEPS_PER_CHANGE, spot_trace.replay(levels, given.max_nodes)
    median_s = statistics.median(level.duration_s for level in islice(spot_trace.replay(levels, given.max_nodes), 100))
    first = next(level for level in replay if level.nodes > 0)
    for _ in range(first.nodes):
        cell.add()
    set_pace(folder, CHANGE_S / STEPS_PER_CHANGE)
    arguments = [str(folder), str(steps), str(given.max_nodes)]
    with cell.start("training.chaos_job", arguments, folder, {JOB_ID_ENV: "chaos"}) as driver:
        chaos = Chaos(cell, folder, steps, random.Random(given.seed), driver)
        disturb(chaos, replay, given.changes, median_s or 1.0)
        driver.wait(FOLLOW_TIMEOUT_S + steps * 0.05)
    return chaos


def set_pace(folder: Path, seconds: float) -> None:
    aside = folder / "pace.tmp"
    aside.write_text(str(seconds))
    aside.rename(folder / "pace")


def differences(folder: Path, alone: list[float]) -> dict[int, float]:
    """By step: how far the loss is from that of the undisturbed training, relative; where it is known. Of a step that
    was taken again, what was told last is that of the model's lineage."""
    lines = (folder / "curve.jsonl").read_text().splitlines()
    told = {entry["step"]: entry["loss"] for entry in map(json.loads, lines)}
    return {step: abs(loss - alone[step - 1]) / abs(alone[step - 1]) for step, loss in told.items() if loss is not None}


def restarts(stamps: list[Stamp]) -> int:
    """Groups that have no process of the one before: all were lost, or the product started over."""
    groups: dict[int, set[str]] = {}
    for stamp in stamps:
        groups.setdefault(stamp.attempt, set()).add(stamp.process)
    ordered = [group for _, group in sorted(groups.items())]
    return sum(before.isdisjoint(after) for before, after in pairwise(ordered))


def make_bars(chaos: Chaos, found: Audit, apart: dict[int, float], wanted: int) -> list[bars.Bar]:
    final = apart.get(chaos.steps, float("inf"))
    changes = chaos.changes()
    return [
        bars.Bar("membership changes", changes, {}, wanted, changes / wanted, f">= {wanted}", changes >= wanted),
        _limit("loss of the last step, relative difference", final, TOLERANCE),
        _limit("samples skipped", found.skipped + chaos_job.BATCH * (chaos.steps - found.last_step), 0),
        _limit("samples repeated or misplaced", found.repeated + found.misplaced_steps, 0),
    ]


def _limit(name: str, ours: float, limit: float) -> bars.Bar:
    return bars.Bar(name, ours, {}, limit, ours / limit if limit else ours, f"<= {limit:g}", ours <= limit)


def print_story(chaos: Chaos, found: Audit, apart: dict[int, float], took_s: float) -> None:
    stamps = StepReader(chaos.folder).read()
    print(f"{chaos.steps} steps; nodes: {chaos.added} added, {chaos.removed['killed']} killed, "
          f"{chaos.removed['noticed']} with notice, {chaos.blackouts} times none left; {took_s:.0f} s")  # fmt: skip
    print(f"groups by size: {' '.join(map(str, found.worlds))}")
    print(f"started over from a checkpoint {restarts(stamps)} times, {found.recomputed_steps} steps taken again")
    print(f"losses known of {len(apart)} steps, largest relative difference {max(apart.values(), default=0):.2g}")
    print()


def _say(what: str) -> None:
    print(time.strftime("%H:%M:%S"), what, file=sys.stderr, flush=True)


def measure(folder: Path, levels: list[spot_trace.Level], given: argparse.Namespace) -> int:
    began_s = time.monotonic()
    with open_cell(0) as cell:
        chaos = run_chaos(cell, folder, levels, given)
    took_s = time.monotonic() - began_s
    found, apart = audit(folder / "ledger"), differences(folder, chaos_job.train_alone(chaos.steps))
    if not given.json:
        print_story(chaos, found, apart, took_s)
    return bars.show(make_bars(chaos, found, apart, given.changes), given.json)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="without one: a made-up one, from the seed")
    parser.add_argument("--changes", type=int, default=50)
    parser.add_argument("--max-nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="a new folder for logs, events and ledgers; they are removed otherwise"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        levels = spot_trace.parse(given.trace.read_text()) if given.trace else spot_trace.make_up(given.seed)
        next(spot_trace.replay(levels, given.max_nodes))
    except (JobError, OSError, UnicodeDecodeError) as error:
        print(f"{given.trace}: {error}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="chaos") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return measure(folder, levels, given)
        except BenchmarkFailed as error:
            print(error, file=sys.stderr)
            return 1


if __name__ == "__main__":
    sys.exit(main())
