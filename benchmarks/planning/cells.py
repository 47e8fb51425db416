"""One case of plan_scale.py as a running fleet sees it: in cells, with all that a loop knows. Not a benchmark itself.

Each cell has its part of the nodes and of the demand, and decides by itself. A real cell is one region of one cloud.
Limits count the nodes of the other cells. Of every market it is known how long nodes took to boot and how often spot
was taken, and what prices were in the last minutes; limits on nodes, dollars and one cloud are set, too high to be met.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planning.cases import NOW_S, Case

from tradewind.autoscaler.demand import demand_of
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.knowledge import Experience, Knowledge
from tradewind.autoscaler.limits import Counted, Limits, Part, Rule
from tradewind.autoscaler.observe import Observation, build_view, learn_resources
from tradewind.autoscaler.quotes import note_quotes
from tradewind.autoscaler.ray_snapshot import Gang, RaySnapshot
from tradewind.autoscaler.roll import Roll
from tradewind.autoscaler.settle import Listing
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.model import Capacity, EndReason, Offer
from tradewind.states import NodeState

HOUR_S = 3600.0
DEAR_UUSD_PER_H = 10**12


def experience_of(case: Case) -> Experience:
    """Nodes joined a minute and a half after they were asked for; one spot node in fifty was taken."""
    found = Experience()
    for number, node in enumerate(case.view.nodes):
        market, asked_s = node.requested.offer.market, node.requested.requested_at_s
        found.launched(market, asked_s, asked_s)
        found.joined(market, asked_s + 60.0 + number % 60, asked_s)
        if market.capacity is Capacity.SPOT and number % 50 == 0:
            found.taken(market, NOW_S - HOUR_S)
    return found


@dataclass(frozen=True, slots=True)
class Cell:
    """What one cell's loop has before it decides."""

    view: View  # without what a loop puts together anew at every tick
    fleet: FleetState  # its part
    experience: Experience
    seen: Observation  # the same moment, as it comes in

    def look(self) -> View:
        """With knowledge of markets, and with the nodes of all other cells as limits count them."""
        view, fleet, settings = self.view, self.fleet, self.view.settings
        usual = settings.market.usual_hazard_per_h, settings.usual_boot_s
        return replace(
            view,
            knowledge=Knowledge.of(self.experience, view.now_s, *usual),
            elsewhere=Counted.beside(fleet, (), view.tenants, view.now_s),
            on_record=Counted.everywhere(fleet, view.tenants),
        )

    def look_at_record(self) -> View:
        """All of it anew: from the record, what the cloud lists and what Ray says, as at every tick."""
        return build_view(self.fleet, self.seen, self.view.settings)


def cells_of(case: Case, num_cells: int, everywhere: bool = False, num_gone: int = 0) -> list[Cell]:
    """Each with the regions that are its own, or, `everywhere`, with all offers and its part of all nodes. So many
    nodes that are gone are on record, too."""
    whole, experience = _informed(case), experience_of(case)
    homes = _homes(whole.offers, num_cells)
    places = [
        number % num_cells if everywhere else homes[_region(node.requested.offer)]
        for number, node in enumerate(whole.nodes)
    ]
    nodes = [
        replace(node, requested=replace(node.requested, cell=f"cell-{place}"))
        for node, place in zip(whole.nodes, places, strict=True)
    ]
    records = [*_gone([node.requested for node in nodes], num_gone), *(node.requested for node in nodes)]
    fleet = FleetState(Roll({record.launch_id: record for record in records}), experience=experience)
    offers = [
        whole.offers if everywhere else tuple(offer for offer in whole.offers if homes[_region(offer)] == place)
        for place in range(num_cells)
    ]
    found = []
    for place, demand in enumerate(_shared_out(case.snapshot, offers)):
        mine = tuple(node for node, at in zip(nodes, places, strict=True) if at == place)
        in_ray = tuple(node.ray for node in mine if node.ray is not None)
        seen = replace(demand, nodes=(case.snapshot.nodes[0], *in_ray))
        view = replace(whole, nodes=mine, offers=offers[place], snapshot=seen, demand=demand_of(seen))
        listing = Listing({node.launch_id: node.cloud for node in mine if node.cloud is not None})
        moment = Observation(
            NOW_S, seen, listing, offers[place], seen_resources=whole.seen_resources, quotes=whole.quotes
        )
        found.append(Cell(view, fleet.cell(f"cell-{place}"), experience, moment))
    return found


def _gone(alive: Sequence[NodeRecord], count: int) -> list[NodeRecord]:
    """Of days before, one every ten seconds, the oldest first."""
    found = []
    for number in range(count):
        like, ended_s = alive[number % len(alive)], NOW_S - 24 * HOUR_S - 10.0 * (count - number)
        found.append(
            replace(like, launch_id=f"gone-{number:08x}", state=NodeState.GONE, requested_at_s=ended_s - HOUR_S,
                    state_since_s=ended_s, ended_at_s=ended_s, end=EndReason.TERMINATED)
        )  # fmt: skip
    return found


def _region(offer: Offer) -> tuple[str, str]:
    return offer.market.cloud, offer.market.region


def _homes(offers: Sequence[Offer], num_cells: int) -> dict[tuple[str, str], int]:
    regions = sorted({_region(offer) for offer in offers})
    return {region: number % num_cells for number, region in enumerate(regions)}


def _shared_out(snapshot: RaySnapshot, offers: Sequence[Sequence[Offer]]) -> list[RaySnapshot]:
    """Of each shape as many to each cell as to any other, give or take one, among those that can serve it: a job is
    sent where it can run."""
    pending: list[list[tuple[Shape, int]]] = [[] for _ in offers]
    gangs: list[list[Gang]] = [[] for _ in offers]
    for shape, count in snapshot.pending:
        able = _able((shape,), offers)
        for turn, place in enumerate(able):
            if share := (count + turn) // len(able):
                pending[place].append((shape, share))
    for number, gang in enumerate(snapshot.gangs):
        able = _able(gang.bundles, offers)
        gangs[able[number % len(able)]].append(gang)
    return [RaySnapshot(pending=tuple(p), gangs=tuple(g)) for p, g in zip(pending, gangs, strict=True)]


def _able(shapes: Sequence[Shape], offers: Sequence[Sequence[Offer]]) -> list[int]:
    """The cells that can serve all of these; all, where none can."""
    wanted = set(shapes)
    found = [
        place
        for place, mine in enumerate(offers)
        if all(any(shape.copies_in(each.resources) and shape.allows(each.labels) for each in mine) for shape in wanted)
    ]
    return found or list(range(len(offers)))


def _informed(case: Case) -> View:
    view = case.view
    cloud = view.offers[0].market.cloud
    limits = Limits(
        max_nodes=10**6,
        max_uusd_per_h=DEAR_UUSD_PER_H,
        launches_per_minute=None,
        rules=(Rule(Part(cloud=cloud), max_nodes=10**6),),
    )
    quotes = note_quotes({}, view.offers, NOW_S - HOUR_S, HOUR_S)
    records = {node.launch_id: node.requested for node in view.nodes}
    seen = learn_resources({}, case.snapshot.nodes, records)
    return replace(view, settings=replace(view.settings, limits=limits), quotes=quotes, seen_resources=seen)
