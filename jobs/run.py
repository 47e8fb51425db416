"""What a training function holds in its hands, in every worker: `Run`.

`batches` gives out this worker's logical micro-batches; `backward` sums gradients over all of a step. Where the loop
asks for the next batch after the last of a step, everything else happens: the ledger, a checkpoint when one is due, the
handover when a node leaves or joins.

When the group changes (`seat.py`), the step that was interrupted is given out once more, and what it has touched is put
back: the user's loop sees nothing but some batches twice.

All ranks must stop at the same step: rank 0's wish rides on the sums of each step (`step.py`). On a GPU it
is read one step later, so that nothing waits for the device.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import DataLoader

from tradewind.errors import JobError
from tradewind.jobs import randomness, regroup
from tradewind.jobs.adaptive import KEPT_AS, Adaptive
from tradewind.jobs.data import Batch, Order
from tradewind.jobs.feed import Epochs, Feed, Loader, Loading, Reading, is_shuffled, load, to_device
from tradewind.jobs.losses import PeerLost, Rested, is_communication
from tradewind.jobs.member import MANY_EPOCHS, Member
from tradewind.jobs.rank_zero import NOTHING, Ask
from tradewind.jobs.seat import Dismissed, Resting, Seat
from tradewind.jobs.settings import RunSettings
from tradewind.jobs.sharded import ShardedModel
from tradewind.jobs.step import Step, average


class Run(Member):
    """One worker's view of the training run. Made by `fit`; `ray.train`'s functions work beside it."""

    # --- what users call

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0: the one to print or to write files."""
        return self.rank == 0

    def prepare(self, *objects: Any) -> Any:
        """Models (wrapped for parallel training), optimizers, schedulers: saved and restored from now on. A DataLoader,
        whose `batch_size` is the global batch: what comes instead gives this worker's micro-batches, a pass an epoch.

        Give them in the same order in every run. Returns what to use instead, in the same order.
        """
        self._check_early("prepare")
        group = None if self._joins else self._group
        found = [self._follow(item) if isinstance(item, DataLoader) else item for item in objects]
        kept = iter(self._models.prepare([item for item in found if not isinstance(item, Epochs)], group, self._guard))
        ready = tuple(item if isinstance(item, Epochs) else next(kept) for item in found)
        return ready[0] if len(ready) == 1 else ready

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`, for loops over a prepared DataLoader. The first one may be half done."""
        if self._data is None:
            raise JobError("run.epochs() without data", "prepare a DataLoader first, or use run.batches(epochs=...)")
        self._begin(replace(self._order_of(self._data), epochs=count), None)
        assert self._order is not None
        for epoch in range(self._order.epoch_of(max(1, self.done)), count):
            self._data.epoch = epoch - 1  # the next pass
            yield epoch
        self.finish()

    def keep(self, name: str, item: Any) -> Any:
        """Save and restore anything with `state_dict` and `load_state_dict` under a name of its own. Of a model that is
        kept and not prepared, `backward` averages the gradients."""
        self._check_early("keep")
        return self._models.keep(name, item, None if self._joins else self._group, self._guard)

    def batches(
        self,
        dataset: Any,
        *,
        global_batch: int,
        epochs: int = 1,
        seed: int = 0,
        max_steps: int | None = None,
        micro_batches: int | None = None,
        max_batch: int | None = None,
        lr_rule: str = "adascale",
        load: Loader = load,
    ) -> Iterator[Batch]:
        """This worker's micro-batches of every global batch that is left. Call `backward` once for each.

        A global batch is cut into `micro_batches` (the most workers, by default), whatever the number of workers is.
        With `max_batch`, the batch grows up to that as far as the gradient noise allows, and the learning rate follows
        by `lr_rule`: "adascale", or "sqrt" for Adam and its kind.
        """
        micros = micro_batches or min(self.settings.max_data_ranks, global_batch)
        order = Order(len(dataset), global_batch, epochs, seed, micros, even=self.settings.layout.talks_in_forward)
        if max_batch is not None:
            self._adaptive = Adaptive(order, max_batch, lr_rule, self.settings.layout.is_ddp)
            self.keep(KEPT_AS, self._adaptive.noise)
            self._models.on_move.append(self._adaptive.slow_down)
        self._begin(order, max_steps, free=micro_batches is None)
        feed = Reading(dataset, load)
        while self.done < (self._total or 0):
            yield from self._take_step(feed)
        self.finish()

    def backward(self, loss: torch.Tensor, *, retain_graph: bool = False) -> None:
        """Instead of `loss.backward()`: the gradient of the mean over all samples of the step, summed over all workers.
        `loss` is the mean over this batch."""
        now = self._batch()
        now.add(loss)
        if self._adaptive:
            self._backward_apart(loss, now, self._adaptive)
            return
        self._stash.lay_open()
        with self._losses:
            if sharded := self._models.sharded:
                sharded.backward(loss * now.micro.weight, now.is_last)  # sums over shards and replicas
                self._close_step(now)
            else:
                self._backward(loss, now, retain_graph)
            if now.is_last and self.world > 1 and not self._is_broken and (rest := self._models.unsummed):
                average((each for model in rest for each in model.parameters()), self.world)
        if not now.is_last:
            self._stash.put_aside(self._models.parameters())

    def _backward(self, loss: torch.Tensor, now: Step, retain_graph: bool) -> None:
        """Averages over workers. The sums of the step ride with the gradients, where there are some that go round."""
        weight = now.micro.weight * self.world
        if now.is_last and (carriers := self._models.carriers):
            numbers = now.numbers(self._wishes(), times=self.world)
            now.unload(carriers[0].backward(loss, weight, numbers, retain_graph, carriers[1:]))
            return
        if now.is_last:
            self._send(now)  # goes round while the backward pass computes
        (loss * weight).backward(retain_graph=retain_graph)

    def _backward_apart(self, loss: torch.Tensor, now: Step, adaptive: Adaptive) -> None:
        parameters = list(self._models.parameters())
        adaptive.backward(loss, now, self._stash, parameters, self.world)
        with self._losses:
            if now.is_last:
                self._send(now)
                adaptive.close(now, self._stash, parameters, self.world)

    def _close_step(self, now: Step) -> None:
        """Of a sharded model nobody has all: either every worker takes a step, or nobody. Who has got the sums knows
        that all gradients are everywhere; who was interrupted while it waited for them asks (`_counts`)."""
        if now.is_last and not self._is_broken:
            now.whole = True
            self._send(now)

    def learn(self, model: Any, x: Any, y: Any, loss_fn: Callable[[Any, Any], torch.Tensor]) -> torch.Tensor:
        """Forward, loss and backward of a batch in one call: the same as `run.backward(loss_fn(model(x), y))`, and the
        only way through a pipeline. Returns the mean loss of the batch."""
        if not (isinstance(model, ShardedModel) and model.is_pipeline):
            loss = loss_fn(model(x), y)
            self.backward(loss)
            return loss.detach()
        now, loss = self._batch(), torch.zeros((), device=self.device)
        with self._losses:
            loss = model.learn(x, y, loss_fn, now.micro.weight, now.is_last)
        now.add(loss)
        with self._losses:
            self._close_step(now)
        return loss

    def clip(self, model: Any, max_norm: float) -> torch.Tensor:
        """As `torch.nn.utils.clip_grad_norm_`, in every layout: over all shards, slices and stages."""
        norms = [torch.zeros(())]
        with self._losses:
            norms.append(self._models.clip(model, max_norm))
        return norms[-1]

    def finish(self) -> None:
        """The last steps are told, and the last state is saved. Called by itself at the end of the data, and when the
        training function returns. If somebody is lost meanwhile, once more."""
        now = self._now
        if now is not None and now.is_last and now.done_backward:  # the loop was left after a step
            self._cross()
        elif self._mark is not None:  # in the middle of one, which does not count
            self._mark.put_back()
            self._mark = self._now = None
        while self._order is not None and not self._ended:
            with contextlib.suppress(_Broken), self._losses:
                self._settle_all()
                self._save_last()
                if self._is_broken:
                    raise _Broken
                self._ended = True
            if not self._ended:
                self._regroup(broken=True)
        if self._ended:
            self._coordinator.finished.remote()
            self._books.close()

    def close(self) -> None:
        """Let a part of a checkpoint that is being written come to its end."""
        self._saves.close()

    # --- one step

    def _follow(self, loader: Any) -> Epochs:
        if self._data is not None:
            raise JobError("a run has one order of data", "prepare the DataLoader of the training data only")
        self._data, self._feed = Epochs(loader, self._pass_over), Loading(loader)
        return self._data

    def _order_of(self, data: Epochs) -> Order:
        batch = int(data.loader.batch_size)
        micros = min(self.settings.max_data_ranks, batch)
        shuffle = is_shuffled(data.loader)
        even = self.settings.layout.talks_in_forward
        return Order(len(data.loader.dataset), batch, MANY_EPOCHS, self.settings.seed, micros, shuffle, even)

    def _pass_over(self, data: Epochs) -> Iterator[Batch]:
        """One epoch, or what is left of it."""
        if self._order is None:
            self._begin(self._order_of(data), None)
            self._skipped = self._marker.take() if self.done else None
        assert self._order is not None
        if self._skipped is not None and data.epoch >= self._order.epoch_of(max(1, self.done)):
            self._skipped.put_back()  # the loop's own code between epochs has run for those that were done before, too
            self._skipped = None
        while self.done < (self._total or math.inf) and self._order.epoch_of(self.done + 1) == data.epoch:
            yield from self._take_step(self._feed)

    def _take_step(self, feed: Feed) -> Iterator[Batch]:
        assert self._order is not None
        part = self._shares.get(self._order, self.done + 1, self._place)
        self._mark = self._marker.take()
        self._now = now = Step(part, self._statistics, self.world // self._place[1], self.device)
        while True:
            micro = now.micro
            self._models.begin_batch(now.is_last and self._adaptive is None)
            data = feed.get(self._order, part, now.turn, self._place, self.settings.seed)
            yield Batch(to_device(data, self.device), micro, part.step, part.epoch, now.is_last)
            if now.is_last or self._is_broken:
                break
            now.next_turn()
            self._mark.put_back()
        self._cross()

    def _batch(self) -> Step:
        if self._now is None:
            raise JobError("run.backward() without a batch", "call it inside `for batch in run.batches(...)`")
        return self._now

    def _send(self, now: Step) -> None:
        now.load(now.numbers(self._wishes()), alone=self.world == 1)

    def _wishes(self) -> list[float] | None:
        """Of rank 0; None of others, and where it has none."""
        ask = self._wanted() if self._books.watcher is not None else NOTHING
        return None if ask is NOTHING else ask.encode()

    def _guard(self, optimizer: Any, *_: Any) -> None:
        """Before an optimizer moves: gradients of an interrupted step are void, the step is taken again."""
        now = self._now
        if now is None or not now.is_last or not now.done_backward:
            return
        if not self._counts(now):
            regroup.void_gradients(optimizer)
        elif self._adaptive:
            self._adaptive.speed_up(optimizer, Ask.decode(now.head[1 : now.NORM]).gain)

    def _counts(self, now: Step) -> bool:
        """Whether a step is whole on this worker. Decided once, before any optimizer moves."""
        if now.verdict is None:
            with self._losses:
                if not self._is_broken:
                    now.wait()
            now.verdict = not self._is_broken or self._is_taken(now)
            if now.verdict and self._can_look and not math.isfinite(now.head[0]):
                self._loss_is_no_number(now)
        return now.verdict and not now.void

    def _is_taken(self, now: Step) -> bool:
        """Whether another worker has taken the step that broke here at the very end."""
        sums = self._seat.resolve(now.part.step) if now.whole else None
        if sums is not None:
            now.take(sums)
        return sums is not None

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
        now_s = time.monotonic()
        self._pace_s, self._paced_at_s = 0.8 * self._pace_s + 0.2 * (now_s - self._paced_at_s), now_s
        self.done, self._mark = now.part.step, None
        if now.whole:
            self._holds.sums = tuple(now.values.tolist())
        self._pending.append(now)
        with self._losses:
            self._arrange()
        if self._is_broken:
            self._regroup(broken=True)

    def _arrange(self) -> None:
        """Save, copy, or meet, if rank 0 says that it is time for it."""
        ask = self._settle_all(NOTHING, leave=1 if self.device.type == "cuda" else 0)
        if ask.save or ask.regroup:
            ask = self._settle_all(ask)
        if ask.rest:
            self._rest()
        elif ask.save:
            self._save()
        if self._adaptive and self._order:
            self._order = self._adaptive.grown(self._order, self.done, int(ask.factor))
            self._plan_on()
        if ask.copy or ask.regroup:
            self._holds.copy(self._group, self._kept, self.done)
        if ask.regroup and not self._is_broken:
            self._regroup(broken=False)

    def _loss_is_no_number(self, now: Step) -> None:
        """Everybody sees the same number, and nothing of this step has reached the model yet."""
        step, loss = now.part.step, now.head[0]
        if self.settings.on_nan == "skip":
            now.void = True
            if self._mark:
                self._mark.put_back_buffers()  # running statistics are no numbers, too; schedulers go on
            return
        if self._mark:
            self._mark.put_back()
        self._save_last()
        hint = f"the state before it is saved as step {self.done}; look at data and learning rate, or set on_nan='skip'"
        raise JobError(f"the loss of step {step} is {loss}", hint)

    @property
    def _can_look(self) -> bool:
        """Whether a number can be read without waiting for a device, or has to be."""
        return self.device.type == "cpu" or self.settings.on_nan == "skip"

    def _wanted(self) -> Ask:
        assert self._books.watcher is not None
        if self._seat.wanted:
            return Ask(regroup=True)
        step, ask = self.done + 1, self._books.watcher.take()
        save, copy = self._saves.is_due(step), self._holds.wants_copy(self._group, step, self._pace_s)
        if self._adaptive and self._order:
            ask = ask.merge(Ask(save, False, copy, *self._adaptive.wish(self._order, step)))
        elif save or copy:
            ask = ask.merge(Ask(save, False, copy))
        return ask

    # --- begin

    def _check_early(self, what: str) -> None:
        if self._order is not None:
            raise JobError(f"run.{what} comes too late", "prepare and keep everything before the first batch")

    def _begin(self, order: Order, max_steps: int | None, free: bool = True) -> None:
        if self._order is not None:
            raise JobError("a run has one order of data", "call run.batches once, with all epochs")
        if not self._joins:
            self.done = self._saves.restore(self._kept, self._group)
            self._holds.stand(self._group, self.done)
        self._order, self._max_steps = self._saves.go_on(order, free), max_steps
        self._plan_on()
        if self._joins:
            self._regroup(broken=False)
        else:
            self._stand()


class _Broken(Exception):
    """The group does not stand any more."""


def work(train: Callable[[Run], Any], settings: RunSettings, coordinator: Any) -> Any:
    """The main function of every worker: make the Run, call the user's function, name a lost peer as such."""
    import ray
    import ray.train

    from tradewind.jobs.ray_group import mend_ray_train

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = ray.train.torch.get_device()
    else:
        torch.set_num_threads(settings.threads)
    mend_ray_train()
    randomness.seed_all(settings.seed)
    member, host = ray.get_runtime_context().get_actor_id(), ray.util.get_node_ip_address()
    joins = bool(ray.get(coordinator.members.remote())["members"])
    seat = Seat(coordinator, member, host, device, settings.layout)
    try:
        run = Run(settings, coordinator, seat, joins, device)
        try:
            result = train(run)
            run.finish()
        finally:
            run.close()
        return result
    except Dismissed:
        return None
    except Resting as rest:
        raise Rested("saved, and nothing is granted for now") from rest
    except Exception as error:
        if is_communication(error):
            raise PeerLost(f"another worker cannot be reached: {error}") from error
        raise
