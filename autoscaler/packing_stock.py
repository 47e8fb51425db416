"""What can be bought and within which caps: the offers of all clouds side by side, as one table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Floats, Ints, Rooms, Slot
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View, price_of
from tradewind.model import Offer
from tradewind.units import format_usd

EffectivePrice = Callable[[Offer], float]  # micro-dollars per hour, with what the list price does not say


def list_price(offer: Offer) -> float:
    return float(offer.price_uusd_per_h or 0)


@dataclass(frozen=True, slots=True)
class Cap:
    """At most so many nodes and so much money on the offers (and, for a tenant, the sources) that it is about.
    `used_nodes` and `used_uusd_per_h` are for what a node's offer does not tell; None: all alive nodes of `offers`."""

    name: str  # as people read it: "the quota of 64 g6.xlarge in us-east-1"
    offers: Callable[[Offer], bool] | None = None  # None: all
    sources: Callable[[str], bool] | None = None  # None: all
    max_nodes: int | None = None
    max_uusd_per_h: int | None = None
    used_nodes: int | None = None
    used_uusd_per_h: int | None = None

    def is_about(self, offer: Offer, source: str) -> bool:
        about_it = self.offers is None or self.offers(offer)
        return about_it and (self.sources is None or self.sources(source))


@dataclass(slots=True)
class Purse:
    """What one cap leaves, as the tick goes on."""

    cap: Cap
    nodes_left: float
    uusd_left: float

    @classmethod
    def of(cls, cap: Cap, view: View) -> Purse:
        mine = tuple(node for node in view.nodes if cap.offers is None or cap.offers(node.requested.offer))
        nodes = len(mine) if cap.used_nodes is None else cap.used_nodes
        uusd = price_of(mine) if cap.used_uusd_per_h is None else cap.used_uusd_per_h
        return cls(
            cap,
            float("inf") if cap.max_nodes is None else cap.max_nodes - nodes,
            float("inf") if cap.max_uusd_per_h is None else cap.max_uusd_per_h - uusd,
        )

    def allows(self, offer: Offer) -> int:
        """How many more of this one."""
        price = offer.price_uusd_per_h or 0
        by_price = self.uusd_left // price if price and self.uusd_left < float("inf") else ANY_NUMBER
        return int(max(0, min(self.nodes_left, by_price, ANY_NUMBER)))

    def count(self, offer: Offer, nodes: int) -> None:
        self.nodes_left -= nodes
        self.uusd_left -= nodes * (offer.price_uusd_per_h or 0)


def launches_left(view: View) -> int | None:
    """How many nodes may still be launched in this minute; None: any number."""
    most = view.settings.limits.launches_per_minute
    return None if most is None else max(0, most - view.launched_last_minute)


def limits_as_caps(view: View, with_rate: bool = True) -> list[Purse]:
    """The limits of the fleet, in the order in which they are named when one is reached. Without the rate: it says when
    nodes are launched, not which."""
    limits, found = view.settings.limits, []
    if limits.max_nodes is not None:
        found.append(Purse.of(Cap(f"the limit of {limits.max_nodes} nodes", max_nodes=limits.max_nodes), view))
    if limits.launches_per_minute is not None and with_rate:
        name = f"the limit of {limits.launches_per_minute} launches per minute"
        cap = Cap(name, max_nodes=limits.launches_per_minute, used_nodes=view.launched_last_minute)
        found.append(Purse.of(cap, view))
    if limits.max_uusd_per_h is not None:
        name = f"the limit of {format_usd(limits.max_uusd_per_h)} per hour"
        found.append(Purse.of(Cap(name, max_uusd_per_h=limits.max_uusd_per_h), view))
    return found


@dataclass
class Stock:
    """Offers that may be bought now: with a known price, of a cloud that is listed, and not refused a moment ago."""

    offers: Sequence[Offer]  # single hosts, by effective price
    prices: Floats  # effective
    rooms: Rooms
    slices: Sequence[tuple[Offer, Sequence[Slot]]]  # of several hosts, by effective price, with their hosts
    _copies: dict[Shape, Ints] = field(default_factory=dict)
    _price_by_id: dict[int, float] = field(default_factory=dict)
    _index_by_id: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, effective_price: EffectivePrice = list_price) -> Stock:
        found = [offer for offer in view.offers if is_open(offer, view)]
        priced = sorted(((effective_price(offer), offer.market.key, offer) for offer in found), key=lambda row: row[:2])
        singles = [(price, offer) for price, _, offer in priced if offer.hosts == 1]
        slots = [slot for _, offer in singles for slot in _hosts(offer, view)]
        return cls(
            [offer for _, offer in singles],
            np.array([price for price, _ in singles], np.float64),
            Rooms(slots),
            [(offer, _hosts(offer, view)) for _, _, offer in priced if offer.hosts > 1],
            _price_by_id={id(offer): price for price, _, offer in priced},
            _index_by_id={id(offer): index for index, (_, offer) in enumerate(singles)},
        )

    def price_of(self, slot: Slot) -> float:
        """Effective, of a slot that was bought here."""
        return self._price_by_id[id(slot.offer)]

    def index_of(self, slot: Slot) -> int | None:
        """Its place in the stock; None for a slice."""
        return self._index_by_id.get(id(slot.offer))

    @cached_property
    def regions(self) -> list[str]:
        return sorted({offer.market.region for offer in self.offers})

    @cached_property
    def region_codes(self) -> Ints:
        """Of each single host, the place of its region among the regions."""
        codes = {region: code for code, region in enumerate(self.regions)}
        return np.array([codes[offer.market.region] for offer in self.offers], np.int64)

    def in_region(self, region: str) -> Bools:
        found: Bools = self.region_codes == self.regions.index(region)
        return found

    def look_up(self, shapes: Iterable[Shape]) -> None:
        """What `copies` will be asked for, all at once."""
        new = [shape for shape in dict.fromkeys(shapes) if shape not in self._copies]
        self._copies.update(zip(new, self.rooms.table(new), strict=True))

    def copies(self, shape: Shape) -> Ints:
        """How many of a shape each single host takes."""
        if shape not in self._copies:
            self._copies[shape] = self.rooms.copies(shape)
        return self._copies[shape]


def _hosts(offer: Offer, view: View) -> list[Slot]:
    return [Slot("", "", room, room, labels, offer) for room, labels in hosts_of(offer, view)]


def why_closed(offer: Offer, view: View) -> str:
    """Why an offer cannot be bought now; nothing where it can. A price that is not known is not a low price."""
    if offer.price_uusd_per_h is None:
        return "its price is not known"
    if offer.market.cloud in view.blind_clouds:
        return f"{offer.market.cloud} does not list its nodes"
    block = view.memory.block_of(offer, view.now_s) if view.memory.blocks else None
    return block.describe(view.now_s) if block is not None else ""


def is_open(offer: Offer, view: View) -> bool:
    return not why_closed(offer, view)
