"""Requests onto nodes: first what is there or coming, then what could be bought. Pure.

First-fit over grouped shapes in a fixed order, vectorised over nodes: the work grows with the number of distinct shapes
and nodes, not of requests. A gang is placed as a whole or not at all.

The order is what keeps a tick from buying what the last one bought: nodes stand in the order in which they were asked
for, and first-fit over the same list with new nodes at its end does the same as before on the old part. So every rule
here must choose by what stands earliest, never by what looks best among all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing_buyer import Asker, Buyer, NoBuyer
from tradewind.autoscaler.packing_gangs import GangPlaces
from tradewind.autoscaler.packing_rooms import Ints, Lay, Rooms, Slot, counted_fit
from tradewind.autoscaler.packing_rules import together
from tradewind.autoscaler.packing_slots import new_slots, slots_of
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Shape

__all__ = ["Buyer", "NoBuyer", "Packing", "Slot", "covered", "new_slots", "slots_of", "together"]


@dataclass(slots=True)
class Packing:
    """Fills slots; asks the buyer for more. `unplaced` are the needs and gangs for which there was no room.

    `slots` may leave out nodes on which nothing of the demand fits; `everything` then names all nodes, which count for
    constraints."""

    slots: Sequence[Slot]
    buyer: Buyer = field(default_factory=NoBuyer)
    everything: Sequence[Slot] | None = None
    unplaced: list[Need | Gang] = field(default_factory=list)
    lays: list[Lay] = field(default_factory=list)
    held: list[Lay] = field(default_factory=list)  # by constraints; counted in everything, then bought
    rooms: Rooms = field(init=False)

    def __post_init__(self) -> None:
        self.rooms = Rooms(self.slots)
        self.everything = self.slots if self.everything is None else self.everything

    @property
    def bought(self) -> list[Slot]:
        return self.rooms.slots[len(self.slots) :]

    @property
    def used(self) -> frozenset[str]:
        """The names of slots on which something lies."""
        by_demand = {self.rooms.slots[index].name for index in covered(self.lays)}
        all_slots = [*(self.everything or ()), *self.bought] if self.held else []
        return frozenset(by_demand | {all_slots[index].name for index in covered(self.held)})

    def on_bought(self) -> Iterator[Lay]:
        """What lies on bought slots, counted from the first of them; constraints last."""
        for lays, first in ((self.lays, len(self.slots)), (self.held, len(self.everything or ()))):
            for lay in lays:
                slots = lay.slots
                is_sorted = lay.bound is None  # all but gangs, and the quicker question
                if (slots[-1] if is_sorted else slots.max()) < first:
                    continue
                if (slots[0] if is_sorted else slots.min()) >= first:
                    yield Lay(lay.shape, lay.sources, slots - first, lay.copies, lay.num_apart, lay.bound)
                    continue
                new = (slots >= first).nonzero()[0]
                sources = lay.sources if len(lay.sources) == 1 else [lay.sources[index] for index in new.tolist()]
                yield Lay(lay.shape, sources, slots[new] - first, lay.copies[new], lay.num_apart, lay.bound)

    def fill(self, demand: Demand) -> Packing:
        places = GangPlaces(self.rooms, self.buyer)
        for placed in places.place_all(demand.gangs):
            if isinstance(placed, Gang):
                self.unplaced.append(placed)
            else:
                self.lays.append(placed)
        for shape, needs in _by_shape(demand.needs).items():
            self._place_needs(shape, needs)
        if demand.constraints:
            self._hold_constraints(demand.constraints)
        return self

    def _place_needs(self, shape: Shape, needs: Sequence[Need]) -> None:
        """Needs of one shape differ only in who asks: they share one look at the rooms."""
        copies = self.rooms.copies(shape)
        for need in needs:
            if len(self.rooms) > len(copies):
                copies = self.rooms.copies(shape)
            taken, placed = counted_fit(copies, need.count)
            left = need.count - placed
            if placed:
                copies -= taken
                self._put(0, taken, need)
            while left:
                more = self._put_on_new(need, left)
                if not more:
                    self.unplaced.append(Need(shape, left, need.source))
                    break
                left -= more

    def _put_on_new(self, need: Need, count: int) -> int:
        slots = self.buyer.buy(need.shape, count, Asker(need.source, need.count))
        if not slots:
            return 0
        before = len(self.rooms)
        self.rooms.append(slots)
        taken, placed = counted_fit(self.rooms.copies(need.shape, before), count)
        self._put(before, taken, need)
        return placed

    def _put(self, first: int, taken: Ints, need: Need) -> None:
        self.rooms.put_all(first, need.shape, taken)
        chosen = taken.nonzero()[0]
        self.lays.append(Lay(need.shape, (need.source,), chosen + first, taken[chosen]))

    def _hold_constraints(self, constraints: Sequence[Need]) -> None:
        """Constraints are met by totals, whatever runs there: they are packed on all nodes as if these were empty."""
        inner = Packing([*(self.everything or ()), *self.bought], self.buyer)
        inner.rooms = Rooms(inner.slots, whole=True)
        for shape, needs in _by_shape(constraints).items():
            inner._place_needs(shape, needs)
        self.rooms.append(inner.bought)
        self.unplaced.extend(inner.unplaced)
        self.held = inner.lays


def covered(lays: Sequence[Lay]) -> list[int]:
    """Slots on which something lies."""
    found: list[int] = np.unique(np.concatenate([lay.slots for lay in lays])).tolist() if lays else []
    return found


def _by_shape(needs: Iterable[Need]) -> dict[Shape, list[Need]]:
    found: dict[Shape, list[Need]] = {}
    for need in needs:
        found.setdefault(need.shape, []).append(need)
    return found
