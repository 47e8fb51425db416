"""The world of a replay: nodes that boot and cost, jobs that wait and run. No policy is in here.

Jobs start in the order of their submission, where a job that does not fit lets later ones pass. A job takes its workers
from the oldest nodes with room. Something happens only at events: a submission, an end, a boot that is over.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate.trace import TraceJob
from tradewind.autoscaler.view import NodeView
from tradewind.model import Offer
from tradewind.states import NodeState


@dataclass(slots=True)
class _Node:
    offer: Offer
    requested_at_s: float
    slots: int  # workers that it takes
    free: int = 0  # 0 while it boots
    joined_at_s: float | None = None
    idle_since_s: float = 0.0
    seen: NodeView | None = None  # what policies see, for as long as nothing changes


@dataclass(slots=True)
class Cluster:
    shape: Shape
    boot_s: float
    jobs: Sequence[TraceJob]  # by submission
    nodes: dict[str, _Node] = field(default_factory=dict)
    waits_s: dict[int, float] = field(default_factory=dict)  # by job, once it has started
    waiting: list[int] = field(default_factory=list)
    wanted: int = 0  # workers, running or waiting
    bills: list[tuple[Offer, float, float]] = field(default_factory=list)  # from, until
    _events: list[tuple[float, int, str, int | str]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _held: dict[int, list[tuple[str, int]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, job in enumerate(self.jobs):
            self._at(job.submit_s, "submit", number)

    @property
    def next_event_s(self) -> float | None:
        return self._events[0][0] if self._events else None

    @property
    def has_started_all(self) -> bool:
        return len(self.waits_s) == len(self.jobs)

    def advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            at_s, _, kind, what = heapq.heappop(self._events)
            if isinstance(what, str):
                self._join(what, at_s)
            elif kind == "submit":
                self.waiting.append(what)
                self.wanted += self.jobs[what].workers
            else:
                self._end(what, at_s)
            self._start_waiting(at_s)

    def launch(self, offer: Offer, now_s: float, slots: int) -> None:
        name = f"n{next(self._order)}"
        self.nodes[name] = _Node(offer, now_s, slots)
        self._at(now_s + self.boot_s, "join", name)

    def end_node(self, name: str, now_s: float) -> None:
        node = self.nodes.pop(name)
        assert node.free == node.slots, "a node with work is not ended"
        self.bills.append((node.offer, node.requested_at_s, now_s))

    def end_all(self, now_s: float) -> None:
        for node in self.nodes.values():
            self.bills.append((node.offer, node.requested_at_s, now_s))
        self.nodes.clear()

    def idle_since_s(self) -> list[float]:
        """Of the nodes on which nothing runs."""
        return [node.idle_since_s for node in self.nodes.values() if node.joined_at_s is not None and _is_idle(node)]

    def views(self, now_s: float) -> tuple[NodeView, ...]:
        return tuple(self._view(name, node, now_s) for name, node in self.nodes.items())

    # --- what happens -----------------------------------------------------------------------------------------

    def _at(self, at_s: float, kind: str, what: int | str) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), kind, what))

    def _join(self, name: str, at_s: float) -> None:
        node = self.nodes[name]
        node.joined_at_s, node.free, node.idle_since_s, node.seen = at_s, node.slots, at_s, None

    def _end(self, number: int, at_s: float) -> None:
        self.wanted -= self.jobs[number].workers
        for name, count in self._held.pop(number):
            node = self.nodes[name]
            node.free, node.idle_since_s, node.seen = node.free + count, at_s, None

    def _start_waiting(self, at_s: float) -> None:
        free = sum(node.free for node in self.nodes.values())
        if not (free and self.waiting):
            return
        left = []
        for number in self.waiting:
            workers = self.jobs[number].workers
            if workers <= free:
                free -= workers
                self._start(number, workers, at_s)
            else:
                left.append(number)
        self.waiting = left

    def _start(self, number: int, workers: int, at_s: float) -> None:
        self._held[number] = []
        for name, node in self.nodes.items():
            count = min(node.free, workers)
            if count:
                node.free, node.seen, workers = node.free - count, None, workers - count
                self._held[number].append((name, count))
        self.waits_s[number] = at_s - self.jobs[number].submit_s
        self._at(at_s + self.jobs[number].duration_s, "end", number)

    # --- what policies see ------------------------------------------------------------------------------------

    def _view(self, name: str, node: _Node, now_s: float) -> NodeView:
        if node.seen is None:
            node.seen = NodeView(_record(name, node), ray=_ray_node(name, node, self.shape))
        idle_s = now_s - node.idle_since_s
        if node.seen.ray is not None and _is_idle(node):
            return replace(node.seen, ray=replace(node.seen.ray, idle_s=idle_s))
        return node.seen


def _is_idle(node: _Node) -> bool:
    return node.free == node.slots


def _record(name: str, node: _Node) -> NodeRecord:
    return NodeRecord(
        launch_id=name,
        offer=node.offer,
        cell="replay",
        reason="",
        state=NodeState.BOOTING if node.joined_at_s is None else NodeState.READY,
        requested_at_s=node.requested_at_s,
        state_since_s=node.requested_at_s if node.joined_at_s is None else node.joined_at_s,
        launched_at_s=node.requested_at_s,
        joined_at_s=node.joined_at_s,
    )


def _ray_node(name: str, node: _Node, shape: Shape) -> RayNode | None:
    if node.joined_at_s is None:
        return None
    free = {key: node.free * amount for key, amount in shape.resources}
    total = {key: node.slots * amount for key, amount in shape.resources}
    status = RayStatus.IDLE if _is_idle(node) else RayStatus.RUNNING
    return RayNode(name, name, status, total, free, node.offer.labels)
