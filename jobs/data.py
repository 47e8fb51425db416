"""Which worker sees which sample at which step: pure, and independent of the number of workers.

The order of an epoch is a permutation from (seed, epoch). Global batch k of it is `permutation[k*B : (k+1)*B]`,
whatever the number of workers; each rank takes a contiguous slice of that batch. So the position in the data is one
number (the steps taken), a checkpoint holds it, and a group of another size goes on exactly where the last one stopped.

DDP averages gradients over ranks, not over samples. With n_r of b samples on rank r of W, the mean over all samples is

    sum_r (n_r / b) * mean_r  =  (1 / W) * sum_r (W * n_r / b) * mean_r

so each rank multiplies its mean loss by `weight = W * n_r / b`, and uneven slices change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
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

    def __post_init__(self) -> None:
        if min(self.num_samples, self.global_batch, self.epochs) < 1:
            raise ValueError(f"an order needs at least one sample, batch and epoch, found {self}")

    @property
    def steps_per_epoch(self) -> int:
        return -(
            -self.num_samples // self.global_batch
        )  # the last batch of an epoch may be short: no sample is left out

    @property
    def total_steps(self) -> int:
        return self.epochs * self.steps_per_epoch

    def indices(self, step: int) -> Indices:
        """The samples of optimizer step `step`, counted from 1, over all workers."""
        epoch, batch = divmod(step - 1, self.steps_per_epoch)
        first = batch * self.global_batch
        return permutation(self.num_samples, self.seed, epoch)[first : first + self.global_batch]


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank does of one global batch. An empty share carries a stand-in sample of weight 0: every rank must
    take part in the collective of the step."""

    step: int
    epoch: int
    indices: Indices  # the samples that count
    load: Indices  # the samples to load: `indices`, or one stand-in
    weight: float
    global_size: int


@lru_cache(maxsize=2)
def permutation(num_samples: int, seed: int, epoch: int) -> Indices:
    return np.random.default_rng((seed, epoch)).permutation(num_samples).astype(np.int64)


def share(order: Order, step: int, rank: int, world: int) -> Share:
    """The part of `rank` among `world` in optimizer step `step`."""
    whole = order.indices(step)
    size = len(whole)
    mine = whole[size * rank // world : size * (rank + 1) // world]
    return Share(
        step=step,
        epoch=(step - 1) // order.steps_per_epoch,
        indices=mine,
        load=mine if len(mine) else whole[:1],
        weight=world * len(mine) / size,
        global_size=size,
    )


def shares(order: Order, after_step: int, rank: int, world: int) -> Iterator[Share]:
    """Every share of a rank after `after_step`, to the end of the last epoch."""
    for step in range(after_step + 1, order.total_steps + 1):
        yield share(order, step, rank, world)


@dataclass(frozen=True, slots=True)
class Batch:
    """One rank's part of a global batch, loaded. Multiply the mean loss by `weight` before `backward()`."""

    data: Any  # what the dataset gave, collated
    share: Share
    weight: float

    @property
    def x(self) -> Any:
        return self.data[0]

    @property
    def y(self) -> Any:
        return self.data[1]

    @property
    def indices(self) -> Indices:
        return self.share.indices


Loader = Callable[[Any, Indices], Any]


def load(dataset: Any, indices: Indices) -> Any:
    """The samples at `indices`, collated: in one piece where the dataset can, one by one where it cannot."""
    from torch.utils.data import TensorDataset, default_collate

    if isinstance(dataset, TensorDataset):
        return dataset[indices.tolist()]
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(indices.tolist()))
    return default_collate([dataset[int(index)] for index in indices])


def to_device(data: Any, device: Any) -> Any:
    """Tensors inside tuples, lists and dicts, moved to a device."""
    if hasattr(data, "to"):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(to_device(value, device) for value in data)
    return data
