"""In which order needs are placed where label selectors tie some of them to dear machines. Pure.

Room that is free goes to whoever is placed first, so it should go to those for whom a new node would be the dearest: a
task that may only run on H100s before one that could run on any GPU. What "dear" means is taken from the catalogue
alone (on-demand prices, sizes as listed, offers that are refused at the moment included): with the prices of the minute
the order would change while nodes boot, first-fit would no longer find the places that they were bought for, and would
buy again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.packing_rooms import Floats, Rooms, Slot
from tradewind.autoscaler.shape import Shape
from tradewind.model import Capacity, Offer

_USUAL_SPOT = 0.4  # of the on-demand price, as a rule
_STEPS_PER_DOUBLING = 2.0  # differences below this say little; there the old order (the large ones first) is better


def dearest_first(needs: Sequence[Need], offers: Sequence[Offer]) -> list[Need]:
    """The same needs; accelerators first, then by what their ties cost. Without selectors the order stays."""
    if not any(need.shape.selectors for need in needs):
        return list(needs)
    catalogue = _Catalogue([offer for offer in offers if offer.hosts == 1])
    steps = {shape: catalogue.step(shape) for shape in dict.fromkeys(need.shape for need in needs)}
    return sorted(needs, key=lambda need: (_accelerators(need.shape) == 0, -steps[need.shape]))


class _Catalogue:
    def __init__(self, offers: Sequence[Offer]) -> None:
        self._rooms = Rooms(Slot("", "", offer.resources, {}, offer.labels, offer) for offer in offers)
        self._prices: Floats = np.array([_usual_price(offer) for offer in offers], np.float64)
        self._known: dict[Shape, float] = {}

    def step(self, shape: Shape) -> float:
        """How dear, in steps: a request with accelerators for each of them, another one against the same request
        without selectors. What only a slice serves, or nothing, comes first."""
        own, accelerators = self._price(shape), _accelerators(shape)
        other = accelerators or self._price(Shape(shape.resources))
        if not (0 < own < np.inf and 0 < other < np.inf):
            return float(np.inf) if own else 0.0
        return float(np.rint(_STEPS_PER_DOUBLING * np.log2(own / other)))

    def _price(self, shape: Shape) -> float:
        """Of one request, by its share of the cheapest node."""
        if shape not in self._known:
            copies = self._rooms.copies(shape)
            fitting = np.flatnonzero(copies)
            self._known[shape] = float((self._prices[fitting] / copies[fitting]).min(initial=np.inf))
        return self._known[shape]


def _usual_price(offer: Offer) -> float:
    """Infinite where it is not known: the present price of spot would not do."""
    if offer.market.capacity is Capacity.SPOT:
        return float("inf") if offer.on_demand_uusd_per_h is None else _USUAL_SPOT * offer.on_demand_uusd_per_h
    return float("inf") if offer.price_uusd_per_h is None else float(offer.price_uusd_per_h)


def _accelerators(shape: Shape) -> float:
    return sum(amount for key, amount in shape.resources if key in ("GPU", "TPU"))
