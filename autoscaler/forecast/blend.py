"""How much each candidate counts, by rolling backtest. State of one series, all horizons and levels at once.

Each candidate's forecast is scored when its outcome comes, by pinball loss (at the median: half the absolute error).
What counts is the gain over persistence, measured against noise:

    t = sum(gain) / sqrt(horizon * sum(gain^2))           forecasts `horizon` steps ahead overlap: so many are one
    occasions = sum(|gain|)^2 / (horizon * sum(gain^2))   how many moments decided it: a burst or two are not enough
    weight = prior * exp(TRUST * t) * occasions / (occasions + OCCASIONS), and nothing where t < NOISE

Sums fade with `half_life`. The forecast is the weighted mean of the candidates' quantiles. Where nothing beats
persistence by more than noise, that is persistence. A mean loses less than a hard choice when the past misleads: on
sparse series a hard choice cost up to 10 % against persistence, the mean 2 % (docs/designs/forecast.md).

The persistence-centred candidates differ only in their spread. No evidence is asked of them at levels other than the
median: that errors depend on the level and on the last change holds for demand in general.
"""

from __future__ import annotations

import numpy as np

from tradewind.autoscaler.forecast.candidates import CANDIDATES, LEVELS, MEDIAN, TINY
from tradewind.autoscaler.forecast.history import Array

TRUST = 3.0
NOISE = 1.0  # standard errors
OCCASIONS = 10.0
PRIOR = 0.8  # of persistence at the median; of the persistence-centred ones together elsewhere
DRIFT = 0.003  # how far a level moves for one outcome that misses it
EAGER = 5.0  # ... and so many times farther at the beginning, when intervals rest on little
YOUNG = 0.25  # of the half-life: after so many outcomes half of that eagerness is left
SLACK = 0.02  # moves up to here are noise, and nothing is done: each candidate is calibrated already
FARTHEST = 0.05  # beyond the slack

_LEVELS = np.array(LEVELS)
_IS_MEDIAN = np.arange(len(LEVELS)) == MEDIAN
_IS_NEAR = np.array([candidate.centre == "persistence" for candidate in CANDIDATES])


def pinball(forecast: Array, outcome: Array | float) -> Array:
    """The last axis of `forecast` are the quantile levels."""
    error = outcome - forecast
    return np.maximum(_LEVELS * error, (_LEVELS - 1.0) * error)


def _prior() -> Array:
    """(candidate, level)"""
    others = (1.0 - PRIOR) / (len(CANDIDATES) - 1)
    at_median = np.where(np.arange(len(CANDIDATES)) == 0, PRIOR, others)
    near = _IS_NEAR.sum()
    elsewhere = np.where(_IS_NEAR, PRIOR / near, (1.0 - PRIOR) / (len(CANDIDATES) - near))
    return np.where(_IS_MEDIAN, at_median[:, None], elsewhere[:, None])


class Blend:
    def __init__(self, horizons: tuple[int, ...], half_life: float) -> None:
        self._fade = 0.5 ** (1.0 / half_life)
        self._horizons = np.array(horizons, dtype=float)[:, None, None]
        self._prior = _prior()
        shape = (len(horizons), len(CANDIDATES), len(LEVELS))
        self._gain, self._size, self._square = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._shift = np.zeros((len(horizons), len(LEVELS)))
        self._outcomes = np.zeros(len(horizons))
        self._young = YOUNG * half_life

    def score(self, place: int, candidates: Array, issued: Array, outcome: float) -> None:
        """`candidates` (candidate, level) and `issued` (level) were forecast for horizon number `place`."""
        loss = pinball(candidates, outcome)
        gain = loss[0] - loss
        for total, part in ((self._gain, gain), (self._size, np.abs(gain)), (self._square, gain**2)):
            total[place] = self._fade * total[place] + part
        # Adaptive conformal inference (Gibbs and Candes 2021): a level that is missed too often moves outward. An
        # outcome that equals the forecast says nothing: many series of demand stand still most of the time. Steps
        # become smaller with time (as in Angelopoulos, Barber and Bates 2024): what a week has taught is soon outgrown.
        hit = np.where(np.abs(outcome - issued) <= 1e-9 * outcome, _LEVELS, outcome < issued)
        step = DRIFT * (1.0 + EAGER / (1.0 + self._outcomes[place] / self._young))
        moved = self._shift[place] + step / self._horizons[place, 0, 0] * (_LEVELS - hit)
        self._outcomes[place] += 1
        self._shift[place] = np.where(_IS_MEDIAN, 0.0, np.clip(moved, -SLACK - FARTHEST, SLACK + FARTHEST))

    def weights(self) -> Array:
        """(horizon, candidate, level), adding up to one over the candidates."""
        scale = np.sqrt(self._horizons * self._square) + TINY
        t = self.evidence()
        occasions = (self._size / scale) ** 2
        weight = self._prior * np.exp(TRUST * np.minimum(t, 30.0)) * occasions / (occasions + OCCASIONS)
        is_trusted = (t >= NOISE) | (_IS_NEAR[:, None] & ~_IS_MEDIAN)
        weight = np.where(is_trusted, weight, 0.0)
        weight[:, 0, :] = self._prior[0]
        return np.asarray(weight / weight.sum(axis=1, keepdims=True))

    def evidence(self) -> Array:
        """t of each candidate: its gain over persistence in standard errors."""
        return np.asarray(self._gain / (np.sqrt(self._horizons * self._square) + TINY))

    def mix(self, candidates: Array) -> Array:
        """(horizon, candidate, level) -> the quantiles that are issued, (horizon, level), in order."""
        blended = np.sort((self.weights() * candidates).sum(axis=1), axis=1)
        shifts = np.sign(self._shift) * np.maximum(np.abs(self._shift) - SLACK, 0.0)
        moved = [np.interp(_LEVELS + shift, _LEVELS, row) for shift, row in zip(shifts, blended, strict=True)]
        return np.sort(np.array(moved), axis=1)
