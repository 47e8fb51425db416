"""Nodes that cost and do not serve: never joined, without their accelerator, lost by Ray, or drained. They are ended;
demand buys anew."""

from __future__ import annotations

from tradewind.autoscaler.actions import Action, Terminate
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import RayNode
from tradewind.autoscaler.view import LoopSettings, NodeView, View
from tradewind.model import Offer
from tradewind.states import NodeState
from tradewind.units import format_duration


def decide(view: View, draft: Draft) -> tuple[Action, ...]:
    if view.snapshot is None:
        return ()  # without Ray's word, a node that Ray cannot tell of is not a lost node
    gone = draft.gone
    found = []
    for node in view.stirring:  # one that is at work in Ray is not lost
        reason = _why_lost(node, view.now_s, view.settings)
        if reason and node.launch_id not in gone:
            found.append(Terminate(node.launch_id, reason))
    return tuple(found)


def _why_lost(node: NodeView, now_s: float, settings: LoopSettings) -> str:
    match node.requested.state:
        case NodeState.REQUESTED | NodeState.BOOTING:
            return _why_never_joined(node, now_s, settings)
        case NodeState.READY:
            what = "it" if node.requested.offer.hosts == 1 else "a host of it"
            return "" if node.is_in_ray else f"Ray lost {what}, the cloud still bills it"
        case NodeState.DRAINING:
            return _why_drained(node, now_s, settings)
        case _:
            return ""


def _why_never_joined(node: NodeView, now_s: float, settings: LoopSettings) -> str:
    if node.ray is not None:
        return _why_useless(node.ray, node.requested.offer) if node.is_in_ray else "its raylet died while it booted"
    if node.cloud is None:
        return ""  # whether it exists at all is settled by the listing
    since_s = node.requested.state_since_s  # by our clock: the cloud's may be another
    if now_s - since_s <= settings.boot_timeout_s:
        return ""
    return f"did not join Ray within {format_duration(settings.boot_timeout_s)}"


def _why_useless(ray: RayNode, offer: Offer) -> str:
    lacking = ray.lacks(offer.resources)
    return f"it brought no {lacking} to Ray: see to its driver and its image" if lacking else ""


def _why_drained(node: NodeView, now_s: float, settings: LoopSettings) -> str:
    record = node.requested
    if not node.is_in_ray:
        return "drained"
    if record.drain_deadline_s is not None:
        over = now_s > record.drain_deadline_s + settings.drain_grace_s
        return "its drain deadline has passed" if over else ""
    over = now_s - record.state_since_s > settings.drain_timeout_s
    return f"did not drain within {format_duration(settings.drain_timeout_s)}" if over else ""
