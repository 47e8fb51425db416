"""What a price list says by itself, worked out once: a loop looks at the same offers at every tick.

Kept by the identity of the offers, which are frozen: the same objects say the same. An entry holds its offers, so that
none of them can make room for another one at the same address. What depends on the moment (prices with what is known of
markets, what is refused, what nodes were seen to bring) is not kept here, or is compared before it is used again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_not

import numpy as np

from tradewind.autoscaler.knowledge import Circles, circles
from tradewind.autoscaler.packing_rooms import Floats, Ints, Rooms, Slot
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import SeenKey, View, seen_keys
from tradewind.model import Capacity, Offer, Resources

_MOST_OFFERS = 20_000  # of all price lists that are kept, with some that are out of date: 2.6 KB each
_MOST_SHAPES = 10_000
_MOST_ON_SHELF = 1_000  # shapes, of each price list: 160 MB for all of them at the very most
_USUAL_SPOT = 0.4  # of the on-demand price, as a rule


Size = tuple[float, float]  # (accelerators, cores)


@dataclass(slots=True)
class Shelf:
    """Single hosts as they will be, in the order of the list, and how many of each shape that was asked for they take:
    cells and ticks ask for the same shapes again and again."""

    slots: list[Slot]
    rooms: Rooms
    _copies: dict[Shape, Ints] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # cells with the same price list share it

    def copies(self, shapes: Sequence[Shape]) -> Ints:
        """Shapes x slots."""
        with self._lock:
            known = self._known(shapes)
        return np.array([known[shape] for shape in shapes], np.int64).reshape(len(shapes), len(self.slots))

    def _known(self, shapes: Sequence[Shape]) -> dict[Shape, Ints]:
        if len(self._copies) + len(shapes) > _MOST_ON_SHELF:
            self._copies = {}  # a new one: another thread may be reading
        new = [shape for shape in dict.fromkeys(shapes) if shape not in self._copies]
        if new:
            self._copies.update(zip(new, self.rooms.table(new), strict=True))
        return self._copies


@dataclass(slots=True)
class Catalogue:
    offers: tuple[Offer, ...]
    key_ranks: Ints  # places in the order of market keys
    listed: Floats  # prices; not a number where there is none
    singles: list[int]  # those of one host
    circles: list[Circles]  # of markets
    _seen_keys: list[tuple[SeenKey, SeenKey]]
    _usual: Floats  # prices of single hosts by which needs are ordered
    _singles: Rooms  # as they are listed
    _slots: dict[int, tuple[float, Resources | None, Slot]] = field(default_factory=dict)
    _usual_prices: dict[Shape, float] = field(default_factory=dict)
    _by_list_price: list[tuple[int, Size, int]] | None = None
    _least_prices: list[tuple[int, Size]] | None = None
    _shelf: Shelf | None = None

    @classmethod
    def of(cls, offers: Sequence[Offer]) -> Catalogue:
        order = sorted(range(len(offers)), key=lambda index: offers[index].market.key)
        ranks = np.empty(len(offers), np.int64)
        ranks[order] = np.arange(len(offers))
        prices = [offer.price_uusd_per_h for offer in offers]
        indices = [index for index, offer in enumerate(offers) if offer.hosts == 1]
        singles = [offers[index] for index in indices]
        return cls(
            tuple(offers),
            ranks,
            np.array([np.nan if price is None else price for price in prices], np.float64),
            indices,
            [circles(offer.market) for offer in offers],
            [seen_keys(offer) for offer in offers],
            np.array([_usual_price(offer) for offer in singles], np.float64),
            Rooms(Slot("", "", offer.resources, {}, offer.labels) for offer in singles),
        )

    def shelf(self, view: View) -> Shelf:
        """Kept as long as every single host is what it was."""
        slots = [self.slot(index, view) for index in self.singles]
        known = self._shelf
        if known is None or any(map(is_not, slots, known.slots)):
            known = self._shelf = Shelf(slots, Rooms(slots))
        return known

    def slot(self, index: int, view: View) -> Slot:
        """A single host as it will be; made anew when nodes of its kind were seen to bring something else."""
        offer, usable = self.offers[index], view.settings.usable_memory
        first, second = self._seen_keys[index]
        seen = view.seen_resources.get(first) or view.seen_resources.get(second)
        known = self._slots.get(index)
        if known is None or known[0] != usable or known[1] != seen:
            [(room, labels)] = hosts_of(offer, view)  # a single TPU machine is a slice of its own
            slot = Slot("", "", room, room, labels, offer)
            known = self._slots[index] = (usable, dict(seen) if seen else seen, slot)
        return known[2]

    @property
    def by_list_price(self) -> list[tuple[int, Size, int]]:
        """(price, size, index) of single hosts, the cheapest first; of equals, by market."""
        if self._by_list_price is None:
            offers, ranks = self.offers, self.key_ranks.tolist()
            found = [(offers[index].price_uusd_per_h, ranks[index], index) for index in self.singles]
            known = sorted((price, rank, index) for price, rank, index in found if price is not None)
            self._by_list_price = [(price, _size(offers[index]), index) for price, _, index in known]
        return self._by_list_price

    @property
    def least_prices(self) -> list[tuple[int, Size]]:
        """What sizes cost at least, the cheapest first: only those that nothing of at least the size undercuts."""
        if self._least_prices is None:
            cheapest = dict[Size, int]()
            for offer in self.offers:
                size, price = _size(offer), offer.price_uusd_per_h
                if price:
                    cheapest[size] = min(price, cheapest.get(size, price))
            found = list[tuple[int, Size]]()
            for size, price in sorted(cheapest.items(), key=lambda each: (each[1], -each[0][0], -each[0][1])):
                if not any(larger[0] >= size[0] and larger[1] >= size[1] for _, larger in found):
                    found.append((price, size))
            self._least_prices = found
        return self._least_prices

    def usual_prices(self, shapes: Sequence[Shape]) -> Floats:
        """Of one request of each, by its share of the cheapest node; infinite where there is none."""
        if len(self._usual_prices) > _MOST_SHAPES:
            self._usual_prices = {}
        known = self._usual_prices
        new = [shape for shape in dict.fromkeys(shapes) if shape not in known]
        if new:
            copies = self._singles.table(new)
            each = np.where(copies > 0, self._usual / np.maximum(copies, 1), np.inf).min(axis=1, initial=np.inf)
            known.update(zip(new, each.tolist(), strict=True))
        return np.array([known[shape] for shape in shapes], np.float64)


def _usual_price(offer: Offer) -> float:
    """Infinite where it is not known: the present price of spot would not do."""
    if offer.market.capacity is Capacity.SPOT:
        return float("inf") if offer.on_demand_uusd_per_h is None else _USUAL_SPOT * offer.on_demand_uusd_per_h
    return float("inf") if offer.price_uusd_per_h is None else float(offer.price_uusd_per_h)


_lock = threading.Lock()  # every cell decides in a thread of its own
_known: OrderedDict[tuple[int, ...], Catalogue] = OrderedDict()


def catalogue_of(offers: Sequence[Offer]) -> Catalogue:
    key = tuple(map(id, offers))
    with _lock:
        found = _known.pop(key, None) or Catalogue.of(offers)
        _known[key] = found
        while len(_known) > 1 and sum(len(each.offers) for each in _known.values()) > _MOST_OFFERS:
            _known.popitem(last=False)
    return found


def _size(offer: Offer) -> Size:
    return offer.accelerator_count, offer.vcpus
