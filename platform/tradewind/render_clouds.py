"""The price table of a fleet in clouds, as text. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tradewind.clouds.price_table import SHOWN, CellPrices, PriceTable, per_accelerator_uusd
from tradewind.model import Offer
from tradewind.render import WIDTH, table
from tradewind.units import format_usd

_HEADS = ("CELL", "WHAT", ">$/ACC-HOUR", ">$/HOUR", "TYPE, MARKET")


def price_text(prices: PriceTable, width: int = WIDTH) -> str:
    rows = [row for cell in prices.cells for row in _rows(cell)]
    hidden = sum(max(0, len(_kinds(cell)) - SHOWN) for cell in prices.cells)
    more = f"\n... and {hidden} dearer kinds" if hidden else ""
    return (
        f"{table(_HEADS, rows, width)}{more}\n\n"
        f"Fleet {prices.fleet}: {format_usd(prices.head_uusd_per_h)} an hour for its heads; workers when jobs ask;\n"
        f"at most {format_usd(prices.most_uusd_per_h)} an hour ({prices.most_why})."
        + ("\nSimulated: these clouds are emulated, and nothing is billed." if prices.simulated else "")
    )


def _rows(cell: CellPrices) -> Iterator[tuple[str, ...]]:
    yield (cell.cell, "head", "", _usd(cell.head), _place(cell.head))
    for offer in _kinds(cell)[:SHOWN]:
        units = offer.accelerator_count * offer.hosts
        what = f"{units:g} x {offer.accelerator}" if offer.accelerator else f"{offer.vcpus:g} CPUs"
        yield ("", what, format_usd(round(per_accelerator_uusd(offer)[0])), _usd(offer), _place(offer))


def _place(offer: Offer) -> str:
    return f"{offer.market.instance_type}, {offer.market.capacity}, {offer.market.zone}"


def _kinds(cell: CellPrices) -> list[Offer]:
    """The cheapest zone of each type and way of buying: zones differ by little, and are many."""
    found: dict[tuple[str, str], Offer] = {}
    for offer in cell.offers:
        if offer.price_uusd_per_h is not None:
            found.setdefault((offer.market.instance_type, offer.market.capacity), offer)
    return list(found.values())


def _usd(offer: Offer) -> str:
    return format_usd(offer.price_uusd_per_h or 0)
