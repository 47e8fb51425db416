"""Work that moves to cheaper nodes in a simulation: when policies are asked for it, and how a job hands over.

What moves where is decided by policies/exchange.py: it buys the new node first. When that is there, it drains the old
one, and the jobs on it go on elsewhere after standing still for as long as a hand-over takes. The old node is paid
until then.

In a fleet the policy looks at every tick. Here it is asked when something could come of it at all, every few minutes,
and less often while nothing does: a simulated year would have half a million ticks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Drain, Launch, Plan
from tradewind.autoscaler.market import Block, MarketSettings, scope_key
from tradewind.autoscaler.quotes import Quote, note_quotes
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.simulate.place import Node, Place
from tradewind.autoscaler.simulate.run import Run
from tradewind.autoscaler.simulate.world import Kind, World
from tradewind.errors import Stockout
from tradewind.model import Wish

_FIRST_S, _LONGEST_S = 300.0, 3600.0  # between two looks that bring nothing
_FEW = 8  # nodes of a market


@dataclass(slots=True)
class Moves:
    """What policies are told of who could move, and when they are asked."""

    world: World
    settings: MarketSettings
    tick_s: float
    quotes: dict[str, tuple[Quote, ...]] = field(default_factory=dict)
    next_s: float = 0.0
    _wait_s: float = _FIRST_S

    def __post_init__(self) -> None:
        self.world.movers = {}
        self.world.on_price.append(self._note)
        for place in self.world.places.values():
            self._note(place, 0.0)
        self.next_s = self.settings.exchange_hysteresis_s

    def _note(self, place: Place, at_s: float) -> None:
        """A price has changed: it is believed when it has stayed for a while."""
        self.quotes |= note_quotes(self.quotes, (place.offer,), at_s, self.settings.exchange_hysteresis_s)
        self.next_s = min(self.next_s, at_s + self.settings.exchange_hysteresis_s)

    @property
    def wishes(self) -> tuple[Wish, ...]:
        return tuple([run.tell_wish() for run in (self.world.movers or {}).values()])

    # --- when ---

    def is_due(self, blocks: Mapping[str, Block], now_s: float) -> bool:
        if self.next_s > now_s or not self.world.movers:
            return False
        if self._could_save(blocks, now_s):
            return True
        if self._could_ever_save():
            self._rest(now_s)
        else:
            self.next_s = math.inf  # until a price changes, or something is planned
        return False

    def looked(self, plan: Plan, now_s: float) -> None:
        """Who has found something looks again at once: there may be more."""
        if any(map(_is_move, plan.actions)):
            self._wait_s, self.next_s = _FIRST_S, now_s + self.tick_s
        elif self.next_s <= now_s:
            self._rest(now_s)
        elif self.next_s == math.inf:
            self.next_s = now_s + self.settings.exchange_hysteresis_s

    def _rest(self, now_s: float) -> None:
        self.next_s, self._wait_s = now_s + self._wait_s, min(2.0 * self._wait_s, _LONGEST_S)

    def _could_save(self, blocks: Mapping[str, Block], now_s: float) -> bool:
        """Some work that has stayed where it is for a while pays more for a GPU than another market asks, or there is
        room on some node for others' work."""
        if self.world.free_gpus > 0 and (len(self.world.nodes) > 1 or self._are_of_sizes):
            return True
        since_s = now_s - self.settings.exchange_hysteresis_s
        calm = [place for place in self.world.places.values() if place.nodes and _has_calm_work(place, since_s)]
        return any(not _was_blocked(place, blocks, since_s) for place in self._cheaper(calm))

    def _could_ever_save(self) -> bool:
        """The same, whatever is ruled out for now, and however long work has been where it is. A node may become half
        empty without a plan: then another one, or a smaller one, may be better."""
        if len(self.world.nodes) > 1 or self._are_of_sizes:
            return True
        return bool(self._cheaper([place for place in self.world.places.values() if place.nodes]))

    def _cheaper(self, used: Sequence[Place]) -> list[Place]:
        """Where a GPU costs so much less than the dearest of these that it may be worth it."""
        enough = max(map(_per_gpu, used), default=0.0) * (1.0 - self.settings.exchange_margin)
        return [place for place in self.world.places.values() if _per_gpu(place) < enough] if used else []

    @property
    def _are_of_sizes(self) -> bool:
        """Nodes of several sizes are sold."""
        return len({place.slots for place in self.world.places.values()}) > 1


def _has_calm_work(place: Place, since_s: float) -> bool:
    """Of a large market it is not asked: some node will be."""
    if len(place.nodes) > _FEW:
        return True
    return any(node.runs and node.is_open and node.held_s <= since_s for node in place.nodes.values())


def _per_gpu(place: Place) -> float:
    return (place.offer.price_uusd_per_h or 0) / place.slots


def _was_blocked(place: Place, blocks: Mapping[str, Block], since_s: float) -> bool:
    block = blocks.get(scope_key(place.offer.market, Stockout.scope))
    return block is not None and block.until_s > since_s


def _is_move(action: object) -> bool:
    if isinstance(action, Drain):
        return action.why is DrainReason.PREEMPTION
    return isinstance(action, Launch) and bool(action.replaces)


# --- how ---


def leave(world: World, node: Node, now_s: float, deadline_s: float, handover_s: float) -> None:
    """The jobs on it hand over to nodes with room; who finds none stays until the deadline, saves, and waits."""
    world.close(node)
    node.leaves_at_s, node.is_draining, node.seen = deadline_s, True, None
    for run in list(node.runs.values()):
        if run.where or world.free_gpus < _held(run, node):
            continue
        _hand_over(world, run, node, now_s, handover_s)
    world.idle.pop(node.number, None)
    world.at(deadline_s if node.runs else now_s + handover_s, Kind.LEAVE, node)


def _held(run: Run, node: Node) -> int:
    return next(count for where, count in run.held if where is node)


def _hand_over(world: World, run: Run, old: Node, now_s: float, handover_s: float) -> None:
    """First to what was bought for it. All of the job stands still meanwhile; nothing is done again."""
    count, pause_s = _held(run, old), max(run.begin_s - now_s, handover_s)
    world.count_work(now_s, *run.keep(now_s, None))
    world.release(old, run, count, now_s)
    run.held = [each for each in run.held if each[0] is not old]
    for node in [node for node in world.nodes.values() if old in node.replaces and node.has_room]:
        taken = min(node.free, count)
        if node.joined_at_s is not None and taken:
            world.hold(node, run, taken, now_s)
            count -= taken
    world.take_room(run, count, now_s)
    world.go_on(run, now_s, pause_s)
    world.tally.moves += 1
