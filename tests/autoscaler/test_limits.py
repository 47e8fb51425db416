"""Limits on the fleet and on parts of it: held when granting, when choosing, and before each launch."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Launch, Plan
from tradewind.autoscaler.allocate import allocate, grant
from tradewind.autoscaler.limits import EACH, Gate, Limits, Part, Rule, Tenants, bounds_of
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.treasury import Unlimited
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import DecisionRecorded, JobSubmitted
from tradewind.model import Capacity, JobSpec, Offer, Wish

EAST = make_offer("aws/us-east-1a/g6", usd_per_h=0.30, cpus=4, gpus=1)
EAST_SURE = make_offer("aws/us-east-1a/g6", usd_per_h=0.80, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
BIG = make_offer("aws/us-west-2a/g6x4", usd_per_h=1.40, cpus=16, gpus=4)
GCP = make_offer("gcp/us-central1-a/g2", usd_per_h=0.40, cpus=4, gpus=1)
PLAIN = make_offer("gcp/us-central1-a/n2", usd_per_h=0.10, cpus=4)
OFFERS = (EAST, EAST_SURE, BIG, GCP, PLAIN)
GPU = {"CPU": 1, "GPU": 1}


def rule(max_nodes: int | None = None, **about: object) -> Rule:
    limits = ("max_uusd_per_h", "max_accelerators", "launches_per_minute")
    numbers = {name: about.pop(name) for name in limits if name in about}
    return Rule(Part(**about), max_nodes, **numbers)  # type: ignore[arg-type]


def world(*rules: Rule, offers: Sequence[Offer] = OFFERS, **limits: object) -> World:
    made = Limits(rules=rules, **limits)  # type: ignore[arg-type]
    return World(offers, LoopSettings(fleet="test", idle_timeout_s=1e6, limits=made))


def job(w: World, job_id: str, tenant: str, max_workers: int = 0) -> None:
    spec = JobSpec(job_id, "python x.py", tenant=tenant, max_workers=max_workers)
    w.record(JobSubmitted(at_s=w.clock.now_s(), job_id=job_id, spec=spec))


def markets(w: World) -> list[str]:
    return sorted(node.offer.market.key for node in w.cloud.alive())


def held(w: World) -> list[str]:
    assert w.loop.plan is not None
    return [hold.reason for hold in w.loop.plan.holds]


# --- parts of the fleet -----------------------------------------------------------------------------------------------


def test_a_cloud_at_its_limit_is_full_and_the_next_best_serves() -> None:
    w = world(rule(2, cloud="aws"))
    w.ray.submit(GPU, count=4)
    w.run(30)
    assert [key.split("/")[0] for key in markets(w)] == ["aws", "aws", "gcp", "gcp"]
    assert w.ray.waiting == 0


def test_a_region_and_a_way_to_buy_have_limits_of_their_own() -> None:
    w = world(rule(1, region="us-east-1", capacity=(Capacity.SPOT,)), rule(0, cloud="gcp"), offers=OFFERS[:2])
    w.ray.submit(GPU, count=3)
    w.run(30)
    assert markets(w) == [EAST_SURE.market.key] * 2 + [EAST.market.key]


def test_a_quota_counts_accelerators_not_nodes() -> None:
    w = world(rule(cloud="aws", accelerator="L4", max_accelerators=5), offers=(EAST, BIG))
    w.ray.submit(GPU, count=20)
    w.run(30)
    assert sum(node.offer.accelerator_count for node in w.cloud.alive()) == 5
    assert held(w) == ["the limit of 5 accelerators in aws L4 is reached"]


def test_dollars_and_launches_of_a_part() -> None:
    w = world(rule(cloud="gcp", max_uusd_per_h=900_000), rule(cloud="gcp", launches_per_minute=1), offers=(GCP,))
    w.ray.submit(GPU, count=5)
    w.run(30)
    assert len(w.cloud.alive()) == 1
    w.run(60)
    assert len(w.cloud.alive()) == 2
    w.run(120)
    assert len(w.cloud.alive()) == 2
    assert held(w) == ["the limit of $0.90 per hour in gcp leaves too little for it"]


def test_failover_does_not_pass_the_limit_of_a_part() -> None:
    w = world(rule(0, cloud="gcp"))
    w.cloud.sold_out = {offer.market.key for offer in OFFERS if offer.market.cloud == "aws"}
    w.ray.submit(GPU)
    w.run(5)
    assert w.cloud.alive() == []


# --- beside budgets ---------------------------------------------------------------------------------------------------

SEVERAL = tuple(
    make_offer(f"gcp/us-r{number}-a/g2", usd_per_h=0.3 + number / 100, cpus=4, gpus=1) for number in range(9)
)


class Frugal(Unlimited):
    """Pays for some markets alone, and is asked at the last moment only."""

    def __init__(self, paid: Sequence[Offer] = ()) -> None:
        self.paid = [offer.market for offer in paid]

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:
        return "" if offer.market in self.paid else f"the budget does not pay for {offer.price_uusd_per_h}"


def test_what_a_budget_refuses_counts_against_no_limit() -> None:
    w = world(offers=SEVERAL, max_nodes=2, max_uusd_per_h=800_000, launches_per_minute=2)
    w.loop.keep_within(Frugal(SEVERAL[-1:]))
    w.ray.submit(GPU, count=2)
    w.run(5)
    assert markets(w) == [SEVERAL[-1].market.key] * 2
    launched = [event for event in w.events if isinstance(event, DecisionRecorded) and event.action == "launch"]
    assert not any("limit" in text for event in launched for text in event.ruled_out)


def test_one_cause_is_told_once_whatever_the_offers_and_the_ticks(caplog: pytest.LogCaptureFixture) -> None:
    w = world(offers=SEVERAL, max_nodes=6)
    w.loop.keep_within(Frugal())
    w.ray.submit(GPU, count=2)
    w.run(10)
    told = [record.getMessage() for record in caplog.records if "not launched" in record.getMessage()]
    assert told == [f"not launched: {SEVERAL[0].market} and 8 other offers: the budget does not pay for 300000"]


def test_what_is_asked_of_the_gate_is_not_counted() -> None:
    w = world(max_nodes=1)
    gate = Gate(w.fleet, w.settings.limits, w.clock.now_s())
    assert [gate.ask(EAST)[0] for _ in range(3)] == [""] * 3
    assert gate.admit(EAST)[0] == ""
    assert gate.admit(EAST)[0] == gate.ask(EAST)[0] == "the limit of 1 node"


# --- tenants ----------------------------------------------------------------------------------------------------------


def test_a_tenant_is_held_to_its_nodes_and_others_go_on() -> None:
    w = world(rule(2, tenant="research"), offers=(GCP,))
    job(w, "theirs", "research", max_workers=5)
    job(w, "ours", "vision", max_workers=3)
    w.wishes = [Wish("theirs", 2, 5, GPU), Wish("ours", 3, 3, GPU)]
    w.ray.submit(GPU, count=3, job_id="ours")  # in Ray's order: nodes of the one must not be eaten by the other
    w.ray.submit(GPU, count=5, job_id="theirs")
    w.run(40)
    assert len(w.cloud.alive()) == 5
    assert len(w.ray.nodes_of("theirs")) == 2
    assert w.loop.plan is not None
    assert {name: target.workers for name, target in w.loop.plan.targets.items()} == {"theirs": 2, "ours": 3}


def test_gangs_count_for_the_tenant_of_their_job() -> None:
    w = world(rule(2, tenant="research"), offers=(GCP,))
    job(w, "theirs", "research")
    job(w, "ours", "vision")
    w.ray.submit_gang([GPU] * 3, Strategy.STRICT_SPREAD, job_id="ours")
    w.ray.submit_gang([GPU] * 3, Strategy.STRICT_SPREAD, job_id="theirs")
    w.run(20)
    assert len(w.ray.nodes_of("ours")) == 3
    assert w.ray.nodes_of("theirs") == set()


def test_what_might_be_a_tenants_counts_for_it() -> None:
    """Ray does not say whose a task is. With one job that asks by itself it is clear; with two, either may be meant."""
    w = world(rule(1, tenant="research"), offers=(GCP,))
    job(w, "ours", "vision")
    w.ray.submit(GPU, count=3, job_id="ours")
    w.run(20)
    assert len(w.cloud.alive()) == 3
    job(w, "theirs", "research")
    w.ray.submit(GPU, count=3, job_id="theirs")
    w.run(20)
    assert len(w.cloud.alive()) == 4
    assert len(w.ray.nodes_of("theirs")) == 1


def test_each_tenant_by_itself() -> None:
    w = world(rule(2, tenant=EACH), offers=(GCP,))
    for name in ("a", "b"):
        job(w, name, name, max_workers=4)
        w.ray.submit(GPU, count=2, job_id=name)  # as many as they are granted
    w.wishes = [Wish(name, 1, 4, GPU) for name in ("a", "b")]
    w.run(30)
    assert len(w.cloud.alive()) == 4
    assert {job_id: target.replicas for job_id, target in w.loop.targets.items()} == {"a": 2, "b": 2}


def test_a_node_is_of_those_who_hold_it_and_else_of_those_for_whom_it_was_bought() -> None:
    w = world(rule(9, tenant="research"), offers=(GCP,))
    job(w, "theirs", "research")
    w.ray.submit(GPU, job_id="theirs")
    w.loop.tick()
    assert w.fleet.nodes["n1"].tenants == ("research",)
    assert Tenants.of(w.fleet).of_node == {"n1": {"research"}}
    w.run(20)
    w.ray.finish()
    job(w, "ours", "vision")
    w.ray.submit(GPU, job_id="ours")
    w.run(3)
    assert Tenants.of(w.fleet).of_node == {"n1": {"vision"}}


def test_workers_are_granted_within_the_limits_of_the_tenant_and_of_what_fits() -> None:
    wishes = [Wish("a", 1, 8, GPU), Wish("b", 1, 8, GPU)]
    whose = {"a": "research", "b": "vision"}

    def granted(*rules: Rule, offers: Sequence[Offer] = (EAST, GCP)) -> list[int]:
        targets = allocate(wishes, Limits(rules=rules), offers, tenant_of=whose)
        return [targets[name].replicas for name in ("a", "b")]

    assert granted(rule(3, tenant="research")) == [3, 8]
    assert granted(rule(tenant="research", max_uusd_per_h=700_000)) == [2, 8]
    assert granted(rule(accelerator="L4", max_accelerators=4)) == [2, 2]
    assert granted(rule(2, cloud="aws")) == [8, 8]  # there are others: where it is bought, is decided there
    assert granted(rule(2, cloud="aws"), offers=(EAST,)) == [1, 1]


def test_the_grant_names_the_limit_that_holds_it_back() -> None:
    limits = Limits(max_nodes=5, rules=(rule(3, tenant="default"),))
    found = grant([Wish("a", 1, 8, GPU)], limits, (EAST,), lambda offer: offer.resources)
    assert found.targets["a"].replicas == 3
    assert found.held_back_by("a") == ["the limit of 3 nodes of tenant default"]


# --- the last gate ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(max_nodes=3), 3),
        (Limits(max_uusd_per_h=1_000_000), 3),
        (Limits(launches_per_minute=2), 2),
        (Limits(rules=(rule(1, cloud="aws"),)), 1),
        (Limits(rules=(rule(region="us-east-1", max_accelerators=2),)), 2),
        (Limits(rules=(rule(cloud="aws", launches_per_minute=2),)), 2),
        (Limits(rules=(rule(2, tenant="research"),)), 2),
        (Limits(rules=(rule(tenant=EACH, max_uusd_per_h=700_000),)), 2),
        (Limits(rules=(rule(0, tenant="vision"),)), 9),
    ],
)
def test_a_plan_that_passes_a_limit_is_stopped_before_the_launch(limits: Limits, most: int) -> None:
    w = World((EAST,), LoopSettings(fleet="test", limits=limits))
    job(w, "theirs", "research")
    w.loop.reconciler.act(Plan(w.clock.now_s(), (Launch(EAST, "a defect in a policy", jobs=("theirs",)),) * 9))
    assert len(w.cloud.alive()) == most
    w.start()  # and by a controller that has only the log
    w.loop.reconciler.act(Plan(w.clock.now_s(), (Launch(EAST, "again", jobs=("theirs",)),)))
    assert len(w.cloud.alive()) == most if most < 9 else 10


def test_nodes_of_other_cells_count() -> None:
    w = world(rule(3, cloud="aws"), offers=(EAST, GCP), max_nodes=4)
    w.ray.submit(GPU, count=2)
    w.run(20)
    other = World(
        (EAST, GCP), replace(w.settings, cell="elsewhere"), w.clock, w.log
    )  # one log, one fleet, another cell
    other.ray.submit(GPU, count=5)
    other.run(20)
    assert len(other.fleet.alive_nodes) == 4
    assert sum(node.offer.market.cloud == "aws" for node in other.fleet.alive_nodes) == 3


def test_what_a_tenant_keeps_at_hand_is_not_sold_and_bought_again_at_its_limit() -> None:
    w = world(rule(1, tenant=EACH))
    w.settings = replace(w.settings, idle_timeout_s=5, min_node_life_s=20)
    w.start()
    w.ray.constraints = ((Shape.of(GPU), 6),)  # more than one node has
    w.run(300)
    assert (len(w.cloud.alive()), len(w.cloud.launch_calls)) == (1, 1)
    assert w.loop.plan is not None
    assert [hold.reason for hold in w.loop.plan.holds] == ["the limit of 1 node of tenant default is reached"]


# --- jobs that need so many at once -----------------------------------------------------------------------------------


def wishing(w: World, *jobs: tuple[str, int, int], tenant: str = "default") -> None:
    for name, _, _ in jobs:
        job(w, name, tenant)
    w.wishes = [Wish(name, least, most, GPU) for name, least, most in jobs]


def test_nothing_is_bought_for_a_job_that_the_limits_keep_from_starting() -> None:
    w = world(max_nodes=3, offers=(EAST, GCP))
    wishing(w, ("large", 8, 8))
    w.run(60)
    assert w.cloud.launch_calls == []
    assert held(w) == ["it needs 8 workers at once, and the limit of 3 nodes allows 3"]
    assert w.loop.plan is not None
    assert [(hold.subject, hold.jobs) for hold in w.loop.plan.holds] == [
        ("8 x {CPU: 1, GPU: 1} (job large)", ("large",)),
    ]


def test_its_room_is_for_those_that_can_start() -> None:
    w = world(max_nodes=3, offers=(EAST, GCP))
    wishing(w, ("large", 8, 8), ("other", 4, 4), ("small", 2, 6))
    w.run(60)
    assert len(w.cloud.alive()) == 3
    assert w.loop.plan is not None
    assert sorted(hold.jobs for hold in w.loop.plan.holds) == [("large",), ("other",)]


def test_a_job_that_runs_may_have_less_than_it_could_use() -> None:
    w = world(max_nodes=3, offers=(EAST, GCP))
    wishing(w, ("small", 2, 6))
    w.ray.submit(GPU, count=6, job_id="small")
    w.run(60)
    assert (len(w.cloud.alive()), w.ray.waiting) == (3, 3)


def test_what_can_wait_for_its_turn_gets_the_cheapest_nodes_up_to_the_limit() -> None:
    w = world(max_nodes=3, offers=(EAST, GCP, BIG))
    wishing(w, ("small", 2, 8))
    w.ray.submit(GPU, count=20)
    w.run(60)
    assert {node.offer.resources["GPU"] for node in w.cloud.alive()} == {1}


def test_where_the_number_of_nodes_is_limited_larger_ones_serve_who_needs_all_at_once() -> None:
    w = world(max_nodes=3, offers=(EAST, GCP, BIG))  # four on a large one cost more than on four small ones
    wishing(w, ("large", 8, 8))
    w.run(60)
    assert (sorted(node.offer.resources["GPU"] for node in w.cloud.alive()), held(w)) == ([4, 4], [])
    assert len(w.cloud.launch_calls) == 2
    few = world(max_nodes=9, offers=(EAST, GCP, BIG))
    wishing(few, ("large", 8, 8))
    few.run(60)
    assert {node.offer.resources["GPU"] for node in few.cloud.alive()} == {1}


@pytest.mark.parametrize("order", [1, -1])
def test_who_needs_large_machines_is_not_taken_for_one_that_never_starts(order: int) -> None:
    w = world(max_nodes=3, offers=(EAST, BIG))
    wishing(w, *[("small", 1, 6), ("large", 8, 8)][::order])
    w.ray.submit(GPU, count=1, job_id="small")
    w.ray.submit(GPU, count=8, job_id="large")
    w.run(120)
    assert (w.ray.waiting, held(w)) == (0, [])
    w.cloud.preempt(next(node.launch_id for node in w.cloud.alive() if node.offer == BIG), notice_s=5)
    w.run(300)
    assert (w.ray.waiting, len(w.cloud.alive()), held(w)) == (0, 3, [])


def test_small_nodes_do_not_stand_where_large_ones_are_needed() -> None:
    w = world(max_nodes=3, offers=(EAST, BIG))
    w.settings = replace(w.settings, idle_timeout_s=30)
    w.start()
    wishing(w, ("other", 3, 3), ("large", 8, 8))
    w.ray.submit(GPU, count=3, job_id="other")
    w.run(60)
    assert len(w.cloud.launch_calls) == 3  # nothing for the large one while there is room for a part of it only
    w.wishes = w.wishes[1:]
    w.ray.finish("other")
    w.run(300)
    assert ([node.offer for node in w.cloud.alive()], len(w.cloud.launch_calls), held(w)) == ([BIG, BIG], 5, [])


def test_nothing_is_bought_while_what_is_large_enough_is_sold_out() -> None:
    w = world(max_nodes=3, offers=(EAST, BIG))
    w.settings = replace(w.settings, idle_timeout_s=30)
    w.start()
    w.cloud.sold_out.add(BIG.market.key)
    wishing(w, ("large", 8, 8))
    w.run(60)
    few = len(w.cloud.alive())
    w.cloud.sold_out.clear()
    w.run(2 * 3600)
    assert ([node.offer for node in w.cloud.alive()], held(w)) == ([BIG, BIG], [])
    assert few < 3


def test_what_is_not_sold_any_more_serves_the_job_for_which_it_came() -> None:
    w = world(rule(2, cloud="aws"), offers=(EAST, GCP))
    w.settings = replace(w.settings, idle_timeout_s=5, min_node_life_s=20)
    w.start()
    wishing(w, ("train", 4, 4))
    w.run(30)
    del w.cloud.stock[GCP.market.key]
    w.run(120)
    assert (len(w.cloud.alive()), len(w.cloud.launch_calls), held(w)) == (4, 4, [])


def test_who_waits_for_room_that_another_has_is_told_so_and_served_then() -> None:
    w = world(max_nodes=3, offers=(EAST,))
    wishing(w, ("first", 3, 3), ("second", 2, 2))
    w.ray.submit(GPU, count=3, job_id="first")
    w.run(60)
    assert len(w.cloud.alive()) == 3
    assert held(w) == ["it needs 2 at once, and the limit of 3 nodes leaves room for 0"]
    w.wishes = w.wishes[1:]
    w.ray.finish("first")
    w.ray.submit(GPU, count=2, job_id="second")
    w.run(60)
    assert (len(w.ray.nodes_of("second")), held(w)) == (2, [])


def test_nodes_that_reach_the_limit_of_their_tenant_serve_it_and_nothing_is_held_back() -> None:
    w = world(rule(4, tenant="research"), offers=(EAST,))
    w.settings = replace(w.settings, idle_timeout_s=5, min_node_life_s=20)
    w.start()
    wishing(w, ("train", 4, 4), tenant="research")
    w.run(3)  # they boot
    assert (len(w.cloud.alive()), held(w)) == (4, [])
    w.run(60)  # the job takes its time
    assert (len(w.cloud.launch_calls), held(w)) == (4, [])


def test_the_limit_that_is_named_is_the_one_in_the_way() -> None:
    w = world(rule(1, cloud="aws"), rule(tenant=EACH, max_uusd_per_h=1_000_000), offers=(EAST, GCP))
    w.ray.submit(GPU, count=9)
    w.run(60)
    assert len(w.cloud.alive()) == 2
    one, other = "the limit of 1 node in aws is reached", "the limit of $1.00 per hour of tenant default"
    assert held(w) == [f"{one} and {other} leaves too little for it"]


_LIMIT = st.none() | st.integers(0, 6)
_RULES = st.builds(
    lambda nodes, uusd, units, part: Rule(part, nodes, None if uusd is None else uusd * 300_000, units),
    _LIMIT,
    _LIMIT,
    _LIMIT,
    st.builds(
        Part,
        cloud=st.sampled_from(["", "aws", "gcp"]),
        region=st.sampled_from(["", "us-east-1", "us-west-2"]),
        capacity=st.sampled_from([(), (Capacity.SPOT,)]),
        tenant=st.sampled_from(["", "a", "b", EACH]),
    ),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(_RULES, max_size=4), st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), max_size=3))
def test_no_bound_is_ever_passed(rules: list[Rule], asked: list[tuple[str, int]]) -> None:
    w = world(*rules, max_nodes=8)
    for number, (tenant, count) in enumerate(asked):
        job(w, f"j{number}", tenant)
        w.ray.submit(GPU, count=count, job_id=f"j{number}")
    w.run(20, interval_s=4.0)
    tenants = Tenants.of(w.fleet)
    for bound in bounds_of(w.settings.limits, tenants.known):
        mine = [n.offer for n in w.fleet.alive_nodes if bound.is_about(n.offer, tenants.of_node[n.launch_id])]
        assert bound.is_rate or sum(bound.weigh(offer) for offer in mine) <= bound.most
