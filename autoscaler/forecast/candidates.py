"""The candidates: each is a centre plus what happened after similar moments. Pure.

A *centre* says where the series goes: the last value, yesterday's, a regression, or zero (no opinion). A *weighting*
says which past moments are like this one: all alike, recent ones, those at a similar level, time of day, or after a
similar change. The quantiles of a candidate are its centre plus the weighted quantiles of (what came - what the centre
had said) at those moments. So "zero, lately" is the recent distribution, "persistence, at this level" knows that a full
cluster does not grow and an empty one does not shrink, and every candidate is calibrated on its own past errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.forecast.history import Array, History, Rows

# Up to 99 %: where waiting is dear, nodes are bought for a chance of a few percent.
LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
MEDIAN = LEVELS.index(0.5)

WEIGHTINGS = (
    "all",
    "lately",
    "at this level",
    "at this level and hour",
    "after such a change",
    "at this level after such a change",
)
CENTRES = ("zero", "persistence", "yesterday", "last week", "trend", "regression")
TREND = 0.3  # how much of the last change goes on

HALF_LIFE = 0.5  # of the window: how fast past moments lose weight
RECENT_HALF_LIFE = 0.125
NEAR_LEVEL = 0.3  # of the usual distance from the median
NEAR_CHANGE = 0.3  # of the usual change, on a logarithmic scale
NEAR_H = 2.0  # time of day
WIDE = 2.0  # where two likenesses are asked for at once, the level may be so many times farther
FLOOR = 0.01  # no moment is worth nothing: what was never seen before falls back on all of them
TINY = float(np.finfo(float).tiny)


@dataclass(frozen=True, slots=True)
class Candidate:
    centre: str
    weighting: str = "all"

    def __str__(self) -> str:
        return self.centre if self.weighting == "all" else f"{self.centre}, {self.weighting}"


BASELINE = Candidate("persistence")
CANDIDATES = (
    BASELINE,
    Candidate("persistence", "at this level"),
    Candidate("persistence", "at this level and hour"),
    Candidate("persistence", "after such a change"),
    Candidate("persistence", "at this level after such a change"),
    Candidate("trend"),
    Candidate("trend", "after such a change"),
    Candidate("yesterday"),
    Candidate("last week"),
    Candidate("regression"),
    Candidate("zero", "lately"),
    Candidate("zero", "at this level"),
)

_LEVELS = np.array(LEVELS)
_CENTRE = np.array([CENTRES.index(candidate.centre) for candidate in CANDIDATES])
_WEIGHTING = np.array([WEIGHTINGS.index(candidate.weighting) for candidate in CANDIDATES])
_IS_PLAIN = np.array([candidate.weighting == "all" for candidate in CANDIDATES])


def quantiles(history: History, horizons: Sequence[int]) -> Array:
    """(horizon, candidate, level) for so many steps after the newest row."""
    weights = _weights(history)
    return np.stack([_at_horizon(history, weights, column, horizon) for column, horizon in enumerate(horizons)])


def _at_horizon(history: History, weights: Array, column: int, horizon: int) -> Array:
    """(candidate, level); `column` is the horizon's place in `fitted`."""
    origins = history.origins(horizon)
    centre_now = _centres(history, history.newest, horizon, column)[:, 0]
    errors = history.values[origins + horizon] - _centres(history, origins, horizon, column)
    order = np.argsort(errors, axis=1)
    # An outcome that nobody saw counts (next to) nothing.
    seen = np.where(history.known[origins] & history.known[origins + horizon], 1.0, 1e-9)
    weight = (seen * weights[:, origins[0] : origins[-1] + 1])[_WEIGHTING]
    total = np.cumsum(np.take_along_axis(weight, order[_CENTRE], axis=1), axis=1)
    at = np.array([np.searchsorted(row, _LEVELS * row[-1]) for row in total])
    offsets = np.take_along_axis(errors, order, axis=1)[_CENTRE[:, None], at]
    offsets[_IS_PLAIN] = _around_zero(offsets[_IS_PLAIN])
    return np.asarray(np.maximum(centre_now[_CENTRE, None] + offsets, 0.0))


def _centres(history: History, rows: Rows, horizon: int, column: int) -> Array:
    """(centre, row), in the order of CENTRES."""
    now = history.values[rows]
    return np.stack(
        [
            np.zeros(len(rows)),
            now,
            history.seasonal(rows, horizon, history.day),
            history.seasonal(rows, horizon, 7 * history.day),
            np.maximum(now + TREND * (now - history.lag(rows, 1)), 0.0),
            history.fitted[rows, column],
        ]
    )


def _weights(history: History) -> Array:
    """(weighting, row): how much each moment of the past counts, in the order of WEIGHTINGS."""
    age = np.arange(history.length - 1, -1, -1) / history.window
    fading = 0.5 ** (age / HALF_LIFE)
    level = _level_distance(history)
    wide = (level / WIDE) ** 2
    change = (_change_distance(history) / NEAR_CHANGE) ** 2
    hour = (_hours_apart(history) / NEAR_H) ** 2
    return np.stack(
        [
            np.ones(history.length),
            0.5 ** (age / RECENT_HALF_LIFE),
            fading * _likeness(level**2),
            fading * _likeness(wide + hour),
            fading * _likeness(change),
            fading * _likeness(wide + change),
        ]
    )


def _likeness(squared_distance: Array) -> Array:
    return np.asarray(np.exp(-0.5 * squared_distance) + FLOOR)


def _level_distance(history: History) -> Array:
    values, now = history.values, history.values[-1]
    lately = values[-history.window :]
    usual = np.median(np.abs(lately - np.median(lately))) + 0.25 * lately.std()
    usual += 1e-6 * values.max() + TINY  # where nothing ever changed
    return np.asarray(np.abs(values - now) / (NEAR_LEVEL * usual))


def _change_distance(history: History) -> Array:
    """Changes are many small and few large ones: compared by order of magnitude, growth apart from decline."""
    change = np.diff(history.values, prepend=history.values[0])
    size = np.abs(change)
    scaled = np.sign(change) * np.log1p(size / (size.mean() + TINY))
    return np.asarray(np.abs(scaled - scaled[-1]))


def _hours_apart(history: History) -> Array:
    angle = history.day_angle(np.arange(history.length)) - history.day_angle(history.newest)
    return np.asarray(np.abs((angle + np.pi) % (2 * np.pi) - np.pi) * (12 / np.pi))


def _around_zero(offsets: Array) -> Array:
    """A plain candidate claims that its centre is the median: what it is named after, and what the baseline must be."""
    sides = np.sign(_LEVELS - 0.5)
    return np.asarray(np.maximum(offsets * sides, 0.0) * sides)
