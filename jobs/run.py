"""What a training function holds in its hands, in every worker: `Run`.

`batches` gives out this worker's logical micro-batches; `backward` sums gradients over all of a step. Where the loop
asks for the next batch after the last of a step, everything else happens: the ledger, a checkpoint when one is due, the
handover when a node leaves or joins.

When the group changes (`seat.py`), the step that was interrupted is given out once more, and what it has touched is put
back: the user's loop sees nothing but some batches twice.

All ranks must stop at the same step: rank 0's wish rides on the small all-reduce of each step (`step.py`). On a GPU it
is read one step later, so that nothing waits for the device.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch

from tradewind.errors import JobError
from tradewind.jobs import checkpoint, randomness, regroup
from tradewind.jobs.books import Books
from tradewind.jobs.data import Batch, Loader, Order, load, seed_of, share, to_device
from tradewind.jobs.losses import PeerLost, is_communication
from tradewind.jobs.mark import Mark
from tradewind.jobs.membership import NOTHING_YET
from tradewind.jobs.rank_zero import Ask, Told
from tradewind.jobs.saving import Saves
from tradewind.jobs.seat import Dismissed, Seat
from tradewind.jobs.settings import RunSettings
from tradewind.jobs.step import Stash, Statistics, Step, average


class Run:
    """One worker's view of the training run. Made by `fit`; `ray.train`'s functions work beside it."""

    def __init__(self, settings: RunSettings, coordinator: Any, seat: Seat, joins: bool, device: Any) -> None:
        self.settings, self.device = settings, device
        self.rank, self.world, self.attempt = 1, 2, 0  # of a joiner, until it is let in
        self.done = 0  # optimizer steps taken, over all attempts
        self.loss: float | None = None  # global mean of the last step that all ranks have finished
        self._coordinator, self._seat, self._joins = coordinator, seat, joins
        self._books, self._saves = Books(settings, coordinator), Saves(settings)
        self._kept: dict[str, Any] = {}
        self._replicas: list[regroup.Replica] = []
        self._order: Order | None = None
        self._total: int | None = None
        self._now: Step | None = None
        self._pending: deque[tuple[Step, Told]] = deque()  # taken, and their sums not read yet
        self._mark: Mark | None = None
        self._stash, self._statistics = Stash(), Statistics([])
        self._ended = False
        if not joins:
            self._sit(seat.meet(0, broken=False))
            self.done = self._saves.find(self._group)

    # --- what users call

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one to print or to write files."""
        return self.rank == 0

    def prepare(self, *objects: Any) -> Any:
        """Models (wrapped for parallel training), optimizers, schedulers: saved and restored from now on.

        Give them in the same order in every run. Returns what to use instead, in the same order.
        """
        ready = tuple(self._prepare_one(item) for item in objects)
        return ready[0] if len(ready) == 1 else ready

    def keep(self, name: str, item: Any) -> Any:
        """Save and restore anything with `state_dict` and `load_state_dict` under a name of its own. Of a model that is
        kept and not prepared, `backward` averages the gradients."""
        if name in self._kept:
            raise JobError(f"{name!r} is kept already", "use another name")
        self._saves.restore(name, item)
        if isinstance(item, torch.nn.Module) and not self._joins:
            regroup.agree(item, self._group)
        if isinstance(item, torch.optim.Optimizer):
            item.register_step_pre_hook(self._guard)
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
        micro_batches: int | None = None,
        load: Loader = load,
    ) -> Iterator[Batch]:
        """This worker's micro-batches of every global batch that is left. Call `backward` once for each.

        A global batch is cut into `micro_batches` (the most workers, by default), whatever the number of workers is.
        """
        micros = micro_batches or min(self.settings.max_data_ranks, global_batch)
        order = Order(len(dataset), global_batch, epochs, seed, micros)
        self._begin(order, max_steps)
        while self.done < (self._total or 0):
            yield from self._take_step(dataset, load)
        self.finish()

    def backward(self, loss: torch.Tensor, **options: Any) -> None:
        """Instead of `loss.backward()`: the gradient of the mean over all samples of the step, summed over all workers.
        `loss` is the mean over this batch."""
        now = self._now
        if now is None:
            raise JobError("run.backward() without a batch", "call it inside `for batch in run.batches(...)`")
        now.add(loss)
        self._stash.lay_open()
        try:
            if now.is_last:
                self._send(now)
            (loss * (now.micro.weight * self.world)).backward(**options)
            if now.is_last and self.world > 1 and not self._is_broken:
                average((each for model in self._bare() for each in model.parameters()), self.world)
        except RuntimeError as error:
            if not is_communication(error):
                raise
            self._seat.fail()
        if not now.is_last:
            self._stash.put_aside(self._parameters())

    def finish(self) -> None:
        """The last steps are told, and the last state is saved. Called by itself at the end of the data, and when the
        training function returns. If somebody is lost meanwhile, once more."""
        now = self._now
        if now is not None and now.is_last and now.done_backward:  # the loop was left after a step
            self._cross()
        while self._order is not None and not self._ended:
            try:
                self._settle_all(Ask())
                if self._saves.step != self.done:
                    self._save()
                if not self._is_broken:
                    break
            except RuntimeError as error:
                if not is_communication(error):
                    raise
            self._regroup(broken=True)
        if not self._ended and self._order is not None:
            self._coordinator.finished.remote()
            self._books.close()
            self._ended = True

    # --- one step

    def _take_step(self, dataset: Any, load: Loader) -> Iterator[Batch]:
        assert self._order is not None
        part = share(self._order, self.done + 1, *self._place)
        self._mark = Mark.take(self._kept)
        self._now = now = Step(part, self._statistics, self.world // self._place[1], self.device)
        while True:
            micro = now.micro
            for replica in self._replicas:
                replica.sums = now.is_last
            randomness.seed_all(seed_of(self.settings.seed, part.step, micro.number))
            data = to_device(load(dataset, micro.load), self.device)
            yield Batch(data, micro, part.step, part.epoch, now.is_last)
            if now.is_last or self._is_broken:
                break
            now.next_turn()
            self._mark.put_back(self._kept)
        self._cross()

    def _send(self, now: Step) -> None:
        watches = self._books.watcher is not None
        now.send(self._wanted().encode() if watches else None, alone=self.world == 1)

    def _guard(self, optimizer: Any, *_: Any) -> None:
        """Before an optimizer moves: gradients of an interrupted step are void, the step is taken again."""
        now = self._now
        if now is not None and now.is_last and now.done_backward and not self._counts(now):
            regroup.void_gradients(optimizer)

    def _counts(self, now: Step) -> bool:
        """Whether a step is whole on this worker. Decided once, before any optimizer moves."""
        if now.verdict is None:
            try:
                if not self._is_broken:
                    now.wait()
            except RuntimeError as error:
                if not is_communication(error):
                    raise
                self._seat.fail()
            now.verdict = not self._is_broken
            if now.verdict and self._can_look and not math.isfinite(now.values[0].item()):
                self._loss_is_no_number(now)
        return now.verdict and not now.void

    def _cross(self) -> None:
        """The boundary of a step."""
        now, self._now = self._now, None
        assert now is not None
        self._stash.drop()
        if not now.done_backward and not self._is_broken:
            now.next_turn()  # raises
        if not now.done_backward or not (self._counts(now) or now.void):
            self._regroup(broken=True)  # the same batches come again
            return
        told = Told(now.part.step, now.part.global_size, None)
        self.done, self._mark = now.part.step, None
        self._pending.append((now, told))
        try:
            self._arrange(now.part.step)
        except RuntimeError as error:
            if not is_communication(error):
                raise
            self._regroup(broken=True)

    def _arrange(self, step: int) -> None:
        """Save, or meet, if this is the time for it."""
        ask = self._settle_all(Ask(), leave=1 if self.device.type == "cuda" else 0)
        due = self._saves.is_due(step)
        if ask.save or ask.regroup or due:
            ask = self._settle_all(ask)
        if ask.save or due:
            self._save()
        if ask.regroup or self._is_broken:
            self._regroup(broken=self._is_broken)

    def _settle_all(self, ask: Ask, leave: int = 0) -> Ask:
        """Read the sums of the steps that were taken; tell what was done, and return what rank 0 wants."""
        while len(self._pending) > leave:
            now, told = self._pending.popleft()
            values = now.values[: now.HEAD].tolist()
            self.loss = values[0] if math.isfinite(values[0]) else None
            told = Told(told.step, told.samples, self.loss)
            self._books.record(now.part.indices, told)
            self._books.tell(told)
            ask = ask.merge(Ask.decode(values[1:]))
        return ask

    def _loss_is_no_number(self, now: Step) -> None:
        """Everybody sees the same number, and nothing of this step has reached the model yet."""
        step, loss = now.part.step, float(now.values[0])
        if self.settings.on_nan == "skip":
            now.void = True
            return
        if self._mark:
            self._mark.put_back(self._kept)
        self._save()
        hint = (
            f"the state before it is saved as step {self.done}; look at data and learning rate, or fit(on_nan='skip')"
        )
        raise JobError(f"the loss of step {step} is {loss}", hint)

    def _wanted(self) -> Ask:
        assert self._books.watcher is not None
        if self._seat.wanted:
            return Ask(regroup=True)
        return self._books.watcher.take() or Ask(save=self._saves.is_due_by_time())

    @property
    def _can_look(self) -> bool:
        """Whether a number can be read without waiting for a device, or has to be."""
        return self.device.type == "cpu" or self.settings.on_nan == "skip"

    # --- change of the group

    def _regroup(self, broken: bool) -> None:
        """Stand in the next group, with the state of the most advanced. What an interrupted step has touched is put
        back first: who leads gives its state to the others."""
        if self._mark:
            self._mark.put_back(self._kept)
            self._mark = None
        self._settle_all(Ask())
        self._now = None
        step = NOTHING_YET if self._joins else self.done
        while True:
            try:
                group = self._seat.meet(step, broken)
                for replica in self._replicas:
                    replica.attach(group)
                extra = {"history": self._books.remembered(), "order": self._order}
                adopted = regroup.hand_over(group, self._kept, extra)
                break
            except RuntimeError as error:
                if not is_communication(error):
                    raise
                broken = True
        self._books.leave(group.roster.step, leads=step == group.roster.step)
        if adopted is not None:
            self._books.adopt(adopted["history"])
            self._order = adopted["order"]
        self._joins, self.done = False, group.roster.step
        self._sit(group)
        assert self._order is not None
        self._books.open(self._order, self.done, self._total)

    def _sit(self, group: regroup.Group) -> None:
        from tradewind.jobs.ray_group import take_rank

        self._group = group
        self.rank, self.world, self.attempt = group.rank, group.world, group.roster.epoch
        layout = self.settings.layout
        self._place = layout.data_rank(self.rank, self.world), layout.data_world(self.world)
        take_rank(self.rank, self.world)
        self._books.sit(group, self._place)
        if self.is_first:
            checkpoint.next_attempt(self.settings.folder, above=self.attempt - 1)

    @property
    def _is_broken(self) -> bool:
        group = self._seat.group
        return group is not None and group.aborted

    # --- begin and end

    def _save(self) -> None:
        metrics = {"step": self.done, "loss": self.loss, "workers": self.world}
        self._saves.save(self._kept, self.done, metrics, self._order, self._group, self._books.scribe)

    def _prepare_one(self, item: Any) -> Any:
        if isinstance(item, torch.nn.Module):
            item.to(self.device)
        kept = self.keep(f"{len(self._kept)}:{type(item).__name__}", item)
        if not isinstance(item, torch.nn.Module):
            return kept
        replica = regroup.Replica(kept, self.settings.precision)
        self._replicas.append(replica)
        if not self._joins:
            replica.attach(self._group)
        return replica

    def _bare(self) -> list[torch.nn.Module]:
        wrapped = {replica.module for replica in self._replicas}
        return [item for item in self._kept.values() if isinstance(item, torch.nn.Module) and item not in wrapped]

    def _modules(self) -> list[torch.nn.Module]:
        return [item for item in self._kept.values() if isinstance(item, torch.nn.Module)]

    def _parameters(self) -> Iterator[torch.Tensor]:
        return (parameter for model in self._modules() for parameter in model.parameters())

    def _begin(self, order: Order, max_steps: int | None) -> None:
        if self._order is not None:
            raise JobError("a run has one order of data", "call run.batches once, with all epochs")
        self._order = self._saves.go_on(order)
        self._statistics = Statistics(self._modules())
        self._total = min(self._order.total_steps, max_steps or self._order.total_steps)
        if self._joins:
            self._regroup(broken=False)
        else:
            self._books.open(self._order, self.done, self._total)


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
        run = Run(settings, coordinator, Seat(coordinator, member, host, device), joins, device)
        result = train(run)
        run.finish()
        return result
    except Dismissed:
        return None
    except Exception as error:
        if is_communication(error):
            raise PeerLost(f"another worker cannot be reached: {error}") from error
        raise
