"""Large purchases: kinds of requests that fill a machine together are seen, and what was bought is found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.limits import Counted, Lot
from tradewind.autoscaler.packing_mix import Fleet, _whole, is_worth_it, swaps_of, unbeaten
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.steer import Kept
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View
from tradewind.model import LABEL_MARKET_TYPE, Capacity, Offer
from tradewind.states import NodeState

SETTINGS = LoopSettings(fleet="test", limits=Limits(launches_per_minute=None), usable_memory=1.0)
FOUR = make_offer("aws/us-east-1a/g4", usd_per_h=1.78, cpus=48, gpus=4)
EIGHT = make_offer("aws/us-east-1a/g8", usd_per_h=3.60, cpus=96, gpus=8)
OFFERS = (
    FOUR,
    EIGHT,
    make_offer("gcp/us-west1-b/g1", usd_per_h=0.60, cpus=8, gpus=1),
    make_offer("gcp/us-west1-b/c16", usd_per_h=0.50, cpus=16),
    make_offer("gcp/us-west1-b/c36", usd_per_h=0.80, cpus=36, capacity=Capacity.SPOT),
)


def view_of(offers: tuple[Offer, ...], *needs: tuple[Shape, int]) -> View:
    demand = Demand(tuple(Need(shape, count, "queue") for shape, count in needs))
    return View(1000.0, SETTINGS, snapshot=RaySnapshot(), demand=demand, offers=offers)


def bought(plan: Plan) -> float:
    return sum(launch.offer.price_uusd_per_h or 0 for launch in plan.launches) / 1e6


def coming(plan: Plan) -> tuple[NodeView, ...]:
    """What a plan launched, a moment later."""
    records = [
        NodeRecord(f"n{number}", launch.offer, "local", "", NodeState.BOOTING, 1000.0, 1000.0, 1000.0)
        for number, launch in enumerate(plan.launches)
    ]
    return tuple(NodeView(record) for record in records)


PAIRS = ((Shape.of({"CPU": 1, "GPU": 3}), 200), (Shape.of({"CPU": 1, "GPU": 2}), 100))


def test_two_kinds_that_fill_a_machine_together_are_seen() -> None:
    """Alone, 3 GPUs are cheapest on a machine of 4 (1.78 against 1.80); 3 + 3 + 2 fill one of 8."""
    plan = make_plan(view_of((FOUR, EIGHT), *PAIRS))
    assert {launch.offer for launch in plan.launches} == {EIGHT}
    assert len(plan.launches) == 100
    assert not plan.holds


def test_a_cell_that_is_a_small_part_of_the_fleet_leaves_the_search_to_larger_purchases() -> None:
    view = view_of((FOUR, EIGHT), *PAIRS)
    small = make_plan(replace(view, elsewhere=Counted(workers=[Lot(FOUR, 50_000)])))
    assert bought(small) > bought(make_plan(view))
    assert is_worth_it(50, 10, Fleet())
    assert not is_worth_it(49, 10, Fleet())
    assert is_worth_it(500, 10, Fleet(500, 9_000))
    assert not is_worth_it(400, 10, Fleet(500, 9_000))
    assert not is_worth_it(500, 10_000, Fleet())


@pytest.mark.parametrize(("limit_usd", "number", "market"), [(10_000, 100, "g8"), (500, 200, "g4")])
def test_money_that_is_kept_for_others_matters_only_where_it_is_short(limit_usd: int, number: int, market: str) -> None:
    limits = Limits(launches_per_minute=None, max_uusd_per_h=limit_usd * 10**6)
    view = replace(view_of((FOUR, EIGHT), *PAIRS), settings=replace(SETTINGS, limits=limits), kept=Kept(1, frozenset()))
    plan = make_plan(view)
    assert sum(launch.offer.market.instance_type == market for launch in plan.launches) >= number


def test_nothing_is_sought_where_nothing_may_be_launched() -> None:
    limits = Limits(launches_per_minute=10)
    view = replace(view_of((FOUR, EIGHT), *PAIRS), settings=replace(SETTINGS, limits=limits), launched_last_minute=10)
    plan = make_plan(view)
    assert not plan.launches
    assert plan.holds


def test_what_costs_nothing_is_no_trouble() -> None:
    free = replace(make_offer("local/here/c8", cpus=8), price_uusd_per_h=0)
    with np.errstate(all="raise"):
        plan = make_plan(view_of((FOUR, EIGHT, free), *PAIRS, (Shape.of({"CPU": 3}), 5_000)))
    assert not plan.holds
    assert free in {launch.offer for launch in plan.launches}


def test_zones_that_sell_the_same_are_looked_at_once() -> None:
    zones = tuple(
        replace(offer, market=replace(offer.market, zone=f"us-east-1-{number}"))
        for number in range(300)
        for offer in (FOUR, EIGHT)
    )
    assert bought(make_plan(view_of(zones, *PAIRS))) == bought(make_plan(view_of((FOUR, EIGHT), *PAIRS)))


def test_a_cap_on_the_better_machine_is_kept() -> None:
    limits = Limits(launches_per_minute=None, max_nodes=70)
    view = view_of((FOUR, EIGHT), *PAIRS)
    plan = make_plan(replace(view, settings=replace(SETTINGS, limits=limits)))
    assert len(plan.launches) <= 70
    assert plan.holds


shapes = st.builds(
    lambda cpus, gpus, spot: Shape.of(
        {"CPU": cpus, **({"GPU": gpus} if gpus else {})}, {LABEL_MARKET_TYPE: "spot"} if spot and not gpus else None
    ),
    st.sampled_from([1.0, 3.0, 5.0, 12.0]),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 3.0]),
    st.booleans(),
)
demands = st.lists(st.tuples(shapes, st.integers(20, 200)), min_size=2, max_size=7, unique_by=lambda each: each[0])


@settings(deadline=None, max_examples=40)
@given(demands)
def test_all_is_served_no_dearer_than_without_the_search_and_bought_once(asked: list[tuple[Shape, int]]) -> None:
    view = view_of(OFFERS, *asked)
    plan = make_plan(view)
    assert not plan.holds
    without = make_plan(replace(view, elsewhere=Counted(workers=[Lot(FOUR, 10_000_000)])))
    assert bought(plan) <= bought(without) * (1 + 1e-9)
    assert make_plan(view) == plan
    assert not make_plan(replace(view, nodes=coming(plan))).launches


def test_an_offer_that_a_cheaper_one_beats_in_everything_is_left_out() -> None:
    room = np.array([[4.0, 0.0], [8.0, 1.0], [8.0, 1.0], [4.0, 1.0], [16.0, 0.0]])  # by price
    assert unbeaten(room, np.ones((5, 1), np.bool_)).tolist() == [True, True, False, False, True]
    tied = np.array([[True], [False], [True], [True], [True]])  # only these have the label that somebody asks for
    assert unbeaten(room, tied).tolist() == [True, True, True, False, True]


def test_swaps_lead_to_the_next_smaller_shapes_that_may_lie_there() -> None:
    asked = np.array([[4.0, 1.0], [2.0, 1.0], [1.0, 0.0], [2.0, 1.0]])
    everywhere = np.ones((3, 4), np.bool_)
    found = {(int(row.argmin()), int(row.argmax())) for row in swaps_of(asked, everywhere)}
    assert found == {(0, 1), (1, 3), (3, 2)}  # of the equal ones one way, and nothing that two of these do
    tied = everywhere.copy()
    tied[0, 2] = False  # the smallest may not lie wherever the others may
    assert {(int(row.argmin()), int(row.argmax())) for row in swaps_of(asked, tied)} == {(0, 1), (1, 3)}


@given(st.lists(st.floats(0.0, 50.0), max_size=20))
def test_parts_of_nodes_are_carried_on(number: list[float]) -> None:
    whole = _whole(np.array(number))
    assert (whole >= 0).all()
    assert abs(int(whole.sum()) - sum(number)) <= 1.0
    assert all(abs(mine - part) <= 1.0 + 1e-6 for mine, part in zip(whole.tolist(), number, strict=True))
