"""Which of the nodes about to be bought belong to a gang that lies on several nodes of a zone. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tradewind.autoscaler.packing_basket import Basket
from tradewind.autoscaler.packing_loads import Use
from tradewind.autoscaler.packing_rooms import Slot
from tradewind.autoscaler.packing_rules import gang_source, has_accelerators
from tradewind.autoscaler.ray_snapshot import Gang, Strategy
from tradewind.autoscaler.view import View
from tradewind.model import LABEL_ZONE

Bought = Sequence[tuple[Slot, Use, int]]  # a node, what lies on it, how many nodes are like it


class Closeness:
    """By gang and zone, on how many nodes it lies: those that are bought now, those that are there or coming, and those
    on which a part of it runs."""

    def __init__(self, basket: Basket, view: View, bought: Bought) -> None:
        self._gangs: dict[str, Gang] = {}
        self._nodes: Counter[tuple[str, str]] = Counter()
        if not view.settings.placement_groups:
            return
        asking = {source for _, use, _ in bought for _, source, _ in use}
        mine = ((gang_source(gang), gang) for gang in view.demand.gangs)
        self._gangs = {source: gang for source, gang in mine if source in asking and _may_be_apart(gang)}
        for slot, use, number in bought:
            zone = _zone(slot)
            for source in {source for _, source, _ in use if source in self._gangs}:
                self._nodes[source, zone] += number
        alone = {source for (source, _), number in self._nodes.items() if number == 1}
        if alone:
            self._nodes.update(_elsewhere(basket, {source: self._gangs[source] for source in alone}))

    def gang_of(self, slot: Slot, use: Use) -> str:
        """The first of those that share the node: it can be in one group only."""
        zone = _zone(slot)
        sources = (source for _, source, _ in use if self._nodes.get((source, zone), 0) > 1)
        return next((self._gangs[source].gang_id for source in sources), "")


def _may_be_apart(gang: Gang) -> bool:
    if gang.strategy is Strategy.STRICT_PACK or not (len(gang.bundles) > 1 or gang.placed_on):
        return False
    distinct = {id(bundle): bundle for bundle in gang.bundles}  # most are the same object
    return any(map(has_accelerators, distinct.values()))


def _elsewhere(basket: Basket, gangs: Mapping[str, Gang]) -> Iterable[tuple[str, str]]:
    """(gang, zone) once for each node that is not bought now."""
    slots, num_there = basket.packing.rooms.slots, len(basket.packing.slots)
    found: set[tuple[str, int]] = set()
    for lay in basket.packing.lays:
        sources = lay.sources if len(lay.sources) > 1 else [lay.sources[0]] * len(lay.slots)
        found.update(
            (source, index)
            for source, index in zip(sources, lay.slots.tolist(), strict=True)
            if index < num_there and source in gangs
        )
    running = {ray_id: source for source, gang in gangs.items() for ray_id in gang.placed_on}
    if running:
        found.update((running[s.ray_node_id], i) for i, s in enumerate(slots) if s.ray_node_id in running)
    return [(source, _zone(slots[index])) for source, index in found]


def _zone(slot: Slot) -> str:
    return slot.labels.get(LABEL_ZONE, "")
