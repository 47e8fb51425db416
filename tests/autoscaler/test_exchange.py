"""Moving work, decision by decision: what may move, how much of the fleet is looked at, how much of a job lies in one
market."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Launch
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.moves import LOOKED_AT, Holders, held_by_market, looked_at
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.policies.exchange import Exchange
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, NodeView, View
from tradewind.model import Capacity, Offer, Resources, Wish
from tradewind.states import NodeState

NOW_S = 100_000.0
SPOT = make_offer("aws/us-east-1a/g6", usd_per_h=0.30, cpus=4, gpus=1)
OTHER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.31, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=0.90, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
GPU = {"CPU": 1.0, "GPU": 1.0}
WISH = Wish("j", 1, 4, GPU, can_move=True)


def node(number: int, offer: Offer = DEAR, used: Resources | None = None) -> NodeView:
    name, total = f"n{number}", {"CPU": offer.vcpus, "GPU": offer.accelerator_count}
    used = GPU if used is None else used
    free = {key: amount - used.get(key, 0.0) for key, amount in total.items()}
    status = RayStatus.RUNNING if any(used.values()) else RayStatus.IDLE
    record = NodeRecord(
        name, offer, "local", "r", NodeState.READY, NOW_S - 9000, NOW_S - 8900, joined_at_s=NOW_S - 8900
    )
    return NodeView(record, ray=RayNode(f"ray-{name}", name, status, total, free, offer.labels))


def view_of(
    nodes: list[NodeView], offers: tuple[Offer, ...] = (SPOT, DEAR), wishes: tuple[Wish, ...] = (WISH,)
) -> View:
    """Every node is used by job j, prices have been the same for long."""
    rays = tuple(each.ray for each in nodes if each.ray is not None)
    held = {("j", ray.ray_node_id): GPU for ray in rays if ray.status is RayStatus.RUNNING}
    return View(
        NOW_S,
        LoopSettings(fleet="t", market=MarketSettings(exchange_share=1.0)),
        nodes=tuple(nodes),
        snapshot=RaySnapshot(rays, holdings=held),
        offers=offers,
        wishes=wishes,
        knowledge=Knowledge(0.1, 60.0),
        quotes={offer.market.key: ((0.0, offer.price_uusd_per_h or 0),) for offer in offers},
    )


def launches(view: View, policy: Exchange | None = None) -> list[Launch]:
    return [each for each in (policy or Exchange())(view, Draft()) if isinstance(each, Launch)]


def test_dear_nodes_are_replaced_by_cheap_ones() -> None:
    found = launches(view_of([node(1), node(2)]))
    assert [(launch.offer, launch.replaces, launch.jobs) for launch in found] == [
        (SPOT, ("n1",), ("j",)),
        (SPOT, ("n2",), ("j",)),
    ]


def test_at_most_the_stated_share_of_the_fleet_is_moved_at_a_time() -> None:
    view = view_of([node(number) for number in range(30)])
    for share, most in ((0.1, 3), (0.0, 1)):
        settings = replace(view.settings, market=MarketSettings(exchange_share=share))
        assert len(launches(replace(view, settings=settings))) == most


def test_moves_that_are_under_way_count() -> None:
    view = view_of([node(number) for number in range(30)])
    view = replace(view, settings=replace(view.settings, market=MarketSettings(exchange_share=0.1)))
    coming = NodeView(NodeRecord("r1", SPOT, "local", "r", NodeState.BOOTING, NOW_S, NOW_S, replaces=("n0",)))
    left = node(1)
    left = replace(left, requested=replace(left.requested, state=NodeState.DRAINING, drain_deadline_s=NOW_S + 300))
    busy = replace(view, nodes=(view.nodes[0], left, *view.nodes[2:], coming))
    found = launches(busy)
    assert len(found) == 1
    assert not {"n0", "n1"} & {name for launch in found for name in launch.replaces}


def test_a_node_where_somebody_else_has_an_actor_stays() -> None:
    """By default actors hold nothing in Ray; they end with their node all the same."""
    view = view_of([node(1), node(2)])
    assert view.snapshot is not None
    for guests, moved in (({"j", "other"}, [("n2",)]), ({"j"}, [("n1",), ("n2",)])):
        snapshot = replace(view.snapshot, guests={"ray-n1": frozenset(guests)})
        assert [launch.replaces for launch in launches(replace(view, snapshot=snapshot))] == moved


@pytest.mark.parametrize(
    "changes",
    [
        {"wishes": ()},  # a job that has told no wish
        {"wishes": (replace(WISH, can_move=False),)},
        {"wishes": (replace(WISH, resources={"CPU": 0.7, "GPU": 1.0}),)},  # it holds something beside its workers
        {"wishes": (replace(WISH, labels={"ray.io/market-type": "on-demand"}),)},  # it wants to be there
        {"quotes": {}},  # prices were not watched for long enough
        {"knowledge": None},
        {"snapshot": None},
    ],
)
def test_who_stays(changes: dict[str, object]) -> None:
    view = view_of([node(1)])
    assert launches(view)
    assert launches(replace(view, **changes)) == []  # type: ignore[arg-type]


def test_use_that_nobody_is_known_to_hold_keeps_the_node() -> None:
    assert launches(view_of([node(1, used={"CPU": 2.0, "GPU": 1.0})])) == []


def test_a_node_that_is_young_or_whose_work_has_just_changed_stays() -> None:
    old = node(1)
    young = replace(old, requested=replace(old.requested, joined_at_s=NOW_S - 600))
    changed = replace(old, requested=replace(old.requested, held_since_s=NOW_S - 600))
    tried = replace(old, requested=replace(old.requested, tried_s=NOW_S - 3600))
    assert [launches(view_of([each])) for each in (young, changed, tried)] == [[], [], []]


def test_a_job_on_several_nodes_is_not_torn_over_regions() -> None:
    offers = (OTHER, DEAR)
    assert launches(view_of([node(1), node(2)], offers)) == []  # the cheap one is in another region
    [alone] = launches(view_of([node(1)], offers))  # alone it may go anywhere
    assert alone.offer == OTHER
    both = view_of([node(1), node(2, OTHER)], offers)  # it lies there already
    assert [launch.replaces for launch in launches(both)] == [("n1",)]


# --- shares of a market ---------------------------------------------------------------------------------------------


def test_what_a_job_holds_is_counted_by_market() -> None:
    leaving = node(3, SPOT)
    leaving = replace(leaving, requested=replace(leaving.requested, notice_deadline_s=NOW_S + 60))
    view = view_of([node(1), node(2, SPOT), leaving, node(4, SPOT, used={})])
    assert held_by_market(view) == {"job j": {DEAR.market.key: 1, SPOT.market.key: 1}}


def test_a_job_that_grows_bit_by_bit_does_not_come_to_lie_in_one_market() -> None:
    """Each time one worker more is wanted: the cheapest market is full of it after half."""
    nodes: list[NodeView] = []
    for number in range(6):
        need = Demand((Need(Shape.of(GPU), 1, "job j"),))
        view = replace(view_of(nodes, (SPOT, OTHER, DEAR)), demand=need)
        [launch] = [each for each in Buy(max_market_share=0.5)(view, Draft()).actions if isinstance(each, Launch)]
        nodes.append(node(number, launch.offer))
    markets = [each.requested.offer.market.key for each in nodes]
    assert max(markets.count(market) for market in markets) == 3


def test_moves_keep_the_share_of_a_market() -> None:
    near = make_offer("aws/us-east-1b/g6", usd_per_h=0.35, cpus=4, gpus=1)
    view = view_of([node(number) for number in range(4)], (SPOT, near, DEAR))
    assert [launch.offer for launch in launches(view)] == [SPOT] * 4
    assert [launch.offer for launch in launches(view, Exchange(max_market_share=0.5))] == [SPOT, SPOT, near, near]


# --- large fleets ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.sampled_from([0.5, 1.0, 5.0, 10.0, 60.0]), st.floats(0, 1e9))
def test_every_node_is_looked_at_sooner_or_later_whatever_the_length_of_a_tick(
    number: int, tick_s: float, start_s: float
) -> None:
    small = node(1)
    nodes = tuple(replace(small, requested=replace(small.requested, launch_id=f"n{i}")) for i in range(number))
    view, seen = View(start_s, LoopSettings(fleet="t"), nodes=nodes), set[str]()
    for tick in range(max(1, 12 * number // LOOKED_AT)):
        here = [each.launch_id for each in looked_at(replace(view, now_s=start_s + tick * tick_s))]
        assert len(here) == len(set(here)) <= max(LOOKED_AT, 1)
        seen.update(here)
    assert len(seen) == number


def test_what_lies_on_a_node_is_one_piece_of_all_its_jobs() -> None:
    wishes = (WISH, Wish("k", 1, 1, {"CPU": 2.0}, can_move=True))
    here = node(1, used={"CPU": 3.0, "GPU": 1.0})
    view = view_of([here], wishes=wishes)
    assert view.snapshot is not None
    holdings = {("j", "ray-n1"): GPU, ("k", "ray-n1"): {"CPU": 2.0}}
    view = replace(view, snapshot=replace(view.snapshot, holdings=holdings))
    load = Holders.of(view, [here]).load_of(here)
    assert load is not None
    assert load.piece == Shape.of({"CPU": 3.0, "GPU": 1.0})
    assert load.jobs == ("j", "k")
