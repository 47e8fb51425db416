"""Demand that fits neither on free nor on coming nodes: the cheapest set of offers that serves it, within all limits.

First-fit decides what lies where (packing.py) and buys what it lacks (packing_shop.py); other ideas of what to buy are
judged by it (packing_basket.py). docs/designs/packing.md tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.actions import Action
from tradewind.autoscaler.moves import held_by_market
from tradewind.autoscaler.packing import slots_of
from tradewind.autoscaler.packing_basket import Errand
from tradewind.autoscaler.packing_reasons import holds_of, launches_of
from tradewind.autoscaler.packing_stock import Cap, EffectivePrice, Purse, Stock, limits_as_caps
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.view import View


@dataclass(frozen=True, slots=True)
class Buy:
    """The policy, with what it may be told: what an offer really costs, caps beside the fleet's limits, and how much of
    one need or gang may lie in one market (None: all of it)."""

    effective_price: EffectivePrice | None = None  # None: by what is known of the markets
    caps: Sequence[Cap] = ()
    max_market_share: float | None = None

    def __call__(self, view: View, draft: Draft) -> tuple[Action, ...]:
        if view.snapshot is None or view.demand.is_empty:
            return ()
        slots = slots_of(view, draft.gone, view.demand)
        basket = Errand(
            demand=view.demand,
            slots=slots,
            everything=slots_of(view, draft.gone) if view.demand.constraints else slots,
            stock=Stock.of(view, self.effective_price),
            purses=(*limits_as_caps(view), *(Purse.of(cap, view) for cap in self.caps)),
            max_share=self.max_market_share,
            held=held_by_market(view) if self.max_market_share is not None else None,
        ).run()
        return (*launches_of(basket, view.demand), *holds_of(basket, view))


decide = Buy()
