"""Whole stories through Loop.tick, on the shipped fakes: trouble, wishes, jobs, prices and reasons."""

from __future__ import annotations

from dataclasses import replace

from loop_world import (
    CHEAP,
    DEAR,
    GPU,
    MIDDLE,
    alive,
    of_kind,
    world,
)

from tradewind.autoscaler.actions import Drain, Launch, Terminate
from tradewind.autoscaler.quotes import price_range
from tradewind.autoscaler.ray_snapshot import RayJob, Strategy
from tradewind.autoscaler.testing import World
from tradewind.autoscaler.view import Limits
from tradewind.errors import Transient
from tradewind.events import (
    HoldingChanged,
    JobSubmitted,
    PriceChanged,
)
from tradewind.model import JobSpec, Wish
from tradewind.states import JobState, NodeState

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


def prices(w: World) -> list[tuple[str, int]]:
    found = [event for event in of_kind(w, PriceChanged) if isinstance(event, PriceChanged)]
    return [(event.market, event.price_uusd_per_h) for event in found]


def test_each_price_is_recorded_when_it_is_new() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(5)
    first = [(offer.market.key, offer.price_uusd_per_h) for offer in (CHEAP, MIDDLE, DEAR)]
    assert sorted(prices(w)) == sorted(first)
    w.cloud.set_price(CHEAP.market.key, 0.31)
    w.cloud.set_price(DEAR.market.key, 0.90)
    w.run(5)
    assert sorted(prices(w)[3:]) == sorted([(CHEAP.market.key, 310_000), (DEAR.market.key, 900_000)])


def test_a_new_controller_tells_what_has_moved_and_what_it_pays() -> None:
    w = world()
    w.ray.submit(GPU)
    w.run(5)
    w.cloud.set_price(DEAR.market.key, 0.90)
    w.start()
    w.run(5)
    assert sorted(prices(w)[3:]) == sorted([(CHEAP.market.key, 280_000), (DEAR.market.key, 900_000)])


def test_a_new_controller_knows_since_when_prices_are_what_they_are() -> None:
    w = world()
    w.run(30)
    w.cloud.set_price(DEAR.market.key, 0.90)
    w.run(1)
    since_s = w.clock.now_s() - 1
    before = w.loop.view.quotes if w.loop.view else {}
    w.run(600, interval_s=60)
    w.start()
    w.loop.tick()
    assert w.loop.view is not None
    assert w.loop.view.quotes == before
    assert price_range(w.loop.view.quotes[DEAR.market.key], since_s) == (900_000, 900_000)
    assert price_range(w.loop.view.quotes[DEAR.market.key], since_s - 10) == (800_000, 900_000)


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
