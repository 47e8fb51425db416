"""Jobs that rest for a while: their nodes are released, and nothing is bought for them until they go on. Pure.

Who rests is decided elsewhere (cost/clean_hours.py, by way of the controller). A job that rests is granted nothing: it
saves at its next step, lets go of its nodes, which are drained meanwhile, and keeps its driver. It asks on, and is
served again when it no longer rests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tradewind.autoscaler.actions import Action, Drain, Launch, Plan, Terminate
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.view import NodeView, View
from tradewind.states import NodeState


def with_pauses(plan: Plan, view: View, jobs: Iterable[JobRecord], resting: Mapping[str, str]) -> Plan:
    """The plan without launches for jobs that rest alone, with drains of what only they hold, and nothing granted."""
    if not resting:
        return plan
    kept = tuple(action for action in plan.actions if not _is_for(action, resting))
    gone = {action.launch_id for action in kept if isinstance(action, Drain | Terminate)}
    holders = _holders(view, jobs)
    drains = [
        _drain(node, holders[node.launch_id], view, resting)
        for node in view.nodes
        if node.launch_id not in gone and _rests(node, holders.get(node.launch_id, ()), resting)
    ]
    nothing = {job_id: replace(each, replicas=0) for job_id, each in plan.targets.items() if job_id in resting}
    return Plan(plan.at_s, (*kept, *drains), {**plan.targets, **nothing})


def _holders(view: View, jobs: Iterable[JobRecord]) -> dict[str, list[str]]:
    """By node: who holds something there, and who else has an actor there."""
    found: dict[str, list[str]] = {}
    for job in jobs:
        for launch_id in job.holdings:
            found.setdefault(launch_id, []).append(job.job_id)
    guests = view.snapshot.guests if view.snapshot is not None else {}
    for node in view.nodes if guests else ():
        theirs = {job_id for name in node.ray_node_ids for job_id in guests.get(name, ())}
        mine = found.get(node.launch_id, [])
        mine.extend(sorted(theirs - set(mine)))
    return found


def _is_for(action: Action, resting: Mapping[str, str]) -> bool:
    return isinstance(action, Launch) and bool(action.jobs) and all(job_id in resting for job_id in action.jobs)


def _rests(node: NodeView, holders: Iterable[str], resting: Mapping[str, str]) -> bool:
    held_by = tuple(holders)
    ready = node.is_in_ray and node.requested.state is NodeState.READY and not node.is_leaving
    return ready and bool(held_by) and all(job_id in resting for job_id in held_by)


def _drain(node: NodeView, job_ids: list[str], view: View, resting: Mapping[str, str]) -> Drain:
    reason = f"{', '.join(job_ids)} rests: {resting[job_ids[0]]}"
    deadline_s = view.now_s + view.settings.market.handover_deadline_s
    return Drain(node.launch_id, node.ray_node_ids, DrainReason.PREEMPTION, reason, deadline_s)
