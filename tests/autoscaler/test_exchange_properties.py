"""Laws of moving work, over random fleets that run through the loop for hours with constant prices and demand."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.effective import pricing_of
from tradewind.autoscaler.ray_snapshot import DrainReason, RayJob
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import DrainRequested, LaunchRequested
from tradewind.model import Capacity, Offer, Wish
from tradewind.states import NodeState

TICK_S = 120.0  # hours are to pass quickly; nodes boot within one
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=120, min_node_life_s=120, boot_timeout_s=300)


@dataclass(frozen=True)
class Case:
    """What is sold, who works; `hidden` cannot be had at first, so that the dearest is bought."""

    offers: tuple[Offer, ...]
    hidden: frozenset[str]
    jobs: tuple[tuple[int, int, bool], ...]  # (workers, cores of each, whether it can move)
    foreign_tasks: int


@st.composite
def cases(draw: st.DrawFn) -> Case:
    offers = []
    for number in range(draw(st.integers(2, 5))):
        cpus = draw(st.sampled_from([4, 8, 16]))
        capacity = draw(st.sampled_from(Capacity))
        zone = draw(st.sampled_from(["aws/us-east-1a", "aws/us-east-1b", "gcp/us-central1-a"]))
        price = draw(st.integers(2, 40)) * cpus / 100
        offers.append(make_offer(f"{zone}/t{number}", usd_per_h=price, cpus=cpus, capacity=capacity, memory_gib=64))
    dearest = max(offers, key=lambda offer: (offer.price_uusd_per_h or 0) / offer.vcpus)
    hidden = frozenset(offer.market.key for offer in offers if offer is not dearest)
    jobs = st.tuples(st.integers(1, 3), st.integers(2, 4), st.sampled_from([True, True, True, False]))
    foreign = draw(st.sampled_from([0, 0, 1]))
    return Case(tuple(offers), hidden, tuple(draw(st.lists(jobs, min_size=1, max_size=4))), foreign)


class Run:
    """One case. After every tick the laws that hold at each moment are checked."""

    def __init__(self, case: Case) -> None:
        self.world = World(case.offers, SETTINGS)
        self.world.cloud.sold_out = set(case.hidden)
        self.movable = {f"job-{number}" for number, (_, _, can_move) in enumerate(case.jobs) if can_move}
        for number, (workers, cores, can_move) in enumerate(case.jobs):
            name, resources = f"job-{number}", {"CPU": cores}
            self.world.ray.jobs.append(RayJob("", name, is_dead=False, status="RUNNING"))
            self.world.ray.submit(resources, count=workers, job_id=name)
            self.world.wishes.append(Wish(name, workers, workers, resources, can_move=can_move))
        if case.foreign_tasks:
            self.world.ray.submit({"CPU": 1}, count=case.foreign_tasks, job_id="ray-99")

    def run(self, hours: float) -> None:
        for _ in range(round(hours * 3600 / TICK_S)):
            self.tick()

    def tick(self) -> None:
        ray, before = self.world.ray, len(self.world.ray.drains)
        held = ray.snapshot().holdings
        self.world.run(TICK_S, TICK_S)
        for ray_node_id, reason in ray.drains[before:]:
            if reason is DrainReason.PREEMPTION:
                assert {job_id for job_id, node in held if node == ray_node_id} <= self.movable
        for job_id in self.movable:
            ray.hand_over(job_id)
        assert self.coming() <= max(1, len(self.world.fleet.alive_nodes) // 10)

    def coming(self) -> int:
        """Replacements that are not there yet."""
        states = (NodeState.REQUESTED, NodeState.BOOTING)
        return sum(1 for node in self.world.fleet.alive_nodes if node.replaces and node.state in states)

    def price(self) -> float:
        """Effective, of all nodes."""
        assert self.world.loop.view is not None
        pricing = pricing_of(self.world.loop.view)
        assert pricing is not None
        offers = [node.offer for node in self.world.fleet.alive_nodes]
        return sum(pricing.to_hold_and_to_boot(offer.market, offer.price_uusd_per_h or 0)[0] for offer in offers)

    def changes(self) -> int:
        return sum(1 for event in self.world.events if isinstance(event, LaunchRequested | DrainRequested))


@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(cases())
def test_moves_save_money_end_and_touch_nobody_who_has_not_agreed(case: Case) -> None:
    run = Run(case)
    run.run(0.5)
    if run.world.ray.waiting:
        return  # nothing that is sold holds all of it
    at_first = run.price()
    run.world.cloud.sold_out = set()
    run.run(3)
    assert run.world.ray.waiting == 0
    assert run.price() <= at_first * 1.0001
    settled = run.changes()
    run.run(1)
    assert run.changes() == settled  # nothing goes back and forth
