"""Figures that people ask for: what was paid, by whom, where and when, and what it bought. Pure; read off the ledger.

A summary adds the ledger's cells up by one of the words in `By`. Its lines add up to its total, to the micro-dollar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal, get_args

from tradewind.cost.books import MILLI, Cell
from tradewind.cost.history import WHOLE_PPM
from tradewind.cost.labels import JOB_LABELS, Label
from tradewind.cost.ledger import Ledger
from tradewind.cost.settle import DAY_MS, FLEET, LABELS
from tradewind.units import MS_PER_H, to_ms

By = Literal["job", "tenant", "team", "market", "cloud", "day", "label"]
BY: tuple[By, ...] = get_args(By)
OVERHEAD_NAME = "(overhead)"  # what no job pays for: booting, queued, idle, failed
_FIRST_DAY = datetime(1970, 1, 1, tzinfo=UTC)
# Positions in LABELS.
_USEFUL, _RECOMPUTED = LABELS.index(Label.USEFUL), LABELS.index(Label.RECOMPUTED)
_NUM_HELD = len(JOB_LABELS)  # these come first
_UNITS_PER_H = WHOLE_PPM * MS_PER_H * MILLI  # of the cells


@dataclass(frozen=True, slots=True)
class Utilisation:
    """Of the accelerators that were paid for: what part of their time jobs held them, took steps, took new steps."""

    allocated: float
    busy: float
    useful: float


@dataclass(frozen=True, slots=True)
class Line:
    """One group of a summary. None: cannot be said (no accelerator, nothing useful, or a price is unknown)."""

    name: str
    cost_uusd: int
    labels_uusd: dict[Label, int]  # they add up to the cost
    accelerator_hours: float
    useful_accelerator_hours: float
    paid_uusd_per_accelerator_h: int | None
    effective_uusd_per_accelerator_h: int | None
    on_demand_uusd: int | None  # the same node time at the on-demand list price
    saved_uusd: int | None
    utilisation: Utilisation | None
    unpriced_s: float  # node time without a known price: not in the cost


@dataclass(frozen=True, slots=True)
class Summary:
    by: By
    simulated: bool
    from_s: float | None  # the first day that is in it; None: from the beginning
    until_s: float
    lines: tuple[Line, ...]  # days in their order, else the dearest first
    total: Line


def summary(ledger: Ledger, by: By, now_s: float, *, from_s: float | None = None) -> Summary:
    """All cost by `now_s`, or from the day of `from_s` on."""
    groups: dict[str, _Group] = {}
    name_of = _names(ledger, by)
    from_day = None if from_s is None else to_ms(from_s) // DAY_MS
    for cell in ledger.cells(now_s, from_day=from_day, days=by == "day"):
        name = name_of(cell)
        group = groups.get(name)
        if group is None:
            group = groups[name] = _Group()
        group.add(cell)
    lines = [group.line(name) for name, group in groups.items() if group.is_there]
    total = _Group()
    for group in groups.values():
        total.join(group)
    ordered = sorted(lines, key=(lambda line: line.name) if by == "day" else _dearest_first)
    return Summary(by, ledger.simulated, from_s, now_s, tuple(ordered), total.line("total"))


def day_name(day: int) -> str:
    return (_FIRST_DAY + timedelta(days=day)).date().isoformat()


def _dearest_first(line: Line) -> tuple[bool, int, str]:
    return (line.name == OVERHEAD_NAME, -line.cost_uusd, line.name)


def _names(ledger: Ledger, by: By) -> Callable[[Cell], str]:
    if by == "day":
        days: dict[int, str] = {}
        return lambda cell: days.get(cell.day) or days.setdefault(cell.day, day_name(cell.day))
    if by == "market":
        return lambda cell: cell.market
    if by == "cloud":
        return lambda cell: cell.market.partition("/")[0]
    if by == "label":
        return lambda cell: LABELS[cell.label]
    names = _owners(ledger, by)
    return lambda cell: names[cell.job_id]


def _owners(ledger: Ledger, by: By) -> Mapping[str, str]:
    found = {FLEET: OVERHEAD_NAME}
    for job in ledger.jobs.values():
        team = f"{job.tenant}/{job.team}" if job.team else job.tenant
        found[job.job_id] = {"job": job.job_id, "tenant": job.tenant, "team": team}[by]
    return found


class _Group:
    """Cells added up by label. Plain lists: a large fleet has tens of thousands of cells."""

    __slots__ = ("costs", "hours", "is_there", "on_demand", "unlisted_ms", "unpriced_ms")

    def __init__(self) -> None:
        self.costs = [0] * len(LABELS)
        self.hours = [0] * len(LABELS)  # of accelerators, in the unit of cells
        self.is_there = False
        self.on_demand = self.unlisted_ms = self.unpriced_ms = 0

    def add(self, cell: Cell) -> None:
        _, _, _, label, cost_uusd, on_demand_uusd, accelerator_ppm_ms, unpriced_ms, unlisted_ms = cell
        self.costs[label] += cost_uusd
        self.hours[label] += accelerator_ppm_ms
        self.on_demand += on_demand_uusd
        self.unpriced_ms += unpriced_ms
        self.unlisted_ms += unlisted_ms
        self.is_there = True

    def join(self, other: _Group) -> None:
        self.costs = [mine + theirs for mine, theirs in zip(self.costs, other.costs, strict=True)]
        self.hours = [mine + theirs for mine, theirs in zip(self.hours, other.hours, strict=True)]
        self.on_demand += other.on_demand
        self.unlisted_ms += other.unlisted_ms
        self.unpriced_ms += other.unpriced_ms

    def line(self, name: str) -> Line:
        cost_uusd = sum(self.costs)
        hours, useful = sum(self.hours) / _UNITS_PER_H, self.hours[_USEFUL] / _UNITS_PER_H
        on_demand = None if self.unlisted_ms else self.on_demand
        return Line(
            name=name,
            cost_uusd=cost_uusd,
            labels_uusd={label: cost for label, cost in zip(LABELS, self.costs, strict=True) if cost},
            accelerator_hours=hours,
            useful_accelerator_hours=useful,
            paid_uusd_per_accelerator_h=self._per_hour(cost_uusd, hours),
            effective_uusd_per_accelerator_h=self._per_hour(cost_uusd, useful),
            on_demand_uusd=on_demand,
            saved_uusd=None if on_demand is None or self.unpriced_ms else on_demand - cost_uusd,
            utilisation=self._utilisation(hours, useful),
            unpriced_s=self.unpriced_ms / 1000,
        )

    def _per_hour(self, cost_uusd: int, hours: float) -> int | None:
        return round(cost_uusd / hours) if hours > 0 and not self.unpriced_ms else None

    def _utilisation(self, hours: float, useful: float) -> Utilisation | None:
        if hours <= 0:
            return None
        held = sum(self.hours[:_NUM_HELD]) / _UNITS_PER_H
        stepping = (self.hours[_USEFUL] + self.hours[_RECOMPUTED]) / _UNITS_PER_H
        return Utilisation(held / hours, stepping / hours, useful / hours)
