"""Plans for small fleets that were made before. Policies are functions of the view: where two views differ in nothing
that policies heed but the clock, the second plan is the first one, with other nodes in it. Most plans for one job with
a contract are of this kind: nothing runs, and a node of this or that market is asked for.

Only where every need names its market: then prices decide nothing, and what is known of markets need not be compared.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
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
    world: World, blocks: Mapping[str, Block], launched: int, settings: LoopSettings, now_s: float
) -> Hashable | None:
    """All that policies heed; None where that is too much to compare."""
    needs, nodes = world.queue.gpus, world.nodes
    if len(nodes) > _SMALL or needs.get(ANYWHERE) or settings.buy_ahead or settings.market.exchange:
        return None
    if any(
        run.where == ANYWHERE for node in nodes.values() if node.taken_at_s is not None for run in node.runs.values()
    ):
        return None
    return (
        tuple([(where, count) for where, count in sorted(needs.items()) if count]),
        tuple([_node(node, settings, now_s) for node in nodes.values()]),
        tuple([key for key, block in blocks.items() if block.until_s > now_s]),
        launched,
    )


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
