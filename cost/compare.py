"""What the same accelerator time would have cost elsewhere, by the price list. Pure."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tradewind.cost import catalog

# (accelerator, cloud) -> the cheapest price of one of them for an hour; None: that cloud does not sell it
CheapestOf = Callable[[str, str], int | None]


@dataclass(frozen=True, slots=True)
class SingleCloud:
    """The cloud on which the same accelerator-hours would have cost least, had one stayed on it: at its cheapest list
    price (spot or on-demand) all the time, without waste. Nobody pays so little: it is the hardest comparison."""

    cloud: str
    cost_uusd: int


def cheapest_single_cloud(
    hours: Mapping[str, float], clouds: Iterable[str] | None = None, cheapest_of: CheapestOf | None = None
) -> SingleCloud | None:
    """`hours` are accelerator-hours by accelerator; prices are the built-in list's unless told otherwise. None: there
    are no hours, or no cloud sells all of them."""
    found, price_of = [], cheapest_of or _listed
    for cloud in catalog.load().clouds if clouds is None else clouds:
        prices = {name: price_of(name, cloud) for name in hours}
        if hours and all(price is not None for price in prices.values()):
            cost = sum(amount * (prices[name] or 0) for name, amount in hours.items())
            found.append((round(cost), cloud))
    return SingleCloud(min(found)[1], min(found)[0]) if found else None


@functools.cache  # the list does not change while it is asked, and receipts ask often
def _listed(accelerator: str, cloud: str) -> int | None:
    known = catalog.load()
    if accelerator not in known.accelerators:
        return None
    prices = [
        offer.price_uusd_per_h / (offer.accelerator_count * offer.hosts)
        for offer in known.find(accelerator, cloud=cloud)
        if offer.price_uusd_per_h is not None and offer.accelerator_count
    ]
    return round(min(prices)) if prices else None
