"""The ledger's memory of what is settled, so that a question costs what has changed since the last one. Pure.

Stands between the histories (`history.py`, `timeline.py`) and the questions (`ledger.py`). Each node's days that are
over are settled once, and added up by day, market, job and label; the day that runs is settled when somebody asks. What
is heard late of the past makes the days from then on be settled again: the answer never depends on who asked when.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

from tradewind.cost.history import NodeHistory, PriceHistory
from tradewind.cost.settle import DAY_MS, Key, Memory, Row, Statement, Stretch, by_day, statement, stretches
from tradewind.cost.timeline import Timeline
from tradewind.model import Offer

Owner = tuple[str, str, int]  # market, job, position in LABELS
MILLI = 1000  # accelerators are counted in thousandths, so that sums stay whole numbers
OfDay = tuple[int, tuple[Stretch, ...]]  # a day, and its stretches
AnyKey = TypeVar("AnyKey", Owner, tuple[int, int])
FOREVER_MS = 2**62
_NO_PRICES = PriceHistory()


class NodeCost(NamedTuple):
    launch_id: str
    cost_uusd: int
    price_uusd_per_h: int | None  # the last one
    is_over: bool


class Cell(NamedTuple):
    """A part of the cost. What it was not asked by is empty, or -1."""

    day: int
    market: str
    job_id: str
    label: int
    cost_uusd: int
    on_demand_uusd: int
    accelerator_ppm_ms: int  # over all accelerators of the nodes, in thousandths of one
    unpriced_ms: int
    unlisted_ms: int


@dataclass(slots=True)
class Sums:
    """Rows added up."""

    cost_uusd: int = 0
    on_demand_uusd: int = 0
    duration_ms: int = 0
    accelerator_ppm_ms: int = 0
    unpriced_ms: int = 0
    unlisted_ms: int = 0

    def add(self, row: Row, times: int = 1, accelerators: int = 1) -> None:
        self.cost_uusd += times * row.cost_uusd
        self.on_demand_uusd += times * row.on_demand_uusd
        self.duration_ms += times * row.duration_ms
        self.accelerator_ppm_ms += times * accelerators * row.accelerator_ppm_ms
        self.unpriced_ms += times * row.unpriced_ms
        self.unlisted_ms += times * row.unlisted_ms

    def cell(self, day: int, market: str, job_id: str, label: int) -> Cell:
        amounts = (self.cost_uusd, self.on_demand_uusd, self.accelerator_ppm_ms, self.unpriced_ms, self.unlisted_ms)
        return Cell(day, market, job_id, label, *amounts)


@dataclass(slots=True)
class NodeBook:
    """One node's days that are over, from the first on; with `is_closed`, all that it will ever have."""

    node: NodeHistory
    market: str
    days: list[tuple[int, Statement]] = field(default_factory=list)
    running: list[tuple[int, Statement]] = field(default_factory=list)  # of the last question
    is_closed: bool = False
    closings: int = 0  # how often it was closed: tells whether what is remembered of it still holds
    steady: tuple[tuple[Stretch, ...], Stretch] | None = None  # today's stretches, and the one that goes on
    _sums: dict[Key, Sums] = field(default_factory=dict)
    _summed: int = 0  # how many of the days are in `_sums`
    _days_uusd: int = 0  # what these days cost ...
    _costed: int = 0  # ... and how many of them are in it
    final: NodeCost | None = None  # of one that is closed, once somebody has asked

    @property
    def settled_until_ms(self) -> int:
        return FOREVER_MS if self.is_closed else (self.days[-1][0] + 1) * DAY_MS if self.days else 0

    def by_key(self) -> Mapping[Key, Sums | Row]:
        """What each label of each job cost, at the last question."""
        for _, rows in self.days[self._summed :]:
            _add_rows(self._sums, rows)
        self._summed = len(self.days)
        if not self.running:
            return self._sums
        found: dict[Key, Sums | Row] = dict(self._sums)
        for _, rows in self.running:
            for row in rows:
                key = (row.job_id, row.label)
                before = found.get(key)
                found[key] = row if before is None else _both(before, row)
        return found

    def cost_uusd(self) -> int:
        """At the last question. As `by_key` adds up to, without its keys: screens ask for it of every node."""
        if self._costed < len(self.days):
            self._days_uusd += sum(_cost(rows) for _, rows in self.days[self._costed :])
            self._costed = len(self.days)
        return self._days_uusd + sum(_cost(rows) for _, rows in self.running)

    def reopen(self, from_day: int) -> list[tuple[int, Statement]]:
        """Forget the days from this one on. Returns them."""
        keep = next((i for i, (day, _) in enumerate(self.days) if day >= from_day), len(self.days))
        dropped = self.days[keep:]
        del self.days[keep:]
        if self._summed > keep:
            self._sums, self._summed = {}, 0
        if self._costed > keep:
            self._days_uusd, self._costed = 0, 0
        self.is_closed, self.running, self.steady, self.final = False, [], None, None
        return dropped


def _cost(rows: Statement) -> int:
    return sum(row.cost_uusd for row in rows)


def _both(one: Sums | Row, other: Row) -> Sums:
    return Sums(
        one.cost_uusd + other.cost_uusd,
        one.on_demand_uusd + other.on_demand_uusd,
        one.duration_ms + other.duration_ms,
        one.accelerator_ppm_ms + other.accelerator_ppm_ms,
        one.unpriced_ms + other.unpriced_ms,
        one.unlisted_ms + other.unlisted_ms,
    )


def _add_rows(to: dict[Key, Sums], rows: Statement) -> None:
    for row in rows:
        key = (row.job_id, row.label)
        if key not in to:
            to[key] = Sums()
        to[key].add(row)


@dataclass(slots=True)
class Books:
    """`settle(now)` brings everything up to a moment; then the fields can be read."""

    nodes: Mapping[str, NodeHistory]
    prices: Mapping[str, PriceHistory]
    timelines: Mapping[str, Timeline]
    nodes_of_job: Mapping[str, Iterable[str]]  # launch ids that it ever held
    job_ends_ms: Mapping[str, int]
    by_node: dict[str, NodeBook] = field(default_factory=dict)
    now_ms: int = 0
    heard: dict[str, None] = field(default_factory=dict)  # jobs that told something
    _by_owner: dict[Owner, Sums] = field(default_factory=dict)  # of days that are over
    _by_day: dict[tuple[int, int], Sums] = field(default_factory=dict)  # of these, too: day and label
    _open: dict[str, NodeBook] = field(default_factory=dict)  # nodes that are not closed
    _by_market: dict[str, list[str]] = field(default_factory=dict)
    _changed: dict[str, int] = field(default_factory=dict)  # launch id -> from when on
    _repriced: dict[str, int] = field(default_factory=dict)  # market -> from when on
    _closings: int = 0
    _noted: dict[tuple[int, int, int], tuple[Offer, Statement, int]] = field(default_factory=dict)

    # --- what is heard ------------------------------------------------------------------------------------------

    def heard_of_node(self, launch_id: str, from_ms: int = 0) -> None:
        self._changed[launch_id] = min(from_ms, self._changed.get(launch_id, from_ms))

    def heard_of_price(self, market: str, from_ms: int) -> None:
        self._repriced[market] = min(from_ms, self._repriced.get(market, from_ms))

    # --- what is asked ------------------------------------------------------------------------------------------

    def settle(self, now_ms: int) -> None:
        if now_ms < self.now_ms:  # asked about the past: nothing that was settled is known to hold then
            self.by_node, self._open, self._by_market, self._by_owner, self._by_day = {}, {}, {}, {}, {}
        self._take_in()
        memory = Memory()
        for launch_id, book in list(self._open.items()):
            self._advance(book, now_ms, memory)
            if book.is_closed:
                del self._open[launch_id]
        self._count_noted()
        self.now_ms = now_ms

    def by_owner(self) -> Iterator[Cell]:
        """All that was settled, by market, job and label. An owner may come more than once: add them up."""
        for (market, job_id, label), sums in self._by_owner.items():
            yield sums.cell(-1, market, job_id, label)
        yield from self._running()

    def by_day(self) -> Iterator[Cell]:
        """The same by day and label."""
        for (day, label), sums in self._by_day.items():
            yield sums.cell(day, "", "", label)
        yield from self._running()

    def by_all(self, first_day: int) -> Iterator[Cell]:
        """By all of these, from a day on. Looks at each node and day."""
        for book in self.by_node.values():
            for day, rows in (*book.days, *book.running):
                if day >= first_day:
                    yield from _cells(book.node.offer, day, rows, 1)

    def _running(self) -> Iterator[Cell]:
        """Nodes that are held alike share their statement: each is looked at once."""
        shared: dict[tuple[int, int, int], tuple[NodeBook, Statement, int]] = {}
        for book in self._open.values():
            for day, rows in book.running:
                key = (day, id(book.node.offer), id(rows))
                known = shared.get(key)
                shared[key] = (book, rows, 1 if known is None else known[2] + 1)
        for (day, _, _), (book, rows, times) in shared.items():
            yield from _cells(book.node.offer, day, rows, times)

    # --- settling -----------------------------------------------------------------------------------------------

    def _take_in(self) -> None:
        for launch_id, node in self.nodes.items() if not self.by_node else ():
            self._enter(launch_id, node)
        for launch_id, from_ms in self._changed.items():
            book = self.by_node.get(launch_id) or self._enter(launch_id, self.nodes[launch_id])
            self._reopen(book, from_ms)
        for market, from_ms in self._repriced.items():
            self._reopen_all(self._by_market.get(market, ()), from_ms)
        for job_id in self.heard:
            changed_ms = self.timelines[job_id].changed_since_asked_ms()
            if changed_ms is not None:
                self._reopen_all(self.nodes_of_job[job_id], changed_ms)
        self._changed, self._repriced = {}, {}
        self.heard.clear()

    def _enter(self, launch_id: str, node: NodeHistory) -> NodeBook:
        market = node.offer.market.key
        book = self.by_node[launch_id] = self._open[launch_id] = NodeBook(node, market)
        self._by_market.setdefault(market, []).append(launch_id)
        return book

    def _reopen_all(self, launch_ids: Iterable[str], from_ms: int) -> None:
        for launch_id in launch_ids:
            book = self.by_node[launch_id]
            if book.settled_until_ms <= from_ms:
                continue
            ended_ms = book.node.billed_until_ms
            if ended_ms is None or ended_ms > from_ms or not book.is_closed:
                self._reopen(book, from_ms)

    def _reopen(self, book: NodeBook, from_ms: int) -> None:
        for day, rows in book.reopen(from_ms // DAY_MS):
            self._count(book.node.offer, day, rows, -1)
        self._open[book.node.launch_id] = book

    def _advance(self, book: NodeBook, now_ms: int, memory: Memory) -> None:
        node = book.node
        prices = self.prices.get(book.market, _NO_PRICES)
        if book.steady is not None:
            before, (from_ms, _, claims) = book.steady
            so_far = (*before, (from_ms, now_ms, claims))
            if from_ms // DAY_MS == now_ms // DAY_MS:
                book.running = [(now_ms // DAY_MS, statement(node, so_far, prices, self.timelines, memory))]
            else:  # a day has ended, and nothing else has happened
                self._settle_days(book, list(by_day(so_far)), prices, now_ms, memory)
        elif node.launched_ms is not None and node.launched_ms <= now_ms:
            from_ms = max(node.launched_ms, book.settled_until_ms)
            days = list(by_day(stretches(node, from_ms, now_ms, self._queued_until_ms(node))))
            self._settle_days(book, days, prices, now_ms, memory)

    def _settle_days(
        self, book: NodeBook, days: Sequence[OfDay], prices: PriceHistory, now_ms: int, memory: Memory
    ) -> None:
        """Of one node: keep what is over for good, and show what there is of the others."""
        node, book.running, book.steady = book.node, [], None
        until_ms, joined_ms = node.billed_until_ms, node.in_ray_from_ms
        is_over = until_ms is not None and until_ms <= now_ms
        # Whether a node that has not joined boots or failed is known at its end: until then, none of its days is over.
        is_fixed = is_over or (joined_ms is not None and joined_ms <= now_ms)
        for day, of_day in days:
            rows = statement(node, of_day, prices, self.timelines, memory)
            if is_fixed and (is_over or (day + 1) * DAY_MS <= now_ms):
                book.days.append((day, rows))
                self._note(node.offer, day, rows)
            else:
                book.running.append((day, rows))
        if is_over:
            self._closings += 1
            book.is_closed, book.closings = True, self._closings
        elif is_fixed and days and days[-1][0] == now_ms // DAY_MS and self._goes_on(node, now_ms):
            *before, last = days[-1][1]
            book.steady = (tuple(before), last)

    def _goes_on(self, node: NodeHistory, now_ms: int) -> bool:
        """Nothing is known of it that lies ahead, or begins at this very moment: its stretch has no length yet."""
        known_ms = max(node.changes[-1][0] if node.changes else -1, node.in_ray_from_ms or 0)
        return node.ended_ms is None and known_ms < now_ms and not now_ms <= self._queued_until_ms(node) < FOREVER_MS

    def _queued_until_ms(self, node: NodeHistory) -> int:
        if not node.bought_for:
            return 0
        ends_ms = [self.job_ends_ms.get(job_id, FOREVER_MS) for job_id in node.bought_for if job_id in self.timelines]
        held_ms = node.first_held_ms
        return min(FOREVER_MS if held_ms is None else held_ms, max(ends_ms, default=0))

    def _note(self, offer: Offer, day: int, rows: Statement) -> None:
        """To be counted when all are settled: nodes that are held alike share their statement."""
        key = (day, id(offer), id(rows))
        known = self._noted.get(key)
        self._noted[key] = (offer, rows, 1 if known is None else known[2] + 1)

    def _count_noted(self) -> None:
        for (day, _, _), (offer, rows, times) in self._noted.items():
            self._count(offer, day, rows, times)
        self._noted.clear()

    def _count(self, offer: Offer, day: int, rows: Statement, times: int) -> None:
        market, accelerators = offer.market.key, _milli(offer)
        for row in rows:
            _add(self._by_owner, (market, row.job_id, row.label), row, times, accelerators)
            _add(self._by_day, (day, row.label), row, times, accelerators)


def _add(to: dict[AnyKey, Sums], key: AnyKey, row: Row, times: int, accelerators: int) -> None:
    sums = to.get(key)
    if sums is None:
        sums = to[key] = Sums()
    sums.add(row, times, accelerators)
    if times < 0 and not sums.duration_ms:
        del to[key]  # nothing is left of it


def _milli(offer: Offer) -> int:
    return round(offer.accelerator_count * offer.hosts * MILLI)


def _cells(offer: Offer, day: int, rows: Statement, times: int) -> Iterator[Cell]:
    market, accelerators = offer.market.key, _milli(offer)
    for row in rows:
        yield Cell(
            day,
            market,
            row.job_id,
            row.label,
            times * row.cost_uusd,
            times * row.on_demand_uusd,
            times * accelerators * row.accelerator_ppm_ms,
            times * row.unpriced_ms,
            times * row.unlisted_ms,
        )
