"""The nodes of a simulated fleet, and the places where they are bought: what is held, what it costs. No policy here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate.steps import Steps
from tradewind.autoscaler.simulate.tally import Tally
from tradewind.autoscaler.view import NodeView
from tradewind.model import Offer
from tradewind.states import NodeState
from tradewind.units import to_ms

if TYPE_CHECKING:
    from tradewind.autoscaler.simulate.run import Run

ANY_NUMBER = 1_000_000_000
GPU = Shape.of({"GPU": 1})


@dataclass(frozen=True, slots=True)
class Venue:
    """What a simulation knows of a market before it begins. None: always there; always at the price of the offer."""

    offer: Offer
    stock: Steps | None = None  # nodes that could be had
    price: Steps | None = None  # micro-dollars an hour


@dataclass(slots=True, eq=False)
class Node:
    number: int  # by age
    place: Place
    offer: Offer  # as it was when it was bought
    requested_at_s: float
    slots: int
    free: int = 0  # 0 while it boots
    joined_at_s: float | None = None
    idle_since_s: float = 0.0
    taken_at_s: float | None = None  # the cloud has said so
    notice_s: float = 0.0  # how long before it said so
    is_draining: bool = False
    leaves_at_s: float | None = None  # its work moves elsewhere, until then at the latest
    held_s: float = 0.0  # when what jobs hold on it last changed
    replaces: tuple[Node, ...] = ()  # whose work it was bought for
    tried_s: float | None = None  # when something was last bought for its work
    is_gone: bool = False
    runs: dict[int, Run] = field(default_factory=dict)
    is_in_all: bool = False  # in which heaps of free nodes it stands
    is_in_place: bool = False
    seen: NodeView | None = None

    @property
    def name(self) -> str:
        return f"n{self.number}"

    @property
    def is_idle(self) -> bool:
        return self.joined_at_s is not None and not self.runs

    @property
    def is_open(self) -> bool:
        """For new work, once it has joined."""
        return self.taken_at_s is None and self.leaves_at_s is None and not self.is_gone

    @property
    def has_room(self) -> bool:
        return self.free > 0 and self.is_open

    def view(self, now_s: float) -> NodeView:
        """What policies see; made anew only when something has changed."""
        if self.seen is None:
            self.seen = NodeView(self._record(), ray=self._ray())
        ray = self.seen.ray
        if ray is not None and ray.status is RayStatus.IDLE:
            return replace(self.seen, ray=replace(ray, idle_s=now_s - self.idle_since_s))
        return self.seen

    def _record(self) -> NodeRecord:
        state = NodeState.BOOTING if self.joined_at_s is None else NodeState.READY
        since_s = self.requested_at_s if self.joined_at_s is None else self.joined_at_s
        return NodeRecord(
            launch_id=self.name,
            offer=self.offer,
            cell="simulated",
            reason="",
            state=NodeState.DRAINING if self.is_draining else state,
            requested_at_s=self.requested_at_s,
            state_since_s=since_s,
            launched_at_s=self.requested_at_s,
            joined_at_s=self.joined_at_s,
            notice_deadline_s=self.taken_at_s,
            drain_deadline_s=(self.taken_at_s or self.leaves_at_s) if self.is_draining else None,
            replaces=tuple([node.name for node in self.replaces]),
            held_since_s=self.held_s,
            tried_s=self.tried_s,
        )

    def _ray(self) -> RayNode | None:
        if self.joined_at_s is None:
            return None
        working = RayStatus.RUNNING if self.runs else RayStatus.IDLE
        status = RayStatus.DRAINING if self.is_draining else working
        total, free = {"GPU": float(self.slots)}, {"GPU": float(self.free)}
        return RayNode(self.name, self.name, status, total, free, self.offer.labels)


@dataclass(slots=True, eq=False)
class Place:
    """One market. `stock` is what could be had there at all, `soon` what will be left of it as far as it is known."""

    venue: Venue
    offer: Offer  # at the present price
    slots: int
    key: str  # of the market
    stock: int = ANY_NUMBER
    soon: int = ANY_NUMBER
    change_s: float = 0.0  # when the stock changes next
    nodes: dict[int, Node] = field(default_factory=dict)  # by age
    free_gpus: int = 0
    free: list[int] = field(default_factory=list)  # a heap of numbers of nodes with room; some may be stale
    since_ms: int = 0  # up to when its cost is counted

    @classmethod
    def of(cls, venue: Venue) -> Place:
        return cls(venue, venue.offer, int(venue.offer.accelerator_count), venue.offer.market.key)

    @property
    def room(self) -> int:
        """How many nodes more could be bought."""
        return max(min(self.stock, self.soon) - len(self.nodes), 0)

    def count(self, now_s: float, tally: Tally) -> None:
        """What its nodes have cost since the last time. Nothing may change before this is called; no such piece of time
        lies in two windows."""
        now_ms = to_ms(now_s)
        passed_ms, held = now_ms - self.since_ms, len(self.nodes)
        if passed_ms and held:
            window = tally.at(self.since_ms / 1000.0)
            cost = (self.offer.price_uusd_per_h or 0) * held * passed_ms
            window.cost += cost
            window.paid_gpu_s += held * self.slots * passed_ms / 1000.0
            if self.venue.offer.market.capacity == "spot":
                window.spot_cost += cost
        self.since_ms = now_ms

    def set_price(self, uusd_per_h: int) -> None:
        self.offer = replace(self.offer, price_uusd_per_h=uusd_per_h)

    def to_take(self, stock: int) -> Iterator[Node]:
        """Whom the cloud takes when so many are left: the newest."""
        if not self.nodes:
            return
        doomed = [node for node in self.nodes.values() if node.taken_at_s is not None]
        more = max(len(self.nodes) - len(doomed) - stock, 0)
        for node in reversed(list(self.nodes.values())):
            if not more:
                return
            if node.taken_at_s is None:
                more -= 1
                yield node
