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
    steps = _steps(list(dict.fromkeys(need.shape for need in needs)), [offer for offer in offers if offer.hosts == 1])
    return sorted(needs, key=lambda need: (_accelerators(need.shape) == 0, -steps[need.shape]))


def _steps(shapes: Sequence[Shape], offers: Sequence[Offer]) -> dict[Shape, float]:
    """How dear, in steps: a request with accelerators for each of them, another one against the same request without
    selectors. What only a slice serves, or nothing that has a price, comes first."""
    plain = [Shape(shape.resources) for shape in shapes]
    own, alone = np.split(_prices([*shapes, *plain], offers), 2)
    accelerators = np.array([_accelerators(shape) for shape in shapes])
    ratio = own / np.where(accelerators > 0, accelerators, np.where((alone > 0) & np.isfinite(alone), alone, 1.0))
    known = np.isfinite(ratio) & (ratio > 0)
    steps = np.full(len(shapes), np.inf)
    steps[known] = np.rint(_STEPS_PER_DOUBLING * np.log2(ratio[known]))
    return dict(zip(shapes, steps.tolist(), strict=True))


def _prices(shapes: Sequence[Shape], offers: Sequence[Offer]) -> Floats:
    """Of one request, by its share of the cheapest node; infinite where there is none."""
    copies = Rooms(Slot("", "", offer.resources, {}, offer.labels) for offer in offers).table(shapes)
    usual = np.array([_usual_price(offer) for offer in offers], np.float64)
    each: Floats = np.where(copies > 0, usual / np.maximum(copies, 1), np.inf).min(axis=1, initial=np.inf)
    return each


def _usual_price(offer: Offer) -> float:
    """Infinite where it is not known: the present price of spot would not do."""
    if offer.market.capacity is Capacity.SPOT:
        return float("inf") if offer.on_demand_uusd_per_h is None else _USUAL_SPOT * offer.on_demand_uusd_per_h
    return float("inf") if offer.price_uusd_per_h is None else float(offer.price_uusd_per_h)


def _accelerators(shape: Shape) -> float:
    return sum(amount for key, amount in shape.resources if key in ("GPU", "TPU"))
