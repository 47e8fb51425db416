"""What the price and the hour tell of a spot market: learned from its own past, none where there is none."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from contract_world import DEAR, SPOT
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.contract import Sightings, SpotMarket, Tally, Watch, decide
from tradewind.autoscaler.contract.odds import PRIOR_PER_H
from tradewind.autoscaler.contract.signs import PriceSign
from tradewind.autoscaler.contract.view import ContractView
from tradewind.autoscaler.contract.watching import watch_of
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.quotes import QUOTES_KEPT_S
from tradewind.autoscaler.sightings import Spells
from tradewind.events import ClockJumped, PriceChanged

H = 3600.0
LOOK_S = 600.0


def watched(slope: float, days: int = 30, seed: int = 3) -> Sightings:
    """Prices of 0.9 and 1.1 by turns, half a day each; at the higher one spells with machines end exp(slope) times as
    often as usual, at the lower one as rarely."""
    seen, dice, is_up = Sightings(), random.Random(seed), True
    for look in range(round(days * 86400 / LOOK_S)):
        at_s = look * LOOK_S
        is_dear = int(at_s // (12 * H)) % 2 == 1
        seen.priced(at_s, 1.1 if is_dear else 0.9)
        rate_per_h = 0.3 * math.exp(slope if is_dear else -slope) if is_up else 1.0
        is_up ^= dice.random() < 1.0 - math.exp(-rate_per_h * LOOK_S / H)
        seen.see(at_s, is_up)
    return seen


@pytest.mark.parametrize("slope", [1.0, -1.0])
def test_what_a_price_tells_is_learned_whichever_way_it_points(slope: float) -> None:
    seen = watched(slope)
    seen.priced(seen.at_s, 1.1)
    dear = seen.tally.priced[1]
    seen.priced(seen.at_s, 0.9)
    cheap = seen.tally.priced[1]
    assert (dear > 1.3 and cheap < 0.77) if slope > 0 else (dear < 0.77 and cheap > 1.3)
    assert seen.tally.rate_per_h(3) == pytest.approx(
        Tally(seen.tally.hours, seen.tally.ends, seen.tally.daily).rate_per_h(3) * cheap
    )


@pytest.mark.parametrize("seed", range(5))
def test_prices_that_tell_nothing_teach_next_to_nothing(seed: int) -> None:
    seen = watched(0.0, seed=seed)
    seen.priced(seen.at_s, 1.1)
    assert seen.tally.priced == pytest.approx((1.0, 1.0), abs=0.25)


def test_a_restless_market_is_not_blamed_on_its_price() -> None:
    """Ends come five times as often as the prior has it, at a price that never falls back."""
    seen = Sightings()
    for look in range(600):
        seen.priced(look * LOOK_S, 1.0 + 0.002 * look)
        seen.see(look * LOOK_S, look % 4 != 0)
    assert seen.tally.priced == pytest.approx((1.0, 1.0), abs=0.3)


def test_a_price_that_stays_becomes_the_usual_one() -> None:
    sign = PriceSign()
    sign.tell(0.0, 1.0)
    assert sign.distance == 0.0
    sign.tell(H, 1.1)
    assert sign.distance == 2.0, "no price is farther away than two scatters"
    sign.advance(30 * 24 * H)
    assert 0.0 <= sign.distance < 0.01
    sign.advance(5.0)  # a clock that was set back
    assert 0.0 <= sign.distance < 0.01


@given(st.lists(st.tuples(st.floats(-50, 500), st.floats(0.001, 1000.0), st.booleans()), max_size=60))
def test_no_history_makes_ends_more_than_four_times_as_frequent_or_rare(told: list[tuple[float, float, bool]]) -> None:
    seen, at_s = Sightings(), 0.0
    for hours, price, is_up in told:
        at_s += hours * H
        seen.priced(at_s, price)
        seen.see(at_s, is_up)
    assert all(0.249 < factor < 4.001 for factor in seen.tally.priced)
    assert all(0.0 < seen.tally.rate_per_h(index) < math.inf for index in range(4))


def test_hours_are_learned_from_spells_that_were_seen_at_their_ends_alone() -> None:
    """As the log tells them: a node came, and was taken. Here always at six in the evening."""
    seen = Sightings()
    for day in range(40):
        for hour, is_up in ((18.0, False), (19.0, True)):
            seen.see((24 * day + hour) * H, is_up)
    seen.see((24 * 40 + 17) * H, True)
    evening = seen.tally.daily[1]
    seen.see((24 * 40 + 17.9) * H, True)
    seen.see((24 * 40 + 18) * H, False)
    seen.see((24 * 40 + 23) * H, True)
    assert evening > 1.1 > 0.9 > seen.tally.daily[1]


@given(st.lists(st.tuples(st.floats(0.01, 30), st.booleans()), min_size=1, max_size=20), st.floats(0.05, 0.95))
def test_how_often_it_is_looked_at_does_not_matter(told: list[tuple[float, bool]], share: float) -> None:
    seldom, often, at_s = Sightings(), Sightings(), 0.0
    for hours, is_up in told:
        if often.is_up is not None:
            often.see(at_s + share * hours * H, often.is_up)
        at_s += hours * H
        seldom.see(at_s, is_up)
        often.see(at_s, is_up)
    assert seldom.tally.hours == pytest.approx(often.tally.hours, abs=1e-9)
    assert seldom.tally.ends == pytest.approx(often.tally.ends, abs=1e-9)
    assert seldom.tally.daily == pytest.approx(often.tally.daily, rel=0.02)


def test_a_long_calm_spell_is_not_counted_twice() -> None:
    """It makes the rate small; the hours and a price that rose once have no part in it."""
    seen = Sightings()
    seen.see(0.0, True)
    seen.priced(0.0, 1.0)
    seen.priced(24 * H, 1.1)
    seen.see(13 * 24 * H, True)
    assert seen.tally.priced[1] > 0.9
    assert seen.tally.daily[1] > 0.95


def test_a_look_after_weeks_tells_of_no_hour() -> None:
    seen = Sightings()
    seen.see(0.0, True)
    seen.see(400 * H, False)
    assert seen.tally.daily == (1.0, 1.0)
    assert seen.tally.ends[3] == 1.0


def test_what_could_be_chance_does_not_count() -> None:
    """Two ends at a high price where one and a bit was due."""
    sign = PriceSign()
    sign.tell(0.0, 1.0)
    sign.tell(H, 1.1)
    for came in (False, True, False, True):
        sign.count(True, 0.3, came)
    assert sign.slope(True) == 0.0
    for _ in range(30):
        sign.count(True, 0.3, True)
    assert sign.slope(True) > 0.1


def test_jobs_of_weeks_do_not_heed_the_price_of_the_hour() -> None:
    seen = Tally(daily=(2.0, 3.0), priced=(0.5, 2.0))
    assert seen.lasting.rate_per_h(3) == pytest.approx(PRIOR_PER_H[3])
    long = replace(view_with(seen), work_left_s=200 * H, deadline_at_s=400 * H)
    plain = replace(view_with(Tally()), work_left_s=200 * H, deadline_at_s=400 * H)
    assert decide(long).choice.cost_uusd == decide(plain).choice.cost_uusd
    assert "at such a price" not in decide(long).reason


def test_the_mean_of_all_markets_does_not_jump_when_one_is_told_of_late() -> None:
    watch = Watch(["a", "b"])
    watch.see(0.0, (True, True))
    watch.priced(0.0, "a", 1_000_000)
    watch.priced(10 * H, "b", 5_000_000)
    assert watch.any.price.distance == 0.0
    watch.priced(20 * H, "b", 6_000_000)
    assert watch.any.price.distance > 0.0
    assert watch.markets["a"].price.distance == 0.0


# --- from the log -----------------------------------------------------------------------------------------------------


def test_prices_on_record_reach_what_is_believed_of_a_market() -> None:
    fleet = FleetState()
    for day in range(20):
        fleet.apply(PriceChanged(at_s=day * 24 * H, market="a", price_uusd_per_h=1000 + day % 2 * 200))
    spells = Spells()
    spells.sold(0.0)
    for day in range(1, 20, 2):  # taken within an hour of each rise
        spells.ended(day * 24 * H + H, taken=True)
        spells.sold(day * 24 * H + 3 * H)
    believed = watch_of(["a"], {"a": spells}, fleet.prices, 19 * 24 * H + 4 * H).markets["a"]
    assert believed.price.distance > 1.0
    assert believed.price.slope(True) > 0.0
    assert watch_of(["a"], {"a": spells}, {}, 20 * 24 * H).markets["a"].tally.priced == (1.0, 1.0)


def test_a_price_says_nothing_of_a_market_that_nobody_has_asked_since() -> None:
    refused, runs = Spells(), Spells()
    refused.none_left(H)
    runs.sold(0.0)
    prices = {key: tuple((hour * H, 1000 + hour) for hour in range(0, 40, 5)) for key in "ab"}
    watch = watch_of(["a", "b"], {"a": refused, "b": runs}, prices, 40 * H)
    assert sum(watch.markets["a"].tally.hours) == 0.0
    assert watch.markets["a"].price.distance > 0.0, "what it costs now is known all the same"
    alone = watch_of(["b"], {"b": runs}, {}, 40 * H).markets["b"].tally.hours
    assert watch.markets["b"].tally.hours == pytest.approx(alone)
    assert watch.any.tally.hours[3] == pytest.approx(watch.markets["b"].tally.hours[3], rel=0.05)


def test_an_unusual_price_becomes_usual_though_nobody_asks() -> None:
    spells = Spells()
    spells.sold(0.0)
    spells.ended(10 * 24 * H, taken=False)
    prices = {"a": ((0.0, 1000), (11 * 24 * H, 1100))}
    soon, late = (watch_of(["a"], {"a": spells}, prices, day * 24 * H) for day in (11.1, 20))
    assert soon.markets["a"].price.distance > 1.0 > 0.1 > late.markets["a"].price.distance
    assert soon.any.price.distance > 1.0 > 0.1 > late.any.price.distance


def test_prices_of_nothing_and_of_tomorrow_are_not_looked_at() -> None:
    spells = Spells()
    spells.sold(0.0)
    watch = watch_of(["a"], {"a": spells}, {"a": ((0.0, 1000), (H, 0), (9 * H, 2000))}, 5 * H)
    assert watch.markets["a"].price.distance == 0.0
    assert watch.markets["a"].tally.hours[3] == pytest.approx(5.0, rel=0.05)


def test_what_is_older_than_a_month_is_not_gone_through() -> None:
    spells = Spells()
    for day in range(0, 100, 2):
        spells.sold(day * 24 * H)
        spells.ended((day + 1) * 24 * H, taken=True)
    whole = watch_of(["a"], {"a": spells}, {}, 100 * 24 * H).markets["a"].tally
    assert whole.ends[3] == pytest.approx(sum(0.5 ** (age * 24 / 48) for age in range(0, 100, 2)), rel=0.01)


def test_what_is_kept_of_prices_is_bounded_and_follows_the_clock() -> None:
    fleet = FleetState()
    for number in range(1000):
        fleet.apply(PriceChanged(at_s=number * 60.0, market="a", price_uusd_per_h=1 + number))
    assert len(fleet.prices["a"]) <= 256
    assert fleet.prices["a"][-1] == (999 * 60.0, 1000)
    for number in range(3):
        fleet.apply(PriceChanged(at_s=QUOTES_KEPT_S * (2 + number), market="a", price_uusd_per_h=number))
    assert len(fleet.prices["a"]) == 2, "the last one that was good two weeks ago, and those after it"
    fleet.apply(ClockJumped(at_s=0.0, jump_s=7.0))
    assert fleet.prices["a"][-1][0] == QUOTES_KEPT_S * 4 + 7.0


# --- in decisions -----------------------------------------------------------------------------------------------------


def view_with(seen: Tally) -> ContractView:
    market = SpotMarket(SPOT.market.key, SPOT.price_uusd_per_h or 0, is_open=True, seen=seen)
    return ContractView(0.0, 10 * H, 300.0, 60.0, DEAR.market.key, DEAR.price_uusd_per_h or 0, 20 * H, spot=(market,))


def test_a_price_that_tells_something_is_in_the_reason() -> None:
    assert "at such a price its machines are lost 2.0 x as often" in decide(view_with(Tally(priced=(1.0, 2.0)))).reason
    assert "at such a price" not in decide(view_with(Tally(priced=(1.0, 1.1)))).reason


def test_of_two_markets_at_one_price_the_one_is_taken_whose_price_is_calm() -> None:
    base = view_with(Tally())
    wild, calm = (
        SpotMarket(name, 300_000, True, seen=Tally(priced=(1.0, factor))) for name, factor in (("w", 3.0), ("c", 1.0))
    )
    for spot in ((wild, calm), (calm, wild)):
        view = ContractView(0.0, 10 * H, 300.0, 60.0, base.on_demand_key, 1_000_000, 20 * H, spot=spot)
        assert decide(view).key == "c"
    assert wild.seen.rate_per_h(3) == pytest.approx(3.0 * PRIOR_PER_H[3])
