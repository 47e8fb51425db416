"""Budgets: never passed where there was a way to keep them, without a say where they are ample, and what gives way."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_contract_net import CASES, TICK_S, USD, Case, played
from test_contract_policy import ON_DEMAND, SPOT, H, view

from tradewind.autoscaler.contract import Running, SpotMarket, decide
from tradewind.autoscaler.contract.outlook import outlook
from tradewind.autoscaler.contract.view import Aim
from tradewind.model import Capacity

ROUNDING_UUSD = 100.0  # budgets are whole micro-dollars at each tick


# --- laws -----------------------------------------------------------------------------------------------------------


def sure_uusd(case: Case, work_s: float, size: int) -> float:
    """On demand from the first tick to the end."""
    return (work_s / case.speeds[size - 1] + case.restart_ticks * TICK_S) * size * USD / 3600.0


def shortest_s(case: Case, work_s: float, size: int) -> float:
    return work_s / case.speeds[size - 1] + case.restart_ticks * TICK_S


@settings(max_examples=40, deadline=None)
@given(CASES, st.floats(0.0, 0.5), st.integers(1, 4))
@example(Case([(True, True), (False, False)], 3.0, 0.3, 0.0, (1.0, 0.5, 2.0), False, 0.05), 0.0, 1)
@example(Case([(True, False), (False, True)], 9.0, 2.5, 0.0, (1.0, 1.9), False, 0.9), 0.05, 2)
@example(Case([(True, True)], 30.0, 1.0, 0.0, (1.0, 1.2, 1.3), False, 0.95), 0.1, 1)  # more replicas are dearer
def test_both_are_kept_where_on_demand_from_the_start_would_keep_them(case: Case, more: float, size: int) -> None:
    """Whatever the markets do: the size in question pays for itself, is in time, and is not told to the policy."""
    size = min(size, len(case.speeds))
    work_s = case.work_ticks * TICK_S
    deadline_s = shortest_s(case, work_s, size) + case.slack_ticks * TICK_S
    budget_uusd = sure_uusd(case, work_s, size) * (1.0 + more) + ROUNDING_UUSD
    end = played(case, work_s, deadline_s, budget_uusd)
    assert end.finish_s <= deadline_s + 0.1
    assert end.spent_uusd <= budget_uusd + ROUNDING_UUSD
    assert {decision.aim for decision in end.decisions} == {Aim.SURE}


@settings(max_examples=25, deadline=None)
@given(CASES, st.booleans())
def test_a_budget_for_spot_alone_is_enough_where_spot_comes_again_and_again(case: Case, has_deadline: bool) -> None:
    """It pays for the work on spot and for each restart there is, not for on-demand: the job is done, late perhaps."""
    case = replace(case, flags=[*case.flags, *[(True, True)] * 9], speeds=(1.0,), price=min(case.price, 0.5))
    work_s, restart_s = case.work_ticks * TICK_S, case.restart_ticks * TICK_S
    most = 1.0 + math.ceil(work_s / (9 * TICK_S - restart_s - TICK_S)) * (len(case.flags) / 2.0)
    budget_uusd = round(case.price * USD) * (work_s + most * max(restart_s, TICK_S)) / 3600.0 + ROUNDING_UUSD
    deadline_s = shortest_s(case, work_s, 1) + case.slack_ticks * TICK_S
    asked = replace(case, is_sudden=False)
    if has_deadline and budget_uusd < sure_uusd(case, work_s, 1):
        spent_uusd = _until_done(asked, work_s, deadline_s, budget_uusd)
    else:
        spent_uusd = played(asked, work_s, None, budget_uusd).spent_uusd
    assert spent_uusd <= budget_uusd + ROUNDING_UUSD


def _until_done(case: Case, work_s: float, deadline_s: float, budget_uusd: float) -> float:
    """A deadline that has passed is no end: it goes on within its budget."""
    try:
        return played(case, work_s, deadline_s, budget_uusd).spent_uusd
    except AssertionError:
        return played(case, work_s, None, budget_uusd).spent_uusd


@settings(max_examples=20, deadline=None)
@given(CASES)
def test_an_ample_budget_changes_nothing(case: Case) -> None:
    work_s = case.work_ticks * TICK_S
    deadline_s = shortest_s(case, work_s, len(case.speeds)) + case.slack_ticks * TICK_S
    ample = 50.0 * USD * len(case.speeds) * (work_s + deadline_s + H) / 3600.0
    with_it, without = played(case, work_s, deadline_s, ample), played(case, work_s, deadline_s)
    assert with_it.decisions == without.decisions


# --- what is chosen -------------------------------------------------------------------------------------------------


def test_on_demand_that_is_just_paid_is_not_risked_for_spot() -> None:
    """48 h and one start are paid. A spot machine that is lost would cost the budget; with a little more, it may."""
    just, more = round(48.1 * USD), round(48.5 * USD)
    assert decide(view(90.0, budget_left_uusd=just)).key == "on-demand"
    assert decide(view(90.0, budget_left_uusd=more)).key == "spot"
    assert decide(view(90.0)).key == "spot"


def test_without_a_deadline_it_waits_for_spot_that_its_budget_pays() -> None:
    found = decide(view(None, is_open=False, budget_left_uusd=20 * USD))
    assert (found.key, found.aim) == ("", Aim.BUDGET)
    assert "only spot is paid by that" in found.reason
    assert decide(view(None, running=ON_DEMAND, is_open=False, budget_left_uusd=20 * USD)).key == ""


def test_a_dear_market_is_left_alone_where_only_a_cheap_one_is_paid() -> None:
    dear, cheap = SpotMarket("dear", 600_000, True), SpotMarket("cheap", 300_000, False)
    for deadline_h in (None, 300.0):
        asked = view(deadline_h, spot=(dear, cheap))
        assert decide(asked).key == "dear"
        assert decide(replace(asked, budget_left_uusd=20 * USD)).key == ""
        here = replace(asked, budget_left_uusd=20 * USD, running=Running("dear", Capacity.SPOT))
        assert decide(here).key == "", "what cannot be paid to the end is left"
        assert decide(replace(asked, budget_left_uusd=40 * USD)).key == "dear"


def test_more_replicas_only_where_they_are_paid() -> None:
    """Three replicas would be in time for twice the money; there is enough for one alone."""
    asked = view(28.4, speeds=(1.0, 1.4, 1.7), is_open=False)
    assert decide(asked).choice.replicas == 3
    short = decide(replace(asked, budget_left_uusd=round(48.2 * USD)))
    assert short.aim is Aim.BUDGET
    assert short.choice.replicas == 1


def test_a_deadline_that_is_not_paid_gives_way_and_it_is_said() -> None:
    """No slack, no spot, and money for half of it on demand: spent there it would bring nothing."""
    found = decide(view(48.15, is_open=False, budget_left_uusd=24 * USD))
    assert (found.key, found.aim) == ("", Aim.BUDGET)
    assert "gives way to the budget" in found.reason
    assert math.isinf(found.slack_s)
    stays = decide(view(48.05, running=SPOT, budget_left_uusd=24 * USD))
    assert stays.key == "spot", "on spot it may even be in time"


def test_both_are_tried_while_they_are_possible() -> None:
    """On demand to the end is not paid. With time to leave it again it is a bridge, and spot is taken when it comes."""
    asked = view(52.0, is_open=False, budget_left_uusd=40 * USD)
    assert decide(asked).aim is Aim.POSSIBLE
    assert decide(view(52.0, budget_left_uusd=40 * USD)).key == "spot"
    assert "on demand alone would pass" in decide(asked).reason


def test_a_budget_below_every_price_goes_as_far_as_it_pays() -> None:
    found = decide(view(60.0, budget_left_uusd=10 * USD))
    assert (found.key, found.aim) == ("spot", Aim.SHORT)
    assert "as far as that pays" in found.reason
    assert decide(view(60.0, spot=(), budget_left_uusd=10 * USD)).key == "on-demand"


def test_who_is_late_and_paid_goes_on_as_fast_as_he_can() -> None:
    found = decide(view(40.0, budget_left_uusd=100 * USD))
    assert (found.key, found.aim) == ("on-demand", Aim.LATE)


# --- what is said ---------------------------------------------------------------------------------------------------


def test_chances_rise_with_the_budget_and_an_ample_one_is_as_none() -> None:
    asked = view(60.0, is_open=False)
    found = [outlook(replace(asked, budget_left_uusd=usd * USD), 150) for usd in (10, 18, 25, 35, 60)]
    assert [each.chance for each in found] == sorted(each.chance for each in found)
    assert (found[0].chance, found[0].budget_chance) == (0.0, 0.0)
    assert found[-1] == outlook(asked, 150)
    assert all(each.budget_chance >= each.chance for each in found)
    assert all(each.cost_range_uusd[1] <= usd * USD for each, usd in zip(found, (10, 18, 25, 35, 60), strict=True))


def test_a_hopeless_deadline_says_so_and_the_budget_is_kept() -> None:
    """Money for spot alone, and next to no slack."""
    found = outlook(view(49.0, is_open=False, budget_left_uusd=17 * USD), 150)
    assert found.chance < 0.1
    assert found.budget_chance > 0.6
    assert found.finish_range_s[1] > 49 * H


@pytest.mark.parametrize("budget_usd", [16, 20])
def test_a_budget_alone_is_kept_by_waiting(budget_usd: int) -> None:
    found = outlook(view(None, is_open=False, budget_left_uusd=budget_usd * USD), 100)
    assert found.cost_range_uusd[1] <= budget_usd * USD
    assert found.chance == found.budget_chance
    assert found.budget_chance > 0.5
