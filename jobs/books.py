"""What a worker writes down: rank 0 tells the coordinator of steps and losses, and everybody keeps a page of samples.

Every worker remembers the last losses: when rank 0 is lost with what it had not told, the next one tells it.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from tradewind.jobs.data import Order, Share, share
from tradewind.jobs.rank_zero import HandoverWatcher, Scribe, Told
from tradewind.jobs.regroup import Group
from tradewind.jobs.sample_ledger import SampleLedger
from tradewind.jobs.settings import RunSettings

REMEMBERED = 1024  # steps; rank 0 tells of its steps every second


class Books:
    def __init__(self, settings: RunSettings, coordinator: Any) -> None:
        self._settings, self._coordinator = settings, coordinator
        self._order: Order | None = None
        self._place = (0, 1)  # of this worker's share: data rank, data ranks
        self._group: Group | None = None
        self._was_first = False
        self._pages: SampleLedger | None = None
        self._history: deque[Told] = deque(maxlen=REMEMBERED)
        self.scribe: Scribe | None = None
        self.watcher: HandoverWatcher | None = None

    def sit(self, group: Group, place: tuple[int, int]) -> None:
        """Another group, and maybe another rank."""
        self._was_first = self._group is not None and self._group.rank == 0
        self._group, self._place = group, place
        if self.scribe:
            self.scribe.close()
        if self.watcher:
            self.watcher.stop()
        epoch, first = group.roster.epoch, group.rank == 0
        self.scribe = Scribe(self._coordinator, epoch, group.world, self._settings.curve) if first else None
        self.watcher = HandoverWatcher(self._coordinator, epoch) if first else None

    def open(self, order: Order, done: int, total: int | None) -> None:
        """Steps after `done` are taken now."""
        self._order, group = order, self._group
        assert group is not None
        if self._settings.ledger and self._is_witness:
            rank, ranks = self._place
            self._pages = SampleLedger(self._settings.ledger, order, group.roster.epoch, rank, ranks, done)
        if self.scribe:
            if not self._was_first and not group.roster.first:
                self._catch_up(done)
            self.scribe.begin(done, total)
        if self.watcher:
            self.watcher.start()

    def reorder(self, order: Order) -> None:
        """The batch has another size from the next step on."""
        self._order = order
        if self._pages:
            self._pages.reorder(order)

    def record(self, part: Share, loss: float | None) -> None:
        """A step was taken."""
        told = Told(part.step, part.global_size, loss)
        self._history.append(told)
        if self._pages:
            self._pages.record(part.step, part.indices)
        if self.scribe:
            self.scribe.step(told)

    def leave(self, step: int, leads: bool) -> None:
        """The group is given up. Who leads has taken `step` with all of it: it writes down the others' parts, too."""
        if self._pages is None or self._order is None:
            return
        mine, ranks = self._place
        if leads and step > self._pages.after_step:
            for rank in set(range(ranks)) - {mine}:
                self._pages.vouch(step, rank, share(self._order, step, rank, ranks).indices.tolist())
        self._pages.close()
        self._pages = None

    def close(self) -> None:
        if self.scribe:
            self.scribe.flush()
        if self._pages:
            self._pages.close()

    def remembered(self) -> list[Told]:
        return list(self._history)

    def adopt(self, history: list[Told]) -> None:
        """What a joiner is told of the steps before it."""
        self._history.extend(history)

    @property
    def _is_witness(self) -> bool:
        """Of the workers that compute the same micro-batches, one writes them down."""
        assert self._group is not None
        at = self._settings.layout.coordinate(self._group.rank, self._group.world)
        return at.stage == at.slice == 0

    def _catch_up(self, done: int) -> None:
        """The rank 0 before this one is lost, with what it had not told."""
        import ray

        assert self.scribe is not None
        assert self._order is not None
        last_told = ray.get(self._coordinator.look.remote())["progress"]["step"]
        known = {told.step: told for told in self._history}
        for step in range(last_told + 1, done + 1):
            self.scribe.step(known.get(step) or Told(step, len(self._order.indices(step)), None))
        self.scribe.flush()
