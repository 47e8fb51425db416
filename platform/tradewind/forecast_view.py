"""What was wanted, what will be, and how good forecasts have been: events in, a ForecastReport (api.py) out.

The controller hands over the events since the last question; what is learnt from them is kept, so that only the first
question after a start reads the whole log. No clock and no I/O in here.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    DemandPoint,
    ForecastPoint,
    ForecastReport,
    HorizonForecast,
    SeriesForecast,
)
from tradewind.autoscaler.expected import history_needed_s, step_s_of
from tradewind.autoscaler.forecast import (
    Backtest,
    DemandFold,
    Forecast,
    Outlook,
    SeriesKey,
    Span,
    Steps,
    history_for_interval_s,
    levels_of_spans,
    series_of_spans,
)
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import NotFound
from tradewind.events import AnyEvent
from tradewind.units import format_duration

STEP_S = 900.0
HORIZONS_S = (900.0, 1800.0, 3600.0, 7200.0)  # as long as nodes may take to boot
SAID_AHEAD_S = 3600.0  # of past forecasts, those that are shown
LEARNT_S = 4 * 86400.0  # of the log: each step costs milliseconds when it is first read
KEPT_S = 7 * 86400.0
_POINTS = 240  # of history, in one answer
TURN_ON = "`forecast: {buy_ahead: true}` in the fleet file turns it on"


@dataclass(frozen=True, slots=True)
class Question:
    now_s: float
    settings: LoopSettings
    what: str = ""  # a tenant, or a part of a shape
    hours: float = FORECAST_HOURS
    most: int = FORECAST_SERIES
    growth: Mapping[SeriesKey, Forecast] = field(default_factory=dict)  # what the loop buys by
    over_s: float | None = None  # of a fleet that does not run: how long ago its log ended, which is at `now_s`


class ForecastDesk:
    """Asked from several threads. `read` gives it events in the order of the log; `sequence` is the last it has."""

    def __init__(self) -> None:
        self.sequence = 0
        self._fold = DemandFold()
        self._backtests: dict[SeriesKey, Backtest] = {}
        self._lock = threading.Lock()

    def read(self, events: Iterable[tuple[int, AnyEvent]]) -> None:
        with self._lock:
            for sequence, event in events:
                if sequence > self.sequence:  # two may have asked at once
                    self._fold.apply(event)
                    self.sequence = sequence

    def report(self, question: Question) -> ForecastReport:
        with self._lock:
            self._fold.forget(question.now_s - KEPT_S)
            spans, wanted = self._fold.spans(question.now_s), self._fold.wanted()
            self._backtests = {key: found for key, found in self._backtests.items() if key in spans}
            keys = chosen(spans, question.what)
            since_s = question.now_s - question.hours * 3600.0
            keys.sort(key=lambda key: (-wanted.get(key, 0.0), -_area(spans[key], since_s), key))
            shown, left = keys[: question.most], keys[question.most :]
            return ForecastReport(
                fleet=question.settings.fleet,
                made_at_s=question.now_s,
                hours=question.hours,
                series=tuple(self._series(key, spans[key], wanted.get(key, 0.0), question) for key in shown),
                others=tuple(str(key) for key in left),
                notes=_notes(keys, question),
            )

    def _series(self, key: SeriesKey, spans: Sequence[Span], now: float, question: Question) -> SeriesForecast:
        now_s, since_s = question.now_s, question.now_s - question.hours * 3600.0
        backtest = self._backtest(key, spans, now_s)
        is_used, use = False, "no: the fleet does not run"
        if question.over_s is None:
            is_used, use = use_of(forecast=question.growth.get(key), present=now, settings=question.settings)
        return SeriesForecast(
            tenant=key.tenant,
            shape=str(key.shape),
            now=now,
            history=_history(spans, since_s, now_s, now),
            ahead=tuple(_horizon(outlook, now_s) for outlook in backtest.outlooks(now_s, now)),
            said=tuple(
                ForecastPoint(at_s=said.at_s, p10=said.p10, p50=said.p50, p90=said.p90)
                for said in backtest.said
                if since_s <= said.at_s <= now_s
            ),
            said_ahead_s=SAID_AHEAD_S,
            since_s=min(span.start_s for span in spans),
            needed_s=history_for_interval_s(STEP_S, HORIZONS_S),
            is_used=is_used,
            use=use,
        )

    def _backtest(self, key: SeriesKey, spans: Sequence[Span], now_s: float) -> Backtest:
        if key not in self._backtests:
            keep = round(KEPT_S / STEP_S)
            self._backtests[key] = Backtest(STEP_S, HORIZONS_S, SAID_AHEAD_S, keep)
        found = self._backtests[key]
        first_s = max(min(span.start_s for span in spans), now_s - LEARNT_S, found.last_s + 1.0)
        moments_s = np.arange(math.ceil(first_s / STEP_S) * STEP_S, now_s, STEP_S)
        found.feed(zip(moments_s.tolist(), levels_of_spans(spans, moments_s).tolist(), strict=True))
        return found


def chosen(keys: Iterable[SeriesKey], what: str) -> list[SeriesKey]:
    """Those of a tenant, else those whose shape names such a resource, else those with this text in their shape."""
    known = sorted(keys)
    if not what:
        return known
    lower = what.lower()
    resources = {key: [name.lower() for name, _ in key.shape.resources] for key in known}
    for found in (
        [key for key in known if key.tenant == what],
        [key for key in known if lower in resources[key]],
        [key for key in known if lower in str(key).lower()],
    ):
        if found:
            return found
    there = f"there is demand of {'; '.join(map(str, known[:4]))}" if known else "nothing was asked for yet"
    raise NotFound(f"no tenant and no shape like {what} was asked for", there)


def use_of(forecast: Forecast | None, present: float, settings: LoopSettings) -> tuple[bool, str]:
    """Whether nodes are bought by it, and why or why not. `forecast` is the loop's, of growth within a step."""
    if not settings.buy_ahead:
        return False, f"no: buying ahead is off; {TURN_ON}"
    outlook = forecast.at(settings.usual_boot_s) if forecast else None
    if forecast is None or outlook is None or not outlook.has_interval:
        seen = _minutes(forecast.steps * step_s_of(settings) if forecast else 0.0)
        needed = _minutes(history_needed_s(settings))
        return False, f"not yet, nodes are bought when they are asked for: {seen} of history, {needed} are needed"
    ahead = format_duration(outlook.horizon_s)
    return (
        True,
        f"yes: {present:g} now, up to {outlook.p50:g} within {ahead} (90 %: {outlook.p90:g}), by {outlook.model}",
    )


def _minutes(duration_s: float) -> str:
    return f"{duration_s / 60:.0f} minutes"


def _notes(keys: Sequence[SeriesKey], question: Question) -> tuple[str, ...]:
    over_s = question.over_s
    if keys:
        ago = "" if over_s is None else format_duration(over_s)
        return (f"The fleet does not run: `now` is when its log ended, {ago} ago.",) if ago else ()
    off = "" if question.settings.buy_ahead or over_s is not None else f" Buying ahead is off; {TURN_ON}."
    return (f"No demand is on record for the last {KEPT_S / 86400:.0f} days: there is nothing to forecast.{off}",)


def _area(spans: Iterable[Span], since_s: float) -> float:
    return sum(span.amount * max(span.end_s - max(span.start_s, since_s), 0.0) for span in spans)


def _history(spans: Sequence[Span], since_s: float, now_s: float, now: float) -> tuple[DemandPoint, ...]:
    """From the first demand on, in at most `_POINTS` equal steps, and the present."""
    begin_s = max(since_s, min(span.start_s for span in spans))
    step_s = max((now_s - begin_s) / _POINTS, 1.0)
    steps = series_of_spans(spans, step_s, now_s)
    points = [DemandPoint(at_s=at_s, amount=amount) for at_s, amount in _ends(steps) if begin_s < at_s < now_s]
    return (*points, DemandPoint(at_s=now_s, amount=now))


def _ends(steps: Steps) -> Iterable[tuple[float, float]]:
    return zip((steps.times_s + steps.step_s).tolist(), steps.values.tolist(), strict=True)


def _horizon(outlook: Outlook, now_s: float) -> HorizonForecast:
    under, covered = outlook.coverage or (None, None)
    return HorizonForecast(
        ahead_s=outlook.horizon_s,
        point=ForecastPoint(at_s=now_s + outlook.horizon_s, p10=outlook.p10, p50=outlook.p50, p90=outlook.p90),
        has_interval=outlook.has_interval,
        model=outlook.model,
        reason=outlook.reason,
        scored=outlook.scored,
        wape=outlook.wape,
        persistence_wape=outlook.persistence_wape,
        under_p90=under,
        covered_p90=covered,
    )
