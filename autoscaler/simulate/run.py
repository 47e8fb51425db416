"""Jobs in a simulation: one that is not done yet, and the queue of those that wait."""

from __future__ import annotations

import heapq
import itertools
import math
from dataclasses import dataclass, field

from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.place import Node
from tradewind.model import Wish

ANYWHERE = ""  # a market key, or this
_ONE_GPU = {"GPU": 1.0}


@dataclass(slots=True, eq=False)
class Run:
    """Work left is counted in seconds on the GPUs that the trace gives the job; `speed` is 1 for these."""

    job: SimJob
    number: int  # by submission
    left_s: float
    gpus: int
    speed: float = 1.0
    where: str = ANYWHERE  # in which market alone it may run
    started_s: float | None = None  # the first time
    at_s: float = 0.0  # since when it holds its GPUs
    begin_s: float = 0.0  # since when it works on them
    held: list[tuple[Node, int]] = field(default_factory=list)
    epoch: int = 0  # an end that was foreseen in an earlier one does not happen
    bucket: tuple[str, int] | None = None  # where it waits
    has_begun: bool = False
    look_s: float | None = None  # when its contract is looked at again
    wish: Wish | None = None  # what policies are told while it runs, if it may move

    @property
    def name(self) -> str:
        return f"j{self.number}"

    def tell_wish(self) -> Wish:
        """All of its GPUs or none; it can move, as all trainers can."""
        if self.wish is None:
            self.wish = Wish(self.name, self.gpus, self.gpus, _ONE_GPU, can_move=True)
        return self.wish

    @property
    def is_running(self) -> bool:
        return bool(self.held)

    def worked_s(self, now_s: float) -> float:
        return max(0.0, now_s - self.begin_s) * self.speed

    def left_at(self, now_s: float) -> float:
        return max(self.left_s - self.worked_s(now_s), 0.0) if self.held else self.left_s

    def keep(self, now_s: float, every_s: float | None) -> tuple[float, float]:
        """It stops here: (GPU seconds that count, GPU seconds that do not). What was done since the last checkpoint is
        lost, where there are some only `every_s`; None: it saved just now."""
        done_s = min(self.worked_s(now_s), self.left_s)
        if every_s is not None:
            done_s = math.floor(done_s / every_s) * every_s if every_s else done_s
        self.left_s -= done_s
        useful = self.gpus * done_s / self.speed
        return useful, self.gpus * (now_s - self.at_s) - useful


class Queue:
    """Who waits, by market and size: the next one that fits is found without looking at all."""

    def __init__(self) -> None:
        self._buckets: dict[tuple[str, int], list[tuple[int, int, Run]]] = {}
        self._order = itertools.count()  # one run may stand in a heap twice, once of it stale
        self._sizes: dict[str, list[int]] = {}
        self.gpus: dict[str, int] = {}  # that are waited for, by market
        self.runs = 0

    def add(self, run: Run) -> None:
        bucket = (run.where, run.gpus)
        if bucket not in self._buckets:
            self._buckets[bucket] = []
            self._sizes.setdefault(run.where, []).append(run.gpus)
        heapq.heappush(self._buckets[bucket], (run.number, next(self._order), run))
        run.bucket = bucket
        self.gpus[run.where] = self.gpus.get(run.where, 0) + run.gpus
        self.runs += 1

    def drop(self, run: Run) -> None:
        """It waits no more; its place in the heap is found stale later."""
        if run.bucket is not None:
            where, gpus = run.bucket
            self.gpus[where] -= gpus
            self.runs -= 1
            run.bucket = None

    def first(self, where: str, room: int) -> Run | None:
        """The one that was submitted first among those that fit."""
        best: tuple[int, int, Run] | None = None
        for gpus in self._sizes.get(where, ()):
            if gpus <= room:
                bucket = self._buckets[where, gpus]
                while bucket and bucket[0][2].bucket != (where, gpus):
                    heapq.heappop(bucket)
                if bucket and (best is None or bucket[0][0] < best[0]):
                    best = bucket[0]
        return best[2] if best else None

    @property
    def largest_gpus(self) -> int:
        """That one of those who wait asks for."""
        waiting = (run.gpus for bucket in self._buckets.values() for _, _, run in bucket if run.bucket is not None)
        return max(waiting, default=0)

    @property
    def places(self) -> list[str]:
        """Markets that somebody waits for, those that are named first."""
        return sorted(
            (where for where, gpus in self.gpus.items() if gpus), key=lambda where: (where == ANYWHERE, where)
        )
