"""The forecast of one series of demand: observations in, quantiles over the launch horizon out.

Stands between demand and the policies that buy ahead. Each step that ends is scored, learned from and followed by a new
forecast; all state is updated, nothing recomputed. With too little history, or where nothing beats it by more than
noise, the answer is persistence, and says so. No clock: time comes with the observations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.forecast.blend import Blend
from tradewind.autoscaler.forecast.candidates import BASELINE, CANDIDATES, LEVELS, MEDIAN, quantiles
from tradewind.autoscaler.forecast.history import Array, History
from tradewind.autoscaler.forecast.outlook import Forecast, Outlook
from tradewind.autoscaler.forecast.regression import Regression, fit
from tradewind.autoscaler.forecast.series import Sampler, Step

WINDOW = 672  # steps that are learned from: four weeks of hours
FEWEST_ERRORS = 8  # past errors, before an interval is given
FEWEST_ROWS = 24  # before a regression is fitted
REFIT_EVERY = 24  # steps; the horizons take turns, so that no step pays for all
LONGEST_GAP = 14.0  # days; after a longer one the series starts anew


@dataclass(slots=True)
class Accuracy:
    """Fading sums over the forecasts that were really given, for one horizon."""

    fade: float
    scored: int = 0
    weight: float = 0.0
    demand: float = 0.0
    error: float = 0.0  # absolute, of the median
    persistence_error: float = 0.0
    below: float = 0.0  # outcomes under the 90 % quantile
    at: float = 0.0  # and exactly on it

    def add(self, issued: Array, last: float, outcome: float) -> None:
        p90, median = float(issued[LEVELS.index(0.9)]), float(issued[MEDIAN])
        parts = {
            "weight": 1.0,
            "demand": outcome,
            "error": abs(outcome - median),
            "persistence_error": abs(outcome - last),
            "below": float(outcome < p90),
            "at": float(outcome == p90),
        }
        for name, part in parts.items():
            setattr(self, name, self.fade * getattr(self, name) + part)
        self.scored += 1


class Forecaster:
    """One series. `horizons_s` are rounded up to whole steps."""

    def __init__(self, step_s: float, horizons_s: Iterable[float], window: int = WINDOW) -> None:
        self.step_s = step_s
        self._sampler = Sampler(step_s)
        self._horizons = tuple(sorted({max(math.ceil(horizon_s / step_s - 1e-9), 1) for horizon_s in horizons_s}))
        if not self._horizons:
            raise ValueError(
                "at least one horizon is needed: seconds ahead, such as the time that a node takes to boot"
            )
        if window < FEWEST_ROWS:
            raise ValueError(f"a window of {window} steps is too short to learn from: at least {FEWEST_ROWS}")
        self._window = window
        self._start_anew()

    def _start_anew(self) -> None:
        count, longest = len(self._horizons), self._horizons[-1]
        self._history = History(self.step_s, count, self._window, longest)
        self._blend = Blend(self._horizons, half_life=self._window)
        self._accuracy = tuple(Accuracy(0.5 ** (1.0 / self._window)) for _ in self._horizons)
        self._regressions: list[Regression | None] = [None] * count
        # What was forecast at the last steps, until its outcome comes: (step, horizon, candidate, level).
        self._candidates = np.full((longest + 1, count, len(CANDIDATES), len(LEVELS)), np.nan)
        self._issued = np.full((longest + 1, count, len(LEVELS)), np.nan)
        self._steps = 0
        self._end_s: float | None = None  # of the newest step

    def observe(self, at_s: float, value: float) -> None:
        """Demand is `value` from `at_s` on. Call it at every tick, or whenever demand changes."""
        closed = self._sampler.observe(at_s, value)
        if len(closed) * self.step_s > LONGEST_GAP * 86400.0:
            self._start_anew()
            closed = closed[-1:]
        for step in closed:
            self.add(step)

    def add(self, step: Step) -> None:
        """One step of a series that is regular already. A value that is no number is a gap."""
        is_known = step.known and math.isfinite(step.value)
        held = float(self._history.values[-1]) if self._steps else 0.0
        value = max(step.value, 0.0) if math.isfinite(step.value) else held
        self._history.append(step.start_s, value, is_known)
        self._end_s = step.start_s + self.step_s
        if is_known:
            self._score(value)
        row = self._steps % len(self._issued)
        self._candidates[row], self._issued[row] = np.nan, np.nan
        if is_known:  # nobody waits for a forecast from a moment that was never looked at
            self._candidates[row] = self._propose()
            self._issued[row] = self._blend.mix(self._candidates[row])
        self._steps += 1

    def _score(self, outcome: float) -> None:
        for place, horizon in enumerate(self._horizons):
            row = (self._steps - horizon) % len(self._issued)
            candidates, issued = self._candidates[row, place], self._issued[row, place]
            if self._steps >= horizon and not np.isnan(issued).any():
                self._accuracy[place].add(issued, float(candidates[0, MEDIAN]), outcome)
                self._blend.score(place, candidates, issued, outcome)

    @property
    def _errors(self) -> int:
        """Of persistence, known by now at the longest horizon."""
        return len(self._history.origins(self._horizons[-1]))

    def _propose(self) -> Array:
        """(horizon, candidate, level)"""
        history = self._history
        if self._errors < FEWEST_ERRORS:
            return np.full(self._candidates.shape[1:], history.values[-1])
        for place, horizon in enumerate(self._horizons):
            regression = self._regression(place, horizon)
            if regression is not None:
                history.fitted[-1, place] = regression.predict(history, history.newest, horizon)[0]
        return quantiles(history, self._horizons)

    def _regression(self, place: int, horizon: int) -> Regression | None:
        origins = self._history.origins(horizon)
        is_turn = self._steps % REFIT_EVERY == place % REFIT_EVERY or self._regressions[place] is None
        if is_turn and len(origins) >= FEWEST_ROWS:
            self._regressions[place] = fit(self._history, origins, horizon)
        return self._regressions[place]

    def forecast(self, now_s: float | None = None) -> Forecast:
        """From the newest step that is over. Observations after it do not count yet."""
        issued = self._issued[(self._steps - 1) % len(self._issued)]
        is_empty = self._steps == 0 or bool(np.isnan(issued).any())
        return Forecast(
            made_at_s=self._end_s,
            age_s=0.0 if now_s is None or self._end_s is None else max(now_s - self._end_s, 0.0),
            steps=self._steps,
            outlooks=() if is_empty else self._outlooks(issued),
        )

    def _outlooks(self, issued: Array) -> tuple[Outlook, ...]:
        weights, evidence = self._blend.weights()[:, :, MEDIAN], self._blend.evidence()[:, :, MEDIAN]
        return tuple(
            self._outlook(place, row, *self._explain(weights[place], evidence[place]))
            for place, row in enumerate(issued)
        )

    def _outlook(self, place: int, issued: Array, model: str, reason: str) -> Outlook:
        horizon, accuracy = self._horizons[place], self._accuracy[place]
        total = max(accuracy.weight, 1.0)
        return Outlook(
            horizon_s=horizon * self.step_s,
            values=tuple(float(value) for value in issued),
            has_interval=self._errors >= FEWEST_ERRORS,
            model=model,
            reason=reason,
            scored=accuracy.scored,
            wape=accuracy.error / accuracy.demand if accuracy.demand else None,
            persistence_wape=accuracy.persistence_error / accuracy.demand if accuracy.demand else None,
            coverage=(accuracy.below / total, (accuracy.below + accuracy.at) / total) if accuracy.scored else None,
        )

    def _explain(self, weights: Array, evidence: Array) -> tuple[str, str]:
        """Of the median: who leads, and why. Both by candidate."""
        if self._errors < FEWEST_ERRORS:
            known = f"{self._errors} past errors are known, {FEWEST_ERRORS} are needed"
            return str(BASELINE), f"persistence without an interval: {known}"
        best = int(np.argmax(np.where(weights > 0, evidence, -np.inf)[1:])) + 1
        if weights[1:].sum() < 0.05:
            return str(BASELINE), "persistence: nothing beats it by more than noise"
        shares = [(weights[i], str(CANDIDATES[i])) for i in np.argsort(-weights) if weights[i] >= 0.05]
        model = " + ".join(f"{share:.0%} {name}" for share, name in shares)
        return model, f"{CANDIDATES[best]} beats persistence by {evidence[best]:.1f} standard errors"
