"""How much more than now may be wanted before a node could come: the head-room that a series needs. Bounded memory.

Stands beside the forecaster of the level, which says where demand will be on average over a step. Nodes are bought
against something else: how far demand rises above the present while one boots. So the growth within each step (the most
by which demand rises from one of its moments to a later one) is a series of its own, forecast by the same means: after
a burst more is expected than on a quiet night. The quantiles that are given are the present level plus the growth's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from tradewind.autoscaler.forecast.forecaster import LONGEST_GAP, WINDOW, Forecaster
from tradewind.autoscaler.forecast.outlook import Forecast
from tradewind.autoscaler.forecast.series import SeriesKey, Span, Step

_LONGEST_GAP_S = LONGEST_GAP * 86400.0  # as for the level
_LOADED_STEPS = 288  # of the past; each costs milliseconds when a controller starts


class Growth:
    """One series. A step should be as long as a node takes to boot, or longer."""

    def __init__(self, step_s: float, window: int = WINDOW) -> None:
        self.step_s = step_s
        self._forecaster = Forecaster(step_s, (step_s,), window)
        self._start_s: float | None = None  # of the open step
        self._looked_s = 0.0
        self._trough = self._rise = self._level = 0.0

    def observe(self, at_s: float, level: float) -> None:
        """Demand is `level` from `at_s` on. Call it at every tick."""
        if not (math.isfinite(at_s) and math.isfinite(level)):
            return
        start_s = math.floor(at_s / self.step_s) * self.step_s
        if self._start_s is None or start_s < self._start_s or at_s - self._looked_s > _LONGEST_GAP_S:
            # The first look, a clock that was set back, or a long silence: the open step begins anew.
            self._start_s, self._trough, self._rise, self._level = start_s, level, 0.0, level
        while self._start_s < start_s:
            is_known = self._start_s < self._looked_s + self.step_s
            self._forecaster.add(Step(self._start_s, self._rise, is_known))
            self._start_s, self._trough, self._rise = self._start_s + self.step_s, self._level, 0.0
        self._level, self._looked_s = level, at_s
        self._trough = min(self._trough, level)
        self._rise = max(self._rise, level - self._trough)

    def forecast(self, now_s: float) -> Forecast:
        """Of the most that is wanted within a step from now."""
        growth = self._forecaster.forecast(now_s)
        outlooks = tuple(
            replace(outlook, values=tuple(self._level + value for value in outlook.values))
            for outlook in growth.outlooks
        )
        return replace(growth, age_s=0.0, outlooks=outlooks)


class GrowthBook:
    """Of all series of a fleet. One begins when it is first asked for, and is forgotten after a window at zero."""

    def __init__(self, step_s: float, window: int = WINDOW) -> None:
        self.step_s, self._window = step_s, window
        self._growths: dict[SeriesKey, Growth] = {}
        self._wanted_at_s: dict[SeriesKey, float] = {}

    def observe(self, at_s: float, amounts: Mapping[SeriesKey, float]) -> None:
        """Everything that is wanted at the moment, running or waiting; what is not named is not wanted."""
        for key in amounts:
            if key not in self._growths:
                self._growths[key] = Growth(self.step_s, self._window)
                self._wanted_at_s[key] = at_s
        for key, growth in list(self._growths.items()):
            amount = amounts.get(key, 0.0)
            growth.observe(at_s, amount)
            if amount > 0:
                self._wanted_at_s[key] = at_s
            elif at_s - self._wanted_at_s[key] > self._window * self.step_s:
                del self._growths[key], self._wanted_at_s[key]

    def load(self, spans: Mapping[SeriesKey, Sequence[Span]], until_s: float) -> None:
        """The past, out of the event log: so that a controller that starts again does not begin from nothing."""
        for key, mine in spans.items():
            growth = self._growths[key] = Growth(self.step_s, self._window)
            for at_s, level in _levels(mine, until_s - _LOADED_STEPS * self.step_s):
                growth.observe(at_s, level)
            self._wanted_at_s[key] = max(min(span.end_s, until_s) for span in mine)

    def forecasts(self, now_s: float) -> dict[SeriesKey, Forecast]:
        return {key: growth.forecast(now_s) for key, growth in sorted(self._growths.items())}


def _levels(spans: Sequence[Span], since_s: float) -> Iterator[tuple[float, float]]:
    """The level from `since_s` on, whenever it changes."""
    edges = sorted([(span.start_s, span.amount) for span in spans] + [(span.end_s, -span.amount) for span in spans])
    level = 0.0
    for (at_s, change), following in itertools.zip_longest(edges, edges[1:]):
        level += change
        if following is None or following[0] > max(at_s, since_s):
            yield max(at_s, since_s), level
