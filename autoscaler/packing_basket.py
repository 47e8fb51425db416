"""What to buy for a demand: two baskets are filled, the better is taken. Pure.

Every basket is filled by first-fit, which also judges it: an idea of what to buy is a list of offers, first-fit shows
what then fits, buys what still lacks, and leaves out what nothing lies on. So a bad idea costs a moment and nothing
else, and what is taken is always what first-fit will find again at the next tick.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing import Packing, Slot, covered
from tradewind.autoscaler.packing_advice import advise
from tradewind.autoscaler.packing_mix import EVERYTHING_HERE, Fleet
from tradewind.autoscaler.packing_rules import gang_source, has_accelerators, packs
from tradewind.autoscaler.packing_shop import NEAR, Held, Shop
from tradewind.autoscaler.packing_stock import Purse, Stock
from tradewind.model import LABEL_ZONE

_LESS = 1 - 1e-9
_MOST_TIMES = 8  # jobs are left out one by one; where there are more of them, all at once
_NODE_WORTHS = (1.0, 4.0, 16.0)  # in prices of the dearest node that was bought


@dataclass(frozen=True, slots=True)
class Short:
    """A job for which nothing is bought: not as many as it needs at once would have had a place."""

    need: Need
    placed: int
    limit: str


class Basket:
    """One way to serve a demand."""

    def __init__(self, packing: Packing, shop: Shop) -> None:
        self.packing, self.shop, self.stock = packing, shop, shop.stock
        self.bought, self.lays = packing.bought, list(packing.on_bought())
        names = {self.bought[index].name for index in covered(self.lays)}
        self.slots = [slot for slot in self.bought if slot.name in names]  # with the other hosts of a slice
        self.price = sum(self.stock.price_of(slot) for slot in {slot.name: slot for slot in self.slots}.values())
        self.short: list[Short] = []
        unplaced = packing.unplaced
        self.num_unserved = sum(left.count if isinstance(left, Need) else len(left.bundles) for left in unplaced)

    def is_better_than(self, other: Basket, wired: Collection[str] = ()) -> bool:
        """`wired` are the gangs that would rather lie on few nodes."""
        if self.num_unserved != other.num_unserved:
            return self.num_unserved < other.num_unserved
        return self._price_with_distance(other, wired) < other._price_with_distance(self, wired) * _LESS

    @cached_property
    def _gangs(self) -> dict[str, set[int]]:
        """By gang, the bought slots on which it lies."""
        where = dict[str, set[int]]()
        for lay in self.lays:
            sources = [*lay.sources] * (len(lay.slots) // len(lay.sources)) if lay.bound is not None else ()
            for index, source in zip(lay.slots.tolist(), sources, strict=False):
                where.setdefault(source, set()).add(index)
        return where

    def _price_with_distance(self, other: Basket, wired: Collection[str]) -> float:
        """Nodes of gangs that lie in several zones, or of wired ones on more nodes than in the other basket, are as
        much worse as it may cost to have them close."""
        scattered = set[int]()
        for source, slots in self._gangs.items():
            is_spread = source in wired and len(slots) > len(other._gangs.get(source, slots))
            if is_spread or len({self.bought[slot].labels.get(LABEL_ZONE) for slot in slots}) > 1:
                scattered |= slots
        return self.price + (NEAR - 1) * sum(self.stock.price_of(self.bought[index]) for index in scattered)


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
    fleet: Fleet = EVERYTHING_HERE
    at_once: Mapping[str, int] = field(default_factory=dict)  # how many of its requests a job cannot start without
    is_sought: bool = True  # False: nothing may be launched now, so that a search would be for nothing

    def run(self) -> Basket:
        best = self._on_fewer_nodes(self._fill())
        if short := self._short_of_nodes(best):
            return self._without(short, best)
        if not self.is_sought or not best.slots or self._is_tight(best):
            return best
        idea = advise(best.packing, self.stock, self.fleet)
        if not idea or self.stock.prices[idea].sum() >= best.price * _LESS:
            return best
        other = self._fill(idea)
        return other if other.is_better_than(best, _wired(self.demand)) else best

    def _on_fewer_nodes(self, best: Basket) -> Basket:
        """Where the number of nodes is what a job lacks that needs so many requests served at once, larger machines
        serve it, though each request costs more on them. Only these jobs, since all others can wait for their turn; and
        as little more as will do: a node less is taken for worth ever more."""
        lacking = self._lacking(best)
        if not lacking or not best.slots or not any(purse.nodes_left < 1 for purse in best.shop.purses):
            return best
        dearest = max(self.stock.price_of(slot) for slot in best.slots)
        for times in _NODE_WORTHS:
            other = self._fill(spared=dict.fromkeys(lacking, times * dearest))
            if len(self._lacking(other)) < len(self._lacking(best)):
                best = other
            if not self._lacking(best):
                break
        return best

    def _short_of_nodes(self, best: Basket) -> list[str]:
        """Who cannot start by a limit on the number of nodes, even on larger machines, as they are used now."""
        lacking = self._lacking(best)
        if not lacking or not any(purse.nodes_left < 1 for purse in best.shop.purses):
            return []
        return [need.source for need in self.demand.needs if need.source in lacking]

    def _without(self, short: Sequence[str], best: Basket) -> Basket:
        """Nothing is bought or kept for the first of them: a part of its nodes would be paid for nothing, and small
        ones would stand where larger ones are needed. Others may find that they have room then."""
        out = short if len(short) > _MOST_TIMES else short[:1]
        needs = tuple(need for need in self.demand.needs if need.source not in out)
        basket = replace(self, demand=replace(self.demand, needs=needs)).run()
        unplaced = {left.source: left.count for left in best.packing.unplaced if isinstance(left, Need)}
        reached = next(purse.cap.name for purse in best.shop.purses if purse.nodes_left < 1)
        left_out = [need for need in self.demand.needs if need.source in out]
        basket.short += [Short(need, need.count - unplaced.get(need.source, 0), reached) for need in left_out]
        return basket

    def _lacking(self, basket: Basket) -> set[str]:
        """Who gets less than it needs at once."""
        if not self.at_once or not basket.num_unserved:
            return set()
        unplaced = {left.source: left.count for left in basket.packing.unplaced if isinstance(left, Need)}
        asked = ((need.source, need.count - unplaced.get(need.source, 0)) for need in self.demand.needs)
        return {source for source, placed in asked if placed < self.at_once.get(source, 0)}

    def _is_tight(self, best: Basket) -> bool:
        """One need or owner must not be traded for another: not where shares or a limit of some askers count. A limit
        on money that would pay for all of it twice does not."""
        listed = sum(slot.offer.price_uusd_per_h or 0 for slot in best.slots if slot.offer is not None)
        some = [purse for purse in self.purses if purse.cap.sources is not None]
        are_wide = all(purse.cap.max_nodes is None and purse.uusd_left >= 2 * listed for purse in some)
        return self.max_share is not None or not are_wide

    def _fill(self, offers: Sequence[int] = (), spared: Mapping[str, float] | None = None) -> Basket:
        shop = Shop(self.stock, self.purses, self.max_share, self.held, spared)
        packing = Packing(self.slots, shop, self.everything)
        packing.rooms.append(shop.propose(offers))
        return Basket(packing.fill(self.demand), shop)


def _wired(demand: Demand) -> set[str]:
    packed = (gang for gang in demand.gangs if packs(gang.strategy))
    return {gang_source(gang) for gang in packed if any(has_accelerators(bundle) for bundle in gang.bundles)}
