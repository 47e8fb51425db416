"""The contract policy: what is learned, what the tables say, what is decided, and the safety net."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.contract import ContractView, Odds, Running, SpotMarket, Tally, Watch, decide
from tradewind.autoscaler.contract.induction import Terms, solve
from tradewind.autoscaler.contract.odds import PRIOR_PER_H, Sightings, odds_of
from tradewind.autoscaler.contract.outlook import chances, outlook
from tradewind.errors import ConfigError
from tradewind.model import Capacity

H = 3600.0
USD = 1_000_000


def view(deadline_h: float | None = 60.0, is_open: bool = True, **changes: object) -> ContractView:
    base = ContractView(
        now_s=0.0,
        work_left_s=48 * H,
        restart_s=0.1 * H,
        tick_s=300.0,
        on_demand_key="on-demand",
        on_demand_uusd_per_h=USD,
        deadline_at_s=None if deadline_h is None else deadline_h * H,
        spot=(SpotMarket("spot", 300_000, is_open),),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


ON_DEMAND = Running("on-demand", Capacity.ON_DEMAND)
SPOT = Running("spot", Capacity.SPOT)


def test_spells_are_counted_young_and_old() -> None:
    seen = Sightings()
    for hour, is_up in ((0.0, True), (1.0, True), (2.0, False), (2.5, False), (3.5, True), (3.6, False)):
        seen.see(hour * H, is_up)
    assert seen.tally.ends == (0, 1, 1, 1)  # none: young, old; some: young, old
    assert seen.tally.hours == pytest.approx((0.75, 0.75, 0.1, 2.0))
    assert seen.age_h(4.6 * H) == pytest.approx(1.0)


def test_a_clock_that_was_set_back_tells_of_no_time() -> None:
    seen = Sightings()
    for at_s in (10.0, 5.0):
        seen.see(at_s, True)
    assert sum(seen.tally.hours) == 0.0


def test_rates_start_from_the_prior_and_follow_what_was_seen() -> None:
    assert [Tally().rate_per_h(slot) for slot in range(4)] == pytest.approx(PRIOR_PER_H)
    much = Tally((100.0,) * 4, (500.0,) * 4)
    assert much.rate_per_h(3) == pytest.approx(5.0, rel=0.1)


def test_losses_that_met_an_open_market_are_counted() -> None:
    watch = Watch(["a", "b"])
    for at_s, flags in ((0, (True, True)), (1, (False, True)), (2, (False, False)), (3, (True, False))):
        watch.see(float(at_s), flags)
    assert watch.others == (2.0, 1.0)
    assert Watch(["a"]).others == ()
    assert odds_of(Tally(), Tally(), (100.0, 90.0)).other == pytest.approx(0.9)


def test_costs_fall_with_slack_and_lie_between_spot_and_on_demand() -> None:
    table = solve(Terms(Odds((1.0, 0.3), (1.0, 0.2)), 0.3, 0.1, 48.0, 24.0))
    for rows in (table.idle[1:], table.spot, table.without, table.beside):
        assert (rows[:-1] - rows[1:] >= -0.02 * rows[:-1] - 1e-9).all()
    assert (table.spot[:, :, 1:] >= 0.3 * 48.0 / 40 - 1e-9).all()
    assert (table.without <= table.without[0] + 1e-6).all()  # never dearer than on-demand to the end


@pytest.mark.parametrize(("loss", "back", "wanted_h"), [(1e-3, 3.0, 0.3 * 40), (3.0, 1e-3, 40.0)])
def test_the_extremes_are_known(loss: float, back: float, wanted_h: float) -> None:
    """Spot that is always there costs its price; without any, the job is done on demand."""
    table = solve(Terms(Odds((back, back), (loss, loss)), 0.3, 0.1, 48.0, 12.0))
    found = table.at(table.spot, True, 40.0, 10.0) if loss < 1 else table.on_demand_h(40.0, 10.0, False, True)
    assert found == pytest.approx(wanted_h, rel=0.05)


def test_the_table_and_the_plays_agree() -> None:
    """Two ways to the same figure: induction, and the mean of what happens. Rates in the table are rounded."""
    hours, ends = (1000.0,) * 4, (1000.0, 300.0, 1000.0, 200.0)
    known = Tally(hours, ends)
    asked = view(60.0, spot=(SpotMarket("spot", 300_000, True, seen=known),), together=known, on_demand_refusal=0.0)
    expected = decide(asked).choice.cost_uusd
    assert outlook(asked, plays=300).cost_uusd == pytest.approx(expected, rel=0.15)


def test_it_is_a_function_of_the_view() -> None:
    assert decide(view()) == decide(view())
    assert outlook(view(), 50, seed=3) == outlook(view(), 50, seed=3)


def test_spot_where_there_is_some_and_waiting_where_time_is_long() -> None:
    assert decide(view(60.0)).key == "spot"
    assert decide(view(200.0, is_open=False)).key == ""
    assert "waiting" in decide(view(200.0, is_open=False)).reason


def test_without_a_deadline_it_waits_for_spot() -> None:
    assert decide(view(None, is_open=False)).key == ""
    assert decide(view(None)).key == "spot"


def test_on_demand_when_the_slack_is_gone() -> None:
    found = decide(view(48.15, is_open=True))
    assert found.key == "on-demand"
    assert "safety net" in found.reason


def test_no_belief_switches_the_safety_net_off() -> None:
    """Even of a market that has been there for a thousand hours."""
    sure = Tally((0.0, 0.0, 0.0, 1000.0), (0.0, 0.0, 0.0, 0.0))
    market = SpotMarket("spot", 1000, True, 1000.0, sure)
    assert decide(view(48.15, spot=(market,), together=sure)).key == "on-demand"


def test_who_cannot_be_in_time_any_more_goes_on_where_he_is() -> None:
    assert decide(view(48.05, running=SPOT)).key == "spot"
    assert decide(view(48.05)).key == "on-demand"
    assert "late" in decide(view(48.05)).reason


def test_more_replicas_when_the_deadline_asks_for_them() -> None:
    speeds = (1.0, 1.8, 2.4, 2.8)
    assert decide(view(300.0, speeds=speeds)).choice.replicas == 1
    assert decide(view(24.0, speeds=speeds)).choice.replicas >= 3
    assert decide(view(30.0, speeds=speeds)).choice.replicas >= 2


def test_more_replicas_at_once_when_they_are_as_cheap_for_the_work() -> None:
    """Twice as fast for twice the money: slack is worth something."""
    assert decide(view(55.0, speeds=(1.0, 2.0))).choice.replicas == 2


def test_the_cheaper_of_two_open_markets() -> None:
    both = (SpotMarket("dear", 500_000, True), SpotMarket("cheap", 300_000, True))
    assert decide(view(60.0, spot=both, others=(0.0, 0.0))).key == "cheap"


def test_a_spent_budget_and_done_work_end_it() -> None:
    assert decide(view(budget_left_uusd=0)).reason == "the budget is spent"
    assert decide(view(work_left_s=0.0)).reason == "the work is done"


@pytest.mark.parametrize(
    "changes",
    [
        {"work_left_s": float("nan")},
        {"restart_s": -1.0},
        {"on_demand_uusd_per_h": 0},
        {"spot": (SpotMarket("spot", -5, True),)},
        {"speeds": ()},
    ],
)
def test_bad_input_is_an_error(changes: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        view(**changes)  # type: ignore[arg-type]


def test_chances_rise_with_the_budget() -> None:
    low, middle, high = chances(view(), [10.0 * USD, 25.0 * USD, 60.0 * USD], plays=100)
    assert low == 0.0
    assert low <= middle <= high == 1.0


def test_a_stock_out_of_on_demand_lowers_the_chance() -> None:
    sure = outlook(view(49.0, is_open=False, on_demand_refusal=0.0), 100)
    unsure = outlook(view(49.0, is_open=False, on_demand_refusal=0.5), 100)
    assert sure.deadline_chance == 1.0
    assert unsure.deadline_chance < 0.9


@settings(max_examples=40, deadline=None)
@given(
    flags=st.lists(st.booleans(), min_size=1, max_size=120),
    slack_ticks=st.integers(1, 40),
    restart_ticks=st.floats(0.0, 2.5),
    ends=st.floats(0.0, 100.0),
)
def test_the_deadline_is_kept_whatever_the_market_does(
    flags: list[bool], slack_ticks: int, restart_ticks: float, ends: float
) -> None:
    """Any availability, any belief, on demand always there: never late where on demand from the start is not."""
    tick_s = 600.0
    restart_s = restart_ticks * tick_s
    work_s = 20 * tick_s
    deadline_s = work_s + restart_s + slack_ticks * tick_s
    tally = Tally((10.0,) * 4, (ends,) * 4)
    running: Running | None = None
    left_s, now_s, tick = work_s, 0.0, 0
    while left_s > 1e-6:
        is_open = flags[tick % len(flags)]
        if running and running.capacity is Capacity.SPOT and not is_open:
            running = None
        found = decide(
            view(
                now_s=now_s,
                work_left_s=left_s,
                restart_s=restart_s,
                tick_s=tick_s,
                deadline_at_s=deadline_s,
                spot=(SpotMarket("spot", 300_000, is_open, seen=tally),),
                together=tally,
                running=running,
                reaction_s=0.0,
            )
        ).choice
        if not found.key:
            running = None
        elif running is None or running.key != found.key:
            assert found.capacity is not None
            running = Running(found.key, found.capacity, 1, restart_s)
        if running:
            lost_s = min(running.warming_s, tick_s)
            used_s = min(tick_s, lost_s + left_s)
            left_s -= used_s - lost_s
            running = replace(running, warming_s=running.warming_s - lost_s)
            finish_s = now_s + used_s
        now_s, tick = now_s + tick_s, tick + 1
        assert now_s <= deadline_s + tick_s
    assert finish_s <= deadline_s + 1e-3
