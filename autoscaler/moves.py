"""Work that may move to another node: what lies where, and whether everybody there has said that it can go. Pure.

The policy that moves work to save money (policies/exchange.py) decides with this. A job's workers are moved only where
its wish says `can_move`: it then hands over at a step boundary. Tasks, actors and jobs that told no wish never are.
What lies on a node is one piece, which goes to one other node as a whole: what was close together stays so.

In a large fleet a part of the nodes is looked at in each tick: what a few seconds later would still be worth it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.holdings import is_own_resource
from tradewind.autoscaler.packing_rules import together
from tradewind.autoscaler.ray_snapshot import Guests, RayStatus
from tradewind.autoscaler.shape import EPSILON, LabelRule, Shape, add_up
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import LABEL_REGION, Resources, Wish
from tradewind.states import NodeState

LOOKED_AT = 32  # nodes in a tick, in two runs: so any two nodes are looked at together sooner or later
_STEPS = (0.6180339887498949, 0.41421356237309515)  # irrational: multiples of a tick's length never fall into a rhythm


@dataclass(frozen=True, slots=True)
class Load:
    """All that lies on one node, as one piece."""

    node: NodeView
    piece: Shape
    workers: Mapping[str, int]  # by job
    num_nodes: int  # on which its jobs have workers: they stand still together when one of them moves

    @property
    def launch_id(self) -> str:
        return self.node.launch_id

    @property
    def jobs(self) -> tuple[str, ...]:
        return tuple(self.workers)


def looked_at(view: View) -> list[NodeView]:
    """All nodes, or in a large fleet two runs of them that wander with time."""
    number = len(view.nodes)
    if number <= LOOKED_AT:
        return list(view.nodes)
    chosen: dict[int, None] = {}
    for step in _STEPS:
        first = int(view.now_s * step % 1.0 * number)
        chosen.update(dict.fromkeys(index % number for index in range(first, first + LOOKED_AT // 2)))
    return [view.nodes[index] for index in chosen]


def works(node: NodeView) -> bool:
    """One machine that is in use, and on which more could be put."""
    ready = node.requested.state is NodeState.READY and node.requested.offer.hosts == 1 and not node.is_leaving
    return ready and node.ray is not None and node.ray.status is RayStatus.RUNNING


def is_calm(node: NodeView, view: View) -> bool:
    """Long enough there, and what jobs hold on it has not changed for a while."""
    record, settings = node.requested, view.settings
    joined_s = record.joined_at_s if record.joined_at_s is not None else view.now_s
    quiet_s = view.now_s - max(joined_s, record.held_since_s or joined_s)
    return view.now_s - joined_s >= settings.min_node_life_s and quiet_s >= settings.market.exchange_hysteresis_s


@dataclass(slots=True)
class Holders:
    """Who holds what on some nodes, and where else those jobs are that can move."""

    wishes: Mapping[str, Wish]  # of the jobs that can move
    on_node: dict[str, list[tuple[str, Resources]]] = field(default_factory=dict)  # by ray node id
    nodes_of: dict[str, list[str]] = field(default_factory=dict)  # by job that can move: ray node ids
    regions: dict[str, str] = field(default_factory=dict)  # by ray node id; empty: there is but one
    guests: Guests = field(default_factory=dict)

    @classmethod
    def of(cls, view: View, nodes: Iterable[NodeView]) -> Holders:
        """Two quick looks at all that is held: at these nodes, and then at all nodes of the jobs there. What a contract
        steers is moved by that alone: such jobs are taken out of `view.steers` by who steers them."""
        found = cls({wish.job_id: wish for wish in view.wishes if wish.can_move and wish.job_id not in view.steers})
        looked_at = {node.ray.ray_node_id for node in nodes if node.ray is not None}
        if view.snapshot is None:
            return found
        held, found.guests = view.snapshot.holdings, view.snapshot.guests
        for job_id, name in [key for key in held if key[1] in looked_at]:
            found.on_node.setdefault(name, []).append((job_id, held[job_id, name]))
        jobs = {job_id for here in found.on_node.values() for job_id, _ in here if job_id in found.wishes}
        for job_id, name in [key for key in held if key[0] in jobs]:
            found.nodes_of.setdefault(job_id, []).append(name)
        if len({offer.market.region for offer in view.offers}) > 1:
            asked = {name for names in found.nodes_of.values() for name in names}
            there = [node for node in view.snapshot.nodes if node.ray_node_id in asked]
            found.regions = {node.ray_node_id: node.labels.get(LABEL_REGION, "") for node in there}
        return found

    def load_of(self, node: NodeView) -> Load | None:
        """What lies on a node, if all of it can move."""
        if node.ray is None:
            return None
        held = sorted(self.on_node.get(node.ray.ray_node_id, []), key=lambda each: each[0])
        workers = {job_id: self._workers(job_id, amounts) for job_id, amounts in held}
        if not workers or not all(workers.values()) or _has_more(node, [amounts for _, amounts in held]):
            return None
        if self.guests.get(node.ray.ray_node_id, frozenset()) - workers.keys():
            return None  # an actor of somebody else, which would end with the node
        shapes = [Shape.of(amounts, self.wishes[job_id].labels) for job_id, amounts in held]
        piece = self._near(shapes[0] if len(shapes) == 1 else together(shapes), tuple(workers))
        return Load(node, piece, workers, len({name for job_id in workers for name in self.nodes_of[job_id]}))

    def _workers(self, job_id: str, amounts: Resources) -> int:
        """How many; 0 where the job cannot move, or holds something there beside whole workers."""
        wish = self.wishes.get(job_id)
        if wish is None or not any(wish.resources.values()):
            return 0
        number = Shape.of(wish.resources).copies_in(amounts)
        rest = (amount - number * wish.resources.get(name, 0.0) for name, amount in amounts.items())
        return 0 if any(abs(amount) > EPSILON for amount in rest) else number

    def _near(self, piece: Shape, jobs: Sequence[str]) -> Shape:
        """Jobs are not torn over more regions than they lie in. Who lies on one node alone may go anywhere."""
        if not self.regions:
            return piece
        spread = [self.nodes_of[job_id] for job_id in jobs if len(self.nodes_of[job_id]) > 1]
        known = [{self.regions.get(name, "") for name in names} - {""} for names in spread]
        if not any(known):
            return piece
        rule = LabelRule(LABEL_REGION, tuple(sorted(set.intersection(*(each for each in known if each)))))
        selectors = [(*selector, rule) for selector in piece.selectors or ((),)]
        return Shape.of(dict(piece.resources), selectors=selectors)


def _has_more(node: NodeView, held: Sequence[Resources]) -> bool:
    """Something is in use there that nobody is known to hold."""
    if node.ray is None:
        return True
    total, free, known = node.ray.total, node.ray.available, add_up(held)
    return any(
        total[name] - free.get(name, 0.0) - known.get(name, 0.0) > EPSILON for name in total if is_own_resource(name)
    )


def held_by_market(view: View) -> dict[str, dict[str, int]]:
    """By source of a need ("job ..."): how many of its workers lie in each market, on nodes that stay."""
    snapshot, found = view.snapshot, dict[str, dict[str, int]]()
    shapes = {wish.job_id: Shape.of(wish.resources) for wish in view.wishes if any(wish.resources.values())}
    if snapshot is None or not shapes:
        return found
    stays = {
        node.ray.ray_node_id: node.requested.offer.market.key
        for node in view.nodes
        if node.ray is not None and not node.is_leaving
    }
    for (job_id, ray_node_id), amounts in snapshot.holdings.items():
        if job_id in shapes and ray_node_id in stays:
            mine = found.setdefault(f"job {job_id}", {})
            market = stays[ray_node_id]
            mine[market] = mine.get(market, 0) + shapes[job_id].copies_in(amounts)
    return found


class Shares:
    """How much of a job may lie in one market, as moves are decided. None: all of it."""

    def __init__(self, view: View, max_share: float | None) -> None:
        self._max_share = max_share
        self._held = held_by_market(view) if max_share is not None else {}

    def allow(self, load: Load, market: str) -> bool:
        if self._max_share is None or market == load.node.requested.offer.market.key:
            return True
        for job_id, number in load.workers.items():
            mine = self._held.get(f"job {job_id}", {})
            if mine.get(market, 0) + number > max(1, int(self._max_share * sum(mine.values()) + EPSILON)):
                return False
        return True

    def move(self, load: Load, market: str) -> None:
        for job_id, number in load.workers.items() if self._held else ():
            mine = self._held.setdefault(f"job {job_id}", {})
            old = load.node.requested.offer.market.key
            mine[old] = mine.get(old, 0) - number
            mine[market] = mine.get(market, 0) + number
