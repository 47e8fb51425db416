"""What to buy for a demand: several baskets are filled, the best is taken. Pure.

Every basket is filled by first-fit, which also judges it: an idea of what to buy is a list of offers, first-fit shows what
then fits, buys what still lacks, and leaves out what nothing lies on. So a bad idea costs a moment and nothing else, and
what is taken is always what first-fit will find again at the next tick.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing import Packing, Slot
from tradewind.autoscaler.packing_advice import Missing, advise
from tradewind.autoscaler.packing_rooms import ANY_NUMBER
from tradewind.autoscaler.packing_shop import Shop
from tradewind.autoscaler.packing_stock import Purse, Stock
from tradewind.autoscaler.packing_tighten import tightened
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape

_LESS = 1 - 1e-9


class Basket:
    """One way to serve a demand."""

    def __init__(self, packing: Packing, shop: Shop) -> None:
        self.packing, self.shop, self.stock = packing, shop, shop.stock
        bought = packing.bought
        names = {bought[index].name for _, slots, _ in packing.on_bought() for index in slots.tolist()}
        self.slots = [slot for slot in bought if slot.name in names]  # with the other hosts of a slice
        self.price = sum(self.stock.price_of(slot) for slot in {slot.name: slot for slot in self.slots}.values())
        unplaced = packing.unplaced
        self.num_unserved = sum(left.count if isinstance(left, Need) else len(left.bundles) for left in unplaced)

    def is_better_than(self, other: Basket) -> bool:
        return (self.num_unserved, self.price) < (other.num_unserved, other.price * _LESS)

    def uses(self) -> dict[str, list[str]]:
        """What lies on each bought slot, in words, by its name."""
        counts: dict[str, dict[str, int]] = {}
        bought = self.packing.bought
        for lay, slots, copies in self.packing.on_bought():
            what = f"{lay.shape} ({lay.source})"
            for index, number in zip(slots.tolist(), copies.tolist(), strict=True):
                mine = counts.setdefault(bought[index].name, {})
                mine[what] = mine.get(what, 0) + number
        return {name: [f"{number} x {what}" for what, number in mine.items()] for name, mine in counts.items()}


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
        for rethink in (_tightened, _advised, _tightened):
            offers = rethink(best)
            if self.stock.prices[offers].sum() < best.price * _LESS:
                basket = self._fill(offers)
                best = basket if basket.is_better_than(best) else best
        return best

    def _fill(self, offers: Sequence[int] = ()) -> Basket:
        shop = Shop(self.stock, self.purses, self.max_share)
        packing = Packing(self.slots, shop, self.everything)
        packing.rooms.append(shop.propose(offers))
        return Basket(packing.fill(self.demand), shop)


def _advised(basket: Basket) -> list[int]:
    """By an integer program over all that had to be bought for."""
    return advise(missing_in(basket.packing), basket.stock)


def missing_in(packing: Packing) -> list[Missing]:
    """What lies on bought slots, by shape: there was no other room for it."""
    counts: Counter[tuple[Shape, bool]] = Counter()
    gangs: dict[Shape, set[str]] = {}
    held = {id(lay) for lay in packing.held}
    for lay, _, copies in packing.on_bought():
        if id(lay) not in held:
            alone = lay.gang is not None and lay.gang.strategy is Strategy.STRICT_SPREAD
            shape = lay.bound or lay.shape
            counts[shape, alone] += int(copies.sum())
            if alone:
                gangs.setdefault(shape, set()).add(lay.source)
    return [
        Missing(shape, count, len(gangs[shape]) if alone else ANY_NUMBER) for (shape, alone), count in counts.items()
    ]


def _tightened(basket: Basket) -> list[int]:
    return tightened(basket.packing, basket.stock)
