"""What makes a decision quick must not change it: kept catalogues, counts that follow events, quick bounds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.effective import Pricing
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.knowledge import Evidence, Knowledge, circles
from tradewind.autoscaler.limits import Counted, Limits, Part, Rule, Tenants, bounds_of
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.packing_advice import _least_price
from tradewind.autoscaler.packing_catalogue import Catalogue, catalogue_of
from tradewind.autoscaler.packing_order import dearest_first
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.roll import Roll
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, SeenKey, View
from tradewind.errors import Scope
from tradewind.events import LaunchRefused, LaunchRequested, NodeGone, NodeLaunched
from tradewind.model import LABEL_MARKET_TYPE, Capacity, EndReason, Offer, Role

CELLS = ("aws-us-east-1", "aws-eu-west-1", "gcp-us-central1")
OFFERS = [
    make_offer(f"aws/us-east-1{zone}/m{cpus}", cpus=cpus, usd_per_h=0.05 * cpus + number / 100, capacity=capacity)
    for number, (zone, cpus, capacity) in enumerate(itertools.product("ab", (2, 4, 9), Capacity))
]


def view_of(offers: tuple[Offer, ...], needs: tuple[tuple[Shape, int], ...], **more: object) -> View:
    found = View(0.0, LoopSettings(fleet="test", usable_memory=1.0), snapshot=RaySnapshot(), offers=offers)
    demand = replace(found.demand, needs=tuple(Need(shape, count, "queue") for shape, count in needs))
    return replace(found, demand=demand, **more)  # type: ignore[arg-type]


def copies_of(offers: tuple[Offer, ...]) -> tuple[Offer, ...]:
    """Equal offers of which nothing is known yet."""
    return tuple(replace(offer) for offer in offers)


# --- price lists that are kept ------------------------------------------------------------------------------------

needs = st.lists(
    st.tuples(
        st.builds(
            lambda cpus, spot: Shape.of({"CPU": cpus}, {LABEL_MARKET_TYPE: "spot"} if spot else None),
            st.sampled_from([0.5, 1, 2, 3, 5, 20]),
            st.booleans(),
        ),
        st.integers(1, 30),
    ),
    max_size=5,
).map(tuple)
seen = st.dictionaries(
    st.sampled_from(
        [
            ("aws", zone, f"m{cpus}", cpus, 16, 0.0)
            for zone, cpus in itertools.product(("us-east-1a", "us-east-1b", ""), (2, 4, 9))
        ]
    ),
    st.fixed_dictionaries({"CPU": st.sampled_from([1.0, 2.0, 4.0, 8.0])}),
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.sampled_from(OFFERS), unique=True).map(tuple), needs, st.lists(seen, min_size=1, max_size=3))
def test_a_price_list_that_is_kept_says_what_a_new_one_says(
    offers: tuple[Offer, ...],
    asked: tuple[tuple[Shape, int], ...],
    brought: list[dict[SeenKey, dict[str, float]]],
) -> None:
    """One tick after the other over the same offers, while nodes are seen to bring this or that."""
    for resources in brought:
        kept: Plan = make_plan(view_of(offers, asked, seen_resources=resources))
        assert kept == make_plan(view_of(copies_of(offers), asked, seen_resources=resources))


def test_offers_are_known_again_by_what_they_are_not_by_where_they_were() -> None:
    assert catalogue_of(OFFERS) is catalogue_of(tuple(OFFERS))
    for _ in range(200):  # lists that nobody holds any more: others may come to lie in their place
        offers = copies_of(tuple(OFFERS[:2]))
        assert catalogue_of(offers).offers is not None
        assert all(mine is kept for mine, kept in zip(offers, catalogue_of(offers).offers, strict=True))


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 30) | st.none()), max_size=12),
    st.integers(0, 4),
    st.integers(0, 6),
)
def test_the_least_prices_are_those_of_all_offers(
    sold: list[tuple[int, int, int | None]], gpus: int, cpus: int
) -> None:
    offers = tuple(
        make_offer(f"aws/us-east-1a/m{number}", usd_per_h=price, gpus=gpus, cpus=cpus)
        for number, (gpus, cpus, price) in enumerate(sold)
    )
    prices = [price for g, c, price in sold if g >= gpus and c >= cpus and price is not None]
    catalogue = Catalogue.of(offers)
    least = [price for price, (g, c) in catalogue.least_prices if g >= gpus and c >= cpus]
    assert least[:1] == [min(prices) * 1_000_000] if prices else not least
    listed = [offers[index].price_uusd_per_h for _, _, index in catalogue.by_list_price]
    assert listed == sorted(price * 1_000_000 for _, _, price in sold if price is not None)


def test_the_stock_stands_by_price_then_by_market() -> None:
    offers = (*OFFERS, make_offer("aws/us-east-1c/m9", cpus=9, usd_per_h=None))
    stock = Stock.of(view_of(offers, ()))
    expected = sorted(OFFERS, key=lambda offer: (offer.price_uusd_per_h, offer.market.key))
    assert [offer.market.key for offer in stock.offers] == [offer.market.key for offer in expected]
    assert [stock.price_of(slot) for slot in stock.rooms.slots] == [offer.price_uusd_per_h for offer in expected]


def test_the_order_of_needs_is_the_same_for_a_shape_that_was_asked_for_before() -> None:
    spot = Shape.of({"CPU": 1}, {LABEL_MARKET_TYPE: "spot"})
    asked = [Need(Shape.of({"CPU": 2}), 1, "a"), Need(spot, 1, "b"), Need(Shape.of({"CPU": 99}), 1, "c")]
    alone = Catalogue.of(OFFERS)
    first = dearest_first(asked, OFFERS)
    assert dearest_first(asked, OFFERS) == first == dearest_first(asked, copies_of(tuple(OFFERS)))
    assert alone.usual_prices([spot]).tolist() == alone.usual_prices([Shape.of({"CPU": 2}), spot]).tolist()[1:]


def test_prices_of_many_are_the_prices_of_each() -> None:
    circle = circles(OFFERS[0].market)
    knowledge = Knowledge(0.1, 180.0, {circle[0]: Evidence(50.0, 3.0, (60.0, 90.0)), circle[2]: Evidence(9.0, 1.0)})
    pricing = Pricing(knowledge, MarketSettings(data_region="eu-west-1", egress_uusd_per_h=1000))
    each = [pricing(offer) for offer in OFFERS]
    assert pricing.of_all(OFFERS, [circles(offer.market) for offer in OFFERS]).tolist() == each
    assert len(set(each)) > 1


# --- counts that follow events ------------------------------------------------------------------------------------


@st.composite
def fleets(draw: st.DrawFn) -> FleetState:
    """Nodes of several cells; some never came, some are gone."""
    fleet = FleetState()
    names = draw(st.sets(st.sampled_from(CELLS), max_size=2))
    for name in names:  # parts that were asked for before, and follow
        fleet.cell(name)
    for number in range(draw(st.integers(0, 12))):
        launch_id, at_s = f"n{number}", float(number * 10)
        cell, offer, role = (draw(st.sampled_from(each)) for each in (CELLS, OFFERS[:4], tuple(Role)))
        fleet.apply(LaunchRequested(at_s=at_s, launch_id=launch_id, offer=offer, cell=cell, reason="t", role=role))
        end = draw(st.sampled_from(["alive", "refused", "gone"]))
        if end == "refused":
            fleet.apply(
                LaunchRefused(
                    at_s=at_s, launch_id=launch_id, error="Stockout", message="", scope=Scope.OFFER, block_s=1.0
                )
            )
        if end == "gone":
            fleet.apply(NodeLaunched(at_s=at_s, launch_id=launch_id, instance_id="i"))
            fleet.apply(NodeGone(at_s=at_s, launch_id=launch_id, end=EndReason.TERMINATED, detail=""))
    return fleet


@settings(deadline=None)
@given(fleets(), st.sampled_from(CELLS))
def test_what_other_cells_have_is_counted_as_by_their_records(fleet: FleetState, name: str) -> None:
    limits = Limits(9, 9, 9, rules=(Rule(Part(zone="us-east-1a"), 9, 9, 9.0, 9),))
    part, now_s = fleet.cell(name), 120.0

    def is_beside(node: NodeRecord) -> bool:
        return node.cell != name or node.role is Role.HEAD

    launched = [node for node in fleet.alive_nodes if node.requested_at_s > now_s - 60.0]
    by_events = Counted.beside(part, launched, Tenants(), now_s)
    by_record = Counted.of([node for node in fleet.alive_nodes if is_beside(node)], Tenants(), now_s)
    for bound in bounds_of(limits):
        assert by_events.used(bound) == by_record.used(bound), bound.name
    assert sum(sum(cells.values()) for cells in fleet.census.counts.values()) == len(fleet.alive_nodes)
    assert part.census is fleet.census
    assert FleetState(Roll(fleet.nodes)).census == fleet.census


# --- bounds that save a search ------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40)), min_size=1, max_size=4), st.integers(1, 150))
def test_nothing_that_holds_so_many_is_cheaper_than_the_bound(kinds: list[tuple[int, int]], count: int) -> None:
    copies, prices = (np.array(each) for each in zip(*kinds, strict=True))
    least = [0.0] * (count + 1)
    for number in range(1, count + 1):
        least[number] = min(price + least[max(0, number - held)] for held, price in kinds)
    bound = _least_price(count, copies, prices.astype(np.float64))
    assert bound <= least[count] * (1 + 1e-9)
    if count > 9 * 9:  # enough that the number of nodes of the best kind is never negative
        assert bound >= least[count] * (1 - 1e-9)


def test_the_bound_is_met_where_first_fit_is_best() -> None:
    """Ten for 10, the rest of three for 4: 100 and 4 for 103, though 10.3 of the first would be 103."""
    assert _least_price(103, np.array([10, 3]), np.array([10.0, 4.0])) == 104.0


@pytest.mark.parametrize(("copies", "prices"), [([25, 3], [7.0, 1.0]), ([2**31, 5], [7.0, 1.0])])
def test_the_bound_is_found_whatever_rounding_makes_of_it(copies: list[int], prices: list[float]) -> None:
    """7 - 25 x (7 / 25) is less than nothing by rounding: a way that grows shorter for ever. And of a request that
    asks for next to nothing, any number fits on a node."""
    assert 0.0 < _least_price(1000, np.array(copies), np.array(prices)) <= 280.0
