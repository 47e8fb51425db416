"""The forecasts of all series of a fleet: one forecaster for each tenant and shape. The loop feeds it at every tick."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tradewind.autoscaler.forecast.forecaster import WINDOW, Forecaster
from tradewind.autoscaler.forecast.outlook import Forecast
from tradewind.autoscaler.forecast.series import SeriesKey, Step, Steps


class ForecastBook:
    """A series begins when it is first asked for. One that has been at zero for the whole window is forgotten."""

    def __init__(self, step_s: float, horizons_s: Iterable[float], window: int = WINDOW) -> None:
        self._step_s, self._horizons_s, self._window = step_s, tuple(horizons_s), window
        self._forecasters: dict[SeriesKey, Forecaster] = {}
        self._wanted_at_s: dict[SeriesKey, float] = {}

    def observe(self, at_s: float, amounts: Mapping[SeriesKey, float]) -> None:
        """Everything that is wanted at the moment, running or waiting; what is not named is not wanted."""
        for key in amounts:
            if key not in self._forecasters:
                self._forecasters[key] = self._new()
                self._wanted_at_s[key] = at_s
        for key, forecaster in list(self._forecasters.items()):
            amount = amounts.get(key, 0.0)
            forecaster.observe(at_s, amount)
            if amount > 0:
                self._wanted_at_s[key] = at_s
            elif at_s - self._wanted_at_s[key] > self._window * self._step_s:
                del self._forecasters[key], self._wanted_at_s[key]

    def load(self, series: Mapping[SeriesKey, Steps]) -> None:
        """The past, out of the event log: so that a controller that starts again does not begin from nothing."""
        for key, steps in series.items():
            forecaster = self._new()
            for at_s, value in zip(steps.times_s, steps.values, strict=True):
                forecaster.add(Step(float(at_s), float(value)))
            self._forecasters[key] = forecaster
            self._wanted_at_s[key] = steps.start_s + len(steps.values) * self._step_s

    def forecasts(self, now_s: float) -> dict[SeriesKey, Forecast]:
        return {key: forecaster.forecast(now_s) for key, forecaster in sorted(self._forecasters.items())}

    def _new(self) -> Forecaster:
        return Forecaster(self._step_s, self._horizons_s, self._window)
