"""When to run: the best hours, exactly, restarts counted, and never past the deadline."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.cost.carbon import HOUR_S, UNIT_S, Window, Work, carbon_window
from tradewind.cost.carbon_forecast import MIN_PAST_H, fit, forecast


def work(hours: float, deadline_h: float, restart_s: float = 0.0, running: bool = False) -> Work:
    return Work(hours * HOUR_S, deadline_h * HOUR_S, restart_s, running)


def test_it_waits_for_the_clean_hours() -> None:
    found = carbon_window(0.0, work(2, 6), [9, 9, 1, 1, 9, 9])
    assert not found.run
    assert found.planned == ((2 * HOUR_S, 4 * HOUR_S),)
    assert found.saved == pytest.approx(1 - 2 / 18)
    assert "better hours begin at 02:00 UTC (1 Jan)" in found.reason


def test_it_runs_when_now_is_best() -> None:
    assert carbon_window(0.0, work(2, 6), [1, 1, 9, 9, 9, 9]).run
    assert carbon_window(0.0, work(2, 6), [5] * 6, 0.0).planned[0][1] <= 6 * HOUR_S


def test_a_gap_is_taken_only_where_it_is_worth_a_restart() -> None:
    hours = [1, 9, 1, 9]
    apart = carbon_window(0.0, work(2 - 2 / 12, 4, restart_s=UNIT_S), hours)
    assert len(apart.planned) == 2
    dear = carbon_window(0.0, work(1, 4, restart_s=HOUR_S / 2), [1, 1.1, 1, 9])
    assert len(dear.planned) == 1


def test_without_slack_it_runs_whatever_comes() -> None:
    found = carbon_window(0.0, work(5, 5), [9, 9, 1, 1, 1])
    assert found.run
    late = carbon_window(0.0, work(6, 5), [9, 9, 1, 1, 1])
    assert late == Window(True, "the deadline leaves no hour to spare")


def test_the_margin_is_kept_free() -> None:
    hours = [9, 9, 9, 1]
    assert not carbon_window(0.0, work(1, 4), hours).run
    assert max(until for _, until in carbon_window(0.0, work(1, 4), hours, margin_s=HOUR_S).planned) <= 3 * HOUR_S


def test_in_the_middle_of_an_hour_its_rest_counts() -> None:
    found = carbon_window(1.5 * HOUR_S, work(0.5, 3.5), [1, 9, 9])
    assert found.run
    assert found.planned == ((1.5 * HOUR_S, 2 * HOUR_S),)


def test_nothing_left_is_nothing_to_run() -> None:
    assert not carbon_window(0.0, work(0, 5), [1] * 5).run


def cheapest(hours: list[int], need: int) -> int:
    return min(sum(chosen) for chosen in itertools.combinations(hours, need))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 9))
def test_without_restarts_it_is_the_sum_of_the_cleanest_hours(hours: list[int], need: int) -> None:
    if need > len(hours):
        return
    found = carbon_window(0.0, work(need, len(hours)), hours)
    ran = [int(hour) for begin, until in found.planned for hour in np.arange(begin / HOUR_S, until / HOUR_S)]
    assert sum(hours[hour] for hour in ran) == cheapest(hours, need)
    assert len(ran) == need


@settings(max_examples=60)
@given(
    st.lists(st.floats(0, 500), min_size=36, max_size=36),
    st.lists(st.floats(0, 500), min_size=36, max_size=36),
    st.floats(1, 30),
    st.floats(0, 1200),
    st.floats(0, 0.9),
)
def test_however_wrong_the_forecast_the_deadline_is_kept(
    told: list[float], came: list[float], hours: float, restart_s: float, offset_h: float
) -> None:
    """Asked every hour from any moment on; the forecast is of another world, only the current hour is right."""
    start_s = offset_h * HOUR_S
    deadline_s = 36 * HOUR_S
    left_s, running = hours * HOUR_S, False
    if start_s + math.ceil(left_s / UNIT_S) * UNIT_S + math.ceil(restart_s / UNIT_S) * UNIT_S + UNIT_S > deadline_s:
        return
    at_s = start_s
    while left_s > 1e-6 and at_s < deadline_s:
        hour = int(at_s // HOUR_S)
        forecasted = [came[hour], *told[hour + 1 :]]
        run = carbon_window(at_s, Work(left_s, deadline_s, restart_s, running), forecasted).run
        until_s = (hour + 1) * HOUR_S
        if run:
            left_s -= max(0.0, until_s - at_s - (0.0 if running else restart_s))
        running, at_s = run, until_s
    assert left_s <= 1e-6


# --- the forecast ----------------------------------------------------------------------------------------------


def made_up(hours: int, seed: int) -> np.ndarray:  # type: ignore[type-arg]
    """Sun by day, wind that comes and goes over days, and noise."""
    draw = np.random.default_rng(seed)
    at = np.arange(hours)
    wind = np.zeros(hours)
    for hour in range(1, hours):
        wind[hour] = 0.98 * wind[hour - 1] + draw.normal(0, 8)
    return 300 - 60 * np.maximum(0, np.sin((at % 24 - 6) / 12 * np.pi)) + wind + draw.normal(0, 5, hours)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_beats_yesterday_on_a_grid_that_it_has_not_seen(seed: int) -> None:
    series = made_up(24 * 120, seed)
    model = fit(series[: 24 * 90], 36)
    wrong = {"ours": 0.0, "yesterday": 0.0}
    for hour in range(24 * 90, 24 * 117, 7):
        came = series[hour : hour + 36]
        wrong["ours"] += np.abs(came - forecast(series[: hour + 1], 36, model)).mean()
        wrong["yesterday"] += np.abs(came - forecast(series[: hour + 1], 36)).mean()
    assert wrong["ours"] < 0.9 * wrong["yesterday"]


def test_the_current_hour_is_as_it_is_and_short_pasts_repeat_yesterday() -> None:
    series = made_up(24 * 60, 1)
    model = fit(series, 36)
    assert forecast(series, 36, model)[0] == series[-1]
    assert len(forecast(series, 36, model)) == 36
    assert forecast(series, 1, model) == [series[-1]]
    assert fit(series[: MIN_PAST_H - 1], 36) is None
    assert fit([*series[:-1], float("nan")], 36) is None
    short = list(range(48))
    assert forecast(short, 3) == [47.0, 24.0, 25.0]
    assert forecast([5.0], 3) == [5.0, 5.0, 5.0]


def test_nobody_waits_for_nothing() -> None:
    for running in (False, True):
        flat = carbon_window(0.0, Work(HOUR_S, 9 * HOUR_S, 300.0, running), [5] * 9)
        assert flat.run
        assert flat.planned[0][0] == 0.0
    hardly = carbon_window(0.0, Work(HOUR_S, 9 * HOUR_S, 0.0), [1000, 998, 998, 998, 998, 998, 998, 998, 998])
    assert hardly.run
    assert "worth a rest" in hardly.reason


def test_the_last_minutes_of_an_hour_are_run_through() -> None:
    now_s = HOUR_S - 120.0  # less than a unit is left of it
    found = carbon_window(now_s, Work(HOUR_S, now_s + 9 * HOUR_S, 300.0, running=True), [5] * 9)
    assert found.run
    assert found.saved == 0.0
