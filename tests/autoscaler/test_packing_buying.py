"""Buying: effective prices, caps, shares of a market, slices, and that a better set of nodes is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.autoscaler.actions import Drain, Launch, Plan
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.packing_slots import slots_of
from tradewind.autoscaler.packing_stock import Cap
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.policies import idle, lost, notice
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy, as_one
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.slices import LABEL_TPU_POD, LABEL_TPU_WORKER
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View
from tradewind.errors import Scope
from tradewind.events import LaunchRefused, LaunchRequested
from tradewind.model import LABEL_ACCELERATOR, LABEL_MARKET_TYPE, Capacity, Market, Offer
from tradewind.states import NodeState

SETTINGS = LoopSettings(fleet="test", limits=Limits(launches_per_minute=None))
GPU = Shape.of({"CPU": 1, "GPU": 1})
EAST = make_offer("aws/us-east-1a/g6", usd_per_h=0.40, cpus=4, gpus=1)
WEST = make_offer("gcp/us-west1-b/g2", usd_per_h=0.30, cpus=4, gpus=1)


def view_of(offers: list[Offer], *needs: Need, gangs: tuple[Gang, ...] = (), nodes: tuple[NodeView, ...] = ()) -> View:
    snapshot = RaySnapshot(nodes=tuple(node.ray for node in nodes if node.ray))
    return View(1000.0, SETTINGS, nodes, snapshot, Demand(needs, gangs), tuple(offers))


def plan_with(view: View, buy: Buy) -> Plan:
    return make_plan(view, policies=(lost.decide, notice.decide, buy, idle.decide))


def slice_of(kind: str, hosts: int, usd_per_h: float) -> Offer:
    market = Market("gcp", "us-central2", "us-central2-b", kind, Capacity.SPOT)
    return Offer(market, 120, 400, "TPU-V4", 4, hosts, round(usd_per_h * 1e6), price_source="test")


# --- prices and caps ------------------------------------------------------------------------------------------------


def test_the_effective_price_chooses_and_is_told() -> None:
    view = view_of([EAST, WEST], Need(GPU, 1, "t"))
    assert make_plan(view).launches[0].offer is WEST
    often_taken = Buy(effective_price=lambda offer: (offer.price_uusd_per_h or 0) * (2 if offer is WEST else 1.1))
    [launch] = plan_with(view, often_taken).launches
    assert launch.offer is EAST
    assert launch.reason == "cheapest for 1 x {CPU: 1, GPU: 1} (t): $0.40/h ($0.44/h with all that comes with it)"


def test_an_offer_at_the_same_price_is_not_beaten() -> None:
    twin, dearer = replace(WEST, market=replace(WEST.market, zone="us-west1-c")), EAST
    [launch] = make_plan(view_of([WEST, twin, dearer], Need(GPU, 1, "t"))).launches
    assert launch.reason == "one of the cheapest for 1 x {CPU: 1, GPU: 1} (t): $0.30/h"
    assert launch.alternatives == (f"{twin.market} at $0.30/h for 1, as cheap", f"{dearer.market} at $0.40/h for 1")
    told_apart = Buy(effective_price=lambda offer: (offer.price_uusd_per_h or 0) * (1.1 if offer is twin else 1.0))
    [launch] = plan_with(view_of([WEST, twin, dearer], Need(GPU, 1, "t")), told_apart).launches
    assert launch.reason.startswith("cheapest for")
    assert not any(text.endswith("as cheap") for text in launch.alternatives)


def test_a_quota_sends_the_rest_elsewhere_and_then_says_so() -> None:
    view = view_of([EAST, WEST], Need(GPU, 5, "t"))
    quota = Cap("the quota of 2 g2 in us-west1", offers=lambda offer: offer.market == WEST.market, max_nodes=2)
    assert [launch.offer for launch in plan_with(view, Buy(caps=(quota,))).launches] == [WEST, WEST, EAST, EAST, EAST]
    plan = plan_with(replace(view, offers=(WEST,)), Buy(caps=(quota,)))
    assert len(plan.launches) == 2
    assert [hold.reason for hold in plan.holds] == ["the quota of 2 g2 in us-west1 is reached"]


def test_a_tenant_pays_only_for_its_own() -> None:
    view = view_of([WEST], Need(GPU, 3, "job rich"), Need(Shape.of({"GPU": 1}), 3, "job poor"))
    cap = Cap(
        "the budget of poor", sources=lambda source: source == "job poor", max_uusd_per_h=700_000, used_uusd_per_h=0
    )
    plan = plan_with(view, Buy(caps=(cap,)))
    assert len(plan.launches) == 5
    assert [hold.reason for hold in plan.holds] == ["the budget of poor leaves too little for it"]


def test_no_market_gets_more_than_its_share_while_others_can_serve() -> None:
    offers = [EAST, WEST, make_offer("azure/eastus-1/nc", usd_per_h=0.9, cpus=4, gpus=1)]
    plan = plan_with(view_of(offers, Need(GPU, 6, "job")), Buy(max_market_share=0.34))
    assert [launch.offer.market.cloud for launch in plan.launches] == ["gcp", "gcp", "aws", "aws", "azure", "azure"]
    chosen = ["cheapest", "cheapest with no more than 34% in one market"]
    assert [launch.reason.partition(" for ")[0] for launch in plan.launches[1:3]] == chosen
    alone = plan_with(view_of([WEST], Need(GPU, 6, "job")), Buy(max_market_share=0.34))
    assert len(alone.launches) == 6


def test_the_integer_program_finds_what_one_shape_after_another_does_not() -> None:
    """The large shape alone is cheapest on a small node; both together fit one node that costs less than two."""
    small = make_offer("aws/us-east-1a/small", usd_per_h=0.30, cpus=6)
    tiny = make_offer("aws/us-east-1a/tiny", usd_per_h=0.20, cpus=4)
    middle = make_offer("aws/us-east-1a/middle", usd_per_h=0.40, cpus=10)
    view = view_of([small, tiny, middle], Need(Shape.of({"CPU": 6}), 1, "a"), Need(Shape.of({"CPU": 4}), 1, "b"))
    [launch] = make_plan(view).launches
    assert launch.offer is middle
    assert launch.reason == "cheapest for 1 x {CPU: 6} (a); 1 x {CPU: 4} (b): $0.40/h"


def test_fallbacks_hold_the_whole_load_before_those_that_hold_a_part() -> None:
    twice = make_offer("aws/us-east-1a/g6-2", usd_per_h=0.50, cpus=8, gpus=2)
    dear = make_offer("aws/us-east-1b/g6-2", usd_per_h=2.00, cpus=8, gpus=2)
    [launch] = make_plan(view_of([EAST, twice, dear], Need(GPU, 2, "t"))).launches
    assert launch.offer is twice
    assert launch.fallbacks == (dear, EAST)
    assert launch.alternatives == (f"{dear.market} at $2.00/h for 2", f"{EAST.market} at $0.40/h for 1")


# --- gangs ----------------------------------------------------------------------------------------------------------


def test_a_gang_is_bought_in_the_region_where_all_of_it_is_cheapest() -> None:
    cpu_west = make_offer("gcp/us-west1-b/n2", usd_per_h=2.0, cpus=32)
    cpu_east = make_offer("aws/us-east-1a/m5", usd_per_h=0.1, cpus=32)
    gang = Gang("g", Strategy.PACK, (GPU, GPU, Shape.of({"CPU": 32})))
    plan = make_plan(view_of([EAST, WEST, cpu_west, cpu_east], gangs=(gang,)))
    assert {launch.offer.market.region for launch in plan.launches} == {"us-east-1"}
    assert {offer.market.region for launch in plan.launches for offer in launch.fallbacks} <= {"us-east-1"}


def test_gangs_that_share_machines_are_bought_where_their_share_is_cheapest() -> None:
    """One gang alone is cheaper on the small machine of the one region; two of them on the large one of the other."""
    small = make_offer("aws/us-east-1a/g6-2", usd_per_h=1.0, cpus=8, gpus=2)
    large = make_offer("gcp/us-west1-b/g2-4", usd_per_h=1.6, cpus=16, gpus=4)
    gangs = tuple(Gang(f"g{number}", Strategy.STRICT_PACK, (GPU, GPU), f"job-{number}") for number in range(4))
    assert [launch.offer for launch in make_plan(view_of([small, large], gangs=gangs)).launches] == [large, large]
    assert [launch.offer for launch in make_plan(view_of([small, large], gangs=gangs[:1])).launches] == [small]


SPREAD, PACK = Strategy.STRICT_SPREAD, Strategy.PACK


@pytest.mark.parametrize(
    ("gangs", "size", "strategy", "gpus", "usd", "least_usd"),
    [
        (2, 5, SPREAD, 1, 1.2, 12.0),  # of each gang a node holds one: eight places are two
        (3, 4, SPREAD, 4, 4.4, 17.6),
        (2, 2, SPREAD, 1, 2.0, 8.0),
        (2, 5, PACK, 1, 1.2, 12.0),  # ten on machines of eight are two machines
        (3, 4, PACK, 4, 4.4, 13.2),
        (4, 4, PACK, 4, 4.4, 16.0),  # full ones are cheaper
    ],
)
def test_gangs_pay_for_whole_machines(
    gangs: int, size: int, strategy: Strategy, gpus: int, usd: float, least_usd: float
) -> None:
    """Two regions: one has machines of 8 GPUs at $8, the other smaller ones."""
    large = make_offer("aws/us-east-1a/x8", usd_per_h=8.0, cpus=32, gpus=8)
    small = make_offer("gcp/us-west1-b/small", usd_per_h=usd, cpus=4 * gpus, gpus=gpus)
    waiting = tuple(Gang(f"g{number}", strategy, (GPU,) * size, f"job-{number}") for number in range(gangs))
    plan = make_plan(view_of([large, small], gangs=waiting))
    paid = sum(launch.offer.price_uusd_per_h or 0 for launch in plan.launches)
    assert paid == pytest.approx(least_usd * 1e6)


def test_a_gang_that_no_region_sells_as_a_whole_is_held() -> None:
    cpu_east = make_offer("aws/us-east-1a/m5", usd_per_h=0.1, cpus=32)
    gang = Gang("g", Strategy.PACK, (GPU, Shape.of({"CPU": 32})))
    plan = make_plan(view_of([WEST, cpu_east], gangs=(gang,)))
    assert plan.launches == []
    assert plan.holds[0].reason == "no single region sells all of it"


def test_an_idle_node_that_is_half_of_what_a_gang_waits_for_is_kept() -> None:
    ray = RayNode("a" * 56, "n1", RayStatus.IDLE, EAST.resources, EAST.resources, EAST.labels, idle_s=900.0)
    node = NodeView(NodeRecord("n1", EAST, "local", "t", NodeState.READY, 1.0, 1.0, joined_at_s=1.0), None, ray)
    gang = Gang("g", Strategy.STRICT_SPREAD, (GPU, GPU))
    kinds = [type(action) for action in make_plan(view_of([EAST], gangs=(gang,), nodes=(node,))).actions]
    assert kinds == [Launch]
    assert [type(action) for action in make_plan(view_of([EAST], nodes=(node,))).actions] == [Drain]


# --- slices ---------------------------------------------------------------------------------------------------------

HOST = Shape.of({"TPU": 4})


def test_a_slice_at_the_same_price_is_not_beaten() -> None:
    offers = [slice_of("tpu-a", 4, 8.0), slice_of("tpu-b", 4, 8.0), slice_of("tpu-c", 4, 9.0)]
    [launch] = make_plan(view_of(offers, gangs=(Gang("g", Strategy.STRICT_SPREAD, (HOST,) * 4),))).launches
    assert launch.reason == "one of the cheapest for 4 x {TPU: 4} (gang g): $8.00/h"
    assert [text.endswith(", as cheap") for text in launch.alternatives] == [True, False]


def test_a_gang_of_tpu_hosts_gets_one_slice_that_holds_it() -> None:
    offers = [slice_of("tpu-v4-16", 2, 5.0), slice_of("tpu-v4-32", 4, 8.0), slice_of("tpu-v4-64", 8, 20.0)]
    gang = Gang("g", Strategy.STRICT_SPREAD, (HOST,) * 4)
    view = view_of(offers, gangs=(gang,))
    [launch] = make_plan(view).launches
    assert launch.offer is offers[1]
    assert launch.reason == "cheapest for 4 x {TPU: 4} (gang g): $8.00/h"
    record = NodeRecord("n1", launch.offer, "local", "t", NodeState.BOOTING, 1.0, 1.0)
    assert make_plan(replace(view, nodes=(NodeView(record),))).launches == []


def test_a_slice_is_one_launch_within_the_limits_or_none() -> None:
    gang = Gang("g", Strategy.SPREAD, (HOST,) * 4)
    view = view_of([slice_of("tpu-v4-32", 4, 8.0)], gangs=(gang,))
    poor = replace(SETTINGS, limits=Limits(max_uusd_per_h=7_999_999))
    assert make_plan(replace(view, settings=poor)).launches == []


def test_the_head_of_a_slice_is_what_ray_reserves_it_by() -> None:
    offer = slice_of("tpu-v4-32", 4, 8.0)
    head = Shape.of({"TPU-v4-32-head": 1}, {LABEL_TPU_POD: "v4-32", LABEL_TPU_WORKER: "0"})
    view = view_of([offer, EAST], gangs=(Gang("g", Strategy.PACK, (head,)),))
    [launch] = make_plan(view).launches
    assert launch.offer is offer


def test_every_host_of_a_slice_in_ray_is_room() -> None:
    offer = slice_of("tpu-v4-16", 2, 5.0)
    rays = tuple(
        RayNode(f"{i:056x}", "n1", RayStatus.RUNNING, offer.resources, offer.resources, offer.labels) for i in range(2)
    )
    record = NodeRecord("n1", offer, "local", "t", NodeState.READY, 1.0, 1.0, joined_at_s=1.0)
    node = NodeView(record, None, as_one(rays, 2), rays)
    view = replace(view_of([offer], gangs=(Gang("g", Strategy.STRICT_SPREAD, (HOST, HOST)),), nodes=(node,)))
    view = replace(view, snapshot=RaySnapshot(nodes=rays))
    assert [slot.name for slot in slots_of(view)] == ["n1", "n1"]
    assert make_plan(view).launches == []


# --- launches per minute --------------------------------------------------------------------------------------------


def test_a_gang_larger_than_the_launches_of_a_minute_is_bought_in_parts_and_then_stays() -> None:
    world = World([EAST], replace(SETTINGS, limits=Limits(launches_per_minute=3), idle_timeout_s=20, min_node_life_s=0))
    world.ray.submit_gang([dict(GPU.resources)] * 8, Strategy.STRICT_SPREAD)
    world.loop.tick()
    assert len(world.cloud.launch_calls) == 3
    assert world.loop.plan is not None
    assert world.loop.plan.holds[0].subject == "5 more nodes"
    for _ in range(30):  # with every tick's plan the rate holds, and nothing that waits for the rest is sold
        before_s = world.clock.now_s() - 60
        assert sum(node.requested_at_s > before_s for node in world.fleet.nodes.values()) <= 3
        world.run(10, interval_s=5)
    assert len(world.cloud.launch_calls) == len(world.cloud.alive()) == 8
    assert world.ray.snapshot().gangs == ()


def test_a_gang_that_other_limits_forbid_is_not_begun() -> None:
    gang = Gang("g", Strategy.STRICT_SPREAD, (GPU,) * 8, "train")
    limits = Limits(max_nodes=7, launches_per_minute=3)
    view = view_of([EAST], gangs=(gang,))
    plan = make_plan(replace(view, settings=replace(SETTINGS, limits=limits)))
    assert plan.launches == []
    assert plan.holds[0].reason == "all of it at once would pass a limit: 7 nodes, any per hour"
    assert plan.holds[0].jobs == ("train",)


# --- what is told ---------------------------------------------------------------------------------------------------


def test_a_launch_says_for_which_jobs_and_which_offers_were_not_asked() -> None:
    fleet = FleetState()
    fleet.apply(LaunchRequested(at_s=990.0, launch_id="a", offer=WEST, reason="t"))
    refusal = LaunchRefused(
        at_s=990.0, launch_id="a", error="Stockout", message="none", scope=Scope.ZONE, block_s=100.0
    )
    fleet.apply(refusal)
    blind = make_offer("azure/eastus-1/nc", usd_per_h=0.2, cpus=4, gpus=1)
    full = make_offer("aws/us-east-1b/g6", usd_per_h=0.35, cpus=4, gpus=1)
    small = make_offer("azure/eastus-1/b1", usd_per_h=0.01, cpus=1)  # would not serve, so it says nothing
    view = view_of([EAST, WEST, blind, full, small], Need(GPU, 1, "job train"), gangs=())
    view = replace(view, memory=MarketMemory.of(fleet, 1000.0), blind_clouds=frozenset({"azure"}))
    cap = Cap("the quota of 0 g6 in us-east-1b", offers=lambda offer: offer is full, max_nodes=0)
    [launch] = plan_with(view, Buy(caps=(cap,))).launches
    assert launch.offer is EAST
    assert launch.jobs == ("train",)
    assert launch.ruled_out == (
        f"{blind.market}: azure does not list its nodes",
        f"{WEST.market}: Stockout, tried again in 1m30s",
        f"{full.market}: the quota of 0 g6 in us-east-1b is reached",
    )


def test_a_node_for_a_gang_names_the_job_of_the_gang() -> None:
    gangs = tuple(Gang(f"g{number}", Strategy.PACK, (GPU,), f"job-{number}") for number in range(2))
    twice = make_offer("aws/us-east-1a/g6-2", usd_per_h=0.50, cpus=8, gpus=2)
    [launch] = make_plan(view_of([twice], gangs=gangs)).launches
    assert launch.jobs == ("job-0", "job-1")


def test_a_hold_names_the_job_that_asks() -> None:
    [hold] = make_plan(view_of([EAST], Need(Shape.of({"GPU": 64}), 1, "job train, whose node is taken away"))).holds
    assert hold.jobs == ("train",)


# --- labels ---------------------------------------------------------------------------------------------------------


def test_free_room_goes_to_whom_a_new_node_would_be_dearest() -> None:
    """The task that only runs on the dear GPU gets the free one there; the other one gets a cheap new node. The order
    does not follow the price of the minute, so the next tick finds the same places."""
    plain = replace(EAST, on_demand_uusd_per_h=1_000_000)
    dear = make_offer("aws/us-east-1a/p5", usd_per_h=0.1, cpus=4, gpus=1, accelerator="H100")  # a bargain, today
    dear = replace(dear, on_demand_uusd_per_h=9_000_000)
    ray = RayNode("a" * 56, "n1", RayStatus.RUNNING, dear.resources, dear.resources, dear.labels)
    node = NodeView(NodeRecord("n1", dear, "local", "t", NodeState.READY, 1.0, 1.0, joined_at_s=1.0), None, ray)
    tied = Shape.of({"CPU": 1, "GPU": 1}, {LABEL_ACCELERATOR: "H100"})
    spot_tied = Shape.of({"CPU": 2, "GPU": 1}, {LABEL_MARKET_TYPE: "spot"})
    demand = Need(spot_tied, 1, "any spot"), Need(tied, 1, "only H100")
    [launch] = make_plan(view_of([plain, dear], *demand, nodes=(node,))).launches
    assert "any spot" in launch.reason


# --- idle nodes -----------------------------------------------------------------------------------------------------


def test_idle_nodes_are_drained_the_dearest_first_but_none_within_its_minimum() -> None:
    def idle_node(name: str, offer: Offer, joined_at_s: float) -> NodeView:
        ray = RayNode(name * 56, name, RayStatus.IDLE, offer.resources, offer.resources, offer.labels, idle_s=900.0)
        record = NodeRecord(name, offer, "local", "t", NodeState.READY, 1.0, 1.0, joined_at_s=joined_at_s)
        return NodeView(record, None, ray)

    dear = make_offer("aws/us-east-1a/p5", usd_per_h=9.0, cpus=4, gpus=1)
    nodes = idle_node("a", WEST, 1.0), idle_node("b", EAST, 1.0), idle_node("c", dear, 1.0), idle_node("d", dear, 950.0)
    actions = make_plan(view_of([EAST], nodes=nodes)).actions
    assert [action.launch_id for action in actions if isinstance(action, Drain)] == ["c", "b", "a"]
