"""Who tells the policies what will be asked for: nobody, our forecasts, a head-room (constant, or after each rise), or
the trace itself.

All speak as forecasts, so that the same policies act on them, and only the knowledge differs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from tradewind.autoscaler.expected import new_book, step_s_of
from tradewind.autoscaler.forecast import Forecast, Outlook, SeriesKey
from tradewind.autoscaler.forecast.candidates import LEVELS
from tradewind.autoscaler.forecast.growth import LOOKS
from tradewind.autoscaler.simulate.trace import DAY_S, TraceJob
from tradewind.autoscaler.view import LoopSettings

Wanted = Mapping[SeriesKey, float]


class Foresight(Protocol):
    """Told at each tick what is wanted; asked what will be."""

    step_s: float | None  # how often it says something new without being told anything; None: never

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]: ...


class Nothing:
    """Reactive."""

    step_s: float | None = None

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]:  # noqa: ARG002
        return {}


class Learned:
    """As in the loop: from what has been seen until now."""

    def __init__(self, settings: LoopSettings) -> None:
        self.step_s: float | None = step_s_of(settings) / LOOKS
        self._book = new_book(settings)

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]:
        self._book.observe(now_s, wanted)
        return self._book.forecasts(now_s)


class HeadRoom:
    """So much more than is wanted at the moment, always."""

    step_s: float | None = None

    def __init__(self, extra: float) -> None:
        self._extra = extra

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]:
        return {key: _certain(now_s, amount + self._extra, "a constant head-room") for key, amount in wanted.items()}


class AfterRises:
    """So much more than is wanted, for a while after demand has risen by at least `rise` from one tick to the next."""

    step_s: float | None = 300.0  # when the while is over, somebody must be told

    def __init__(self, extra: float, while_s: float, rise: float) -> None:
        self._extra, self._while_s, self._rise = extra, while_s, rise
        self._last: Wanted = {}
        self._rose_at_s: dict[SeriesKey, float] = {}

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]:
        for key, amount in wanted.items():
            if amount - self._last.get(key, 0.0) >= self._rise:
                self._rose_at_s[key] = now_s
        self._last = dict(wanted)
        return {key: _certain(now_s, amount + self._more(key, now_s), "a rise") for key, amount in wanted.items()}

    def _more(self, key: SeriesKey, now_s: float) -> float:
        has_risen = now_s - self._rose_at_s.get(key, -math.inf) <= self._while_s
        return self._extra if has_risen else 0.0


class Clairvoyant:
    """Knows the trace: the most that will be wanted while a node that is asked for now boots, and a tick longer, if
    every job starts when it is submitted."""

    def __init__(self, jobs: Sequence[TraceJob], key: SeriesKey, reach_s: float, tick_s: float) -> None:
        self.step_s: float | None = tick_s
        self._key, self._reach_s = key, reach_s
        edges = sorted(
            [(job.submit_s, 0, job.workers) for job in jobs] + [(_end(job), 1, -job.workers) for job in jobs]
        )
        self._times_s = np.array([edge[0] for edge in edges])
        self._levels = np.cumsum([edge[2] for edge in edges])

    def forecasts(self, now_s: float, wanted: Wanted) -> dict[SeriesKey, Forecast]:
        first, last = np.searchsorted(self._times_s, [now_s, now_s + self._reach_s], side="right")
        ahead = self._levels[max(int(first) - 1, 0) : int(last)]
        peak = max(float(ahead.max(initial=0)), wanted.get(self._key, 0.0))
        return {self._key: _certain(now_s, peak, "the trace itself")}


def _end(job: TraceJob) -> float:
    return job.submit_s + job.duration_s


def _certain(now_s: float, amount: float, model: str) -> Forecast:
    outlook = Outlook(
        horizon_s=DAY_S,  # farther than any boot
        values=(amount - 1e-6,) * len(LEVELS),  # just below: what is as large is enough, without a doubt
        has_interval=True,
        model=model,
        reason="",
        scored=0,
        wape=None,
        persistence_wape=None,
        coverage=None,
    )
    return Forecast(now_s, 0.0, 0, (outlook,))
