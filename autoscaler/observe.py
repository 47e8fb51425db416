"""Ray's snapshot + the clouds' listings + the log -> one View. Pure, but for `list_clouds`, which asks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.demand import Demand, demand_of
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.forecast import Forecast, SeriesKey
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.providers.base import CloudNode, Provider
from tradewind.autoscaler.quotes import Quotes
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, alive_by_launch_id, living_hosts
from tradewind.autoscaler.settle import Listing, slices_of
from tradewind.autoscaler.view import LoopSettings, NodeView, View, launched_since
from tradewind.errors import ProviderError
from tradewind.model import LABEL_INSTANCE_TYPE, Offer, Resources, Target, Wish

logger = logging.getLogger(__name__)

# Resources by which a request can fail to fit although the catalogue says that it does.
_MEASURED = ("CPU", "GPU", "TPU", "memory")


@dataclass(frozen=True, slots=True)
class Observation:
    """The inputs of one tick."""

    now_s: float
    snapshot: RaySnapshot | None
    listing: Listing
    offers: tuple[Offer, ...]
    wishes: tuple[Wish, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)
    seen_resources: Mapping[str, Resources] = field(default_factory=dict)
    wanted: Mapping[SeriesKey, float] = field(default_factory=dict)
    forecasts: Mapping[SeriesKey, Forecast] = field(default_factory=dict)
    quotes: Quotes = field(default_factory=dict)


def list_clouds(providers: Mapping[str, Provider]) -> tuple[Listing, dict[str, str]]:
    """Everything that is listed, and by cloud what went wrong. One provider may serve several clouds."""
    nodes: dict[str, CloudNode] = {}
    wrong: dict[str, str] = {}
    for provider in {id(provider): provider for provider in providers.values()}.values():
        clouds = [cloud for cloud, candidate in providers.items() if candidate is provider]
        try:
            nodes.update((node.launch_id, node) for node in provider.list_nodes())
        except ProviderError as error:
            wrong.update((cloud, str(error)) for cloud in clouds)
        except Exception as error:
            # A defect in one provider leaves the loop blind there, not dead.
            logger.exception("listing %s failed", provider.name)
            wrong.update((cloud, f"{type(error).__name__}: {error}") for cloud in clouds)
    return Listing(nodes, frozenset(wrong)), wrong


def build_view(fleet: FleetState, seen: Observation, settings: LoopSettings) -> View:
    alive, ray_nodes = fleet.alive_nodes, seen.snapshot.nodes if seen.snapshot else ()
    slices = slices_of(alive, seen.listing)
    in_ray, hosts = alive_by_launch_id(ray_nodes, slices), living_hosts(ray_nodes, slices)
    nodes = tuple(
        NodeView(record, seen.listing.nodes.get(key := record.launch_id), in_ray.get(key), hosts.get(key, ()))
        for record in alive
    )
    return View(
        now_s=seen.now_s,
        settings=settings,
        nodes=nodes,
        snapshot=seen.snapshot,
        demand=_demand(seen, nodes),
        offers=seen.offers,
        memory=MarketMemory.of(fleet, seen.now_s),
        blind_clouds=seen.listing.blind,
        launched_last_minute=launched_since(fleet, seen.now_s - 60),
        seen_resources=seen.seen_resources,
        wanted=seen.wanted,
        forecasts=seen.forecasts,
        wishes=seen.wishes,
        knowledge=_knowledge(fleet, seen.now_s, settings),
        quotes=seen.quotes,
    )


def _knowledge(fleet: FleetState, now_s: float, settings: LoopSettings) -> Knowledge:
    return Knowledge.of(fleet.experience, now_s, settings.market.usual_hazard_per_h, settings.usual_boot_s)


def _demand(seen: Observation, nodes: Sequence[NodeView]) -> Demand:
    if seen.snapshot is None:
        return Demand()
    leaving = {ray_node_id for node in nodes if node.is_leaving for ray_node_id in node.ray_node_ids}
    dead = {node.ray_node_id for node in seen.snapshot.nodes if not node.is_alive}
    taken = [node for node in nodes if node.is_in_ray and node.notice_deadline_s is not None]
    doomed = {ray_node_id for node in taken for ray_node_id in node.ray_node_ids}
    return demand_of(seen.snapshot, seen.wishes, seen.targets, frozenset(leaving | dead), frozenset(doomed))


def learn_resources(known: Mapping[str, Resources], nodes: Sequence[RayNode]) -> dict[str, Resources]:
    """What nodes of each instance type really bring to Ray: the least that was seen."""
    learnt = {kind: dict(amounts) for kind, amounts in known.items()}
    for node in nodes:
        kind = node.labels.get(LABEL_INSTANCE_TYPE, "")
        if kind and node.is_alive and node.total:
            mine = learnt.setdefault(kind, {})
            for name in _MEASURED:
                if name in node.total:
                    mine[name] = min(mine.get(name, node.total[name]), node.total[name])
    return {kind: amounts for kind, amounts in learnt.items() if amounts}
