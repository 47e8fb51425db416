"""Plan -> effects, idempotent. Intent goes on record before a call, so that a crash at any point is settled by the
next listing: under the same launch id, never by a second launch."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Action, Drain, Hold, Launch, Plan, Terminate
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.providers.base import LaunchSpec, Provider
from tradewind.autoscaler.ray_snapshot import DrainReason, RayPort
from tradewind.autoscaler.view import Limits, LoopSettings, launched_since
from tradewind.errors import AmbiguousOutcome, InvalidRequest, ProviderError, RayError, Scope
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    LaunchRefused,
    LaunchRequested,
    TerminateRequested,
)
from tradewind.model import LABEL_LAUNCH_ID, Offer
from tradewind.states import NodeState
from tradewind.units import format_usd

logger = logging.getLogger(__name__)

Record = Callable[..., None]  # record(*events): appends to the log and applies to the fleet


def new_launch_id() -> str:
    return f"tw-{uuid.uuid4().hex[:12]}"


def limit_passed(fleet: FleetState, offer: Offer, limits: Limits, now_s: float) -> str:
    """The last gate before a launch: which limit this offer would pass, or nothing."""
    alive = fleet.alive_nodes
    price = sum(node.offer.price_uusd_per_h or 0 for node in alive) + (offer.price_uusd_per_h or 0)
    if limits.max_nodes is not None and len(alive) + 1 > limits.max_nodes:
        return f"the limit of {limits.max_nodes} nodes"
    if limits.max_uusd_per_h is not None and price > limits.max_uusd_per_h:
        return f"the limit of {format_usd(limits.max_uusd_per_h)} per hour"
    if limits.launches_per_minute is not None and launched_since(fleet, now_s - 60) + 1 > limits.launches_per_minute:
        return f"the limit of {limits.launches_per_minute} launches per minute"
    return ""


@dataclass(slots=True)
class _Attempt:
    """One launch on its way through the offers: what was passed over, and who has refused so far."""

    action: Launch
    ruled_out: list[str]
    refused: list[str] = field(default_factory=list)  # launch ids


@dataclass(slots=True)
class Reconciler:
    clock: Clock
    record: Record
    fleet: FleetState
    ray: RayPort
    providers: Mapping[str, Provider]
    settings: LoopSettings
    new_id: Callable[[], str] = new_launch_id
    # Launch calls of this process that were accepted or had no answer. What is on record and neither here nor
    # listed was never sent (a crash in between), or was refused for the moment: it is sent again.
    sent: set[str] = field(default_factory=set)

    def act(self, plan: Plan) -> None:
        for action in plan.actions:
            self._act(action)

    def _act(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(action)
            case Drain():
                self._drain(action)
            case Terminate():
                self._terminate(action)
            case Hold():
                pass  # nothing to do is the decision; the loop records it

    # --- launches ---------------------------------------------------------------------------------------------

    def _launch(self, action: Launch) -> None:
        """The offer, then its fallbacks, until a cloud says yes or says nothing."""
        attempt = _Attempt(action, list(action.ruled_out))
        for offer in (action.offer, *action.fallbacks):
            now_s = self.clock.now_s()
            if (block := MarketMemory.of(self.fleet, now_s).block_of(offer, now_s)) is not None:
                attempt.ruled_out.append(f"{offer.market}: {block.describe(now_s)}")  # refused a moment ago
                continue
            if passed := limit_passed(self.fleet, offer, self.settings.limits, now_s):
                logger.warning("not launched: %s would pass %s", offer.market, passed)
                attempt.ruled_out.append(f"{offer.market}: would pass {passed}")
                continue
            launch_id = self._ask_for(offer, attempt)
            if not self.send(self.fleet.nodes[launch_id]):
                return
            attempt.refused.append(launch_id)

    def _ask_for(self, offer: Offer, attempt: _Attempt) -> str:
        """On record before the call, together with what was tried in vain before it."""
        launch_id, now_s, action = self.new_id(), self.clock.now_s(), attempt.action
        reason = action.reason
        if offer is not action.offer:
            reason += f"; first choice refused, next best at {format_usd(offer.price_uusd_per_h or 0)}/h"
        self.record(
            LaunchRequested(
                at_s=now_s,
                launch_id=launch_id,
                offer=offer,
                reason=reason,
                cell=self.settings.cell,
                replaces=action.replaces,
            ),
            DecisionRecorded(
                at_s=now_s,
                action="launch",
                subject=launch_id,
                reason=reason,
                alternatives=action.alternatives,
                jobs=action.jobs,
                refused=tuple(attempt.refused),
                ruled_out=tuple(attempt.ruled_out),
            ),
        )
        return launch_id

    def send(self, node: NodeRecord) -> bool:
        """Make the call for a launch that is on record. Whether it was refused."""
        self.sent.add(node.launch_id)
        try:
            self._provider(node.offer).launch(self._spec(node))
        except AmbiguousOutcome as error:
            logger.warning("launch %s has no answer, the next listing tells: %s", node.launch_id, error)
        except ProviderError as error:
            return self._refused(node, error)
        except Exception:
            # A defect in a provider must not end the loop, and says nothing about whether the cloud acted.
            logger.exception("launch %s failed in the provider; the next listing tells", node.launch_id)
        return False

    def _refused(self, node: NodeRecord, error: ProviderError) -> bool:
        if error.retryable:
            logger.warning("launch %s is tried again: %s", node.launch_id, error)
            self.sent.discard(node.launch_id)
            return False
        logger.info("launch %s refused: %s", node.launch_id, error)
        self.record(
            LaunchRefused(
                at_s=self.clock.now_s(),
                launch_id=node.launch_id,
                error=type(error).__name__,
                message=error.message,
                scope=error.scope,
                block_s=error.block_s,
            )
        )
        return True

    def _provider(self, offer: Offer) -> Provider:
        provider = self.providers.get(offer.market.cloud)
        if provider is None:
            raise InvalidRequest(f"there is no provider for {offer.market.cloud!r}", "add the cloud to the fleet file")
        return provider

    def _spec(self, node: NodeRecord) -> LaunchSpec:
        return LaunchSpec(
            launch_id=node.launch_id,
            fleet=self.settings.fleet,
            cell=node.cell,
            offer=node.offer,
            head_address=self.settings.head_address,
            labels={**node.offer.labels, LABEL_LAUNCH_ID: node.launch_id},
        )

    # --- ends -------------------------------------------------------------------------------------------------

    def _drain(self, action: Drain) -> None:
        """A node that is DRAINING already is asked again: the first call may have been lost."""
        now_s = self.clock.now_s()
        if self.fleet.nodes[action.launch_id].state is not NodeState.DRAINING:
            deadline_s = action.deadline_s
            self.record(
                DrainRequested(at_s=now_s, launch_id=action.launch_id, reason=action.reason, deadline_s=deadline_s),
                _decision(now_s, "drain", action),
            )
        try:
            accepted, message = self._drain_hosts(action, now_s)
        except RayError as error:
            logger.warning("drain of %s has no answer, it is asked again: %s", action.launch_id, error)
            return
        if not accepted:
            self.record(DrainRefused(at_s=self.clock.now_s(), launch_id=action.launch_id, message=message))

    def _drain_hosts(self, action: Drain, now_s: float) -> tuple[bool, str]:
        """The first host answers for a slice: work for all of it comes there first. Ray cannot take a drain back, so
        once the first host drains the others must, too: one that has got work meanwhile is given time to end it."""
        first, *others = action.ray_node_ids
        accepted, message = self.ray.drain(first, action.why, action.reason, action.deadline_s)
        for host in others if accepted else ():
            agreed, _ = self.ray.drain(host, action.why, action.reason, action.deadline_s)
            if not agreed and action.why is DrainReason.IDLE:
                deadline_s = now_s + self.settings.drain_timeout_s
                self.ray.drain(host, DrainReason.PREEMPTION, "another host of its slice drains", deadline_s)
        return accepted, message

    def _terminate(self, action: Terminate) -> None:
        now_s = self.clock.now_s()
        node = self.fleet.nodes[action.launch_id]
        if node.state is not NodeState.REQUESTED:  # one that is not billed yet has nothing to end on record
            requested = TerminateRequested(at_s=now_s, launch_id=action.launch_id, reason=action.reason)
            self.record(requested, _decision(now_s, "terminate", action))
        self.end([action.launch_id])

    def end(self, launch_ids: Iterable[str], clouds: Mapping[str, str] | None = None) -> None:
        """Ask the clouds to end these. What fails is asked again at the next tick, for as long as it is listed.
        `clouds` names the cloud of launch ids that the log does not know."""
        by_provider: dict[int, tuple[Provider, list[str]]] = {}
        for launch_id in launch_ids:
            node = self.fleet.nodes.get(launch_id)
            cloud = node.offer.market.cloud if node is not None else (clouds or {}).get(launch_id, "")
            if cloud in self.providers:
                provider = self.providers[cloud]
                by_provider.setdefault(id(provider), (provider, []))[1].append(launch_id)
        for provider, names in by_provider.values():
            self._end_at(provider, names)

    def end_all(self, reason: str) -> None:
        """Ask for the end of every node that is alive by the log. A launch without an outcome is no longer sent."""
        alive, now_s = self.fleet.alive_nodes, self.clock.now_s()
        self.sent.clear()
        for node in alive:
            if node.state in (NodeState.BOOTING, NodeState.READY, NodeState.DRAINING):
                self.record(TerminateRequested(at_s=now_s, launch_id=node.launch_id, reason=reason))
        self.end([node.launch_id for node in alive])

    def give_up(self, launch_ids: Iterable[str], reason: str) -> None:
        """Launches that are on record and not listed: should one turn up later, it is a stranger, and ended."""
        for launch_id in launch_ids:
            self.record(
                LaunchRefused(
                    at_s=self.clock.now_s(),
                    launch_id=launch_id,
                    error="AmbiguousOutcome",
                    message=f"not listed when it was given up: {reason}",
                    scope=Scope.NOTHING,
                    block_s=0.0,
                )
            )

    def _end_at(self, provider: Provider, names: list[str]) -> None:
        try:
            provider.terminate(names)
        except ProviderError as error:
            logger.warning("%s did not end %s, asked again: %s", provider.name, ", ".join(names), error)
        except Exception:
            logger.exception("%s failed while ending %s, asked again", provider.name, ", ".join(names))


def _decision(at_s: float, name: str, action: Drain | Terminate) -> AnyEvent:
    return DecisionRecorded(
        at_s=at_s, action=name, subject=action.launch_id, reason=action.reason, alternatives=action.alternatives
    )
