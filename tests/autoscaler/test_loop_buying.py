"""Whole stories through Loop.tick, on the shipped fakes: what is bought, within which limits, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loop_world import (
    CHEAP,
    DEAR,
    GPU,
    MIDDLE,
    alive,
    assert_log_folds,
    markets,
    of_kind,
    world,
)

from tradewind.autoscaler.actions import Launch, Plan
from tradewind.autoscaler.ray_snapshot import DrainReason, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import lost_answer, make_offer
from tradewind.autoscaler.view import Limits
from tradewind.errors import Throttled, Transient
from tradewind.events import (
    DecisionRecorded,
    LaunchRefused,
    NodeGone,
)
from tradewind.model import LABEL_MARKET_TYPE, EndReason, Offer
from tradewind.states import NodeState

# --- buying ---------------------------------------------------------------------------------------------------------


def test_a_pending_task_gets_the_cheapest_fitting_node_and_it_goes_when_idle() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    assert markets(w) == [CHEAP.market.key]
    assert w.ray.waiting == 0
    w.ray.finish()
    w.run(60)
    assert alive(w) == []
    [gone] = of_kind(w, NodeGone)
    assert isinstance(gone, NodeGone)
    assert gone.end is EndReason.TERMINATED
    assert [reason for _, reason in w.ray.drains] == [DrainReason.IDLE]
    assert_log_folds(w)


def test_nothing_is_bought_twice_while_it_boots() -> None:
    w = world()
    w.cloud.boot_s = 50
    w.ray.submit(GPU, count=3)
    w.run(60, interval_s=0.5)
    assert len(w.cloud.launch_calls) == 3
    assert w.ray.waiting == 0


def test_demand_that_fits_on_a_free_node_buys_nothing() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(15)
    w.ray.submit({"CPU": 1}, count=3)
    w.run(5)
    assert len(w.cloud.launch_calls) == 1
    assert w.ray.waiting == 0


def test_a_label_pinned_task_gets_a_node_with_that_label() -> None:
    w = world()
    w.ray.submit(GPU, labels={LABEL_MARKET_TYPE: "on-demand"})
    w.run(15)
    assert markets(w) == [DEAR.market.key]
    assert w.ray.waiting == 0


def test_many_small_requests_share_a_large_node_when_that_is_cheaper_per_request() -> None:
    small = make_offer("aws/us-east-1a/small", usd_per_h=0.05, cpus=1)
    large = make_offer("aws/us-east-1a/large", usd_per_h=0.16, cpus=4)
    w = world((small, large))
    w.ray.submit({"CPU": 1}, count=5)
    w.run(15)
    assert markets(w) == [large.market.key, small.market.key]  # 4 on the large one, the fifth alone
    assert w.ray.waiting == 0


@pytest.mark.parametrize(
    ("strategy", "num_nodes"),
    [(Strategy.STRICT_SPREAD, 3), (Strategy.SPREAD, 3), (Strategy.PACK, 3), (Strategy.STRICT_PACK, 1)],
)
def test_gangs_of_every_strategy_are_served(strategy: Strategy, num_nodes: int) -> None:
    big = make_offer("aws/us-east-1a/p4", usd_per_h=8.0, cpus=16, gpus=8)
    w = world((CHEAP, big))
    w.ray.submit_gang([GPU] * 3, strategy)
    w.run(20)
    assert w.ray.waiting == 0
    assert len(alive(w)) == num_nodes


def test_a_strict_spread_gang_does_not_share_nodes_although_they_have_room() -> None:
    w = world()
    w.ray.submit_gang([{"CPU": 1}] * 3, Strategy.STRICT_SPREAD)
    w.run(20)
    assert w.ray.waiting == 0
    assert len(w.ray.nodes_of("ray-01000000")) == 3


def test_a_gang_that_cannot_be_whole_buys_nothing() -> None:
    w = world(limits=Limits(max_nodes=2))
    w.ray.submit_gang([GPU] * 3, Strategy.STRICT_SPREAD)
    plan = w.loop.tick()
    assert w.cloud.launch_calls == []
    [hold] = plan.holds
    assert "limit" in hold.reason
    assert "2 nodes" in hold.reason


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (
            {"ray.io/region": "us-east-1"},
            "no offer has a label ray.io/region (did you mean ray.io/availability-region?)",
        ),
        ({"team": "vision"}, "no offer has a label team"),
        ({"ray.io/accelerator-type": "H100"}, "no offer has the accelerator H100: this fleet's have L4"),
        ({"ray.io/availability-region": "mars-1"}, "no offer that is large enough has the labels asked for"),
    ],
)
def test_labels_that_nothing_has_are_named(labels: dict[str, str], reason: str) -> None:
    w = world()
    w.ray.submit(GPU, labels=labels)
    [hold] = w.loop.tick().holds
    assert hold.reason == reason


def test_an_impossible_request_is_held_with_a_clear_reason_and_recorded_once() -> None:
    w = world()
    w.ray.submit({"GPU": 9})
    w.run(10)
    holds = [event for event in of_kind(w, DecisionRecorded) if getattr(event, "action", "") == "hold"]
    assert len(holds) == 1
    assert isinstance(holds[0], DecisionRecorded)
    assert holds[0].reason == "no offer has GPU: 9 (the largest has 1)"
    assert w.cloud.launch_calls == []
    assert w.ray.reports[-1].infeasible == (Shape.of({"GPU": 9}),)


def test_an_unknown_price_is_not_a_low_price() -> None:
    w = world((replace(CHEAP, price_uusd_per_h=None), MIDDLE))
    w.ray.submit(GPU)
    w.run(3)
    assert markets(w) == [MIDDLE.market.key]


def test_request_resources_is_compared_with_totals() -> None:
    w = world()
    w.ray.submit({"CPU": 4, "GPU": 1})
    w.run(15)
    w.ray.constraints = ((Shape.of(GPU), 2),)
    w.run(15)
    assert len(alive(w)) == 2  # one is full of work and counts nevertheless
    w.ray.finish()
    w.run(100)
    assert len(alive(w)) == 2  # idle, but asked for
    w.ray.constraints = ()
    w.run(60)
    assert alive(w) == []


BIG = make_offer("aws/us-east-1a/big", usd_per_h=0.48, cpus=64, gpus=4)
SMALL = make_offer("aws/us-east-1a/small", usd_per_h=0.06, cpus=4, gpus=1)


@pytest.mark.parametrize(("count", "stays"), [(2, [SMALL] * 2), (9, [BIG]), (17, [BIG, SMALL])])
def test_of_idle_nodes_the_cheapest_that_will_do_stay_for_request_resources(count: int, stays: list[Offer]) -> None:
    w = world((BIG, SMALL))
    w.ray.submit({"CPU": 1, "GPU": 4})
    w.run(2)  # the dear one is the oldest
    w.ray.submit({"CPU": 4, "GPU": 1}, count=9)
    w.run(20)
    assert len(alive(w)) == 10
    w.ray.finish()
    w.ray.constraints = ((Shape.of({"CPU": 4}), count),)
    w.run(100)
    assert markets(w) == sorted(offer.market.key for offer in stays)
    assert len(w.cloud.launch_calls) == 10  # nothing was bought for what was let go


# --- limits ---------------------------------------------------------------------------------------------------------


def test_limits_on_nodes_dollars_and_launches() -> None:
    w = world(limits=Limits(max_nodes=2))
    w.ray.submit(GPU, count=5)
    w.run(30)
    assert len(alive(w)) == 2
    w = world(limits=Limits(max_uusd_per_h=600_000))
    w.ray.submit(GPU, count=5)
    w.run(30)
    assert len(alive(w)) == 2
    w = world(limits=Limits(launches_per_minute=3))
    w.ray.submit(GPU, count=5)
    w.run(30)
    assert len(alive(w)) == 3
    w.run(60)
    assert len(alive(w)) == 5


def test_failover_does_not_pass_the_dollar_limit() -> None:
    w = world(limits=Limits(max_uusd_per_h=400_000))
    w.cloud.sold_out = {CHEAP.market.key, MIDDLE.market.key}
    w.ray.submit(GPU)
    w.run(5)
    assert alive(w) == []


def test_several_failovers_in_one_tick_do_not_pass_the_dollar_limit_together() -> None:
    w = world(limits=Limits(max_uusd_per_h=1_000_000))
    w.cloud.sold_out = {CHEAP.market.key, MIDDLE.market.key}
    w.ray.submit(GPU, count=3)  # three cheap ones are within the limit, two dear ones are not
    w.loop.tick()
    assert markets(w) == [DEAR.market.key]


def test_a_plan_that_passes_the_limits_is_stopped_before_the_launch() -> None:
    w = world(limits=Limits(max_nodes=2))
    w.loop.reconciler.act(Plan(w.clock.now_s(), (Launch(CHEAP, "a defect in a policy"),) * 5))
    assert len(alive(w)) == 2


def test_what_was_bought_for_a_gang_in_vain_is_not_counted_as_room() -> None:
    w = world()
    w.ray.submit_gang([{"CPU": 1}, {"GPU": 99}], Strategy.STRICT_SPREAD)
    w.ray.submit({"CPU": 1})
    assert len(w.loop.tick().launches) == 1


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_stock_out_fails_over_within_the_same_tick_and_is_remembered() -> None:
    w = world()
    w.cloud.sold_out = {CHEAP.market.key, MIDDLE.market.key}
    w.ray.submit(GPU)
    w.loop.tick()
    assert markets(w) == [DEAR.market.key]
    assert [getattr(event, "error", "") for event in of_kind(w, LaunchRefused)] == ["Stockout", "Stockout"]
    w.run(10)
    assert len(w.cloud.launch_calls) == 3  # the sold out markets are not asked again
    w.ray.submit(GPU)
    w.run(10)
    assert len(w.cloud.launch_calls) == 4


def test_several_launches_in_one_tick_ask_a_sold_out_market_once() -> None:
    w = world()
    w.cloud.sold_out = {CHEAP.market.key}
    w.ray.submit(GPU, count=4)
    w.loop.tick()
    assert len(w.cloud.launch_calls) == 5
    assert markets(w) == [MIDDLE.market.key] * 4


def test_a_market_that_has_restocked_is_asked_again_after_the_block() -> None:
    w = world()
    w.cloud.sold_out = {CHEAP.market.key}
    w.ray.submit(GPU)
    w.run(2)
    w.cloud.sold_out = set()
    w.clock.sleep(700)
    w.ray.submit(GPU)
    w.run(2)
    assert CHEAP.market.key in markets(w)


def test_everything_sold_out_is_held_with_the_reason() -> None:
    w = world((CHEAP,))
    w.cloud.sold_out = {CHEAP.market.key}
    w.ray.submit(GPU)
    w.run(2)
    assert w.loop.plan is not None
    [hold] = w.loop.plan.holds
    assert hold.reason == "every offer that fits is ruled out for now: Stockout"
    assert "tried again in" in hold.alternatives[0]


@pytest.mark.parametrize("error", [Throttled("slow down"), Transient("500")])
def test_a_throttled_launch_is_tried_again_under_the_same_id(error: Exception) -> None:
    w = world()
    w.cloud.launch_faults.append((error, False))
    w.ray.submit(GPU)
    w.run(5)
    assert [spec.launch_id for spec in w.cloud.launch_calls] == ["n1", "n1"]
    assert alive(w) == ["n1"]


def test_an_ambiguous_launch_that_happened_is_settled_by_the_list() -> None:
    w = world()
    w.cloud.list_lag_s = 30
    w.cloud.launch_faults.append((lost_answer(), True))
    w.ray.submit(GPU)
    w.run(60)
    assert len(w.cloud.launch_calls) == 1
    assert alive(w) == ["n1"]
    assert w.fleet.nodes["n1"].state is NodeState.READY


def test_an_ambiguous_launch_that_did_not_happen_fails_after_the_grace_and_is_replaced() -> None:
    w = world(launch_grace_s=50)
    w.cloud.launch_faults.append((lost_answer(), False))
    w.ray.submit(GPU)
    w.run(45)
    assert len(w.cloud.launch_calls) == 1  # it may still turn up: nothing is bought in its place
    w.run(25)
    assert w.fleet.nodes["n1"].state is NodeState.FAILED
    assert alive(w) == ["n2"]
    assert w.ray.waiting == 0


def test_an_ambiguous_launch_that_turns_up_after_all_is_ended() -> None:
    w = world(launch_grace_s=20)
    w.cloud.list_lag_s = 40
    w.cloud.launch_faults.append((lost_answer(), True))
    w.ray.submit(GPU)
    w.run(100)
    assert "n1" not in alive(w)
    assert w.fleet.nodes["n1"].state is NodeState.FAILED
