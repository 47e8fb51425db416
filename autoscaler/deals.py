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
from tradewind.autoscaler.packing_rooms import Bools, Floats
from tradewind.autoscaler.packing_rules import together
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.quotes import price_range
from tradewind.autoscaler.shape import EPSILON, Shape
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Offer
from tradewind.units import format_usd

_Key = tuple[tuple[tuple[str, int], ...], Shape]  # (market, nodes of the job) of each load, all of it as one piece

_OPTIONS = 8  # the best, and what is tried when it is refused


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
    _known_steady: tuple[Floats, Floats] | None = None
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
        used, free = _sizes(nodes, used=True), _sizes(nodes, used=False)
        has_room = _fits(free, used)
        np.fill_diagonal(has_room, False)
        prices = np.array([self.price_of(node) for node in nodes]) * (1.0 - self.view.settings.market.exchange_margin)
        asked = np.array([offer.price_uusd_per_h or np.inf for offer in self.view.offers])
        sold = np.array([(offer.accelerator_count, offer.vcpus) for offer in self.view.offers]).reshape(-1, 2)
        found = has_room.any(axis=1)
        for times in (1, 2):
            found |= (_fits(sold, times * used) & (asked[None, :] < times * prices[:, None])).any(axis=1)
        return [nodes[index] for index in np.flatnonzero(found & (prices > 0)).tolist()]

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
        old, (new, boots) = self._price_of_all(loads), self._steady
        costs = boots + self._standstill_uusd(loads)
        gains = np.where(self.stock.copies(piece) > 0, (old - new) * self.horizon_h - costs, -np.inf)
        best = np.argsort(-gains, kind="stable")[:_OPTIONS].tolist()
        found = (Option(index, float(new[index]), float(costs[index]), float(gains[index])) for index in best)
        return tuple(option for option in found if self._is_enough(option.gain_uusd, old))

    def _price_of_all(self, loads: Sequence[Load]) -> float:
        return sum(self.price_of(load.node) for load in loads)

    @property
    def _since_s(self) -> float:
        return self.view.now_s - self.view.settings.market.exchange_hysteresis_s

    @property
    def _steady(self) -> tuple[Floats, Floats]:
        """For each offer: the price of holding a node at the highest price of the last minutes (infinite where it could
        not be had all that time), and what its boot costs."""
        if self._known_steady is None:
            offers, since_s = self.stock.offers, self._since_s
            found = [self._steady_prices(offer, since_s) for offer in offers]
            self._known_steady = (np.array([new for new, _ in found]), np.array([boot for _, boot in found]))
        return self._known_steady

    def _steady_prices(self, offer: Offer, since_s: float) -> tuple[float, float]:
        seen = price_range(self.view.quotes.get(offer.market.key, ()), since_s)
        if seen is None or not self.view.memory.is_clear_since(offer, since_s):
            return float("inf"), 0.0
        return self.pricing.to_hold_and_to_boot(offer.market, seen[1])

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


def _sizes(nodes: Sequence[NodeView], *, used: bool) -> Floats:
    """(accelerators, cores) of each, in use or free."""
    rows = []
    for node in nodes:
        total, free = (node.ray.total, node.ray.available) if node.ray else ({}, {})
        gpu, tpu, cpu = (
            total.get(name, 0.0) - free.get(name, 0.0) if used else free.get(name, 0.0)
            for name in ("GPU", "TPU", "CPU")
        )
        rows.append((gpu + tpu, cpu))
    return np.array(rows, np.float64).reshape(-1, 2)


def _fits(rooms: Floats, sizes: Floats) -> Bools:
    """[size, room]: whether it fits there."""
    found: Bools = np.logical_and.reduce(rooms[None, :, :] >= sizes[:, None, :] - EPSILON, axis=2)
    return found
