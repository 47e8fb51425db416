"""Demand that fits neither on free nor on coming nodes: the cheapest set of offers that serves it, within all limits.

First-fit decides what lies where (packing.py) and buys what it lacks (packing_shop.py); other ideas of what to buy are
judged by it (packing_basket.py). What exceeds the launches of a minute waits for the next one: a gang of more nodes
than that is bought in parts, which is safe, since all of it fits the other limits, and the next tick counts what is
coming. docs/designs/packing.md tells why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tradewind.autoscaler.demand import at_once
from tradewind.autoscaler.moves import held_by_market
from tradewind.autoscaler.packing import slots_of
from tradewind.autoscaler.packing_basket import Errand
from tradewind.autoscaler.packing_holds import holds_of, postponed
from tradewind.autoscaler.packing_mix import Fleet
from tradewind.autoscaler.packing_order import dearest_first
from tradewind.autoscaler.packing_reasons import launches_of
from tradewind.autoscaler.packing_stock import (
    Cap,
    EffectivePrice,
    Purse,
    Stock,
    launches_left,
    limits_as_caps,
)
from tradewind.autoscaler.policies.base import Draft, Packed
from tradewind.autoscaler.view import View


@dataclass(frozen=True, slots=True)
class Buy:
    """The policy, with what it may be told: what an offer really costs, caps beside the fleet's limits, and how much of
    one need or gang may lie in one market (None: all of it)."""

    effective_price: EffectivePrice | None = None  # None: by what is known of the markets
    caps: Sequence[Cap] = ()
    max_market_share: float | None = None  # None: as the settings say

    def __call__(self, view: View, draft: Draft) -> Packed:
        if view.snapshot is None or view.demand.is_empty:
            return Packed((), frozenset())
        demand = replace(view.demand, needs=tuple(dearest_first(view.demand.needs, view.offers)))
        slots = slots_of(view, draft.gone, demand)
        stock = Stock.of(view, self.effective_price)
        stock.look_up(need.shape for need in demand.needs)
        share = view.settings.market.max_share if self.max_market_share is None else self.max_market_share
        left = launches_left(view)
        basket = Errand(
            demand=demand,
            slots=slots,
            everything=slots_of(view, draft.gone) if view.demand.constraints else slots,
            stock=stock,
            purses=(*limits_as_caps(view, with_rate=False), *(Purse.of(cap, view) for cap in self.caps)),
            max_share=share,
            held=held_by_market(view) if share is not None else None,
            fleet=Fleet(len(view.nodes), sum(lot.count for lot in view.elsewhere.workers)),
            at_once=at_once(view.wishes, view.snapshot.holdings),
            is_sought=left != 0,
        ).run()
        launches = launches_of(basket, view)
        now, later = launches[:left], launches[len(launches) if left is None else left :]
        holds = [*holds_of(basket, view), *postponed(later, view.settings.limits)]
        return Packed((*now, *holds), basket.packing.used)


decide = Buy()
