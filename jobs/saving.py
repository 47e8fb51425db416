"""When a run saves, what, and where it goes on from. Rank 0 decides when (its wish rides on the sums of a step); every
rank writes its part in the background, and the coordinator commits the whole."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import torch
import torch.distributed as dist

from tradewind.errors import JobError
from tradewind.jobs import dcp, interval, named_state
from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.data import Order
from tradewind.jobs.layout import Layout
from tradewind.jobs.regroup import Group
from tradewind.jobs.saver import Saver
from tradewind.jobs.settings import RunSettings
from tradewind.jobs.shards import Layout as Place

logger = logging.getLogger(__name__)

LOSSES_PER_NODE_H = 0.1  # of spot nodes, before any was seen
LAST_TRIES, LAST_WAIT_S = 3, 5.0  # when the last state of a run cannot be saved

Report = Callable[[Mapping[str, Any], str], None]


class Saves:
    def __init__(self, settings: RunSettings, coordinator: Any, report: Report) -> None:
        self._settings, self._coordinator, self._report = settings, coordinator, report
        self._checkpoints = Checkpoints.at(settings.where)
        self._saver = Saver(self._checkpoints.store, self._told)
        self.step = 0  # of the last one that was begun
        self._at_s = time.monotonic()
        self._order: Mapping[str, Any] | None = None
        self._metrics: Mapping[str, Any] | None = None  # of the save that is under way, on rank 0
        self._costs: interval.Costs | None = None
        self._every = interval.choose(
            None, nodes=1, sudden=interval.Rate.prior(LOSSES_PER_NODE_H), noticed=interval.Rate(0.0, 1.0), notice_s=0.0
        )

    # --- when

    def is_due(self, step: int) -> bool:
        """Asked on rank 0 before each step. One that is due while another is being written comes right after it."""
        if self._saver.busy or step == self.step:
            return False
        every, every_s = self._settings.checkpoint_every, self._settings.checkpoint_every_s
        if every is not None:
            return step // every > self.step // every
        return time.monotonic() - self._at_s >= (every_s if every_s is not None else self._every.every_s)

    # --- going on

    def restore(self, kept: Mapping[str, Any], group: Group) -> int:
        """Fill everything that is kept with the newest whole checkpoint. Returns its step; 0: there is none."""

        def state_for(contents: Mapping[str, torch.Tensor | None]) -> dict[str, Any]:
            specs = {name: (tuple(spec.shape), spec.dtype) for name, spec in contents.items() if spec is not None}
            named_state.allocate(kept, specs)
            return named_state.flat(kept)

        found = dcp.restore(
            self._checkpoints,
            state_for,
            is_first=group.rank == 0,
            share=lambda value: _share(value, group),
            agree=lambda yes: _agree(yes, group),
        )
        if found is None:
            return 0
        meta, state = found
        named_state.put(kept, state)
        self._order, self.step = meta.order, meta.step
        return self.step

    def go_on(self, order: Order, free: bool = False) -> Order:
        """The order of the data as it was saved, which may have grown its batch since. `free`: nobody has said how many
        micro-batches there should be; the default follows from the most workers, which may be others now."""
        if self._order is None:
            return order
        was = Order(**self._order)
        if free:
            order = replace(order, micro_batches=was.micro_batches)
        same = ("num_samples", "global_batch", "seed", "micro_batches", "shuffle")
        if any(getattr(was, name) != getattr(order, name) for name in same):
            hint = "use the same dataset, global_batch, micro_batches and seed, or start a run with another name"
            raise JobError(f"the checkpoint was made with {was}, this run has {order}", hint)
        return replace(order, stages=was.stages)

    # --- saving

    def prepare(self, kept: Mapping[str, Any], group: Group) -> None:
        """The group has changed, and with it what this rank writes: have memory ready for it."""
        self._saver.prepare(named_state.flat(kept), self._place(group))

    def begin(self, kept: Mapping[str, Any], step: int, metrics: Mapping[str, Any], order: Order, group: Group) -> None:
        """Copy this rank's part; the rest happens in the background. Everybody comes here at the same step: who is
        still busy with the part before waits, rank 0 was not."""
        self._saver.wait()
        self._metrics = metrics if group.rank == 0 else None
        self._order = asdict(order)
        self._saver.begin(named_state.flat(kept), step=step, attempt=group.roster.epoch, layout=self._place(group))
        self.step, self._at_s = step, time.monotonic()

    def save_last(
        self, kept: Mapping[str, Any], step: int, metrics: Mapping[str, Any], order: Order, group: Group
    ) -> None:
        """Save, and wait until it is committed. Everybody hears the same outcome."""
        if self.step == step:  # begun already
            part = self._saver.wait()
            if part is None or not part.error:
                return
        for left in reversed(range(LAST_TRIES)):
            self.begin(kept, step, metrics, order, group)
            part = self._saver.wait()
            if part is None or not part.error:
                return
            logger.warning("the last state is not saved yet: %s", part.error)
            self.step = -1
            if left:
                time.sleep(LAST_WAIT_S)
            else:
                hint = "make room or mend the storage, and run it again: it goes on from the last checkpoint"
                raise JobError(f"the state of step {step} could not be saved: {part.error}", hint)

    def close(self) -> None:
        """Let a save that is under way come to its end."""
        self._saver.close()

    def _told(self, part: Part) -> None:
        """In the background: this rank's part is durable, or failed. Wait for what becomes of the whole."""
        import ray

        metrics = self._metrics
        outcome = ray.get(self._coordinator.saved.remote(part, self._order))
        if outcome["why"]:
            raise JobError(outcome["why"], "the one before it stays")
        if metrics is not None:
            self._learn(outcome)
            self._report(metrics, outcome["path"])

    def _learn(self, outcome: Mapping[str, Any]) -> None:
        """How often to save follows from what saves cost."""
        stall_s, write_s = outcome["stall_s"], outcome["write_s"]
        self._costs = self._costs.then(stall_s, write_s) if self._costs else interval.Costs(stall_s, write_s)
        settings, before = self._settings, self._every.every_s
        nodes = 1 if settings.layout.is_ddp else settings.max_workers  # of replicated state, all copies must be lost
        seen = outcome["hazard"]
        self._every = interval.choose(
            self._costs,
            nodes=nodes,
            sudden=interval.Rate.prior(LOSSES_PER_NODE_H).seen(seen["sudden"], seen["worker_h"]),
            noticed=interval.Rate(0.0, 1.0).seen(seen["noticed"], seen["worker_h"]),
            notice_s=seen["notice_s"],
        )
        automatic = settings.checkpoint_every is None and settings.checkpoint_every_s is None
        if automatic and not math.isclose(before, self._every.every_s, rel_tol=0.25):
            self._coordinator.interval.remote(str(self._every))

    def _place(self, group: Group) -> Place:
        return place(self._settings.layout, group.rank, group.world)


def place(layout: Layout, rank: int, world: int) -> Place:
    """Where a rank stands, as far as its part of a checkpoint is concerned."""
    size = world if layout.whole else layout.replica_size
    if layout.pp == 1:
        return Place(rank, world, size)
    first, stage = rank - rank % size, layout.coordinate(rank, world).stage
    same = tuple(each for each in range(first, first + size) if layout.coordinate(each, world).stage == stage)
    return Place(rank, world, size, same)


def _share(value: Any, group: Group) -> Any:
    chosen = [value]
    if group.world > 1:
        dist.broadcast_object_list(chosen, src=0, device=group.device)
    return chosen[0]


def _agree(yes: bool, group: Group) -> bool:
    votes = torch.tensor([int(yes)], device=group.device)
    if group.world > 1:
        dist.all_reduce(votes, op=dist.ReduceOp.MIN)
    return bool(votes.item())
