"""The order of samples: exactly once an epoch, whatever the number of workers and however often it changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.jobs.data import Order, load, permutation, share, shares

orders = st.builds(
    Order,
    num_samples=st.integers(1, 200),
    global_batch=st.integers(1, 64),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
)
worlds = st.lists(st.integers(1, 9), min_size=1, max_size=8)


@given(orders, worlds)
def test_every_sample_once_per_epoch_for_any_sequence_of_sizes(order: Order, sizes: list[int]) -> None:
    seen: dict[int, Counter[int]] = {}
    for step in range(1, order.total_steps + 1):
        world = sizes[step % len(sizes)]
        for rank in range(world):
            part = share(order, step, rank, world)
            seen.setdefault(part.epoch, Counter()).update(part.indices.tolist())
    assert seen == {epoch: Counter(range(order.num_samples)) for epoch in range(order.epochs)}


@given(orders, st.integers(1, 9), st.integers(1, 9), st.data())
def test_a_step_has_the_same_samples_in_the_same_order_for_any_size(
    order: Order, one: int, other: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, order.total_steps))
    flat = [
        np.concatenate([share(order, step, rank, world).indices for rank in range(world)]).tolist()
        for world in (one, other)
    ]
    assert flat[0] == flat[1] == order.indices(step).tolist()


@given(orders, st.integers(1, 9), st.data())
def test_the_weighted_mean_over_ranks_is_the_mean_over_samples(order: Order, world: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, order.total_steps))
    losses = np.random.default_rng(step).normal(size=order.num_samples)
    parts = [share(order, step, rank, world) for rank in range(world)]
    over_ranks = sum(part.weight * losses[part.load].mean() for part in parts) / world
    assert over_ranks == pytest.approx(losses[order.indices(step)].mean(), abs=1e-12)
    assert sum(part.weight for part in parts) == pytest.approx(world)


def test_an_empty_share_loads_a_stand_in_without_weight() -> None:
    part = share(Order(num_samples=2, global_batch=2, epochs=1), step=1, rank=0, world=5)
    assert (len(part.indices), len(part.load), part.weight) == (0, 1, 0.0)


def test_going_on_after_a_step_gives_what_is_left() -> None:
    order = Order(num_samples=10, global_batch=4, epochs=2, seed=7)
    whole = [part.indices.tolist() for part in shares(order, 0, 0, 1)]
    assert [part.indices.tolist() for part in shares(order, 4, 0, 1)] == whole[4:]


def test_epochs_differ_and_seeds_differ() -> None:
    assert permutation(50, 0, 0).tolist() != permutation(50, 0, 1).tolist() != permutation(50, 1, 1).tolist()


def test_an_empty_dataset_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one sample"):
        Order(num_samples=0, global_batch=4, epochs=1)


def test_datasets_are_loaded_in_one_piece_or_one_by_one() -> None:
    torch = pytest.importorskip("torch")
    numbers = torch.arange(10)
    whole = torch.utils.data.TensorDataset(numbers, numbers * 2)
    single = [(int(number), int(number) * 2) for number in numbers]
    picked = np.array([3, 1, 8])
    for dataset in (whole, single):
        x, y = load(dataset, picked)
        assert (x.tolist(), y.tolist()) == ([3, 1, 8], [6, 2, 16])
