"""Budgets: who may buy, who must stop, and that no number of submissions at once passes a limit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.cost.budget import HORIZON_S, RESERVE_S, Budgets, Purse, Purses, Scope, notices_of, purses
from tradewind.cost.ledger import Ledger
from tradewind.cost.outlook import Forecast
from tradewind.events import (
    AnyEvent,
    BudgetChanged,
    DecisionRecorded,
    HoldingChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
)
from tradewind.model import Capacity, Contract, EndReason, JobSpec, Market, Offer

History = Any  # the builder of conftest.py
OFFER = Offer(Market("azure", "r", "z", "t", Capacity.SPOT), 4.0, 16.0, "T4", 1.0, 1, 3_600_000, 7_200_000)
HOUR_UUSD = 3_600_000


def purse(limit: int, spent: int = 0, rate: int = 0, scope: Scope = Scope.JOB, name: str = "j") -> Purse:
    return Purse(scope, name, limit, spent, rate)


def test_a_purchase_must_be_paid_for_a_while() -> None:
    needed = round(HOUR_UUSD * HORIZON_S / 3600)
    assert Purses([purse(needed)], {"j": "t"}).admit(OFFER, ["j"]) == ""
    why = Purses([purse(needed - 1)], {"j": "t"}).admit(OFFER, ["j"])
    assert why.startswith("the budget of job j, $")


def test_who_is_refused_is_told_the_rule_the_amount_and_the_remedy() -> None:
    one = purse(100_000)
    assert one.why_short(HOUR_UUSD) == (
        "the budget of job j, $0.10, does not pay for 10 minutes of a machine at $3.60/h: $0.60 are needed, "
        "$0.10 are left; raise it with `tradewind resume j --budget +0.50`"
    )
    assert "of what it has to pay for, and of one more machine" in replace(one, rate_uusd_per_h=1).why_short(HOUR_UUSD)
    fleet = purse(100_000, scope=Scope.FLEET, name="")
    assert fleet.why_short(HOUR_UUSD).endswith("raise it in the fleet file, under `budgets`")
    asked_uusd = one.needs_uusd(HOUR_UUSD)
    assert not purse(asked_uusd).is_short(HOUR_UUSD)
    assert purse(asked_uusd - 1).is_short(HOUR_UUSD)


def test_a_budget_that_is_needed_for_what_runs_is_not_called_used() -> None:
    told = Purses([purse(240_000, rate=HOUR_UUSD)], {"j": "t"}).closed()["j"]
    assert told == (
        "the budget of job j, $0.24, pays for nothing more: 10 minutes of what it has to pay for cost $0.60, "
        "$0.24 are left; raise it with `tradewind resume j --budget +0.36`"
    )


def test_what_is_admitted_counts_at_once() -> None:
    three = Purses([purse(round(3.5 * HOUR_UUSD * HORIZON_S / 3600))], {"j": "t"})
    assert [bool(three.admit(OFFER, ["j"])) for _ in range(5)] == [False, False, False, True, True]


def test_tenant_and_fleet_pay_too_and_nobody_in_particular_means_everybody() -> None:
    poor, rich = purse(10, scope=Scope.TENANT, name="poor"), purse(10**9, scope=Scope.TENANT, name="rich")
    jobs = {"a": "poor", "b": "rich"}
    assert "tenant poor" in Purses([poor, rich], jobs).admit(OFFER, ["a"])
    assert Purses([poor, rich], jobs).admit(OFFER, ["b"]) == ""
    assert Purses([poor, rich], jobs).admit(OFFER, ["a", "b"]) == ""  # b pays
    assert "tenant poor" in Purses([poor, rich], jobs).admit(OFFER, [])
    assert "the fleet" in Purses([purse(10, scope=Scope.FLEET, name="")], jobs).admit(OFFER, ["b"])


def test_without_a_price_nothing_is_bought_on_a_budget() -> None:
    unknown = replace(OFFER, price_uusd_per_h=None)
    assert "no price is known" in Purses([purse(10**9)], {"j": "t"}).admit(unknown, ["j"])
    assert Purses([], {"j": "t"}).admit(unknown, ["j"]) == ""


def test_a_job_stops_while_its_stopping_can_be_paid() -> None:
    reserve = round(HOUR_UUSD * RESERVE_S / 3600)
    assert not purse(1_000_000, 1_000_000 - reserve, HOUR_UUSD).must_stop
    assert purse(1_000_000, 1_000_000 - reserve + 1, HOUR_UUSD).must_stop
    assert purse(1_000_000, 1_000_000, 0).must_stop
    assert purse(1_000_000, 1_000_000 - reserve, HOUR_UUSD).spendable_uusd == 0, "what is planned with ends at the stop"
    stopped = Purses([purse(100, 100)], {"j": "t", "k": "t"}).must_stop()
    assert list(stopped) == ["j"]
    assert "tradewind resume j --budget +20" in stopped["j"]
    assert list(Purses([purse(100, 100, scope=Scope.FLEET, name="")], {"j": "t", "k": "t"}).must_stop()) == ["j", "k"]


def test_people_are_told_at_the_marks_and_of_the_forecast() -> None:
    def keys(spent: int) -> list[str]:
        return [notice.key for notice in notices_of(purse(100, spent))]

    assert [keys(spent) for spent in (49, 50, 79, 80, 95, 100)] == [[], ["50%"], ["50%"], ["80%"], ["95%"], ["95%"]]
    told = notices_of(replace(purse(100, 10), forecast=Forecast(120, 110, 130, 0.0, 1)))
    assert [notice.key for notice in told] == ["forecast"]
    assert notices_of(replace(purse(100, 10), forecast=Forecast(90, 80, 130, 0.0, 1))) == []


# --- read off the ledger ----------------------------------------------------------------------------------------------


def submitted(job_id: str, tenant: str = "t", budget_uusd: int | None = None) -> JobSubmitted:
    spec = JobSpec(name=job_id, entrypoint="x", tenant=tenant, contract=Contract(budget_uusd=budget_uusd))
    return JobSubmitted(at_s=0.0, job_id=job_id, spec=spec)


def bought(name: str, at_s: float, *jobs: str) -> Iterable[AnyEvent]:
    yield LaunchRequested(at_s=at_s, launch_id=name, offer=OFFER, reason="")
    yield DecisionRecorded(at_s=at_s, action="launch", subject=name, reason="", jobs=jobs)


def found(ledger: Ledger, budgets: Budgets, jobs: dict[str, str], now_s: float) -> dict[str, tuple[int, int, int]]:
    everything = purses(ledger, budgets, jobs, now_s).all
    return {each.name: (each.limit_uusd, each.spent_uusd, each.rate_uusd_per_h) for each in everything}


def test_spending_and_rates_come_from_the_ledger() -> None:
    ledger = Ledger.fold([submitted("a", "x", 50), submitted("b", "y"), *bought("n", 0.0, "a"), *bought("m", 0.0, "b")])
    jobs, budgets = {"a": "x", "b": "y"}, Budgets(1000, {"*": 500})
    one, two = HOUR_UUSD, 2 * HOUR_UUSD  # on their way
    before = found(ledger, budgets, jobs, 1.0)
    assert before.pop("") == (1000, 0, two)
    assert before == {"a": (50, 0, one), "x": (500, 0, one), "y": (500, 0, one)}
    ledger.apply(LaunchRefused(at_s=1.0, launch_id="m", error="Stockout", message="", scope="zone", block_s=1.0))
    ledger.apply(NodeLaunched(at_s=2.0, launch_id="n", instance_id="i"))
    ledger.apply(NodeJoined(at_s=3.0, launch_id="n", ray_node_id="r"))
    ledger.apply(HoldingChanged(at_s=3.0, job_id="a", launch_id="n", resources={"GPU": 0.5}))
    after = found(ledger, budgets, jobs, 5.0)
    assert after.pop("") == (1000, 3000, HOUR_UUSD)
    assert after == {"a": (50, 1000, 1_800_000), "x": (500, 1000, 1_800_000), "y": (500, 0, 0)}
    ledger.apply(BudgetChanged(at_s=5.0, job_id="a", budget_uusd=9_999_999))
    assert found(ledger, budgets, jobs, 5.0)["a"][0] == 9_999_999


def test_months_begin_anew() -> None:
    day_s, january = 86_400.0, 31 * 86_400.0
    events = [submitted("a", "x"), *bought("n", january - day_s, "a")]
    events.append(NodeLaunched(at_s=january - day_s, launch_id="n", instance_id="i"))
    events.append(HoldingChanged(at_s=january - day_s, job_id="a", launch_id="n", resources={"GPU": 1.0}))
    ledger, budgets = Ledger.fold(events), Budgets(tenants_uusd={"x": 10**9}, monthly=True)
    spent = [found(ledger, budgets, {"a": "x"}, at_s)["x"][1] for at_s in (january - 1.0, january + 3600.0)]
    assert spent == [86_399_000, 3_600_000]
    assert found(ledger, replace(budgets, monthly=False), {"a": "x"}, january + 3600.0)["x"][1] == 90_000_000


# --- never passed -----------------------------------------------------------------------------------------------------


class Fleet:
    """Ticks of a fleet whose jobs always want more: what is admitted is launched and held at once, what must stop is
    gone `stop_s` later."""

    def __init__(self, budgets: Budgets, jobs: dict[str, int | None], stop_s: float) -> None:
        self.ledger, self.budgets, self.stop_s = Ledger(minimum_ms={}), budgets, stop_s
        self.jobs = dict.fromkeys(jobs, "t")
        self.nodes: dict[str, list[str]] = {job_id: [] for job_id in jobs}
        self.ends_s: dict[str, float] = {}
        for job_id, budget_uusd in jobs.items():
            self.ledger.apply(submitted(job_id, "t", budget_uusd))

    def tick(self, now_s: float) -> None:
        for job_id in [job_id for job_id, end_s in self.ends_s.items() if end_s <= now_s]:
            for name in self.nodes.pop(job_id):
                self.ledger.apply(NodeGone(at_s=self.ends_s[job_id], launch_id=name, end=EndReason.TERMINATED))
            del self.ends_s[job_id], self.jobs[job_id]
        look = purses(self.ledger, self.budgets, self.jobs, now_s)
        for job_id in look.must_stop():
            self.ends_s.setdefault(job_id, now_s + self.stop_s)
        for job_id in self.jobs:
            if job_id not in self.ends_s and len(self.nodes[job_id]) < 5 and not look.admit(OFFER, [job_id]):
                self.launch(job_id, now_s)

    def launch(self, job_id: str, now_s: float) -> None:
        name = f"{job_id}-{len(self.nodes[job_id])}"
        self.nodes[job_id].append(name)
        for event in (
            *bought(name, now_s, job_id),
            NodeLaunched(at_s=now_s, launch_id=name, instance_id=name),
            HoldingChanged(at_s=now_s, job_id=job_id, launch_id=name, resources={"GPU": 1.0}),
        ):
            self.ledger.apply(event)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.none() | st.integers(1, HOUR_UUSD), min_size=1, max_size=4),
    st.none() | st.integers(1, 2 * HOUR_UUSD),
    st.none() | st.integers(1, 2 * HOUR_UUSD),
    st.floats(1.0, 60.0),
)
def test_no_budget_is_ever_passed(
    jobs: list[int | None], tenant_uusd: int | None, fleet_uusd: int | None, tick_s: float
) -> None:
    """Whatever the ticks, if a stop takes no longer than the reserve lasts, less the tick in which it is noticed."""
    budgets = Budgets(fleet_uusd, {"t": tenant_uusd} if tenant_uusd else {})
    named = {f"j{i}": budget_uusd for i, budget_uusd in enumerate(jobs)}
    world = Fleet(budgets, named, RESERVE_S - tick_s)
    for number in range(100):
        world.tick(number * tick_s)
        spent = {job_id: world.ledger.job_cost(job_id, number * tick_s) for job_id in named}
        assert all(spent[job_id] <= limit for job_id, limit in named.items() if limit is not None)
        assert all(sum(spent.values()) <= limit for limit in (tenant_uusd, fleet_uusd) if limit is not None)


def test_what_can_be_spent_is_what_is_left_before_the_stop() -> None:
    purse = Purse(Scope.JOB, "j", 10_000_000, 0, 10_800_000, reserve_s=600.0)
    assert purse.spendable_uusd == 8_200_000
    assert replace(purse, spent_uusd=8_200_001).must_stop
    assert not replace(purse, spent_uusd=8_200_000).must_stop
