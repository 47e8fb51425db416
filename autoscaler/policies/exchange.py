"""Moves work to save money: from on-demand back to spot, from a dear market to a cheaper one, from two half-empty nodes
into one. Pure; docs/designs/market.md tells why.

A move buys first and drains afterwards. The launch names the nodes whose work it takes over (`replaces`, on record);
when it is ready, those are drained with a deadline and their jobs hand over. Where the work fits on nodes that are
there, nothing is bought. If a replacement is refused or never joins, the old node stays.

Runs after buying: what waits comes first, and room that something waiting could use is left alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tradewind.autoscaler.actions import SAME_UUSD, Action, Drain, Launch, alternative
from tradewind.autoscaler.deals import Deal, Desk, Option
from tradewind.autoscaler.moves import Holders, Load, Shares, is_calm, looked_at, works
from tradewind.autoscaler.packing_rooms import Bools, Rooms, Slot
from tradewind.autoscaler.packing_stock import Cap, Purse, limits_as_caps
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Offer
from tradewind.states import NodeState
from tradewind.units import format_duration

_PAIRED = 6  # of the emptiest nodes, each with each
_STARTED = 8  # moves in a tick


@dataclass(frozen=True, slots=True)
class Exchange:
    """The policy; told the same as `Buy`. A cap for some sources is held for all."""

    caps: Sequence[Cap] = ()
    max_market_share: float | None = None  # of one job; None: as the settings say

    def __call__(self, view: View, draft: Draft) -> tuple[Action, ...]:
        desk = Desk.of(view) if view.settings.market.exchange else None
        if desk is None:
            return ()
        moving = _in_a_move(view)
        handed = _hand_over(view, draft.gone, moving)
        left = min(_STARTED, _most_at_once(view) - _under_way(moving) - len(handed))
        if left <= 0:
            return handed
        loads, rooms = _movable(desk, draft.gone | {drain.launch_id for drain in handed}, moving)
        shares = Shares(view, self.max_market_share or view.settings.market.max_share)
        joined = _into_free_room(loads, rooms, desk, shares, left)
        if joined or not loads:
            return (*handed, *joined)  # what is then on which node is known at the next tick
        return (*handed, *self._replace(loads, desk, shares, draft, left))

    def _replace(self, loads: Sequence[Load], desk: Desk, shares: Shares, draft: Draft, left: int) -> list[Launch]:
        """The best deals first; no node is in two."""
        deals = _deals(loads, desk)
        if not deals:
            return []
        purses = self._purses(desk.view, draft)
        found: list[Launch] = []
        taken: set[str] = set()
        for deal in sorted(deals, key=lambda deal: (-deal.best.gain_uusd, deal.names)):
            if len(found) == left:
                break
            if not taken.isdisjoint(deal.names):
                continue
            allowed = tuple([each for each in deal.options if _is_allowed(deal, each.offer, purses, shares)])
            if allowed:
                _count(allowed[0].offer, purses)
                for load in deal.loads:
                    shares.move(load, allowed[0].offer.market.key)
                found.append(_launch(replace(deal, options=allowed), desk))
                taken.update(deal.names)
        return found

    def _purses(self, view: View, draft: Draft) -> list[Purse]:
        caps = [replace(cap, sources=None, used_nodes=None, used_uusd_per_h=None) for cap in self.caps]
        purses = [*limits_as_caps(view), *(Purse.of(cap, view) for cap in caps)]
        for offer in draft.bought:
            _count(offer, purses)
        return purses


# --- moves that have begun ----------------------------------------------------------------------------------------


def _in_a_move(view: View) -> list[NodeView]:
    """Nodes that are being left, and nodes that were bought for work that still lies elsewhere."""
    found = [node for node in view.nodes if node.requested.replaces or node.requested.state is NodeState.DRAINING]
    alive = {node.launch_id for node in view.nodes} if found else set()
    return [node for node in found if not node.requested.replaces or not alive.isdisjoint(node.requested.replaces)]


def _most_at_once(view: View) -> int:
    return max(1, int(view.settings.market.exchange_share * len(view.nodes)))


def _under_way(moving: Sequence[NodeView]) -> int:
    """Replacements that are on their way, and nodes that are being left by a deadline that no cloud has set."""
    return sum(1 for node in moving if node.is_coming or _is_being_left(node))


def _is_being_left(node: NodeView) -> bool:
    record = node.requested
    return (
        record.state is NodeState.DRAINING and record.drain_deadline_s is not None and record.notice_deadline_s is None
    )


def _hand_over(view: View, gone: frozenset[str], moving: Sequence[NodeView]) -> tuple[Drain, ...]:
    """Replacements that are ready: the work that they were bought for comes, if it still can and still fits."""
    arrived = [node for node in moving if node.requested.replaces and _takes_work(node) and node.launch_id not in gone]
    if not arrived:
        return ()
    names = {name for node in arrived for name in node.requested.replaces} - gone
    left = {node.launch_id: node for node in view.nodes if node.launch_id in names and works(node)}
    holders, found = Holders.of(view, left.values()), dict[str, Drain]()
    for node in arrived:
        room = Rooms(_unwanted([_slot(node)], view))
        for old in (left[name] for name in node.requested.replaces if name in left and name not in found):
            load = holders.load_of(old)
            if load is not None and len(room) and room.copies(load.piece)[0]:
                room.put(0, load.piece, 1)
                reason = f"its work moves to {node.launch_id} ({node.requested.offer.market}), bought for this"
                found[old.launch_id] = _drain(load, reason, view)
    return tuple(found.values())


def _takes_work(node: NodeView) -> bool:
    return node.requested.state is NodeState.READY and node.is_in_ray and not node.is_leaving


# --- what could move ----------------------------------------------------------------------------------------------


def _movable(desk: Desk, gone: frozenset[str], moving: Sequence[NodeView]) -> tuple[list[Load], Rooms]:
    """Loads that may go, and the room on calm nodes. Nodes whose replacement is on its way are neither."""
    view = desk.view
    gone |= {name for node in moving if node.is_coming for name in node.requested.replaces}
    calm = [node for node in looked_at(view) if works(node) and is_calm(node, view) and node.launch_id not in gone]
    chosen = desk.worth_a_look(calm)
    if not chosen:
        return [], Rooms([])
    holders = Holders.of(view, chosen)
    loads = [load for load in map(holders.load_of, chosen) if load is not None]
    others = len(calm) > 1  # nobody moves to where he is
    return loads, Rooms(_unwanted([_slot(node) for node in calm], view) if loads and others else [])


def _slot(node: NodeView) -> Slot:
    assert node.ray is not None
    ray = node.ray
    return Slot(node.launch_id, ray.ray_node_id, ray.available, ray.total, ray.labels, node.requested.offer)


def _unwanted(slots: Sequence[Slot], view: View) -> list[Slot]:
    """Room on which nothing that waits would fit."""
    shapes = {need.shape for need in view.demand.needs} | {b for gang in view.demand.gangs for b in gang.bundles}
    rooms, wanted = Rooms(slots), np.zeros(len(slots), np.bool_)
    for shape in shapes:
        wanted |= rooms.copies(shape) > 0
    return [slot for slot, is_wanted in zip(slots, wanted.tolist(), strict=True) if not is_wanted]


def _into_free_room(loads: Sequence[Load], rooms: Rooms, desk: Desk, shares: Shares, left: int) -> list[Drain]:
    """The dearest go first, of equal ones the youngest. Who takes work in stays."""
    if not len(rooms):
        return []
    places = {slot.name: index for index, slot in enumerate(rooms.slots)}
    stay, found, full = set[str](), dict[str, Drain](), set[Shape]()
    youngest_first = loads[::-1]
    for load in sorted(youngest_first, key=lambda load: -desk.price_of(load.node)):
        if len(found) == left:
            break
        if load.launch_id in stay or load.piece in full or not desk.is_worth_leaving(load):
            continue
        fits = rooms.copies(load.piece) > 0
        if not fits.any():
            full.add(load.piece)
        fits[[places[name] for name in (load.launch_id, *found) if name in places]] = False
        taker = next((slot for slot in _at(rooms, fits) if shares.allow(load, _market(slot))), None)
        if taker is not None:
            rooms.put(places[taker.name], load.piece, 1)
            shares.move(load, _market(taker))
            stay.add(taker.name)
            reason = f"its work fits on {taker.name}, which has room; saves {desk.words(desk.price_of(load.node))}/h"
            found[load.launch_id] = _drain(load, reason, desk.view)
    return list(found.values())


def _at(rooms: Rooms, chosen: Bools) -> Iterator[Slot]:
    return (rooms.slots[index] for index in np.flatnonzero(chosen).tolist())


def _market(slot: Slot) -> str:
    return slot.offer.market.key if slot.offer is not None else ""


def _is_allowed(deal: Deal, offer: Offer, purses: Sequence[Purse], shares: Shares) -> bool:
    within_shares = all(shares.allow(load, offer.market.key) for load in deal.loads)
    return within_shares and all(purse.allows(offer) for purse in purses if purse.cap.is_about(offer, ""))


def _count(offer: Offer, purses: Sequence[Purse]) -> None:
    for purse in purses:
        if purse.cap.is_about(offer, ""):
            purse.count(offer, 1)


def _deals(loads: Sequence[Load], desk: Desk) -> list[Deal]:
    """Each node for itself, and pairs of the emptiest. Two as one are better only if that brings more than each
    alone."""
    alone = {load.launch_id: deal for load in loads if (deal := desk.deal([load])) is not None}
    pairs = itertools.combinations(sorted(loads, key=_used_share)[:_PAIRED], 2)
    both = [deal for pair in pairs if (deal := desk.deal(pair)) is not None]
    gains = {name: deal.best.gain_uusd for name, deal in alone.items()}
    better = (deal for deal in both if deal.best.gain_uusd > sum(gains.get(name, 0.0) for name in deal.names))
    return [*alone.values(), *better]


def _used_share(load: Load) -> float:
    assert load.node.ray is not None
    total = load.node.ray.total
    return max((amount / total[name] for name, amount in load.piece.resources if total.get(name)), default=1.0)


# --- in words -----------------------------------------------------------------------------------------------------


def _drain(load: Load, reason: str, view: View) -> Drain:
    deadline_s = view.now_s + view.settings.market.handover_deadline_s
    words = f"{reason}; {', '.join(load.jobs)} can move"
    return Drain(load.launch_id, load.node.ray_node_ids, DrainReason.PREEMPTION, words, deadline_s)


def _launch(deal: Deal, desk: Desk) -> Launch:
    offers, best, settings = [each.offer for each in deal.options], deal.best, desk.view.settings
    old = " and ".join(f"{load.launch_id} ({load.node.requested.offer.market})" for load in deal.loads)
    steady = format_duration(settings.market.exchange_hysteresis_s)
    horizon = format_duration(settings.market.exchange_horizon_s)
    saving = f"{desk.words(best.new_uusd_per_h)}/h instead of {desk.words(deal.old_uusd_per_h)}/h, so for {steady}"
    worth = f"in {horizon} that saves {desk.words(best.gain_uusd)} beyond the {desk.words(best.cost_uusd)} of the move"
    reason = f"takes over the work of {old}: {saving}; {worth}; {desk.pricing.describe(offers[0])}"
    beaten = tuple(_beside(option, deal, desk) for option in deal.options[1:5])
    return Launch(offers[0], reason, beaten, tuple(offers[1:]), _jobs(deal), replaces=deal.names)


def _beside(option: Option, deal: Deal, desk: Desk) -> str:
    words = f"{option.offer.market} at {desk.words(option.offer.price_uusd_per_h or 0)}/h"
    return alternative(words, abs(option.gain_uusd - deal.best.gain_uusd) < SAME_UUSD)


def _jobs(deal: Deal) -> tuple[str, ...]:
    return tuple(sorted({job_id for load in deal.loads for job_id in load.jobs}))


decide = Exchange()
