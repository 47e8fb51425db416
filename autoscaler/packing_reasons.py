"""Baskets in words: why a node is bought and what it beat, why something is asked for and nothing is bought. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tradewind.autoscaler.actions import Hold, Launch
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.packing_basket import Basket
from tradewind.autoscaler.packing_buyer import Asker
from tradewind.autoscaler.packing_loads import Loads, Options
from tradewind.autoscaler.packing_rooms import Slot
from tradewind.autoscaler.packing_rules import gang_source, names_a_place, pieces_of
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.packing_stock import Purse, Stock, is_open, jobs_in
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Shape, format_amount
from tradewind.autoscaler.view import Limits, View
from tradewind.model import Offer
from tradewind.units import format_usd

_SHOWN = 4  # alternatives on record; fallbacks are all of them
_Others = tuple[tuple[str, ...], tuple[Offer, ...]]  # what a purchase beat: in words, as offers


def launches_of(basket: Basket, demand: Demand) -> list[Launch]:
    """One for each node or slice. Nodes of one offer with the same load share their alternatives."""
    uses, loads, stock = basket.uses(), Loads.of(basket.packing), basket.stock
    options = Options.of(loads, stock)
    others: dict[tuple[int, int], _Others] = {}
    prices: dict[int, str] = {}
    found: dict[str, Launch] = {}
    jobs = {gang_source(gang): gang.job_id for gang in demand.gangs}
    for slot, load in zip(basket.packing.bought, loads.copies, strict=True):
        if slot.name not in uses or slot.name in found:
            continue
        assert slot.offer is not None
        key = (options.for_load(load), id(slot.offer))
        if key not in others:
            others[key] = _others(slot, key[0], options, stock)
        if key[1] not in prices:
            prices[key[1]] = _price_text(slot, stock)
        reason = f"cheapest for {'; '.join(uses[slot.name])}: {prices[key[1]]}"
        sources = [use.rpartition("(")[2].removesuffix(")") for use in uses[slot.name]]
        named = dict.fromkeys(job_id for source in sources for job_id in jobs_in(source, jobs))
        found[slot.name] = Launch(slot.offer, reason, *others[key], tuple(named))
    return list(found.values())


def _price_text(slot: Slot, stock: Stock) -> str:
    assert slot.offer is not None
    if stock.describe is not None:
        return stock.describe(slot.offer)
    listed, effective = slot.offer.price_uusd_per_h or 0, round(stock.price_of(slot))
    more = f" ({format_usd(effective)}/h with all that comes with it)" if effective != listed else ""
    return f"{format_usd(listed)}/h{more}"


def _others(slot: Slot, row: int, options: Options, stock: Stock) -> _Others:
    """First those that would hold the whole load, by price; then those that serve a part of it."""
    own = stock.index_of(slot)
    if own is None:
        alike = [offer for offer, _ in stock.slices if offer is not slot.offer and _same_hosts(offer, slot)]
        return tuple(f"{offer.market} at {_price(offer)}" for offer in alike[:_SHOWN]), tuple(alike)
    load, whole = options.loads[row], options.whole[row]
    number = int(load.sum())
    served = np.minimum(options.fits[int(np.flatnonzero(load)[0])], number)
    served[whole] = number
    usable = np.flatnonzero(served)
    ranked = usable[np.lexsort((usable, stock.prices[usable] / served[usable], ~whole[usable]))].tolist()
    ranked.remove(own)
    offers = stock.offers
    words = (f"{offers[index].market} at {_price(offers[index])} for {served[index]}" for index in ranked[:_SHOWN])
    return tuple(words), tuple(offers[index] for index in ranked)


def _same_hosts(offer: Offer, slot: Slot) -> bool:
    own = slot.offer
    return own is not None and (offer.hosts, offer.resources) == (own.hosts, own.resources)


def _price(offer: Offer) -> str:
    return f"{format_usd(offer.price_uusd_per_h or 0)}/h"


# --- what is not bought -------------------------------------------------------------------------------------------


def holds_of(basket: Basket, view: View) -> list[Hold]:
    return [
        _need_hold(left, basket, view) if isinstance(left, Need) else _gang_hold(left, basket, view)
        for left in basket.packing.unplaced
    ]


def _need_hold(need: Need, basket: Basket, view: View) -> Hold:
    hold = _why_not(need.shape, Asker(need.source, need.count), basket, view)
    return Hold(f"{need.count} x {need.shape} ({need.source})", hold.reason, hold.alternatives, hold.shape)


def _gang_hold(gang: Gang, basket: Basket, view: View) -> Hold:
    """The bundle that no offer can serve, if there is one; otherwise it is the limits that a whole gang would pass."""
    pieces = sorted(set(pieces_of(gang)))
    asker = Asker(gang_source(gang), len(gang.bundles), is_gang=True)
    holds = [_why_not(piece, asker, basket, view) for piece in pieces]
    hold = next((hold for hold in holds if hold.shape is not None), holds[0])
    reason = hold.reason
    if all(_can_buy(piece, asker, basket) for piece in pieces):  # each could be bought, but not all of them at once
        apart = not names_a_place(pieces) and not _some_region_sells(pieces, basket)
        reason = "no single region sells all of it" if apart else _all_at_once(view.settings.limits)
    subject = f"gang {gang.gang_id[:8]} of {len(gang.bundles)}, {gang.strategy}"
    return Hold(subject, reason, hold.alternatives, hold.shape)


def _all_at_once(limits: Limits) -> str:
    dollars = "any" if limits.max_uusd_per_h is None else format_usd(limits.max_uusd_per_h)
    nodes = "any number of" if limits.max_nodes is None else limits.max_nodes
    starts = "any number of" if limits.launches_per_minute is None else limits.launches_per_minute
    words = f"{nodes} nodes, {dollars} per hour, {starts} launches per minute"
    return f"all of it at once would pass a limit: {words}"


def _some_region_sells(pieces: Sequence[Shape], basket: Basket) -> bool:
    stock = basket.stock
    regions = [stock.in_region(region) for region in stock.regions]
    return any(all((stock.copies(piece) * here).any() for piece in pieces) for here in regions)


def _can_buy(shape: Shape, asker: Asker, basket: Basket) -> bool:
    fitting = np.flatnonzero(basket.stock.copies(shape)).tolist()
    return any(basket.shop.allowed(basket.stock.offers[index], asker) for index in fitting)


def _why_not(shape: Shape, asker: Asker, basket: Basket, view: View) -> Hold:
    """Why nothing was bought for this shape. The reason stays the same from tick to tick; countdowns stand in the
    alternatives."""
    fitting = [offer for offer in view.offers if _copies(offer, shape, view)]
    if not fitting:
        return Hold(str(shape), _what_is_missing(shape, view), shape=shape)
    blocks = [(offer, view.memory.block_of(offer, view.now_s)) for offer in fitting]
    described = (f"{offer.market}: {block.describe(view.now_s)}" for offer, block in blocks if block is not None)
    ruled_out = tuple(described)[:_SHOWN]
    if not any(is_open(offer, view) for offer in fitting):
        kinds = ", ".join(sorted({block.error for _, block in blocks if block is not None})) or "no price or no list"
        return Hold(str(shape), f"every offer that fits is ruled out for now: {kinds}", ruled_out)
    sold = [offer for offer in fitting if is_open(offer, view)]
    return Hold(str(shape), _limit_reached(sold, asker, basket.shop.purses), ruled_out)


def _limit_reached(offers: Sequence[Offer], asker: Asker, purses: Sequence[Purse]) -> str:
    """The first cap that stands in the way of the cheapest."""
    cheapest = min(offers, key=lambda offer: (offer.price_uusd_per_h or 0, offer.market.key))
    for purse in purses:
        if purse.cap.is_about(cheapest, asker.source) and purse.allows(cheapest) < 1:
            return f"{purse.cap.name} {'is reached' if purse.nodes_left < 1 else 'leaves too little for it'}"
    return "it fits on no node that may be bought for it"


def _copies(offer: Offer, shape: Shape, view: View) -> int:
    return sum(shape.copies_in(room) for room, labels in hosts_of(offer, view) if shape.allows(labels))


def _what_is_missing(shape: Shape, view: View) -> str:
    if not view.offers:
        return "there are no offers: no cloud is configured, or none answers"
    rooms = [room for offer in view.offers for room, _ in hosts_of(offer, view)]
    for name, amount in shape.resources:
        largest = max(room.get(name, 0.0) for room in rooms)
        if largest < amount:
            most = format_amount(name, largest) if largest else "none"
            return f"no offer has {name}: {format_amount(name, amount)} (the largest has {most})"
    if any(shape.copies_in(room) for room in rooms):
        return "no offer that is large enough has the labels asked for"
    return "no single offer has all of it at once"
