"""One node's bill at a moment, with who paid it: what screens and receipts are made of. `ledger.py` asks for it."""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.cost.books import NodeBook, NodeCost
from tradewind.cost.history import NodeHistory, PriceHistory
from tradewind.cost.labels import Label
from tradewind.cost.settle import LABELS, on_demand_price
from tradewind.events import EnergyMeasured
from tradewind.model import EndReason, Offer


@dataclass(frozen=True, slots=True)
class Entry:
    """What one label of one job cost on one node. `on_demand_uusd`: the same at the list price of on-demand."""

    launch_id: str
    job_id: str  # FLEET: nobody's
    label: Label
    cost_uusd: int
    on_demand_uusd: int
    duration_ms: int
    accelerator_ppm_ms: int  # time x millionths of the node's accelerators
    unpriced_ms: int  # of the duration: no price was known


@dataclass(frozen=True, slots=True)
class NodeAccount:
    """One node's bill at a moment. `entries` add up to `cost_uusd`."""

    launch_id: str
    offer: Offer
    launched_ms: int
    joined_ms: int | None
    ended_ms: int | None  # None: still billed
    end: EndReason | None
    until_ms: int  # billed until then
    price_uusd_per_h: int | None  # the last one
    cost_uusd: int
    on_demand_uusd: int | None  # None: the on-demand price is unknown
    unpriced_ms: int
    entries: tuple[Entry, ...]
    energy: tuple[EnergyMeasured, ...] = ()  # what its hosts have measured

    @property
    def accelerators(self) -> float:
        return self.offer.accelerator_count * self.offer.hosts

    @property
    def duration_ms(self) -> int:
        return self.until_ms - self.launched_ms


def cost_of(book: NodeBook, prices: PriceHistory, now_ms: int) -> NodeCost | None:
    """As `account_of`, without who paid what for."""
    node = book.node
    if book.final is not None or node.launched_ms is None or node.launched_ms > now_ms:
        return book.final
    over = node.ended_ms is not None and node.ended_ms <= now_ms
    found = NodeCost(node.launch_id, book.cost_uusd(), prices.at(node, _until_ms(node, now_ms)), over)
    if book.is_closed:
        book.final = found
    return found


def _until_ms(node: NodeHistory, now_ms: int) -> int:
    billed_ms, launched_ms = node.billed_until_ms, node.launched_ms or 0
    over = node.ended_ms is not None and node.ended_ms <= now_ms
    return max(min(now_ms, billed_ms) if over and billed_ms is not None else now_ms, launched_ms)


def account_of(book: NodeBook, prices: PriceHistory, now_ms: int) -> NodeAccount | None:
    """As of the last settling, which was at `now_ms`. None: it had not been launched."""
    node = book.node
    launched_ms = node.launched_ms
    if launched_ms is None or launched_ms > now_ms:
        return None
    over = node.ended_ms is not None and node.ended_ms <= now_ms
    until_ms = _until_ms(node, now_ms)
    entries = _entries(book)
    listed = on_demand_price(node.offer) is not None
    return NodeAccount(
        launch_id=node.launch_id,
        offer=node.offer,
        launched_ms=launched_ms,
        # One that is said to have joined after its end never did, whenever that is asked.
        joined_ms=_seen(node.in_ray_from_ms, node.ended_ms if over and node.ended_ms is not None else now_ms),
        ended_ms=node.ended_ms if over else None,
        end=node.end if over else None,
        until_ms=until_ms,
        price_uusd_per_h=prices.at(node, until_ms),
        cost_uusd=sum(entry.cost_uusd for entry in entries),
        on_demand_uusd=sum(entry.on_demand_uusd for entry in entries) if listed else None,
        unpriced_ms=_unpriced_ms(node, prices, launched_ms, until_ms),
        entries=entries,
        energy=tuple(node.energy.values()) if node.energy else (),
    )


def _entries(book: NodeBook) -> tuple[Entry, ...]:
    return tuple(
        Entry(
            book.node.launch_id,
            job_id,
            LABELS[label],
            sums.cost_uusd,
            sums.on_demand_uusd,
            sums.duration_ms,
            sums.accelerator_ppm_ms,
            sums.unpriced_ms,
        )
        for (job_id, label), sums in sorted(book.by_key().items())
    )


def _unpriced_ms(node: NodeHistory, prices: PriceHistory, from_ms: int, until_ms: int) -> int:
    """The offer's price is the only one that can be unknown."""
    if node.offer.price_uusd_per_h is not None:
        return 0
    moved_ms = prices.moved_ms(node)
    return max((until_ms if moved_ms is None else min(moved_ms, until_ms)) - from_ms, 0)


def _seen(at_ms: int | None, now_ms: int) -> int | None:
    return at_ms if at_ms is not None and at_ms <= now_ms else None
