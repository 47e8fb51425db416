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
from tradewind.autoscaler.ray_snapshot import Gang, RayNode, RayStatus, Strategy
from tradewind.autoscaler.shape import Selector, Shape, add_up, take
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Labels, Offer

_TAKES_WORK = (RayStatus.RUNNING, RayStatus.IDLE)


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
    """Room that counts. In the order in which it was asked for, whether it is there or still coming: first-fit over
    the same order finds at the next tick the places for which this tick bought, and so buys nothing twice."""
    found = _foreign_slots(view)
    for node in view.nodes:
        if node.is_leaving or node.launch_id in gone:
            continue
        if node.ray is not None and node.ray.status in _TAKES_WORK:
            found.append(_ready_slot(node, node.ray))
        elif node.is_coming:
            room = view.resources_of(node.requested.offer)
            found.append(Slot(node.launch_id, "", room, dict(room), node.requested.offer.labels))
    return found


def _ready_slot(node: NodeView, ray: RayNode) -> Slot:
    return Slot(node.launch_id, ray.ray_node_id, dict(ray.available), dict(ray.total), ray.labels)


def _foreign_slots(view: View) -> list[Slot]:
    """The head, and machines that somebody added: room, but never ours to buy or to end."""
    ours = {node.ray.ray_node_id for node in view.nodes if node.ray is not None}
    return [
        Slot(f"ray:{node.ray_node_id}", node.ray_node_id, dict(node.available), dict(node.total), node.labels)
        for node in (view.snapshot.nodes if view.snapshot else ())
        if node.status in _TAKES_WORK and node.ray_node_id not in ours and not node.launch_id
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
        """STRICT_SPREAD only takes fresh nodes. PACK and SPREAD are preferences, which Ray keeps as far as the room
        allows: here both count what is needed at the least, on nodes of the gang first. To prefer fresh nodes for
        SPREAD would place differently once the bought ones are there, and buy again."""
        fitting = [slot for slot in self.slots if slot.room_for(bundle)]
        fresh = [slot for slot in fitting if slot.name not in taken]
        if strategy is Strategy.STRICT_SPREAD:
            return fresh[0] if fresh else None
        known = [slot for slot in fitting if slot.name in taken]
        return next(iter([*known, *fresh]), None)

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
