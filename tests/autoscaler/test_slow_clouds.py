"""A cloud that hangs: ticks go on, other clouds go on, limits hold, and nothing is launched twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from tradewind.autoscaler.beside import Threads
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.testing import HeldCloud, World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.errors import Stockout, Transient
from tradewind.events import LaunchRefused, LaunchRequested
from tradewind.states import NodeState

CHEAP = make_offer("gcp/us-central1-a/g2", usd_per_h=0.28, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
GPU = {"CPU": 1, "GPU": 1}
# A tick waits for a moment of real time; everything else goes by the fake clock.
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=1e6, answer_wait_s=0.02, launch_grace_s=120)


@dataclass
class Clouds:
    world: World
    gcp: HeldCloud
    aws: HeldCloud

    def tick(self, passing_s: float = 1.0) -> None:
        self.world.loop.tick()
        self.world.clock.sleep(passing_s)

    def until(self, holds: Callable[[], object], passing_s: float = 0.0) -> None:
        """Ticks until it is so: threads take their time."""
        give_up_s = time.monotonic() + 20
        while not holds():
            assert time.monotonic() < give_up_s
            self.tick(passing_s)

    def serve(self) -> None:
        self.until(lambda: self.world.ray.waiting == 0, passing_s=1.0)

    @property
    def requested(self) -> list[str]:
        return [event.launch_id for event in self.world.events if isinstance(event, LaunchRequested)]

    @property
    def alive(self) -> list[str]:
        return sorted(node.launch_id for cloud in (self.gcp, self.aws) for node in cloud.alive())


def build(settings: LoopSettings = SETTINGS, width: int = 16) -> Clouds:
    clock = FakeClock()
    gcp, aws = HeldCloud(clock, [CHEAP]), HeldCloud(clock, [DEAR])
    world = World((CHEAP, DEAR), settings, clock, beside=Threads(width), clouds={"gcp": gcp, "aws": aws})
    clouds = Clouds(world, gcp, aws)
    clouds.until(lambda: world.loop.plan is not None and not world.loop.plan.holds)  # all have answered once
    return clouds


@pytest.fixture
def clouds() -> Iterator[Clouds]:
    made = build()
    yield made
    made.gcp.let_go()
    made.aws.let_go()
    made.world.loop.close()


# --- launches ---------------------------------------------------------------------------------------------------------


def test_a_launch_that_hangs_holds_up_nothing_and_counts_as_coming(clouds: Clouds) -> None:
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    for _ in range(5):
        clouds.tick()
    assert clouds.requested == ["n1"]  # nothing is bought in its place
    clouds.gcp.let_go()
    clouds.serve()
    assert clouds.alive == ["n1"]


def test_other_clouds_launch_while_one_hangs(clouds: Clouds) -> None:
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.world.ray.submit(GPU, labels={"tradewind.io/cloud": "aws"})
    clouds.until(lambda: clouds.aws.alive(), passing_s=1.0)
    assert clouds.gcp.alive() == []


def test_limits_hold_with_calls_under_way() -> None:
    clouds = build(replace(SETTINGS, limits=Limits(max_nodes=2)))
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU, count=5)
    for _ in range(5):
        clouds.tick()
    assert len(clouds.requested) == 2
    clouds.gcp.let_go()
    clouds.until(lambda: len(clouds.alive) == 2, passing_s=1.0)
    for _ in range(20):
        clouds.tick()
    assert len(clouds.requested) == 2
    clouds.world.loop.close()


def test_many_launches_are_made_at_once_up_to_the_width_of_the_lane() -> None:
    clouds = build(width=4)
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU, count=10)
    clouds.until(lambda: clouds.gcp.begun["launch"] == 4)
    clouds.tick()
    assert len(clouds.requested) == 10
    assert clouds.gcp.begun["launch"] == 4
    clouds.gcp.let_go()
    clouds.serve()
    assert clouds.gcp.begun["launch"] == 10
    clouds.world.loop.close()


def test_a_refusal_in_time_goes_on_to_the_next_offer_within_the_tick() -> None:
    clouds = build(replace(SETTINGS, answer_wait_s=10.0))  # ends as soon as the answers are there
    clouds.gcp.sold_out = {CHEAP.market.key}
    clouds.world.ray.submit(GPU)
    clouds.world.loop.tick()
    assert [node.offer for node in clouds.aws.alive()] == [DEAR]
    clouds.world.loop.close()


def test_a_late_refusal_goes_on_to_the_next_offer_in_the_tick_in_which_it_arrives(clouds: Clouds) -> None:
    clouds.gcp.held = {"launch"}
    clouds.gcp.launch_faults.append((Stockout("none left"), False))
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.tick()
    assert clouds.requested == ["n1"]
    clouds.gcp.let_go()
    clouds.until(lambda: clouds.world.fleet.refusals)
    assert clouds.requested == ["n1", "n2"]  # by the tick that took the refusal in
    assert clouds.world.fleet.nodes["n2"].offer == DEAR


def test_launches_that_are_refused_together_rule_the_market_out_once(clouds: Clouds) -> None:
    clouds.gcp.held = {"launch"}
    clouds.gcp.launch_faults.extend([(Stockout("none left"), False)] * 4)
    clouds.world.ray.submit(GPU, count=4)
    clouds.until(lambda: clouds.gcp.begun["launch"] == 4)
    clouds.tick()
    clouds.gcp.let_go()
    clouds.until(lambda: len(clouds.world.fleet.refusals) == 4)
    now_s = clouds.world.clock.now_s()
    block = MarketMemory.of(clouds.world.fleet, now_s).block_of(CHEAP, now_s)
    assert block is not None
    assert (block.repeats, block.until_s - block.at_s) == (1, Stockout.block_s)


@pytest.mark.parametrize("count", [1, 4])
def test_a_refusal_that_the_listing_tells_before_the_call_does_rules_its_market_out(clouds: Clouds, count: int) -> None:
    """Some clouds accept a launch and have no stock a moment later. It is one refusal, and the next market serves."""
    clouds.gcp.held, clouds.gcp.acts_first, clouds.gcp.start_s = {"launch"}, True, 1e6
    clouds.world.ray.submit(GPU, count=4 * count)  # four to a node
    clouds.until(lambda: clouds.gcp.begun["launch"] >= 1)
    asked = clouds.requested
    for launch_id in asked:
        clouds.gcp.refuse_late(launch_id, Stockout("none left", cloud="gcp"))
    clouds.until(lambda: len(clouds.world.fleet.refusals) == len(asked))
    now_s = clouds.world.clock.now_s()
    block = MarketMemory.of(clouds.world.fleet, now_s).block_of(CHEAP, now_s)
    assert block is not None
    assert (block.error, block.repeats, block.until_s - block.at_s) == ("Stockout", 1, Stockout.block_s)
    clouds.gcp.let_go()  # the call's own answer tells nothing new
    clouds.serve()
    assert {node.offer.market.cloud for node in clouds.aws.alive()} == {"aws"}
    assert clouds.gcp.begun["launch"] == len(asked)
    assert len(clouds.world.fleet.refusals) == len(asked)


def test_what_may_be_tried_again_is_no_refusal_when_the_listing_tells_it(clouds: Clouds) -> None:
    clouds.gcp.held, clouds.gcp.acts_first, clouds.gcp.start_s = {"launch"}, True, 1e6
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.gcp.refuse_late("n1", Transient("500", cloud="gcp"))
    clouds.until(lambda: len(clouds.requested) == 2)
    assert clouds.world.fleet.refusals == []


def test_a_launch_past_its_deadline_that_happened_is_found_by_the_listing(clouds: Clouds) -> None:
    clouds.gcp.held, clouds.gcp.acts_first = {"launch"}, True
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.world.clock.sleep(SETTINGS.launch_deadline_s + 1)
    clouds.serve()
    assert clouds.requested == clouds.alive == ["n1"]
    clouds.gcp.let_go()  # the answer that nobody waits for
    for _ in range(5):
        clouds.tick()
    assert clouds.requested == clouds.alive == ["n1"]
    assert clouds.gcp.begun["launch"] == 1


def test_a_launch_past_its_deadline_that_did_not_happen_is_replaced_after_the_grace_and_ended_when_it_comes(
    clouds: Clouds,
) -> None:
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.tick(passing_s=SETTINGS.launch_deadline_s + 1)
    for _ in range(3):
        clouds.tick()
    assert clouds.requested == ["n1"]  # it may still come: nothing is bought in its place
    clouds.tick(passing_s=SETTINGS.launch_grace_s)
    clouds.until(lambda: clouds.world.fleet.nodes["n1"].state is NodeState.FAILED, passing_s=1.0)
    clouds.until(lambda: len(clouds.requested) == 2)
    clouds.gcp.let_go()  # and now it comes to be after all
    clouds.until(lambda: "n1" in clouds.gcp.terminate_calls, passing_s=1.0)
    clouds.serve()
    clouds.until(lambda: clouds.alive == ["n2"], passing_s=1.0)


def test_a_launch_that_never_got_its_turn_was_not_sent_and_is_sent_later() -> None:
    clouds = build(width=1)
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU, count=2)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.tick(passing_s=SETTINGS.launch_deadline_s + 1)
    clouds.tick()
    clouds.gcp.let_go()
    clouds.serve()
    assert clouds.requested == clouds.alive == ["n1", "n2"]
    clouds.world.loop.close()


def test_a_launch_that_is_tried_again_has_one_call_at_a_time(clouds: Clouds) -> None:
    clouds.gcp.launch_faults.append((Transient("500"), False))
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: not clouds.gcp.launch_faults)
    clouds.gcp.held = {"launch"}
    clouds.until(lambda: clouds.gcp.begun["launch"] == 2)
    for _ in range(5):
        clouds.tick()
    assert clouds.gcp.begun["launch"] == 2
    clouds.gcp.let_go()
    clouds.serve()
    assert clouds.requested == clouds.alive == ["n1"]


@pytest.mark.parametrize("acts_first", [True, False])
def test_a_controller_that_is_killed_with_calls_under_way_launches_nothing_twice(
    clouds: Clouds, acts_first: bool
) -> None:
    clouds.gcp.held, clouds.gcp.acts_first = {"launch"}, acts_first
    clouds.world.ray.submit(GPU, count=3)
    clouds.until(lambda: clouds.gcp.begun["launch"] == 3)
    clouds.world.beside = Threads()
    clouds.world.start()  # another controller over the same log; of the first one only the cloud's side goes on
    clouds.tick()
    clouds.gcp.let_go()
    clouds.serve()
    for _ in range(5):
        clouds.tick()
    assert clouds.requested == clouds.alive == ["n1", "n2", "n3"]


# --- listings and prices ----------------------------------------------------------------------------------------------


def test_a_cloud_whose_list_hangs_becomes_blind_and_the_others_serve(clouds: Clouds) -> None:
    clouds.gcp.held = {"list_nodes"}
    clouds.until(lambda: clouds.gcp.begun["list_nodes"] > 1)
    clouds.tick(passing_s=SETTINGS.look_deadline_s + 1)
    clouds.tick()
    clouds.world.ray.submit(GPU)
    clouds.serve()
    assert clouds.gcp.alive() == []
    assert len(clouds.aws.alive()) == 1
    assert clouds.world.loop.plan is not None
    assert ("cloud gcp", "could not be listed: no answer within 30s") in [
        (hold.subject, hold.reason) for hold in clouds.world.loop.plan.holds
    ]
    clouds.gcp.let_go()
    clouds.world.ray.submit(GPU)
    clouds.serve()
    assert len(clouds.gcp.alive()) == 1


def test_a_list_that_began_before_a_launch_says_nothing_of_it() -> None:
    clouds = build(replace(SETTINGS, launch_grace_s=5))
    clouds.gcp.held = {"list_nodes"}
    lists = clouds.gcp.begun["list_nodes"]
    clouds.until(lambda: clouds.gcp.begun["list_nodes"] > lists)
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.alive())
    clouds.world.clock.sleep(10)  # longer than the grace: by the clock it should have been listed
    clouds.gcp.let_go()
    clouds.serve()
    assert not [event for event in clouds.world.events if isinstance(event, LaunchRefused)]
    assert clouds.requested == clouds.alive == ["n1"]
    clouds.world.loop.close()


def test_a_node_is_not_missed_while_no_new_list_comes() -> None:
    clouds = build(replace(SETTINGS, lost_grace_s=10, look_deadline_s=1000))
    clouds.world.ray.submit(GPU)
    clouds.serve()
    clouds.gcp.forget("n1")
    clouds.until(lambda: clouds.world.loop._missing_since_s)
    clouds.gcp.held = {"list_nodes"}
    lists = clouds.gcp.begun["list_nodes"]
    clouds.until(lambda: clouds.gcp.begun["list_nodes"] > lists)
    for _ in range(20):
        clouds.tick(passing_s=10)
    assert clouds.world.fleet.nodes["n1"].state is not NodeState.GONE  # one look is not two
    clouds.gcp.let_go()
    clouds.until(lambda: clouds.world.fleet.nodes["n1"].state is NodeState.GONE, passing_s=1.0)
    clouds.world.loop.close()


def test_without_new_prices_the_last_ones_serve(clouds: Clouds) -> None:
    prices = HeldCloud(clouds.world.clock, [CHEAP, DEAR])
    clouds.world.cloud = prices
    clouds.world.beside = Threads()
    clouds.world.start()
    clouds.until(lambda: clouds.world.loop._offers)
    prices.held = {"offers"}
    asked = prices.begun["offers"]
    clouds.until(lambda: prices.begun["offers"] > asked)
    clouds.tick(passing_s=SETTINGS.look_deadline_s + 1)
    clouds.tick()
    assert clouds.world.loop.plan is not None
    assert ("prices", "no answer within 30s") in [(h.subject, h.reason) for h in clouds.world.loop.plan.holds]
    clouds.world.ray.submit(GPU)
    clouds.serve()
    assert len(clouds.gcp.alive()) == 1
    prices.let_go()


# --- ends -------------------------------------------------------------------------------------------------------------


def test_an_end_that_hangs_is_asked_again_after_its_deadline_and_not_before(clouds: Clouds) -> None:
    clouds.world.ray.submit(GPU)
    clouds.serve()
    clouds.gcp.held = {"terminate"}
    clouds.world.ray.kill("n1")
    clouds.until(lambda: clouds.gcp.begun["terminate"], passing_s=1.0)
    for _ in range(5):
        clouds.tick()
    assert clouds.gcp.begun["terminate"] == 1
    clouds.world.clock.sleep(SETTINGS.end_deadline_s)
    clouds.until(lambda: clouds.gcp.begun["terminate"] == 2, passing_s=1.0)
    clouds.gcp.let_go()
    clouds.until(lambda: clouds.world.fleet.nodes["n1"].state is NodeState.GONE, passing_s=1.0)


def test_the_end_of_the_fleet_waits_for_launches_under_way_and_ends_them(clouds: Clouds) -> None:
    clouds.gcp.held = {"launch"}
    clouds.world.ray.submit(GPU)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    assert clouds.world.loop.end_all("down", timeout_s=3) == []
    assert [node.launch_id for node in clouds.world.fleet.alive_nodes] == ["n1"]  # nothing is known of it: it is told
    clouds.gcp.let_go()
    clouds.until(lambda: not clouds.world.clouds["gcp"].held and clouds.gcp.begun["launch"] == 1 and clouds.alive)
    assert clouds.world.loop.end_all("down", timeout_s=30) == ["n1"]
    assert clouds.alive == []


def test_the_end_of_the_fleet_cancels_launches_that_have_not_begun() -> None:
    clouds = build(width=1)
    clouds.gcp.held, clouds.gcp.acts_first = {"launch"}, True
    clouds.world.ray.submit(GPU, count=3)
    clouds.until(lambda: clouds.gcp.begun["launch"])
    clouds.tick()
    assert clouds.world.loop.end_all("down", timeout_s=10) == ["n1", "n2", "n3"]
    clouds.gcp.let_go()
    clouds.world.loop.close()
    assert clouds.alive == []
    assert clouds.gcp.begun["launch"] == 1
