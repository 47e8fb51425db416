"""Plans for small fleets that were made before. Policies are functions of the view: where two views differ in nothing
that policies heed but the clock, the second plan is the first one, with other nodes in it. Most plans for one job with
a contract are of this kind: nothing runs, and a node of this or that market is asked for.

Of prices, only their order is compared. That is enough where every need names its market, or all nodes are of one size.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.market import Block
from tradewind.autoscaler.simulate.place import Node
from tradewind.autoscaler.simulate.run import ANYWHERE
from tradewind.autoscaler.simulate.world import World
from tradewind.autoscaler.view import LoopSettings
from tradewind.model import Offer

_SMALL = 4  # nodes
_MOST = 4096  # plans


def picture(
    world: World,
    blocks: Mapping[str, Block],
    more: Hashable,
    settings: LoopSettings,
    price: Callable[[Offer], float],
    now_s: float,
) -> Hashable | None:
    """All that policies heed, with `more` that is not of the world; None where that is too much to compare."""
    needs, nodes = world.queue.gpus, world.nodes.values()
    if len(nodes) > _SMALL or settings.buy_ahead or any(_could_move(node) for node in nodes):
        return None
    doomed = _doomed_gpus(nodes)
    ranks: tuple[str, ...] = ()
    if needs.get(ANYWHERE) or doomed:
        if len({place.slots for place in world.places.values()}) > 1:
            return None
        ranks = tuple(
            [place.key for place in sorted(world.places.values(), key=lambda each: (price(each.offer), each.key))]
        )
    return (
        tuple([(where, count) for where, count in sorted(needs.items()) if count]),
        doomed,
        ranks,
        tuple([_node(node, settings, now_s) for node in nodes]),
        frozenset([key for key, block in blocks.items() if block.until_s > now_s]),
        more,
    )


def _could_move(node: Node) -> bool:
    """Then more is heeded than is compared here."""
    return bool(node.replaces) or (node.is_open and any(run.where == ANYWHERE for run in node.runs.values()))


def _doomed_gpus(nodes: Iterable[Node]) -> int:
    """Of those who may run anywhere, on nodes that the cloud will take."""
    runs = [(node, run) for node in nodes if node.taken_at_s is not None for run in node.runs.values()]
    return sum(count for node, run in runs if run.where == ANYWHERE for where, count in run.held if where is node)


def _node(node: Node, settings: LoopSettings, now_s: float) -> Hashable:
    joined_s, is_over = node.joined_at_s, False
    if joined_s is not None and not node.runs:
        is_over = now_s - node.idle_since_s >= settings.idle_timeout_s and now_s - joined_s >= settings.min_node_life_s
    notice, price = node.taken_at_s is not None, node.offer.price_uusd_per_h
    return node.place.key, price, node.free, joined_s is None, not node.runs, notice, node.is_draining, is_over


@dataclass(slots=True)
class Remembered:
    """By picture: the plan, and the names of the nodes when it was made. Forgotten when a price changes."""

    _plans: dict[Hashable, tuple[Plan, tuple[str, ...]]] = field(default_factory=dict)
    _offers: tuple[Offer, ...] = ()

    def find(self, seen: Hashable, world: World, offers: tuple[Offer, ...]) -> tuple[Plan, dict[str, Node]] | None:
        """With the nodes that it now speaks of, by the names that it has for them."""
        if offers is not self._offers or len(self._plans) > _MOST:
            self._plans.clear()
            self._offers = offers
        found = self._plans.get(seen)
        return None if found is None else (found[0], dict(zip(found[1], world.nodes.values(), strict=True)))

    def keep(self, seen: Hashable, plan: Plan, world: World) -> None:
        self._plans[seen] = (plan, tuple(node.name for node in world.nodes.values()))
