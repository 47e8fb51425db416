"""How long does training stand still when a node is killed, leaves with notice, or joins?

    python benchmarks/recovery.py [--rounds 3] [--peer-rounds 3] [--json]

Real Ray nodes on this machine: a head and three nodes with one worker each, the same model and batch for both. Workers
write down when they have completed a step. A round of ours: a node is killed (that of rank 2, 1, 0 in turn), a node
joins, a node gets notice and is killed once its worker has gone, a node joins. Bars:

- killed: from the news of the loss (the coordinator's event) and from the kill to the next step of all that stayed.
  The peer, stock Ray Train with every knob tuned, is timed from the kill to its next step of any kind.
- steps lost: completed by a worker that stayed, and taken again. Of all rounds, the worst.
- pause: the longest gap between two steps of one worker around the change, less the median step of the new group.

Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import bars
from training import agent, peer, step_log
from training.cell import BenchmarkFailed, Cell, Driver, open_cell
from training.step_log import Change, Restart

from tradewind.autoscaler.providers.raylets import LocalNode
from tradewind.events import PhaseChanged
from tradewind.model import JOB_ID_ENV, Phase

WORKERS, MAX_STEPS = 3, 100_000
SETTLED_STEPS = 20  # of a group, before the next thing happens to it: enough for its median
TIMEOUT_S = 240.0
NOTICE_S = 30.0
PEER = "ray-train-tuned"


@dataclass
class Ours:
    killed: list[Change] = field(default_factory=list)
    after_kill_s: list[float] = field(default_factory=list)
    after_news_s: list[float] = field(default_factory=list)
    noticed: list[Change] = field(default_factory=list)
    grown: list[Change] = field(default_factory=list)


class Training:
    """A driver that trains, and its stamps."""

    def __init__(self, cell: Cell, module: str, folder: Path, env: dict[str, str]) -> None:
        folder.mkdir()
        self.cell, self.folder = cell, folder
        self.steps = step_log.StepReader(folder)
        self.driver: Driver = cell.start(module, [str(folder), str(MAX_STEPS)], folder, env)

    def wait_standing(self, workers: int, after_s: float = 0.0) -> list[step_log.Stamp]:
        """Until a group of that size has taken some steps after that time; all stamps then."""
        found: list[step_log.Stamp] = []

        def holds() -> bool:
            nonlocal found
            found = self.steps.read()
            return step_log.standing([stamp for stamp in found if stamp.at_s > after_s], workers, SETTLED_STEPS)

        self.driver.wait_for(holds, f"{SETTLED_STEPS} steps of {workers} workers", TIMEOUT_S)
        return found

    def node_of(self, number: int) -> LocalNode:
        """Each time that of another rank: the last, then the others, that of rank 0 among them."""
        rank = (WORKERS - 1 - number) % WORKERS
        address = next(stamp.node for stamp in reversed(self.steps.read()) if stamp.rank == rank)
        return next(node for node in self.cell.nodes if node.address_ip == address)


def measure_ours(cell: Cell, folder: Path, rounds: int) -> Ours:
    found = Ours()
    training = Training(cell, "training.recovery_job", folder, {JOB_ID_ENV: "recovery"})
    with training.driver:
        training.wait_standing(WORKERS)
        for number in range(rounds):
            _say(f"ours, round {number + 1}")
            _kill(training, found, number)
            _grow(training, found)
            _notice(training, found, number)
            _grow(training, found)
    return found


def _kill(training: Training, found: Ours, number: int) -> None:
    cell = training.cell
    killed_s = cell.kill(training.node_of(number))
    change = step_log.change(training.wait_standing(WORKERS - 1, killed_s), killed_s, WORKERS - 1)
    found.killed.append(change)
    found.after_kill_s.append(change.resumed_s - killed_s)
    found.after_news_s.append(change.resumed_s - _news_s(training.folder, killed_s))


def _news_s(folder: Path, killed_s: float) -> float:
    news = [
        event.at_s
        for event in agent.heard(folder)
        if isinstance(event, PhaseChanged) and event.phase is Phase.RESTARTING and event.at_s >= killed_s
    ]
    if not news:
        raise BenchmarkFailed("a node was killed, and the coordinator told of no loss")
    return news[0]


def _notice(training: Training, found: Ours, number: int) -> None:
    cell = training.cell
    node, told_s = training.node_of(number), time.time()
    cell.drain(node, NOTICE_S)
    found.noticed.append(step_log.change(training.wait_standing(WORKERS - 1, told_s), told_s, WORKERS - 1))
    cell.kill(node)


def _grow(training: Training, found: Ours) -> None:
    began_s = time.time()
    training.cell.add()
    found.grown.append(step_log.change(training.wait_standing(WORKERS, began_s), began_s, WORKERS))


def measure_peer(cell: Cell, folder: Path, rounds: int) -> list[Restart]:
    found = []
    training = Training(cell, "training.peer", folder, peer.TUNED_ENV)
    with training.driver:
        training.wait_standing(WORKERS)
        for number in range(rounds):
            _say(f"{PEER}, round {number + 1}")
            killed_s = cell.kill(training.node_of(number))
            # Whoever was alive may still write a step: the new group is one of new processes.
            found.append(step_log.restart(training.wait_standing(WORKERS - 1, killed_s), killed_s))
            cell.add()
            if number + 1 < rounds:
                training.wait_standing(WORKERS, time.time())
    return found


def _say(what: str) -> None:
    print(time.strftime("%H:%M:%S"), what, file=sys.stderr, flush=True)


def make_bars(ours: Ours, peers: list[Restart]) -> list[bars.Bar]:
    median = statistics.median
    kill_s, peer_s = median(ours.after_kill_s), median(restart.next_step_s for restart in peers)
    repeated = float(median(restart.repeated_steps for restart in peers))
    return [
        _limit("killed: news of the loss -> next step, s", median(ours.after_news_s), 1.0),
        bars.Bar(
            name="killed: kill -> next step, s",
            ours=kill_s,
            peers={PEER: peer_s},
            limit=peer_s / 20,
            ratio=peer_s / kill_s,
            goal=">= 20",
            holds=peer_s / kill_s >= 20,
        ),
        _limit("killed: steps lost", max(change.lost_steps for change in ours.killed), 0, {PEER: repeated}),
        _limit("notice: steps lost", max(change.lost_steps for change in ours.noticed), 0),
        _limit("notice: pause, s", median(change.pause_s for change in ours.noticed), 0.5),
        _limit("growth: pause of the others, s", median(change.pause_s for change in ours.grown), 1.0),
    ]


def _limit(name: str, ours: float, limit: float, peers: dict[str, float] | None = None) -> bars.Bar:
    ratio = ours / limit if limit else ours
    return bars.Bar(name, ours, peers or {}, limit, ratio, f"<= {limit:g}", ours <= limit)


def print_rounds(ours: Ours, peers: list[Restart]) -> None:
    rows = {
        "killed: after the kill, s": ours.after_kill_s,
        "killed: after the news, s": ours.after_news_s,
        "notice: pause, s": [change.pause_s for change in ours.noticed],
        "growth: pause, s": [change.pause_s for change in ours.grown],
        "step of two workers, s": [change.step_s for change in ours.killed + ours.noticed],
        "step of three workers, s": [change.step_s for change in ours.grown],
        f"{PEER}: next step, s": [restart.next_step_s for restart in peers],
        f"{PEER}: next new step, s": [restart.next_new_step_s for restart in peers],
        f"{PEER}: steps repeated": [restart.repeated_steps for restart in peers],
    }
    for name, values in rows.items():
        print(f"{name:34}", "  ".join(f"{value:.3f}" for value in values))
    print()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer-rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="recovery") as folder, open_cell(WORKERS) as cell:
            ours = measure_ours(cell, Path(folder) / "ours", given.rounds)
            peers = measure_peer(cell, Path(folder) / "peer", given.peer_rounds)
    except BenchmarkFailed as error:
        print(error, file=sys.stderr)
        return 1
    if not given.json:
        print_rounds(ours, peers)
    return bars.show(make_bars(ours, peers), given.json)


if __name__ == "__main__":
    sys.exit(main())
