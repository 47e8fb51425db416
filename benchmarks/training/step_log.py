"""When each worker completed which step: written by the workers themselves, read by the benchmarks. Pure but for files.

One file for each process, a line for each completed step, appended and flushed, so that a killed process keeps its own.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Stamp:
    """One worker has completed one step."""

    step: int
    at_s: float  # epoch
    rank: int
    workers: int
    attempt: int  # number of the group; 0 where there is none
    node: str  # its address
    process: str


class StepLog:
    def __init__(self, folder: Path, node: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._node, self._process = node, f"{node}-{os.getpid()}"
        self._file = (folder / f"steps-{self._process}.jsonl").open("a", encoding="utf-8")

    def completed(self, step: int, rank: int, workers: int, attempt: int = 0) -> None:
        stamp = Stamp(step, time.time(), rank, workers, attempt, self._node, self._process)
        self._file.write(json.dumps(asdict(stamp)) + "\n")
        self._file.flush()


class StepReader:
    """Reads what is new since the last time: the workers should not have to share their cores with a busy reader."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._offsets: dict[Path, int] = {}
        self._stamps: list[Stamp] = []

    def read(self) -> list[Stamp]:
        """Every stamp so far, by time. A torn last line does not count yet."""
        new = [stamp for path in self._folder.glob("steps-*.jsonl") for stamp in self._read_on(path)]
        self._stamps = sorted(self._stamps + new, key=lambda stamp: stamp.at_s)
        return self._stamps

    def _read_on(self, path: Path) -> list[Stamp]:
        with path.open("rb") as file:
            file.seek(self._offsets.get(path, 0))
            whole, end, _ = file.read().rpartition(b"\n")
        self._offsets[path] = self._offsets.get(path, 0) + len(whole) + len(end)
        return [Stamp(**json.loads(line)) for line in whole.splitlines()]


def standing(stamps: Sequence[Stamp], workers: int, more_steps: int) -> bool:
    """Whether the last group has `workers` members, and has taken more than `more_steps` steps."""
    last = max((stamp.attempt for stamp in stamps), default=0)
    group = [stamp for stamp in stamps if stamp.attempt == last and stamp.workers == workers]
    # Groups without a number (the peer's) are told apart by their processes: the last one that wrote.
    if group and not last:
        group = [stamp for stamp in group if stamp.process == stamps[-1].process]
    return bool(group) and stamps[-1].workers == workers and len({stamp.step for stamp in group}) > more_steps


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a group whose workers go on, as those that stayed saw it."""

    resumed_s: float  # when all of them had completed their first step in the new group
    gap_s: float  # the longest between two completed steps of one process
    step_s: float  # median step of the new group
    lost_steps: int  # completed by one that stayed, and taken again

    @property
    def pause_s(self) -> float:
        """What the change cost beside the step itself."""
        return max(0.0, self.gap_s - self.step_s)


def change(stamps: Sequence[Stamp], after_s: float, workers: int) -> Change:
    """The change to the first group of `workers` that took a step after `after_s`."""
    old = max(stamp.attempt for stamp in stamps if stamp.at_s <= after_s)
    new = min(stamp.attempt for stamp in stamps if stamp.attempt > old and stamp.workers == workers)
    before = _by_process(stamp for stamp in stamps if stamp.attempt < new)
    since = _by_process(stamp for stamp in stamps if stamp.attempt == new)
    stayed = before.keys() & since.keys()
    had = {name: before[name][-1].step for name in stayed}
    last = max(had.values())
    # Who lacked a step that another had completed gets it with the state, and says so: that is no step taken.
    since = {name: [stamp for stamp in since[name] if not had[name] < stamp.step <= last] for name in stayed}
    gaps = [since[name][0].at_s - before[name][-1].at_s for name in stayed]
    return Change(
        resumed_s=max(since[name][0].at_s for name in stayed),
        gap_s=max(gaps),
        step_s=statistics.median(step for name in stayed for step in step_times(since[name])),
        lost_steps=max(0, *(had[name] + 1 - since[name][0].step for name in stayed)),
    )


@dataclass(frozen=True, slots=True)
class Restart:
    """One loss after which all workers were started again."""

    next_step_s: float  # from the kill to the next step at all
    next_new_step_s: float  # from the kill to the first step that had not been taken before
    repeated_steps: int


def restart(stamps: Sequence[Stamp], killed_s: float) -> Restart:
    old = {stamp.process for stamp in stamps if stamp.at_s <= killed_s}
    last = max(stamp.step for stamp in stamps if stamp.process in old)
    since = [stamp for stamp in stamps if stamp.process not in old]
    return Restart(
        next_step_s=since[0].at_s - killed_s,
        next_new_step_s=min(stamp.at_s for stamp in since if stamp.step > last) - killed_s,
        repeated_steps=max(0, last + 1 - min(stamp.step for stamp in since)),
    )


def step_times(stamps: Sequence[Stamp]) -> list[float]:
    """Between two stamps of one process."""
    return [after.at_s - before.at_s for before, after in pairwise(stamps)]


def _by_process(stamps: Iterable[Stamp]) -> dict[str, list[Stamp]]:
    found: dict[str, list[Stamp]] = {}
    for stamp in stamps:
        found.setdefault(stamp.process, []).append(stamp)
    return found
