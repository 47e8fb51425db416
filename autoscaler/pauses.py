"""Jobs that rest for a while: their nodes are released, and nothing is bought for them until they go on. Pure.

Who rests is decided elsewhere (cost/clean_hours.py, by way of the controller). A job that rests is granted nothing: it
saves at its next step and lets go of its nodes, which are drained then, and keeps its driver. Not before: what it has
not saved lives on them, a drain cannot be taken back, and one with a deadline ends a node whether it was saved or not.
It asks on, and is served again when it no longer rests. Nodes that it has left already go as idle ones
(policies/idle.py).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tradewind.autoscaler.actions import Action, Drain, Launch, Plan, Terminate
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.view import NodeView, View
from tradewind.states import NodeState


def with_pauses(plan: Plan, view: View, jobs: Iterable[JobRecord]) -> Plan:
    """The plan without launches for jobs that rest alone, with drains of what only those hold that have nothing left to
    save, and nothing granted."""
    if not view.resting:
        return plan
    known = {job.job_id: job for job in jobs}
    free = {job_id for job_id in view.resting if job_id not in known or not known[job_id].holds_state}
    kept = tuple(action for action in plan.actions if not _is_for(action, view))
    gone = {action.launch_id for action in kept if isinstance(action, Drain | Terminate)}
    holders = _holders(view, known.values())
    drains = [
        _drain(node, holders[node.launch_id], view)
        for node in view.nodes
        if node.launch_id not in gone and _is_ready(node) and holders.get(node.launch_id)
        if free.issuperset(holders[node.launch_id])
    ]
    nothing = {job_id: replace(each, replicas=0) for job_id, each in plan.targets.items() if job_id in view.resting}
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


def _is_for(action: Action, view: View) -> bool:
    return isinstance(action, Launch) and bool(action.jobs) and view.resting.keys() >= set(action.jobs)


def _is_ready(node: NodeView) -> bool:
    return node.is_in_ray and node.requested.state is NodeState.READY and not node.is_leaving


def _drain(node: NodeView, job_ids: list[str], view: View) -> Drain:
    reason = f"{', '.join(job_ids)} rests: {view.resting[job_ids[0]]}"
    deadline_s = view.now_s + view.settings.market.handover_deadline_s
    return Drain(node.launch_id, node.ray_node_ids, DrainReason.PREEMPTION, reason, deadline_s)
