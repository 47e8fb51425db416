"""Whole stories through Loop.tick, on the shipped fakes: nodes that go, crashes, strangers, and the end."""

from __future__ import annotations

from dataclasses import replace

import pytest
from loop_world import (
    CHEAP,
    GPU,
    alive,
    assert_log_folds,
    of_kind,
    world,
)

from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.testing import lost_answer
from tradewind.events import (
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    LaunchRequested,
    NodeGone,
    NoticeReceived,
    TerminateRequested,
)
from tradewind.model import EndReason
from tradewind.states import NodeState

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


def test_a_node_that_brings_no_accelerator_is_given_up_and_its_market_left_alone_for_a_while() -> None:
    """A driver that fails: Ray is told of no GPU. Such machines were bought every few seconds, without end."""
    w = world()
    w.ray.broken_zones = frozenset({CHEAP.market.zone})
    w.ray.submit(GPU)
    w.run(60)
    asked = of_kind(w, TerminateRequested)[0]
    assert isinstance(asked, TerminateRequested)
    assert asked.reason == "it brought no GPU to Ray: see to its driver and its image"
    assert w.fleet.nodes["n1"].joined_at_s is None
    assert w.ray.waiting == 0  # on the next best offer
    assert w.fleet.nodes["n2"].offer != CHEAP
    assert_log_folds(w)


def test_where_all_nodes_come_without_accelerators_few_are_bought_until_it_is_mended() -> None:
    w = world(offers=[CHEAP])
    w.ray.broken_zones = frozenset({CHEAP.market.zone})
    w.ray.submit(GPU)
    w.run(3600, interval_s=5)
    assert 2 <= len(w.cloud.launch_calls) <= 12  # ever farther apart
    assert not any(node.joined_at_s for node in w.fleet.nodes.values())
    w.ray.broken_zones = frozenset()
    w.run(3600, interval_s=5)
    assert w.ray.waiting == 0


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
