"""What a training function holds in its hands, in every worker: `Run`.

`batches` gives each rank its part of the global batch; `step` commits an optimizer step. At that boundary everything
else happens: the global loss, the ledger, a checkpoint when one is due, the handover when a node leaves or joins.

When the group changes (`seat.py`), the step that was interrupted is given out once more, and what it has touched is put
back: the user's loop sees nothing but one batch too many.

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
from tradewind.jobs import checkpoint, randomness, regroup
from tradewind.jobs.data import Batch, Loader, Order, Share, load, share, to_device
from tradewind.jobs.losses import PeerLost, is_communication
from tradewind.jobs.mark import Mark
from tradewind.jobs.membership import NOTHING_YET
from tradewind.jobs.rank_zero import Ask, HandoverWatcher, Scribe
from tradewind.jobs.sample_ledger import SampleLedger
from tradewind.jobs.seat import Dismissed, Seat


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


@dataclass(slots=True)
class Pending:
    """A step whose all-reduce is under way."""

    share: Share
    values: torch.Tensor
    work: Any
    has_loss: bool


class Run:
    """One worker's view of the training run. Made by `fit`; `ray.train`'s functions work beside it."""

    def __init__(self, settings: RunSettings, coordinator: Any, seat: Seat, joins: bool, device: Any) -> None:
        self.settings, self.device = settings, device
        self.rank, self.world, self.attempt = 1, 2, 0  # of a joiner, until it is let in
        self.done = 0  # optimizer steps taken, over all attempts
        self.loss: float | None = None  # global mean of the last step that all ranks have finished
        self._coordinator = coordinator
        self._kept: dict[str, Any] = {}
        self._order: Order | None = None
        self._total = 0
        self._pending: Pending | None = None
        self._share: Share | None = None
        self._saved_step = 0
        self._saved_at_s = time.monotonic()
        self._restored: Any = None
        self._restored_order: Mapping[str, int] | None = None
        self._pages: SampleLedger | None = None
        self._untold: list[Share] = []  # steps whose loss is not known yet
        self._scribe: Scribe | None = None
        self._watcher: HandoverWatcher | None = None
        self._seat, self._joins = seat, joins
        self._replicas: list[regroup.Replica] = []
        self._mark: Mark | None = None
        if not joins:
            self._sit(seat.meet(0, broken=False))
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
        self._begin(total)
        while self.done < total:
            self._share = part = share(order, self.done + 1, self.rank, self.world)
            self._mark = Mark.take(self._kept)
            yield Batch(to_device(load(dataset, part.load), self.device), part, part.weight)
            if self._share is not None:
                raise JobError(f"step {part.step} was not committed", "call run.step(loss) once for every batch")
        self._end()

    def step(self, loss: Any = None) -> None:
        """Commit one optimizer step: call it after `optimizer.step()`, with the mean loss of this rank's samples."""
        part = self._share
        if part is None:
            raise JobError("run.step() without a batch", "call it once inside `for batch in run.batches(...)`")
        self._share = None
        if any(replica.broken for replica in self._replicas):
            self._regroup(broken=True)  # the same batch comes again
            return
        self._commit(part)
        try:
            self._cross(part, loss)
        except RuntimeError as error:
            if not is_communication(error):
                raise
            self._regroup(broken=True)

    # --- boundary of a step

    def _commit(self, part: Share) -> None:
        if self._pages:
            self._pages.record(part)
        self.done, self._mark = part.step, None
        self._untold.append(part)

    def _cross(self, part: Share, loss: Any) -> None:
        before, self._pending = self._pending, self._reduce(part, loss)
        ask = self._settle(before) if before else Ask()
        if ask.save or ask.regroup or self._is_due(part.step):
            ask = self._merge(ask)
        if ask.save or self._is_due(part.step):
            self._save()
        if ask.regroup:
            self._regroup(broken=False)

    # --- change of the group

    def _regroup(self, broken: bool) -> None:
        """Stand in the next group, with the state of the most advanced. What an interrupted step has touched is put
        back first: who leads gives its state to the others."""
        if self._mark:
            self._mark.put_back(self._kept)
        step = NOTHING_YET if self._joins else self.done
        while True:
            try:
                group = self._seat.meet(step, broken)
                for replica in self._replicas:
                    replica.attach(group)
                adopted = regroup.hand_over(group, self._kept, {})
                break
            except RuntimeError as error:
                if not is_communication(error):
                    raise
                broken = True
        self._tell_untold()
        self._vouch(group)
        if adopted is not None or self._joins:
            randomness.draw_afresh(group.rank, self.settings.seed, group.roster.step)
        self._joins, self.done = False, group.roster.step
        self._sit(group)
        self._open_books()

    def _sit(self, group: regroup.Group) -> None:
        from tradewind.jobs.ray_group import take_rank

        was_first = self.attempt and self.rank == 0
        self.rank, self.world, self.attempt = group.rank, group.world, group.roster.epoch
        take_rank(self.rank, self.world)
        if self._scribe:
            self._scribe.close()
        if self._watcher:
            self._watcher.stop()
        first = self.rank == 0
        self._scribe = Scribe(self._coordinator, self.attempt, self.world, self.settings.curve) if first else None
        self._watcher = HandoverWatcher(self._coordinator, self.attempt) if first else None
        if first:
            checkpoint.next_attempt(self.settings.folder, above=self.attempt - 1)
        if first and not was_first and self._order:
            self._catch_up(self._order)

    def _catch_up(self, order: Order) -> None:
        """The rank 0 before this one is lost, with what it had not told."""
        import ray

        assert self._scribe is not None
        told = ray.get(self._coordinator.look.remote())["progress"]["step"]
        samples = sum(len(order.indices(step)) for step in range(told + 1, self.done + 1))
        self._scribe.catch_up(told + 1, self.done, samples)

    def _tell_untold(self) -> None:
        """Their loss went with the group; that they were taken did not."""
        for part in self._untold if self._scribe else []:
            assert self._scribe is not None
            self._scribe.step(part, None)
        self._untold, self._pending = [], None

    def _vouch(self, group: regroup.Group) -> None:
        """Who leads has taken its last step with all of its group: it writes down the others' parts as well."""
        step, order = group.roster.step, self._order
        if self._pages is None or order is None:
            return
        if group.rank == group.roster.leader and step > self._pages.after_step:
            for rank in set(range(self.world)) - {self.rank}:
                self._pages.vouch(step, rank, share(order, step, rank, self.world).indices.tolist())
        self._pages.close()

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
        self._untold.remove(pending.share)
        self.loss = values[0] if pending.has_loss else None
        if self._scribe:
            self._scribe.step(pending.share, self.loss)
        return Ask.decode(values[1:])

    def _merge(self, ask: Ask) -> Ask:
        """Settle the step that is under way as well: what is saved is told before."""
        last, self._pending = self._pending, None
        later = self._settle(last) if last else Ask()
        return Ask(ask.save or later.save, ask.regroup or later.regroup, max(ask.handover_id, later.handover_id))

    def _wanted(self) -> Ask:
        assert self._watcher is not None
        if self._seat.wanted:
            return Ask(regroup=True)
        found = self._watcher.take()
        every_s = self.settings.checkpoint_every_s
        due = every_s is not None and time.monotonic() - self._saved_at_s >= every_s
        return found or Ask(save=due)

    def _is_due(self, step: int) -> bool:
        every = self.settings.checkpoint_every
        return every is not None and step % every == 0

    # --- checkpoints

    def _save(self) -> None:
        """Every rank comes here at the same step. Rank 0 writes; `report` lets Ray Train know, and is the barrier."""
        import ray.train
        from ray.train import CheckpointUploadMode

        found = None
        if self.rank == 0:
            found = ray.train.Checkpoint.from_directory(str(self._write()))
        metrics = {"step": self.done, "loss": self.loss, "workers": self.world}
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
        if isinstance(item, torch.optim.Optimizer):
            item.register_step_pre_hook(self._guard)
        if not isinstance(item, torch.nn.Module):
            return kept
        replica = regroup.Replica(kept.to(self.device))
        self._replicas.append(replica)
        if not self._joins and self._seat.group:
            replica.attach(self._seat.group)
        return replica

    def _guard(self, optimizer: Any, *_: Any) -> None:
        """Gradients of an interrupted step are void: the step is taken again."""
        if any(replica.broken for replica in self._replicas):
            regroup.void_gradients(optimizer)

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

    def _begin(self, total: int) -> None:
        if self._restored is not None:
            randomness.restore(self._restored["rng"], self.rank, self.settings.seed, self.done)
            self._restored = None  # free the memory
        self._total = total
        if self._joins:
            self._regroup(broken=False)
        else:
            self._open_books()

    def _open_books(self) -> None:
        if self.settings.ledger and self._order:
            self._pages = SampleLedger(
                self.settings.ledger, self._order, self.attempt, self.rank, self.world, self.done
            )
        if self._scribe:
            self._scribe.begin(self.done, self._total)
        if self._watcher:
            self._watcher.start()

    def _end(self) -> None:
        """The last steps are told, and the last state is saved. If somebody is lost meanwhile, once more."""
        while True:
            try:
                if self._pending:
                    self._merge(Ask())
                if self._saved_step != self.done:
                    self._save()
                if self._seat.group is None or not self._seat.group.aborted:
                    break
            except RuntimeError as error:
                if not is_communication(error):
                    raise
            self._regroup(broken=True)
        self._coordinator.finished.remote()
        if self._scribe:
            self._scribe.flush()
        if self._pages:
            self._pages.close()


def work(train: Callable[[Run], Any], settings: RunSettings, coordinator: Any) -> Any:
    """The main function of every worker: make the Run, call the user's function, name a lost peer as such."""
    import ray
    import ray.train

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = ray.train.torch.get_device()
    else:
        torch.set_num_threads(settings.threads)
    randomness.seed_all(settings.seed)
    member, host = ray.get_runtime_context().get_actor_id(), ray.util.get_node_ip_address()
    joins = bool(ray.get(coordinator.members.remote())["members"])
    try:
        return train(Run(settings, coordinator, Seat(coordinator, member, host, device), joins, device))
    except Dismissed:
        return None
    except Exception as error:
        if is_communication(error):
            raise PeerLost(f"another worker cannot be reached: {error}") from error
        raise
