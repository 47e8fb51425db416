"""Choosing, calibration and what is built on it, on series whose nature is known."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tradewind.autoscaler.forecast import Forecaster, Outlook, Step
from tradewind.autoscaler.forecast.blend import Blend, pinball
from tradewind.autoscaler.forecast.buy_ahead import NodeEconomics, prewarm
from tradewind.autoscaler.forecast.candidates import CANDIDATES, LEVELS, MEDIAN

STEP_S = 3600.0
STEPS = 320


def last_outlook(values: list[float], horizon: int = 2) -> Outlook:
    forecaster = Forecaster(STEP_S, (horizon * STEP_S,))
    for number, value in enumerate(values):
        forecaster.add(Step(number * STEP_S, value))
    return forecaster.forecast().outlooks[0]


def daily_wave() -> list[float]:
    dice = random.Random(1)
    return [50 + 30 * math.sin(hour * math.pi / 12) + dice.gauss(0, 2) for hour in range(STEPS)]


def random_walk(seed: int) -> list[float]:
    dice = random.Random(seed)
    level, found = 100.0, []
    for _ in range(STEPS):
        level = max(level + dice.gauss(0, 3), 0.0)
        found.append(level)
    return found


def noise() -> list[float]:
    dice = random.Random(2)
    return [max(dice.gauss(50, 10), 0.0) for _ in range(STEPS)]


def test_a_daily_wave_is_learned() -> None:
    outlook = last_outlook(daily_wave())
    assert outlook.wape is not None
    assert outlook.persistence_wape is not None
    assert outlook.wape < 0.5 * outlook.persistence_wape
    assert outlook.model != "persistence"
    assert "beats persistence by" in outlook.reason


def test_on_noise_the_forecast_is_not_the_last_value() -> None:
    outlook = last_outlook(noise())
    assert outlook.wape is not None
    assert outlook.persistence_wape is not None
    assert outlook.wape < 0.85 * outlook.persistence_wape


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_where_persistence_is_right_we_lose_next_to_nothing(seed: int) -> None:
    outlook = last_outlook(random_walk(seed))
    assert outlook.wape is not None
    assert outlook.persistence_wape is not None
    assert outlook.wape <= 1.02 * outlook.persistence_wape


@pytest.mark.parametrize("values", [daily_wave(), noise(), random_walk(6)], ids=["wave", "noise", "walk"])
def test_nine_of_ten_outcomes_are_under_the_90_percent_quantile(values: list[float]) -> None:
    outlook = last_outlook(values)
    assert outlook.coverage is not None
    assert outlook.coverage[0] <= 0.95
    assert outlook.coverage[1] >= 0.85


def test_a_full_cluster_is_not_expected_to_grow() -> None:
    """Demand that is cut off at 64: errors upward exist, but not from there."""
    dice = random.Random(7)
    values = [min(64.0, max(0.0, 64 + 10 * math.sin(step / 9) + dice.choice((-4, 0, 0, 4)))) for step in range(STEPS)]
    at_the_top = [*values, *[64.0] * 3]
    assert last_outlook(at_the_top).p90 <= 66.0


def test_calibration_follows_a_drift() -> None:
    """After the noise grows fivefold, the quantile is wide again within the days that follow."""
    dice = random.Random(8)
    values = [max(100 + dice.gauss(0, 2 if step < 150 else 10), 0.0) for step in range(STEPS)]
    outlook = last_outlook(values)
    assert outlook.p90 - outlook.p50 > 7.0


def test_pinball_is_half_the_absolute_error_at_the_median() -> None:
    assert pinball(np.full(len(LEVELS), 3.0), 5.0)[MEDIAN] == 1.0
    assert pinball(np.full(len(LEVELS), 3.0), 5.0)[LEVELS.index(0.9)] == pytest.approx(1.8)


def test_one_lucky_burst_does_not_outweigh_persistence() -> None:
    blend = Blend((1,), half_life=1000.0)
    forecasts = np.zeros((len(CANDIDATES), len(LEVELS)))
    forecasts[5] = 100.0
    for _ in range(50):
        blend.score(0, np.zeros_like(forecasts), np.zeros(len(LEVELS)), 0.0)
    blend.score(0, forecasts, np.zeros(len(LEVELS)), 100.0)
    assert blend.weights()[0, 5, MEDIAN] < 0.1


def test_steady_gains_outweigh_persistence_and_losses_count_nothing() -> None:
    blend = Blend((1,), half_life=1000.0)
    forecasts = np.zeros((len(CANDIDATES), len(LEVELS)))
    forecasts[5], forecasts[7] = 10.0, -10.0
    for _ in range(50):
        blend.score(0, forecasts, np.zeros(len(LEVELS)), 10.0)
    weights = blend.weights()[0, :, MEDIAN]
    assert weights[5] > 0.95
    assert weights[7] == 0.0
    assert weights.sum() == pytest.approx(1.0)


# --- outlook, prewarming ---------------------------------------------------------------------------------


def outlook_of(*values: float, has_interval: bool = True) -> Outlook:
    return Outlook(7200.0, values, has_interval, "persistence", "", 100, 0.1, 0.1, (0.9, 0.9))


SPREAD = outlook_of(0.0, 1.0, 2.5, 5.0, 7.5, 9.0, 10.0, 11.0, 12.0)


def test_any_quantile_and_the_chance_above_an_amount_agree() -> None:
    for level in (0.1, 0.3, 0.5, 0.82, 0.9, 0.965, 0.99):
        assert SPREAD.chance_above(SPREAD.quantile(level)) == pytest.approx(1 - level)
    assert SPREAD.chance_above(12.1) == 0.0
    assert SPREAD.chance_above(-1.0) == pytest.approx(0.95)
    with pytest.raises(ValueError, match="between 0 and 1"):
        SPREAD.quantile(90)


def test_demand_that_stands_still_has_no_chance_to_be_above_itself() -> None:
    still = outlook_of(*[4.0] * len(LEVELS))
    assert still.chance_above(4.0) == pytest.approx(0.01)
    assert still.chance_above(4.1) == 0.0
    assert still.chance_above(3.9) == pytest.approx(0.95)


def test_nodes_are_bought_ahead_until_idling_costs_more_than_waiting() -> None:
    even = NodeEconomics(per_node=1, boot_s=600, idle_s=600, price_uusd_per_h=1_000_000, waiting_uusd_per_h=1_000_000)
    bought = prewarm(SPREAD, 0.0, even, max_nodes=100)
    assert bought.nodes == 5  # the median: as likely needed as not
    assert bought.waiting_uusd > bought.idling_uusd
    urgent = NodeEconomics(per_node=1, boot_s=600, idle_s=600, price_uusd_per_h=1_000_000, waiting_uusd_per_h=9_000_000)
    assert prewarm(SPREAD, 0.0, urgent, max_nodes=100).nodes == 9  # the 90 % quantile
    assert prewarm(SPREAD, 7.0, urgent, max_nodes=100).nodes == 2
    assert prewarm(SPREAD, 0.0, urgent, max_nodes=3).nodes == 3
    assert "waiting for it" in bought.reason


def test_nothing_is_bought_ahead_without_a_forecast() -> None:
    any_price = NodeEconomics(1, 600, 600, 1, 10**9)
    assert prewarm(None, 0.0, any_price, 10).nodes == 0
    assert prewarm(outlook_of(*[4.0] * len(LEVELS), has_interval=False), 0.0, any_price, 10).nodes == 0
