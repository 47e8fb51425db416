"""What an offer really costs an hour: its list price, and what comes with it. Pure.

With price p, hazard h (preemptions an hour), L the work lost at each, b the time a node boots, T the time for which it
will be wanted:

    holding a node   p (1 + h (L + b)) + egress     a preemption costs the work, and a replacement that boots
    buying one       holding + p b / T              ... and the first boot is paid as well

Buying chooses by the second. Moving work (policies/exchange.py) compares nodes that are there, whose boot is paid, by
the first, and counts the boot of a new one by itself. Limits and receipts are about list prices.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.view import View
from tradewind.model import Market, Offer
from tradewind.units import format_usd


def effective_price(offer: Offer, knowledge: Knowledge, settings: MarketSettings) -> float:
    """Micro-dollars an hour of a node that is yet to be bought. The price must be known."""
    return Pricing(knowledge, settings)(offer)


@dataclass(frozen=True, slots=True)
class Pricing:
    """The prices of one moment; an `EffectivePrice` for the shop."""

    knowledge: Knowledge
    settings: MarketSettings

    def __call__(self, offer: Offer) -> float:
        listed = _listed(offer)
        boot_share = self.knowledge.boot_s(offer.market) / self.settings.exchange_horizon_s
        return self.holding(offer.market, listed) + listed * boot_share

    def holding(self, market: Market, listed_uusd_per_h: float) -> float:
        """Of a node that is there."""
        lost_s = self.settings.lost_s_per_preemption + self.knowledge.boot_s(market)
        overhead = self.knowledge.hazard_per_h(market) * lost_s / 3600.0
        return listed_uusd_per_h * (1.0 + overhead) + self.egress_uusd_per_h(market)

    def egress_uusd_per_h(self, market: Market) -> int:
        home = self.settings.data_region
        return self.settings.egress_uusd_per_h if home and market.region != home else 0

    def describe(self, offer: Offer) -> str:
        """In words, on the plan: "$1.20/h list, $1.31/h with preemptions expected at 0.09/h and boots of 3m0s"."""
        parts = []
        if hazard_per_h := self.knowledge.hazard_per_h(offer.market):
            parts.append(f"preemptions expected at {hazard_per_h:.2g}/h")
        parts.append(f"boots of {self.knowledge.boot_s(offer.market):.0f} s")
        if egress := self.egress_uusd_per_h(offer.market):
            parts.append(f"{format_usd(egress)}/h for data from {self.settings.data_region}")
        effective = format_usd(round(self(offer)))
        return f"{format_usd(round(_listed(offer)))}/h list, {effective}/h with {' and '.join(parts)}"


def pricing_of(view: View) -> Pricing | None:
    """None: nothing is known beside the list prices."""
    return None if view.knowledge is None else Pricing(view.knowledge, view.settings.market)


def _listed(offer: Offer) -> float:
    """A price that is not known is not a low price: such offers are sorted out before (packing_stock.is_open)."""
    if offer.price_uusd_per_h is None:
        raise ValueError(f"{offer.market} has no price")
    return float(offer.price_uusd_per_h)
