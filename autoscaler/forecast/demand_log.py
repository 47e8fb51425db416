"""What is wanted by tenant and shape, as the event log tells it: what jobs have stated, and what is asked of Ray. Pure.

The rules stand here once: wanted.py follows them for the present, the fold for the past. So a series goes on after a
start where it was, and people are shown what nodes are bought by.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from tradewind.autoscaler.forecast.series import SeriesKey, Span, unit_of
from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.events import (
    AnyEvent,
    DemandChanged,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
)
from tradewind.model import Asked, JobSpec
from tradewind.states import is_over

Part = tuple[SeriesKey, float]  # of what is wanted
Places = dict[Hashable, tuple[SeriesKey, float, float]]  # what is wanted there, since when, how much


def states_workers(spec: JobSpec) -> bool:
    """Otherwise the job asks Ray for its resources itself."""
    return bool(spec.max_workers and spec.worker_resources)


def stated_by(spec: JobSpec) -> Part | None:
    """The workers that a job has stated, if it has."""
    if not states_workers(spec):
        return None
    return SeriesKey(spec.tenant, Shape.of(spec.worker_resources, spec.worker_labels)), float(spec.max_workers)


def part_of(tenant: str, shape: Shape, count: float = 1.0) -> Part | None:
    """Requests, or what a job holds on a node; None: they ask for nothing that a node has."""
    unit, number = unit_of(shape)
    return (SeriesKey(tenant, unit), number * count) if unit.resources else None


def key_of(asked: Asked) -> SeriesKey:
    selectors = (tuple(LabelRule(*rule) for rule in selector) for selector in asked.where)
    return SeriesKey(asked.tenant, Shape.of(asked.resources, selectors=selectors))


def asked_of(key: SeriesKey, amount: float) -> Asked:
    """`key_of`, the other way round."""
    where = tuple(tuple((rule.key, rule.values, rule.negated) for rule in each) for each in key.shape.selectors)
    return Asked(key.tenant, dict(key.shape.resources), amount, where)


def total_of(parts: Iterable[Part | None]) -> dict[SeriesKey, float]:
    found: dict[SeriesKey, float] = {}
    for key, amount in filter(None, parts):
        found[key] = found.get(key, 0.0) + amount
    return found


def spans_of_events(events: Iterable[AnyEvent], until_s: float) -> Mapping[SeriesKey, list[Span]]:
    """A job that states its workers wants them from its submission to its end. What others ask Ray for themselves, each
    cell tells."""
    fold = DemandFold()
    for event in events:
        fold.apply(event)
    return fold.spans(until_s)


@dataclass(frozen=True, slots=True)
class Told:
    """What a cell has told, as it stands. Places are kept: what is no longer asked for stands there with 0."""

    at_s: float
    whole_at_s: float = float("-inf")  # when the whole list was told; never: it is not known what changes are about
    keys: tuple[SeriesKey, ...] = ()
    amounts: tuple[float, ...] = ()

    @property
    def wanted(self) -> dict[SeriesKey, float]:
        return total_of((key, amount) for key, amount in zip(self.keys, self.amounts, strict=True) if amount)


def told_after(last: Told | None, event: DemandChanged) -> Told:
    keys, amounts = tuple(key_of(each) for each in event.asked), [each.amount for each in event.asked]
    if not event.goes_on:
        return Told(event.at_s, event.at_s, keys, tuple(amounts))
    if last is None or last.whole_at_s == float("-inf"):
        return Told(event.at_s)  # the beginning of the log is lost: until the next whole list
    amounts = [*last.amounts, *amounts]
    for place, amount in event.changes:
        if place < len(amounts):
            amounts[place] = amount
    return Told(event.at_s, last.whole_at_s, last.keys + keys, tuple(amounts))


class DemandFold:
    """What is wanted at the moment, and what is over. Logs of older versions do not tell what is asked of Ray: there,
    jobs that state nothing are known by what they hold."""

    def __init__(self) -> None:
        self._over: dict[SeriesKey, list[Span]] = {}
        self._jobs: dict[str, Places] = {}  # "": what is stated; else a node that is held
        self._cells: dict[str, Places] = {}  # a place for each series
        self._told: dict[str, Told] = {}  # by cell
        self._tenants: dict[str, str] = {}

    def apply(self, event: AnyEvent) -> None:
        if isinstance(event, JobSubmitted):
            self._submitted(event)
        elif isinstance(event, HoldingChanged):
            self._holding(event)
        elif isinstance(event, DemandChanged):
            self._demand(event)
        elif isinstance(event, JobStateChanged) and is_over(event.state):
            places = self._jobs.pop(event.job_id, {})
            self._close(places, list(places), event.at_s)

    def spans(self, until_s: float) -> dict[SeriesKey, list[Span]]:
        """Everything that was wanted; what still is ends at `until_s`."""
        found = {key: list(spans) for key, spans in self._over.items()}
        for key, since_s, amount in self._open():
            found.setdefault(key, []).append(Span(since_s, max(until_s, since_s), amount))
        return found

    def wanted(self) -> dict[SeriesKey, float]:
        """At the moment."""
        return total_of((key, amount) for key, _, amount in self._open())

    def forget(self, before_s: float) -> None:
        """What was over by then."""
        kept = {key: [span for span in spans if span.end_s > before_s] for key, spans in self._over.items()}
        self._over = {key: spans for key, spans in kept.items() if spans}

    def _open(self) -> Iterator[tuple[SeriesKey, float, float]]:
        for places in (*self._jobs.values(), *self._cells.values()):
            yield from places.values()

    def _submitted(self, event: JobSubmitted) -> None:
        self._tenants[event.job_id] = event.spec.tenant
        self._jobs[event.job_id] = {}
        if (stated := stated_by(event.spec)) is not None:
            self._jobs[event.job_id][""] = (stated[0], event.at_s, stated[1])

    def _holding(self, event: HoldingChanged) -> None:
        places = self._jobs.get(event.job_id)
        if self._cells or places is None or "" in places:
            return  # the cell tells, or the job has ended, or it has said what it wants
        self._close(places, [event.launch_id], event.at_s)
        if (held := part_of(self._tenants[event.job_id], Shape.of(event.resources))) is not None:
            places[event.launch_id] = (held[0], event.at_s, held[1])

    def _demand(self, event: DemandChanged) -> None:
        """What has stayed as it was goes on: a long log has few spans."""
        if not self._cells:
            for held in self._jobs.values():
                self._close(held, [place for place in held if place != ""], event.at_s)
        mine = self._cells.setdefault(event.cell, {})
        told = self._told[event.cell] = told_after(self._told.get(event.cell), event)
        amounts = told.wanted
        self._close(mine, [place for place, (key, _, old) in mine.items() if amounts.get(key) != old], event.at_s)
        for key, amount in amounts.items():
            mine.setdefault(key, (key, event.at_s, amount))

    def _close(self, places: Places, which: Iterable[Hashable], at_s: float) -> None:
        for place in which:
            if place in places:
                key, since_s, amount = places.pop(place)
                self._over.setdefault(key, []).append(Span(since_s, at_s, amount))
