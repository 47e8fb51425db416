"""Jobs with a contract whose workers share machines: whole machines are paid, so a machine is filled."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from contract_world import JOB, SETTINGS, H, Voyage
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.contract import ContractView, SpotMarket, decide
from tradewind.autoscaler.contract.plan import plan
from tradewind.autoscaler.contract.pricing import priced
from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.errors import ConfigError
from tradewind.model import Capacity, Contract, Wish

USD = 1_000_000
EIGHT = make_offer("aws/us-east-1a/p4d", usd_per_h=12.0, cpus=96, gpus=8)
EIGHT_DEAR = make_offer("aws/us-east-1a/p4d", usd_per_h=32.0, cpus=96, gpus=8, capacity=Capacity.ON_DEMAND)
ONE = make_offer("gcp/us-central1-a/a2", usd_per_h=1.0, cpus=12, gpus=1)
ONE_DEAR = make_offer("gcp/us-central1-a/a2", usd_per_h=3.0, cpus=12, gpus=1, capacity=Capacity.ON_DEMAND)


def shared(seats: float = 8.0, most: int = 8, work_h: float = 80.0, deadline_h: float | None = 100.0) -> ContractView:
    """Machines of eight, alone on sale, spot at a third."""
    return ContractView(
        now_s=0.0,
        work_left_s=work_h * H,
        restart_s=300.0,
        tick_s=60.0,
        on_demand_key="dear",
        on_demand_uusd_per_h=24 * USD,
        deadline_at_s=None if deadline_h is None else deadline_h * H,
        spot=(SpotMarket("spot", 8 * USD, is_open=True, seats=seats),),
        speeds=tuple(float(number) ** 0.85 for number in range(1, most + 1)),
        on_demand_seats=seats,
    )


# --- the decision ---------------------------------------------------------------------------------------------------


def test_a_machine_is_filled() -> None:
    """One worker of eight would pay for all of it, and take five times as long."""
    found = decide(shared()).choice
    assert (found.key, found.replicas) == ("spot", 8)
    assert found.cost_uusd < 1.3 * 8 * USD * 80.0 / 8.0**0.85
    assert decide(shared(seats=1.0, deadline_h=2000.0)).choice.replicas == 1, (
        "where each has a machine of its own, fewer are cheaper"
    )


def test_no_second_machine_for_a_few_more_workers() -> None:
    assert decide(shared(most=12)).choice.replicas == 8
    assert decide(shared(most=12, work_h=80.0, deadline_h=14.0)).choice.replicas > 8, "the deadline asks for it"


def test_replicas_that_need_several_machines_pay_for_all() -> None:
    view = shared(seats=0.5, most=2, deadline_h=2000.0)
    assert [view.on_demand_rate_uusd_per_h(size) for size in (1, 2)] == [48 * USD, 96 * USD]
    assert decide(view).choice.replicas == 1


@pytest.mark.parametrize(("budget_usd", "is_paid"), [(140.0, True), (100.0, False)])
def test_a_budget_counts_what_machines_cost_in_all(budget_usd: float, is_paid: bool) -> None:
    """At its least, 80 h on one machine of spot cost $109 for eight workers and $640 for one."""
    found = plan(replace(shared(), budget_left_uusd=round(budget_usd * USD)), plays=20)
    assert found.least_uusd == math.floor(8 * USD * 80.0 / 8.0**0.85)
    assert found.is_feasible is is_paid
    assert found.replicas == 8
    assert (found.on_demand.uusd_per_h, found.spot[0].uusd_per_h) == (3 * USD, 1 * USD)


def test_what_holds_nothing_is_no_offer() -> None:
    with pytest.raises(ConfigError, match="seats"):
        shared(seats=0.0)


@given(st.integers(1, 40), st.sampled_from([0.25, 0.5, 1.0, 4 / 3, 2.0, 8.0]), st.integers(1, 10**8))
def test_shares_add_up_to_whole_machines(replicas: int, seats: float, price: int) -> None:
    view = replace(shared(seats, most=40), on_demand_uusd_per_h=price)
    rate = view.on_demand_rate_uusd_per_h(replicas)
    assert rate % price == 0
    assert rate // price * seats >= replicas - 1e-6, "all have room"
    assert (rate // price - 1) * seats < replicas, "and no machine is too many"
    assert 0 <= view.at(replicas).on_demand_uusd_per_h * replicas - rate < replicas, "but for rounding up"
    assert view.at(replicas).spot[0].price_uusd_per_h > 0


# --- what is for sale -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("workers", "first"), [((1, 1), ONE), ((1, 16), ONE), ((8, 8), EIGHT)])
def test_offers_stand_by_what_the_work_costs(workers: tuple[int, int], first: object) -> None:
    eight = replace(
        EIGHT, price_uusd_per_h=7_900_000
    )  # less for each of eight than ONE, but a machine of eight is paid
    speeds = [float(number) ** 0.5 if number >= workers[0] else 1e-9 for number in range(1, workers[1] + 1)]
    view = View(0.0, LoopSettings("lab"), offers=(eight, ONE))
    found = priced(Wish("a", *workers, {"CPU": 1.0, "GPU": 1.0}), speeds, view)
    assert found[0].key == first.market.key  # type: ignore[attr-defined]
    assert {each.key: each.seats for each in found} == {EIGHT.market.key: 8.0, ONE.market.key: 1.0}


# --- on the loop ----------------------------------------------------------------------------------------------------


def test_a_job_of_one_to_eight_runs_with_eight_on_one_machine() -> None:
    v = Voyage(4.0, Contract(deadline_at_s=8 * H, work_s=4 * H), workers=(1, 8), offers=(EIGHT, EIGHT_DEAR)).run(3 * H)
    assert v.choices[0] == f"{EIGHT.market.key} x 8"
    assert [node.offer for node in v.world.fleet.nodes.values()] == [EIGHT]
    assert v.ended_s is not None
    assert v.ended_s < 2 * H


def test_where_limits_leave_few_of_the_cheapest_dearer_ones_keep_the_deadline() -> None:
    limits = Limits(rules=(Rule(Part(instance_type="a2"), max_nodes=1),))
    offers = (ONE_DEAR, EIGHT_DEAR)
    v = Voyage(
        6.0,
        Contract(deadline_at_s=2 * H, work_s=6 * H),
        workers=(1, 8),
        offers=offers,
        settings=replace(SETTINGS, limits=limits),
    ).run(3 * H)
    assert v.ended_s is not None
    assert v.ended_s <= 2 * H
    assert EIGHT_DEAR in [node.offer for node in v.world.fleet.nodes.values()]
    assert v.world.fleet.jobs[JOB].spec.contract.deadline_at_s is not None
