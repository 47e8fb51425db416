"""Why something is asked for and nothing is bought for it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import numpy as np

from tradewind.autoscaler.actions import Hold, Launch
from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.packing_basket import Basket, Short
from tradewind.autoscaler.packing_buyer import Asker
from tradewind.autoscaler.packing_reasons import copies_on, jobs_by_source
from tradewind.autoscaler.packing_rules import gang_source, names_a_place, pieces_of
from tradewind.autoscaler.packing_slots import hosts_of
from tradewind.autoscaler.packing_stock import Purse, is_open
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Selector, Shape, format_amount
from tradewind.autoscaler.view import Limits, View
from tradewind.model import LABEL_ACCELERATOR, Offer
from tradewind.units import format_usd

_SHOWN = 4
_KIND = "accelerator_type:"  # of Ray's resources that name one


def holds_of(basket: Basket, view: View) -> list[Hold]:
    unplaced = basket.packing.unplaced
    jobs = jobs_by_source(view.demand) if unplaced or basket.short else {}
    return [
        *(_short_hold(short, jobs) for short in basket.short),
        *_unplaced_holds(basket, view, jobs),
    ]


def _short_hold(short: Short, jobs: Mapping[str, str]) -> Hold:
    need = short.need
    who = (jobs[need.source],) if need.source in jobs else ()
    reason = f"it needs {need.count} at once, and {short.limit} leaves room for {short.placed}"
    return Hold(f"{need.count} x {need.shape} ({need.source})", reason, jobs=who)


def _unplaced_holds(basket: Basket, view: View, jobs: Mapping[str, str]) -> list[Hold]:
    return [
        _need_hold(left, basket, view, jobs) if isinstance(left, Need) else _gang_hold(left, basket, view)
        for left in basket.packing.unplaced
    ]


def postponed(launches: Sequence[Launch], limits: Limits) -> list[Hold]:
    """What would be bought now, but for the number of launches in a minute."""
    if not launches:
        return []
    jobs = dict.fromkeys(job for launch in launches for job in launch.jobs)
    markets = dict.fromkeys(str(launch.offer.market) for launch in launches)
    reason = (
        f"the limit of {limits.launches_per_minute} launches per minute is reached: they follow in the next minutes"
    )
    return [Hold(f"{len(launches)} more nodes", reason, tuple(markets)[:_SHOWN], jobs=tuple(jobs))]


def _need_hold(need: Need, basket: Basket, view: View, jobs: Mapping[str, str]) -> Hold:
    hold = _why_not(need.shape, Asker(need.source, need.count), basket, view)
    subject = f"{need.count} x {need.shape} ({need.source})"
    who = (jobs[need.source],) if need.source in jobs else ()
    return Hold(subject, hold.reason, hold.alternatives, hold.shape, who)


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
    return Hold(subject, reason, hold.alternatives, hold.shape, (gang.job_id,) if gang.job_id else ())


def _all_at_once(limits: Limits) -> str:
    dollars = "any" if limits.max_uusd_per_h is None else format_usd(limits.max_uusd_per_h)
    nodes = "any number of" if limits.max_nodes is None else limits.max_nodes
    words = f"{nodes} nodes, {dollars} per hour"
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
    fitting = [offer for offer in view.offers if copies_on(offer, shape, view)]
    if not fitting:
        return Hold(str(shape), what_is_missing(shape, view), shape=shape)
    blocks = [(offer, view.memory.block_of(offer, view.now_s)) for offer in fitting]
    described = (f"{offer.market}: {block.describe(view.now_s)}" for offer, block in blocks if block is not None)
    ruled_out = tuple(described)[:_SHOWN]
    if not any(is_open(offer, view) for offer in fitting):
        kinds = ", ".join(sorted({block.error for _, block in blocks if block is not None})) or "no price or no list"
        return Hold(str(shape), f"every offer that fits is ruled out for now: {kinds}", ruled_out)
    sold = [offer for offer in fitting if is_open(offer, view)]
    return Hold(str(shape), _limit_reached(sold, asker, basket.shop.purses), ruled_out)


def _limit_reached(offers: Sequence[Offer], asker: Asker, purses: Sequence[Purse]) -> str:
    """The cap that stands in the way of all of them; where each has its own, these."""
    in_the_way = [
        [purse for purse in purses if purse.cap.is_about(offer, asker.source) and purse.allows(offer) < 1]
        for offer in sorted(offers, key=lambda offer: (offer.price_uusd_per_h or 0, offer.market.key))
    ]
    if not all(in_the_way):
        return "it fits on no node that may be bought for it"
    common = [purse for purse in in_the_way[0] if all(purse in others for others in in_the_way)]
    named = common[:1] or [first for first, *_ in in_the_way]
    words = (f"{each.cap.name} {'is reached' if each.nodes_left < 1 else 'leaves too little for it'}" for each in named)
    return " and ".join(tuple(dict.fromkeys(words))[:_SHOWN])


def what_is_missing(shape: Shape, view: View) -> str:
    """Why no offer holds one of it."""
    if not view.offers:
        return "there are no offers: no cloud is configured, or none answers"
    if kinds := _unsold_kinds(shape, view):
        sold = sorted({offer.accelerator for offer in view.offers if offer.accelerator})
        has = f"this fleet's have {', '.join(sold)}" if sold else "this fleet's have none"
        return f"no offer has the accelerator {' or '.join(kinds)}: {has}"
    rooms = [room for offer in view.offers for room, _ in hosts_of(offer, view)]
    for name, amount in shape.resources:
        largest = max(room.get(name, 0.0) for room in rooms)
        if largest < amount:
            most = format_amount(name, largest) if largest else "none"
            return f"no offer has {name}: {format_amount(name, amount)} (the largest has {most})"
    if any(shape.copies_in(room) for room in rooms):
        return _what_label_is_missing(shape, view)
    return "no single offer has all of it at once"


def _unsold_kinds(shape: Shape, view: View) -> list[str]:
    """Accelerators that are asked for by plain name, of which one is needed and none is sold."""
    sold = {offer.labels.get(LABEL_ACCELERATOR, "") for offer in view.offers}
    by_resource = [name.removeprefix(_KIND) for name, _ in shape.resources if name.startswith(_KIND)]
    unsold = [kind for kind in by_resource if kind not in sold]
    rules = [_kind_rules(selector) for selector in shape.selectors]
    if not unsold and rules and all(any(sold.isdisjoint(values) for values in each) for each in rules):
        unsold = [kind for each in rules for values in each for kind in values if kind not in sold]
    return [kind for kind in dict.fromkeys(unsold) if kind.replace("-", "").isalnum()]


def _kind_rules(selector: Selector) -> list[tuple[str, ...]]:
    return [rule.values for rule in selector if rule.key == LABEL_ACCELERATOR and not rule.negated]


def _what_label_is_missing(shape: Shape, view: View) -> str:
    """A key that nothing has is mostly a mistake in writing, and waits for ever."""
    known = {key for offer in view.offers for key in offer.labels}
    wanted = {rule.key for selector in shape.selectors for rule in selector if not rule.negated}
    unknown = sorted(wanted - known)
    if not unknown:
        return "no offer that is large enough has the labels asked for"
    near = get_close_matches(unknown[0], sorted(known), n=1)
    return f"no offer has a label {unknown[0]}" + (f" (did you mean {near[0]}?)" if near else "")
