"""Which idle nodes stay for `request_resources` and for the forecast: of those that would do, the cheapest. Pure.

First-fit takes nodes in the order in which they were asked for, so that no tick undoes what another one planned
(packing.py). Where nodes are only kept at hand that order says nothing, and a dear node would stay for as long as it is
old. So when some idle nodes are to go, other orders are tried: by price, and by price for each request. One that keeps
less money busy is taken if first-fit, in its own order, then still finds room for everything: so nothing is bought for
what was let go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing import Packing, Slot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import NodeView

_MOST_SHAPES = 2  # each is a further order, which takes two packings: a large fleet has many shapes and little time

Order = Callable[[Slot], float]


@dataclass(frozen=True, slots=True)
class Keeping:
    """`slots` and `everything` as for Packing; `kept` is what nodes are only kept at hand for."""

    demand: Demand  # all that is wanted, `kept` included
    kept: Sequence[Need]
    slots: Sequence[Slot]
    everything: Sequence[Slot]

    def spare(self, idle: Sequence[NodeView], spare: Sequence[NodeView]) -> Sequence[NodeView]:
        """Of the idle nodes, those that can go; `spare` are those that first-fit does not use."""
        if len({node.requested.offer.price_uusd_per_h for node in idle}) == 1:
            return spare
        now = Demand(tuple(need for need in self.demand.needs if need not in self.kept), self.demand.gangs)
        waited_for = self._packed(now).used
        free = [node for node in idle if node.launch_id not in waited_for]
        names, best = frozenset(node.launch_id for node in free), spare
        lacking = _lacking(self._packed(self.demand))
        for order in self._orders():
            used = self._packed(self.demand, last=names, order=order).used
            found = [node for node in free if node.launch_id not in used]
            gone = frozenset(node.launch_id for node in found)
            if _price(found) > _price(best) and _lacking(self._packed(self.demand, gone)) <= lacking:
                best = found
        return best

    def _orders(self) -> Iterator[Order]:
        yield _slot_price
        for need in sorted(self.kept, key=lambda need: -need.count)[:_MOST_SHAPES]:
            yield partial(_price_for_each, need.shape)

    def _packed(
        self,
        demand: Demand,
        gone: Collection[str] = frozenset(),
        last: Collection[str] = frozenset(),
        order: Order | None = None,
    ) -> Packing:
        """Without `gone`, and with `last` after all others, by `order`."""

        def put(slots: Sequence[Slot]) -> list[Slot]:
            there = [slot for slot in slots if slot.name not in gone]
            if order is None:
                return there
            later = sorted((slot for slot in there if slot.name in last), key=order)
            return [*(slot for slot in there if slot.name not in last), *later]

        return Packing(put(self.slots), everything=put(self.everything)).fill(demand)


def _price_for_each(shape: Shape, slot: Slot) -> float:
    return _slot_price(slot) / max(1, shape.copies_in(slot.total))


def _slot_price(slot: Slot) -> float:
    return float((slot.offer.price_uusd_per_h or 0) if slot.offer else 0)


def _price(nodes: Sequence[NodeView]) -> int:
    return sum(node.requested.offer.price_uusd_per_h or 0 for node in nodes)


def _lacking(packing: Packing) -> int:
    return sum(left.count if isinstance(left, Need) else 1 for left in packing.unplaced)
