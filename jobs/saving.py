"""When a run saves, what, and where it goes on from. Every rank comes here at the same step; rank 0 writes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tradewind.errors import JobError
from tradewind.jobs import checkpoint
from tradewind.jobs.data import Order
from tradewind.jobs.rank_zero import Scribe
from tradewind.jobs.regroup import Group
from tradewind.jobs.settings import RunSettings


class Saves:
    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self.step = 0  # of the last one
        self._at_s = time.monotonic()
        self._restored: Any = None
        self._order: Mapping[str, Any] | None = None

    def is_due(self, step: int) -> bool:
        """By steps: everybody sees it."""
        every = self._settings.checkpoint_every
        return every is not None and step % every == 0

    def is_due_by_time(self) -> bool:
        """By the clock: rank 0 tells the others."""
        every_s = self._settings.checkpoint_every_s
        return every_s is not None and time.monotonic() - self._at_s >= every_s

    def find(self, group: Group) -> int:
        """Rank 0 chooses, so that all start from the same one. Returns its step."""
        chosen: list[Any] = [checkpoint.newest(self._settings.folder) if group.rank == 0 else None]
        if group.world > 1:
            dist.broadcast_object_list(chosen, src=0, device=group.device)
        if chosen[0] is None:
            return 0
        path, meta = chosen[0]
        self._restored, self._order, self.step = checkpoint.load(path), meta.order, meta.step
        return self.step

    def restore(self, name: str, item: Any) -> None:
        """Fill an object that was just registered, if a checkpoint was found."""
        if self._restored is None:
            return
        if name not in self._restored["kept"]:
            known = ", ".join(self._restored["kept"])
            hint = "prepare the same objects in the same order, or start a run with another name"
            raise JobError(f"the checkpoint has no {name!r}, only: {known}", hint)
        item.load_state_dict(self._restored["kept"][name])

    def go_on(self, order: Order) -> Order:
        """The order of the data as it was saved, which may have grown its batch since. Frees what was read."""
        self._restored, saved = None, self._order
        if saved is None:
            return order
        was = Order(**saved)
        same = ("num_samples", "global_batch", "seed", "micro_batches", "shuffle")
        if any(getattr(was, name) != getattr(order, name) for name in same):
            hint = "use the same dataset, global_batch, micro_batches and seed, or start a run with another name"
            raise JobError(f"the checkpoint was made with {was}, this run has {order}", hint)
        return Order(**(asdict(order) | {"stages": was.stages}))

    def save(
        self,
        kept: Mapping[str, Any],
        step: int,
        metrics: Mapping[str, Any],
        order: Order | None,
        group: Group,
        scribe: Scribe | None,
    ) -> None:
        """`report` lets Ray Train know, and is the barrier."""
        import ray.train
        from ray.train import CheckpointUploadMode

        found = None
        if scribe is not None:
            began_s = time.monotonic()
            scribe.saving(True)
            path = self._write(kept, step, order, group)
            scribe.checkpointed(step, str(path), time.monotonic() - began_s)
            found = ray.train.Checkpoint.from_directory(str(path))
        ray.train.report(dict(metrics), checkpoint=found, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)
        self.step, self._at_s = step, time.monotonic()

    def _write(self, kept: Mapping[str, Any], step: int, order: Order | None, group: Group) -> Path:
        path = checkpoint.save(
            self._settings.folder,
            {"kept": {name: item.state_dict() for name, item in kept.items()}},
            step=step,
            attempt=group.roster.epoch,
            workers=group.world,
            order=asdict(order) if order else None,
        )
        # Ray Train removes what it knows of; twice as many are left for those that it never heard of.
        checkpoint.prune(self._settings.folder, 2 * self._settings.keep)
        return path
