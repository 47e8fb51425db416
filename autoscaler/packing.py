"""Requests onto nodes: first what is there or coming, then what could be bought. Pure.

First-fit over grouped shapes: the work grows with the number of distinct shapes and nodes, not of requests. A gang is
placed as a whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.ray_snapshot import Gang, RayStatus, Strategy
from tradewind.autoscaler.shape import Selector, Shape, add_up, take
from tradewind.autoscaler.view import View
from tradewind.model import Labels, Offer


@dataclass(slots=True)
class Slot:
    """A node as room: there, coming, or (with an offer) about to be bought."""

    name: str  # launch id, or "ray:<id>" for a node that is not ours
    ray_node_id: str
    free: dict[str, float]
    total: dict[str, float]
    labels: Labels
    offer: Offer | None = None
    used_for: list[str] = field(default_factory=list)

    def room_for(self, shape: Shape) -> int:
        return shape.copies_in(self.free) if shape.allows(self.labels) else 0

    def put(self, shape: Shape, copies: int, source: str) -> None:
        take(self.free, shape, copies)
        self.used_for.append(f"{copies} x {shape} ({source})")


class Buyer(Protocol):
    """Where more room comes from."""

    def buy(self, shape: Shape, count: int) -> Slot | None:
        """A new slot for some of these `count` requests, or None."""
        ...

    def undo(self, slots: Sequence[Slot]) -> None:
        """Give back what was bought for a gang that could not be placed as a whole."""
        ...


class NoBuyer:
    """Only what is there and what is coming."""

    def buy(self, shape: Shape, count: int) -> Slot | None:  # noqa: ARG002
        return None

    def undo(self, slots: Sequence[Slot]) -> None:
        pass


def slots_of(view: View, gone: frozenset[str] = frozenset()) -> list[Slot]:
    """Room that counts, in the order in which it is filled: busy nodes, idle ones, coming ones."""
    ready = [*_foreign_slots(view), *_ready_slots(view, gone)]
    coming = [
        Slot(node.launch_id, "", room, dict(room), node.requested.offer.labels)
        for node in view.nodes
        if node.is_coming and not node.is_leaving and node.launch_id not in gone
        for room in [view.resources_of(node.requested.offer)]
    ]
    return [*ready, *coming]


def _ready_slots(view: View, gone: frozenset[str]) -> list[Slot]:
    usable = [
        node
        for node in view.nodes
        if node.is_in_ray and not node.is_leaving and node.launch_id not in gone and node.ray is not None
    ]
    staying = [node for node in usable if node.ray is not None and node.ray.status is not RayStatus.DRAINING]
    staying.sort(key=lambda node: (node.ray is not None and node.ray.status is RayStatus.IDLE, node.launch_id))
    return [
        Slot(node.launch_id, node.ray.ray_node_id, dict(node.ray.available), dict(node.ray.total), node.ray.labels)
        for node in staying
        if node.ray is not None
    ]


def _foreign_slots(view: View) -> list[Slot]:
    """The head, and machines that somebody added: room, but never ours to buy or to end."""
    ours = {node.ray.ray_node_id for node in view.nodes if node.ray is not None}
    usable = (RayStatus.RUNNING, RayStatus.IDLE)
    return [
        Slot(f"ray:{node.ray_node_id}", node.ray_node_id, dict(node.available), dict(node.total), node.labels)
        for node in (view.snapshot.nodes if view.snapshot else ())
        if node.status in usable and node.ray_node_id not in ours and not node.launch_id
    ]


class Packing:
    """Fills slots; asks the buyer for more. `unplaced` are the needs and gangs for which there was no room."""

    def __init__(self, slots: Iterable[Slot], buyer: Buyer | None = None) -> None:
        self.slots = list(slots)
        self.bought: list[Slot] = []
        self.unplaced: list[Need | Gang] = []
        self._buyer = buyer or NoBuyer()

    def fill(self, demand: Demand) -> Packing:
        for gang in demand.gangs:
            self._place_gang(gang)
        for need in demand.needs:
            self._place_need(need)
        self._hold_constraints(demand.constraints)
        return self

    @property
    def used(self) -> frozenset[str]:
        return frozenset(slot.name for slot in self.slots if slot.used_for)

    def _place_need(self, need: Need) -> None:
        left = need.count
        for slot in self.slots:
            copies = min(left, slot.room_for(need.shape))
            if copies:
                slot.put(need.shape, copies, need.source)
                left -= copies
        while left and (slot_bought := self._buy(need.shape, left)) is not None:
            copies = min(left, slot_bought.room_for(need.shape))
            slot_bought.put(need.shape, copies, need.source)
            left -= copies
        if left:
            self.unplaced.append(Need(need.shape, left, need.source))

    def _buy(self, shape: Shape, count: int) -> Slot | None:
        slot = self._buyer.buy(shape, count)
        if slot is not None:
            self.slots.append(slot)
            self.bought.append(slot)
        return slot

    def _hold_constraints(self, constraints: tuple[Need, ...]) -> None:
        """Constraints are met by totals, whatever runs there: they are packed on empty copies of all slots."""
        if not constraints:
            return
        empty = {slot.name: Slot(slot.name, "", dict(slot.total), slot.total, slot.labels) for slot in self.slots}
        inner = Packing(empty.values(), self._buyer)
        for need in constraints:
            inner._place_need(need)
        self.slots.extend(inner.bought)
        self.bought.extend(inner.bought)
        self.unplaced.extend(inner.unplaced)
        for slot in self.slots:
            if slot.name in empty:
                slot.used_for.extend(empty[slot.name].used_for)

    # --- gangs ------------------------------------------------------------------------------------------------

    def _place_gang(self, gang: Gang) -> None:
        with self._all_or_nothing() as attempt:
            place = self._place_together if gang.strategy is Strategy.STRICT_PACK else self._place_bundles
            attempt.succeeded = place(gang)
        if not attempt.succeeded:
            self.unplaced.append(gang)

    def _place_together(self, gang: Gang) -> bool:
        """STRICT_PACK: one node for the sum of all. Only selectors that one node can meet at once are tried."""
        whole = together(gang.bundles)
        slot = next((slot for slot in self.slots if slot.room_for(whole)), None) or self._buy(whole, 1)
        if slot is None or not slot.room_for(whole):
            return False
        slot.put(whole, 1, f"gang {gang.gang_id[:8]}")
        return True

    def _place_bundles(self, gang: Gang) -> bool:
        taken = {slot.name for slot in self.slots if slot.ray_node_id and slot.ray_node_id in gang.placed_on}
        for bundle in gang.bundles:
            slot = self._slot_for(bundle, gang.strategy, taken) or self._buy(bundle, self._left(gang))
            if slot is None or not slot.room_for(bundle):
                return False
            slot.put(bundle, 1, f"gang {gang.gang_id[:8]}")
            taken.add(slot.name)
        return True

    @staticmethod
    def _left(gang: Gang) -> int:
        return 1 if gang.strategy is Strategy.STRICT_SPREAD else len(gang.bundles)

    def _slot_for(self, bundle: Shape, strategy: Strategy, taken: set[str]) -> Slot | None:
        """STRICT_SPREAD only takes fresh nodes; SPREAD prefers them; PACK prefers those that it is on already."""
        fitting = [slot for slot in self.slots if slot.room_for(bundle)]
        fresh = [slot for slot in fitting if slot.name not in taken]
        if strategy is Strategy.STRICT_SPREAD:
            return fresh[0] if fresh else None
        known = [slot for slot in fitting if slot.name in taken]
        order = [*fresh, *known] if strategy is Strategy.SPREAD else [*known, *fresh]
        return order[0] if order else None

    @contextmanager
    def _all_or_nothing(self) -> Iterator[_Attempt]:
        before = [(slot, dict(slot.free), len(slot.used_for)) for slot in self.slots]
        num_bought, attempt = len(self.bought), _Attempt()
        yield attempt
        if attempt.succeeded:
            return
        for slot, free, num_uses in before:
            slot.free = free
            del slot.used_for[num_uses:]
        self.slots = [slot for slot, _, _ in before]
        self._buyer.undo(self.bought[num_bought:])
        del self.bought[num_bought:]


@dataclass(slots=True)
class _Attempt:
    succeeded: bool = False


def together(bundles: Iterable[Shape]) -> Shape:
    """One shape that asks for everything at once. Selectors of several bundles must all hold: every combination."""
    bundles = list(bundles)
    combined: list[Selector] = [()]
    for alternatives in sorted({bundle.selectors for bundle in bundles if bundle.selectors}):
        combined = [(*before, *selector) for before in combined for selector in alternatives]
    resources = add_up(dict(bundle.resources) for bundle in bundles)
    selectors = [] if combined == [()] else combined
    return Shape.of(resources, selectors=selectors)
