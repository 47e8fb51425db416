"""Demand that no budget pays for is not planned for: not even the cheapest machine that would serve it. Pure.

What is proposed and then refused would be proposed again at every tick. What fits on nodes that are there, or coming,
is planned for: nothing has to be bought for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.packing import Packing, slots_of
from tradewind.autoscaler.packing_order import dearest_first
from tradewind.autoscaler.packing_rules import gang_source, pieces_of
from tradewind.autoscaler.packing_stock import is_open, jobs_in
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.treasury import cause_of
from tradewind.autoscaler.view import View
from tradewind.autoscaler.withhold import less, source_of, subject_of
from tradewind.model import Offer

Refuses = Callable[[Offer, Collection[str]], str]  # why one may not be bought on behalf of these jobs


@dataclass(slots=True)
class Cheapest:
    """By shape, the cheapest offer that may be bought now and takes one of it."""

    view: View
    _offers: list[Offer] | None = None  # by price
    _known: dict[Shape, Offer | None] = field(default_factory=dict)

    def of(self, shape: Shape) -> Offer | None:
        if shape not in self._known:
            self._known[shape] = next((offer for offer in self._by_price() if self._takes(offer, shape)), None)
        return self._known[shape]

    def of_all(self, shapes: Collection[Shape]) -> Offer | None:
        """The dearest of those that are needed at the least; None: for some there is none."""
        found = [self.of(shape) for shape in dict.fromkeys(shapes)]
        known = [offer for offer in found if offer is not None]
        return max(known, key=_price) if known and len(known) == len(found) else None

    def _by_price(self) -> list[Offer]:
        if self._offers is None:
            priced = (offer for offer in self.view.offers if offer.price_uusd_per_h is not None)
            self._offers = sorted((offer for offer in priced if is_open(offer, self.view)), key=_price)
        return self._offers

    def _takes(self, offer: Offer, shape: Shape) -> bool:
        return shape.allows(offer.labels) and shape.copies_in(self.view.resources_of(offer)) > 0


def without_unpaid(view: View, refuses: Refuses) -> View:
    if view.snapshot is None or view.demand.is_empty:
        return view
    gangs = {gang_source(gang): gang.job_id for gang in view.demand.gangs}
    demand = replace(view.demand, needs=tuple(dearest_first(view.demand.needs, view.offers)))  # as it is bought for
    unplaced = Packing(slots_of(view, frozenset(), demand)).fill(demand).unplaced
    cheapest = Cheapest(view)
    reasons = [_why_unpaid(asked, gangs, cheapest, refuses) for asked in unplaced]
    without = [(asked, why) for asked, why in zip(unplaced, reasons, strict=True) if why]
    holds = (
        Hold(subject_of(asked), why, jobs=tuple(jobs_in(source_of(asked), gangs)), cause=cause_of(why))
        for asked, why in without
    )
    left = less(view.demand, [asked for asked, _ in without])
    return replace(view, demand=left, withheld=(*view.withheld, *holds))


def _why_unpaid(asked: Need | Gang, gangs: Mapping[str, str], cheapest: Cheapest, refuses: Refuses) -> str:
    offer = cheapest.of(asked.shape) if isinstance(asked, Need) else cheapest.of_all(pieces_of(asked))
    return refuses(offer, jobs_in(source_of(asked), gangs)) if offer is not None else ""


def _price(offer: Offer) -> int:
    return offer.price_uusd_per_h or 0
