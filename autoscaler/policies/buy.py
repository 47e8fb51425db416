"""Demand that fits neither on free nor on coming nodes: the cheapest set of offers that serves it, within all limits.

First-fit decides what lies where (packing.py); what it finds no room for is written down, an integer program says which
offers to open for it (packing_advice.py), and first-fit runs again and buys (packing_shop.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.actions import Action, Hold, Launch
from tradewind.autoscaler.packing import Packing, Slot, slots_of, with_room
from tradewind.autoscaler.packing_advice import advise
from tradewind.autoscaler.packing_reasons import Reasons
from tradewind.autoscaler.packing_shop import Shop, Wanted
from tradewind.autoscaler.packing_stock import Cap, EffectivePrice, Purse, Stock, limits_as_caps, list_price
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.view import View


@dataclass(frozen=True, slots=True)
class Buy:
    """The policy, with what it may be told: what an offer really costs, caps beside the fleet's limits, and how much of
    one need or gang may lie in one market (None: all of it)."""

    effective_price: EffectivePrice = list_price
    caps: Sequence[Cap] = ()
    max_market_share: float | None = None

    def __call__(self, view: View, draft: Draft) -> tuple[Action, ...]:
        if view.snapshot is None or view.demand.is_empty:
            return ()
        everything = slots_of(view, draft.gone)
        slots = with_room(everything, view.demand)
        stock = Stock.of(view, self.effective_price)
        wanted = Wanted(stock)
        Packing(slots, wanted, everything=()).fill(without_constraints(view.demand))
        purses = [*limits_as_caps(view), *(Purse.of(cap, view) for cap in self.caps)]
        shop = Shop(stock, purses, advise(wanted.missing(), stock), self.max_market_share)
        packing = Packing(slots, shop, everything).fill(view.demand)
        return (packing, shop)


decide = Buy()
