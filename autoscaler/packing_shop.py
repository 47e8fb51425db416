"""The Buyer of one tick: what first-fit finds no room for is bought here, within all caps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tradewind.autoscaler.packing_buyer import Asker
from tradewind.autoscaler.packing_gangs import fits_slice
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Floats, Rooms, Slot
from tradewind.autoscaler.packing_rules import gang_source
from tradewind.autoscaler.packing_stock import Purse, Stock
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import EPSILON, Shape
from tradewind.model import Offer

_PROPOSED = Asker("", 0)
_NEW = "new:"  # names of slots that are about to be bought


@dataclass(frozen=True, slots=True)
class Purchase:
    """A node, or a slice, and for whom."""

    offer: Offer
    asker: Asker
    requests: int  # of the asker's that it takes


class Shop:
    """Keeps count of what the caps leave. `max_share` is how much of one need or gang may lie in one market."""

    def __init__(self, stock: Stock, purses: Sequence[Purse], max_share: float | None = None) -> None:
        self.stock, self.purses, self._max_share = stock, [replace(purse) for purse in purses], max_share
        self.regions = stock.regions
        self.counts_askers = max_share is not None or any(purse.cap.sources is not None for purse in purses)
        self._purchases: list[Purchase] = []  # by the number in the name of the slot
        self._shares: dict[tuple[str, str], int] = {}  # (source, market) -> requests
        self._regions_by_price: dict[tuple[Shape, ...], list[str]] = {}

    # --- as a Buyer -------------------------------------------------------------------------------------------

    def buy(self, shape: Shape, count: int, asker: Asker) -> Sequence[Slot]:
        """The cheapest per request served, as many as are full. A market's share yields where nothing else serves."""
        served = np.minimum(self.stock.copies(shape), asker.sharers if asker.alone else count)
        fitting = np.flatnonzero(served)
        each = self.stock.prices[fitting] / served[fitting]
        for index in fitting[np.lexsort((self.stock.prices[fitting], each))].tolist():
            number = asker.nodes_for(count, int(served[index]))
            if slots := self._buy_some(index, number, int(served[index]), asker):
                return slots
        if self._max_share is not None and not asker.may_pass_share:
            return self.buy(shape, count, replace(asker, may_pass_share=True))
        return self._buy_any_slice(shape, asker)

    def buy_slice(self, gang: Gang) -> Sequence[Slot]:
        asker = Asker(gang_source(gang), len(gang.bundles), is_gang=True)
        for offer, hosts in self.stock.slices:
            if fits_slice(gang, hosts) and self.allowed(offer, asker) > 0:
                return self._take(hosts, 1, Purchase(offer, asker, len(gang.bundles)))
        return ()

    def undo(self, slots: Sequence[Slot]) -> None:
        for name in dict.fromkeys(slot.name for slot in slots):
            self._count(self._purchases[int(name.removeprefix(_NEW))], -1)

    def by_price(self, regions: Sequence[str], pieces: Sequence[Shape]) -> Sequence[str]:
        key = tuple(pieces)
        if key not in self._regions_by_price:
            ranked = np.argsort(self._price_by_region(pieces), kind="stable")
            self._regions_by_price[key] = [self.regions[index] for index in ranked.tolist()]
        return [region for region in self._regions_by_price[key] if region in regions]

    # --- caps -------------------------------------------------------------------------------------------------

    def propose(self, offers: Iterable[int]) -> list[Slot]:
        """Nodes that somebody thinks are needed, by their index in the stock, as far as the caps allow."""
        found: list[Slot] = []
        for index in offers:
            offer = self.stock.offers[index]
            if self.allowed(offer, _PROPOSED) > 0:
                found += self._take(self.stock.rooms.slots[index : index + 1], 1, Purchase(offer, _PROPOSED, 0))
        return found

    def allowed(self, offer: Offer, asker: Asker) -> int:
        """How many nodes of an offer the caps leave."""
        mine = (purse for purse in self.purses if purse.cap.is_about(offer, asker.source))
        return min((purse.allows(offer) for purse in mine), default=ANY_NUMBER)

    def cap_of(self, offer: Offer) -> str:
        """The cap on some offers that leaves nothing of this one, in words. Those on all offers are told elsewhere."""
        mine = (purse for purse in self.purses if purse.cap.offers is not None and purse.cap.offers(offer))
        return next((f"{purse.cap.name} is reached" for purse in mine if purse.allows(offer) < 1), "")

    def _within_share(self, offer: Offer, each: int, asker: Asker) -> int:
        """How many nodes with `each` requests on every one keep the market's share of this need or gang."""
        if self._max_share is None or asker.may_pass_share:
            return ANY_NUMBER
        share = max(1, int(self._max_share * asker.size + EPSILON))
        return (share - self._shares.get((asker.source, offer.market.key), 0)) // each

    def _count(self, purchase: Purchase, nodes: int) -> None:
        for purse in self.purses:
            if purse.cap.is_about(purchase.offer, purchase.asker.source):
                purse.count(purchase.offer, nodes)
        key = (purchase.asker.source, purchase.offer.market.key)
        self._shares[key] = self._shares.get(key, 0) + nodes * purchase.requests

    # --- buying -----------------------------------------------------------------------------------------------

    def _buy_some(self, index: int, number: int, served: int, asker: Asker) -> Sequence[Slot]:
        offer, each = self.stock.offers[index], 1 if asker.alone else served
        number = min(number, self.allowed(offer, asker), self._within_share(offer, each, asker))
        hosts = self.stock.rooms.slots[index : index + 1]
        return self._take(hosts, number, Purchase(offer, asker, each)) if number > 0 else ()

    def _buy_any_slice(self, shape: Shape, asker: Asker) -> Sequence[Slot]:
        """For what only hosts of slices have: Ray reserves a slice by a resource of its first host."""
        for offer, hosts in self.stock.slices:
            copies = int(Rooms(hosts).copies(shape).sum())
            if copies and self.allowed(offer, asker) > 0:
                return self._take(hosts, 1, Purchase(offer, asker, copies))
        return ()

    def _take(self, hosts: Sequence[Slot], number: int, purchase: Purchase) -> list[Slot]:
        first = len(self._purchases)
        self._purchases += [purchase] * number
        self._count(purchase, number)
        names = [f"{_NEW}{first + index}" for index in range(number)]
        return [Slot(name, "", host.free, host.total, host.labels, host.offer) for name in names for host in hosts]

    def _price_by_region(self, pieces: Sequence[Shape]) -> Floats:
        """Of all pieces, each by its share of the cheapest node in each region."""
        total = np.zeros(len(self.regions))
        for piece, count in Counter(pieces).items():
            copies = np.minimum(self.stock.copies(piece), count)
            fitting = np.flatnonzero(copies)
            cheapest = np.full(len(self.regions), np.inf)
            np.minimum.at(cheapest, self.stock.region_codes[fitting], self.stock.prices[fitting] / copies[fitting])
            total += count * cheapest
        return total
