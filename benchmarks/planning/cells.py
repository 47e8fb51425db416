"""One case of plan_scale.py as a running fleet sees it: in cells, with all that a loop knows. Not a benchmark itself.

Each cell has its part of the nodes and of the demand, and decides by itself; all are offered everything. Limits count
the nodes of the other cells. Of every market it is known how long nodes took to boot and how often spot was taken, and
what prices were in the last minutes; limits on nodes, dollars and one cloud are set, too high to be met.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from planning.cases import NOW_S, Case

from tradewind.autoscaler.demand import demand_of
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.knowledge import Experience, Knowledge
from tradewind.autoscaler.limits import Counted, Limits, Part, Rule
from tradewind.autoscaler.observe import learn_resources
from tradewind.autoscaler.quotes import note_quotes
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.view import View
from tradewind.model import Capacity

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

    def look(self) -> View:
        """With knowledge of markets, and with the nodes of all other cells as limits count them."""
        view, fleet, settings = self.view, self.fleet, self.view.settings
        usual = settings.market.usual_hazard_per_h, settings.usual_boot_s
        return replace(
            view,
            knowledge=Knowledge.of(self.experience, view.now_s, *usual),
            elsewhere=Counted.beside(fleet, (), view.tenants, view.now_s),
        )


def cells_of(case: Case, num_cells: int) -> list[Cell]:
    whole, experience = _informed(case), experience_of(case)
    names = [f"cell-{number}" for number in range(num_cells)]
    records = [replace(node.requested, cell=names[i % num_cells]) for i, node in enumerate(whole.nodes)]
    fleet = FleetState({record.launch_id: record for record in records})
    found = []
    for number, name in enumerate(names):
        mine = tuple(
            replace(node, requested=record)
            for node, record in zip(whole.nodes[number::num_cells], records[number::num_cells], strict=True)
        )
        in_ray = tuple(node.ray for node in mine if node.ray is not None)
        seen = replace(_demand_of(case.snapshot, number, num_cells), nodes=(case.snapshot.nodes[0], *in_ray))
        view = replace(whole, nodes=mine, snapshot=seen, demand=demand_of(seen))
        found.append(Cell(view, fleet.cell(name), experience))
    return found


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


def _demand_of(snapshot: RaySnapshot, cell: int, num_cells: int) -> RaySnapshot:
    """Of each shape as many as of any other cell, give or take one."""
    counts = [(shape, (count + cell) // num_cells) for shape, count in snapshot.pending]
    pending = tuple((shape, count) for shape, count in counts if count)
    return RaySnapshot(pending=pending, gangs=snapshot.gangs[cell::num_cells])
