"""Which worker sees which sample at which step: pure, and independent of the number of workers.

The order of an epoch is a permutation from (seed, epoch). A step takes the next `global_batch` samples of it, cut into
a fixed number of logical micro-batches; each replica computes some of these, one after the other. So the position in
the data is one number (the steps taken), a checkpoint holds it, and a group of another size goes on exactly where the
last one stopped, with the same micro-batches and the same random numbers in each.

The gradient of a step is the mean over its samples: a micro-batch of n of b samples counts n / b, whoever computes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Order:
    """The whole order of a training run: which samples each optimizer step uses."""

    num_samples: int
    global_batch: int
    epochs: int
    seed: int = 0
    micro_batches: int = 1  # of a step
    shuffle: bool = True
    even: bool = False  # everybody computes the same number of micro-batches: sharded models talk in each of them
    stages: tuple[tuple[int, int], ...] = ()  # (step, factor): from this step on, so many times the batch

    def __post_init__(self) -> None:
        if min(self.num_samples, self.global_batch, self.epochs, self.micro_batches) < 1:
            raise ValueError(f"an order needs at least one sample, batch and epoch, found {self}")
        object.__setattr__(self, "stages", tuple((int(step), int(factor)) for step, factor in self.stages))

    @property
    def total_steps(self) -> int:
        begin, epoch, first, factor = self._stage_of(None)
        return begin - 1 + self._steps_left(epoch, first, factor)

    def place(self, step: int) -> tuple[int, int, int]:
        """(epoch, first position in it, factor of the batch) of optimizer step `step`, counted from 1."""
        return self._place_in(self._stage_of(step), step)

    def _place_in(self, stage: tuple[int, int, int, int], step: int) -> tuple[int, int, int]:
        begin, epoch, first, factor = stage
        size, ahead = self.global_batch * factor, step - begin
        in_this = _ceil(self.num_samples - first, size)
        if ahead < in_this:
            return epoch, first + ahead * size, factor
        more, batch = divmod(ahead - in_this, _ceil(self.num_samples, size))
        return epoch + 1 + more, batch * size, factor

    def epoch_of(self, step: int) -> int:
        return self.place(step)[0]

    def indices(self, step: int) -> Indices:
        """The samples of optimizer step `step`, over all workers. The last batch of an epoch may be short: no sample is
        left out."""
        return self.samples(*self.place(step))

    def samples(self, epoch: int, first: int, factor: int) -> Indices:
        """A batch by its place."""
        found = permutation(self.num_samples, self.seed, epoch) if self.shuffle else np.arange(self.num_samples)
        return found[first : first + self.global_batch * factor]

    def _stage_of(self, step: int | None) -> tuple[int, int, int, int]:
        """(first step, epoch and position there, factor) of the stage that `step` is in, or of the last one."""
        stage = 1, 0, 0, 1
        for start, next_factor in self.stages:
            if step is not None and step < start:
                break
            epoch, first, _ = self._place_in(stage, start)
            if epoch >= self.epochs:  # it would begin after the end
                break
            stage = start, epoch, first, next_factor
        return stage

    def _steps_left(self, epoch: int, first: int, factor: int) -> int:
        size = self.global_batch * factor
        rest = max(0, self.epochs - epoch - 1) * _ceil(self.num_samples, size)
        return rest + (_ceil(self.num_samples - first, size) if epoch < self.epochs else 0)


@dataclass(frozen=True, slots=True)
class Micro:
    """A logical micro-batch: the same samples and random numbers whoever computes it."""

    number: int  # in its step; -1 of a stand-in
    indices: Indices  # the samples that count
    load: Indices  # the samples to load: `indices`, or stand-ins: two, as batch normalisation refuses a single one
    weight: float  # of the samples of the step


@dataclass(frozen=True, slots=True)
class Share:
    """What one replica does of one step. Where it has too few micro-batches to compute, stand-ins of weight 0 take
    their place: everybody must take part in the collectives of the step."""

    step: int
    epoch: int
    micros: tuple[Micro, ...]
    global_size: int

    @property
    def indices(self) -> Indices:
        return np.concatenate([micro.indices for micro in self.micros])


@lru_cache(maxsize=2)
def permutation(num_samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(num_samples).astype(np.int64)


def share(order: Order, step: int, replica: int, replicas: int) -> Share:
    """The part of `replica` among `replicas` in optimizer step `step`."""
    place = epoch, _, factor = order.place(step)
    whole = order.samples(*place)
    size = len(whole)
    cuts, least = _cuts(size, order.micro_batches * factor, replica, replicas)
    micros = []
    for number, first, end in cuts:
        part = whole[first:end]
        micros.append(Micro(number, part, part, (end - first) / size))
    micros += [Micro(-1, whole[:0], whole[:2], 0.0)] * ((least if order.even else 1) - len(micros))
    return Share(step, epoch, tuple(micros), size)


@lru_cache(maxsize=64)
def _cuts(size: int, count: int, replica: int, replicas: int) -> tuple[tuple[tuple[int, int, int], ...], int]:
    """Of `count` micro-batches over `size` samples, those of a replica: (number, first, end); and the most that any
    replica has. Micro-batches without a sample are left out."""
    cuts = [(number, size * number // count, size * (number + 1) // count) for number in range(count)]
    full = [cut for cut in cuts if cut[1] < cut[2]]
    bounds = [len(full) * at // replicas for at in range(replicas + 1)]
    return tuple(full[bounds[replica] : bounds[replica + 1]]), max(end - start for start, end in pairwise(bounds))


def shares(order: Order, after_step: int, replica: int, replicas: int) -> Iterator[Share]:
    """Every share of a replica after `after_step`, to the end of the last epoch."""
    for step in range(after_step + 1, order.total_steps + 1):
        yield share(order, step, replica, replicas)


class Ahead:
    """Shares of the next steps, worked out some at a time: one by one, between two steps, each costs four times as much
    (whatever the last step has used is in the caches, and this is not)."""

    STEPS = 16

    def __init__(self) -> None:
        self._of: tuple[Order, tuple[int, int]] | None = None
        self._found: dict[int, Share] = {}

    def get(self, order: Order, step: int, place: tuple[int, int]) -> Share:
        """The share of (replica, replicas) = `place`."""
        known = self._of is not None and self._of[0] is order and self._of[1] == place
        if not known or step not in self._found:
            last = min(step + self.STEPS, order.total_steps + 1)
            self._of, self._found = (order, place), {at: share(order, at, *place) for at in range(step, last)}
        return self._found[step]


def seed_of(seed: int, step: int, number: int) -> int:
    """The random seed of a logical micro-batch."""
    return int.from_bytes(blake2b(f"{seed}/{step}/{number}".encode(), digest_size=7).digest())


@dataclass(frozen=True, slots=True)
class Batch:
    """One logical micro-batch, loaded. Give its mean loss to `run.backward`."""

    data: Any  # what the dataset gave, collated
    micro: Micro
    step: int
    epoch: int
    is_last: bool  # of this replica in this step: the optimizer moves after it

    def __iter__(self) -> Iterator[Any]:
        """`x, y = batch`."""
        return iter(self.data)

    @property
    def x(self) -> Any:
        return self.data[0]

    @property
    def y(self) -> Any:
        return self.data[1]

    @property
    def indices(self) -> Indices:
        return self.micro.indices


def _ceil(count: int, size: int) -> int:
    return -(-count // size)
