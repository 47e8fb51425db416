"""The head of a cell: bought when there is none, given up when it is lost. Workers of a lost head go with it: they
know no other. Jobs resume under the next head, or in another cell (the controller's affair)."""

from __future__ import annotations

from tradewind.autoscaler.actions import Action, Hold, Launch, Terminate, alternative
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.policies.base import Draft
from tradewind.autoscaler.view import HeadSettings, NodeView, View
from tradewind.model import Capacity, Offer, Role
from tradewind.states import NodeState
from tradewind.units import format_duration, format_usd

_COMES_OR_IS = (NodeState.REQUESTED, NodeState.BOOTING, NodeState.READY, NodeState.DRAINING)


def decide(view: View, draft: Draft) -> tuple[Action, ...]:  # noqa: ARG001
    settings = view.settings.head
    if settings is None:
        return ()
    present = present_head([node.requested for node in view.heads])
    found: list[Action] = [*_spare_heads(view, present), *_orphans(view, present)]
    if present is None:
        wanted = settings.keep or view.jobs_left_s is None
        return (*found, *(_launch(view, settings) if wanted else ()))
    if why := _why_given_up(view, settings, present):
        found.append(Terminate(present.launch_id, why))
        found += [Terminate(node.launch_id, f"its head is given up: {why}") for node in _living(view)]
    return tuple(found)


def present_head(heads: list[NodeRecord]) -> NodeRecord | None:
    """Of several the newest."""
    found = [node for node in heads if node.state in _COMES_OR_IS]
    return max(found, key=lambda node: node.requested_at_s) if found else None


def _living(view: View) -> list[NodeView]:
    return [node for node in view.nodes if node.requested.state is not NodeState.TERMINATING]


def _spare_heads(view: View, present: NodeRecord | None) -> list[Action]:
    others = [node.requested for node in view.heads if node.requested.state in _COMES_OR_IS]
    return [Terminate(node.launch_id, "the cell has another head") for node in others if node is not present]


def _orphans(view: View, present: NodeRecord | None) -> list[Action]:
    """A worker that was asked for before the present head was belongs to an earlier one."""
    since_s = float("inf") if present is None else present.requested_at_s
    lost = [node for node in _living(view) if node.requested.requested_at_s < since_s]
    return [Terminate(node.launch_id, "its head is lost") for node in lost]


def _why_given_up(view: View, settings: HeadSettings, head: NodeRecord) -> str:
    if head.offer.market.cloud in view.blind_clouds:
        return ""  # whoever hears nothing of the cloud either may be cut off himself
    age_s = view.now_s - head.state_since_s
    if head.state is NodeState.BOOTING and age_s > settings.boot_timeout_s:
        return f"its agent did not call within {format_duration(settings.boot_timeout_s)}"
    silent_s = view.head_silent_s
    if head.state is NodeState.READY and silent_s is not None and silent_s > settings.lost_s:
        return f"its agent was not heard for {format_duration(silent_s)}"
    if not settings.keep and view.jobs_left_s is not None and view.jobs_left_s > settings.idle_timeout_s:
        return f"no jobs for {format_duration(view.jobs_left_s)}"
    return ""


def _launch(view: View, settings: HeadSettings) -> list[Action]:
    fitting = settings.offers or [offer for offer in view.offers if fits_head(offer, settings)]
    offers = sorted(fitting, key=_price)
    blocked = {o.market.key: b for o in offers if (b := view.memory.block_of(o, view.now_s)) is not None}
    closed = [f"{key}: {block.describe(view.now_s)}" for key, block in blocked.items()]
    usable = [
        offer for offer in offers if offer.market.key not in blocked and offer.market.cloud not in view.blind_clouds
    ]
    if not usable:
        why = "all of its offers are refused or not to be seen" if offers else "no offer fits: see `head:`"
        return [Hold("head", why, tuple(closed))]
    first, *others = usable
    ties = [_price(offer) == _price(first) for offer in others[:5]]
    chosen = "one of the cheapest" if any(ties) else "the cheapest"
    reason = f"the head of cell {view.settings.cell}: {chosen} of {len(usable)} that fit"
    priced = (f"{offer.market} at {format_usd(_price(offer))}/h" for offer in others)
    beaten = tuple(alternative(words, is_tied) for words, is_tied in zip(priced, ties, strict=False))
    return [Launch(first, reason, beaten, tuple(others), ruled_out=tuple(closed), role=Role.HEAD)]


def fits_head(offer: Offer, settings: HeadSettings) -> bool:
    """On-demand: losing the head is losing the cell."""
    if offer.price_uusd_per_h is None or offer.market.capacity is not Capacity.ON_DEMAND or offer.hosts > 1:
        return False
    if settings.instance_type:
        return offer.market.instance_type == settings.instance_type
    return not offer.accelerator and offer.vcpus >= settings.vcpus and offer.memory_gib >= settings.memory_gib


def _price(offer: Offer) -> int:
    return offer.price_uusd_per_h or 0
