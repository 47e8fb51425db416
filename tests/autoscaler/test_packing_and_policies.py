"""The pure parts: shapes, packing, market memory, demand, allocation, holdings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.allocate import allocate
from tradewind.autoscaler.demand import Demand, Need, demand_of
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.holdings import Claim, add_claims, claim_rest, unclaimed
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.observe import learn_resources
from tradewind.autoscaler.packing import Packing, Slot, together
from tradewind.autoscaler.packing_order import dearest_first
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, View
from tradewind.errors import Scope
from tradewind.events import LaunchRefused, LaunchRequested, NodeLaunched
from tradewind.model import LABEL_MARKET_TYPE, Capacity, Offer, Target, Wish
from tradewind.states import NodeState

SPOT = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
ON_DEMAND = replace(SPOT, market=replace(SPOT.market, capacity=Capacity.ON_DEMAND), price_uusd_per_h=800_000)
SETTINGS = LoopSettings(fleet="test")


def slot(name: str, cpus: float, **labels: str) -> Slot:
    room = {"CPU": cpus}
    return Slot(name, name, room, dict(room), labels)


# --- shapes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "labels", "allowed"),
    [
        (LabelRule("a", ("x",)), {"a": "x"}, True),
        (LabelRule("a", ("x", "y")), {"a": "y"}, True),
        (LabelRule("a", ("x",)), {}, False),
        (LabelRule("a", ("x",), negated=True), {"a": "x"}, False),
        (LabelRule("a", ("x",), negated=True), {}, True),
    ],
)
def test_label_rules(rule: LabelRule, labels: dict[str, str], allowed: bool) -> None:
    assert rule.allows(labels) is allowed


def test_selectors_are_alternatives() -> None:
    shape = Shape.of({"CPU": 1}, selectors=[(LabelRule("a", ("x",)),), (LabelRule("b", ("y",)),)])
    assert shape.allows({"b": "y"})
    assert not shape.allows({"b": "z"})
    assert Shape.of({"CPU": 1}, selectors=[(LabelRule("a", ("x",)),), ()]).allows({})


def test_fractions_of_a_gpu_fit_side_by_side() -> None:
    assert Shape.of({"GPU": 0.1}).copies_in({"GPU": 1.0}) == 10
    assert Shape.of({"GPU": 0.3}).copies_in({"GPU": 1.0}) == 3


def test_bundles_that_must_lie_together_must_agree_on_labels() -> None:
    whole = together([Shape.of({"CPU": 1}, {"a": "x"}), Shape.of({"CPU": 2}, {"b": "y"})])
    assert dict(whole.resources) == {"CPU": 3}
    assert whole.allows({"a": "x", "b": "y"})
    assert not whole.allows({"a": "x"})


# --- packing --------------------------------------------------------------------------------------------------------


def test_a_gang_that_does_not_fit_leaves_the_room_to_others() -> None:
    gang = Gang("g", Strategy.STRICT_SPREAD, (Shape.of({"CPU": 1}),) * 3)
    demand = Demand(needs=(Need(Shape.of({"CPU": 4}), 2, "t"),), gangs=(gang,))
    packing = Packing([slot("a", 4), slot("b", 4)]).fill(demand)
    assert packing.unplaced == [gang]
    assert packing.used == {"a", "b"}


def test_a_gang_avoids_nodes_that_hold_its_other_bundles() -> None:
    gang = Gang("g", Strategy.STRICT_SPREAD, (Shape.of({"CPU": 1}),), placed_on=frozenset({"a"}))
    packing = Packing([slot("a", 4), slot("b", 4)]).fill(Demand(gangs=(gang,)))
    assert packing.used == {"b"}


@pytest.mark.parametrize("strategy", [Strategy.PACK, Strategy.SPREAD])
def test_pack_and_spread_count_what_is_needed_at_the_least(strategy: Strategy) -> None:
    gang = Gang("g", strategy, (Shape.of({"CPU": 1}), Shape.of({"CPU": 1}), Shape.of({"CPU": 2})))
    packing = Packing([slot("a", 2), slot("b", 2)]).fill(Demand(gangs=(gang,)))
    assert packing.unplaced == []


shapes = st.builds(
    lambda cpus, spot: Shape.of({"CPU": cpus}, {LABEL_MARKET_TYPE: "spot"} if spot else None),
    st.integers(1, 6),
    st.booleans(),
)
needs = st.lists(st.builds(Need, shapes, st.integers(1, 5), st.just("t")), max_size=5)
gangs = st.lists(
    st.builds(
        lambda n, strategy, bundles: Gang(str(n), strategy, tuple(bundles)),
        st.integers(0, 10**6),
        st.sampled_from(list(Strategy)),
        st.lists(shapes, min_size=1, max_size=4),
    ),
    max_size=4,
    unique_by=lambda gang: gang.gang_id,
)
offers = st.lists(
    st.builds(
        lambda kind, cpus, price, capacity: make_offer(
            f"aws/us-east-1a/m{kind}", cpus=cpus, usd_per_h=price, capacity=capacity
        ),
        st.integers(0, 3),
        st.integers(1, 8),
        st.sampled_from([0.05, 0.1, 0.2, 0.5]),
        st.sampled_from(list(Capacity)),
    ),
    max_size=5,
    unique_by=lambda offer: offer.market.key,
)
limits = st.builds(Limits, st.none() | st.integers(0, 6), st.none() | st.integers(0, 1_000_000), st.integers(0, 8))


@settings(max_examples=150, deadline=None)
@given(needs=needs, gangs=gangs, offers=offers, limits=limits)
def test_a_plan_never_passes_a_limit_and_serves_what_an_offer_can_serve(
    needs: list[Need], gangs: list[Gang], offers: list[Offer], limits: Limits
) -> None:
    demand = Demand(tuple(needs), tuple(gangs))
    view = View(
        now_s=1.0,
        settings=replace(SETTINGS, limits=limits),
        snapshot=RaySnapshot(),
        demand=demand,
        offers=tuple(offers),
    )
    plan = make_plan(view)
    _check_limits(plan, limits)
    for hold in plan.holds:
        assert hold.reason
    unlimited = replace(view, settings=replace(SETTINGS, limits=Limits(launches_per_minute=None)))
    _check_served(make_plan(unlimited), demand, offers)


def _check_limits(plan: Plan, limits: Limits) -> None:
    prices = [launch.offer.price_uusd_per_h or 0 for launch in plan.launches]
    assert limits.max_nodes is None or len(prices) <= limits.max_nodes
    assert limits.max_uusd_per_h is None or sum(prices) <= limits.max_uusd_per_h
    assert limits.launches_per_minute is None or len(prices) <= limits.launches_per_minute


def _check_served(plan: Plan, demand: Demand, offers: list[Offer]) -> None:
    """Held is only what no offer can serve; and what was bought is enough, checked by packing it anew."""
    bought = [
        Slot(f"b{i}", "", dict(launch.offer.resources), dict(launch.offer.resources), launch.offer.labels)
        for i, launch in enumerate(plan.launches)
    ]
    as_planned = replace(demand, needs=tuple(dearest_first(demand.needs, offers)))
    left = Packing(bought).fill(as_planned).unplaced
    for rest in left:
        bundles = [rest.shape] if isinstance(rest, Need) else rest.bundles
        if isinstance(rest, Gang) and rest.strategy is Strategy.STRICT_PACK:
            bundles = [together(rest.bundles)]
        assert any(not _fits_somewhere(bundle, offers) for bundle in bundles), rest
    assert len(left) == len(plan.holds)


def _fits_somewhere(shape: Shape, offers: list[Offer]) -> bool:
    return any(shape.allows(offer.labels) and shape.copies_in(offer.resources) for offer in offers)


@settings(max_examples=25, deadline=None)
@given(needs=needs, gangs=gangs, offers=offers)
def test_constant_demand_is_bought_for_once_and_never_sold(
    needs: list[Need], gangs: list[Gang], offers: list[Offer]
) -> None:
    """No flapping, and no second launch for one need."""
    world = World(offers, replace(SETTINGS, idle_timeout_s=5, min_node_life_s=0))
    for need in needs:
        labels = {LABEL_MARKET_TYPE: "spot"} if need.shape.selectors else None
        world.ray.submit(dict(need.shape.resources), need.count, labels)
    for gang in gangs:
        labels = {LABEL_MARKET_TYPE: "spot"} if gang.bundles[0].selectors else None
        world.ray.submit_gang([dict(bundle.resources) for bundle in gang.bundles], gang.strategy, labels)
    world.run(40, interval_s=2)
    calls, sold = len(world.cloud.launch_calls), len(world.cloud.terminate_calls)
    world.run(120, interval_s=4)
    assert len(world.cloud.launch_calls) == calls
    busy_once_settled = len(world.cloud.alive())
    world.run(60, interval_s=4)
    assert len(world.cloud.alive()) == busy_once_settled
    assert len(world.cloud.launch_calls) == calls
    assert len(world.cloud.terminate_calls) >= sold
    world.ray.finish()
    world.run(60, interval_s=2)
    assert world.cloud.alive() == []


# --- memory of the market -------------------------------------------------------------------------------------------


def refused(fleet: FleetState, name: str, offer: Offer, at_s: float, scope: Scope = Scope.ZONE) -> None:
    fleet.apply(LaunchRequested(at_s=at_s, launch_id=name, offer=offer, reason="t"))
    fleet.apply(LaunchRefused(at_s=at_s, launch_id=name, error="Stockout", message="none", scope=scope, block_s=100.0))


def test_a_refusal_rules_out_its_scope_and_nothing_else() -> None:
    fleet = FleetState()
    refused(fleet, "a", SPOT, 0.0)
    memory = MarketMemory.of(fleet, 1.0)
    elsewhere = replace(SPOT, market=replace(SPOT.market, zone="us-east-1b"))
    assert memory.block_of(SPOT, 99.0) is not None
    assert memory.block_of(SPOT, 101.0) is None
    assert memory.block_of(elsewhere, 1.0) is None
    assert memory.block_of(ON_DEMAND, 1.0) is None


@pytest.mark.parametrize(
    ("scope", "same_region", "same_cloud"),
    [(Scope.OFFER, False, False), (Scope.REGION, True, False), (Scope.CLOUD, True, True)],
)
def test_wider_scopes(scope: Scope, same_region: bool, same_cloud: bool) -> None:
    fleet = FleetState()
    refused(fleet, "a", SPOT, 0.0, scope)
    memory = MarketMemory.of(fleet, 1.0)
    near = replace(SPOT, market=replace(SPOT.market, zone="us-east-1b"))
    far = replace(SPOT, market=replace(SPOT.market, zone="eu-west-1a", region="eu-west-1", instance_type="x"))
    assert (memory.block_of(near, 1.0) is not None) is same_region
    assert (memory.block_of(far, 1.0) is not None) is same_cloud


def test_a_market_that_keeps_refusing_is_asked_ever_less_often_up_to_a_bound() -> None:
    fleet, at_s, waits = FleetState(), 0.0, []
    for i in range(6):
        refused(fleet, f"n{i}", SPOT, at_s)
        block = MarketMemory.of(fleet, at_s).block_of(SPOT, at_s)
        assert block is not None
        waits.append(block.until_s - at_s)
        at_s = block.until_s + 1
    assert waits[:4] == [100.0, 200.0, 400.0, 800.0]
    assert max(waits) <= 800.0


def test_a_launch_that_succeeds_clears_the_memory() -> None:
    fleet = FleetState()
    refused(fleet, "a", SPOT, 0.0)
    fleet.apply(LaunchRequested(at_s=10.0, launch_id="b", offer=SPOT, reason="t"))
    fleet.apply(NodeLaunched(at_s=12.0, launch_id="b", instance_id="i"))
    assert MarketMemory.of(fleet, 20.0).block_of(SPOT, 20.0) is None


# --- demand and allocation ------------------------------------------------------------------------------------------


def test_what_ray_queues_for_a_wishing_job_is_replaced_by_its_target() -> None:
    worker = Shape.of({"GPU": 1})
    snapshot = RaySnapshot(
        pending=((worker, 5),),
        pending_actors={"train": ((worker, 4),)},
        gangs=(Gang("g", Strategy.PACK, (worker,) * 4, "train"), Gang("h", Strategy.PACK, (worker,), "other")),
        holdings={("train", "n1"): {"GPU": 2.0}, ("train", "n2"): {"GPU": 1.0}},
    )
    wish = Wish("train", 1, 8, {"GPU": 1})
    demand = demand_of(snapshot, [wish], {"train": Target(1, 4)}, leaving=frozenset({"n2"}))
    assert {need.source: need.count for need in demand.needs} == {"tasks and actors": 1, "job train": 2}
    assert [gang.gang_id for gang in demand.gangs] == ["h"]


def test_targets_grow_in_turn_within_the_limits_and_the_epoch_rises_only_with_a_change() -> None:
    wishes = [Wish("a", 1, 8, {"GPU": 1}), Wish("b", 2, 8, {"GPU": 1})]
    free = allocate(wishes, Limits(), [SPOT])
    assert [target.replicas for target in free.values()] == [8, 8]
    tight = allocate(wishes, Limits(max_nodes=5), [SPOT], previous=free)
    assert {job: (t.epoch, t.replicas) for job, t in tight.items()} == {"a": (2, 2), "b": (2, 3)}
    assert allocate(wishes, Limits(max_nodes=5), [SPOT], previous=tight) == tight
    poor = allocate(wishes, Limits(max_uusd_per_h=1_500_000), [SPOT, ON_DEMAND])
    assert sum(target.replicas for target in poor.values()) == 4


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(1, 3)), min_size=1, max_size=4),
    st.none() | st.integers(0, 10),
)
def test_targets_stay_between_min_and_max(bounds: list[tuple[int, int, int]], max_nodes: int | None) -> None:
    wishes = [
        Wish(str(i), low * size, (low + more) * size, {"GPU": 1}, replica_workers=size)
        for i, (low, more, size) in enumerate(bounds)
    ]
    targets = allocate(wishes, Limits(max_nodes=max_nodes), [SPOT])
    for wish in wishes:
        assert wish.min_workers <= targets[wish.job_id].workers <= wish.max_workers
        assert targets[wish.job_id].workers == targets[wish.job_id].replicas * wish.replica_workers
    able = [wish for wish in wishes if max_nodes is None or wish.min_workers <= max_nodes]  # others never start
    total = sum(targets[wish.job_id].workers for wish in able)
    assert max_nodes is None or total <= max(max_nodes, sum(wish.min_workers for wish in able))
    assert all(targets[wish.job_id].workers == wish.min_workers for wish in wishes if wish not in able)


def test_a_grant_counts_replicas_and_is_new_when_the_job_tells_its_layout() -> None:
    before = allocate([Wish("a", 2, 8, {"GPU": 1})], Limits(max_nodes=5), [SPOT])
    assert before["a"] == Target(1, 5)
    wish = Wish("a", 2, 8, {"GPU": 1}, replica_workers=4)
    after = allocate([wish], Limits(max_nodes=5), [SPOT], previous=before)
    assert after["a"] == Target(2, 1, replica_workers=4)
    demand = demand_of(RaySnapshot(), [wish], after)
    assert [(need.source, need.count) for need in demand.needs] == [("job a", 4)]
    wider = allocate([wish], Limits(max_nodes=8), [SPOT], previous=after)
    assert wider["a"] == Target(3, 2, replica_workers=4)


# --- holdings -------------------------------------------------------------------------------------------------------


def test_what_nobody_claims_goes_to_the_only_job_or_by_the_task_table() -> None:
    node = RayNode("n", "l", RayStatus.RUNNING, {"CPU": 4.0}, {"CPU": 0.0})
    held = add_claims([Claim("a", "n", {"CPU": 1.0, "CPU_group_0_x": 1.0})])
    rest = unclaimed([node], held)
    assert rest == {"n": {"CPU": 3.0}}
    assert claim_rest(rest, ["a", "a"], []) == [Claim("a", "n", {"CPU": 3.0})]
    ended_too = [Claim("b", "n", {"CPU": 2.0}), Claim("c", "n", {"CPU": 2.0})]
    assert [claim.resources for claim in claim_rest(rest, ["a", "b", "c"], ended_too)] == [{"CPU": 2.0}, {"CPU": 1.0}]


def test_what_a_node_really_brought_is_believed_more_than_the_catalogue() -> None:
    node = RayNode("n", "l", RayStatus.IDLE, {"CPU": 2.0, "GPU": 1.0}, {})
    record = NodeRecord("l", SPOT, "local", "", NodeState.READY, 0.0, 0.0)
    view = View(now_s=0.0, settings=SETTINGS, seen_resources=learn_resources({}, [node], {"l": record}))
    assert view.resources_of(SPOT)["CPU"] == 2.0
    assert view.resources_of(ON_DEMAND)["CPU"] == 2.0  # the same type in the same place
    assert view.resources_of(make_offer("aws/us-east-1a/other", cpus=4))["CPU"] == 4.0


def seen_in(brought: Mapping[str, Mapping[str, float]]) -> View:
    """By zone, what a node there brought: all are listed with 8 CPUs and 16 GiB."""
    nodes = [RayNode(zone, zone, RayStatus.IDLE, dict(amounts), {}) for zone, amounts in brought.items()]
    records = {
        zone: NodeRecord(zone, make_offer(f"aws/us-east-1{zone}/m5", cpus=8), "local", "", NodeState.READY, 0.0, 0.0)
        for zone in brought
    }
    return View(now_s=0.0, settings=SETTINGS, seen_resources=learn_resources({}, nodes, records))


@pytest.mark.parametrize(
    ("brought", "believed"),
    [
        ({"a": 8.0, "b": 2.0}, [8.0, 2.0, 8.0]),  # unknown: there are some that bring what is listed
        ({"b": 2.0}, [8.0, 2.0, 8.0]),  # one that brings less may be the only one
        ({"a": 4.0, "b": 2.0}, [4.0, 2.0, 4.0]),  # two, and the list is wrong
    ],
)
def test_a_type_that_differs_between_zones_is_known_in_each(brought: dict[str, float], believed: list[float]) -> None:
    """Otherwise what a small one brings would shrink the large ones on paper, and the plan would change to and fro."""
    view = seen_in({zone: {"CPU": cpus} for zone, cpus in brought.items()})
    found = [view.resources_of(make_offer(f"aws/us-east-1{zone}/m5", cpus=8))["CPU"] for zone in "abc"]
    assert found == believed


def test_memory_is_a_guess_until_some_was_seen_anywhere() -> None:
    view, elsewhere = seen_in({"a": {"memory": 9e9}}), make_offer("aws/us-east-1b/m5", cpus=8)
    assert view.resources_of(elsewhere)["memory"] == 9e9
    assert view.resources_of(replace(elsewhere, memory_gib=32))["memory"] > 9e9  # listed as another machine


def test_a_small_node_of_a_type_does_not_hide_a_large_one_in_another_zone() -> None:
    small = make_offer("aws/us-east-1a/m5", cpus=4, usd_per_h=0.10)
    large = make_offer("aws/us-east-1b/m5", cpus=8, usd_per_h=0.20)
    world = World([small, large], SETTINGS)
    world.ray.submit({"CPU": 3})
    world.run(30)
    world.ray.submit({"CPU": 6})
    world.run(30)
    assert [call.offer for call in world.cloud.launch_calls] == [small, large]
    assert world.loop.plan is not None
    assert world.loop.plan.holds == []


def test_a_request_that_only_fits_on_paper_is_not_bought_for_again_and_again() -> None:
    world = World([make_offer("aws/us-east-1a/m5", cpus=4, memory_gib=16)], SETTINGS)
    world.loop.settings = replace(SETTINGS, usable_memory=1.0)
    world.loop.reconciler.settings = world.loop.settings
    world.ray.submit({"memory": 14 * 2**30})  # 16 on paper, 11 when it has joined
    world.run(300, interval_s=2)
    assert len(world.cloud.launch_calls) == 1
    assert world.loop.plan is not None
    assert "no offer has memory: 14.0 GiB" in world.loop.plan.holds[0].reason
