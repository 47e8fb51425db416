"""The Buyer of one tick: what first-fit finds no room for is bought here, within all caps. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np

from tradewind.autoscaler.packing_buyer import Asker
from tradewind.autoscaler.packing_gangs import fits_slice
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Floats, Ints, Rooms, Slot
from tradewind.autoscaler.packing_rules import gang_source, has_accelerators
from tradewind.autoscaler.packing_stock import Purse, Stock
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import EPSILON, Shape
from tradewind.model import Offer

# What it may cost more to have a gang close together. In one zone: traffic between zones is slower, and clouds charge
# for it. On fewer nodes: inside of one, accelerators talk over links (NVLink) that are faster than any network.
NEAR = 1.05
_PROPOSED = Asker("", 0)
Held = Mapping[str, Mapping[str, int]]  # source -> market -> requests that lie there
_NEW = "new:"  # names of slots that are about to be bought


@dataclass(frozen=True, slots=True)
class Purchase:
    """A node, or a slice, and for whom."""

    offer: Offer
    asker: Asker
    requests: int  # of the asker's that it takes


class Shop:
    """Keeps count of what the caps leave. `max_share` is how much of one need or gang may lie in one market; what it
    has there already counts (`held`: by source and market)."""

    def __init__(
        self,
        stock: Stock,
        purses: Sequence[Purse],
        max_share: float | None = None,
        held: Held | None = None,
        spared: Mapping[str, float] | None = None,  # by asker: what one node less is worth, where they are limited
    ) -> None:
        self._spared = spared or {}
        self.stock, self.purses, self.max_share = stock, [replace(purse) for purse in purses], max_share
        self.regions = stock.regions
        self.counts_askers = max_share is not None or any(purse.cap.sources is not None for purse in purses)
        self._purchases: list[Purchase] = []  # by the number in the name of the slot
        rows = [(source, market, number) for source, mine in (held or {}).items() for market, number in mine.items()]
        self._shares = {(source, market): number for source, market, number in rows}  # requests
        self._held = {source: sum(mine.values()) for source, mine in (held or {}).items()}
        self._regions_by_price: dict[tuple[tuple[Shape, ...], bool, int], list[str]] = {}
        self._near_zones: dict[tuple[Shape, ...], str] = {}

    # --- as a Buyer -------------------------------------------------------------------------------------------

    def buy(self, shape: Shape, count: int, asker: Asker) -> Sequence[Slot]:
        """The cheapest per request served, as many as are full. A market's share yields where nothing else serves."""
        served = np.minimum(self.stock.copies(shape), asker.sharers if asker.alone else count)
        fitting = served.nonzero()[0]
        each = (self.stock.prices[fitting] + self._spared.get(asker.source, 0.0)) / served[fitting]
        sizes = np.minimum(served[fitting], asker.size) if asker.packs and has_accelerators(shape) else None
        for index in self._ranked(fitting, each, asker, sizes):
            number = asker.nodes_for(count, int(served[index]))
            if slots := self._buy_some(index, number, int(served[index]), asker):
                return slots
        if self.max_share is not None and not asker.may_pass_share:
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

    def by_price(
        self, regions: Sequence[str], pieces: Sequence[Shape], is_apart: bool, gangs: int = 1
    ) -> Sequence[str]:
        key = (tuple(pieces), is_apart, gangs)
        if key not in self._regions_by_price:
            ranked = np.argsort(self._price_by_region(pieces, is_apart, gangs), kind="stable")
            self._regions_by_price[key] = [self.regions[index] for index in ranked.tolist()]
        return [region for region in self._regions_by_price[key] if region in regions]

    def near_zone(self, pieces: Sequence[Shape]) -> str:
        key = tuple(pieces)
        if key not in self._near_zones:
            self._near_zones[key] = self._nearest(key)
        return self._near_zones[key]

    # --- caps -------------------------------------------------------------------------------------------------

    def propose(self, offers: Iterable[int]) -> list[Slot]:
        """Nodes that somebody thinks are needed, by their index in the stock, as far as the caps allow."""
        found: list[Slot] = []
        for index, alike in groupby(offers):
            offer = self.stock.offers[index]
            number = min(len(list(alike)), self.allowed(offer, _PROPOSED))
            if number > 0:
                hosts = self.stock.rooms.slots[index : index + 1]
                found += self._take(hosts, number, Purchase(offer, _PROPOSED, 0))
        return found

    def allowed(self, offer: Offer, asker: Asker) -> int:
        """How many nodes of an offer the caps leave."""
        mine = (purse for purse in self.purses if purse.cap.is_about(offer, asker.source))
        return min((purse.allows(offer) for purse in mine), default=ANY_NUMBER)

    def capped(self) -> list[tuple[Offer, str]]:
        """The offers of which a cap on some offers leaves nothing, in words. Caps on all offers are told elsewhere."""
        tight = [
            purse for purse in self.purses if purse.cap.offers is not None and not purse.is_wide(self.stock.offers)
        ]
        found = []
        for offer in self.stock.offers if tight else ():
            mine = (purse for purse in tight if purse.cap.is_about_offer(offer) and purse.allows(offer) < 1)
            found += [(offer, f"{purse.cap.name} is reached") for purse in islice(mine, 1)]
        return found

    def _within_share(self, offer: Offer, each: int, asker: Asker) -> int:
        """How many nodes with `each` requests on every one keep the market's share of this need or gang."""
        if self.max_share is None or asker.may_pass_share:
            return ANY_NUMBER
        share = max(1, int(self.max_share * (asker.size + self._held.get(asker.source, 0)) + EPSILON))
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

    def _ranked(self, fitting: Ints, each: Floats, asker: Asker, sizes: Ints | None) -> Iterator[int]:
        """The cheapest per request first; for a gang that would rather be in one zone, those there that cost little
        more before all others. At the same price a gang takes fewer nodes; one of accelerators (`sizes`: how much of it
        a node takes) also where they cost little more."""
        if not len(fitting):
            return
        prices = self.stock.prices[fitting]
        if (
            len(fitting) and not asker.is_gang and not asker.zone
        ):  # the stock stands by price: of equals the first is the cheapest
            yield int(fitting[each.argmin()])
        order = np.lexsort((-prices if asker.is_gang and not asker.alone else prices, each))
        near = each <= NEAR * each[order[0]]
        if sizes is not None:
            order = order[np.argsort(-np.where(near, sizes, 0)[order], kind="stable")]
        if asker.zone:
            far = ~(near & (self.stock.zone_codes[fitting] == self.stock.zones.index(asker.zone)))
            order = order[np.argsort(far[order], kind="stable")]
        yield from fitting[order].tolist()

    def _nearest(self, pieces: Sequence[Shape]) -> str:
        """Every piece must be near its cheapest price there, so that the whole is, too."""
        total = np.zeros(len(self.stock.zones))
        for piece, count in Counter(pieces).items():
            copies: Ints = np.minimum(self.stock.copies(piece), count)
            fitting, cheapest = np.flatnonzero(copies), np.full(len(self.stock.zones), np.inf)
            np.minimum.at(cheapest, self.stock.zone_codes[fitting], self.stock.prices[fitting] / copies[fitting])
            total += np.where(cheapest <= NEAR * cheapest.min(initial=np.inf), count * cheapest, np.inf)
        best = int(total.argmin()) if len(total) else 0
        return self.stock.zones[best] if len(total) and total[best] < np.inf else ""

    def _take(self, hosts: Sequence[Slot], number: int, purchase: Purchase) -> list[Slot]:
        first = len(self._purchases)
        self._purchases += [purchase] * number
        self._count(purchase, number)
        names = [f"{_NEW}{first + index}" for index in range(number)]
        return [Slot(name, "", host.free, host.total, host.labels, host.offer) for name in names for host in hosts]

    def _price_by_region(self, pieces: Sequence[Shape], is_apart: bool, gangs: int) -> Floats:
        """Of one of so many gangs in each region, all on the cheapest kind of node, which they may share. Nodes are
        paid as a whole; where pieces differ they may fill one together, so there each has its share of one."""
        kinds = Counter(pieces)
        total = np.zeros(len(self.regions))
        for piece, count in kinds.items():
            copies = np.minimum(self.stock.copies(piece), gangs if is_apart else count * gangs)
            fitting = np.flatnonzero(copies)
            nodes = count * gangs / copies[fitting]
            prices = self.stock.prices[fitting] * (np.ceil(nodes) if len(kinds) == 1 else nodes) / gangs
            cheapest = np.full(len(self.regions), np.inf)
            np.minimum.at(cheapest, self.stock.region_codes[fitting], prices)
            for index in np.flatnonzero(np.isinf(cheapest)).tolist() if self.stock.slices else ():
                cheapest[index] = count * self._slice_price_in(self.regions[index], piece, count)  # one gang has it
            total += cheapest
        return total

    def _slice_price_in(self, region: str, piece: Shape, count: int) -> float:
        """Of one piece, for what no single host has."""
        prices = [np.inf]
        for offer, hosts in self.stock.slices:
            if offer.market.region == region:
                copies = min(int(Rooms(hosts).copies(piece).sum()), count)
                prices.append(self.stock.price_of(hosts[0]) / copies if copies else np.inf)
        return min(prices)
