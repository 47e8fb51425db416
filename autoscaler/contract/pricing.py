"""What one replica of a job costs on each offer that fits its workers. Pure.

One reckoning for all who ask: the running policy (live.py), `tradewind plan`, and what is promised at submission.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tradewind.autoscaler.packing_reasons import copies_on
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import Capacity, Offer, Wish


@dataclass(frozen=True, slots=True)
class Priced:
    """An offer that fits one worker, and what one replica of the job costs on it."""

    offer: Offer
    uusd_per_h: int
    copies: int  # workers that one of it holds

    @property
    def key(self) -> str:
        return self.offer.market.key

    @property
    def is_on_demand(self) -> bool:
        return self.offer.market.capacity is Capacity.ON_DEMAND


def priced(wish: Wish, replicas: int, view: View, accelerator: str = "") -> list[Priced]:
    """The cheapest first. Workers share machines, and whole machines are paid: a replica costs its share of all that so
    many replicas need. Speeds were measured on one kind of accelerator, and say nothing of another; empty: any."""
    shape, workers = Shape.of(wish.resources, wish.labels), replicas * wish.replica_workers
    found = []
    for offer in view.offers:
        copies = copies_on(offer, shape, view)
        if copies and offer.price_uusd_per_h and (not accelerator or offer.accelerator == accelerator):
            nodes = math.ceil(workers / copies)
            found.append(Priced(offer, math.ceil(offer.price_uusd_per_h * nodes / replicas), copies))
    return sorted(found, key=lambda each: (each.uusd_per_h, each.key))
