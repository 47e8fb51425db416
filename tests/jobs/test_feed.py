"""Batches by a DataLoader's own workers are those that the run would read itself, random numbers included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from tradewind.errors import JobError
from tradewind.jobs.data import Order, share
from tradewind.jobs.feed import Epochs, Loading, Reading, is_shuffled, load

ORDER = Order(num_samples=23, global_batch=6, epochs=2, seed=3, micro_batches=4)


class Noisy(Dataset[Any]):  # type: ignore[misc]
    """Every sample is augmented at random."""

    def __len__(self) -> int:
        return ORDER.num_samples

    def __getitem__(self, index: int) -> tuple[int, float]:
        return index, float(torch.rand(1))


def walk(feed: Any, first: int, place: tuple[int, int]) -> list[Any]:
    found = []
    for step in range(first, ORDER.total_steps + 1):
        part = share(ORDER, step, *place)
        found += [[each.tolist() for each in feed.get(ORDER, part, turn, place, 7)] for turn in range(len(part.micros))]
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_gives_what_the_run_would_read(workers: int) -> None:
    loading = Loading(DataLoader(Noisy(), batch_size=6, num_workers=workers))
    reading = Reading(Noisy(), load)
    assert walk(loading, 1, (0, 2)) == walk(reading, 1, (0, 2))
    assert walk(loading, 3, (0, 1)) == walk(reading, 3, (0, 1))  # another size of the group, a step again


def test_a_step_that_is_taken_again_gives_the_same() -> None:
    loading, part = Loading(DataLoader(Noisy(), batch_size=6)), share(ORDER, 2, 0, 2)
    first = [loading.get(ORDER, part, turn, (0, 2), 7)[1].tolist() for turn in range(len(part.micros))]
    again = [loading.get(ORDER, part, turn, (0, 2), 7)[1].tolist() for turn in range(len(part.micros))]
    assert first == again


def test_loaders_that_cannot_follow_are_refused_with_advice() -> None:
    class Stream(IterableDataset[Any]):  # type: ignore[misc]
        def __iter__(self) -> Any:
            return iter(range(8))

    data = TensorDataset(torch.arange(8))
    for loader, words in (
        (DataLoader(Stream(), batch_size=2), "without indices"),
        (DataLoader(data, batch_size=2, sampler=WeightedRandomSampler([1.0] * 8, 8)), "sampler of its own"),
        (DataLoader(data, batch_size=3, drop_last=True), "drop_last"),
        (DataLoader(data, batch_size=None), "sampler of its own"),
    ):
        with pytest.raises(JobError, match=words):
            Epochs(loader, lambda _: iter(()))


def test_shuffling_and_length_are_the_loaders() -> None:
    data = TensorDataset(torch.arange(8))
    assert [is_shuffled(DataLoader(data, batch_size=3, shuffle=shuffle)) for shuffle in (True, False)] == [True, False]
    assert len(Epochs(DataLoader(data, batch_size=3), lambda _: iter(()))) == 3
