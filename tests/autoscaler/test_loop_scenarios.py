"""Whole stories through Loop.tick, on the shipped fakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tradewind.autoscaler.actions import Drain, Launch, Plan, Terminate
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.ray_snapshot import DrainReason, RayJob, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import World, lost_answer, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.errors import Throttled, Transient
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    HoldingChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NoticeReceived,
    PriceChanged,
    TerminateRequested,
)
from tradewind.model import LABEL_MARKET_TYPE, Capacity, EndReason, JobSpec, Offer, Wish
from tradewind.states import JobState, NodeState

CHEAP = make_offer("gcp/us-central1-a/g2", usd_per_h=0.28, cpus=4, gpus=1)
MIDDLE = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=0.80, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
OFFERS = (CHEAP, MIDDLE, DEAR)
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=30, min_node_life_s=20, boot_timeout_s=100)
GPU = {"CPU": 1, "GPU": 1}


def world(offers: Sequence[Offer] = OFFERS, **changes: object) -> World:
    return World(offers, replace(SETTINGS, **changes))  # type: ignore[arg-type]


def of_kind(world: World, kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in world.events if isinstance(event, kind)]


def alive(world: World) -> list[str]:
    return sorted(node.launch_id for node in world.cloud.alive())


def markets(world: World) -> list[str]:
    return sorted(node.offer.market.key for node in world.cloud.alive())


def states(world: World) -> set[NodeState]:
    return {node.state for node in world.fleet.nodes.values()}


def assert_log_folds(world: World) -> None:
    """The log alone gives the same state: nothing is kept elsewhere."""
    assert FleetState.fold(world.events).nodes == world.fleet.nodes


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


# --- nodes that go --------------------------------------------------------------------------------------------------


def test_a_node_that_never_joins_is_ended_and_replaced() -> None:
    w = world()
    w.cloud.never_boots = {CHEAP.market.key}
    w.ray.submit(GPU)
    w.run(110)
    [asked] = of_kind(w, TerminateRequested)
    assert isinstance(asked, TerminateRequested)
    assert asked.reason == "did not join Ray within 1m40s"
    w.cloud.never_boots = set()
    w.run(30)
    assert w.ray.waiting == 0
    assert w.fleet.nodes["n1"].state is NodeState.GONE


def test_preemption_with_notice_drains_and_buys_the_replacement_before_the_end() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.cloud.preempt("n1", notice_s=40)
    w.run(20)
    assert w.ray.drains == [(w.fleet.nodes["n1"].ray_node_id, DrainReason.PREEMPTION)]
    assert len(alive(w)) == 2  # the old one still works, the new one is there
    assert w.fleet.nodes["n2"].state is NodeState.READY
    w.run(25)
    assert alive(w) == ["n2"]
    assert w.ray.waiting == 0
    assert w.fleet.nodes["n1"].end is EndReason.PREEMPTED
    assert len(of_kind(w, NoticeReceived)) == 1
    assert len(w.cloud.launch_calls) == 2


def test_preemption_without_notice_is_replaced_when_the_work_comes_back() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.cloud.preempt("n1")
    w.run(20)
    assert w.fleet.nodes["n1"].end is EndReason.PREEMPTED
    assert alive(w) == ["n2"]
    assert w.ray.waiting == 0


def test_a_notice_while_booting_buys_another_at_once() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(5)
    w.cloud.preempt("n1", notice_s=60)
    w.run(2)
    assert len(alive(w)) == 2
    w.run(80)
    assert w.fleet.nodes["n1"].end is EndReason.PREEMPTED
    assert len(w.cloud.launch_calls) == 2
    assert w.ray.waiting == 0


def test_a_node_that_ray_lost_is_ended_because_the_cloud_still_bills_it() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.ray.kill("n1")
    w.run(20)
    assert w.fleet.nodes["n1"].end is EndReason.TERMINATED
    assert alive(w) == ["n2"]


def test_a_node_that_the_cloud_forgot_is_gone_after_the_grace() -> None:
    w = world(lost_grace_s=30)
    w.ray.submit(GPU)
    w.run(20)
    missed_s = w.clock.now_s()
    w.cloud.forget("n1")
    w.run(20)
    assert not of_kind(w, NodeGone)
    w.run(20)
    [gone] = of_kind(w, NodeGone)
    assert isinstance(gone, NodeGone)
    assert gone.end is EndReason.TERMINATED  # Ray had lost it as well, so it had been asked to end
    assert gone.at_s == missed_s


def test_work_that_comes_during_an_idle_drain_keeps_the_node() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.ray.finish()
    w.run(28)
    snapshot = w.ray.snapshot()
    w.ray.submit(GPU)
    w.ray.schedule()  # work arrives after the look and before the drain
    w.ray.snapshot = lambda: snapshot  # type: ignore[method-assign]
    w.clock.sleep(5)
    old = replace(snapshot, nodes=tuple(replace(n, idle_s=99.0) for n in snapshot.nodes))
    w.ray.snapshot = lambda: old  # type: ignore[method-assign]
    w.loop.tick()
    assert len(of_kind(w, DrainRequested)) == 1
    assert len(of_kind(w, DrainRefused)) == 1
    assert w.fleet.nodes["n1"].state is NodeState.READY


def test_a_young_node_is_not_sold_again_at_once() -> None:
    w = world(idle_timeout_s=0, min_node_life_s=50)
    w.ray.submit(GPU)
    w.run(15)
    w.ray.finish()
    w.run(30)
    assert alive(w) == ["n1"]
    w.run(40)
    assert alive(w) == []


# --- crashes and strangers ------------------------------------------------------------------------------------------


def test_a_crash_between_intent_and_effect_does_not_launch_twice() -> None:
    w = world()
    w.ray.submit(GPU)
    real_launch = w.cloud.launch

    def die(spec: object) -> None:
        raise KeyboardInterrupt  # not an Exception: ends the controller right there

    w.cloud.launch = die  # type: ignore[assignment,method-assign]
    with pytest.raises(KeyboardInterrupt):
        w.loop.tick()
    assert w.fleet.nodes["n1"].state is NodeState.REQUESTED
    w.cloud.launch = real_launch  # type: ignore[method-assign]
    w.start()
    w.run(20)
    assert [spec.launch_id for spec in w.cloud.launch_calls] == ["n1"]
    assert w.ray.waiting == 0
    assert len(of_kind(w, LaunchRequested)) == 1


def test_a_crash_after_the_effect_does_not_launch_twice() -> None:
    w = world()
    w.ray.submit(GPU)
    w.loop.tick()
    w.start()  # the answer was never recorded
    w.run(20)
    assert {spec.launch_id for spec in w.cloud.launch_calls} == {"n1"}
    assert alive(w) == ["n1"]


def test_a_crash_between_drain_intent_and_drain_is_made_good() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.ray.finish()
    w.run(5)
    w.record(DrainRequested(at_s=w.clock.now_s(), launch_id="n1", reason="idle"))
    w.start()
    w.run(20)
    assert alive(w) == []


def test_a_terminate_that_failed_is_asked_again() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.record(TerminateRequested(at_s=w.clock.now_s(), launch_id="n1", reason="crashed after the intent"))
    w.start()
    w.run(3)
    assert "n1" in w.cloud.terminate_calls
    assert w.fleet.nodes["n1"].state is NodeState.GONE


def test_a_node_with_our_tag_that_the_log_does_not_know_is_ended_loudly() -> None:
    w = world()
    w.cloud.plant("orphan", CHEAP)
    w.run(3)
    assert alive(w) == []
    loud = [e for e in of_kind(w, DecisionRecorded) if getattr(e, "subject", "") == "orphan"]
    assert len(loud) == 1


def test_a_node_that_works_in_our_cell_is_adopted_when_the_log_was_lost() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.log.clear()
    w.start()
    w.run(5)
    assert alive(w) == ["n1"]
    assert w.fleet.nodes["n1"].state is NodeState.READY


# --- trouble --------------------------------------------------------------------------------------------------------


def test_a_head_that_does_not_answer_stops_decisions_but_not_the_books() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.ray.is_down = True
    w.cloud.preempt("n1")
    w.run(5)
    assert w.fleet.nodes["n1"].state is NodeState.GONE
    assert len(w.cloud.launch_calls) == 1
    assert w.loop.plan is not None
    assert [hold.subject for hold in w.loop.plan.holds] == ["ray"]
    w.ray.is_down = False
    w.run(20)
    assert w.ray.waiting == 0


def test_a_cloud_that_cannot_be_listed_is_left_alone_and_said() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.ray.submit(GPU)
    w.cloud.list_faults.extend([Transient("503"), ValueError("a defect")])
    plan = w.loop.tick()
    assert plan.launches == []
    assert {hold.subject for hold in plan.holds} >= {"cloud aws", "cloud gcp"}
    w.loop.tick()
    assert w.fleet.nodes["n1"].state is NodeState.READY
    w.run(20)
    assert w.ray.waiting == 0


def test_a_defect_in_a_provider_does_not_end_the_tick() -> None:
    w = world()
    w.cloud.launch_faults.append((ZeroDivisionError("a defect"), False))
    w.ray.submit(GPU, count=2)
    w.loop.tick()
    assert len(alive(w)) == 1


# --- wishes ---------------------------------------------------------------------------------------------------------


def test_a_training_job_gets_its_target_and_not_what_ray_queues_for_it() -> None:
    w = world(limits=Limits(max_nodes=2))
    w.record(JobSubmitted(at_s=w.clock.now_s(), job_id="train", spec=JobSpec("train", "python train.py")))
    w.wishes = [Wish("train", 1, 4, GPU)]
    w.ray.submit_gang([GPU] * 4, Strategy.PACK, job_id="train")  # Ray Train asks for its maximum
    plan = w.loop.tick()
    assert plan.targets["train"].replicas == 2
    assert len(plan.launches) == 2
    assert plan.holds == []


def test_a_wish_is_met_by_what_the_job_holds_already() -> None:
    w = world()
    w.wishes = [Wish("train", 2, 3, GPU)]
    w.ray.submit(GPU, count=3, job_id="train")
    w.run(30)
    assert len(alive(w)) == 3
    w.run(60)
    assert len(w.cloud.launch_calls) == 3


def test_a_worker_on_a_node_with_notice_is_replaced() -> None:
    w = world()
    w.wishes = [Wish("train", 2, 3, GPU)]
    w.ray.submit(GPU, count=3, job_id="train")
    w.run(30)
    w.cloud.preempt("n2", notice_s=30)
    w.run(3)
    assert len(alive(w)) == 4
    w.run(60)
    assert len(alive(w)) == 3
    assert w.ray.waiting == 0


# --- jobs and prices ------------------------------------------------------------------------------------------------


def test_a_job_sent_past_us_is_adopted_with_its_holdings() -> None:
    w = world()
    meta = {"tenant": "vision", "budget": "12.50", "deadline": "6h", "name": "resnet"}
    job = RayJob("01000000", "raysubmit_x", False, "RUNNING", metadata=meta, entrypoint="python x.py", started_at_s=5.0)
    w.ray.jobs = [job]
    w.ray.submit(GPU, job_id="raysubmit_x")
    w.run(20)
    record = w.fleet.jobs["raysubmit_x"]
    assert record.foreign
    assert record.state is JobState.RUNNING
    assert (record.spec.tenant, record.spec.name) == ("vision", "resnet")
    assert record.spec.contract.budget_uusd == 12_500_000
    assert record.spec.contract.deadline_at_s == 5.0 + 6 * 3600
    assert record.holdings == {"n1": {"CPU": 1.0, "GPU": 1.0}}
    w.ray.finish()
    w.ray.jobs = [replace(job, is_dead=True, status="FAILED", message="exit 1")]
    w.run(2)
    assert w.fleet.jobs["raysubmit_x"].state is JobState.FAILED
    assert w.fleet.jobs["raysubmit_x"].holdings == {}
    assert len(of_kind(w, HoldingChanged)) == 2  # once when it began, once when it ended


def test_internal_drivers_are_nobodys_job() -> None:
    w = world()
    w.ray.jobs = [
        RayJob("01000000", "", False, namespace="tradewind"),
        RayJob("02000000", "", False, namespace="_ray_internal_dashboard"),
        RayJob("03000000", "", False, namespace="mine"),
    ]
    w.run(2)
    assert list(w.fleet.jobs) == ["ray-03000000"]


def test_a_price_that_moves_is_recorded_while_we_have_a_node_there() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(5)
    assert of_kind(w, PriceChanged) == []
    w.cloud.set_price(CHEAP.market.key, 0.31)
    w.cloud.set_price(DEAR.market.key, 0.90)
    w.run(5)
    [moved] = of_kind(w, PriceChanged)
    assert isinstance(moved, PriceChanged)
    assert (moved.market, moved.price_uusd_per_h) == (CHEAP.market.key, 310_000)


# --- reasons --------------------------------------------------------------------------------------------------------


def test_every_action_says_why_and_what_it_beat() -> None:
    w = world()
    w.ray.submit(GPU)
    [launch] = w.loop.tick().launches
    price = "$0.28/h list, $0.29/h with preemptions expected at 0.1/h and boots of 180 s"
    assert launch.reason == f"cheapest for 1 x {{CPU: 1, GPU: 1}} (tasks and actors): {price}"
    assert launch.alternatives == (
        f"{MIDDLE.market.key} at $0.35/h for 1",
        f"{DEAR.market.key} at $0.80/h for 1",
    )
    w.run(20)
    w.ray.finish()
    actions = []
    for _ in range(60):
        actions.extend(w.loop.tick().actions)
        w.clock.sleep(1)
    assert {type(action) for action in actions} == {Drain, Terminate}
    assert all(action.reason for action in actions)
    assert not any(isinstance(action, Launch) for action in actions)


# --- the end --------------------------------------------------------------------------------------------------------


def test_end_all_leaves_nothing_behind() -> None:
    w = world()
    w.ray.submit(GPU, count=2)
    w.run(20)
    w.ray.submit(GPU)
    w.loop.tick()  # one more is asked for, and not billed yet
    w.cloud.launch_faults.append((lost_answer(), False))
    w.ray.submit(GPU)
    w.loop.tick()  # and one that never came to be
    assert w.loop.end_all("down", timeout_s=30) == ["n1", "n2", "n3", "n4"]
    assert alive(w) == []
    assert w.fleet.alive_nodes == []
    assert_log_folds(w)


def test_end_all_tells_what_it_could_not_end() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(20)
    w.cloud.terminate = lambda launch_ids, reason=None: None  # type: ignore[assignment,method-assign]
    assert w.loop.end_all("down", timeout_s=5) == []
    assert [node.launch_id for node in w.fleet.alive_nodes] == ["n1"]
