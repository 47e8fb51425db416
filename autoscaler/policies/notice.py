"""The cloud will take a node: drain it in Ray with that deadline, so that its work moves. The buy policy, which runs
after this one, no longer counts it, so the replacement is bought while the node still works."""

from __future__ import annotations

from tradewind.autoscaler.actions import Action, Drain
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import DrainReason, RayStatus
from tradewind.autoscaler.view import NodeView, View
from tradewind.states import NodeState
from tradewind.units import format_duration

_SETTLING_S = 5.0  # Ray shows a drain about a second after it took it


def decide(view: View, draft: Draft) -> tuple[Action, ...]:
    gone = draft.gone
    leaving = (node for node in view.stirring if _is_leaving(node) and node.launch_id not in gone)
    drains = (_drain(node, view.now_s) for node in leaving)
    return tuple(drain for drain in drains if drain is not None)


def _is_leaving(node: NodeView) -> bool:
    return node.notice_deadline_s is not None or node.requested.state is NodeState.DRAINING


def _drain(node: NodeView, now_s: float) -> Drain | None:
    if node.ray is None or node.ray.status not in (RayStatus.RUNNING, RayStatus.IDLE):
        return None
    record = node.requested
    if record.state is NodeState.READY and record.notice_deadline_s is not None:
        left_s = max(0.0, record.notice_deadline_s - now_s)
        reason = f"the cloud takes it in {format_duration(left_s)}"
        return _ask(node, DrainReason.PREEMPTION, reason, record.notice_deadline_s)
    if record.state is NodeState.DRAINING and now_s - record.state_since_s > _SETTLING_S:
        # The controller or the head failed between intent and effect.
        is_idle = record.notice_deadline_s is None and record.drain_deadline_s is None
        why = DrainReason.IDLE if is_idle else DrainReason.PREEMPTION
        return _ask(node, why, "Ray does not drain it yet: asked again", record.drain_deadline_s)
    return None


def _ask(node: NodeView, why: DrainReason, reason: str, deadline_s: float | None) -> Drain:
    return Drain(node.launch_id, node.ray_node_ids, why, reason, deadline_s)
