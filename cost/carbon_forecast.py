"""How clean (or dear) electricity will be in the next hours, from its own past. Pure.

Stands before carbon.py. One ridge regression an hour ahead, on what tends to tell: the same hour of the last seven
days, the last three hours, and the means of the last day, the day before and the week. It is fitted to the zone's own
past alone, so a zone that nobody has seen needs no tuning. With less than three weeks of past, yesterday is repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

DAY_H, WEEK_H = 24, 168
MIN_PAST_H = 21 * DAY_H
MAX_PAST_H = 365 * DAY_H  # a year: the seasons are in it, the power plants of long ago are not
RIDGE = 10.0  # against a sum of squares of hundreds: only breaks ties between hours that are alike
_EVERY_H = 5  # hours between examples: neighbours tell the same; 5 meets every hour of the day

Series = NDArray[np.float64]


@dataclass(frozen=True)
class GridModel:
    """Weights by hours ahead: [h - 1] is for h hours ahead."""

    means: NDArray[np.float64]
    scales: NDArray[np.float64]
    weights: NDArray[np.float64]
    levels: NDArray[np.float64]

    @property
    def hours(self) -> int:
        return len(self.levels)


def fit(past: Sequence[float] | Series, hours: int) -> GridModel | None:
    """Of hourly values, the last one that of the current hour. None where there are too few."""
    series = np.asarray(past, dtype=float)[-MAX_PAST_H:]
    first = DAY_H * (-(-hours // DAY_H) + 7)
    if len(series) < max(MIN_PAST_H, 2 * first) or not np.isfinite(series).all():
        return None
    fitted = [_fit_ahead(series, first, ahead) for ahead in range(1, hours + 1)]
    return GridModel(*(np.array(column) for column in zip(*fitted, strict=True)))


def forecast(past: Sequence[float] | Series, hours: int, model: GridModel | None = None) -> list[float]:
    """Values of the current hour (as it is) and of the hours after it, `hours` in all."""
    needed_h = DAY_H * (-(-hours // DAY_H) + 8)
    series = np.asarray(past[-needed_h:], dtype=float)
    if hours == 1 or model is None or model.hours < hours - 1 or len(series) < needed_h:
        return [_as_yesterday(series, ahead) for ahead in range(hours)]
    now = np.array([len(series) - 1])
    seen = np.array([_tells(series, now, ahead)[0] for ahead in range(1, hours)])
    scaled = (seen - model.means[: hours - 1]) / model.scales[: hours - 1]
    told = model.levels[: hours - 1] + (scaled * model.weights[: hours - 1]).sum(axis=1)
    return [float(series[-1]), *map(float, told)]


def _as_yesterday(series: Series, ahead: int) -> float:
    days = -(-ahead // DAY_H)
    position = len(series) - 1 + ahead - DAY_H * days
    return float(series[position if position >= 0 else -1])


def _fit_ahead(series: Series, first: int, ahead: int) -> tuple[Any, Any, Any, float]:
    at = np.arange(first, len(series) - ahead, _EVERY_H)
    seen, came = _tells(series, at, ahead), series[at + ahead]
    means, scales, level = seen.mean(axis=0), seen.std(axis=0) + 1e-9, float(came.mean())
    scaled = (seen - means) / scales
    gram = scaled.T @ scaled + RIDGE * np.eye(scaled.shape[1])
    return means, scales, np.linalg.solve(gram, scaled.T @ (came - level)), level


def _tells(series: Series, at: NDArray[np.int64], ahead: int) -> NDArray[np.float64]:
    """What is known at the hours `at` that tells of `ahead` hours later: one row each."""
    target, days = at + ahead, -(-ahead // DAY_H)
    columns = [series[target - DAY_H * (days + back)] for back in range(7)]
    columns += [series[at], series[at - 1], series[at - 2], series[at - DAY_H]]
    sums = np.concatenate([[0.0], np.cumsum(series)])
    for start, end in ((0, DAY_H), (DAY_H, 2 * DAY_H), (0, WEEK_H)):
        columns.append((sums[at + 1 - start] - sums[at + 1 - end]) / (end - start))
    return np.stack(columns, axis=-1)
