"""Which cell a job runs in, and when it leaves it. Pure.

A job goes to the cell that can serve it at the least effective cost now (prices with the preemptions, boots and egress
that are expected; and a head, where there is none yet), and stays there. It leaves when its cell runs dry (all offers
that fit are refused, and it has less than its minimum) for `move_after_s`, or when the head of its cell is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.shape import Shape
from tradewind.events import AnyEvent, JobPlaced, MoveRequested
from tradewind.model import Offer, Resources
from tradewind.states import JobState
from tradewind.units import format_duration, format_usd

MOVE_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class CellOption:
    """What is known of a cell at one moment."""

    name: str
    offers: tuple[Offer, ...] = ()  # all that it sells, with a price
    closed: Mapping[str, str] = field(default_factory=dict)  # market key -> why it cannot be bought now
    has_head: bool = True
    head_uusd_per_h: int = 0  # of one that would have to be bought
    is_known: bool = True  # False: its cloud has not told its prices yet
    coming: frozenset[str] = frozenset()  # launch ids on their way
    leaving: frozenset[str] = frozenset()  # launch ids that will take no new work
    price: Callable[[Offer], float] = lambda offer: float(offer.price_uusd_per_h or 0)  # effective, in uusd an hour
    resources_of: Callable[[Offer], Resources] = lambda offer: offer.resources

    def fitting(self, shape: Shape | None) -> list[tuple[float, Offer]]:
        """(cost of one worker an hour, offer), the cheapest first. Of an unknown shape: by the node."""
        found = []
        for offer in self.offers:
            copies = 1 if shape is None else offer.hosts * shape.copies_in(self.resources_of(offer))
            if copies and (shape is None or shape.allows(offer.labels)):
                found.append((self.price(offer) / copies, offer))
        return sorted(found, key=lambda row: row[0])


@dataclass(frozen=True, slots=True)
class Placement:
    cell: str
    reason: str


def shape_of(job: JobRecord) -> Shape | None:
    """Of one worker; None: its program asks Ray, and nobody knows before."""
    spec = job.spec
    if not spec.max_workers or not spec.worker_resources:
        return None
    return Shape.of(spec.worker_resources, spec.worker_labels)


def place(job: JobRecord, cells: Sequence[CellOption]) -> Placement | None:
    """The best of these cells; None: wait, since the prices of some are not known yet, or nothing can be had now."""
    if len(cells) == 1:
        return Placement(cells[0].name, "the only cell there is")
    if not cells or not all(cell.is_known for cell in cells):
        return None
    shape, told = shape_of(job), {cell.name: "" for cell in cells}
    costs: dict[str, float] = {}
    for cell in cells:
        cost, told[cell.name] = _cost(job, shape, cell)
        if cost is not None:
            costs[cell.name] = cost
    if not costs:
        if shape is None or any(cell.fitting(shape) for cell in cells):
            return None  # refused for the moment
        return Placement(cells[0].name, f"no cell sells what fits {shape}: this one says so")
    best = min(costs, key=lambda name: costs[name])
    others = "; ".join(f"{name}: {text}" for name, text in told.items() if name != best)
    return Placement(best, f"{told[best]}, the least; {others}")


def _cost(job: JobRecord, shape: Shape | None, cell: CellOption) -> tuple[float | None, str]:
    """An hour of its minimum there, and in words; None: it cannot be served now."""
    workers = max(1, job.spec.min_workers)
    rows = cell.fitting(shape)
    open_rows = [row for row in rows if row[1].market.key not in cell.closed]
    if not open_rows:
        reasons = sorted({cell.closed[offer.market.key] for _, offer in rows})
        return None, reasons[0] if reasons else "nothing fits"
    each, offer = open_rows[0]
    head = 0 if cell.has_head else cell.head_uusd_per_h
    text = f"{format_usd(round(each * workers))}/h for {workers} on {offer.market}"
    return each * workers + head, text + (f" and {format_usd(head)}/h for a head" if head else "")


def workers_missing(job: JobRecord, cell: CellOption) -> int:
    """Of the minimum, on nodes that stay. Of a job that asks Ray itself nobody knows."""
    shape = shape_of(job)
    if shape is None:
        return 0
    held = sum(shape.copies_in(amounts) for name, amounts in job.holdings.items() if name not in cell.leaving)
    return max(0, max(1, job.spec.min_workers) - held)


def why_dry(job: JobRecord, cell: CellOption) -> str:
    """Why nothing can be bought for the job in its cell now; empty: something can, or is on its way."""
    rows = cell.fitting(shape_of(job))
    if cell.coming or not cell.is_known or any(offer.market.key not in cell.closed for _, offer in rows):
        return ""
    why = f"{rows[0][1].market}: {cell.closed[rows[0][1].market.key]}" if rows else "it sells nothing that fits"
    return f"{cell.name} has run dry ({why})"


@dataclass(slots=True)
class Router:
    """What is remembered between two looks: since when a job has less than its minimum."""

    move_after_s: float = MOVE_AFTER_S
    _short_since_s: dict[str, float] = field(default_factory=dict)

    def step(self, jobs: Iterable[JobRecord], cells: Mapping[str, CellOption], now_s: float) -> list[AnyEvent]:
        found: list[AnyEvent] = []
        for job in jobs:
            if not job.foreign and job.state is not JobState.STOPPING:
                found += self._step(job, cells, now_s)
        return found

    def _step(self, job: JobRecord, cells: Mapping[str, CellOption], now_s: float) -> list[AnyEvent]:
        own = cells.get(job.cell)
        if own is None:  # not placed yet, or its cell is no longer part of the fleet
            return _placed(job, place(job, tuple(cells.values())), now_s)
        others = tuple(cell for cell in cells.values() if cell is not own)
        waits = job.state is JobState.QUEUED and (job.moving or (job.started_at_s is not None and not own.has_head))
        if waits:
            found = _elsewhere(job, others)
            return _placed(job, found, now_s, job.moving or job.reason)
        if job.moving:
            return []  # it is being stopped
        return self._dried(job, own, others, now_s)

    def _dried(self, job: JobRecord, own: CellOption, others: Sequence[CellOption], now_s: float) -> list[AnyEvent]:
        missing = workers_missing(job, own)
        if not missing:
            self._short_since_s.pop(job.job_id, None)
            return []
        since_s = self._short_since_s.setdefault(job.job_id, now_s)
        why = why_dry(job, own) if now_s - since_s >= self.move_after_s else ""
        if not why or (found := _elsewhere(job, others)) is None:
            return []
        del self._short_since_s[job.job_id]
        short = f"{missing} of its {max(1, job.spec.min_workers)} workers are missing"
        reason = f"{why}: {short} for {format_duration(now_s - since_s)}; {found.cell} can serve it"
        return [MoveRequested(at_s=now_s, job_id=job.job_id, reason=reason)]


def _elsewhere(job: JobRecord, others: Sequence[CellOption]) -> Placement | None:
    """Only where it can be served now: staying costs nothing."""
    able = tuple(cell for cell in others if cell.is_known and _cost(job, shape_of(job), cell)[0] is not None)
    return place(job, able)


def _placed(job: JobRecord, found: Placement | None, now_s: float, why: str = "") -> list[AnyEvent]:
    if found is None:
        return []
    reason = f"{why}; {found.reason}" if why else found.reason
    return [JobPlaced(at_s=now_s, job_id=job.job_id, cell=found.cell, reason=reason)]
