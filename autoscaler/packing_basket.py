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
from tradewind.autoscaler.packing_shop import Shop
from tradewind.autoscaler.packing_stock import Purse, Stock

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
        return (self.num_unserved, self.price) < (other.num_unserved, other.price * _LESS)


@dataclass(frozen=True, slots=True)
class Errand:
    """What is wanted, and where it may be bought. `everything` are all nodes, `slots` those with room."""

    demand: Demand
    slots: Sequence[Slot]
    everything: Sequence[Slot]
    stock: Stock
    purses: Sequence[Purse] = ()
    max_share: float | None = None

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
        shop = Shop(self.stock, self.purses, self.max_share)
        packing = Packing(self.slots, shop, self.everything)
        packing.rooms.append(shop.propose(offers))
        return Basket(packing.fill(self.demand), shop)
