"""The forecasters that ours is compared with, on the same origins and without look-ahead: at origin t they see
`values[: t + 1]` and answer for t + horizon.

Each answers with an array (origins, horizons, 2): the median and the 90 % quantile, never below zero. Persistence and
yesterday have no quantile of their own; they get the empirical one of their past errors. statsforecast and LightGBM are
fitted anew only every `refit_every` origins, and no more after `budget_s` seconds of CPU on a series (both said in the
output); between, AutoETS goes on with its parameters over all new values, and LightGBM sees them as features.
"""

from __future__ import annotations

import importlib.util
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
INSTALL = "pip install 'tradewind[bench]'"
ERROR_WINDOW = 672  # past errors that make up the quantile of a baseline
LIGHTGBM_OPTIONS = {
    "objective": "quantile", "learning_rate": 0.05, "num_leaves": 15, "min_data_in_leaf": 20, "bagging_fraction": 0.8,
    "bagging_freq": 1, "feature_fraction": 0.8, "num_threads": 1, "verbosity": -1, "seed": 1,
}  # fmt: skip
LIGHTGBM_ROUNDS = 100


@dataclass(frozen=True, slots=True)
class Task:
    """One series with everything that is asked of a forecaster about it."""

    times_s: Array
    values: Array
    horizons: tuple[int, ...]  # in steps
    origins: range
    season: int  # steps of a day
    refit_every: int
    budget_s: float = float("inf")  # of CPU, for a peer's fits and forecasts of this series
    capped: set[str] = field(default_factory=set)  # peers that have used it up


Peer = Callable[[Task], Array]


def available() -> tuple[dict[str, Peer], tuple[str, ...]]:
    """The peers that can run here, and a line for each one that cannot."""
    wanted: dict[str, tuple[str, Peer]] = {"AutoETS": ("statsforecast", autoets), "LightGBM": ("lightgbm", lightgbm)}
    there = {name: peer for name, (module, peer) in wanted.items() if importlib.util.find_spec(module)}
    missing = [f"{name} is left out: not installed ({INSTALL})" for name in wanted if name not in there]
    return {"persistence": persistence, "yesterday": yesterday, **there}, tuple(missing)


def persistence(task: Task) -> Array:
    return _with_past_errors(task, lambda origin, _: origin)


def yesterday(task: Task) -> Array:
    """The same time on the last day that is known at the origin."""
    return _with_past_errors(task, lambda origin, horizon: origin + horizon - task.season * -(-horizon // task.season))


def autoets(task: Task) -> Array:
    from statsforecast.models import AutoETS

    answers = np.zeros((len(task.origins), len(task.horizons), 2))
    steps = np.array(task.horizons) - 1
    model: Any = None
    within = _budget(task, "AutoETS")
    for row, origin in enumerate(task.origins):
        seen = task.values[: origin + 1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if row == 0 or (row % task.refit_every == 0 and within()):
                model = AutoETS(season_length=task.season).fit(seen)
            found = model.forward(seen, h=max(task.horizons), level=[80])
        answers[row, :, 0] = found["mean"][steps]
        answers[row, :, 1] = found["hi-80"][steps]
    return np.maximum(np.nan_to_num(answers), 0.0)


def lightgbm(task: Task) -> Array:
    """Quantile regression on lags, means and the calendar; the target is the change from the last value."""
    answers = np.zeros((len(task.origins), len(task.horizons), 2))
    features = [_features(task, horizon) for horizon in task.horizons]
    models: list[list[Any]] = []
    within = _budget(task, "LightGBM")
    for start in range(0, len(task.origins), task.refit_every):
        origins = np.array(task.origins[start : start + task.refit_every])
        if start == 0 or within():
            models = [_lightgbm_fits(task, features[i], horizon, origins[0]) for i, horizon in enumerate(task.horizons)]
        for column, pair in enumerate(models):
            for place, model in enumerate(pair):
                change = model.predict(features[column][origins])
                answers[start : start + len(origins), column, place] = task.values[origins] + change
    return np.maximum(answers, 0.0)


def _lightgbm_fits(task: Task, features: Array, horizon: int, origin: int) -> list[Any]:
    """For the median and the 90 % quantile, on what is known at the origin."""
    known = np.arange(0, origin - horizon + 1)
    change = task.values[known + horizon] - task.values[known]
    return [_lightgbm_fit(features[known], change, quantile) for quantile in (0.5, 0.9)]


def _budget(task: Task, who: str) -> Callable[[], bool]:
    """Says whether it may be fitted again; who may not is noted."""
    until_s = time.process_time() + task.budget_s

    def within() -> bool:
        if time.process_time() > until_s:
            task.capped.add(who)
        return who not in task.capped

    return within


def _lightgbm_fit(features: Array, target: Array, quantile: float) -> Any:
    from lightgbm import Dataset, train

    return train({**LIGHTGBM_OPTIONS, "alpha": quantile}, Dataset(features, target), LIGHTGBM_ROUNDS)


def _features(task: Task, horizon: int) -> Array:
    values, day = task.values, task.season
    lags = (1, 2, 3, 6, 12, day - 1, day, max(day - horizon, 0), max(7 * day - horizon, 0))
    at_s = task.times_s + horizon * (task.times_s[1] - task.times_s[0])
    means = [_trailing_mean(values, width) - values for width in (6, day, 7 * day)]
    calendar = [at_s % 86400.0 / 3600.0, at_s // 86400.0 % 7.0]
    return np.stack([values, *(_lagged(values, lag) - values for lag in lags), *means, *calendar], axis=1)


def _lagged(values: Array, lag: int) -> Array:
    return np.concatenate([np.full(lag, np.nan), values])[: len(values)]


def _trailing_mean(values: Array, width: int) -> Array:
    sums = np.concatenate([[0.0], np.cumsum(values)])
    last = np.arange(1, len(values) + 1)
    first = np.maximum(last - width, 0)
    return np.asarray((sums[last] - sums[first]) / (last - first))


def _with_past_errors(task: Task, source: Callable[[int, int], int]) -> Array:
    """The value at `source(origin, horizon)`, and above it the 90 % quantile of such a rule's errors until now."""
    answers = np.zeros((len(task.origins), len(task.horizons), 2))
    values = task.values
    for column, horizon in enumerate(task.horizons):
        offset = source(0, horizon)
        errors = (
            values[horizon - offset :] - values[: len(values) - horizon + offset]
        )  # known at index + horizon - offset
        for row, origin in enumerate(task.origins):
            known = errors[: origin + 1 - horizon + offset][-ERROR_WINDOW:]
            median = values[max(origin + offset, 0)]
            answers[row, column] = median, median + (np.quantile(known, 0.9) if len(known) else 0.0)
    return np.maximum(answers, 0.0)
