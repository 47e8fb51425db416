"""Where batches come from: a dataset that is read when it is needed, or a DataLoader's worker processes ahead of time.

    run.batches(dataset, ...)                  -> Reading: micro-batches one by one
    run.prepare(model, optimizer, loader)      -> Loading: by the loader's own workers, in the order of the run; and
                                                  `Epochs`, which users iterate over as over the loader

Random augmentation draws from the seed of its micro-batch here, too, whichever process loads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
    default_collate,
)

from tradewind.errors import JobError
from tradewind.jobs import randomness
from tradewind.jobs.data import Batch, Indices, Order, Share, seed_of, shares

Loader = Callable[[Any, Indices], Any]


class Feed(Protocol):
    def get(self, order: Order, part: Share, turn: int, place: tuple[int, int], seed: int) -> Any:
        """The samples of a micro-batch, collated. Random numbers are those of the micro-batch after this."""


class Reading:
    """Samples are read when they are needed."""

    def __init__(self, dataset: Any, load: Loader) -> None:
        self._dataset, self._load = dataset, load

    def get(self, order: Order, part: Share, turn: int, place: tuple[int, int], seed: int) -> Any:  # noqa: ARG002
        micro = part.micros[turn]
        randomness.seed_all(seed_of(seed, part.step, micro.number))
        return self._load(self._dataset, micro.load)


class Loading:
    """The user's DataLoader, with the same workers and the same collate function, in the order of the run."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._batches: Iterator[Any] = iter(())
        self._place: tuple[Order, tuple[int, int]] | None = None
        self._next: tuple[int, int] | None = None  # step and turn that the workers load next

    def get(self, order: Order, part: Share, turn: int, place: tuple[int, int], seed: int) -> Any:
        micro = part.micros[turn]
        if self._place != (order, place) or self._next != (part.step, turn):
            self._start(order, part.step, turn, place, seed)
        data = next(self._batches)
        last = turn == len(part.micros) - 1
        self._next = (part.step + 1, 0) if last else (part.step, turn + 1)
        randomness.seed_all(seed_of(seed, part.step, micro.number))
        return data

    def _start(self, order: Order, step: int, turn: int, place: tuple[int, int], seed: int) -> None:
        """The group has changed, or a step is taken again: what was loaded ahead is of no use."""
        plan = _Plan(order, step, turn, place, seed)
        given = self._loader
        ahead = {"prefetch_factor": given.prefetch_factor} if given.num_workers else {}
        self._batches = iter(
            DataLoader(
                _Seeded(given.dataset),
                batch_sampler=plan,
                num_workers=given.num_workers,
                collate_fn=given.collate_fn,
                pin_memory=given.pin_memory,
                timeout=given.timeout,
                worker_init_fn=given.worker_init_fn,
                multiprocessing_context=given.multiprocessing_context,
                **ahead,
            )
        )
        self._place, self._next = (order, place), (step, turn)


class _Plan:
    """What to load, from a micro-batch on: for each one a list of (seed, index)."""

    def __init__(self, order: Order, step: int, turn: int, place: tuple[int, int], seed: int) -> None:
        self._order, self._step, self._turn, self._place, self._seed = order, step, turn, place, seed

    def __iter__(self) -> Iterator[list[tuple[int | None, int]]]:
        for part in shares(self._order, self._step - 1, *self._place):
            for micro in part.micros[self._turn if part.step == self._step else 0 :]:
                first = seed_of(self._seed, part.step, micro.number)
                yield [(first if at == 0 else None, int(index)) for at, index in enumerate(micro.load)]


class _Seeded:
    """A dataset that sets the random numbers of a micro-batch before its first sample."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getitem__(self, key: tuple[int | None, int]) -> Any:
        seed, index = key
        if seed is not None:
            randomness.seed_all(seed)
        return self._dataset[index]


class Epochs:
    """What stands for the user's DataLoader: each pass over it is one epoch, in this worker's micro-batches."""

    def __init__(self, loader: Any, passes: Callable[[Epochs], Iterator[Batch]]) -> None:
        _check(loader)
        self.loader, self._passes = loader, passes
        self.epoch = -1  # of the pass that is under way

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        for batch in self._passes(self):
            yield batch.data

    def __len__(self) -> int:
        """Steps in an epoch, over all workers."""
        return -(-len(self.loader.dataset) // int(self.loader.batch_size))


def _check(loader: Any) -> None:
    if isinstance(loader.dataset, IterableDataset):
        hint = "use a dataset with __getitem__ and __len__"
        raise JobError("a dataset without indices cannot be shared out anew when workers come and go", hint)
    if loader.batch_size is None or not isinstance(loader.sampler, RandomSampler | SequentialSampler):
        hint = "give the DataLoader batch_size, which is the global batch, and shuffle=True or False"
        raise JobError("a DataLoader with a sampler of its own cannot follow the workers", hint)
    if loader.drop_last:
        raise JobError(
            "drop_last leaves samples out", "set drop_last=False: a short last batch is weighed by its samples"
        )


def is_shuffled(loader: Any) -> bool:
    return isinstance(loader.sampler, RandomSampler)


def load(dataset: Any, indices: Indices) -> Any:
    """The samples at `indices`, collated: in one piece where the dataset can, one by one where it cannot."""
    if type(dataset) is TensorDataset:
        at = torch.from_numpy(indices)
        return tuple([tensor[at] for tensor in dataset.tensors])
    if hasattr(dataset, "__getitems__"):
        return default_collate(dataset.__getitems__(indices.tolist()))
    return default_collate([dataset[int(index)] for index in indices])


def to_device(data: Any, device: Any) -> Any:
    """Tensors inside tuples, lists and dicts, moved to a device."""
    if device.type == "cpu":
        return data
    if hasattr(data, "to"):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(value, device) for key, value in data.items()}
    if isinstance(data, tuple | list):
        return type(data)(to_device(value, device) for value in data)
    return data
