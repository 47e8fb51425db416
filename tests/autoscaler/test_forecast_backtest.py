"""What a series was, what had been said of it, and what is said now: for people, not for buying."""

from __future__ import annotations

import math

import numpy as np

from tradewind.autoscaler.forecast import Backtest, Span, history_for_interval_s, levels_of_spans

STEP_S = 900.0
HORIZONS_S = (900.0, 3600.0)


def waves(count: int) -> list[tuple[float, float]]:
    return [(number * STEP_S, 10.0 + 5.0 * math.sin(number / 7.0)) for number in range(count)]


def test_levels_are_what_was_wanted_at_a_moment() -> None:
    spans = [Span(0.0, 10.0, 2.0), Span(5.0, 20.0, 3.0)]
    assert levels_of_spans(spans, np.array([-1.0, 0.0, 5.0, 9.9, 10.0, 20.0])).tolist() == [0, 2, 5, 5, 3, 0]


def test_what_was_said_of_the_past_was_said_before_it_came() -> None:
    """The same series with another end: everything that was said until then is the same."""
    one, other = (Backtest(STEP_S, HORIZONS_S, 3600.0, 500) for _ in range(2))
    one.feed(waves(60))
    other.feed([*waves(40), *((at_s, 99.0) for at_s, _ in waves(60)[40:])])
    known = [said for said in one.said if said.at_s < 44 * STEP_S]
    assert known == [said for said in other.said if said.at_s < 44 * STEP_S]
    assert known
    assert all(said.p10 <= said.p50 <= said.p90 for said in known)


def test_what_is_fed_again_is_passed_over() -> None:
    once, twice = (Backtest(STEP_S, HORIZONS_S, 3600.0, 500) for _ in range(2))
    once.feed(waves(50))
    twice.feed(waves(30))
    twice.feed(waves(50))
    assert once.said == twice.said
    assert once.outlooks(49.5 * STEP_S, 8.0) == twice.outlooks(49.5 * STEP_S, 8.0)


def test_a_forecast_begins_at_the_present_level_and_does_not_change_the_grid() -> None:
    backtest = Backtest(STEP_S, HORIZONS_S, 3600.0, 500)
    backtest.feed((number * STEP_S, 4.0) for number in range(40))
    burst = backtest.outlooks(39.5 * STEP_S, 12.0)
    assert all(outlook.p90 >= 12.0 for outlook in burst)
    assert [outlook.p50 for outlook in backtest.outlooks(39.5 * STEP_S, 4.0)] == [4.0, 4.0]


def test_quantiles_come_when_it_is_said_that_they_do() -> None:
    backtest = Backtest(STEP_S, HORIZONS_S, 3600.0, 500)
    needed = round(history_for_interval_s(STEP_S, HORIZONS_S) / STEP_S)
    backtest.feed(waves(needed - 1))
    assert not any(outlook.has_interval for outlook in backtest.outlooks((needed - 2) * STEP_S, 1.0))
    backtest.feed(waves(needed))
    assert all(outlook.has_interval for outlook in backtest.outlooks((needed - 1) * STEP_S, 1.0))
