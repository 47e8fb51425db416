"""What an offer really costs an hour: its list price, and what comes with it. Pure.

With price p, hazard h (preemptions an hour), L the work lost at each, b the time a node boots, T the time for which it
will be wanted:

    holding a node   p (1 + h (L + b)) + egress     a preemption costs the work, and a replacement that boots
    buying one       holding + p b / T              ... and the first boot is paid as well

Buying chooses by the second. Moving work (policies/exchange.py) compares nodes that are there, whose boot is paid, by
the first, and counts the boot of a new one by itself. Limits and receipts are about list prices.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tradewind.autoscaler.knowledge import Circles, Knowledge
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.view import View
from tradewind.model import Market, Offer
from tradewind.units import format_usd

Floats = npt.NDArray[np.float64]


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
        holding, boot_uusd = self.to_hold_and_to_boot(offer.market, listed)
        return holding + boot_uusd / (self.settings.exchange_horizon_s / 3600.0)

    def of_all(self, offers: Sequence[Offer], circles: Sequence[Circles]) -> Floats:
        """The same, for many at once."""
        figures = [self.knowledge.figures_in(mine, offer.market) for offer, mine in zip(offers, circles, strict=True)]
        hazard_per_h, boot_s = np.array(figures, np.float64).reshape(len(offers), 2).T
        listed = np.array([offer.price_uusd_per_h for offer in offers], np.float64)
        egress = (
            np.array([self.egress_uusd_per_h(offer.market) for offer in offers]) if self.settings.data_region else 0
        )
        lost_h = (self.settings.lost_s_per_preemption + boot_s) / 3600.0
        holding = listed * (1.0 + hazard_per_h * lost_h) + egress
        found: Floats = holding + listed * boot_s / 3600.0 / (self.settings.exchange_horizon_s / 3600.0)
        return found

    def to_hold_and_to_boot(self, market: Market, listed_uusd_per_h: float) -> tuple[float, float]:
        """(micro-dollars an hour for a node that is there, micro-dollars once for its boot)"""
        hazard_per_h, boot_s = self.knowledge.figures(market)
        lost_h = (self.settings.lost_s_per_preemption + boot_s) / 3600.0
        holding = listed_uusd_per_h * (1.0 + hazard_per_h * lost_h) + self.egress_uusd_per_h(market)
        return holding, listed_uusd_per_h * boot_s / 3600.0

    def egress_uusd_per_h(self, market: Market) -> int:
        home = self.settings.data_region
        return self.settings.egress_uusd_per_h if home and market.region != home else 0

    def describe(self, offer: Offer) -> str:
        """In words, on the plan: "$1.20/h list, $1.31/h with preemptions expected at 0.09/h and boots of 3m0s"."""
        hazard_per_h, boot_s = self.knowledge.figures(offer.market)
        parts = [f"preemptions expected at {hazard_per_h:.2g}/h"] if hazard_per_h else []
        parts.append(f"boots of {boot_s:.0f} s")
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
