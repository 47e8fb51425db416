"""What a fleet may cost, before anything is bought: cells, their heads, offers cheapest first, and the most that it can
spend in an hour. Pure; the prices are asked for by `present_prices`."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tradewind.clouds.cells import CellPlan, cells_of, is_emulated
from tradewind.clouds.providers import open_cell
from tradewind.config_models import FleetConfig, Limits
from tradewind.errors import ProviderError
from tradewind.model import Offer
from tradewind.units import format_usd

log = logging.getLogger(__name__)
SHOWN = 5  # offers of a cell, of those with different types or ways of buying


@dataclass(frozen=True, slots=True)
class CellPrices:
    cell: str
    head: Offer
    offers: tuple[Offer, ...]  # cheapest per accelerator-hour first


@dataclass(frozen=True, slots=True)
class PriceTable:
    fleet: str
    cells: tuple[CellPrices, ...]
    head_uusd_per_h: int  # all heads together: what an idle fleet costs
    most_uusd_per_h: int  # with every node that the limits allow
    most_why: str
    simulated: bool = False  # the clouds are emulated: every amount is a pretence


def price_table(config: FleetConfig, offers: Mapping[str, Sequence[Offer]], plans: Sequence[CellPlan]) -> PriceTable:
    cells = tuple(
        CellPrices(plan.name, plan.heads[0], tuple(sorted(offers[plan.name], key=per_accelerator_uusd)))
        for plan in plans
    )
    heads = sum(cell.head.price_uusd_per_h or 0 for cell in cells)
    most, why = _most(config.limits, heads, [offer for cell in cells for offer in cell.offers])
    return PriceTable(config.name, cells, heads, most, why, is_emulated(config))


def per_accelerator_uusd(offer: Offer) -> tuple[float, str]:
    """An hour of one accelerator; of a machine without one, of the machine."""
    units = offer.accelerator_count * offer.hosts or 1.0
    price = offer.price_uusd_per_h
    return (float("inf") if price is None else price / units, offer.market.key)


def _most(limits: Limits, heads_uusd_per_h: int, offers: Sequence[Offer]) -> tuple[int, str]:
    """Heads cost money like any node, but are not counted in `max_nodes` (autoscaler/limits.py)."""
    dearest = max((offer.price_uusd_per_h or 0 for offer in offers), default=0)
    by_nodes = heads_uusd_per_h + limits.max_nodes * dearest
    if limits.max_uusd_per_h is not None and limits.max_uusd_per_h <= by_nodes:
        return limits.max_uusd_per_h, "limits.max_usd_per_hour"
    return by_nodes, f"limits.max_nodes: {limits.max_nodes} of the dearest at {format_usd(dearest)}, and the heads"


def present_prices(config: FleetConfig, credentials: Mapping[str, Any] | None = None) -> PriceTable:
    """At what the clouds ask now; where one does not answer, by the price list."""
    plans = cells_of(config)

    def ask(plan: CellPlan) -> Sequence[Offer]:
        markets = {offer.market for offer in plan.offers}
        try:
            told = open_cell(plan, lambda spec: spec.launch_id, credentials).prices.offers(time.time())
        except ProviderError as error:
            log.warning("%s: list prices are shown: %s", plan.name, error)
            return plan.offers
        return [offer for offer in told if offer.market in markets]

    with ThreadPoolExecutor(max(1, len(plans)), "prices") as pool:
        offers = dict(zip([plan.name for plan in plans], pool.map(ask, plans), strict=True))
    return price_table(config, offers, plans)
