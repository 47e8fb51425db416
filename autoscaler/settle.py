"""The clouds' listings against the log: what has happened, and what must be done again. Pure.

Every launch that is on record ends here in one of: listed (it is), refused (it never came to be), gone. A launch
without an answer is asked for again only under its own launch id, which the provider answers with the same node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.market import MarketMemory, news_block_s, refusal_key, refused_scope
from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.autoscaler.ray_snapshot import RayNode, RayStatus
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import Scope
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
)
from tradewind.model import EndReason, Role
from tradewind.states import NodeState, is_alive
from tradewind.units import format_duration

NOTICE_S: Mapping[str, float] = {"aws": 120.0, "gcp": 30.0, "azure": 30.0}
_LIVING = (CloudState.PENDING, CloudState.RUNNING)


@dataclass(frozen=True, slots=True)
class Listing:
    """What all clouds list, by their last answers. `blind` are those that do not answer, of which nothing may be
    concluded: a cloud, or "cloud/region" where one region alone is silent. Those with a new answer are in `began_s`,
    with the time when it was asked for: what happened after that is not in it. Of the others everything has been
    concluded before."""

    nodes: Mapping[str, CloudNode] = field(default_factory=dict)
    blind: frozenset[str] = frozenset()
    began_s: Mapping[str, float] = field(default_factory=dict)


def slices_of(records: Iterable[NodeRecord], listing: Listing) -> dict[str, int]:
    """launch id -> number of hosts, of everything that has several."""
    found = {node.launch_id: node.offer.hosts for node in listing.nodes.values() if node.offer.hosts > 1}
    return found | {record.launch_id: record.offer.hosts for record in records if record.offer.hosts > 1}


@dataclass(frozen=True, slots=True)
class Settlement:
    events: tuple[AnyEvent, ...] = ()
    relaunch: tuple[str, ...] = ()  # launch ids whose call may never have been made
    terminate: tuple[str, ...] = ()  # asked for before, or never ours to have
    missing: tuple[tuple[str, float], ...] = ()  # known nodes that the cloud does not list, and since when
    strangers: tuple[tuple[str, str], ...] = ()  # (launch id, why it is not ours to have): ended, and said loudly


@dataclass(frozen=True, slots=True)
class Question:
    """Everything that the answer depends on."""

    fleet: FleetState
    listing: Listing
    ray: Mapping[str, RayNode]  # by launch id; a slice as one, and only when all of its hosts have joined
    sent: frozenset[str]  # launch calls that this process has made and had no refusal of
    launching: frozenset[str]  # those of them that are still under way: nothing is known of these
    missing_since_s: Mapping[str, float]
    settings: LoopSettings
    now_s: float


def settle(question: Question) -> Settlement:
    parts = [_settle_node(node, question) for node in question.fleet.alive_nodes]
    parts += [_settle_stranger(node, question) for node in question.listing.nodes.values()]
    return Settlement(
        events=tuple(_each_refusal_once((event for part in parts for event in part.events), question.fleet)),
        relaunch=tuple(name for part in parts for name in part.relaunch),
        terminate=tuple(name for part in parts for name in part.terminate),
        missing=tuple(name for part in parts for name in part.missing),
        strangers=tuple(stranger for part in parts for stranger in part.strangers),
    )


def _asked_at_s(node: NodeRecord | CloudNode, question: Question) -> float | None:
    """Up to when the new answer of its cloud tells of its region; None: there is none."""
    market, listing = node.offer.market, question.listing
    return None if f"{market.cloud}/{market.region}" in listing.blind else listing.began_s.get(market.cloud)


def _settle_node(node: NodeRecord, question: Question) -> Settlement:
    as_of_s = _asked_at_s(node, question)
    if as_of_s is None:
        since_s = question.missing_since_s.get(node.launch_id)
        return Settlement() if since_s is None else Settlement(missing=((node.launch_id, since_s),))
    cloud = question.listing.nodes.get(node.launch_id)
    if cloud is not None:
        return _settle_listed(node, cloud, question)
    if node.state is NodeState.REQUESTED:
        return _settle_unanswered(node, question, as_of_s)
    return _settle_missing(node, question, as_of_s)


def _settle_listed(node: NodeRecord, cloud: CloudNode, question: Question) -> Settlement:
    events: list[AnyEvent] = []
    state = node.state
    billed_from_s = cloud.billed_from_s or (cloud.created_at_s if cloud.state is CloudState.RUNNING else None)
    if state is NodeState.REQUESTED and billed_from_s is not None:
        launched = NodeLaunched(
            at_s=billed_from_s, launch_id=node.launch_id, instance_id=cloud.instance_id, seen_at_s=question.now_s
        )
        events.append(launched)
        state = NodeState.BOOTING
    if cloud.state is CloudState.GONE:
        refused = _refused(node, cloud, question) if state is NodeState.REQUESTED else None
        return Settlement((*events, refused or _gone(node, cloud, question.now_s)))
    if cloud.notice_deadline_s is not None and node.notice_deadline_s is None:
        at_s, deadline_s = question.now_s, cloud.notice_deadline_s
        events.append(NoticeReceived(at_s=at_s, launch_id=node.launch_id, deadline_s=deadline_s))
    ray = question.ray.get(node.launch_id)
    if _was_warned(node, ray, question):
        deadline_s = question.now_s + NOTICE_S.get(node.offer.market.cloud, 30.0)
        events.append(NoticeReceived(at_s=question.now_s, launch_id=node.launch_id, deadline_s=deadline_s))
    if state is NodeState.BOOTING and ray is not None and _has_joined(node, ray):
        events.append(NodeJoined(at_s=question.now_s, launch_id=node.launch_id, ray_node_id=ray.ray_node_id))
    again = (node.launch_id,) if state is NodeState.TERMINATING and cloud.state in _LIVING else ()
    return Settlement(tuple(events), terminate=again)


def _has_joined(node: NodeRecord, ray: RayNode) -> bool:
    """A head is ready when its agent has spoken. A node without the accelerator that it was bought for never is: it is
    given up, and speaks against its market, as one that did not boot (policies/lost.py)."""
    return node.role is Role.WORKER and ray.is_alive and not ray.lacks(node.offer.resources)


def _was_warned(node: NodeRecord, ray: RayNode | None, question: Question) -> bool:
    """A cloud tells the machine alone that it will take it. The watcher there has drained it in Ray, and nobody here
    did: so there was a notice. Ray does not say until when; the cloud's usual time is at most a little too long."""
    drains = ray is not None and ray.status is RayStatus.DRAINING
    asked = node.state is not NodeState.READY or node.notice_deadline_s is not None
    return drains and not asked and question.settings.head is not None


def _gone(node: NodeRecord, cloud: CloudNode, now_s: float) -> NodeGone:
    asked = EndReason.TERMINATED if node.state is NodeState.TERMINATING else EndReason.LOST
    end_s = now_s if cloud.billed_until_s is None else cloud.billed_until_s
    return NodeGone(at_s=end_s, launch_id=node.launch_id, end=cloud.end or asked, detail=cloud.detail)


def _refused(node: NodeRecord, cloud: CloudNode, question: Question) -> LaunchRefused | None:
    """The cloud accepted it and could not make it, and the listing tells why before the call does, or the call was
    lost. It rules its market out as any refusal does. What may be tried again is not a refusal."""
    error, now_s = cloud.refusal, question.now_s
    if error is None or error.retryable:
        return None
    return LaunchRefused(
        at_s=now_s,
        launch_id=node.launch_id,
        error=type(error).__name__,
        message=error.message,
        scope=refused_scope(node, error),
        block_s=news_block_s(MarketMemory.of(question.fleet, now_s), node, error, now_s),
    )


def _each_refusal_once(events: Iterable[AnyEvent], fleet: FleetState) -> Iterator[AnyEvent]:
    """Several that were refused together are one refusal: the others rule nothing out for longer."""
    told: set[tuple[str, str]] = set()
    for event in events:
        if isinstance(event, LaunchRefused):
            what = (event.error, refusal_key(event, fleet.nodes[event.launch_id]))
            yield replace(event, block_s=0.0) if what in told else event
            told.add(what)
        else:
            yield event


def _settle_unanswered(node: NodeRecord, question: Question, as_of_s: float) -> Settlement:
    """On record, not listed: never sent, refused for the moment, sent without an answer, or listed late."""
    if node.launch_id in question.launching:
        return Settlement()
    age_s = as_of_s - node.requested_at_s
    if age_s <= question.settings.launch_grace_s:
        return Settlement(relaunch=() if node.launch_id in question.sent else (node.launch_id,))
    # Should it come to be after all, then it is a stranger, and ended: see below.
    refused = LaunchRefused(
        at_s=question.now_s,
        launch_id=node.launch_id,
        error="AmbiguousOutcome",
        message=f"not listed {format_duration(age_s)} after it was asked for",
        # It may be the group that could not be made: then the offer is asked for outside of it.
        scope=Scope.GROUP if node.placement_group else Scope.OFFER,
        block_s=question.settings.launch_grace_s,
    )
    return Settlement((refused,), terminate=(node.launch_id,))


def _settle_missing(node: NodeRecord, question: Question, as_of_s: float) -> Settlement:
    """Lists lag: only one who is absent for a while is gone, and since when it was first missed."""
    since_s = question.missing_since_s.get(node.launch_id, as_of_s)
    if as_of_s - since_s < question.settings.lost_grace_s:
        return Settlement(missing=((node.launch_id, since_s),))
    end = EndReason.TERMINATED if node.state is NodeState.TERMINATING else EndReason.LOST
    detail = "the cloud no longer lists it"
    return Settlement((NodeGone(at_s=since_s, launch_id=node.launch_id, end=end, detail=detail),))


def _settle_stranger(cloud: CloudNode, question: Question) -> Settlement:
    """Carries the fleet's tag, but the log does not have it alive. One that works in our cell is taken in (the log was
    lost); any other is ended: nobody would ever end it otherwise."""
    if _asked_at_s(cloud, question) is None:
        return Settlement()
    known = question.fleet.nodes.get(cloud.launch_id)
    ours = known is not None and is_alive(known.state)
    if cloud.state not in _LIVING or ours or question.fleet.is_elsewhere(cloud.launch_id):
        return Settlement()
    ray = question.ray.get(cloud.launch_id)
    if known is None and ray is not None and ray.is_alive:
        return Settlement(_adopt(cloud, question))
    why = "is unknown to the log" if known is None else f"is {known.state} by the log"
    return Settlement(terminate=(cloud.launch_id,), strangers=((cloud.launch_id, f"the cloud runs it, but it {why}"),))


def _adopt(cloud: CloudNode, question: Question) -> tuple[AnyEvent, ...]:
    reason = "adopted: it carries our tag and has joined our cell, but the log does not know it"
    asked = LaunchRequested(
        at_s=cloud.created_at_s,
        launch_id=cloud.launch_id,
        offer=cloud.offer,
        reason=reason,
        cell=question.settings.cell,
        placement_group=cloud.placement_group,
    )
    return (asked, DecisionRecorded(at_s=question.now_s, action="adopt", subject=cloud.launch_id, reason=reason))


def overdue_ends(nodes: Iterable[NodeRecord], settings: LoopSettings, now_s: float) -> list[Hold]:
    """Nodes that were asked to end long ago and are still there: they are asked again, and somebody should look."""
    return [
        Hold(f"end of {node.launch_id}", f"{node.offer.market.cloud} still runs it; end it by hand if this goes on")
        for node in nodes
        if node.state is NodeState.TERMINATING and now_s - node.state_since_s > settings.end_grace_s
    ]
