"""From what a cell's loop saw last to what the router compares. Pure but for the line to the head."""

from __future__ import annotations

from tradewind.autoscaler.effective import pricing_of
from tradewind.autoscaler.limits import Gate
from tradewind.autoscaler.packing_stock import list_price, why_closed
from tradewind.autoscaler.policies.head import fits_head
from tradewind.autoscaler.view import View
from tradewind.cells.cell import Cell
from tradewind.cells.route import CellOption
from tradewind.model import Offer


def option_of(cell: Cell) -> CellOption:
    view = cell.loop.view
    if view is None:
        return CellOption(cell.name, has_head=cell.head.alive, is_known=False)
    offers = tuple(offer for offer in view.offers if offer.price_uusd_per_h is not None)
    return CellOption(
        name=cell.name,
        offers=offers,
        closed=_closed(cell, view, offers),
        has_head=cell.head.alive,
        head_uusd_per_h=_head_price(view, offers),
        is_known=bool(view.offers),
        coming=frozenset(node.launch_id for node in view.nodes if node.is_coming),
        leaving=frozenset(node.launch_id for node in view.nodes if node.is_leaving),
        price=pricing_of(view) or list_price,
        resources_of=view.resources_of,
    )


def _closed(cell: Cell, view: View, offers: tuple[Offer, ...]) -> dict[str, str]:
    gate = Gate(cell.fleet.whole, view.settings.limits, view.now_s)
    found = {}
    for offer in offers:
        if why := why_closed(offer, view):
            found[offer.market.key] = why
        elif limit := gate.passed(offer):
            found[offer.market.key] = f"would pass {limit}"
    return found


def _head_price(view: View, offers: tuple[Offer, ...]) -> int:
    settings = view.settings.head
    if settings is None:
        return 0
    fitting = settings.offers or [offer for offer in offers if fits_head(offer, settings)]
    return min((offer.price_uusd_per_h or 0 for offer in fitting), default=0)
