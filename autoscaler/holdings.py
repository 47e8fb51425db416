"""Who holds what on which node. Pure: rows of Ray's tables in, resources by (job, node) out.

Ray's node state has no use by job, so it is put together from three sources, the sure ones first:
1. placement groups: a placed bundle is held by the job that made the group, whether or not something runs in it;
2. actors outside of placement groups: what they require, for as long as they live;
3. plain tasks: what a node has in use beyond 1 and 2. With one job at work that is its; with several, running tasks
   of the task table (which lags about a second) say whose, and what nobody claims stays unclaimed.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from tradewind.autoscaler.ray_snapshot import RayNode
from tradewind.autoscaler.shape import EPSILON
from tradewind.model import Resources

Held = dict[tuple[str, str], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Claim:
    """One actor, bundle or task: its job holds this on this node."""

    job_id: str
    ray_node_id: str
    resources: Resources


def is_own_resource(name: str) -> bool:
    """Not one that Ray adds for a placement group, an address or its object store."""
    return "_group_" not in name and not name.startswith("node:") and name != "object_store_memory"


def add_claims(claims: Iterable[Claim]) -> Held:
    held: Held = {}
    for claim in claims:
        mine = held.setdefault((claim.job_id, claim.ray_node_id), {})
        for name, amount in claim.resources.items():
            if is_own_resource(name) and amount > 0:
                mine[name] = mine.get(name, 0.0) + amount
    return {key: mine for key, mine in held.items() if mine}


def guests_of(actors: Iterable[Claim], nobodys: Container[str]) -> dict[str, frozenset[str]]:
    """By node: whose actors live there and claim nothing. By default an actor in Ray holds nothing once it runs, and
    yet it ends with its node. Those of `nobodys` jobs (Ray's own, ours) are not counted."""
    found: dict[str, set[str]] = {}
    for claim in actors:
        holds = any(is_own_resource(name) and amount > 0 for name, amount in claim.resources.items())
        if not holds and claim.job_id not in nobodys:
            found.setdefault(claim.ray_node_id, set()).add(claim.job_id)
    return {ray_node_id: frozenset(jobs) for ray_node_id, jobs in found.items()}


def unclaimed(nodes: Iterable[RayNode], held: Mapping[tuple[str, str], Resources]) -> dict[str, dict[str, float]]:
    """Per node: what is in use there beyond what is held."""
    rest = {node.ray_node_id: _used(node) for node in nodes if node.is_alive}
    for (_, ray_node_id), resources in held.items():
        for name, amount in resources.items():
            if ray_node_id in rest:
                rest[ray_node_id][name] = rest[ray_node_id].get(name, 0.0) - amount
    positive = {key: {name: amount for name, amount in used.items() if amount > EPSILON} for key, used in rest.items()}
    return {key: used for key, used in positive.items() if used}


def claim_rest(rest: Mapping[str, Resources], running_jobs: Iterable[str], tasks: Iterable[Claim]) -> list[Claim]:
    """Share out what is in use beyond actors and bundles."""
    jobs = sorted(set(running_jobs))
    if len(jobs) == 1:
        return [Claim(jobs[0], ray_node_id, used) for ray_node_id, used in rest.items()]
    left = {key: dict(used) for key, used in rest.items()}
    return [Claim(task.job_id, task.ray_node_id, _grant(left.get(task.ray_node_id, {}), task)) for task in tasks]


def _grant(left: dict[str, float], task: Claim) -> dict[str, float]:
    """What the task asks for, but never more than is in use: the task table may tell of tasks that have ended."""
    granted = {name: min(amount, left.get(name, 0.0)) for name, amount in task.resources.items()}
    for name, amount in granted.items():
        left[name] = left.get(name, 0.0) - amount
    return granted


def _used(node: RayNode) -> dict[str, float]:
    return {
        name: total - node.available.get(name, 0.0)
        for name, total in node.total.items()
        if is_own_resource(name) and total - node.available.get(name, 0.0) > EPSILON
    }
