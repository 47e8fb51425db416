"""One series of the past, moment by moment: its forecaster, and what that had said of each moment before it came.

Stands between the event log and what people are shown (forecast_view.py): nothing is bought by it. Unlike the steps
that nodes are bought by, the values here are levels at moments: what is wanted now is known, and is where a forecast
begins.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from tradewind.autoscaler.forecast.forecaster import FEWEST_ERRORS, Forecaster
from tradewind.autoscaler.forecast.outlook import Outlook
from tradewind.autoscaler.forecast.series import Step


@dataclass(frozen=True, slots=True)
class Said:
    """What was forecast for a moment."""

    at_s: float
    p10: float
    p50: float
    p90: float


class Backtest:
    """`said` keeps what was forecast `ahead_s` before, of the last `keep` moments."""

    def __init__(self, step_s: float, horizons_s: tuple[float, ...], ahead_s: float, keep: int) -> None:
        self._step_s, self._ahead_s = step_s, ahead_s
        self._forecaster = Forecaster(step_s, horizons_s)
        self.said: deque[Said] = deque(maxlen=keep)
        self.last_s = float("-inf")

    def feed(self, levels: Iterable[tuple[float, float]]) -> None:
        """(moment, level), `step_s` apart. What it knows already is passed over."""
        for at_s, level in levels:
            if at_s > self.last_s:
                self._forecaster.add(Step(at_s, level))
                self.last_s = at_s
                self._note(at_s)

    def _note(self, at_s: float) -> None:
        outlook = self._forecaster.forecast().at(self._ahead_s)
        if outlook is not None and outlook.has_interval:
            self.said.append(Said(at_s + outlook.horizon_s, outlook.p10, outlook.p50, outlook.p90))

    def outlooks(self, now_s: float, level: float) -> tuple[Outlook, ...]:
        """From this moment on, which lies between two of the grid: tried on a copy, so that the grid goes on."""
        trial = copy.deepcopy(self._forecaster)
        if now_s > self.last_s:
            trial.add(Step(now_s, level))
        return trial.forecast().outlooks


def history_for_interval_s(step_s: float, horizons_s: Iterable[float]) -> float:
    """How long a series must be before its forecasts have an interval."""
    return FEWEST_ERRORS * step_s + max(horizons_s)
