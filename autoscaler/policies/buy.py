"""Demand that fits neither on free nor on coming nodes: the cheapest fitting offer that is not ruled out.

Cheapest is per request served: price divided by how many of the waiting requests of this shape the node takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Action, Hold, Launch
from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.packing import Packing, Slot, slots_of, together
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import Gang, Strategy
from tradewind.autoscaler.shape import Shape, format_amount
from tradewind.autoscaler.view import Limits, View, price_of
from tradewind.model import Offer
from tradewind.units import format_usd

_SHOWN = 4  # alternatives on record; fallbacks are all of them


@dataclass(frozen=True, slots=True)
class _Choice:
    offer: Offer
    copies: int  # of the shape that it would take

    @property
    def score(self) -> tuple[float, float, str]:
        price = self.offer.price_uusd_per_h or 0
        return (price / self.copies, price, self.offer.market.key)

    def describe(self) -> str:
        return f"{self.offer.market} at {format_usd(self.offer.price_uusd_per_h or 0)}/h for {self.copies}"


@dataclass(slots=True)
class Shop:
    """The Buyer of one tick: keeps count of what the limits leave."""

    view: View
    launches: dict[str, Launch] = field(default_factory=dict)  # by slot name
    nodes_left: float = float("inf")
    uusd_left: float = float("inf")
    starts_left: float = float("inf")

    def __post_init__(self) -> None:
        limits, view = self.view.settings.limits, self.view
        if limits.max_nodes is not None:
            self.nodes_left = limits.max_nodes - len(view.nodes)
        if limits.max_uusd_per_h is not None:
            self.uusd_left = limits.max_uusd_per_h - price_of(view.nodes)
        if limits.launches_per_minute is not None:
            self.starts_left = limits.launches_per_minute - view.launched_last_minute

    def buy(self, shape: Shape, count: int) -> Slot | None:
        choices = sorted(self._open_choices(shape, count), key=lambda choice: choice.score)
        choices = [choice for choice in choices if (choice.offer.price_uusd_per_h or 0) <= self.uusd_left]
        if not choices or self.nodes_left < 1 or self.starts_left < 1:
            return None
        return self._take(choices)

    def undo(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            offer = self.launches.pop(slot.name).offer
            self._count(offer, -1)

    def why_not(self, shape: Shape) -> Hold:
        """Why nothing was bought for this shape. The reason stays the same from tick to tick; countdowns stand in
        the alternatives."""
        fitting = [offer for offer in self.view.offers if self._copies(offer, shape)]
        if not fitting:
            return Hold(str(shape), self._what_is_missing(shape), shape=shape)
        now_s, memory = self.view.now_s, self.view.memory
        blocks = [(offer, memory.block_of(offer, now_s)) for offer in fitting]
        ruled_out = tuple(f"{offer.market}: {block.describe(now_s)}" for offer, block in blocks if block is not None)
        if not any(self._is_open(offer) for offer in fitting):
            kinds = (
                ", ".join(sorted({block.error for _, block in blocks if block is not None})) or "no price or no list"
            )
            return Hold(str(shape), f"every offer that fits is ruled out for now: {kinds}", ruled_out[:_SHOWN])
        return Hold(str(shape), self._limit_reached(), ruled_out[:_SHOWN])

    def can_buy(self, shape: Shape) -> bool:
        return bool(self._open_choices(shape, 1)) and self.nodes_left >= 1 and self.starts_left >= 1

    # --- choosing ---------------------------------------------------------------------------------------------

    def _open_choices(self, shape: Shape, count: int) -> list[_Choice]:
        found = []
        for offer in self.view.offers:
            copies = min(count, self._copies(offer, shape))
            if copies and self._is_open(offer):
                found.append(_Choice(offer, copies))
        return found

    def _copies(self, offer: Offer, shape: Shape) -> int:
        return shape.copies_in(self.view.resources_of(offer)) if shape.allows(offer.labels) else 0

    def _is_open(self, offer: Offer) -> bool:
        """A price that is not known is not a low price. Slices of several hosts are bought elsewhere, as a whole."""
        known = offer.price_uusd_per_h is not None and offer.hosts == 1
        listed = offer.market.cloud not in self.view.blind_clouds
        return known and listed and self.view.memory.block_of(offer, self.view.now_s) is None

    def _take(self, choices: Sequence[_Choice]) -> Slot:
        best, others = choices[0], choices[1:]
        room = self.view.resources_of(best.offer)
        slot = Slot(f"new:{len(self.launches)}", "", room, dict(room), best.offer.labels, best.offer)
        self.launches[slot.name] = Launch(
            offer=best.offer,
            reason="",  # known when everything is packed
            alternatives=tuple(choice.describe() for choice in others[:_SHOWN]),
            fallbacks=tuple(choice.offer for choice in others),
        )
        self._count(best.offer, 1)
        return slot

    def _count(self, offer: Offer, nodes: int) -> None:
        self.nodes_left -= nodes
        self.starts_left -= nodes
        self.uusd_left -= nodes * (offer.price_uusd_per_h or 0)

    # --- explaining -------------------------------------------------------------------------------------------

    def _what_is_missing(self, shape: Shape) -> str:
        if not self.view.offers:
            return "there are no offers: no cloud is configured, or none answers"
        rooms = [self.view.resources_of(offer) for offer in self.view.offers]
        for name, amount in shape.resources:
            largest = max(room.get(name, 0.0) for room in rooms)
            if largest < amount:
                most = format_amount(name, largest) if largest else "none"
                return f"no offer has {name}: {format_amount(name, amount)} (the largest has {most})"
        if any(shape.copies_in(room) for room in rooms):
            return "no offer that is large enough has the labels asked for"
        return "no single offer has all of it at once"

    def _limit_reached(self) -> str:
        limits = self.view.settings.limits
        if self.nodes_left < 1:
            return f"the limit of {limits.max_nodes} nodes is reached"
        if self.starts_left < 1:
            return f"the limit of {limits.launches_per_minute} launches per minute is reached"
        return f"the limit of {format_usd(limits.max_uusd_per_h or 0)} per hour leaves too little for it"


def decide(view: View, draft: Draft) -> tuple[Action, ...]:
    if view.snapshot is None or view.demand.is_empty:
        return ()
    shop = Shop(view)
    packing = Packing(slots_of(view, draft.gone), shop).fill(view.demand)
    launches = [_because(shop.launches[slot.name], slot) for slot in packing.bought]
    return (*launches, *_holds(packing, shop))


def _because(launch: Launch, slot: Slot) -> Launch:
    price = format_usd(launch.offer.price_uusd_per_h or 0)
    reason = f"cheapest for {'; '.join(slot.used_for)}: {price}/h"
    return Launch(launch.offer, reason, launch.alternatives, launch.fallbacks)


def _holds(packing: Packing, shop: Shop) -> list[Hold]:
    holds = []
    for left in packing.unplaced:
        holds.append(_need_hold(left, shop) if isinstance(left, Need) else _gang_hold(left, shop))
    return holds


def _need_hold(need: Need, shop: Shop) -> Hold:
    hold = shop.why_not(need.shape)
    return Hold(f"{need.count} x {need.shape} ({need.source})", hold.reason, hold.alternatives, hold.shape)


def _gang_hold(gang: Gang, shop: Shop) -> Hold:
    """The bundle that no offer can serve, if there is one; otherwise it is the limits that a whole gang would pass."""
    shapes = [together(gang.bundles)] if gang.strategy is Strategy.STRICT_PACK else sorted(set(gang.bundles))
    holds = [shop.why_not(shape) for shape in shapes]
    hold = next((hold for hold in holds if hold.shape is not None), holds[0])
    reason = hold.reason
    if all(shop.can_buy(shape) for shape in shapes):  # one bundle could be bought, but not all of them
        reason = f"all of it at once would pass a limit: {_limits_text(shop.view.settings.limits)}"
    subject = f"gang {gang.gang_id[:8]} of {len(gang.bundles)}, {gang.strategy}"
    return Hold(subject, reason, hold.alternatives, hold.shape)


def _limits_text(limits: Limits) -> str:
    dollars = "any" if limits.max_uusd_per_h is None else format_usd(limits.max_uusd_per_h)
    nodes = "any number of" if limits.max_nodes is None else limits.max_nodes
    starts = "any number of" if limits.launches_per_minute is None else limits.launches_per_minute
    return f"{nodes} nodes, {dollars} per hour, {starts} launches per minute"
