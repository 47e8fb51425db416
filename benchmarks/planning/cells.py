"""One case of plan_scale.py as a running fleet sees it: in cells, with all that a loop knows. Not a benchmark itself.

Each cell has its part of the nodes and of the demand, and decides by itself; all are offered everything. Limits count
the nodes of the other cells. Of every market it is known how long nodes took to boot and how often spot was taken, and
what prices were in the last minutes; limits on nodes, dollars and one cloud are set, too high to be met.
"""

from __future__ import annotations

from dataclasses import replace

from planning.cases import NOW_S, Case

from tradewind.autoscaler.demand import demand_of
from tradewind.autoscaler.knowledge import Experience, Knowledge
from tradewind.autoscaler.limits import Limits, Part, Rule
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


def knowledge_of(experience: Experience, view: View) -> Knowledge:
    settings = view.settings
    return Knowledge.of(experience, view.now_s, settings.market.usual_hazard_per_h, settings.usual_boot_s)


def views_of(case: Case, num_cells: int) -> list[View]:
    """Without knowledge of markets, which a loop puts together anew at every tick."""
    whole = _informed(case)
    parts = [_demand_of(case.snapshot, cell, num_cells) for cell in range(num_cells)]
    views = []
    for cell, snapshot in enumerate(parts):
        mine = whole.nodes[cell::num_cells]
        ids = {node.launch_id for node in mine}
        elsewhere = tuple(node.requested for node in whole.nodes if node.launch_id not in ids)
        in_ray = tuple(node.ray for node in mine if node.ray is not None)
        seen = replace(snapshot, nodes=(case.snapshot.nodes[0], *in_ray))
        views.append(replace(whole, nodes=mine, elsewhere=elsewhere, snapshot=seen, demand=demand_of(seen)))
    return views


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
