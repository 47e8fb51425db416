"""Work that moves to cheaper nodes: whole stories through Loop.tick, on the shipped fakes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.ray_snapshot import DrainReason, RayJob
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.events import AnyEvent, DrainRequested, LaunchRequested, NodeJoined
from tradewind.model import Capacity, Offer, Resources, Wish
from tradewind.states import NodeState

SPOT = make_offer("aws/us-east-1a/g6", usd_per_h=0.30, cpus=4, gpus=1)
ON_DEMAND = make_offer("aws/us-east-1a/g6", usd_per_h=0.80, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
BIG = make_offer("aws/us-east-1a/m5", usd_per_h=0.40, cpus=8, capacity=Capacity.ON_DEMAND)
GPU = {"CPU": 1, "GPU": 1}
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=60, min_node_life_s=60, boot_timeout_s=100)
HYSTERESIS_S = SETTINGS.market.exchange_hysteresis_s


@dataclass
class Scene:
    """A world with elastic jobs, which leave draining nodes as soon as there is room for them elsewhere."""

    offers: Sequence[Offer]
    settings: LoopSettings = SETTINGS
    jobs: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.world = World(self.offers, self.settings)

    def train(self, job_id: str, workers: int, resources: Resources = GPU, *, can_move: bool = True) -> None:
        self.world.ray.jobs.append(RayJob("", job_id, is_dead=False, status="RUNNING"))  # so what it holds is on record
        self.world.ray.submit(resources, count=workers, job_id=job_id)
        self.world.wishes.append(Wish(job_id, workers, workers, resources, can_move=can_move))
        if can_move:
            self.jobs.append(job_id)

    def run(self, duration_s: float, interval_s: float = 5.0) -> None:
        for _ in range(round(duration_s / interval_s)):
            self.world.run(interval_s, interval_s)
            for job_id in self.jobs:
                self.world.ray.hand_over(job_id)

    @property
    def markets(self) -> list[str]:
        return sorted(node.offer.market.key for node in self.world.cloud.alive())

    @property
    def alive(self) -> list[str]:
        return sorted(node.launch_id for node in self.world.cloud.alive())

    def of(self, kind: type[AnyEvent]) -> list[AnyEvent]:
        return [event for event in self.world.events if isinstance(event, kind)]

    def asked_to_replace(self) -> list[LaunchRequested]:
        return [each for each in self.world.events if isinstance(each, LaunchRequested) and each.replaces]


def on_demand_while_spot_is_sold_out(**changes: object) -> Scene:
    scene = Scene((SPOT, ON_DEMAND), replace(SETTINGS, **changes))  # type: ignore[arg-type]
    scene.world.cloud.sold_out = {SPOT.market.key}
    scene.train("job-1", 1)
    scene.run(60)
    assert scene.markets == [ON_DEMAND.market.key]
    scene.world.cloud.sold_out = set()
    return scene


def test_spot_comes_back_and_the_work_moves_after_the_hysteresis_the_new_node_first() -> None:
    scene = on_demand_while_spot_is_sold_out()
    back_s = scene.world.clock.now_s()
    scene.run(2400)
    assert scene.markets == [SPOT.market.key]
    assert scene.world.ray.waiting == 0
    [asked] = scene.asked_to_replace()
    [drained] = scene.of(DrainRequested)
    assert isinstance(drained, DrainRequested)
    assert asked.replaces == (drained.launch_id,)
    assert asked.at_s >= back_s + HYSTERESIS_S
    joined = [each for each in scene.of(NodeJoined) if getattr(each, "launch_id", "") == asked.launch_id]
    assert joined[0].at_s <= drained.at_s
    assert drained.deadline_s == drained.at_s + SETTINGS.market.handover_deadline_s
    assert [reason for _, reason in scene.world.ray.drains] == [DrainReason.PREEMPTION]
    assert FleetState.fold(scene.world.events).nodes == scene.world.fleet.nodes


def test_the_reason_tells_prices_gain_and_cost() -> None:
    scene = on_demand_while_spot_is_sold_out()
    scene.run(2400)
    [asked] = scene.asked_to_replace()
    assert "takes over the work of n2 (aws/us-east-1a/g6/on-demand): " in asked.reason
    assert "instead of $0.80/h, so for 15m" in asked.reason
    assert "$0.30/h list" in asked.reason
    assert "of the move" in asked.reason


def test_nothing_moves_while_spot_is_sold_out() -> None:
    scene = on_demand_while_spot_is_sold_out()
    scene.world.cloud.sold_out = {SPOT.market.key}
    scene.run(4 * 3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]
    assert scene.world.ray.drains == []
    tries = [each.at_s for each in scene.asked_to_replace()]
    assert tries
    gaps = [later - earlier for earlier, later in itertools.pairwise(tries)]
    assert min(gaps) >= HYSTERESIS_S  # a market that still refuses is asked ever less often


def test_a_job_that_cannot_move_stays_where_it_is() -> None:
    scene = Scene((SPOT, ON_DEMAND))
    scene.world.cloud.sold_out = {SPOT.market.key}
    scene.train("job-1", 1, can_move=False)
    scene.run(60)
    scene.world.cloud.sold_out = set()
    scene.run(3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]
    assert not scene.asked_to_replace()


def test_a_foreign_task_beside_the_job_keeps_the_node() -> None:
    scene = on_demand_while_spot_is_sold_out()
    scene.world.ray.submit({"CPU": 1}, job_id="ray-07")
    scene.run(3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]


def test_a_foreign_task_that_comes_while_the_replacement_boots_keeps_the_node() -> None:
    scene = on_demand_while_spot_is_sold_out()
    while not scene.asked_to_replace():
        scene.run(5)
    scene.world.ray.submit({"CPU": 1}, job_id="ray-07")
    scene.run(3600, interval_s=20)
    assert "n2" in scene.alive
    assert scene.world.ray.drains[0][1] is DrainReason.IDLE  # the replacement, which nobody needed after all
    assert len(scene.asked_to_replace()) == 1


def test_a_replacement_that_never_joins_leaves_the_old_node_alone() -> None:
    scene = on_demand_while_spot_is_sold_out()
    scene.world.cloud.never_boots = {SPOT.market.key}
    scene.run(3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]
    assert scene.world.fleet.nodes["n2"].state is NodeState.READY
    assert len(scene.asked_to_replace()) == 1


def test_a_controller_that_was_killed_goes_on_with_the_move() -> None:
    scene = on_demand_while_spot_is_sold_out()
    while not scene.asked_to_replace():
        scene.run(5)
    scene.world.start()
    scene.run(120)
    assert scene.markets == [SPOT.market.key]
    assert len(scene.asked_to_replace()) == 1


def test_a_spike_of_the_price_that_ends_soon_moves_nothing() -> None:
    other = make_offer("gcp/us-central1-a/g2", usd_per_h=0.40, cpus=4, gpus=1)
    scene = Scene((SPOT, other))
    scene.train("job-1", 1)
    scene.run(1800, interval_s=20)
    scene.world.cloud.set_price(SPOT.market.key, 2.00)
    scene.run(HYSTERESIS_S - 100, interval_s=20)
    scene.world.cloud.set_price(SPOT.market.key, 0.30)
    scene.run(3600, interval_s=20)
    assert not scene.asked_to_replace()
    scene.world.cloud.set_price(SPOT.market.key, 2.00)
    scene.run(HYSTERESIS_S + 300, interval_s=20)
    assert scene.markets == [other.market.key]


def test_a_dip_of_another_price_that_ends_soon_moves_nothing() -> None:
    other = make_offer("gcp/us-central1-a/g2", usd_per_h=0.40, cpus=4, gpus=1)
    scene = Scene((SPOT, other))
    scene.train("job-1", 1)
    for price in (0.05, 0.40) * 4:
        scene.world.cloud.set_price(other.market.key, price)
        scene.run(HYSTERESIS_S - 100, interval_s=20)
    assert not scene.asked_to_replace()


def test_a_small_saving_is_not_worth_a_move() -> None:
    other = make_offer("gcp/us-central1-a/g2", usd_per_h=0.40, cpus=4, gpus=1)
    scene = Scene((SPOT, other))
    scene.train("job-1", 1)
    scene.run(60)
    scene.world.cloud.set_price(other.market.key, 0.27)
    scene.run(3 * 3600, interval_s=20)
    assert not scene.asked_to_replace()


def test_limits_hold_while_both_nodes_are_there() -> None:
    scene = on_demand_while_spot_is_sold_out(limits=Limits(max_nodes=1))
    scene.run(3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]


def test_it_can_be_turned_off() -> None:
    scene = on_demand_while_spot_is_sold_out(market=MarketSettings(exchange=False))
    scene.run(3600, interval_s=20)
    assert scene.markets == [ON_DEMAND.market.key]


# --- consolidation --------------------------------------------------------------------------------------------------


def two_half_empty_nodes(*, can_move: bool = True) -> Scene:
    """Two jobs with four CPUs each come beside two that leave."""
    scene = Scene((BIG,))
    scene.train("job-1", 1, {"CPU": 4}, can_move=can_move)
    scene.train("gone-1", 1, {"CPU": 4})
    scene.train("job-2", 1, {"CPU": 4}, can_move=can_move)
    scene.train("gone-2", 1, {"CPU": 4})
    scene.run(60)
    assert len(scene.alive) == 2
    scene.world.wishes = [wish for wish in scene.world.wishes if wish.job_id.startswith("job")]
    for job_id in ("gone-1", "gone-2"):
        scene.world.ray.finish(job_id)
    assert len(scene.world.ray.nodes_of("job-1") | scene.world.ray.nodes_of("job-2")) == 2
    return scene


def test_half_empty_for_a_moment_is_no_reason_to_move() -> None:
    """Jobs that come and go every few minutes: the room is wanted again."""
    scene = two_half_empty_nodes()
    for number in range(8):
        scene.run(300, interval_s=20)
        scene.train(f"gone-{number}", 2, {"CPU": 4})
        scene.run(300, interval_s=20)
        scene.world.ray.finish(f"gone-{number}")
        scene.world.wishes.pop()
        assert len(scene.alive) == 2
    assert scene.world.ray.drains == []


def test_two_half_empty_nodes_become_one_when_they_have_been_so_for_a_while() -> None:
    scene = two_half_empty_nodes()
    scene.run(HYSTERESIS_S - 100, interval_s=20)
    assert len(scene.alive) == 2
    scene.run(600, interval_s=20)
    assert scene.alive == ["n1"]  # the younger of two equal ones went
    assert scene.world.ray.waiting == 0
    assert len(scene.world.cloud.launch_calls) == 2  # nothing was bought for it
    [drained] = scene.of(DrainRequested)
    assert "its work fits on n1, which has room; saves $0.40/h" in getattr(drained, "reason", "")


def test_half_empty_nodes_of_jobs_that_cannot_move_stay() -> None:
    scene = two_half_empty_nodes(can_move=False)
    scene.run(2 * HYSTERESIS_S, interval_s=20)
    assert len(scene.alive) == 2


def test_room_that_something_waiting_could_use_is_left_alone() -> None:
    scene = two_half_empty_nodes()
    scene.world.ray.submit({"CPU": 2}, labels={"no": "such"})  # waits for ever, and would fit by size alone
    scene.run(2 * HYSTERESIS_S, interval_s=20)
    assert len(scene.alive) == 1  # it cannot use the room
    scene = two_half_empty_nodes()
    scene.world.ray.submit({"CPU": 3}, job_id="job-3")
    scene.run(2 * HYSTERESIS_S, interval_s=20)
    assert len(scene.alive) == 2


def test_a_node_that_is_too_large_for_what_is_left_on_it_is_exchanged_for_a_smaller_one() -> None:
    small = make_offer("aws/us-east-1a/m5s", usd_per_h=0.15, cpus=4, capacity=Capacity.ON_DEMAND)
    scene = Scene((BIG, small))
    scene.train("job-1", 1, {"CPU": 4})
    scene.world.cloud.sold_out = {small.market.key}
    scene.run(60)
    assert scene.markets == [BIG.market.key]
    scene.world.cloud.sold_out = set()
    scene.run(2400, interval_s=20)
    assert scene.markets == [small.market.key]


def test_two_nodes_become_one_cheaper_one_that_holds_the_work_of_both() -> None:
    """Neither has room for the other's work, and no smaller node is sold."""
    middle = make_offer("aws/us-east-1a/m5m", usd_per_h=0.40, cpus=7, capacity=Capacity.ON_DEMAND)
    large = make_offer("aws/us-east-1a/m5l", usd_per_h=0.50, cpus=12, capacity=Capacity.ON_DEMAND)
    scene = Scene((middle, large))
    scene.world.cloud.sold_out = {large.market.key}
    scene.train("job-1", 1, {"CPU": 4})
    scene.train("job-2", 1, {"CPU": 4})
    scene.run(60)
    assert scene.markets == [middle.market.key] * 2
    scene.world.cloud.sold_out = set()
    scene.run(2400, interval_s=20)
    assert scene.markets == [large.market.key]
    [asked] = scene.asked_to_replace()
    assert len(asked.replaces) == 2
