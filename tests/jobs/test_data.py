"""The order of samples: exactly once an epoch, whatever the number of workers and however often it changes."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.jobs.data import Order, permutation, seed_of, share, shares
from tradewind.jobs.feed import load

orders = st.builds(
    Order,
    num_samples=st.integers(1, 200),
    global_batch=st.integers(1, 64),
    epochs=st.integers(1, 3),
    seed=st.integers(0, 2**32),
    micro_batches=st.integers(1, 7),
    even=st.booleans(),
    stages=st.sampled_from([(), ((3, 2),), ((2, 3), (5, 1)), ((2, 2), (3, 4), (9, 2))]),
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
def test_micro_batches_are_the_same_for_any_size(order: Order, one: int, other: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(1, order.total_steps))
    found = [
        [
            (micro.number, micro.indices.tolist())
            for replica in range(replicas)
            for micro in share(order, step, replica, replicas).micros
            if micro.weight
        ]
        for replicas in (one, other)
    ]
    assert found[0] == found[1]


@given(orders, st.integers(1, 9), st.data())
def test_everybody_computes_as_many_micro_batches_where_that_matters(
    order: Order, replicas: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, order.total_steps))
    counts = {len(share(order, step, replica, replicas).micros) for replica in range(replicas)}
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= (0 if order.even else 1)


def test_a_larger_batch_begins_where_the_smaller_one_stopped() -> None:
    plain, grown = Order(10, 2, 2), Order(10, 2, 2, stages=((3, 2),))
    assert [len(grown.indices(step)) for step in range(1, grown.total_steps + 1)] == [2, 2, 4, 2, 4, 4, 2]
    assert grown.indices(3).tolist() == [*plain.indices(3), *plain.indices(4)]
    assert [grown.epoch_of(step) for step in (4, 5, 7)] == [0, 1, 1]


def test_every_micro_batch_has_a_seed_of_its_own() -> None:
    seeds = {seed_of(seed, step, number) for seed in (0, 1) for step in (1, 2, 3) for number in (-1, 0, 1)}
    assert len(seeds) == 18


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
def test_the_weighted_mean_over_micro_batches_is_the_mean_over_samples(
    order: Order, replicas: int, data: st.DataObject
) -> None:
    step = data.draw(st.integers(1, order.total_steps))
    losses = np.random.default_rng(step).normal(size=order.num_samples)
    micros = [micro for replica in range(replicas) for micro in share(order, step, replica, replicas).micros]
    mean = sum(micro.weight * losses[micro.load].mean() for micro in micros)
    assert mean == pytest.approx(losses[order.indices(step)].mean(), abs=1e-12)
    assert sum(micro.weight for micro in micros) == pytest.approx(1.0)


def test_an_empty_share_loads_a_stand_in_without_weight() -> None:
    (micro,) = share(Order(num_samples=2, global_batch=2, epochs=1), step=1, replica=0, replicas=5).micros
    assert (len(micro.indices), len(micro.load), micro.weight) == (0, 2, 0.0)


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


def test_a_batch_that_changes_often_is_found_at_once() -> None:
    """Each change used to double the work: after twenty, a step took seconds to find."""
    stages = tuple((20 * at + 20, 1 + (at + 1) % 2) for at in range(500))
    order = Order(num_samples=10**7, global_batch=64, epochs=1, stages=stages)
    assert order.place(10_030) == (0, 64 * (19 + 250 * 20 * 2 + 249 * 20 + 30), 1)
