"""Tallies of several policies -> figures with confidence intervals. Pure.

Windows of time are drawn with replacement, as many as there are, some hundred times (a block bootstrap: what happens
within a window hangs together). All policies saw the same windows, so the ratios to the first policy are taken draw by
draw: much that is chance for each of them is not chance between them. With repeats, the windows of all of them are one
lot. Intervals hold 95 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tradewind.autoscaler.simulate.sketch import quantiles
from tradewind.autoscaler.simulate.tally import Tally, Window

Array = NDArray[np.float64]
_DRAWS = 400
_FEWEST = 8  # windows: with less, nothing is said of chance
_UUSD = 3.6e6  # micro-dollars x milliseconds an hour -> micro-dollars


@dataclass(frozen=True, slots=True)
class Figure:
    value: float
    low: float | None = None  # None: too few windows to tell
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Result:
    """One policy. Times in seconds, money in micro-dollars; `cost_ratio` is to the first policy."""

    policy: str
    summary: str
    cost_uusd: Figure
    cost_ratio: Figure
    spot_share: float  # of the cost
    wait_mean_s: Figure
    wait_p95_s: Figure
    completion_mean_s: Figure
    completion_p95_s: Figure
    misses: Figure  # share of the deadlines
    utilisation: Figure  # GPU hours that jobs held, of those that were paid
    fairness: Figure  # Jain's index over jobs, of how fast each got through
    fairness_tenants: float
    paid_gpu_h: float
    useful_gpu_h: float
    lost_gpu_h: float  # done again, or restarting
    jobs: int
    deadlines: int
    hopeless: int
    never_fit: int
    largest_gpus: int
    preemptions: int
    restarts: int
    moves: int
    launches: int
    refusals: int
    plans: int
    decisions: int
    events: int
    days: float
    windows: int
    window_s: float
    cost_by_window_uusd: tuple[int, ...]  # of the first repeat


def compare(names: Sequence[tuple[str, str]], tallies: Sequence[Sequence[Tally]], seed: int = 0) -> list[Result]:
    """`names` are (policy, what it does); `tallies` by policy and repeat."""
    lots = [[window for tally in repeats for window in _evened(tally, tallies)] for repeats in tallies]
    count = max((len(lot) for lot in lots), default=0)
    lots = [[*lot, *(Window() for _ in range(count - len(lot)))] for lot in lots]
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), _DRAWS).astype(float)
    one = np.ones((1, count))
    first = _ratio(lots[0], _cost, lambda _: 1.0)
    results = []
    for (name, summary), repeats, lot in zip(names, tallies, lots, strict=True):
        results.append(_Sample(lot, weights, one, first).result(name, summary, repeats))
    return results


def _evened(tally: Tally, tallies: Sequence[Sequence[Tally]]) -> list[Window]:
    """Windows of all policies become as long as the longest: one that needs more time has longer ones."""
    longest_s = max(each.window_s for repeats in tallies for each in repeats)
    number = max(round(longest_s / tally.window_s), 1)
    found = []
    for begin in range(0, len(tally.windows), number):
        merged = Window()
        for window in tally.windows[begin : begin + number]:
            merged.take_in(window)
        found.append(merged)
    return found


Sums = Callable[[Window], float]


def _cost(window: Window) -> float:
    return window.cost / _UUSD


def _ratio(lot: Sequence[Window], upper: Sums, lower: Sums) -> tuple[Array, Array]:
    return np.array([upper(window) for window in lot]), np.array([lower(window) for window in lot])


def _divided(upper: Array, lower: Array) -> Array:
    return np.divide(upper, lower, out=np.zeros_like(upper), where=lower > 0)


class _Sample:
    def __init__(self, lot: Sequence[Window], weights: Array, one: Array, first: tuple[Array, Array]) -> None:
        self.lot, self.weights, self.one, self.first = lot, weights, one, first

    def mean(self, upper: Sums, lower: Sums) -> Figure:
        above, below = _ratio(self.lot, upper, lower)
        return self._figure(lambda weights: _divided(weights @ above, weights @ below))

    def total(self, upper: Sums) -> Figure:
        above, _ = _ratio(self.lot, upper, lambda _: 1.0)
        return self._figure(lambda weights: weights @ above)

    def quantile(self, level: float, of: str) -> Figure:
        sketches = [getattr(window, of) for window in self.lot]
        return self._figure(lambda weights: quantiles(sketches, weights, level))

    def jain(self) -> Figure:
        paces, squares = _ratio(self.lot, lambda window: window.pace, lambda window: window.pace_squared)
        jobs, _ = _ratio(self.lot, lambda window: float(window.jobs), lambda _: 1.0)
        return self._figure(lambda weights: _divided((weights @ paces) ** 2, (weights @ jobs) * (weights @ squares)))

    def to_first(self) -> Figure:
        mine, _ = _ratio(self.lot, _cost, lambda _: 1.0)
        return self._figure(lambda weights: _divided(weights @ mine, weights @ self.first[0]))

    def _figure(self, ask: Callable[[Array], Array]) -> Figure:
        value = float(ask(self.one)[0])
        if sum(1 for window in self.lot if window.jobs or window.cost) < _FEWEST:
            return Figure(value)
        low, high = np.quantile(ask(self.weights), [0.025, 0.975])
        return Figure(value, float(low), float(high))

    def result(self, name: str, summary: str, repeats: Sequence[Tally]) -> Result:
        whole = Window()
        for window in self.lot:
            whole.take_in(window)
        times = len(repeats)
        per_repeat = self.total(_cost)
        scaled = [None if each is None else each / times for each in (per_repeat.low, per_repeat.high)]
        return Result(
            policy=name,
            summary=summary,
            cost_uusd=Figure(per_repeat.value / times, *scaled),
            cost_ratio=self.to_first(),
            spot_share=whole.spot_cost / whole.cost if whole.cost else 0.0,
            wait_mean_s=self.mean(lambda window: window.wait_s, lambda window: float(window.jobs)),
            wait_p95_s=self.quantile(0.95, "waits"),
            completion_mean_s=self.mean(lambda window: window.completion_s, lambda window: float(window.jobs)),
            completion_p95_s=self.quantile(0.95, "completions"),
            misses=self.mean(lambda window: float(window.misses), lambda window: float(window.deadlines)),
            utilisation=self.mean(lambda window: window.busy_gpu_s, lambda window: window.paid_gpu_s),
            fairness=self.jain(),
            fairness_tenants=_jain_of_tenants(repeats),
            paid_gpu_h=whole.paid_gpu_s / 3600.0 / times,
            useful_gpu_h=whole.useful_gpu_s / 3600.0 / times,
            lost_gpu_h=whole.lost_gpu_s / 3600.0 / times,
            jobs=whole.jobs // times,
            deadlines=whole.deadlines // times,
            **{
                each: max(getattr(tally, each) for tally in repeats)
                if each == "largest_gpus"
                else sum(getattr(tally, each) for tally in repeats) // times
                for each in _COUNTS
            },
            days=sum(tally.end_s for tally in repeats) / times / 86400.0,
            windows=len(self.lot),
            window_s=max(tally.window_s for tally in repeats),
            cost_by_window_uusd=tuple(round(_cost(window)) for window in self.lot[: len(self.lot) // times]),
        )


_COUNTS = (
    *("hopeless", "never_fit", "largest_gpus", "preemptions", "restarts", "moves", "launches", "refusals"),
    *("plans", "decisions", "events"),
)


def _jain_of_tenants(repeats: Sequence[Tally]) -> float:
    """Over the mean pace of each tenant."""
    sums: dict[str, tuple[int, float]] = {}
    for tally in repeats:
        for tenant, (number, pace) in tally.tenants.items():
            before = sums.get(tenant, (0, 0.0))
            sums[tenant] = (before[0] + number, before[1] + pace)
    paces = np.array([pace / number for number, pace in sums.values() if number])
    return float(paces.sum() ** 2 / (len(paces) * (paces**2).sum())) if len(paces) else 1.0
