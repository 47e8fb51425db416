"""Jobs leave the nodes on which their contract no longer wants them. Pure.

What they need elsewhere has been bought before (buy.py: what lies on such nodes counts as missing). Once there is room
for all of it, or where the job is to wait, the old nodes are drained with a deadline, and the job hands over. Runs
after buying; docs/designs/contract.md tells why.
"""

from __future__ import annotations

from collections.abc import Iterator

from tradewind.autoscaler.actions import Action, Drain, Launch
from tradewind.autoscaler.packing_reasons import copies_on
from tradewind.autoscaler.packing_stock import is_open
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.steer import Steer
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Wish
from tradewind.states import NodeState


def decide(view: View, draft: Draft) -> tuple[Action, ...]:
    if view.snapshot is None or not view.steers:
        return ()
    wishes = {wish.job_id: wish for wish in view.wishes}
    found: dict[str, Drain] = {}
    for job_id, steer in sorted(view.steers.items()):
        wish = wishes.get(job_id)
        if wish is not None and steer.misplaced and (why := _why_now(steer, wish, view, draft)):
            found |= {drain.launch_id: drain for drain in _drains(steer, why, view, draft)}
    return tuple(found.values())


def _why_now(steer: Steer, wish: Wish, view: View, draft: Draft) -> str:
    """Why the nodes can be left; nothing: not yet."""
    if steer.waits:
        return "it waits for spot"
    if _room(steer, wish, view, draft) >= min(steer.workers, wish.max_workers):
        return "there is room for it where it should be"
    if steer.is_net and _is_stuck(steer, wish, view, draft):
        return "the limits leave no room for another node before this one goes"
    return ""


def _room(steer: Steer, wish: Wish, view: View, draft: Draft) -> int:
    """Workers on nodes where it should be: those that it has there, and those that would fit."""
    plain, shape = Shape.of(wish.resources), Shape.of(wish.resources, wish.labels)
    held = view.snapshot.holdings if view.snapshot else {}
    found = 0
    for node in view.nodes:
        if node.launch_id in steer.misplaced or node.launch_id in draft.gone or not _takes_work(node):
            continue
        found += sum(plain.copies_in(held.get((steer.job_id, name), {})) for name in node.ray_node_ids)
        found += shape.copies_in(node.ray.available) if node.ray and shape.allows(node.ray.labels) else 0
    return found


def _takes_work(node: NodeView) -> bool:
    return node.requested.state is NodeState.READY and node.is_in_ray and not node.is_leaving


def _is_stuck(steer: Steer, wish: Wish, view: View, draft: Draft) -> bool:
    """Something that fits is for sale, and yet nothing is bought and nothing is on its way: a limit is against it."""
    shape = Shape.of(wish.resources, wish.labels)
    comes = any(node.is_coming and shape.allows(node.requested.offer.labels) for node in view.nodes)
    bought = any(isinstance(each, Launch) and steer.job_id in each.jobs for each in draft.actions)
    sold = any(is_open(offer, view) and copies_on(offer, shape, view) for offer in view.offers)
    launches, most = view.launched_last_minute, view.settings.limits.launches_per_minute
    is_rate = most is not None and launches >= most  # that is over in a minute
    return sold and not comes and not bought and not is_rate


def _drains(steer: Steer, why: str, view: View, draft: Draft) -> Iterator[Drain]:
    deadline_s = view.now_s + view.settings.market.handover_deadline_s
    for node in view.nodes:
        if node.launch_id in steer.misplaced and node.launch_id not in draft.gone and _takes_work(node):
            reason = f"{steer.job_id} is to run elsewhere by its contract ({steer.what}), and {why}"
            yield Drain(node.launch_id, node.ray_node_ids, DrainReason.PREEMPTION, reason, deadline_s)
