"""What to buy for a demand: two baskets are filled, the better is taken. Pure.

Every basket is filled by first-fit, which also judges it: an idea of what to buy is a list of offers, first-fit shows
what then fits, buys what still lacks, and leaves out what nothing lies on. So a bad idea costs a moment and nothing
else, and what is taken is always what first-fit will find again at the next tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing import Packing, Slot, covered
from tradewind.autoscaler.packing_advice import advise
from tradewind.autoscaler.packing_shop import NEAR, Held, Shop
from tradewind.autoscaler.packing_stock import Purse, Stock
from tradewind.model import LABEL_ZONE

_LESS = 1 - 1e-9


class Basket:
    """One way to serve a demand."""

    def __init__(self, packing: Packing, shop: Shop) -> None:
        self.packing, self.shop, self.stock = packing, shop, shop.stock
        self.bought, self.lays = packing.bought, list(packing.on_bought())
        names = {self.bought[index].name for index in covered(self.lays)}
        self.slots = [slot for slot in self.bought if slot.name in names]  # with the other hosts of a slice
        self.price = sum(self.stock.price_of(slot) for slot in {slot.name: slot for slot in self.slots}.values())
        unplaced = packing.unplaced
        self.num_unserved = sum(left.count if isinstance(left, Need) else len(left.bundles) for left in unplaced)

    def is_better_than(self, other: Basket) -> bool:
        return (self.num_unserved, self.price_with_distance) < (other.num_unserved, other.price_with_distance * _LESS)

    @property
    def price_with_distance(self) -> float:
        """Nodes of gangs that lie in several zones are as much worse as another zone may be dearer."""
        bought, where = self.packing.bought, dict[str, set[int]]()
        for lay in self.packing.on_bought():
            sources = [*lay.sources] * (len(lay.slots) // len(lay.sources)) if lay.bound is not None else ()
            for index, source in zip(lay.slots.tolist(), sources, strict=False):
                where.setdefault(source, set()).add(index)
        scattered = {
            index
            for slots in where.values()
            for index in slots
            if len({bought[slot].labels.get(LABEL_ZONE) for slot in slots}) > 1
        }
        return self.price + (NEAR - 1) * sum(self.stock.price_of(bought[index]) for index in scattered)


@dataclass(frozen=True, slots=True)
class Errand:
    """What is wanted, and where it may be bought. `everything` are all nodes, `slots` those with room."""

    demand: Demand
    slots: Sequence[Slot]
    everything: Sequence[Slot]
    stock: Stock
    purses: Sequence[Purse] = ()
    max_share: float | None = None
    held: Held | None = None  # what askers have by market, where shares count

    def run(self) -> Basket:
        best = self._fill()
        if not best.slots or best.shop.counts_askers:
            return best  # one need or owner must not be traded for another
        idea = advise(best.packing, self.stock)
        if not idea or self.stock.prices[idea].sum() >= best.price * _LESS:
            return best
        other = self._fill(idea)
        return other if other.is_better_than(best) else best

    def _fill(self, offers: Sequence[int] = ()) -> Basket:
        shop = Shop(self.stock, self.purses, self.max_share, self.held)
        packing = Packing(self.slots, shop, self.everything)
        packing.rooms.append(shop.propose(offers))
        return Basket(packing.fill(self.demand), shop)
