"""Jobs with a contract under the fleet's limits: what may not be bought is no market, and no safety net."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest
from contract_world import JOB, SETTINGS, H, Voyage

from tradewind.autoscaler.contract import ContractView, SpotMarket, decide
from tradewind.autoscaler.contract.choices import choices
from tradewind.autoscaler.contract.settled import settled
from tradewind.autoscaler.contract.view import Choice, ContractDecision, Running
from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.treasury import Unlimited
from tradewind.errors import ConfigError
from tradewind.model import Capacity, Contract, Offer

USD = 1_000_000
DEAR = make_offer("aws/us-east-1b/t1", usd_per_h=1.00, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
SPOT = make_offer("aws/us-east-1b/t1", usd_per_h=0.30, cpus=4, gpus=1)
EIGHT_DEAR = make_offer("aws/us-east-1a/t8", usd_per_h=9.00, cpus=32, gpus=8, capacity=Capacity.ON_DEMAND)
FOUR = make_offer("gcp/us-central1-a/t4", usd_per_h=0.80, cpus=16, gpus=4)


class Elastic(Voyage):
    """It goes on with as many workers as it has."""

    def _train(self) -> None:
        held = [each for each in self.ray._work if each.job_id == JOB and each.on]
        nodes, now_s = frozenset(each.on for each in held), self.world.clock.now_s()
        if nodes != self._on or len(held) < self.workers[0]:
            self._lose(nodes, now_s, is_whole=len(held) >= self.workers[0] and self._on <= nodes)
        elif now_s >= self._ready_s:
            self._step(len(held), now_s)


def voyage(
    offers: tuple[Offer, ...],
    limits: Limits,
    work_h: float,
    deadline_s: float,
    workers: tuple[int, int],
    stated: float = 1.0,
    closed: Mapping[str, list[tuple[float, float]]] | None = None,
) -> Elastic:
    """`stated`: of the work that there is."""
    return Elastic(
        work_h,
        Contract(deadline_at_s=deadline_s, work_s=stated * work_h * H),
        workers=workers,
        offers=offers,
        closed=closed or {},
        settings=replace(SETTINGS, limits=limits),
    )


# --- on the loop ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stated", [1.0, 0.6])
def test_no_course_into_a_market_that_a_limit_closes(stated: float) -> None:
    """It was chosen for as long as there was slack, nothing was bought, and work that was understated came too late."""
    limits = Limits(rules=(Rule(Part(cloud="gcp"), max_nodes=0),))
    v = voyage((FOUR, DEAR), limits, 1.0, 2 * H, (1, 4), stated).run(2 * H)
    assert v.ended_s is not None
    assert v.ended_s < 1.1 * H
    assert not any("gcp" in choice for choice in v.choices)


def test_a_market_that_others_have_filled_is_left_alone() -> None:
    limits = Limits(rules=(Rule(Part(cloud="gcp"), max_nodes=1),))
    v = voyage((FOUR, replace(SPOT, price_uusd_per_h=400_000), DEAR), limits, 2.0, 4 * H, (4, 4))
    v.world.ray.submit({"CPU": 4.0, "GPU": 4.0}, 1, {"tradewind.io/cloud": "gcp"}, job_id="hog")
    for _ in range(3):  # the other one has its node before this one asks for its own
        v.world.loop.tick()
        v.world.clock.sleep(10)
    v.run(4 * H)
    assert v.ended_s is not None
    assert v.ended_s < 3 * H
    assert v.choices[-1].startswith(SPOT.market.key)


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("deadline_h", [1.15, 1.2])
def test_who_may_have_more_workers_is_no_worse_off(most: int, deadline_h: float) -> None:
    """$1.50 an hour pay for four workers on spot, and for one on demand: the net of a job of 1..4 is one."""
    limits = Limits(max_uusd_per_h=1_500_000)
    gone = {SPOT.market.key: [(1000.0, 9 * H)]}
    v = voyage((SPOT, DEAR), limits, 1.0, deadline_h * H, (1, most), closed=gone).run(3 * H)
    assert v.ended_s is not None
    assert v.ended_s <= deadline_h * H


def test_where_few_small_machines_are_too_late_large_ones_are_asked_for() -> None:
    """Two nodes: of the cheapest they hold two workers, and the promise was made for eight."""
    limits = Limits(max_nodes=2)
    v = voyage((DEAR, EIGHT_DEAR), limits, 2.0, 3000.0, (1, 8)).run(2 * H)
    assert v.choices[0] == "on demand x 8"
    assert [node.offer for node in v.world.fleet.nodes.values()] == [EIGHT_DEAR]
    assert v.ended_s is not None
    assert v.ended_s <= 3000.0
    slow = voyage((DEAR, EIGHT_DEAR), limits, 2.0, 3 * H, (1, 8)).run(3 * H)
    assert {node.offer for node in slow.world.fleet.nodes.values()} == {DEAR}, "with time enough the cheapest will do"


def test_who_is_late_is_as_fast_as_the_limits_allow() -> None:
    """On the cheapest on-demand machine there is room for two workers, on that and a small one for three."""
    two = make_offer("aws/us-east-1a/t2", usd_per_h=1.60, cpus=8, gpus=2, capacity=Capacity.ON_DEMAND)
    v = voyage((two, DEAR), Limits(max_uusd_per_h=2_700_000), 2.0, 0.5 * H, (1, 4)).run(600)
    assert len(v.world.fleet.nodes) == 2


@dataclass
class Purse(Unlimited):
    left: int = 0

    def left_uusd(self) -> Mapping[str, int]:
        return {JOB: self.left}


def test_limits_that_become_smaller_while_a_job_runs() -> None:
    """With a budget that does not pay for on-demand to the end: each look raised, so nothing was decided at all."""
    contract = Contract(deadline_at_s=2 * H, work_s=4 * H, budget_uusd=60 * USD)
    dear = replace(DEAR, price_uusd_per_h=3 * USD)
    spot = replace(SPOT, price_uusd_per_h=USD)
    v = Elastic(4.0, contract, workers=(1, 3), offers=(spot, dear), closed={spot.market.key: [(0, 800)]})
    v.world.loop.keep_within(Purse(60 * USD))
    v.run(700)
    assert len(v.cloud.alive()) == 3
    v.world.settings = replace(SETTINGS, limits=Limits(max_nodes=2))
    v.world.start()
    v.world.loop.keep_within(Purse(10 * USD))
    v.run(2000)
    assert v.done > 0


# --- the decision ---------------------------------------------------------------------------------------------------


def view(**changes: object) -> ContractView:
    """One replica has three hours of slack; four on spot are as cheap for the work."""
    values: dict[str, object] = {
        "now_s": 0.0,
        "work_left_s": 6 * H,
        "restart_s": 300.0,
        "tick_s": 60.0,
        "on_demand_key": "dear",
        "on_demand_uusd_per_h": 3 * USD,
        "deadline_at_s": 9 * H,
        "spot": (SpotMarket("spot", USD, is_open=True, age_h=5.0),),
        "speeds": (1.0, 2.0, 3.0, 4.0),
    }
    return ContractView(**{**values, **changes})  # type: ignore[arg-type]


def test_sizes_that_may_not_be_had_are_no_choice() -> None:
    few = view(spot=(SpotMarket("spot", USD, is_open=True, age_h=5.0, most=2),))
    sizes = {choice.replicas for choice in choices(few) if choice.capacity is Capacity.SPOT}
    assert sizes == {1, 2}
    sure = {choice.replicas for choice in choices(view(on_demand_most=3)) if choice.capacity is Capacity.ON_DEMAND}
    assert sure
    assert sure <= {1, 2, 3}
    spot = {choice.replicas for choice in choices(view(on_demand_most=3)) if choice.capacity is Capacity.SPOT}
    assert 4 in spot, "spot may have more than its net"
    with pytest.raises(ConfigError, match="on_demand_most"):
        view(on_demand_most=0)


def test_the_net_is_of_a_size_that_may_be_had() -> None:
    """Four on demand would leave slack to lose; one does not, so nobody waits, and nobody risks spot."""
    tight = view(deadline_at_s=6 * H + 330.0)
    assert decide(tight).choice.capacity is Capacity.SPOT
    assert decide(replace(tight, on_demand_most=1)).choice == replace(
        decide(replace(tight, on_demand_most=1)).choice, key="dear", replicas=1
    )


def test_who_is_at_a_size_that_is_too_late_is_asked_what_staying_costs_too() -> None:
    """Two on demand are no choice any more, three are: both nodes were given back for a gain of 1.5 %."""
    here = Running("dear", Capacity.ON_DEMAND, 2)
    wait, three = Choice("", None, 3, 2.74 * USD), Choice("dear", Capacity.ON_DEMAND, 3, 2.78 * USD)
    found = settled(ContractDecision(wait, "cheapest", 2 * H, (three,)), view(running=here))
    assert found.choice == three
    much = replace(wait, cost_uusd=1.0 * USD)
    assert settled(ContractDecision(much, "cheapest", 2 * H, (three,)), view(running=here)).choice == much
