"""One dead region, debris, price limits of spot, and blocks that end with the fleet file that caused them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from loop_world import GPU, SETTINGS, assert_log_folds, of_kind

from tradewind.autoscaler.beside import Inline
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.debris import DebrisWatch, first_seen, ripe
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.providers.base import CloudNode
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.autoscaler.testing import FakeCloud, World, make_offer
from tradewind.errors import Scope, Transient
from tradewind.events import (
    ControllerStarted,
    DecisionRecorded,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
)
from tradewind.model import Capacity, Offer
from tradewind.states import NodeState

EAST = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
WEST = make_offer("aws/us-west-2a/g6", usd_per_h=0.40, cpus=4, gpus=1)


class PartlyBlind(FakeCloud):
    """A cloud of several regions, some of which do not answer."""

    silent: frozenset[str] = frozenset()
    debris: list[str]

    def __init__(self, clock: FakeClock, offers: Sequence[Offer]) -> None:
        super().__init__(clock, offers)
        self.debris = []

    def list_nodes(self) -> Sequence[CloudNode]:
        nodes = super().list_nodes()
        if not self.silent:
            return nodes
        seen = [node for node in nodes if node.offer.market.region not in self.silent]
        message = f"no answer from {', '.join(self.silent)}"
        raise PartialListing(message, cloud="aws", nodes=seen, blind=self.silent)

    def list_debris(self) -> Sequence[str]:
        return list(self.debris)

    def delete_debris(self, names: object) -> None:
        self.debris = [name for name in self.debris if name not in set(names)]  # type: ignore[call-overload]


def build(offers: Sequence[Offer] = (EAST, WEST)) -> tuple[World, PartlyBlind]:
    clock = FakeClock()
    cloud = PartlyBlind(clock, offers)
    return World(offers, SETTINGS, clock, clouds={"aws": cloud}), cloud


# --- one dead region ---------------------------------------------------------------------------------------------


def test_a_silent_region_loses_no_node_and_sells_none() -> None:
    world, cloud = build()
    world.ray.submit(GPU, count=4)  # one node of each region, or two of one
    world.run(30)
    before = {node.launch_id for node in cloud.alive()}
    assert before
    region = world.fleet.alive_nodes[0].offer.market.region
    cloud.silent = frozenset({region})
    world.run(300)
    assert of_kind(world, NodeGone) == []
    assert before <= {node.launch_id for node in cloud.alive()}
    holds = {hold.subject: hold.reason for hold in world.loop.plan.holds} if world.loop.plan else {}
    assert "no answer from" in holds["cloud aws"]


def test_the_regions_that_answer_are_looked_after() -> None:
    """A node there is missed and replaced, and bought where it can be listed."""
    world, cloud = build()
    world.ray.submit(GPU, count=1)
    world.run(30)
    (first,) = world.fleet.alive_nodes
    assert first.offer.market.region == "us-east-1"
    cloud.silent = frozenset({"us-west-2"})
    cloud.preempt(first.launch_id)
    world.ray.submit(GPU, count=1)
    world.run(60)
    assert world.fleet.nodes[first.launch_id].state is NodeState.GONE
    assert {node.offer.market.region for node in world.fleet.alive_nodes} == {"us-east-1"}
    assert_log_folds(world)


def test_nothing_is_bought_in_the_silent_region_although_it_is_cheapest() -> None:
    world, cloud = build()
    cloud.silent = frozenset({"us-east-1"})
    world.ray.submit(GPU, count=1)
    world.run(30)
    assert {spec.offer.market.region for spec in cloud.launch_calls} == {"us-west-2"}


# --- debris ------------------------------------------------------------------------------------------------------


def test_debris_is_removed_when_it_was_there_for_the_grace_and_that_is_recorded() -> None:
    world, cloud = build()
    cloud.debris = ["us-east-1/vol-1"]
    world.run(600, interval_s=10)
    assert cloud.debris == ["us-east-1/vol-1"]
    cloud.debris.append("us-east-1/vol-new")
    world.run(700, interval_s=10)
    assert cloud.debris == ["us-east-1/vol-new"]
    told = [event for event in world.events if isinstance(event, DecisionRecorded) and event.action == "clean"]
    assert [event.subject for event in told] == ["us-east-1/vol-1"]


def test_what_goes_by_itself_is_never_old() -> None:
    assert first_seen({"a": 1.0, "b": 2.0}, ["b", "c"], 9.0) == {"b": 2.0, "c": 9.0}
    assert ripe({"a": 0.0, "b": 5.0}, 10.0, grace_s=10.0) == ["a"]


@dataclass
class Failing:
    name: str = "aws"
    asked: int = 0
    deleted: list[str] = field(default_factory=list)

    def list_debris(self) -> Sequence[str]:
        self.asked += 1
        if self.asked == 1:
            raise Transient("no answer")
        return ["vol-1"]

    def delete_debris(self, names: Sequence[str]) -> None:
        self.deleted += names


def test_a_look_that_fails_is_repeated_and_concludes_nothing() -> None:
    clock, cloud = FakeClock(), Failing()
    watch = DebrisWatch({"aws": cloud}, clock, Inline(), every_s=10.0, grace_s=20.0)  # type: ignore[dict-item]
    for _ in range(8):
        removed = list(watch.tick())
        clock.sleep(5.0)
    assert cloud.asked > 1
    assert removed == []
    assert cloud.deleted == []


# --- the price limit of spot -------------------------------------------------------------------------------------


def test_spot_is_bought_up_to_the_regular_price_and_regular_machines_without_a_limit() -> None:
    spot = Offer(EAST.market, 4, 16, "L4", 1, 1, 350_000, 800_000)
    world, cloud = build([spot])
    world.ray.submit(GPU, count=1)
    world.run(5)
    assert [spec.max_price_uusd_per_h for spec in cloud.launch_calls] == [800_000]
    regular = make_offer("aws/us-east-1a/g6", usd_per_h=0.80, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
    world, cloud = build([regular])
    world.ray.submit(GPU, count=1)
    world.run(5)
    assert [spec.max_price_uusd_per_h for spec in cloud.launch_calls] == [None]


# --- another fleet file ------------------------------------------------------------------------------------------


def _started(at_s: float, config: str) -> ControllerStarted:
    return ControllerStarted(at_s=at_s, fleet="x", pid=1, version="1", simulated=False, config=config)


def _refused(at_s: float, error: str) -> LaunchRefused:
    return LaunchRefused(at_s=at_s, launch_id="tw-1", error=error, message="", scope=Scope.OFFER, block_s=86_400.0)


def _memory(error: str, restarts_as: str) -> MarketMemory:
    asked = LaunchRequested(at_s=10.0, launch_id="tw-1", offer=EAST, reason="", cell="local")
    events = [_started(0.0, "one"), asked, _refused(11.0, error), _started(20.0, restarts_as)]
    return MarketMemory.of(FleetState.fold(events), 30.0)


def test_a_request_that_was_wrong_is_tried_again_with_another_file_only() -> None:
    assert _memory("InvalidRequest", "one").block_of(EAST, 30.0) is not None
    assert _memory("InvalidRequest", "two").block_of(EAST, 30.0) is None
    assert _memory("Unsupported", "two").block_of(EAST, 30.0) is not None  # that is the cloud's, not the file's
