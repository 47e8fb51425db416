"""What can be bought and within which caps: the offers of all clouds side by side, as one table. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.autoscaler.effective import Pricing, pricing_of
from tradewind.autoscaler.limits import COUNTED_S, Bound, Counted, Part, Tenants, bounds_of
from tradewind.autoscaler.packing_catalogue import Catalogue, catalogue_of
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Floats, Ints, Rooms, Slot
from tradewind.autoscaler.packing_rules import gang_source, job_of
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import NodeView, View, price_of
from tradewind.model import Offer

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
    max_nodes: float | None = None
    max_uusd_per_h: float | None = None
    used_nodes: float | None = None
    used_uusd_per_h: float | None = None
    units: Callable[[Offer], float] | None = None  # what a node counts for in `max_nodes`; None: one

    def is_about(self, offer: Offer, source: str) -> bool:
        return self.is_about_offer(offer) and (self.sources is None or self.sources(source))

    def is_about_offer(self, offer: Offer) -> bool:
        return self.offers is None or self.offers(offer)


@dataclass(slots=True)
class Purse:
    """What one cap leaves, as the tick goes on."""

    cap: Cap
    nodes_left: float
    uusd_left: float

    @classmethod
    def of(cls, cap: Cap, view: View) -> Purse:
        nodes_left = uusd_left = float("inf")
        if cap.max_nodes is not None:
            nodes_left = cap.max_nodes - (len(_under(cap, view)) if cap.used_nodes is None else cap.used_nodes)
        if cap.max_uusd_per_h is not None:
            spent = price_of(_under(cap, view)) if cap.used_uusd_per_h is None else cap.used_uusd_per_h
            uusd_left = cap.max_uusd_per_h - spent
        return cls(cap, nodes_left, uusd_left)

    def allows(self, offer: Offer) -> int:
        """How many more of this one."""
        price = offer.price_uusd_per_h or 0
        by_price = self.uusd_left // price if price and self.uusd_left < float("inf") else ANY_NUMBER
        units = 1.0 if self.cap.units is None else self.cap.units(offer)
        by_number = self.nodes_left // units if units and self.nodes_left < float("inf") else ANY_NUMBER
        return int(max(0, min(by_number, by_price, ANY_NUMBER)))

    def is_wide(self, offers: Sequence[Offer]) -> bool:
        """Whether there is room for one more of each of these, as a rule: seen at one look."""
        by_number = self.nodes_left == float("inf") or (self.cap.units is None and self.nodes_left >= 1)
        dearest = self.uusd_left < float("inf") and max((offer.price_uusd_per_h or 0 for offer in offers), default=0)
        return by_number and dearest <= self.uusd_left

    def count(self, offer: Offer, nodes: int) -> None:
        self.nodes_left -= nodes * (1.0 if self.cap.units is None else self.cap.units(offer))
        self.uusd_left -= nodes * (offer.price_uusd_per_h or 0)


def _under(cap: Cap, view: View) -> tuple[NodeView, ...]:
    return tuple(node for node in view.nodes if cap.offers is None or cap.offers(node.requested.offer))


def launches_left(view: View) -> int | None:
    """How many nodes the fleet may still launch in this minute; None: any number."""
    most = view.settings.limits.launches_per_minute
    return None if most is None else max(0, most - view.launched_last_minute)


def limits_as_caps(view: View, with_rate: bool = True) -> list[Purse]:
    """The limits, in the order in which they are named when one is reached. Without the fleet's rate: it says when
    nodes are launched, not which."""
    limits = view.settings.limits
    bounds = bounds_of(limits, view.tenants.known)
    used = used_of(view, bounds)
    gangs = {gang_source(gang): gang.job_id for gang in view.demand.gangs} if limits.are_about_tenants else {}
    found = []
    for bound in bounds:
        taken = used(bound)
        if bound.is_rate and bound.part == Part():
            if not with_rate:
                continue
            taken = view.launched_last_minute
        found.append(Purse.of(_cap(bound, taken, view.tenants, gangs), view))
        if bound.is_money and bound.part == Part() and view.kept.uusd_per_h:
            found.append(Purse.of(_cap_of_others(bound, taken, view), view))
    return found


def used_of(view: View, bounds: Sequence[Bound]) -> Callable[[Bound], float]:
    """What of each bound is taken. All that is there was counted with the events; what was launched was not."""
    rates = any(bound.is_rate and bound.part != Part() for bound in bounds)
    if view.on_record is not None and not rates:
        return view.on_record.used
    records = [node.requested for node in view.nodes] if bounds else []
    counted = Counted.of_workers(records, view.tenants, view.now_s - COUNTED_S if rates else None)
    return lambda bound: counted.used(bound) + view.elsewhere.used(bound)


def _cap_of_others(bound: Bound, taken: float, view: View) -> Cap:
    """What is bought for work without a deadline leaves free what the others may come to need."""
    kept, gangs = view.kept, {gang_source(gang): gang.job_id for gang in view.demand.gangs}

    def sources(source: str) -> bool:
        return kept.jobs.isdisjoint(jobs_in(source, gangs))

    name = f"{bound.name}, less what is kept for jobs with a deadline,"
    return Cap(name, None, sources, max_uusd_per_h=bound.most, used_uusd_per_h=taken + kept.uusd_per_h)


def _cap(bound: Bound, taken: float, tenants: Tenants, gangs: Mapping[str, str]) -> Cap:
    part, offers, sources = bound.part, None, None
    if part.tenant:

        def sources(source: str) -> bool:  # nobody in particular: it may be this tenant
            return not source or part.tenant in tenants.of_jobs(jobs_in(source, gangs))

    if not part.is_everywhere:
        offers = part.has
    if bound.is_money:
        return Cap(bound.name, offers, sources, max_uusd_per_h=bound.most, used_uusd_per_h=taken)
    units = None if bound.is_count else bound.weigh
    return Cap(bound.name, offers, sources, max_nodes=bound.most, used_nodes=taken, units=units)


def jobs_in(source: str, gangs: Mapping[str, str]) -> list[str]:
    """Who asks, as demand.py and packing_rules.py name them: "job NAME, ...", "gang ID"; others are nobody's."""
    job_id = job_of(source) or gangs.get(source, "")
    return [job_id] if job_id else []


@dataclass
class Stock:
    """Offers that may be bought now: with a known price, of a cloud that is listed, and not refused a moment ago."""

    offers: Sequence[Offer]  # single hosts, by effective price
    prices: Floats  # effective
    rooms: Rooms
    slices: Sequence[tuple[Offer, Sequence[Slot]]]  # of several hosts, by effective price, with their hosts
    describe: Callable[[Offer], str] | None  # how the price comes about, where more than the list price counts
    table: Callable[[Sequence[Shape]], Ints]  # how many of each shape every single host takes
    _copies: dict[Shape, Ints] = field(default_factory=dict)
    _price_by_id: dict[int, float] = field(default_factory=dict)
    _index_by_id: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, effective_price: EffectivePrice | None = None) -> Stock:
        """Without a price to go by, what is known of the markets gives one."""
        known = pricing_of(view) if effective_price is None else None
        catalogue = catalogue_of(view.offers)
        indices = open_offers(view)
        prices = _prices(catalogue, indices, known, effective_price)
        order = np.lexsort((catalogue.key_ranks[indices], prices)).tolist()
        ranked = [(float(prices[place]), indices[place]) for place in order]
        shelf, places = catalogue.shelf(view), {index: place for place, index in enumerate(catalogue.singles)}
        singles = [(price, index) for price, index in ranked if index in places]
        offers = [view.offers[index] for _, index in singles]
        chosen = [places[index] for _, index in singles]
        return cls(
            offers,
            np.array([price for price, _ in singles], np.float64),
            Rooms([shelf.slots[place] for place in chosen]),
            [(offer, _hosts(offer, view)) for _, index in ranked if (offer := view.offers[index]).hosts > 1],
            known.describe if known else None,
            lambda shapes: shelf.copies(shapes)[:, chosen],
            _price_by_id={id(view.offers[index]): price for price, index in ranked},
            _index_by_id={id(offer): place for place, offer in enumerate(offers)},
        )

    def price_of(self, slot: Slot) -> float:
        """Effective, of a slot that was bought here."""
        return self._price_by_id[id(slot.offer)]

    def price_of_offer(self, offer: Offer) -> float:
        """Effective, of one that stands here."""
        return self._price_by_id[id(offer)]

    def index_of(self, slot: Slot) -> int | None:
        """Its place in the stock; None for a slice."""
        return self._index_by_id.get(id(slot.offer))

    @cached_property
    def as_array(self) -> npt.NDArray[Any]:
        """The single hosts, to choose many of them at once."""
        found = np.empty(len(self.offers), dtype=object)
        found[:] = self.offers
        return found

    @cached_property
    def zones(self) -> list[str]:
        return sorted({offer.market.zone for offer in self.offers})

    @cached_property
    def zone_codes(self) -> Ints:
        """Of each single host, the place of its zone among the zones."""
        codes = {zone: code for code, zone in enumerate(self.zones)}
        return np.array([codes[offer.market.zone] for offer in self.offers], np.int64)

    @cached_property
    def regions(self) -> list[str]:
        return sorted({offer.market.region for offer in (*self.offers, *(offer for offer, _ in self.slices))})

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
        if new:
            self._copies.update(zip(new, self.table(new), strict=True))

    def copies(self, shape: Shape) -> Ints:
        """How many of a shape each single host takes."""
        if shape not in self._copies:
            [self._copies[shape]] = self.table((shape,))
        return self._copies[shape]


def _hosts(offer: Offer, view: View) -> list[Slot]:
    return [Slot("", "", room, room, labels, offer) for room, labels in hosts_of(offer, view)]


def why_closed(offer: Offer, view: View) -> str:
    """Why an offer cannot be bought now; nothing where it can. A price that is not known is not a low price."""
    if offer.price_uusd_per_h is None:
        return "its price is not known"
    if offer.market.cloud in view.blind_clouds:
        return f"{offer.market.cloud} does not list its nodes"
    if f"{offer.market.cloud}/{offer.market.region}" in view.blind_clouds:
        return f"{offer.market.cloud} does not list its nodes in {offer.market.region}"
    block = view.memory.block_of(offer, view.now_s) if view.memory.blocks else None
    return block.describe(view.now_s) if block is not None else ""


def open_offers(view: View) -> list[int]:
    """Which of the view's offers can be bought now."""
    if not view.blind_clouds and not view.memory.blocks:  # the usual case, at one look
        return [index for index, offer in enumerate(view.offers) if offer.price_uusd_per_h is not None]
    return [index for index, offer in enumerate(view.offers) if is_open(offer, view)]


def _prices(
    catalogue: Catalogue, indices: Sequence[int], known: Pricing | None, effective_price: EffectivePrice | None
) -> Floats:
    if effective_price is not None:
        return np.array([effective_price(catalogue.offers[index]) for index in indices], np.float64)
    if known is not None:
        return known.of_all([catalogue.offers[i] for i in indices], [catalogue.circles[i] for i in indices])
    listed: Floats = catalogue.listed[indices]
    return listed


def is_open(offer: Offer, view: View) -> bool:
    return not why_closed(offer, view)
