"""What a job costs on each offer that fits its workers. Pure.

One reckoning for all who ask: the running policy (live.py), `tradewind plan`, and what is promised at submission.
Workers share machines, and whole machines are paid: what a replica costs depends on how many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.contract.view import rate_uusd_per_h
from tradewind.autoscaler.packing_reasons import copies_on
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import Capacity, Offer, Wish


@dataclass(frozen=True, slots=True)
class Priced:
    """An offer that fits one worker."""

    offer: Offer
    machine_uusd_per_h: int
    copies: int  # workers that one of it holds
    seats: float  # replicas that one of it holds; below 1 where a replica needs several
    work_uusd_per_h: float  # of the work that one replica does in an hour, at the size that is cheapest for that

    @property
    def key(self) -> str:
        return self.offer.market.key

    @property
    def is_on_demand(self) -> bool:
        return self.offer.market.capacity is Capacity.ON_DEMAND

    def rate_uusd_per_h(self, replicas: int) -> int:
        return rate_uusd_per_h(replicas, self.machine_uusd_per_h, self.seats)


def priced(wish: Wish, speeds: Sequence[float], view: View, accelerator: str = "") -> list[Priced]:
    """The cheapest for the work first. Speeds (by the number of replicas) were measured on one kind of accelerator, and
    say nothing of another; empty: any."""
    shape = Shape.of(wish.resources, wish.labels)
    machines: dict[float, float] = {}  # by seats: for the work that one replica does
    found = []
    for offer in view.offers:
        copies, price = copies_on(offer, shape, view), offer.price_uusd_per_h
        if copies and price and (not accelerator or offer.accelerator == accelerator):
            seats = copies / wish.replica_workers
            if seats not in machines:
                machines[seats] = min(rate_uusd_per_h(size, 1, seats) / each for size, each in enumerate(speeds, 1))
            found.append(Priced(offer, price, copies, seats, price * machines[seats]))
    return sorted(found, key=lambda each: (each.work_uusd_per_h, each.key))
