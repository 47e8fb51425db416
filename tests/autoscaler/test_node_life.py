"""The life of a node: every state ends, by its time-out at the latest, and setting a clock changes nothing of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from loop_world import CHEAP, GPU, MIDDLE, alive, assert_log_folds, of_kind

from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.providers.base import CloudState
from tradewind.autoscaler.testing import World, lost_answer
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import Stockout
from tradewind.events import ClockJumped, NodeGone, TerminateRequested
from tradewind.model import EndReason
from tradewind.states import NODE_TRANSITIONS, NodeState, is_alive

HOUR_S = 3600.0
SETTINGS = LoopSettings(
    fleet="test",
    launch_grace_s=100,
    boot_timeout_s=200,
    idle_timeout_s=50,
    min_node_life_s=10,
    drain_timeout_s=120,
    drain_grace_s=15,
    lost_grace_s=60,
    end_grace_s=90,
)


class OurClock(FakeClock):
    """The clock of the controller's machine: that of the world, and by how much somebody has set it."""

    def __init__(self, world: FakeClock) -> None:
        super().__init__()
        self._world, self._off_s = world, 0.0

    def now_s(self) -> float:
        return self._world.now_s() + self._off_s

    def steady_s(self) -> float:
        return self._world.steady_s()

    def sleep(self, duration_s: float) -> None:
        self._world.sleep(duration_s)

    def set_by(self, jump_s: float) -> None:
        self._off_s += jump_s


def build(off_s: float = 0.0) -> World:
    clock = FakeClock()
    ours = OurClock(clock)
    ours.set_by(off_s)
    return World((CHEAP, MIDDLE), SETTINGS, clock, our_clock=ours)


def set_clock(w: World, jump_s: float) -> None:
    assert isinstance(w.our_clock, OurClock)
    w.our_clock.set_by(jump_s)


def launched(w: World) -> None:
    w.ray.submit(GPU)
    w.loop.tick()


def joined(w: World) -> None:
    launched(w)
    w.run(20)


# --- how nodes get into a state and stay there ------------------------------------------------------------------------


def unanswered(w: World) -> None:
    w.cloud.launch_faults.append((lost_answer(), False))
    launched(w)


def pending(w: World) -> None:
    w.cloud.start_s = 1e9  # accepted, and never switched on
    launched(w)


def booting(w: World) -> None:
    w.cloud.never_boots = {CHEAP.market.key}
    launched(w)
    w.run(5)


def lost_by_ray(w: World) -> None:
    joined(w)
    w.cloud.never_boots = {CHEAP.market.key}  # its raylet does not come back
    w.ray.kill("n1")


def lost_by_cloud(w: World) -> None:
    joined(w)
    w.run(1)
    w.cloud.list_nodes = list  # type: ignore[method-assign]


def idle(w: World) -> None:
    joined(w)
    w.ray.finish()


def draining(w: World) -> None:
    """Work that does not end stays on a node that drains, for as long as Ray lets it."""
    idle(w)
    w.run(60)
    assert w.fleet.nodes["n1"].state in (NodeState.DRAINING, NodeState.TERMINATING, NodeState.GONE)


def draining_with_work(w: World) -> None:
    joined(w)
    w.cloud.preempt("n1", notice_s=1e9)  # the cloud never comes for it
    w.run(2)
    node = w.fleet.nodes["n1"]
    assert node.state is NodeState.DRAINING
    deadline_s = w.loop.clock.now_s() + 30
    w.fleet.nodes["n1"] = replace(node, drain_deadline_s=deadline_s, notice_deadline_s=deadline_s)


def draining_without_deadline(w: World) -> None:
    draining_with_work(w)
    w.fleet.nodes["n1"] = replace(w.fleet.nodes["n1"], drain_deadline_s=None)


@dataclass(frozen=True)
class Life:
    enter: Callable[[World], None]
    state: NodeState  # in which it is then
    timeout_s: float  # and until when it may be
    ends: NodeState


LIVES = [
    Life(unanswered, NodeState.REQUESTED, SETTINGS.launch_grace_s, NodeState.FAILED),
    Life(pending, NodeState.REQUESTED, SETTINGS.boot_timeout_s, NodeState.GONE),
    Life(booting, NodeState.BOOTING, SETTINGS.boot_timeout_s, NodeState.GONE),
    Life(lost_by_ray, NodeState.READY, 0.0, NodeState.GONE),
    Life(lost_by_cloud, NodeState.READY, SETTINGS.lost_grace_s, NodeState.GONE),
    Life(idle, NodeState.READY, SETTINGS.idle_timeout_s, NodeState.GONE),
    Life(draining_with_work, NodeState.DRAINING, 30 + SETTINGS.drain_grace_s, NodeState.GONE),
    Life(draining_without_deadline, NodeState.DRAINING, SETTINGS.drain_timeout_s, NodeState.GONE),
]
each_life = pytest.mark.parametrize("life", LIVES, ids=lambda life: life.enter.__name__)


def test_every_state_in_which_a_node_may_be_billed_is_in_the_table() -> None:
    """TERMINATING has no time-out: it is asked again for as long as the cloud lists it, and people are told."""
    covered = {life.state for life in LIVES} | {NodeState.TERMINATING}
    assert covered == {state for state in NodeState if is_alive(state)}
    assert all(life.ends in NODE_TRANSITIONS[life.state] | NODE_TRANSITIONS[NodeState.TERMINATING] for life in LIVES)


@each_life
def test_every_state_ends_by_its_time_out_and_not_before(life: Life) -> None:
    w = build()
    life.enter(w)
    assert w.fleet.nodes["n1"].state is life.state
    w.run(life.timeout_s - 12 if life.timeout_s else 0, interval_s=4)
    assert is_alive(w.fleet.nodes["n1"].state)
    w.run(32, interval_s=4)
    assert w.fleet.nodes["n1"].state is life.ends


@each_life
@pytest.mark.parametrize("jump_s", [-5 * HOUR_S, 5 * HOUR_S], ids=["back", "forward"])
def test_a_clock_that_is_set_neither_ends_a_node_nor_keeps_it(life: Life, jump_s: float) -> None:
    w = build()
    life.enter(w)
    set_clock(w, jump_s)
    w.run(life.timeout_s - 12 if life.timeout_s else 0, interval_s=4)
    assert is_alive(w.fleet.nodes["n1"].state)
    w.run(32, interval_s=4)
    assert w.fleet.nodes["n1"].state is life.ends
    [jump] = of_kind(w, ClockJumped)
    assert isinstance(jump, ClockJumped)
    assert jump.jump_s == pytest.approx(jump_s)


@pytest.mark.parametrize("off_s", [-5 * HOUR_S, 5 * HOUR_S], ids=["behind", "ahead"])
@pytest.mark.parametrize("enter", [booting, pending, idle], ids=lambda enter: enter.__name__)
def test_a_clock_that_differs_from_the_clouds_neither_ends_a_node_nor_keeps_it(
    enter: Callable[[World], None], off_s: float
) -> None:
    [life] = [life for life in LIVES if life.enter is enter]
    w = build(off_s)
    enter(w)
    w.run(life.timeout_s - 12, interval_s=4)
    assert is_alive(w.fleet.nodes["n1"].state)
    w.run(32, interval_s=4)
    assert w.fleet.nodes["n1"].state is life.ends
    assert of_kind(w, ClockJumped) == []


def test_a_clock_that_was_set_back_while_the_controller_was_away_makes_nobody_wait() -> None:
    w = build()
    booting(w)
    set_clock(w, -5 * HOUR_S)
    w.start()
    w.run(SETTINGS.boot_timeout_s + 10, interval_s=3)
    assert w.fleet.nodes["n1"].state is NodeState.GONE
    assert_log_folds(w)


def test_a_clock_that_is_set_back_does_not_stop_buying() -> None:
    """Launches of the last minute and refusals would lie in the future: for hours no more could be bought."""
    w = build()
    w.loop.settings = w.loop.reconciler.settings = replace(
        SETTINGS, limits=replace(SETTINGS.limits, launches_per_minute=1)
    )
    w.cloud.launch_faults.append((Stockout("none left", block_s=30), False))
    w.ray.submit(GPU, count=2)
    w.run(5)
    assert [node.offer for node in w.cloud.alive()] == [MIDDLE]
    set_clock(w, -5 * HOUR_S)
    w.run(150, interval_s=3)
    assert sorted(node.offer.market.cloud for node in w.cloud.alive()) == ["aws", "gcp"]
    w.loop.settings = w.loop.reconciler.settings = SETTINGS
    assert_log_folds(w)


def test_small_corrections_of_the_clock_are_no_jumps() -> None:
    w = build()
    for _ in range(20):
        set_clock(w, 3.0)
        w.run(1)
    assert of_kind(w, ClockJumped) == []


# --- ends that do not come --------------------------------------------------------------------------------------------


def test_an_end_that_the_cloud_does_not_carry_out_is_asked_for_again_and_told() -> None:
    w = build()
    booting(w)
    asked: list[str] = []
    w.cloud.terminate = lambda launch_ids, reason=None: asked.extend(launch_ids)  # type: ignore[assignment,method-assign]
    w.run(SETTINGS.boot_timeout_s + 20, interval_s=2)
    assert w.fleet.nodes["n1"].state is NodeState.TERMINATING
    assert len(of_kind(w, TerminateRequested)) == 1
    assert asked.count("n1") > 5
    assert w.loop.plan is not None
    assert not [hold for hold in w.loop.plan.holds if "n1" in hold.subject]
    w.run(SETTINGS.end_grace_s, interval_s=5)
    [hold] = [hold for hold in w.loop.plan.holds if "n1" in hold.subject]
    assert (hold.subject, hold.reason) == ("end of n1", "gcp still runs it; end it by hand if this goes on")


def test_the_end_of_the_fleet_takes_no_longer_than_it_may_when_some_nodes_do_not_go() -> None:
    w = build()
    w.ray.submit(GPU, count=4)
    w.run(20)
    stuck = {"n2", "n4"}
    end = w.cloud.terminate
    w.cloud.terminate = lambda ids, reason=EndReason.TERMINATED: end(set(ids) - stuck, reason)  # type: ignore[assignment,method-assign]
    began_s = w.clock.steady_s()
    set_clock(w, -5 * HOUR_S)
    assert w.loop.end_all("down", timeout_s=20) == ["n1", "n3"]
    assert w.clock.steady_s() - began_s <= 21
    assert sorted(node.launch_id for node in w.fleet.alive_nodes) == sorted(stuck)
    w.cloud.terminate = end  # type: ignore[method-assign]
    assert w.loop.end_all("down again", timeout_s=20) == sorted(stuck)
    assert alive(w) == []


def test_a_node_that_crashes_while_it_boots_is_gone_and_its_place_is_taken() -> None:
    w = build()
    booting(w)
    node = w.cloud._nodes["n1"]
    w.cloud._nodes["n1"] = replace(node, state=CloudState.GONE, end=EndReason.CRASHED, billed_until_s=w.clock.now_s())
    w.run(30)
    [gone] = of_kind(w, NodeGone)
    assert isinstance(gone, NodeGone)
    assert gone.end is EndReason.CRASHED
    assert [each.offer for each in w.cloud.alive()] == [MIDDLE]  # not the market that has just failed
    assert w.ray.waiting == 0
