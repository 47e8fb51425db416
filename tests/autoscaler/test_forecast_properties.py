"""What must hold of every forecast, on any series: no look-ahead, order, scale, sense on short and broken input."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.forecast import Forecast, Forecaster, Step
from tradewind.autoscaler.forecast.candidates import LEVELS

STEP_S = 3600.0
HORIZONS_S = (STEP_S, 2 * STEP_S, 6 * STEP_S)
QUIET = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
# Whole numbers of accelerators with repetitions, zeros and bursts: what demand looks like.
# Repeated, so that most are long enough for everything to be at work.
VALUES = st.tuples(
    st.lists(st.sampled_from([0.0, 0.0, 1.0, 1.0, 2.0, 8.0, 64.0, 500.0]), min_size=1, max_size=30), st.integers(1, 9)
).map(lambda drawn: (drawn[0] * drawn[1])[:60])


def fed(values: list[float], window: int = 48) -> Forecaster:
    forecaster = Forecaster(STEP_S, HORIZONS_S, window=window)
    for number, value in enumerate(values):
        forecaster.add(Step(number * STEP_S, value))
    return forecaster


def quantiles(forecast: Forecast) -> list[tuple[float, ...]]:
    return [outlook.values for outlook in forecast.outlooks]


@given(VALUES)
@QUIET
def test_quantiles_are_finite_in_order_and_never_below_zero(values: list[float]) -> None:
    for row in quantiles(fed(values).forecast()):
        assert all(math.isfinite(value) and value >= 0 for value in row)
        assert list(row) == sorted(row)


@given(VALUES)
@QUIET
def test_no_quantile_leaves_what_was_ever_possible(values: list[float]) -> None:
    """A centre lies within twice the range, an error adds at most the range: no forecast runs away."""
    largest = max(values)
    for row in quantiles(fed(values).forecast()):
        assert row[-1] <= 4 * largest + 1e-9


@given(VALUES, st.sampled_from([2.0**-10, 0.25, 2.0**20]))
@QUIET
def test_a_larger_unit_gives_the_same_forecast_in_that_unit(values: list[float], factor: float) -> None:
    """By powers of two, which round nothing: otherwise two equal errors may change places."""
    plain = quantiles(fed(values).forecast())
    scaled = quantiles(fed([value * factor for value in values]).forecast())
    assert np.allclose(np.array(scaled), np.array(plain) * factor, rtol=1e-9, atol=0)


@given(VALUES, VALUES)
@QUIET
def test_going_on_gives_the_same_as_starting_over(past: list[float], future: list[float]) -> None:
    """Being asked in between changes nothing, and nothing depends on more than the steps themselves."""
    forecaster = fed(past)
    forecaster.forecast()
    for number, value in enumerate(future, start=len(past)):
        forecaster.add(Step(number * STEP_S, value))
    assert quantiles(forecaster.forecast()) == quantiles(fed([*past, *future]).forecast())


@given(VALUES)
@QUIET
def test_observations_in_between_give_the_same_as_whole_steps(values: list[float]) -> None:
    forecaster = Forecaster(STEP_S, HORIZONS_S, window=48)
    for number, value in enumerate(values):
        for part in range(4):
            forecaster.observe(number * STEP_S + part * STEP_S / 4, value)
    forecaster.observe(len(values) * STEP_S, values[-1])
    assert np.allclose(quantiles(forecaster.forecast()), quantiles(fed(values).forecast()))


@given(VALUES, st.lists(st.tuples(st.integers(0, 69), st.sampled_from([math.nan, -5.0, math.inf])), max_size=5))
@QUIET
def test_broken_values_never_break_the_forecast(values: list[float], broken: list[tuple[int, float]]) -> None:
    forecaster = Forecaster(STEP_S, HORIZONS_S, window=48)
    bad = dict(broken)
    for number, value in enumerate(values):
        forecaster.observe(number * STEP_S, bad.get(number, value))
    for row in quantiles(forecaster.forecast()):
        assert all(math.isfinite(value) and value >= 0 for value in row)


def test_before_the_first_step_is_over_there_is_no_forecast() -> None:
    forecaster = Forecaster(STEP_S, HORIZONS_S)
    assert forecaster.forecast(5.0).outlooks == ()
    forecaster.observe(0.0, 3.0)
    assert forecaster.forecast(5.0).at(60.0) is None


def test_a_short_history_gives_the_last_value_and_says_that_there_is_no_interval() -> None:
    outlook = fed([3.0, 5.0]).forecast().outlooks[0]
    assert outlook.values == (5.0,) * len(LEVELS)
    assert not outlook.has_interval
    assert outlook.model == "persistence"
    assert "0 past errors are known, 8 are needed" in outlook.reason


def test_a_constant_series_stays_constant_with_no_spread() -> None:
    for outlook in fed([7.0] * 100).forecast().outlooks:
        assert outlook.values == (7.0,) * len(LEVELS)
        assert outlook.has_interval
        assert outlook.wape == 0.0


def test_a_series_of_zeros_has_no_accuracy_to_show() -> None:
    outlook = fed([0.0] * 60).forecast().outlooks[0]
    assert outlook.p90 == 0.0
    assert outlook.wape is None


def test_a_level_never_seen_before_does_not_break_it() -> None:
    for outlook in fed([0.0] * 60 + [1e6]).forecast().outlooks:
        assert all(math.isfinite(value) for value in outlook.values)


def test_a_step_without_a_number_is_a_gap() -> None:
    forecaster = fed([5.0] * 40)
    forecaster.add(Step(40 * STEP_S, math.nan))
    assert forecaster.forecast().outlooks == ()  # nobody looked: be reactive
    forecaster.add(Step(41 * STEP_S, 5.0))
    assert forecaster.forecast().outlooks[0].p50 == 5.0


def test_a_gap_is_bridged_by_the_last_level_and_not_learned_from() -> None:
    forecaster = fed([4.0, 6.0] * 30)
    scored = forecaster.forecast().outlooks[0].scored
    start_s = 60 * STEP_S
    forecaster.observe(start_s, 4.0)
    forecaster.observe(start_s + 20 * STEP_S, 4.0)
    forecaster.observe(start_s + 21 * STEP_S, 4.0)
    forecast = forecaster.forecast()
    assert forecast.steps == 81
    assert forecast.outlooks[0].scored == scored + 1  # into the gap; nobody forecast out of it


def test_after_a_very_long_gap_the_series_starts_anew() -> None:
    forecaster = Forecaster(STEP_S, HORIZONS_S)
    for hour in range(50):
        forecaster.observe(hour * STEP_S, 5.0)
    forecaster.observe(1000 * STEP_S, 2.0)
    forecaster.observe(1001 * STEP_S, 2.0)
    assert forecaster.forecast().steps == 2


def test_a_clock_set_back_keeps_the_history() -> None:
    forecaster = Forecaster(STEP_S, HORIZONS_S)
    for hour in range(40):
        forecaster.observe(1e9 + hour * STEP_S, float(hour % 3))
    for hour in range(10):
        forecaster.observe(1e8 + hour * STEP_S, float(hour % 3))
    assert forecaster.forecast().steps >= 48


@pytest.mark.parametrize(("horizons", "window", "message"), [((), 100, "horizon"), ((60.0,), 5, "too short")])
def test_a_forecaster_that_cannot_work_says_why(horizons: tuple[float, ...], window: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Forecaster(60.0, horizons, window=window)


def test_memory_is_bounded() -> None:
    forecaster = fed([1.0, 2.0] * 160)
    assert len(forecaster._history._values) < 300  # window 48, a week to look back, and some room
    assert forecaster.forecast().steps == 320


@given(VALUES, VALUES)
@QUIET
def test_what_was_said_at_a_moment_does_not_depend_on_what_came_after(past: list[float], future: list[float]) -> None:
    """Every forecast on the way, kept while the series goes on two different ways."""
    said = []
    for rest in (future, [value + 1.0 for value in future]):
        forecaster = Forecaster(STEP_S, HORIZONS_S, window=48)
        forecasts = []
        for number, value in enumerate([*past, *rest]):
            forecaster.add(Step(number * STEP_S, value))
            forecasts.append(forecaster.forecast())
        said.append(forecasts[: len(past)])
    assert said[0] == said[1]
