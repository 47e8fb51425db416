"""What it brings to move work to another node, and what it costs. Pure: the reckoning of policies/exchange.py.

    gain = (old - new) x horizon  -  new list price x boot  -  old x stand-still x nodes of the job

`old` and `new` are effective prices of holding the nodes: the lowest price of the old market and the highest of the new
one within the last minutes, so that neither a spike nor a dip moves anything. While the new node boots, both are paid;
while the job hands over, all of its nodes stand still. A move is made when the gain is at least a stated share of what
the old nodes would cost over the horizon: so every move makes the fleet cheaper, and none is undone by the next.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.effective import Pricing, pricing_of
from tradewind.autoscaler.moves import Load
from tradewind.autoscaler.packing_catalogue import Catalogue, Size, catalogue_of
from tradewind.autoscaler.packing_rules import together
from tradewind.autoscaler.packing_stock import is_open
from tradewind.autoscaler.quotes import price_range
from tradewind.autoscaler.shape import EPSILON, Shape
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Offer, Resources
from tradewind.units import format_usd

_Key = tuple[tuple[tuple[str, int], ...], Shape]  # (market, nodes of the job) of each load, all of it as one piece

_OPTIONS = 8  # the best, and what is tried when it is refused


@dataclass(frozen=True, slots=True)
class Option:
    """An offer that is worth it."""

    offer: Offer
    new_uusd_per_h: float
    cost_uusd: float  # of the move
    gain_uusd: float  # over the horizon, beyond that


@dataclass(frozen=True, slots=True)
class Deal:
    """The work of some nodes on one new one: what could be bought, the best first."""

    loads: tuple[Load, ...]
    old_uusd_per_h: float
    options: tuple[Option, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(load.launch_id for load in self.loads)

    @property
    def best(self) -> Option:
        return self.options[0]


@dataclass(slots=True)
class Desk:
    """The prices of one tick. Loads that are alike in markets and size are reckoned once."""

    view: View
    pricing: Pricing
    catalogue: Catalogue
    _lowest: dict[str, float | None] = field(default_factory=dict)  # by market
    _steady: dict[str, tuple[float, float] | None] = field(default_factory=dict)  # by market
    _known: dict[_Key, tuple[Option, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Desk | None:
        """None: nothing could be said, or nobody can move."""
        pricing = pricing_of(view)
        if view.snapshot is None or pricing is None or not any(wish.can_move for wish in view.wishes):
            return None
        return cls(view, pricing, catalogue_of(view.offers))

    @property
    def horizon_h(self) -> float:
        return self.view.settings.market.exchange_horizon_s / 3600.0

    @staticmethod
    def words(amount_uusd: float) -> str:
        return format_usd(round(amount_uusd))

    def price_of(self, node: NodeView) -> float:
        """Of holding it, at the lowest price of the last minutes; 0 where no price can be trusted."""
        offer = node.requested.offer
        key = offer.market.key
        if key not in self._lowest:
            seen = price_range(self.view.quotes.get(key, ()), self._since_s)
            listed = seen[0] if seen else offer.price_uusd_per_h if key not in self.view.quotes else None
            self._lowest[key] = None if listed is None else self.pricing.to_hold_and_to_boot(offer.market, listed)[0]
        return self._lowest[key] or 0.0

    def worth_a_look(self, nodes: Sequence[NodeView]) -> list[NodeView]:
        """Those for whose work, or twice it, a lower price is asked somewhere, or for which another one has room. By
        accelerators and cores alone: a quick no for most nodes of a fleet that is as it should be."""
        enough, sizes = 1.0 - self.view.settings.market.exchange_margin, [_used_and_free(node) for node in nodes]
        rooms = Counter(free for _, free in sizes)
        found = []
        for node, (used, free) in zip(nodes, sizes, strict=True):
            limit = self.price_of(node) * enough
            others = (room for room, number in rooms.items() if number > 1 or room != free)
            if limit > 0 and (self._is_sold_below(limit, used) or any(_fits(room, used) for room in others)):
                found.append(node)
        return found

    def _is_sold_below(self, limit_uusd_per_h: float, used: Size) -> bool:
        """Or twice as much for less than twice as much."""
        accelerators, cores = used
        twice = (2 * accelerators, 2 * cores)
        return any(
            (price < limit_uusd_per_h and _fits(size, used)) or (price < 2 * limit_uusd_per_h and _fits(size, twice))
            for price, size in self.catalogue.least_prices
        )

    def is_worth_leaving(self, load: Load) -> bool:
        """For room that is there: nothing is paid twice."""
        old = self.price_of(load.node)
        return self._is_enough(old * self.horizon_h - self._standstill_uusd([load]), old)

    def deal(self, loads: Sequence[Load]) -> Deal | None:
        """The best that can be bought for the work of these nodes, if it is worth it."""
        if any(self._was_tried(load) or not self.price_of(load.node) for load in loads):
            return None
        piece = together(load.piece for load in loads) if len(loads) > 1 else loads[0].piece
        who = sorted((load.node.requested.offer.market.key, load.num_nodes) for load in loads)
        key = (tuple(who), piece)
        if key not in self._known:
            self._known[key] = self._options(loads, piece)
        options = self._known[key]
        return Deal(tuple(loads), self._price_of_all(loads), options) if options else None

    def _options(self, loads: Sequence[Load], piece: Shape) -> tuple[Option, ...]:
        """By list price, until no more can be among the best: what is steady costs at least the list price."""
        old, standstill, found = self._price_of_all(loads), self._standstill_uusd(loads), list[Option]()
        needed = _size(dict(piece.resources))
        for price, size, index in self.catalogue.by_list_price:
            most_uusd = (old - price) * self.horizon_h - standstill
            if most_uusd <= 0 or (len(found) == _OPTIONS and most_uusd < found[-1].gain_uusd):
                break
            option = self._option(index, piece, old, standstill) if _fits(size, needed) else None
            if option is not None and self._is_enough(option.gain_uusd, old):
                insort(found, option, key=lambda each: -each.gain_uusd)
                del found[_OPTIONS:]
        return tuple(found)

    def _option(self, index: int, piece: Shape, old_uusd_per_h: float, standstill_uusd: float) -> Option | None:
        """None where it is too small, or could not be had all the time."""
        offer = self.catalogue.offers[index]
        asked = self._asked_steadily(offer)
        if asked is None or not is_open(offer, self.view):
            return None
        slot = self.catalogue.slot(index, self.view)
        if not (piece.copies_in(slot.free) and piece.allows(slot.labels)):
            return None
        new, boot = asked
        cost = boot + standstill_uusd
        return Option(offer, new, cost, (old_uusd_per_h - new) * self.horizon_h - cost)

    def _price_of_all(self, loads: Sequence[Load]) -> float:
        return sum(self.price_of(load.node) for load in loads)

    @property
    def _since_s(self) -> float:
        return self.view.now_s - self.view.settings.market.exchange_hysteresis_s

    def _asked_steadily(self, offer: Offer) -> tuple[float, float] | None:
        """(the price of holding a node at the highest price of the last minutes, what its boot costs); None where it
        could not be had all that time."""
        key, since_s = offer.market.key, self._since_s
        if key not in self._steady:
            seen = price_range(self.view.quotes.get(key, ()), since_s)
            if seen is not None and self.view.memory.is_clear_since(offer, since_s):
                self._steady[key] = self.pricing.to_hold_and_to_boot(offer.market, seen[1])
            else:
                self._steady[key] = None
        return self._steady[key]

    def _standstill_uusd(self, loads: Sequence[Load]) -> float:
        hours = self.view.settings.market.handover_s / 3600.0
        return sum(self.price_of(load.node) * load.num_nodes for load in loads) * hours

    def _is_enough(self, gain_uusd: float, old_uusd_per_h: float) -> bool:
        least = self.view.settings.market.exchange_margin * old_uusd_per_h * self.horizon_h
        return gain_uusd > 0 and gain_uusd >= least

    def _was_tried(self, load: Load) -> bool:
        """A replacement came and the work did not go: leave it alone for as long as a move looks ahead."""
        tried_s = load.node.requested.tried_s
        return tried_s is not None and self.view.now_s - tried_s < self.view.settings.market.exchange_horizon_s


def _used_and_free(node: NodeView) -> tuple[Size, Size]:
    """(accelerators, cores)"""
    total, free = (node.ray.total, node.ray.available) if node.ray else ({}, {})
    (accelerators, cores), left = _size(total), _size(free)
    return (accelerators - left[0], cores - left[1]), left


def _size(amounts: Resources) -> Size:
    return amounts.get("GPU", 0.0) + amounts.get("TPU", 0.0), amounts.get("CPU", 0.0)


def _fits(room: Size, size: Size) -> bool:
    return room[0] >= size[0] - EPSILON and room[1] >= size[1] - EPSILON
