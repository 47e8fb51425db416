"""A worker as a member of its group: state, books and checkpoints, and what happens when the group changes.

Below `run.py`, which gives out batches and takes steps. Between two steps everything is settled here: sums are read and
told, state is saved, and the worker stands in the next group with the state that its members agree on.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from functools import partial
from typing import Any

from tradewind.errors import JobError
from tradewind.jobs import regroup
from tradewind.jobs.adaptive import Adaptive
from tradewind.jobs.books import Books
from tradewind.jobs.data import Ahead, Order
from tradewind.jobs.feed import Epochs
from tradewind.jobs.losses import is_communication
from tradewind.jobs.mark import Mark, Marker
from tradewind.jobs.membership import NOTHING_YET
from tradewind.jobs.models import Models
from tradewind.jobs.rank_zero import NOTHING, Ask
from tradewind.jobs.saving import Saves
from tradewind.jobs.seat import Resting, Seat
from tradewind.jobs.settings import RunSettings
from tradewind.jobs.step import Stash, Statistics, Step
from tradewind.jobs.transfer import Holdings

logger = logging.getLogger(__name__)

MANY_EPOCHS = 1_000_000  # where nobody says how many


class _Losses:
    """A lost worker breaks the group, and raises nothing in the user's code: the step is taken again."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        lost = isinstance(error, RuntimeError) and is_communication(error)
        if lost:
            self._seat.fail()
        return lost


class Member:
    def __init__(self, settings: RunSettings, coordinator: Any, seat: Seat, joins: bool, device: Any) -> None:
        from tradewind.jobs.ray_group import tell_ray_train

        self.settings, self.device = settings, device
        self.rank, self.world, self.attempt = 1, 2, 0  # of a joiner, until it is let in
        self.done = 0  # optimizer steps taken, over all attempts
        self.loss: float | None = None  # global mean of the last step that all ranks have finished
        self._coordinator, self._seat, self._joins = coordinator, seat, joins
        self._books, self._saves = Books(settings, coordinator), Saves(settings, coordinator, tell_ray_train)
        self._holds = Holdings(settings.layout, NOTHING_YET if joins else 0)
        self._models = Models(settings, device)
        self._kept = self._models.kept
        self._order: Order | None = None
        self._shares = Ahead()
        self._total: int | None = None
        self._max_steps: int | None = None
        self._adaptive: Adaptive | None = None
        self._data: Epochs | None = None
        self._feed: Any = None
        self._now: Step | None = None
        self._pending: deque[Step] = deque()  # taken, and their sums not read yet
        self._marker = Marker({})
        self._mark: Mark | None = None
        self._skipped: Mark | None = None  # as the run went on, while the loop passes over epochs that are done
        self._stash, self._statistics = Stash(), Statistics([])
        self._pace_s, self._paced_at_s = 0.1, time.monotonic()  # of a step, lately
        self._losses = _Losses(seat)
        self._ended = False
        if not joins:
            self._sit(seat.meet(self._holds, broken=False))

    # --- the group

    def _regroup(self, broken: bool) -> None:
        """Stand in the next group, with the state that its members agree on. What an interrupted step has touched is
        put back first."""
        if self._mark:
            self._mark.put_back()
            self._mark = None
        self._settle_all()
        self._now = None
        holds, before = self._holds, self.done
        holds.remember(self._kept, before)
        while True:
            try:
                group = self._seat.meet(holds, broken)
                self._models.attach(group)
                words = {"history": self._books.remembered(), "order": self._order}
                told = holds.take_over(group, self._kept, words, partial(self._saves.restore, self._kept, group))
                break
            except RuntimeError as error:
                if not is_communication(error):
                    raise
                broken = True
        self._books.leave(holds.step, leads=not self._joins and before == holds.step)
        if told is not None:
            self._books.adopt(told["history"])
            self._order = told["order"]
            self._plan_on()
        self._joins, self.done = False, holds.step
        self._sit(group)
        self._stand()

    def _sit(self, group: regroup.Group) -> None:
        from tradewind.jobs.ray_group import take_rank

        self._group = group
        self.rank, self.world, self.attempt = group.rank, group.world, group.roster.epoch
        layout = self.settings.layout
        self._place = layout.data_rank(self.rank, self.world), layout.data_world(self.world)
        take_rank(self.rank, self.world)
        self._books.sit(group, self._place)

    def _stand(self) -> None:
        """The state is there, steps are taken from now on."""
        assert self._order is not None
        self._statistics = Statistics(self._models.all(), self.settings.layout.tp)
        self._marker = Marker(self._kept)
        self._models.wrap(self._group, Step.HEAD + self._statistics.size)
        self._saves.prepare(self._kept, self._group)
        self._paced_at_s = time.monotonic()
        self._books.open(self._order, self.done, self._total)

    @property
    def _is_broken(self) -> bool:
        group = self._seat.group
        if group is not None and self._models.broken:
            group.abort()
        return group is not None and group.aborted

    # --- what was done

    def _settle_all(self, ask: Ask = NOTHING, leave: int = 0) -> Ask:
        """Read the sums of the steps that were taken; tell what was done, and return what rank 0 wants."""
        while len(self._pending) > leave:
            now = self._pending.popleft()
            values = now.head
            if round(values[now.WORKERS]) != self.world:
                self._not_summed(values[now.WORKERS])
            if self._adaptive and self._order and not now.void:
                self._adaptive.see(now, self._order)
            self.loss = values[0] if math.isfinite(values[0]) else None
            self._books.record(now.part, self.loss)
            if any(values[1 : now.NORM]):
                ask = ask.merge(Ask.decode(values[1 : now.NORM]))
        return ask

    def _not_summed(self, workers: float) -> None:
        """DDP sums nothing where a part of the model takes no part in the loss, or where the model is called past its
        wrapper: workers would drift apart without a word."""
        hint = "call the model that prepare returned; freeze parameters that the loss does not use"
        raise JobError(f"gradients of {workers:.0f} of {self.world} workers were summed", hint)

    def _plan_on(self) -> None:
        """The order of the data is known, or has changed."""
        assert self._order is not None
        total = self._order.total_steps if self._order.epochs < MANY_EPOCHS else None
        self._total = min(found) if (found := [each for each in (total, self._max_steps) if each]) else None
        self._books.reorder(self._order)

    def _save(self) -> None:
        assert self._order is not None
        scribe = self._books.scribe
        if scribe:
            scribe.saving(True)
        self._saves.begin(self._kept, self.done, self._metrics(), self._order, self._group)
        if scribe:
            scribe.resume()

    def _save_last(self) -> None:
        assert self._order is not None
        self._saves.save_last(self._kept, self.done, self._metrics(), self._order, self._group)

    def _rest(self) -> None:
        """Save, wait until it is committed, and end. Who cannot save goes on and says so; it is asked again."""
        import ray

        why = ""
        if scribe := self._books.scribe:
            scribe.saving(True)
        try:
            self._save_last()
        except JobError as error:
            why = error.message
            logger.warning("it cannot rest: %s", error)
        else:
            if not self._is_broken:
                self._books.close()
                ray.get(self._coordinator.finished.remote())  # who ends now is not lost
                raise Resting
        if scribe:
            scribe.resume(why)

    def _metrics(self) -> dict[str, Any]:
        return {"step": self.done, "loss": self.loss, "workers": self.world}
