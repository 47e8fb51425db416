"""Buys before the demand comes, where waiting for it is expected to cost more than idling. Pure.

Runs after the buying for present demand: what is there, coming and bought in this tick counts as capacity, and the
limits hold over both. Silent when there is nothing to do. Slices are not bought ahead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tradewind.autoscaler.actions import SAME_UUSD, Action, Launch, alternative
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.expected import economics_of, outlooks_of
from tradewind.autoscaler.forecast import Outlook, Prewarm, SeriesKey, prewarm
from tradewind.autoscaler.packing import Packing, new_slots, slots_of
from tradewind.autoscaler.packing_buyer import Asker
from tradewind.autoscaler.packing_rooms import Rooms, first_fit
from tradewind.autoscaler.packing_shop import Shop
from tradewind.autoscaler.packing_stock import Cap, EffectivePrice, Purse, Stock, limits_as_caps
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.units import format_duration, format_usd

_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Ahead:
    """The policy; told the same as `Buy`. A cap for some sources is held for all: who will ask is not known yet."""

    effective_price: EffectivePrice | None = None  # None: by what is known of the markets
    caps: Sequence[Cap] = ()

    def __call__(self, view: View, draft: Draft) -> tuple[Action, ...]:
        expected = list(outlooks_of(view)) if view.snapshot is not None else []
        if not expected:
            return ()
        shop = Shop(Stock.of(view, self.effective_price), self._purses(view, draft))
        rooms = _rooms_after(view, draft, [key.shape for key, _ in expected])
        return tuple(launch for key, outlook in expected for launch in _buy(key, outlook, view, shop, rooms))

    def _purses(self, view: View, draft: Draft) -> list[Purse]:
        """What the limits leave after the launches of this tick."""
        caps = [replace(cap, sources=None, used_nodes=None, used_uusd_per_h=None) for cap in self.caps]
        purses = [*limits_as_caps(view), *(Purse.of(cap, view) for cap in caps)]
        for offer in draft.bought:
            for purse in purses:
                if purse.cap.is_about(offer, ""):
                    purse.count(offer, 1)
        return purses


def _rooms_after(view: View, draft: Draft, shapes: Sequence[Shape]) -> Rooms:
    """What is left when present demand has been served."""
    asked = Demand((*view.demand.needs, *(Need(shape, 1, "") for shape in shapes)), view.demand.gangs)
    slots = [*slots_of(view, draft.gone, asked), *new_slots(draft.bought, view)]
    return Packing(slots).fill(Demand(view.demand.needs, view.demand.gangs)).rooms


def _buy(key: SeriesKey, outlook: Outlook, view: View, shop: Shop, rooms: Rooms) -> Iterator[Launch]:
    present = view.wanted.get(key, 0.0)
    options = _options(key.shape, shop)
    if options:
        offer, per_node = shop.stock.offers[options[0]], int(shop.stock.copies(key.shape)[options[0]])
        economics = economics_of(view.settings, per_node, offer.price_uusd_per_h or 0)
        free = int(rooms.copies(key.shape).sum())
        found = prewarm(outlook, present + free, economics, shop.allowed(offer, Asker("", 0)))
        rooms.append(shop.propose([options[0]] * found.nodes))
        others = [shop.stock.offers[index] for index in options[1:]]
        beaten = tuple(_beside(key.shape, shop, options[0], index) for index in options[1 : 1 + _SHOWN])
        for _ in range(found.nodes):
            yield Launch(offer, _reason(key, outlook, found), beaten, tuple(others))
    # What this series is expected to grow by is no room for the next one.
    taken = first_fit(rooms.copies(key.shape), max(math.ceil(outlook.p50 - present), 0))
    rooms.put(np.flatnonzero(taken), key.shape, taken[taken > 0])


def _options(shape: Shape, shop: Shop) -> list[int]:
    """Offers that may be bought for it, the cheapest for each request first: indices in the stock."""
    copies = shop.stock.copies(shape)
    fitting = [
        index for index in np.flatnonzero(copies).tolist() if shop.allowed(shop.stock.offers[index], Asker("", 0))
    ]
    return sorted(fitting, key=lambda index: (shop.stock.prices[index] / copies[index], index))


def _reason(key: SeriesKey, outlook: Outlook, found: Prewarm) -> str:
    ahead = format_duration(outlook.horizon_s)
    demand = f"in {ahead} {outlook.p50:g} (90 %: {outlook.p90:g}) are expected, by {outlook.model}"
    waiting, idling = (round(cost / found.nodes) for cost in (found.waiting_uusd, found.idling_uusd))
    costs = f"waiting for it would cost {format_usd(waiting)}, idling {format_usd(idling)}"
    return f"bought ahead for {key.shape} ({key.tenant}): {demand}; {costs}"


def _beside(shape: Shape, shop: Shop, best: int, other: int) -> str:
    """Of two that cost the same for each request, neither is beaten."""
    prices, copies, offer = shop.stock.prices, shop.stock.copies(shape), shop.stock.offers[other]
    words = f"{offer.market} at {format_usd(offer.price_uusd_per_h or 0)}/h"
    return alternative(words, abs(prices[best] / copies[best] - prices[other] / copies[other]) < SAME_UUSD)


decide = Ahead()
