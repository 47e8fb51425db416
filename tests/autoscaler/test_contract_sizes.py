"""How many replicas a job with a contract gets: the search among sizes, and who changes his size."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from contract_world import H

from tradewind.autoscaler.contract import ContractView, SpotMarket, decide
from tradewind.autoscaler.contract.choices import Size, choices
from tradewind.autoscaler.contract.settled import settled
from tradewind.autoscaler.contract.view import Aim, Choice, ContractDecision, Running
from tradewind.model import Capacity

USD = 1_000_000


def sundry(number: int, seed: int) -> Iterator[ContractView]:
    """Jobs of up to 64 replicas, on machines that hold from a quarter to eight of them, with and without deadlines."""
    chance = random.Random(seed)
    for _ in range(number):
        most, power = chance.choice([1, 2, 4, 8, 16, 32, 64]), chance.uniform(0.7, 1.0)
        speeds = tuple(float(size) ** power for size in range(1, most + 1))
        work_s = chance.uniform(0.5, 60.0) * H * speeds[chance.randrange(most)]
        spot = tuple(market(chance, name) for name in "abcd"[: chance.randint(1, 4)])
        seats = chance.choice([0.25, 0.5, 1.0, 1.0, 2.0, 4.0, 8.0])
        here = chance.choice([each for each in spot if each.is_open] or [None])
        size = chance.randint(1, most)
        spot_or_not = Running(here.key, Capacity.SPOT, size) if here else Running("dear", Capacity.ON_DEMAND, size)
        in_time_s = work_s / speeds[-1] * chance.uniform(1.0, 4.0) + chance.uniform(0.2, 2.0) * H
        yield ContractView(
            now_s=0.0,
            work_left_s=work_s,
            restart_s=chance.choice([60.0, 180.0, 720.0]),
            tick_s=30.0,
            on_demand_key="dear",
            on_demand_uusd_per_h=round(USD * seats * chance.uniform(0.9, 1.5)),
            deadline_at_s=None if chance.random() < 0.15 else in_time_s,
            spot=spot,
            running=spot_or_not if chance.random() < 0.5 else None,
            speeds=speeds,
            on_demand_seats=seats,
        )


def market(chance: random.Random, key: str) -> SpotMarket:
    seats = chance.choice([0.25, 0.5, 1.0, 1.0, 2.0, 4.0, 8.0])
    price = round(USD * seats * chance.uniform(0.2, 1.1))
    return SpotMarket(key, price, chance.random() < 0.8, chance.choice([0.1, 1.0, 5.0, 50.0]), seats=seats)


def ten_hours(slack_s: float, replicas: int = 0) -> ContractView:
    """Work and slack of one replica; two are 1.8 times as fast. So many run on spot."""
    return ContractView(
        now_s=0.0,
        work_left_s=10.0 * H,
        restart_s=600.0,
        tick_s=60.0,
        on_demand_key="dear",
        on_demand_uusd_per_h=3 * USD,
        deadline_at_s=10.0 * H + slack_s,
        spot=(SpotMarket("spot", USD, is_open=True, age_h=5.0),),
        running=Running("spot", Capacity.SPOT, replicas) if replicas else None,
        speeds=(1.0, 1.8),
    )


def best_uusd(view: ContractView) -> float:
    sizes = range(1, len(view.speeds) + 1)
    return min((choice.cost_uusd for size in sizes for choice in Size(view, size).choices()), default=0.0)


def test_the_search_misses_hardly_anything_that_all_sizes_have() -> None:
    """A walk from the present size, up and down while it became cheaper, was up to 1.55 times as dear: costs go up and
    down with the machines that sizes fill."""
    found = [(decide(view).choice.cost_uusd, best_uusd(view)) for view in sundry(150, seed=11)]
    ratios = [cost / best for cost, best in found if best > 0.0]
    assert len(ratios) > 100
    assert max(ratios) <= 1.1
    assert sum(ratios) / len(ratios) <= 1.005


def test_no_spot_at_a_size_that_its_own_start_would_make_too_slow() -> None:
    """One replica has slack for a start and no more: two would follow at once, and the first start be in vain."""
    assert spot_sizes(ten_hours(slack_s=700.0)) == {2}
    assert spot_sizes(ten_hours(slack_s=3600.0)) == {1, 2}, "with slack to spare"
    assert 1 in spot_sizes(ten_hours(700.0, replicas=1)), "he has started there already"


def spot_sizes(view: ContractView) -> set[int]:
    return {choice.replicas for choice in choices(view) if choice.capacity is Capacity.SPOT}


# --- who changes his size -------------------------------------------------------------------------------------------


def decided(cost: float, replicas: int, other: float, stays: int, aim: Aim = Aim.SURE) -> ContractDecision:
    """`replicas` at `cost` are decided, `stays` at `other` were looked at; both in the market where the job is."""
    best, here = Choice("spot", Capacity.SPOT, replicas, cost), Choice("spot", Capacity.SPOT, stays, other)
    return ContractDecision(best, "cheapest", 10.0 * H, (here,), aim)


@pytest.mark.parametrize(
    ("gain", "slack_h", "aim", "size"),
    [
        (0.05, 10.0, Aim.SURE, 2),  # too little is gained
        (0.2, 10.0, Aim.SURE, 1),
        (0.2, 0.3, Aim.SURE, 2),  # one replica would have less slack than three restarts
        (0.2, 0.3, Aim.POSSIBLE, 2),
        (0.2, 0.3, Aim.BUDGET, 1),  # the deadline has given way: slack is no matter
    ],
)
def test_replicas_are_let_go_only_for_something_and_with_slack_to_spare(
    gain: float, slack_h: float, aim: Aim, size: int
) -> None:
    found = settled(decided(1.0 - gain, 1, 1.0, 2, aim), ten_hours(slack_h * H, 2))
    assert found.choice.replicas == size
    if size == 2:
        assert "too little" in found.reason


def test_more_replicas_may_come_at_any_time() -> None:
    """A job that lost one of two machines gets it back, though one alone would cost as much."""
    assert settled(decided(1.0, 2, 1.0, 1), ten_hours(10.0 * H, 1)).choice.replicas == 2
    assert settled(decided(1.0, 2, 1.0, 1), ten_hours(0.3 * H, 1)).choice.replicas == 2


def test_what_cannot_stay_is_not_kept() -> None:
    found = replace(decided(0.99, 1, 1.0, 2), beaten=())
    assert settled(found, ten_hours(10.0 * H, 2)) is found
