"""What a market that sold broken nodes is remembered for, and for how long."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.market import BOOT_BLOCK_S, BOOT_FAILED, MarketMemory, _fold, scope_key
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import PriceTooHigh, QuotaExceeded, Scope, Stockout
from tradewind.events import LaunchRefused, LaunchRequested, NodeGone, NodeJoined, NodeLaunched
from tradewind.model import Capacity, EndReason, Offer

HERE = make_offer("gcp/us-central1-a/g2", usd_per_h=0.2, gpus=1)
THERE = make_offer("aws/us-east-1a/g6", usd_per_h=0.9, gpus=1)


class History:
    """A fleet, told node by node."""

    def __init__(self) -> None:
        self.fleet = FleetState()
        self._count = 0

    def node(
        self,
        asked_s: float,
        *,
        ended_s: float | None = None,
        joined_s: float | None = None,
        end: EndReason = EndReason.CRASHED,
        offer: Offer = HERE,
        launched: bool = True,
    ) -> None:
        self._count += 1
        name = f"n{self._count}"
        self.fleet.apply(LaunchRequested(at_s=asked_s, launch_id=name, offer=offer, reason="r"))
        if launched:
            self.fleet.apply(NodeLaunched(at_s=asked_s + 1, launch_id=name, instance_id=name))
        if joined_s is not None:
            self.fleet.apply(NodeJoined(at_s=joined_s, launch_id=name, ray_node_id="aa"))
        if ended_s is not None:
            self.fleet.apply(NodeGone(at_s=ended_s, launch_id=name, end=end, detail="its boot failed"))

    def refused(
        self,
        at_s: float,
        scope: Scope = Scope.OFFER,
        block_s: float = 60.0,
        offer: Offer = HERE,
        error: str = "Stockout",
    ) -> None:
        self._count += 1
        name = f"n{self._count}"
        self.fleet.apply(LaunchRequested(at_s=at_s, launch_id=name, offer=offer, reason="r"))
        self.fleet.apply(
            LaunchRefused(at_s=at_s, launch_id=name, error=error, message="m", scope=scope, block_s=block_s)
        )

    def is_blocked(self, now_s: float, offer: Offer = HERE) -> bool:
        return MarketMemory.of(self.fleet, now_s).block_of(offer, now_s) is not None

    def blocked_until_s(self, now_s: float) -> float:
        block = MarketMemory.of(self.fleet, now_s).block_of(HERE, now_s)
        assert block is not None
        return block.until_s


def test_a_node_that_never_booted_blocks_its_market_and_no_other() -> None:
    past = History()
    past.node(1000, ended_s=1010)
    block = MarketMemory.of(past.fleet, 1011).block_of(HERE, 1011)
    assert block is not None
    assert (block.error, block.until_s) == (BOOT_FAILED, 1010 + BOOT_BLOCK_S)
    assert block.describe(1011) == "BootFailed, tried again in 59s"
    on_demand = make_offer("gcp/us-central1-a/g2", gpus=1, capacity=Capacity.ON_DEMAND)
    assert not past.is_blocked(1011, THERE)
    assert not past.is_blocked(1011, on_demand)


def test_the_block_ends_by_itself() -> None:
    past = History()
    past.node(1000, ended_s=1010)
    assert past.is_blocked(1010 + BOOT_BLOCK_S - 0.1)
    assert not past.is_blocked(1010 + BOOT_BLOCK_S)


def test_a_failure_that_was_noticed_late_blocks_for_as_long_as_it_took() -> None:
    past = History()
    past.node(1000, ended_s=1300, end=EndReason.TERMINATED)  # given up after five minutes
    assert past.blocked_until_s(1301) == 1600


def test_each_failure_soon_after_the_last_block_doubles_it_up_to_eight_times() -> None:
    past, now_s, waits = History(), 1000.0, []
    for _ in range(6):
        past.node(now_s, ended_s=now_s + 5)
        until_s = past.blocked_until_s(now_s + 6)
        waits.append((until_s - now_s - 5) / BOOT_BLOCK_S)
        now_s = until_s + 1
    assert waits == [1, 2, 4, 8, 8, 8]


@pytest.mark.parametrize(
    ("error", "block_s", "minutes"),
    [
        ("Stockout", Stockout.block_s, [10, 20, 20, 20]),
        ("PriceTooHigh", PriceTooHigh.block_s, [5, 10, 20, 20]),
        ("QuotaExceeded", QuotaExceeded.block_s, [60, 120, 240, 480]),  # people must act
    ],
)
def test_what_is_sold_out_is_asked_for_again_every_twenty_minutes(
    error: str, block_s: float, minutes: list[int]
) -> None:
    past, now_s, waits = History(), 1000.0, []
    for _ in minutes:
        past.refused(now_s, block_s=block_s, error=error)
        until_s = past.blocked_until_s(now_s + 1)
        waits.append((until_s - now_s) / 60)
        now_s = until_s + 1
    assert waits == minutes


def test_spot_that_is_back_is_bought_within_twenty_minutes() -> None:
    """Somebody comes every four minutes, and goes again; for two hours the cheap market has nothing."""
    w = World([HERE, THERE], LoopSettings(fleet="t", idle_timeout_s=5, min_node_life_s=1))
    w.cloud.sold_out.add(HERE.market.key)

    def come_and_go() -> None:
        w.ray.submit({"GPU": 1})
        w.run(120, interval_s=15)
        w.ray.finish()
        w.run(120, interval_s=15)

    for _ in range(28):
        come_and_go()
    assert 3 < len([spec for spec in w.cloud.launch_calls if spec.offer == HERE]) <= 2 + 112 / 20
    w.cloud.sold_out.clear()
    for _ in range(6):
        come_and_go()
    assert [node for node in w.fleet.nodes.values() if node.offer == HERE and node.joined_at_s]


def test_a_failure_long_after_the_last_one_starts_anew() -> None:
    past = History()
    past.node(1000, ended_s=1005)
    past.node(1500, ended_s=1505)
    assert past.blocked_until_s(1506) == 1505 + BOOT_BLOCK_S


def test_a_node_that_joins_clears_it() -> None:
    past = History()
    past.node(1000, ended_s=1010)
    past.node(1020, joined_s=1030)
    assert not past.is_blocked(1031)


def test_a_launch_alone_clears_a_refusal_but_not_a_failed_boot() -> None:
    past = History()
    past.node(1000, ended_s=1010)
    past.refused(1011)
    past.node(1020)
    memory = MarketMemory.of(past.fleet, 1021)
    assert [block.error for block in memory.blocks.values()] == [BOOT_FAILED]


def test_a_join_that_was_asked_for_before_the_failure_says_nothing_of_it() -> None:
    past = History()
    past.node(1000, joined_s=1050)
    past.node(1010, ended_s=1020)
    assert past.is_blocked(1060)


@pytest.mark.parametrize("end", [EndReason.PREEMPTED, EndReason.LOST])
def test_a_node_that_the_cloud_took_while_it_booted_is_no_failed_boot(end: EndReason) -> None:
    past = History()
    past.node(1000, ended_s=1010, end=end)
    assert not past.is_blocked(1011)


@pytest.mark.parametrize("end", list(EndReason))
def test_a_node_that_had_joined_is_no_failed_boot(end: EndReason) -> None:
    past = History()
    past.node(1000, joined_s=1005, ended_s=1010, end=end)
    assert not past.is_blocked(1011)


def test_a_node_that_still_boots_or_was_never_billed_is_no_failed_boot() -> None:
    past = History()
    past.node(1000)
    past.node(1000, launched=False, ended_s=1010)
    assert not past.is_blocked(1011)


@pytest.mark.parametrize(
    ("scope", "same_zone", "same_region", "other_cloud"),
    [
        (Scope.NOTHING, False, False, False),
        (Scope.OFFER, True, False, False),
        (Scope.ZONE, True, False, False),
        (Scope.REGION, True, True, False),
        (Scope.CLOUD, True, True, False),
    ],
)
def test_a_refusal_rules_out_what_its_scope_says(
    scope: Scope, same_zone: bool, same_region: bool, other_cloud: bool
) -> None:
    past = History()
    past.refused(1000, scope)
    neighbour = make_offer("gcp/us-central1-b/g2", gpus=1)
    assert neighbour.market.region == HERE.market.region
    found = [past.is_blocked(1001, offer) for offer in (HERE, neighbour, THERE)]
    assert found == [same_zone, same_region, other_cloud]
    assert bool(scope_key(HERE.market, scope)) is (scope is not Scope.NOTHING)


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(1, 300), st.booleans()), max_size=12))
def test_no_block_outlives_its_longest_wait(told: Sequence[tuple[int, int, bool]]) -> None:
    past = History()
    for asked_s, took_s, joins in told:
        past.node(1.0 + asked_s, ended_s=1.0 + asked_s + took_s, joined_s=2.0 + asked_s if joins else None)
    ends = [1.0 + asked_s + took_s + 8 * max(BOOT_BLOCK_S, took_s) for asked_s, took_s, joins in told if not joins]
    assert not past.is_blocked(max(ends, default=0.0))


def test_the_loop_turns_to_another_market_and_comes_back() -> None:
    """The cheap market sells nodes that never join; it is tried again when its block is over, and is then well."""
    w = World([HERE, THERE], LoopSettings(fleet="t", boot_timeout_s=20, idle_timeout_s=5, min_node_life_s=1))
    w.cloud.never_boots.add(HERE.market.key)
    w.ray.submit({"GPU": 1})
    w.run(60)
    assert [node.offer.market.key for node in w.cloud.alive()] == [THERE.market.key]
    assert [spec.offer.market.key for spec in w.cloud.launch_calls] == [HERE.market.key, THERE.market.key]
    w.ray.finish()
    w.cloud.never_boots.clear()
    w.run(120)
    assert w.cloud.alive() == []
    w.ray.submit({"GPU": 1})
    w.run(30)
    assert [node.offer.market.key for node in w.cloud.alive()] == [HERE.market.key]
    assert w.ray.waiting == 0


@given(st.lists(st.tuples(st.floats(1.0, 20_000.0), st.sampled_from(["Stockout", "QuotaExceeded"])), max_size=40))
def test_refusals_of_long_ago_tell_nothing(steps: list[tuple[float, str]]) -> None:
    """With them and without them, the same is ruled out for as long."""
    past, now_s = History(), 0.0
    for wait_s, error in steps:
        now_s += wait_s
        past.refused(now_s, block_s=600.0, error=error)
    now_s += 1.0
    told = [(each.until_s, each.error) for each in MarketMemory.of(past.fleet, now_s).blocks.values()]
    market = HERE.market.key
    everything = _fold(past.fleet.refusals, past.fleet.nodes, {market: float("-inf")}, now_s)
    assert told == [(each.until_s, each.error) for each in everything.values()]
