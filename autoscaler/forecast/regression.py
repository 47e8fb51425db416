"""A lag regression with calendar features for one horizon: the change from the last value, least absolute error.

The median is what is asked for, so absolute errors are made small: by iteratively reweighted least squares (each round
is a ridge regression in closed form, with weights 1/|error|). Ridge pulls every coefficient, the constant included, to
zero, that is to persistence: on few or noisy data the regression says little.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.forecast.history import Array, History, Rows

RIDGE = 0.1  # per row, on features of size one
ROUNDS = 8
SMALLEST_ERROR = 0.05  # of the mean error: below, the weight grows no more
FARTHEST = 5.0  # a feature counts at most so many times its usual size: one burst must not throw the forecast


@dataclass(frozen=True, slots=True)
class Regression:
    coefficients: Array
    sizes: Array  # the usual size of each lag feature

    def predict(self, history: History, rows: Rows, horizon: int) -> Array:
        features = _scaled(history, rows, horizon, self.sizes)
        return np.maximum(history.values[rows] + features @ self.coefficients, 0.0)


def fit(history: History, rows: Rows, horizon: int) -> Regression:
    """`rows` are origins whose outcome is known."""
    lags = _lags(history, rows, horizon)
    level = history.values[rows].mean()
    sizes = np.maximum(np.sqrt((lags**2).mean(axis=0)), 1e-3 * level)
    sizes[sizes == 0.0] = np.inf  # never seen to be anything but zero: counts nothing
    change = history.values[rows + horizon] - history.values[rows]
    return Regression(_least_absolute(_scaled(history, rows, horizon, sizes), change), sizes)


def _least_absolute(features: Array, target: Array) -> Array:
    usual = np.abs(target).mean()
    coefficients = np.zeros(features.shape[1])
    if usual == 0.0:
        return coefficients
    ridge = RIDGE * len(target) * np.eye(features.shape[1])
    for _ in range(ROUNDS):
        error = np.abs(target - features @ coefficients) / usual
        weighted = features / np.maximum(error, SMALLEST_ERROR)[:, None]
        coefficients = np.linalg.solve(weighted.T @ features + ridge, weighted.T @ target)
    return coefficients


def _scaled(history: History, rows: Rows, horizon: int, sizes: Array) -> Array:
    lags = np.clip(_lags(history, rows, horizon) / sizes, -FARTHEST, FARTHEST)
    return np.concatenate([lags, _calendar(history, rows, horizon)], axis=1)


def _lags(history: History, rows: Rows, horizon: int) -> Array:
    """Differences from the last value, so that the regression is the same at every level."""
    now, day, week = history.values[rows], history.day, 7 * history.day
    columns = [history.lag(rows, steps) - now for steps in (1, 2, 3)]
    columns += [history.mean(rows, width) - now for width in (6, day, week)]
    for period in (day, week):
        then = history.seasonal(rows, horizon, period)
        columns += [then - now, then - history.lag(rows, period * -(-horizon // period))]
    return np.stack(columns, axis=1)


def _calendar(history: History, rows: Rows, horizon: int) -> Array:
    """Of the step that is forecast."""
    angle = history.day_angle(rows, horizon)
    waves = [np.sin(angle), np.cos(angle), np.sin(2 * angle), np.cos(2 * angle)]
    return np.stack([*waves, history.is_weekend(rows, horizon), np.ones(len(rows))], axis=1)
