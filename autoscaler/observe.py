"""Ray's snapshot + the clouds' listings + the log -> one View. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from tradewind.autoscaler.demand import Demand, demand_of, workers_held
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.forecast import Forecast, SeriesKey
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.least import Allowed, without_those_that_never_start
from tradewind.autoscaler.limits import COUNTED_S, NOBODY, Counted, Tenants, bounds_of, left_of
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.packing import Slot, slots_of
from tradewind.autoscaler.quotes import Quotes
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus, alive_by_launch_id, living_hosts
from tradewind.autoscaler.settle import Listing, slices_of
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.steer import Steer
from tradewind.autoscaler.view import LoopSettings, NodeView, SeenKey, SeenResources, View, seen_keys
from tradewind.autoscaler.withhold import Room, withhold
from tradewind.model import Offer, Resources, Role, Target, Wish

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
    seen_resources: SeenResources = field(default_factory=dict)
    wanted: Mapping[SeriesKey, float] = field(default_factory=dict)
    forecasts: Mapping[SeriesKey, Forecast] = field(default_factory=dict)
    quotes: Quotes = field(default_factory=dict)
    head_silent_s: float | None = None
    jobs_left_s: float | None = None
    steers: Mapping[str, Steer] = field(default_factory=dict)


def build_view(fleet: FleetState, seen: Observation, settings: LoopSettings) -> View:
    alive, head = fleet.alive_nodes, Role.HEAD
    heads = [record for record in alive if record.role is head]
    workers = [record for record in alive if record.role is not head] if heads else alive
    launched = fleet.whole.nodes.launched_since(seen.now_s - COUNTED_S)
    tenants = Tenants.of(fleet.whole) if settings.limits.are_about_tenants else Tenants()
    view = View(
        now_s=seen.now_s,
        settings=settings,
        nodes=_nodes(workers, seen),
        heads=tuple(NodeView(record, seen.listing.nodes.get(record.launch_id)) for record in heads),
        head_silent_s=seen.head_silent_s,
        jobs_left_s=seen.jobs_left_s,
        elsewhere=Counted.beside(fleet, launched, tenants, seen.now_s),
        on_record=Counted.everywhere(fleet, tenants),
        snapshot=seen.snapshot,
        offers=seen.offers,
        memory=MarketMemory.of(fleet, seen.now_s),
        blind_clouds=seen.listing.blind,
        launched_last_minute=len(launched),
        tenants=tenants,
        seen_resources=seen.seen_resources,
        knowledge=_knowledge(fleet, seen.now_s, settings),
        quotes=seen.quotes,
    )
    return look_again(view, fleet, seen)


def look_again(view: View, fleet: FleetState, seen: Observation) -> View:
    """The same moment and the same nodes, with what is wished for, granted and forecast by now."""
    demand = _demand(seen, view)
    found = replace(
        view,
        demand=demand,
        withheld=(),
        wanted=seen.wanted,
        forecasts=seen.forecasts,
        wishes=seen.wishes,
        steers=seen.steers,
    )
    found = _startable(found, fleet)
    return _within_limits(found, fleet) if view.settings.limits.are_about_tenants else found


def _startable(view: View, fleet: FleetState) -> View:
    """Without the demand of jobs that can never start: no limit has room for as many workers as they need at once."""
    if view.snapshot is None:
        return view
    holdings = view.snapshot.holdings
    waiting = [wish for wish in view.wishes if workers_held(wish, holdings) < wish.min_workers]
    if not waiting:
        return view
    tenants = {wish.job_id: record.spec.tenant for wish in waiting if (record := fleet.jobs.get(wish.job_id))}
    bounds = bounds_of(view.settings.limits, {NOBODY, *tenants.values()})
    there = {node.requested.offer.market: node.requested.offer for node in view.nodes}
    offers = list(({offer.market: offer for offer in view.offers} | there).values())
    allowed = Allowed(bounds, offers, view.resources_of, partial(copies_beside, view))
    demand, withheld = without_those_that_never_start(
        view.demand, waiting, lambda wish: allowed.short_of(wish, tenants.get(wish.job_id, NOBODY))
    )
    return replace(view, demand=demand, withheld=(*view.withheld, *withheld))


def _nodes(workers: Sequence[NodeRecord], seen: Observation) -> tuple[NodeView, ...]:
    ray_nodes, listed = seen.snapshot.nodes if seen.snapshot else (), seen.listing.nodes
    slices = slices_of(workers, seen.listing)
    in_ray = alive_by_launch_id(ray_nodes, slices)
    if slices:
        hosts = living_hosts(ray_nodes, slices)
        return tuple(
            NodeView(each, listed.get(key := each.launch_id), in_ray.get(key), hosts.get(key, ())) for each in workers
        )
    return tuple([NodeView(each, listed.get(key := each.launch_id), in_ray.get(key)) for each in workers])


def _within_limits(view: View, fleet: FleetState) -> View:
    """Without the demand of tenants that have reached a limit."""
    left = left_of(view.settings.limits, fleet.whole, view.tenants, view.now_s)
    theirs = [each for each in left if each[0].part.tenant]
    room = Room(theirs, view.tenants, view.offers, view.resources_of, partial(_slots_of_tenants, view))
    demand, withheld = withhold(view.demand, room)
    return replace(view, demand=demand, withheld=(*view.withheld, *withheld))


def copies_beside(view: View, shape: Shape) -> int:
    """Of a shape, on nodes of the cluster that we did not buy."""
    slots = slots_of(view, frozenset(node.launch_id for node in view.nodes))
    return sum(shape.copies_in(slot.total) for slot in slots if shape.allows(slot.labels))


def _slots_of_tenants(view: View, whose: frozenset[str]) -> list[Slot]:
    owners = {node.launch_id: view.tenants.of_node.get(node.launch_id) or node.requested.tenants for node in view.nodes}
    others = frozenset(launch_id for launch_id, tenants in owners.items() if whose.isdisjoint(tenants))
    return [slot for slot in slots_of(view, others, view.demand) if slot.offer is not None]


def _knowledge(fleet: FleetState, now_s: float, settings: LoopSettings) -> Knowledge:
    return Knowledge.of(fleet.experience, now_s, settings.market.usual_hazard_per_h, settings.usual_boot_s)


def _demand(seen: Observation, view: View) -> Demand:
    if seen.snapshot is None:
        return Demand()
    gone = RayStatus.DEAD
    leaving = {ray_node_id for node in view.stirring if node.is_leaving for ray_node_id in node.ray_node_ids}
    dead = {node.ray_node_id for node in seen.snapshot.nodes if node.status is gone}
    taken = [node for node in view.stirring if node.is_in_ray and node.notice_deadline_s is not None]
    doomed = {ray_node_id for node in taken for ray_node_id in node.ray_node_ids}
    misplaced = _misplaced(seen, view.nodes)
    return demand_of(seen.snapshot, seen.wishes, seen.targets, frozenset(leaving | dead), frozenset(doomed), misplaced)


def _misplaced(seen: Observation, nodes: Sequence[NodeView]) -> dict[str, frozenset[str]]:
    ray_ids = {node.launch_id: node.ray_node_ids for node in nodes} if seen.steers else {}
    return {
        job_id: frozenset(ray_id for name in steer.misplaced for ray_id in ray_ids.get(name, ()))
        for job_id, steer in seen.steers.items()
        if steer.misplaced
    }


def learn_resources(
    known: SeenResources, nodes: Sequence[RayNode], records: Mapping[str, NodeRecord]
) -> dict[SeenKey, Resources]:
    """What nodes really bring to Ray: by the place and type that were bought, the least that was seen there; and what
    that says of other places. A type may differ between places: what one brings must not be believed of another where
    that is known better."""
    learnt = {key: dict(amounts) for key, amounts in known.items() if key[1]}
    for offer, total in _brought(nodes, records):
        mine = learnt.setdefault(seen_keys(offer)[0], {})
        for name, amount in zip(_MEASURED, total, strict=True):
            if amount is not None:
                mine[name] = min(mine.get(name, amount), amount)
    return {key: amounts for key, amounts in (*learnt.items(), *_elsewhere(learnt).items()) if amounts}


def _elsewhere(learnt: Mapping[SeenKey, Resources]) -> dict[SeenKey, Resources]:
    """What a type brings where none was seen yet: the most of all places. Too little in one place may be that place's;
    only when a second one agrees is the list not believed any more, so that not every place is bought from in vain.
    Memory is a guess until some was seen."""
    places: dict[SeenKey, list[Resources]] = {}
    for (cloud, _, kind, *size), amounts in learnt.items():
        places.setdefault((cloud, "", kind, size[0], size[1], size[2]), []).append(amounts)
    return {key: _most(found, _MEASURED if len(found) > 1 else ("memory",)) for key, found in places.items()}


def _most(places: Sequence[Resources], names: Iterable[str]) -> dict[str, float]:
    seen = {name: [amounts[name] for amounts in places if name in amounts] for name in names}
    return {name: max(amounts) for name, amounts in seen.items() if amounts}


def _brought(
    nodes: Sequence[RayNode], records: Mapping[str, NodeRecord]
) -> list[tuple[Offer, tuple[float | None, ...]]]:
    """(what was bought, how much it has of what is measured), each pair once: nearly all of one kind are alike."""
    found: dict[tuple[int, tuple[float | None, ...]], Offer] = {}
    worker, dead = Role.WORKER, RayStatus.DEAD  # local names, and few calls: this runs over all nodes
    for node in nodes:
        record = records.get(node.launch_id)
        if record is not None and record.role is worker and node.status is not dead:
            found[id(record.offer), tuple(map(node.total.get, _MEASURED))] = record.offer
    return [(offer, total) for (_, total), offer in found.items()]
