"""Baskets in words: why a node is bought, for whom, what it beat and what was left out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter

from tradewind.autoscaler.actions import SAME_UUSD, Launch, alternative
from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.packing_basket import Basket
from tradewind.autoscaler.packing_groups import Closeness
from tradewind.autoscaler.packing_loads import Loads, Options, Use, Uses
from tradewind.autoscaler.packing_rooms import Slot
from tradewind.autoscaler.packing_rules import gang_source, job_of
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.packing_stock import Stock, why_closed
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import Offer
from tradewind.units import format_usd

_SHOWN = 4  # alternatives on record; fallbacks are all of them
_RULED_OUT = 6
_NAMED = 8  # of those that share a node
_Others = tuple[tuple[str, ...], tuple[Offer, ...], bool]  # beside a purchase: in words, as offers; any as cheap?


def launches_of(basket: Basket, view: View) -> list[Launch]:
    """One for each node or slice. Nodes of one offer with the same use share their words, and so the action."""
    uses, slots = Uses.of(basket.lays, basket.bought), basket.bought
    kinds: dict[tuple[bytes, int], list[int]] = {}  # slots of one offer with the same use
    for index, key in uses.keys:
        kinds.setdefault((key, id(slots[index].offer)), []).append(index)
    loads = Loads.of(basket.lays, len(slots)).at([indices[0] for indices in kinds.values()])
    words, ruled_out = _Words(basket, jobs_by_source(view.demand)), _RuledOut(basket, view)
    options = Options.of(loads, basket.stock)
    bought = [(slots[indices[0]], uses.read(key), len(indices)) for (key, _), indices in kinds.items()]
    closeness = Closeness(basket, view, bought)
    found: list[tuple[int, Launch]] = []
    for row, ((slot, use, _), indices) in enumerate(zip(bought, kinds.values(), strict=True)):
        launch = _launch(slot, use, options.row_of[row], options, words, ruled_out, closeness.gang_of(slot, use))
        found += [(index, launch) for index in indices]
    return [launch for _, launch in sorted(found, key=itemgetter(0))]


def _launch(slot: Slot, use: Use, row: int, options: Options, words: _Words, ruled_out: _RuledOut, gang: str) -> Launch:
    assert slot.offer is not None
    beaten, fallbacks, is_tied = words.of_others(slot, row, options)
    chosen = ("one of the " if is_tied else "") + words.of_choice(slot, row, options)
    reason = f"{chosen} for {words.of_use(use)}: {words.of_price(slot)}"
    others = ruled_out.beside(slot.offer, use)
    return Launch(slot.offer, reason, beaten, fallbacks, words.of_jobs(use), others, gang=gang)


def jobs_by_source(demand: Demand) -> dict[str, str]:
    """Job ids by who asks, as far as they are known: Ray's queue does not say whose a task is."""
    found = {need.source: job_of(need.source) for need in (*demand.needs, *demand.constraints)}
    found |= {gang_source(gang): gang.job_id for gang in demand.gangs}
    return {source: job_id for source, job_id in found.items() if job_id}


@dataclass(slots=True)
class _Words:
    """Thought of once for all that are alike."""

    basket: Basket
    jobs: Mapping[str, str]
    _others: dict[tuple[int, int], _Others] = field(default_factory=dict)
    _prices: dict[int, str] = field(default_factory=dict)
    _offers: dict[int, str] = field(default_factory=dict)

    def of_use(self, use: Use) -> str:
        parts = [f"{number} x {shape} ({source})" for shape, source, number in use[:_NAMED]]
        if len(use) > _NAMED:
            parts[-1] = f"{len(use) - _NAMED + 1} more"
        return "; ".join(parts)

    def of_choice(self, slot: Slot, row: int, options: Options) -> str:
        """Where a cheaper one would have held as much, it had its share already."""
        stock, share = self.basket.stock, self.basket.shop.max_share
        own = stock.index_of(slot)
        if share is None or own is None:
            return "cheapest"
        served, cheaper = options.served[row], stock.prices < stock.prices[own]
        is_next = bool((cheaper & (served >= served[own])).any())
        return f"cheapest with no more than {share:.0%} in one market" if is_next else "cheapest"

    def of_jobs(self, use: Use) -> tuple[str, ...]:
        if not self.jobs:
            return ()
        return tuple(dict.fromkeys(self.jobs[source] for _, source, _ in use if source in self.jobs))

    def of_price(self, slot: Slot) -> str:
        key = id(slot.offer)
        if key not in self._prices:
            self._prices[key] = self._price(slot)
        return self._prices[key]

    def _price(self, slot: Slot) -> str:
        assert slot.offer is not None
        stock = self.basket.stock
        if stock.describe is not None:
            return stock.describe(slot.offer)
        listed, effective = slot.offer.price_uusd_per_h or 0, round(stock.price_of(slot))
        more = f" ({format_usd(effective)}/h with all that comes with it)" if effective != listed else ""
        return f"{format_usd(listed)}/h{more}"

    def of_others(self, slot: Slot, row: int, options: Options) -> _Others:
        """First those that would hold the whole load, by price; then those that serve a part of it."""
        key = (row, id(slot.offer))
        if key not in self._others:
            stock = self.basket.stock
            own = stock.index_of(slot)
            self._others[key] = _other_slices(slot, stock) if own is None else self._singles(row, own, options)
        return self._others[key]

    def _singles(self, row: int, own: int, options: Options) -> _Others:
        ranked = options.best_of(row, own)
        first = ranked[:_SHOWN]
        served, prices = options.served[row], self.basket.stock.prices
        ties = (served[first] >= served[own]) & (abs(prices[first] - prices[own]) < SAME_UUSD)
        rows = zip(first.tolist(), served[first].tolist(), ties.tolist(), strict=True)
        shown = [alternative(f"{self._offer(index)} for {number}", is_tied) for index, number, is_tied in rows]
        return tuple(shown), tuple(self.basket.stock.as_array[ranked].tolist()), bool(ties.any())

    def _offer(self, index: int) -> str:
        if index not in self._offers:
            self._offers[index] = _priced(self.basket.stock.offers[index])
        return self._offers[index]


def _other_slices(slot: Slot, stock: Stock) -> _Others:
    alike = [offer for offer, _ in stock.slices if offer is not slot.offer and _same_hosts(offer, slot)]
    own, first = stock.price_of(slot), alike[:_SHOWN]
    ties = [abs(stock.price_of_offer(offer) - own) < SAME_UUSD for offer in first]
    shown = (alternative(_priced(offer), is_tied) for offer, is_tied in zip(first, ties, strict=True))
    return tuple(shown), tuple(alike), any(ties)


def _same_hosts(offer: Offer, slot: Slot) -> bool:
    own = slot.offer
    return own is not None and (offer.hosts, offer.resources) == (own.hosts, own.resources)


def _priced(offer: Offer) -> str:
    return f"{offer.market} at {format_usd(offer.price_uusd_per_h or 0)}/h"


class _RuledOut:
    """Offers that would serve something of a load and were not asked, the cheapest first: refused a moment ago, of a
    cloud that does not answer, without a price, or at a cap of their own."""

    def __init__(self, basket: Basket, view: View) -> None:
        self._view = view
        num_open = len(basket.stock.offers) + len(basket.stock.slices)
        closed = [(offer, why_closed(offer, view)) for offer in view.offers] if num_open < len(view.offers) else []
        found = [(offer, why) for offer, why in (*closed, *basket.shop.capped()) if why]
        self._offers = sorted(found, key=lambda row: (row[0].price_uusd_per_h or 0, row[0].market.key))
        self._shapes = {str(lay.shape): lay.shape for lay in basket.lays} if found else {}
        self._by_shape: dict[str, list[int]] = {}
        self._known: dict[tuple[int, frozenset[str]], tuple[str, ...]] = {}

    def beside(self, bought: Offer, use: Use) -> tuple[str, ...]:
        if not self._offers:
            return ()
        key = (id(bought), frozenset(shape for shape, _, _ in use))
        if key not in self._known:
            able = sorted({index for shape in key[1] for index in self._able(shape)})
            rows = [self._offers[index] for index in able if self._offers[index][0] is not bought]
            self._known[key] = tuple(f"{offer.market}: {why}" for offer, why in rows[:_RULED_OUT])
        return self._known[key]

    def _able(self, text: str) -> list[int]:
        """The first that serve it: no more are shown."""
        if text not in self._by_shape:
            shape = self._shapes[text]
            fitting = (index for index, (offer, _) in enumerate(self._offers) if copies_on(offer, shape, self._view))
            self._by_shape[text] = [index for index, _ in zip(fitting, range(_RULED_OUT + 1), strict=False)]
        return self._by_shape[text]


def copies_on(offer: Offer, shape: Shape, view: View) -> int:
    return sum(shape.copies_in(room) for room, labels in hosts_of(offer, view) if shape.allows(labels))
