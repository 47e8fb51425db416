"""Rival forecasts of one series: who foretells it best counts most, and nobody is forgotten."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.forecast import Growth
from tradewind.autoscaler.forecast.judge import AMOUNTS, SHARED, Chances, Judge
from tradewind.autoscaler.forecast.likeness import KINDS


def says(*chances: float) -> Chances:
    """Of each rival one chance, for every amount."""
    return np.repeat(np.array(chances)[:, None], len(AMOUNTS), axis=1)


def test_all_count_the_same_before_anything_was_seen() -> None:
    assert Judge(4, ahead=6, half_life=100).weights == pytest.approx([0.25] * 4)


def test_who_is_right_counts_more_and_the_other_is_not_forgotten() -> None:
    judge = Judge(2, ahead=0, half_life=100)
    for _ in range(200):
        judge.foretold(says(0.05, 0.6))
        judge.saw(0.0)  # nothing ever grows
    assert judge.weights[0] > 0.9
    assert judge.weights[1] >= SHARED / 2 - 1e-9


def test_who_becomes_right_again_is_soon_heeded() -> None:
    judge = Judge(2, ahead=0, half_life=20)
    for outcome, times in ((0.0, 200), (1000.0, 40)):
        for _ in range(times):
            judge.foretold(says(0.05, 0.6))
            judge.saw(outcome)
    assert judge.weights[1] > 0.9


def test_each_is_judged_by_the_outcome_of_its_own_moment() -> None:
    """Outcomes come three moments later. The first rival is right at each moment, the second one moment too late."""
    judge, grows = Judge(2, ahead=3, half_life=100), [moment % 2 == 0 for moment in range(100)]
    for moment, will_grow in enumerate(grows):
        judge.foretold(says(0.9 if will_grow else 0.1, 0.1 if will_grow else 0.9))
        judge.saw((1000.0 if grows[moment - 3] else 0.0) if moment >= 3 else None)
    assert judge.weights[0] > 0.9


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.one_of(st.none(), st.floats(0, 500))), max_size=60))
def test_weights_are_shares_whatever_comes(moments: list[tuple[float, float, float | None]]) -> None:
    judge = Judge(2, ahead=2, half_life=10)
    for first, second, outcome in moments:
        judge.foretold(says(first, second) if outcome is None or outcome < 400 else None)
        judge.saw(outcome)
    assert judge.weights.sum() == pytest.approx(1.0)
    assert (judge.weights >= SHARED / 2 - 1e-9).all()


def test_a_series_that_keeps_office_hours_is_told_by_the_hour() -> None:
    """Somebody comes at nine each day, once, after a night without anything: only the hour tells."""
    growth, minute_of_day = Growth(300.0), 9 * 60
    for minute in range(9 * 1440 + minute_of_day):
        growth.observe(60.0 * minute, float(minute % 1440 in range(minute_of_day, minute_of_day + 120)))
    found = growth.forecast(0.0).outlooks[0]
    before_nine = found.chance_above(0.0)
    assert f"by the hour {1 / len(KINDS):.0%}" not in found.reason  # it has been judged
    assert found.reason.index("by the hour") < found.reason.index("%")  # and counts most
    for minute in range(9 * 1440 + minute_of_day, 10 * 1440 + 3 * 60):
        growth.observe(60.0 * minute, float(minute % 1440 in range(minute_of_day, minute_of_day + 120)))
    assert before_nine > 2 * growth.forecast(0.0).outlooks[0].chance_above(0.0)


def test_nobody_is_asked_about_looks_that_nobody_took() -> None:
    """A machine that slept for days: to foretell each step of that would hold up its first tick for seconds a series,
    and there is no outcome to judge it by."""
    growth = Growth(300.0)
    for minute in range(3 * 1440):
        growth.observe(60.0 * minute, float(minute % 50 < 10))
    assert any(chances is not None for chances in growth._judge._open)
    growth.observe(60.0 * 6 * 1440, 0.0)
    assert all(chances is None for chances in growth._judge._open)
