"""How much more than now may be wanted before a node could come: the head-room that a series needs. Bounded memory.

Stands beside the forecaster of the level, which says where demand will be on average over a step. Nodes are bought
against something else: how far demand rises above the present while one boots (the most by which it rises from one
moment to a later one). People send jobs in sittings: when something has just come, more will, and how much is told by
what came after such moments before. So the chances are those of all past looks, each weighted by its likeness to now:

    weight = (exp(-distance^2 / 2) + PRIOR / looks) * fading

where the distance is between the logarithms of how often demand rose. There are three ways to count that: in the last
step, the five before it and the thirty before those; with rises that fade within one, six and thirty-six steps; or with
rises that fade within hours. The first knows when a sitting began, the second does not jump when a rise leaves a span,
the third tells a busy day from a quiet one, and is not misled by a few rises where they come at random. None is the
best one everywhere, so the chances are the mean of all. Beside them stands what usually comes after such moments
(usual.py), which weighs as much as a hundred looks that are alike.

How often it rose counts, not by how much: a sweep of a hundred jobs is one thing that somebody did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tradewind.autoscaler.forecast import usual
from tradewind.autoscaler.forecast.candidates import LEVELS
from tradewind.autoscaler.forecast.forecaster import FEWEST_ERRORS
from tradewind.autoscaler.forecast.looks import Column, Looks
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import SeriesKey, Span, levels_of_spans

LOOKS = 5  # in a step
WINDOW = 2016  # steps that are learned from: a week of five minutes
SPANS = (1, 6, 36)  # steps
SLOW = (12, 72)  # steps
# How far apart two counts may lie to be alike, as a difference of logarithms: in spans, fading, fading slowly.
NEAR = ((0.5, 0.7, 1.0), (0.6, 0.7, 0.8), (0.4, 0.4))
_KINDS = tuple(np.cumsum([len(each) for each in NEAR])[:-1].tolist())  # where the signs of the next kind begin
_FADING = slice(*_KINDS)  # the signs of rises that fade
PRIOR = 10.0  # looks: so many unlike ones count as one alike, so that a few likenesses do not decide alone
HALF_LIFE = 0.5  # of the window
MODEL = "what came after similar moments"
MODEL_WHEN_NEW = "what usually comes after such moments, more than by the own past"


class Growth:
    """One series. A step should be as long as a node takes to boot, or longer."""

    def __init__(self, step_s: float, window: int = WINDOW) -> None:
        self.step_s = step_s
        self._window = window
        age = np.arange(window * LOOKS - 1, -1, -1, dtype=np.float32) / np.float32(window * LOOKS)
        self._fading = 0.5 ** (age / np.float32(HALF_LIFE))  # of the looks that are learned from, oldest first
        self._start_anew()

    def _start_anew(self) -> None:
        spans, slow = (tuple(steps * LOOKS for steps in each) for each in (SPANS, SLOW))
        self._looks = Looks(self._window * LOOKS, LOOKS + 1, spans, slow)
        self._number: int | None = None  # of the open look, counted from the epoch
        self._outlook: Outlook | None = None  # of the growth alone; None: not reckoned since something changed

    def observe(self, at_s: float, level: float) -> None:
        """Demand is `level` from `at_s` on. Call it at every tick."""
        if not (math.isfinite(at_s) and math.isfinite(level)):
            return
        number = math.ceil(at_s / self.step_s * LOOKS - 1e-6)
        if self._number is None or number - self._number > self._window * LOOKS:
            self._start_anew()
            self._begin(is_known=True)
        elif number < self._number:  # a clock that was set back: nothing is learned across it
            self._begin(is_known=False)
        else:
            for later in range(1, number - self._number + 1):
                self._begin(is_known=later <= LOOKS)
        self._number = number
        if level != self._looks.level or self._looks.length == 1:
            self._looks.see(level)
            self._outlook = None

    def _begin(self, is_known: bool) -> None:
        self._looks.begin(is_known)
        self._outlook = None

    def forecast(self, now_s: float) -> Forecast:
        """Of the most that is wanted within a step from now."""
        if self._number is None:
            return Forecast(None, 0.0, 0, ())
        if self._outlook is None:
            self._outlook = self._reckon()
        level, growth = self._looks.level, self._outlook
        above = replace(
            growth,
            values=tuple(level + value for value in growth.values),
            chances=tuple((level + value, chance) for value, chance in growth.chances),
        )
        return Forecast(now_s, 0.0, self._looks.length // LOOKS, (above,))

    def _reckon(self) -> Outlook:
        signs, rises = self._looks.settled()
        is_enough = self._looks.length > (FEWEST_ERRORS + 1) * LOOKS and len(rises) >= FEWEST_ERRORS
        chances, by_the_usual = self._chances(signs, rises) if is_enough else ((), 0.0)
        own = f"{len(rises)} past moments, those before which demand had risen as often count most"
        return Outlook(
            horizon_s=self.step_s,
            values=tuple(_quantile(chances, level) for level in LEVELS),
            has_interval=is_enough,
            model=MODEL if by_the_usual < 0.5 else MODEL_WHEN_NEW,
            reason=f"{own}; what is usual elsewhere counts for {by_the_usual:.0%}",
            scored=len(rises),
            wape=None,
            persistence_wape=None,
            coverage=None,
            chances=chances,
        )

    def _chances(self, signs: Column, rises: Column) -> tuple[tuple[tuple[float, float], ...], float]:
        """(growth, chance of more than it), and how much of that is what is usual elsewhere"""
        apart = signs - self._looks.signs()[:, None]
        fading = self._fading[-len(rises) :]
        first, *others = (weights_of(*each, fading) for each in zip(np.split(apart, _KINDS), NEAR, strict=True))
        weights = sum(others, start=first) / np.float32(len(NEAR))
        by_the_usual = 1.0 - float(weights.sum())
        unlike = by_the_usual * usual.chance_of_growth(self._looks.signs()[_FADING])
        grown = np.flatnonzero(rises)  # after most looks nothing grew: what is left is quick to sort
        rises, weights, fading = rises[grown], weights[grown], fading[grown]
        growths = usual.growths_of(rises)
        chances = usual.more_than(growths, rises, weights) + unlike * usual.chances_of_more(growths, rises, fading)
        return tuple(zip(growths.tolist(), chances.tolist(), strict=True)), by_the_usual


def weights_of(apart: Column, near: Sequence[float], fading: Column) -> Column:
    """Of each look by its likeness. All together below 1: the rest is left to what is usual."""
    alike = np.exp(np.float32(-0.5) / np.square(np.array(near, dtype=np.float32)) @ np.square(apart))
    weights = (alike + np.float32(PRIOR / len(alike))) * fading
    return np.asarray(weights / (weights.sum() + np.float32(usual.WORTH)))


def _quantile(chances: Sequence[tuple[float, float]], level: float) -> float:
    return next((value for value, chance in chances if chance <= 1.0 - level + 1e-9), 0.0)


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
            if max(span.end_s for span in mine) <= until_s - self._window * self.step_s:
                continue  # it would be forgotten at the first look
            growth = self._growths[key] = Growth(self.step_s, self._window)
            since_s = max(min(span.start_s for span in mine), until_s - self._window * self.step_s)
            moments_s = np.arange(since_s, until_s, self.step_s / LOOKS)
            for at_s, level in zip(moments_s.tolist(), levels_of_spans(mine, moments_s).tolist(), strict=True):
                growth.observe(at_s, level)
            self._wanted_at_s[key] = max(min(span.end_s, until_s) for span in mine)

    def forecasts(self, now_s: float) -> dict[SeriesKey, Forecast]:
        return {key: growth.forecast(now_s) for key, growth in sorted(self._growths.items())}
