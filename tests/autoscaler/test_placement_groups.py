"""Placement groups: the nodes of a gang side by side where the cloud can do so, and none the fewer where it cannot."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loop_world import assert_log_folds, of_kind, world

from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.placement import group_name, has_groups, is_group_of
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings, NodeView, View
from tradewind.errors import AuthError, InvalidRequest, QuotaExceeded, Scope, Stockout, Throttled
from tradewind.events import DecisionRecorded, LaunchRefused, LaunchRequested
from tradewind.model import LABEL_PLACEMENT_GROUP, Market, Offer
from tradewind.states import NodeState

GPU, CPU = Shape.of({"CPU": 1, "GPU": 1}), Shape.of({"CPU": 4})
HERE = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
NEXT = make_offer("aws/us-east-1b/g6", usd_per_h=0.80, cpus=4, gpus=1)
PLAIN = make_offer("aws/us-east-1a/m7i", usd_per_h=0.10, cpus=4)


def plan_of(gang: Gang, *offers: Offer, **settings: object) -> list[str]:
    view = View(
        1000.0,
        LoopSettings(fleet="test", **settings),  # type: ignore[arg-type]
        (),
        RaySnapshot(),
        Demand(gangs=(gang,)),
        offers or (HERE, NEXT),
    )
    return [launch.gang for launch in make_plan(view).launches]


def gang_world(bundles: int = 3, **changes: object) -> World:
    made = world((HERE, NEXT), **changes)
    made.ray.submit_gang([{"CPU": 1, "GPU": 1}] * bundles, Strategy.STRICT_SPREAD)
    return made


def groups(made: World) -> list[str]:
    return [node.placement_group for node in made.cloud.alive()]


# --- who gets one ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [Strategy.PACK, Strategy.SPREAD, Strategy.STRICT_SPREAD])
def test_the_nodes_of_a_gang_name_their_gang(strategy: Strategy) -> None:
    assert plan_of(Gang("aa", strategy, (GPU, GPU, GPU))) == ["aa"] * 3


def test_one_node_needs_no_group() -> None:
    twice = make_offer("aws/us-east-1a/g6-2", usd_per_h=0.60, cpus=8, gpus=2)
    assert plan_of(Gang("aa", Strategy.PACK, (GPU, GPU)), twice) == [""]
    assert plan_of(Gang("aa", Strategy.STRICT_PACK, (GPU, GPU)), twice) == [""]


def test_nodes_without_accelerators_need_no_group() -> None:
    assert plan_of(Gang("aa", Strategy.STRICT_SPREAD, (CPU, CPU)), PLAIN) == ["", ""]
    assert not has_groups(PLAIN)


def test_a_gang_over_two_zones_has_no_company_in_either() -> None:
    dear = replace(PLAIN, price_uusd_per_h=800_000)
    far = make_offer("aws/us-east-1b/m7i", usd_per_h=0.10, cpus=4)
    assert plan_of(Gang("aa", Strategy.PACK, (GPU, CPU)), HERE, dear, far) == ["", ""]


def test_groups_can_be_turned_off() -> None:
    assert plan_of(Gang("aa", Strategy.PACK, (GPU, GPU)), placement_groups=False) == ["", ""]
    made = gang_world(placement_groups=False)
    made.run(5)
    assert groups(made) == ["", "", ""]


@pytest.mark.parametrize(
    ("cloud", "kind", "accelerator", "hosts", "expected"),
    [
        ("aws", "p4d.24xlarge", "A100", 1, True),
        ("azure", "Standard_ND96", "A100", 1, True),
        ("gcp", "a2-highgpu-8g", "A100", 1, True),
        ("gcp", "g2-standard-4", "L4", 1, True),
        ("gcp", "n1-standard-8", "V100", 1, False),  # Compute Engine has no compact placement for it
        ("gcp", "tpu-v4-16", "TPU-V4", 2, False),  # a slice is wired together anyway
        ("aws", "m7i.large", "", 1, False),
        ("moon", "g6", "L4", 1, False),
    ],
)
def test_where_groups_are_sold(cloud: str, kind: str, accelerator: str, hosts: int, expected: bool) -> None:
    market = Market(cloud, "r", "r-a", kind, HERE.market.capacity)
    assert has_groups(Offer(market, 8, 64, accelerator, 1, hosts)) is expected


def test_a_name_is_the_same_again_and_tells_fleets_and_zones_apart() -> None:
    name = group_name("a", "cell", "gang", HERE.market)
    assert name == group_name("a", "cell", "gang", HERE.market)
    others = [
        group_name("a", "cell", "gang", NEXT.market),
        group_name("a", "cell", "other", HERE.market),
        group_name("a", "other", "gang", HERE.market),
        group_name("a-b", "cell", "gang", HERE.market),
    ]
    assert len({name, *others}) == 5
    assert is_group_of("a", name)
    assert not is_group_of("a", group_name("a-b", "cell", "gang", HERE.market))
    assert not is_group_of("a-b", name)
    assert len(group_name("x" * 32, "cell", "gang", HERE.market)) <= 63  # Ray's labels, Google's names


def running(name: str, offer: Offer) -> NodeView:
    """A node with nothing free."""
    record = NodeRecord(name, offer, "local", "r", NodeState.READY, 0.0, 0.0)
    return NodeView(record, ray=RayNode(f"ray-{name}", name, RayStatus.RUNNING, offer.resources, {}, offer.labels))


@pytest.mark.parametrize(("where", "expected"), [(HERE, ["aa"]), (NEXT, [""])])
def test_a_gang_that_lost_a_node_comes_back_to_its_group(where: Offer, expected: list[str]) -> None:
    gang = Gang("aa", Strategy.STRICT_SPREAD, (GPU,), placed_on=frozenset({"ray-n1"}))
    there = running("n1", where)
    snapshot = RaySnapshot(nodes=(there.ray,) if there.ray else ())
    view = View(1000.0, LoopSettings(fleet="test"), (there,), snapshot, Demand(gangs=(gang,)), (HERE, NEXT))
    assert [launch.gang for launch in make_plan(view).launches] == expected


# --- in the loop -------------------------------------------------------------------------------------------------


def test_a_gang_is_launched_into_one_group_and_says_so() -> None:
    made = gang_world()
    made.run(5)
    [name] = set(groups(made))
    assert is_group_of("test", name)
    assert {spec.labels[LABEL_PLACEMENT_GROUP] for spec in made.cloud.launch_calls} == {name}
    assert {event.placement_group for event in of_kind(made, LaunchRequested)} == {name}  # type: ignore[union-attr]
    said = [event.reason for event in of_kind(made, DecisionRecorded) if event.action == "launch"]  # type: ignore[union-attr]
    assert all(reason.endswith(f"; in placement group {name}") for reason in said)
    assert_log_folds(made)


def test_a_gang_that_is_bought_in_parts_has_one_group() -> None:
    limits = replace(LoopSettings(fleet="test").limits, launches_per_minute=2)
    made = gang_world(3, limits=limits)
    made.run(130)
    assert len(groups(made)) == 3
    assert len(set(groups(made))) == 1


def test_a_full_group_gives_way_to_the_same_offer_in_the_same_tick() -> None:
    made = gang_world(3)
    made.cloud.group_room = 1
    made.run(1)
    assert sorted(bool(group) for group in groups(made)) == [False, False, True]
    assert {node.offer.market for node in made.cloud.alive()} == {HERE.market}, "the next offer is much dearer"
    [refused, *more] = of_kind(made, LaunchRefused)
    assert isinstance(refused, LaunchRefused)
    assert (refused.error, refused.scope) == ("Stockout", Scope.GROUP)
    assert more == [], "a group that was refused a moment ago is not asked again"
    said = [event.reason for event in of_kind(made, DecisionRecorded) if event.action == "launch"]  # type: ignore[union-attr]
    assert "outside of placement group" in said[-1]
    assert_log_folds(made)


def test_a_full_group_says_nothing_of_its_market() -> None:
    made = gang_world(2)
    made.cloud.group_room = 1
    made.run(1)
    assert len(of_kind(made, LaunchRefused)) == 1
    spells = made.fleet.spells.get(HERE.market.key)
    assert spells is None or [state for _, state in spells.changes if state is False] == []
    assert MarketMemory.of(made.fleet, made.clock.now_s()).block_of(HERE, made.clock.now_s()) is None
    made.cloud.group_room = 2
    made.ray.submit_gang([{"CPU": 1, "GPU": 1}] * 2, Strategy.STRICT_SPREAD)
    made.run(1)
    names = [group for group in groups(made) if group]
    assert len(names) == 3, "another gang has another group, which has room"
    assert len(set(names)) == 2


def test_after_a_while_the_group_is_asked_again() -> None:
    made = gang_world(2)
    made.cloud.group_room = 1
    made.run(1)
    [refused] = of_kind(made, LaunchRefused)
    [name] = [group for group in groups(made) if group]
    for later_s, expected in ((599.0, True), (601.0, False)):
        now_s = refused.at_s + later_s
        block = MarketMemory.of(made.fleet, now_s).group_block_of(HERE.market, name, now_s)
        assert (block is not None) is expected


def test_a_market_that_is_sold_out_is_left_after_both_tries() -> None:
    made = gang_world(2)
    made.cloud.sold_out.add(HERE.market.key)
    made.run(1)
    assert {node.offer.market for node in made.cloud.alive()} == {NEXT.market}
    assert len(set(groups(made))) == 1, "in the group of that zone"
    assert all(groups(made))
    scopes = [event.scope for event in of_kind(made, LaunchRefused)]  # type: ignore[union-attr]
    assert scopes.count(Scope.GROUP) == 1
    assert scopes.count(Scope.ZONE) >= 1


@pytest.mark.parametrize("error", [AuthError("no right to make groups"), InvalidRequest("this type takes no groups")])
def test_what_is_wrong_with_groups_blocks_no_offer(error: Exception) -> None:
    made = gang_world(2)
    made.cloud.launch_faults.append((error, False))
    made.run(1)
    assert groups(made) == ["", ""], "refused once, all groups of this type here are left out"
    assert {node.offer.market for node in made.cloud.alive()} == {HERE.market}


def test_a_quota_is_about_the_offer_in_a_group_or_out() -> None:
    made = gang_world(2)
    made.cloud.launch_faults.append((QuotaExceeded("no more"), False))
    made.run(1)
    [refused] = of_kind(made, LaunchRefused)
    assert isinstance(refused, LaunchRefused)
    assert refused.scope == Scope.REGION


def test_a_throttled_launch_is_sent_again_as_it_was() -> None:
    made = gang_world(2)
    made.cloud.launch_faults.append((Throttled("slower"), False))
    made.run(3)
    first, *_ = made.cloud.launch_calls
    again = [spec for spec in made.cloud.launch_calls if spec.launch_id == first.launch_id]
    assert len(again) == 2
    assert again[0] == again[1]
    assert len(set(groups(made))) == 1


def test_a_refusal_that_the_listing_tells_is_about_the_group() -> None:
    made = gang_world(2)
    made.run(1)
    chosen = made.cloud.alive()[0]
    made.cloud.refuse_late(chosen.launch_id, Stockout("no room after all"))
    made.run(2)
    [refused] = of_kind(made, LaunchRefused)
    assert isinstance(refused, LaunchRefused)
    assert refused.scope == Scope.GROUP
    assert {node.offer.market for node in made.cloud.alive()} == {HERE.market}
    assert sorted(map(bool, groups(made))) == [False, True]


# --- NVLink: fewer, larger nodes -----------------------------------------------------------------------------------

FOUR = make_offer("aws/us-east-1a/g6.4", usd_per_h=4.00, cpus=16, gpus=4)


def bought(gang: Gang, *offers: Offer) -> list[str]:
    view = View(1000.0, LoopSettings(fleet="test"), (), RaySnapshot(), Demand(gangs=(gang,)), offers)
    return sorted(launch.offer.market.instance_type for launch in make_plan(view).launches)


@pytest.mark.parametrize(("usd_per_h", "expected"), [(8.0, ["g6.8"]), (8.3, ["g6.8"]), (8.5, ["g6.4", "g6.4"])])
def test_a_gang_of_gpus_takes_one_large_node_where_that_costs_little_more(
    usd_per_h: float, expected: list[str]
) -> None:
    eight = make_offer("aws/us-east-1a/g6.8", usd_per_h=usd_per_h, cpus=32, gpus=8)
    assert bought(Gang("aa", Strategy.PACK, (GPU,) * 8), FOUR, eight) == expected


@pytest.mark.parametrize(("usd_per_h", "expected"), [(8.3, ["g6.8"] * 2), (8.5, ["g6.4"] * 4)])
def test_also_where_it_needs_several(usd_per_h: float, expected: list[str]) -> None:
    eight = make_offer("aws/us-east-1a/g6.8", usd_per_h=usd_per_h, cpus=32, gpus=8)
    assert bought(Gang("aa", Strategy.PACK, (GPU,) * 16), FOUR, eight) == expected


def test_a_gang_that_fits_the_small_node_pays_for_no_large_one() -> None:
    eight = make_offer("aws/us-east-1a/g6.8", usd_per_h=8.3, cpus=32, gpus=8)
    view = View(
        1000.0,
        LoopSettings(fleet="test"),
        (),
        RaySnapshot(),
        Demand(gangs=tuple(Gang(f"{n:02d}", Strategy.PACK, (GPU,) * 4) for n in range(2))),
        (FOUR, eight),
    )
    assert [launch.offer.market.instance_type for launch in make_plan(view).launches] == ["g6.4", "g6.4"]


def test_who_asks_to_be_spread_pays_nothing_for_large_nodes() -> None:
    eight = make_offer("aws/us-east-1a/g6.8", usd_per_h=8.3, cpus=32, gpus=8)
    assert bought(Gang("aa", Strategy.SPREAD, (GPU,) * 8), FOUR, eight) == ["g6.4", "g6.4"]
