"""Nodes that nobody uses and that neither demand nor the forecast wants are drained; Ray refuses if work has come
meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from tradewind.autoscaler.actions import Action, Drain
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.expected import kept_for_later, outlooks_of, spare_timeout_s
from tradewind.autoscaler.keeping import Keeping
from tradewind.autoscaler.packing import Packing, new_slots, slots_of
from tradewind.autoscaler.packing_order import dearest_first
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import DrainReason, RayStatus
from tradewind.autoscaler.view import NodeView, View
from tradewind.states import NodeState
from tradewind.units import format_duration


def decide(view: View, draft: Draft) -> tuple[Action, ...]:
    gone, timeout_s = draft.gone, _timeout_s(view)
    idle = [node for node in view.stirring if _is_idle(node, view, timeout_s) and node.launch_id not in gone]
    if not idle:
        return ()
    later = kept_for_later(view)
    needed = _needed(view, draft, later)
    spare: Sequence[NodeView] = [node for node in idle if node.launch_id not in needed]
    if (later or view.demand.constraints) and 0 < len(spare) < len(idle) and not draft.bought:
        spare = _keeping(view, draft, later).spare(idle, spare)
    # The dearest first. Clouds bill by the second after a first minute that is paid anyway: within `min_node_life_s` a
    # node is kept (`_is_idle`), after it every second is a new bill.
    in_order = sorted(spare, key=lambda node: -(node.requested.offer.price_uusd_per_h or 0))
    return tuple(_drain(node, view) for node in in_order)


def _needed(view: View, draft: Draft, later: Sequence[Need]) -> frozenset[str]:
    """With what is being bought: an idle node may be half of what a gang waits for. Present demand lies first, then
    what the forecast wants beyond it."""
    known = draft.needed or frozenset()
    if not later and draft.needed is not None:
        return known
    wanted = _keeping(view, draft, later)
    if wanted.demand.is_empty:
        return frozenset()
    return known | Packing(wanted.slots, everything=wanted.everything).fill(wanted.demand).used


def _keeping(view: View, draft: Draft, later: Sequence[Need]) -> Keeping:
    needs = dearest_first(view.demand.needs, view.offers)
    demand = Demand((*needs, *later), view.demand.gangs, view.demand.constraints)
    bought = new_slots(draft.bought, view)
    slots = [*slots_of(view, draft.gone, demand), *bought]
    everything = [*slots_of(view, draft.gone), *bought] if demand.constraints else slots
    return Keeping(demand, (*demand.constraints, *later), slots, everything)


def _timeout_s(view: View) -> float:
    """An idle node is kept for a while in case it is wanted again. Where that is forecast, for everything that is
    wanted, the forecast keeps what is worth it, and there is no need to wait with the rest."""
    known = {key for key, _ in outlooks_of(view)}
    if not known or not known.issuperset(view.wanted):
        return view.settings.idle_timeout_s
    return min(view.settings.idle_timeout_s, spare_timeout_s(view.settings))


def _is_idle(node: NodeView, view: View, timeout_s: float) -> bool:
    if node.ray is None or node.ray.status is not RayStatus.IDLE or node.requested.state is not NodeState.READY:
        return False
    life_s = view.now_s - (node.requested.joined_at_s or view.now_s)
    old_enough = life_s >= view.settings.min_node_life_s
    patience_s = 0.0 if node.requested.last_job in view.resting else timeout_s  # it will not be back soon
    return old_enough and node.ray.idle_s >= patience_s and not node.is_leaving


def _drain(node: NodeView, view: View) -> Drain:
    assert node.ray is not None
    job_id, rests = node.requested.last_job, ""
    if job_id in view.resting:
        rests = f", {job_id} rests: {view.resting[job_id]}"
    reason = f"idle for {format_duration(node.ray.idle_s)}, and neither demand nor forecast needs it{rests}"
    return Drain(node.launch_id, node.ray_node_ids, DrainReason.IDLE, reason)
