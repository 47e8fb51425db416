"""The contract policy: what is learned, what the tables say, what is decided, and the safety net."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tradewind.autoscaler.contract import ContractView, Odds, Running, SpotMarket, Tally, Watch, decide
from tradewind.autoscaler.contract.choices import Size
from tradewind.autoscaler.contract.induction import Terms, solve
from tradewind.autoscaler.contract.odds import HALF_LIFE_H, PRIOR_PER_H, Sightings, odds_of
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
    assert seen.tally.ends == pytest.approx((0, 1, 1, 1), rel=0.1)  # none: young, old; some: young, old
    assert seen.tally.hours == pytest.approx((0.75, 0.75, 0.1, 2.0), rel=0.1)  # they fade
    assert seen.age_h(4.6 * H) == pytest.approx(1.0)


def test_what_was_seen_long_ago_counts_less() -> None:
    seen = Sightings()
    for at_h in range(200):
        seen.see(at_h * H, at_h % 2 == 0)  # spells of an hour
    before = seen.tally
    for at_h in range(200, 200 + round(2 * HALF_LIFE_H)):
        seen.see(at_h * H, True)
    assert before.ends[3] > 10.0
    assert seen.tally.ends[3] == pytest.approx(before.ends[3] / 4.0, rel=0.02)
    assert seen.tally.rate_per_h(3) < before.rate_per_h(3) / 3.0


def watched(days: int, is_up: Callable[[int, int], bool]) -> Sightings:
    """Six looks an hour; up or not by hour of the day and number of the look."""
    seen = Sightings()
    for look in range(days * 144):
        seen.see(look * 600.0, is_up(look // 6 % 24, look))
    return seen


def test_hours_of_the_day_that_differ_are_learned() -> None:
    def is_up(hour: int, look: int) -> bool:
        return look % 2 == 0 if hour < 6 else look % 36 != 0

    wild = watched(21, is_up)
    wild.see(wild.at_s + 600.0, True)  # midnight
    assert wild.tally.daily[1] > 1.2
    for look in range(1, 48):
        wild.see(wild.at_s + 600.0, is_up((look // 6) % 24, look))
    assert wild.tally.daily[1] < 1.0
    assert Tally(daily=(1.0, 2.0)).rate_per_h(3) == pytest.approx(2.0 * PRIOR_PER_H[3])


def test_days_without_a_pattern_and_few_sightings_teach_no_hour() -> None:
    even = watched(21, lambda _hour, look: look % 9 != 0)
    assert even.tally.daily == pytest.approx((1.0, 1.0), abs=0.15)
    assert watched(1, lambda hour, look: hour > 5 or look % 2 == 0).tally.daily[1] == pytest.approx(1.0, abs=0.3)


def test_a_clock_that_was_set_back_tells_of_no_time() -> None:
    seen = Sightings()
    for at_s in (10.0, 5.0):
        seen.see(at_s, True)
    assert sum(seen.tally.hours) == 0.0


def test_rates_start_from_the_prior_and_follow_what_was_seen() -> None:
    assert [Tally().rate_per_h(slot) for slot in range(4)] == pytest.approx(PRIOR_PER_H)
    much = Tally((100.0,) * 4, (500.0,) * 4)
    assert much.rate_per_h(3) == pytest.approx(5.0, rel=0.1)


def test_all_markets_as_one_are_gone_only_when_each_is() -> None:
    watch = Watch(["a", "b"])
    for at_s, flags in ((0, (True, True)), (1, (False, True)), (2, (False, False)), (3, (True, False))):
        watch.see(float(at_s), flags)
    assert [sum(each.tally.ends) for each in watch.markets.values()] == pytest.approx([2.0, 1.0], rel=1e-3)
    assert sum(watch.any.tally.ends) == pytest.approx(2.0, rel=1e-3)  # once gone, once back
    assert watch.any.is_up


def test_all_markets_are_gone_as_often_as_was_seen() -> None:
    """Not as often as the markets would be by chance: they may be scarce together."""
    restless = Tally((0.0, 0.0, 100.0, 1000.0), (0.0, 0.0, 400.0, 1000.0))
    never_gone = Tally((0.0, 0.0, 0.0, 1000.0))
    often_gone = Tally((0.0, 0.0, 0.0, 1000.0), (0.0, 0.0, 0.0, 500.0))
    calm, hard = odds_of(never_gone, restless, 3), odds_of(often_gone, restless, 3)
    assert calm.loss_per_h == hard.loss_per_h == (4.0, 1.0)
    assert calm.gone_per_h is not None
    assert calm.gone_per_h[1] < 0.01
    assert hard.gone_per_h is not None
    assert hard.gone_per_h[1] == 0.5
    assert odds_of(often_gone, restless).gone_per_h is None  # one market: each loss is one of all


def test_a_market_is_not_calmer_than_all_together() -> None:
    """Of one that has been there for some hours little is known."""
    often_gone = Tally((0.0, 0.0, 0.0, 1000.0), (0.0, 0.0, 0.0, 500.0))
    assert odds_of(often_gone, Tally((0.0, 0.0, 0.0, 50.0)), 3).loss_per_h[1] == 0.5


def test_other_markets_are_worth_something_and_less_when_they_are_scarce_together() -> None:
    def cost_h(gone: tuple[float, float]) -> float:
        table = solve(Terms(Odds((1.0, 0.3), (1.0, 0.4), gone), 0.3, 0.1, 48.0, 12.0))
        return table.at(table.spot, True, 40.0, 6.0)

    costs = [cost_h(gone) for gone in ((0.1, 0.01), (0.5, 0.1), (0.8, 0.3), (1.0, 0.4))]
    assert costs == sorted(costs)
    assert costs[0] < 0.8 * costs[-1]
    alone = solve(Terms(Odds((1.0, 0.3), (1.0, 0.4)), 0.3, 0.1, 48.0, 12.0))
    assert costs[-1] == pytest.approx(alone.at(alone.spot, True, 40.0, 6.0))


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


@pytest.mark.parametrize(
    ("work_h", "slack_h", "restart_h"),
    [(48, 12, 0.1), (48, 12, 0.01), (48, 12, 0.0), (48, 3, 0.05), (48, 44, 0.2), (8, 2, 0.05), (200, 40, 0.1)],
)
def test_the_table_and_the_plays_agree(work_h: float, slack_h: float, restart_h: float) -> None:
    """Two ways to the same figure: induction, and the mean of what happens. Rates in the table are rounded."""
    hours, ends = (1000.0,) * 4, (1000.0, 350.0, 1000.0, 180.0)
    known = Tally(hours, ends)
    asked = view(
        work_h + slack_h,
        work_left_s=work_h * H,
        restart_s=restart_h * H,
        spot=(SpotMarket("spot", 300_000, True, seen=known),),
        together=known,
        on_demand_refusal=0.0,
    )
    expected = decide(asked).choice.cost_uusd
    assert outlook(asked, plays=150).cost_uusd == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("gone", [20.0, 100.0])
def test_the_table_and_the_plays_agree_with_several_markets(gone: float) -> None:
    hours = (1000.0,) * 4
    each, all_of_them = Tally(hours, (1000.0, 350.0, 1000.0, 180.0)), Tally(hours, (1000.0, 350.0, 500.0, gone))
    spot = tuple(SpotMarket(key, 300_000, True, seen=each) for key in "abc")
    asked = view(60.0, spot=spot, together=all_of_them, on_demand_refusal=0.0)
    expected = decide(asked).choice.cost_uusd
    assert outlook(asked, plays=150).cost_uusd == pytest.approx(expected, rel=0.15)


def test_outages_of_other_days_may_be_longer() -> None:
    """Ten outages of two hours do not make sure that the next ones are no longer; thousands do. If ten counted as in a
    Poisson process, the high end would lie within 1 %."""

    def high_uusd(outages: float) -> int:
        seen = Tally((4000.0, 2.0 * outages, 4000.0, 4000.0), (4800.0, outages, 4000.0, 1000.0))
        return outlook(
            view(100.0, spot=(SpotMarket("spot", 300_000, True, seen=seen),), together=seen)
        ).cost_range_uusd[1]

    assert high_uusd(10.0) > 1.08 * high_uusd(4000.0)


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


@pytest.mark.parametrize("deadline_h", [60.0, None])
@pytest.mark.parametrize("spot", [(), (SpotMarket("spot", USD, False),), (SpotMarket("spot", 2 * USD, False),)])
def test_nobody_waits_for_spot_that_is_not_cheaper(spot: tuple[SpotMarket, ...], deadline_h: float | None) -> None:
    assert decide(view(deadline_h, spot=spot)).key == "on-demand"


def test_spot_that_is_dearer_is_left_alone() -> None:
    assert decide(view(60.0, spot=(SpotMarket("spot", 2 * USD, True),))).key == "on-demand"


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


def expected_uusd(asked: ContractView, replicas: int) -> float:
    return min((choice.cost_uusd for choice in Size(asked, replicas).choices()), default=float("inf"))


@pytest.mark.parametrize("power", [0.7, 0.85, 1.0])
@pytest.mark.parametrize("deadline_h", [3.0, 6.0, 30.0])
def test_of_many_sizes_the_search_finds_one_that_is_nearly_the_best(deadline_h: float, power: float) -> None:
    asked = view(deadline_h, speeds=tuple(float(number) ** power for number in range(1, 65)))
    best = min(expected_uusd(asked, replicas) for replicas in range(1, 65))
    assert decide(asked).choice.cost_uusd <= 1.05 * best


def test_sizes_below_the_least_are_never_taken() -> None:
    speeds = (1e-9, 1e-9, 3.0, 4.0)
    for deadline_h in (60.0, None):
        assert decide(view(deadline_h, speeds=speeds)).choice.replicas >= 3


def test_of_equal_prices_the_market_that_is_lost_less_often() -> None:
    calm, wild = Tally((0.0, 0.0, 10.0, 90.0), (0.0,) * 4), Tally((0.0, 0.0, 10.0, 90.0), (0.0, 0.0, 30.0, 90.0))
    found = (SpotMarket("wild", 300_000, True, 9.0, wild), SpotMarket("calm", 300_000, True, 5.0, calm))
    many = tuple(SpotMarket(f"wild-{number}", 300_000, True, 9.0, wild) for number in range(20))
    assert decide(view(60.0, spot=(*many, *found))).key == "calm"


def test_who_is_on_spot_moves_for_a_lower_price_alone() -> None:
    """A loss that may come costs no more than the move would now."""
    calm, wild = Tally((0.0, 0.0, 10.0, 90.0), (0.0,) * 4), Tally((0.0, 0.0, 10.0, 90.0), (0.0, 0.0, 30.0, 90.0))

    def key(price_uusd: int) -> str:
        spot = (SpotMarket("wild", 300_000, True, 9.0, wild), SpotMarket("calm", price_uusd, True, 9.0, calm))
        return decide(view(60.0, spot=spot, running=Running("wild", Capacity.SPOT))).key

    assert [key(300_000), key(150_000)] == ["wild", "calm"]


def test_staying_is_among_what_was_looked_at() -> None:
    """Whoever asks whether a move is worth it needs its cost, however many choices are cheaper."""
    spot = tuple(SpotMarket(key, 300_000, True) for key in "abc")
    running = Running("on-demand", Capacity.ON_DEMAND, 4)
    found = decide(view(30.0, spot=spot, running=running, speeds=(1.0, 1.8, 2.4, 2.8)))
    assert found.choice.capacity is Capacity.SPOT
    assert ("on-demand", 4) in [(choice.key, choice.replicas) for choice in found.beaten]
    costs = [choice.cost_uusd for choice in found.beaten]
    assert costs == sorted(costs)


def test_the_cheaper_of_two_open_markets() -> None:
    both = (SpotMarket("dear", 500_000, True), SpotMarket("cheap", 300_000, True))
    assert decide(view(60.0, spot=both)).key == "cheap"


def test_a_spent_budget_and_done_work_end_it() -> None:
    assert decide(view(budget_left_uusd=0)).reason == "the budget is spent"
    assert decide(view(work_left_s=0.0)).reason == "the work is done"


@pytest.mark.parametrize(
    "changes",
    [
        {"work_left_s": float("nan")},
        {"deadline_at_s": float("nan")},
        {"speeds": (1.0, float("nan"))},
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


def test_a_deadline_that_is_over_cannot_be_kept_and_the_work_still_costs() -> None:
    found = outlook(view(-5.0, on_demand_refusal=0.0), 50)
    assert (found.chance, found.deadline_chance) == (0.0, 0.0)
    assert found.finish_s >= 48 * H
    assert found.cost_uusd >= 48 * 300_000


def test_a_stock_out_of_on_demand_lowers_the_chance() -> None:
    sure = outlook(view(49.0, is_open=False, on_demand_refusal=0.0), 100)
    unsure = outlook(view(49.0, is_open=False, on_demand_refusal=0.5), 100)
    assert sure.deadline_chance == 1.0
    assert unsure.deadline_chance < 0.9
