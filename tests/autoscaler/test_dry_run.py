"""A dry run looks and decides, and does nothing."""

from __future__ import annotations

from dataclasses import replace

from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import DecisionRecorded, LaunchRequested, NodeGone, TerminateRequested
from tradewind.states import NodeState

CHEAP = make_offer("gcp/us-central1-a/g2", usd_per_h=0.28, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=10, min_node_life_s=5)
GPU = {"CPU": 1, "GPU": 1}


def holds(w: World) -> list[DecisionRecorded]:
    return [event for event in w.events if isinstance(event, DecisionRecorded) and event.action == "hold"]


def test_it_tells_once_what_it_would_launch_and_launches_nothing() -> None:
    w = World((CHEAP, DEAR), replace(SETTINGS, dry_run=True))
    w.ray.submit(GPU, count=2)
    w.run(10)
    assert w.cloud.launch_calls == []
    assert not [event for event in w.events if isinstance(event, LaunchRequested)]
    [hold] = holds(w)
    assert (hold.subject, hold.reason) == (f"would launch 2 x {CHEAP.market.key}", "dry run")
    assert hold.alternatives[0].startswith("cheapest for 1 x {CPU: 1, GPU: 1}")
    assert hold.alternatives[1].startswith(DEAR.market.key)


def test_nodes_of_one_market_for_several_reasons_are_counted_together() -> None:
    w = World((CHEAP,), replace(SETTINGS, dry_run=True))
    w.ray.submit({"CPU": 3, "GPU": 1})
    w.ray.submit({"CPU": 2, "GPU": 1})
    w.run(3)
    [hold] = holds(w)
    assert hold.subject == f"would launch 2 x {CHEAP.market.key}"
    [reason] = hold.alternatives
    assert "cheapest for 1 x {CPU: 3, GPU: 1}" in reason
    assert "cheapest for 1 x {CPU: 2, GPU: 1}" in reason


def test_nodes_of_an_earlier_run_are_watched_and_left_alone() -> None:
    w = World((CHEAP, DEAR), SETTINGS)
    w.ray.submit(GPU, count=2)
    w.run(20)
    w.settings = replace(SETTINGS, dry_run=True)
    w.start()
    w.cloud.plant("stranger", DEAR)
    w.cloud.never_boots = {DEAR.market.key}
    w.ray.finish()
    w.ray.kill("n1")
    w.run(30)
    assert sorted(node.launch_id for node in w.cloud.alive()) == ["n1", "n2", "stranger"]
    assert (w.cloud.terminate_calls, w.ray.drains) == ([], [])
    assert not [event for event in w.events if isinstance(event, TerminateRequested)]
    assert {hold.subject for hold in holds(w)} == {"would end n1", "would drain n2"}
    w.cloud.preempt("n2")
    w.run(2)
    assert w.fleet.nodes["n2"].state is NodeState.GONE  # what happens is on record
    assert len([event for event in w.events if isinstance(event, NodeGone)]) == 1
    assert w.loop.end_all("down", timeout_s=5) == []
    assert w.cloud.terminate_calls == []


def test_a_launch_on_record_without_an_outcome_is_not_sent() -> None:
    w = World((CHEAP,), replace(SETTINGS, dry_run=True))
    w.record(LaunchRequested(at_s=w.clock.now_s(), launch_id="n1", offer=CHEAP, reason="the run before"))
    w.run(5)
    assert w.cloud.launch_calls == []
