"""What a training function holds in its hands, in every worker: `Run`.

`batches` gives each rank its part of the global batch; `step` commits an optimizer step. At that boundary everything
else happens: the global loss, the ledger, a checkpoint when one is due, the handover when a node leaves or joins.

All ranks must stop at the same step. They agree by one small all-reduce per step, which carries the loss and the
wish of rank 0; its result is read one step later, so that it costs no waiting (on a GPU: no synchronisation).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tradewind.errors import JobError
from tradewind.jobs import checkpoint, randomness
from tradewind.jobs.data import Batch, Loader, Order, Share, load, shares, to_device
from tradewind.jobs.rank_zero import Ask, HandoverWatcher, Scribe
from tradewind.jobs.sample_ledger import SampleLedger

HANDOVER_METRIC = "tradewind_handover"


@dataclass(frozen=True, slots=True)
class RunSettings:
    """What `fit` was told, as far as workers need it."""

    job_id: str
    folder: Path
    checkpoint_every: int | None = None  # steps
    checkpoint_every_s: float | None = None
    keep: int = 3
    seed: int = 0
    threads: int = 1
    ledger: Path | None = None
    curve: Path | None = None
    hold_s: float = 20.0  # how long a saved group waits for the change of size before it goes on


@dataclass(slots=True)
class Pending:
    """A step whose all-reduce is under way."""

    share: Share
    values: torch.Tensor
    work: Any
    has_loss: bool


class Run:
    """One worker's view of the training run. Made by `fit`; `ray.train`'s functions work beside it."""

    def __init__(
        self, settings: RunSettings, coordinator: Any, attempt: int, rank: int, world: int, device: Any
    ) -> None:
        self.settings = settings
        self.rank, self.world, self.attempt, self.device = rank, world, attempt, device
        self.done = 0  # optimizer steps taken, over all attempts
        self.loss: float | None = None  # global mean of the last step that all ranks have finished
        self._coordinator = coordinator
        self._kept: dict[str, Any] = {}
        self._order: Order | None = None
        self._pending: Pending | None = None
        self._share: Share | None = None
        self._saved_step = 0
        self._saved_at_s = time.monotonic()
        self._restored: Any = None
        self._restored_order: Mapping[str, int] | None = None
        self._pages: SampleLedger | None = None
        self._scribe = Scribe(coordinator, attempt, world, settings.curve) if rank == 0 else None
        self._watcher = HandoverWatcher(coordinator, attempt) if rank == 0 else None
        self._find_checkpoint()

    # --- what users call

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one to print or to write files."""
        return self.rank == 0

    def prepare(self, *objects: Any) -> Any:
        """Models (wrapped for data-parallel training), optimizers, schedulers: saved and restored from now on.

        Give them in the same order in every run. Returns what to use instead, in the same order.
        """
        ready = tuple(self._prepare_one(item) for item in objects)
        return ready[0] if len(ready) == 1 else ready

    def keep(self, name: str, item: Any) -> Any:
        """Save and restore anything with `state_dict` and `load_state_dict` under a name of its own."""
        if name in self._kept:
            raise JobError(f"{name!r} is kept already", "use another name")
        if self._restored is not None:
            if name not in self._restored["kept"]:
                known = ", ".join(self._restored["kept"])
                hint = "prepare the same objects in the same order, or start a run with another name"
                raise JobError(f"the checkpoint has no {name!r}, only: {known}", hint)
            item.load_state_dict(self._restored["kept"][name])
        self._kept[name] = item
        return item

    def batches(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        load: Loader = load,
    ) -> Iterator[Batch]:
        """This rank's part of every global batch that is left. Call `step` once for each."""
        self._order = order = Order(len(dataset), global_batch, epochs, seed)
        self._check_order(order)
        total = min(order.total_steps, max_steps or order.total_steps)
        self._begin(order, total)
        for part in shares(order, self.done, self.rank, self.world):
            if part.step > total:
                break
            self._share = part
            yield Batch(to_device(load(dataset, part.load), self.device), part, part.weight)
            if self.done != part.step:
                raise JobError(f"step {part.step} was not committed", "call run.step(loss) once for every batch")
        self._end()

    def step(self, loss: Any = None) -> None:
        """Commit one optimizer step: call it after `optimizer.step()`, with the mean loss of this rank's samples."""
        part = self._share
        if part is None or part.step != self.done + 1:
            raise JobError("run.step() without a batch", "call it once inside `for batch in run.batches(...)`")
        if self._pages:
            self._pages.record(part)
        self.done = part.step
        before, self._pending = self._pending, self._reduce(part, loss)
        ask = self._settle(before) if before else Ask()
        if ask.save or self._is_due(part.step):
            ask = self._merge(ask)
            self._save(ask)
            if ask.hold:
                self._hold(ask)

    # --- boundary of a step

    def _reduce(self, part: Share, loss: Any) -> Pending:
        values = torch.zeros(4, dtype=torch.float64, device=self.device)
        if loss is not None:
            value = loss.detach() if isinstance(loss, torch.Tensor) else torch.tensor(float(loss))
            values[0] = value.to(torch.float64) * (part.weight / self.world)
        if self._watcher:
            values[1:] = torch.tensor(self._wanted().encode(), dtype=torch.float64)
        work = dist.all_reduce(values, async_op=True) if self.world > 1 else None
        return Pending(part, values, work, loss is not None)

    def _settle(self, pending: Pending) -> Ask:
        """Wait for a step's all-reduce; tell what was done, and return what rank 0 wants."""
        if pending.work is not None:
            pending.work.wait()
        values = pending.values.tolist()
        self.loss = values[0] if pending.has_loss else None
        if self._scribe:
            self._scribe.step(pending.share, self.loss)
        return Ask.decode(values[1:])

    def _merge(self, ask: Ask) -> Ask:
        """Settle the step that is under way as well: what is saved is told before."""
        last, self._pending = self._pending, None
        later = self._settle(last) if last else Ask()
        return max(ask, later, key=lambda found: found.handover_id)

    def _wanted(self) -> Ask:
        assert self._watcher is not None
        found = self._watcher.take()
        every_s = self.settings.checkpoint_every_s
        due = every_s is not None and time.monotonic() - self._saved_at_s >= every_s
        return found or Ask(save=due)

    def _is_due(self, step: int) -> bool:
        every = self.settings.checkpoint_every
        return every is not None and step % every == 0

    # --- checkpoints

    def _save(self, ask: Ask) -> None:
        """Every rank comes here at the same step. Rank 0 writes; `report` lets Ray Train know, and is the barrier."""
        import ray.train
        from ray.train import CheckpointUploadMode

        found = None
        if self.rank == 0:
            found = ray.train.Checkpoint.from_directory(str(self._write()))
        metrics = {"step": self.done, "loss": self.loss, "workers": self.world, HANDOVER_METRIC: ask.handover_id}
        ray.train.report(metrics, checkpoint=found, checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD)
        self._saved_step, self._saved_at_s = self.done, time.monotonic()

    def _write(self) -> Path:
        assert self._scribe is not None
        began_s = time.monotonic()
        self._scribe.saving(True)
        path = checkpoint.save(
            self.settings.folder,
            {"kept": {name: item.state_dict() for name, item in self._kept.items()}, "rng": randomness.capture()},
            step=self.done,
            attempt=self.attempt,
            workers=self.world,
            order=asdict(self._order) if self._order else None,
        )
        # Ray Train removes what it knows of; twice as many are left for those that it never heard of.
        checkpoint.prune(self.settings.folder, 2 * self.settings.keep)
        self._scribe.checkpointed(self.done, path, time.monotonic() - began_s)
        return path

    def _hold(self, ask: Ask) -> None:
        """Wait for the change of size: this group is ended in here. If the change does not come, go on."""
        import ray

        if self.rank == 0:
            ray.get(self._coordinator.wait_release.remote(ask.handover_id, self.settings.hold_s))
        if self.world > 1:
            dist.barrier()
        if self._scribe:
            self._scribe.resume()

    def _find_checkpoint(self) -> None:
        """Rank 0 chooses, so that all ranks start from the same one."""
        chosen: list[Any] = [checkpoint.newest(self.settings.folder) if self.rank == 0 else None]
        if self.world > 1:
            dist.broadcast_object_list(chosen, src=0, device=self.device)
        if chosen[0] is None:
            return
        path, meta = chosen[0]
        self._restored = checkpoint.load(path)
        self._restored_order = meta.order
        self.done = self._saved_step = meta.step

    def _prepare_one(self, item: Any) -> Any:
        kept = self.keep(f"{len(self._kept)}:{type(item).__name__}", item)
        if not isinstance(item, torch.nn.Module):
            return kept
        kept.to(self.device)
        if self.world == 1 or not any(parameter.requires_grad for parameter in kept.parameters()):
            return kept
        return torch.nn.parallel.DistributedDataParallel(kept)

    # --- begin and end

    def _check_order(self, order: Order) -> None:
        saved = self._restored_order
        if saved is not None and (saved["num_samples"], saved["global_batch"], saved["seed"]) != (
            order.num_samples,
            order.global_batch,
            order.seed,
        ):
            hint = "use the same dataset, global_batch and seed, or start a run with another name"
            raise JobError(f"the checkpoint was made with {dict(saved)}, this run has {asdict(order)}", hint)

    def _begin(self, order: Order, total: int) -> None:
        if self._restored is not None:
            randomness.restore(self._restored["rng"], self.rank, self.settings.seed, self.done)
            self._restored = None  # free the memory
        if self.settings.ledger:
            self._pages = SampleLedger(self.settings.ledger, order, self.attempt, self.rank, self.world, self.done)
        if self._scribe:
            self._scribe.begin(self.done, total)
        if self._watcher:
            self._watcher.start()

    def _end(self) -> None:
        """The last steps are told, and the last state is saved."""
        if self._pending:
            self._merge(Ask())
        if self._saved_step != self.done:
            self._save(Ask())
        if self._scribe:
            self._scribe.flush()
        if self._pages:
            self._pages.close()


def work(train: Callable[[Run], Any], settings: RunSettings, coordinator: Any) -> Any:
    """The main function of every worker: make the Run, call the user's function, name a lost peer as such."""
    import ray
    import ray.train

    from tradewind.jobs.losses import PeerLost, is_communication

    context = ray.train.get_context()
    attempt = ray.get(coordinator.look.remote())["progress"]["attempt"]
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = ray.train.torch.get_device()
    else:
        torch.set_num_threads(settings.threads)
    randomness.seed_all(settings.seed)
    try:
        run = Run(settings, coordinator, attempt, context.get_world_rank(), context.get_world_size(), device)
        return train(run)
    except Exception as error:
        if is_communication(error):
            raise PeerLost(f"another worker cannot be reached: {error}") from error
        raise
