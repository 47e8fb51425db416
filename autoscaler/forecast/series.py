"""Demand as a series of equal steps: from observations as they come, from job rows, from spans of time. Pure.

Stands before the forecaster. The value of a step is the mean of the level over the step. A level holds until the next
observation, as demand does: it changes when somebody asks for more or gives something back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.autoscaler.shape import Shape

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """A regular series; the first step begins at `start_s`."""

    start_s: float
    step_s: float
    values: Array

    @property
    def times_s(self) -> Array:
        return np.asarray(self.start_s + self.step_s * np.arange(len(self.values)), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Span:
    """So much was wanted from one moment to another."""

    start_s: float
    end_s: float
    amount: float


@dataclass(frozen=True, slots=True)
class Step:
    """One step that is over. Not `known`: nobody looked, the level before it is assumed to have held."""

    start_s: float
    value: float
    known: bool = True


class Sampler:
    """Observations at any time -> steps that are over."""

    def __init__(self, step_s: float) -> None:
        if not (math.isfinite(step_s) and step_s > 0):
            raise ValueError(f"a step must be a positive number of seconds, not {step_s}")
        self.step_s = step_s
        self._at_s: float | None = None
        self._level = 0.0
        self._area = 0.0  # of the open step, until now

    def observe(self, at_s: float, value: float) -> list[Step]:
        """The steps that this observation closes. A value that is no number is no observation; below zero is zero."""
        if not (math.isfinite(at_s) and math.isfinite(value)):
            return []
        closed = list(self._advance(at_s))
        self._level = max(value, 0.0)
        return closed

    def _advance(self, at_s: float) -> Iterator[Step]:
        if self._at_s is None or at_s < self._at_s - self.step_s:
            # The first look, or a clock that was set back: the open step begins anew, as if the level had always held.
            self._area = self._level * (at_s - self._start_of(at_s))
            self._at_s = at_s
            return
        looked_s, start_s = self._at_s, self._start_of(self._at_s)
        while at_s >= start_s + self.step_s:
            end_s = start_s + self.step_s
            self._area += self._level * (end_s - self._at_s)
            # A step in which nobody looked, and after which nobody looked soon, is a gap.
            yield Step(start_s, self._area / self.step_s, known=start_s < looked_s + self.step_s)
            self._at_s, start_s, self._area = end_s, end_s, 0.0
        self._area += self._level * max(at_s - self._at_s, 0.0)  # a small step back is no time at all
        self._at_s = max(at_s, self._at_s)

    def _start_of(self, at_s: float) -> float:
        return math.floor(at_s / self.step_s) * self.step_s


def series_of_spans(spans: Sequence[Span], step_s: float, until_s: float | None = None) -> Steps:
    """Mean of the sum of all spans over each step, from the first start on; the last step is over at `until_s` (by
    default the last start: what was asked for after it is not on record)."""
    spans = [span for span in spans if span.amount > 0 and span.end_s > span.start_s]
    if not spans:
        return Steps(0.0, step_s, np.zeros(0))
    start_s = math.floor(min(span.start_s for span in spans) / step_s) * step_s
    last_s = max(span.start_s for span in spans) if until_s is None else until_s
    edges_s = Steps(start_s, step_s, np.zeros(max(int((last_s - start_s) // step_s), 0) + 1)).times_s
    area = _area_until(edges_s, spans, start_s)
    return Steps(start_s, step_s, np.maximum(np.diff(area) / step_s, 0.0))


def _area_until(edges_s: Array, spans: Sequence[Span], zero_s: float) -> Array:
    """Amount x time that all spans together have used until each edge."""
    amounts = np.array([span.amount for span in spans])
    edges = edges_s - zero_s
    total = np.zeros(len(edges))
    for sign, moments in ((1.0, [span.start_s for span in spans]), (-1.0, [span.end_s for span in spans])):
        at = np.array(moments) - zero_s
        order = np.argsort(at)
        count = np.searchsorted(at[order], edges, side="right")
        height = np.concatenate([[0.0], np.cumsum(amounts[order])])[count]
        moment = np.concatenate([[0.0], np.cumsum((amounts * at)[order])])[count]
        total += sign * (height * edges - moment)
    return total


def levels_of_spans(spans: Sequence[Span], moments_s: Array) -> Array:
    """What was wanted at these moments."""
    starts = sorted((span.start_s, span.amount) for span in spans)
    ends = sorted((span.end_s, span.amount) for span in spans)
    total = np.zeros(len(moments_s))
    for sign, edges in ((1.0, starts), (-1.0, ends)):
        count = np.searchsorted([at_s for at_s, _ in edges], moments_s, side="right")
        total += sign * np.concatenate([[0.0], np.cumsum([amount for _, amount in edges])])[count]
    return np.maximum(total, 0.0)


def series_of_jobs(rows: Iterable[tuple[float, float, float]], step_s: float) -> Steps:
    """(submit, duration, accelerators) of each job -> accelerators wanted. A row that says nothing is left out."""
    spans = [Span(submit, submit + duration, amount) for submit, duration, amount in rows if _is_job(submit, duration)]
    return series_of_spans(spans, step_s)


def _is_job(submit_s: float, duration_s: float) -> bool:
    return math.isfinite(submit_s) and math.isfinite(duration_s) and duration_s > 0


@dataclass(frozen=True, slots=True, order=True)
class SeriesKey:
    """Whose demand, of which shape: what one forecast is about."""

    tenant: str
    shape: Shape

    def __str__(self) -> str:
        return f"{self.tenant}: {self.shape}"


def unit_of(shape: Shape) -> tuple[Shape, int]:
    """What a job holds on a node is a sum, what waits are single requests: both are counted by accelerator (without
    one, by CPU), so that demand stays in one series when it begins to run."""
    amounts = dict(shape.resources)
    lead = next((amounts[key] for key in ("TPU", "GPU", "CPU") if key in amounts), 1.0)
    if lead < 2 or lead != round(lead):
        return shape, 1
    parts = ((key, round(amount / lead, 4)) for key, amount in shape.resources)
    unit = tuple((key, part) for key, part in parts if part)  # a thousandth of a node's own resource is next to nothing
    return Shape(unit, shape.selectors), round(lead)
