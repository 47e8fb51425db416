"""How much more than now may be wanted before a node could come: the head-room that a series needs. Bounded memory.

Stands beside the forecaster of the level, which says where demand will be on average over a step. Nodes are bought
against something else: how far demand rises above the present while one boots (the most by which it rises from one
moment to a later one). People send jobs in sittings: when something has just come, more will, and how much is told by
what came after such moments before. So the chances are those of all past looks, each weighted by its likeness to now:

    weight = (exp(-distance^2 / 2) + PRIOR / looks) * fading

where the distance is between the logarithms of how often demand rose. There are four kinds of likeness: how often it
rose in the last step, the five before it and the thirty before those; with rises that fade within one, six and
thirty-six steps; with rises that fade within hours; or within hours and at the same hour of the day. The first knows
when a sitting began, the second does not jump when a rise leaves a span, the third tells a busy day from a quiet one,
and is not misled by a few rises where they come at random, the fourth knows when people come to work. None is the best
one everywhere, so each counts by how well it has foretold this series so far (judge.py). Beside them stands what
usually comes after such moments (usual.py), which weighs as much as a hundred looks that are alike.

How often it rose counts, not by how much: a sweep of a hundred jobs is one thing that somebody did.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tradewind.autoscaler.forecast.candidates import LEVELS
from tradewind.autoscaler.forecast.forecaster import FEWEST_ERRORS
from tradewind.autoscaler.forecast.judge import AMOUNTS, Judge
from tradewind.autoscaler.forecast.likeness import KINDS, Foretold, foretell
from tradewind.autoscaler.forecast.looks import Looks
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.series import SeriesKey, Span, levels_of_spans

LOOKS = 5  # in a step
WINDOW = 2016  # steps that are learned from: a week of five minutes
SPANS = (1, 6, 36)  # steps
SLOW = (12, 72)  # steps
HALF_LIFE = 0.5  # of the window
JUDGED_AT_START = 0.25  # of the window: the newest part of the log, so that a start takes half a second a series
MODEL = "what came after similar moments"
MODEL_WHEN_NEW = "what usually comes after such moments, more than by the own past"


class Growth:
    """One series. A step should be as long as a node takes to boot, or longer."""

    def __init__(self, step_s: float, window: int = WINDOW, judged_from_s: float = -math.inf) -> None:
        self.step_s = step_s
        self._window, self._judged_from_s = window, judged_from_s
        age = np.arange(window * LOOKS - 1, -1, -1, dtype=np.float32) / np.float32(window * LOOKS)
        self._fading = 0.5 ** (age / np.float32(HALF_LIFE))  # of the looks that are learned from, oldest first
        self._start_anew()

    def _start_anew(self) -> None:
        spans, slow = (tuple(steps * LOOKS for steps in each) for each in (SPANS, SLOW))
        self._looks = Looks(self._window * LOOKS, LOOKS + 1, spans, slow)
        self._number: int | None = None  # of the open look, counted from the epoch
        self._forget()
        self._judge = Judge(len(KINDS), LOOKS + 1, HALF_LIFE * self._window)

    def _forget(self) -> None:
        """Something has changed: what was reckoned before holds no more."""
        self._foretold: Foretold | None = None
        self._outlook: Outlook | None = None  # of the growth alone

    def observe(self, at_s: float, level: float) -> None:
        """Demand is `level` from `at_s` on. Call it at every tick."""
        if not (math.isfinite(at_s) and math.isfinite(level)):
            return
        number = math.ceil(at_s / self.step_s * LOOKS - 1e-6)
        if self._number is None or number - self._number > self._window * LOOKS:
            self._start_anew()
            self._begin(number, is_known=True)
        elif number < self._number:  # a clock that was set back: nothing is learned across it
            self._begin(number, is_known=False)
        else:
            last = self._number
            for later in range(last + 1, number + 1):
                self._begin(later, is_known=later - last <= LOOKS)
        if level != self._looks.level or self._looks.length == 1:
            self._looks.see(level)
            self._forget()

    def _begin(self, number: int, is_known: bool) -> None:
        """Once a step, the kinds of likeness are judged: by what they made of the look that is over now. Not where the
        next is not known: there will be no outcome, and after days of sleep the first tick would take seconds."""
        at_s = number * self.step_s / LOOKS
        is_judged = is_known and number % LOOKS == 1 and at_s >= self._judged_from_s and self._is_enough
        self._judge.foretold(self._foretell().at(AMOUNTS) if is_judged else None)
        self._looks.begin(is_known, at_s)
        self._judge.saw(self._looks.outcome)
        self._number = number
        self._forget()

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
        rises = self._looks.settled()[1]
        chances, by_the_usual = self._chances() if self._is_enough else ((), 0.0)
        return Outlook(
            horizon_s=self.step_s,
            values=tuple(_quantile(chances, level) for level in LEVELS),
            has_interval=self._is_enough,
            model=MODEL if by_the_usual < 0.5 else MODEL_WHEN_NEW,
            reason=f"{len(rises)} past moments, those like this one count most: {self._trust()}; "
            f"what is usual elsewhere counts for {by_the_usual:.0%}",
            scored=len(rises),
            wape=None,
            persistence_wape=None,
            coverage=None,
            chances=chances,
        )

    @property
    def _is_enough(self) -> bool:
        return self._looks.length > (FEWEST_ERRORS + 1) * LOOKS and len(self._looks.settled()[1]) >= FEWEST_ERRORS

    def _chances(self) -> tuple[tuple[tuple[float, float], ...], float]:
        """(growth, chance of more than it), and how much of that is what is usual elsewhere"""
        weights, found = self._judge.weights, self._foretell()
        chances = (weights[:, None] * found.chances).sum(axis=0)
        return tuple(zip(found.growths.tolist(), chances.tolist(), strict=True)), float((weights * found.usual).sum())

    def _foretell(self) -> Foretold:
        if self._foretold is None:
            signs, rises = self._looks.settled()
            self._foretold = foretell(signs, self._looks.signs(), rises, self._fading[-len(rises) :])
        return self._foretold

    def _trust(self) -> str:
        """The kinds of likeness by how much they count, for people."""
        by_weight = sorted(zip(self._judge.weights.tolist(), KINDS, strict=True), reverse=True)
        return ", ".join(f"by {kind} {weight:.0%}" for weight, kind in by_weight)


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
            judged_from_s = until_s - JUDGED_AT_START * self._window * self.step_s
            growth = self._growths[key] = Growth(self.step_s, self._window, judged_from_s)
            since_s = max(min(span.start_s for span in mine), until_s - self._window * self.step_s)
            moments_s = np.arange(since_s, until_s, self.step_s / LOOKS)
            for at_s, level in zip(moments_s.tolist(), levels_of_spans(mine, moments_s).tolist(), strict=True):
                growth.observe(at_s, level)
            self._wanted_at_s[key] = max(min(span.end_s, until_s) for span in mine)

    def forecasts(self, now_s: float) -> dict[SeriesKey, Forecast]:
        return {key: growth.forecast(now_s) for key, growth in sorted(self._growths.items())}
