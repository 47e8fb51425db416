"""What it brings to move work to another node, and what it costs. Pure: the reckoning of policies/exchange.py.

    gain = (old - new) x horizon  -  new list price x boot  -  old x stand-still x nodes of the job

`old` and `new` are effective prices of holding the nodes: the lowest price of the old market and the highest of the new
one within the last minutes, so that neither a spike nor a dip moves anything. While the new node boots, both are paid;
while the job hands over, all of its nodes stand still. A move is made when the gain is at least a stated share of what
the old nodes would cost over the horizon: so every move makes the fleet cheaper, and none is undone by the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tradewind.autoscaler.effective import Pricing, pricing_of
from tradewind.autoscaler.moves import Load
from tradewind.autoscaler.packing_rooms import Floats
from tradewind.autoscaler.packing_rules import together
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.quotes import price_range
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import Offer
from tradewind.units import format_usd

_Key = tuple[tuple[tuple[str, int], ...], Shape]  # (market, nodes of the job) of each load, all of it as one piece


@dataclass(frozen=True, slots=True)
class Option:
    """An offer that is worth it, by its index in the stock."""

    index: int
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
    _stock: Stock | None = None
    _highest: Floats | None = None
    _lowest: dict[str, float | None] = field(default_factory=dict)  # by market
    _known: dict[_Key, tuple[Option, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Desk | None:
        """None: nothing could be said, or nobody can move."""
        pricing = pricing_of(view)
        if view.snapshot is None or pricing is None or not any(wish.can_move for wish in view.wishes):
            return None
        return cls(view, pricing)

    @property
    def stock(self) -> Stock:
        if self._stock is None:
            self._stock = Stock.of(self.view)
        return self._stock

    @property
    def horizon_h(self) -> float:
        return self.view.settings.market.exchange_horizon_s / 3600.0

    @staticmethod
    def words(amount_uusd: float) -> str:
        return format_usd(round(amount_uusd))

    def price_of(self, load: Load) -> float:
        """Of holding the node, at the lowest price of the last minutes; 0 where no price can be trusted."""
        offer = load.node.requested.offer
        key = offer.market.key
        if key not in self._lowest:
            seen = price_range(self.view.quotes.get(key, ()), self._since_s)
            listed = seen[0] if seen else offer.price_uusd_per_h if key not in self.view.quotes else None
            self._lowest[key] = None if listed is None else self.pricing.holding(offer.market, listed)
        return self._lowest[key] or 0.0

    def is_worth_leaving(self, load: Load) -> bool:
        """For room that is there: nothing is paid twice."""
        old = self.price_of(load)
        return self._is_enough(old * self.horizon_h - self._standstill_uusd([load]), old)

    def deal(self, loads: Sequence[Load]) -> Deal | None:
        """The best that can be bought for the work of these nodes, if it is worth it."""
        if any(self._was_tried(load) or not self.price_of(load) for load in loads):
            return None
        piece = together(load.piece for load in loads) if len(loads) > 1 else loads[0].piece
        who = sorted((load.node.requested.offer.market.key, load.num_nodes) for load in loads)
        key = (tuple(who), piece)
        if key not in self._known:
            self._known[key] = self._options(loads, piece)
        options = self._known[key]
        return Deal(tuple(loads), self._price_of_all(loads), options) if options else None

    def _options(self, loads: Sequence[Load], piece: Shape) -> tuple[Option, ...]:
        old, new = self._price_of_all(loads), self._steady_prices()
        standstill, found = self._standstill_uusd(loads), []
        for index in np.flatnonzero((self.stock.copies(piece) > 0) & (new < old)).tolist():
            cost = self._boot_uusd(self.stock.offers[index]) + standstill
            gain = (old - new[index]) * self.horizon_h - cost
            if self._is_enough(gain, old):
                found.append(Option(index, float(new[index]), cost, float(gain)))
        return tuple(sorted(found, key=lambda option: (-option.gain_uusd, option.index)))

    def _price_of_all(self, loads: Sequence[Load]) -> float:
        return sum(self.price_of(load) for load in loads)

    @property
    def _since_s(self) -> float:
        return self.view.now_s - self.view.settings.market.exchange_hysteresis_s

    def _steady_prices(self) -> Floats:
        """Of holding a node of each offer, at the highest price of the last minutes; infinite where it could not be
        had all that time."""
        if self._highest is None:
            self._highest = np.array([self._steady_price(offer) for offer in self.stock.offers], np.float64)
        return self._highest

    def _steady_price(self, offer: Offer) -> float:
        seen = price_range(self.view.quotes.get(offer.market.key, ()), self._since_s)
        if seen is None or not self.view.memory.is_clear_since(offer, self._since_s):
            return float("inf")
        return self.pricing.holding(offer.market, seen[1])

    def _boot_uusd(self, offer: Offer) -> float:
        return (offer.price_uusd_per_h or 0) * self.pricing.knowledge.boot_s(offer.market) / 3600.0

    def _standstill_uusd(self, loads: Sequence[Load]) -> float:
        hours = self.view.settings.market.handover_s / 3600.0
        return sum(self.price_of(load) * load.num_nodes for load in loads) * hours

    def _is_enough(self, gain_uusd: float, old_uusd_per_h: float) -> bool:
        least = self.view.settings.market.exchange_margin * old_uusd_per_h * self.horizon_h
        return gain_uusd > 0 and gain_uusd >= least

    def _was_tried(self, load: Load) -> bool:
        """A replacement came and the work did not go: leave it alone for as long as a move looks ahead."""
        tried_s = load.node.requested.tried_s
        return tried_s is not None and self.view.now_s - tried_s < self.view.settings.market.exchange_horizon_s
