"""What the stories about the loop share: offers, settings, and ways to ask a world."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import (
    AnyEvent,
)
from tradewind.model import Capacity, Offer
from tradewind.states import NodeState

CHEAP = make_offer("gcp/us-central1-a/g2", usd_per_h=0.28, cpus=4, gpus=1)
MIDDLE = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=0.80, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
OFFERS = (CHEAP, MIDDLE, DEAR)
SETTINGS = LoopSettings(fleet="test", idle_timeout_s=30, min_node_life_s=20, boot_timeout_s=100)
GPU = {"CPU": 1, "GPU": 1}


def world(offers: Sequence[Offer] = OFFERS, **changes: object) -> World:
    return World(offers, replace(SETTINGS, **changes))  # type: ignore[arg-type]


def of_kind(world: World, kind: type[AnyEvent]) -> list[AnyEvent]:
    return [event for event in world.events if isinstance(event, kind)]


def alive(world: World) -> list[str]:
    return sorted(node.launch_id for node in world.cloud.alive())


def markets(world: World) -> list[str]:
    return sorted(node.offer.market.key for node in world.cloud.alive())


def states(world: World) -> set[NodeState]:
    return {node.state for node in world.fleet.nodes.values()}


def assert_log_folds(world: World) -> None:
    """The log alone gives the same state: nothing is kept elsewhere."""
    assert FleetState.fold(world.events).nodes == world.fleet.nodes
