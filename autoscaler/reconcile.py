"""Plan -> effects, idempotent. Intent goes on record before a call, so that a crash at any point is settled by the
next listing: under the same launch id, never by a second launch. Calls are made beside the loop (clouds.py); what they
answer is taken in here, on the loop's thread, within the tick or at a later one."""

from __future__ import annotations

import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from tradewind.autoscaler.actions import Action, Drain, Hold, Launch, Plan, Terminate
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.clouds import Clouds, Outcome
from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.limits import Gate
from tradewind.autoscaler.market import MarketMemory, news_block_s, refused_scope
from tradewind.autoscaler.placement import group_name, has_groups
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.ray_snapshot import DrainReason, RayPort
from tradewind.autoscaler.treasury import Treasury, Unlimited
from tradewind.autoscaler.turn import Turn
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import AmbiguousOutcome, ProviderError, RayError, Scope
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    LaunchRefused,
    LaunchRequested,
    TerminateRequested,
)
from tradewind.model import LABEL_LAUNCH_ID, LABEL_PLACEMENT_GROUP, Capacity, Offer, Role
from tradewind.states import NodeState
from tradewind.units import format_usd

logger = logging.getLogger(__name__)

_Cause = tuple[tuple[str, ...], str]  # for which jobs, and the limit, or:
_BUDGET = "budget"

Record = Callable[..., None]  # record(*events): appends to the log and applies to the fleet


def new_launch_id() -> str:
    return f"tw-{uuid.uuid4().hex[:12]}"


@dataclass(slots=True)
class _Attempt:
    """One launch on its way through the offers: which are left, what was passed over, and who has refused so far."""

    action: Launch
    left: Iterator[Offer]
    ruled_out: list[str]
    refused: list[str] = field(default_factory=list)  # launch ids
    full: set[str] = field(default_factory=set)  # placement groups that had no room for it
    held_back: dict[str, tuple[str, list[Offer]]] = field(default_factory=dict)  # by cause: in words, and what

    @classmethod
    def of(cls, action: Launch) -> _Attempt:
        return cls(action, iter((action.offer, *action.fallbacks)), list(action.ruled_out))

    def pass_over(self, offer: Offer, cause: str, why: str) -> None:
        """A limit or a budget does not allow this one."""
        self.ruled_out.append(f"{offer.market}: {why}")
        self.held_back.setdefault(cause, (why, []))[1].append(offer)

    def go_on_after(self, node: NodeRecord, scope: Scope) -> None:
        """What is refused inside of a group is tried outside of it first, before the next offer."""
        self.refused.append(node.launch_id)
        if scope is Scope.GROUP:
            self.full.add(node.placement_group)
            self.left = chain([node.offer], self.left)


@dataclass(slots=True)
class Reconciler:
    clock: Clock
    record: Record
    fleet: FleetState
    ray: RayPort
    clouds: Clouds
    settings: LoopSettings
    new_id: Callable[[], str] = new_launch_id
    turn: Turn = field(default_factory=Turn)
    treasury: Treasury = field(default_factory=Unlimited)
    # Launch calls of this process that are under way, were accepted or had no answer. What is on record and neither
    # here nor listed was never sent (a crash in between), or was refused for the moment: it is sent again.
    sent: set[str] = field(default_factory=set)
    _attempts: dict[str, _Attempt] = field(default_factory=dict)  # of this tick, by the launch id that was asked for
    _refused: deque[_Attempt] = field(default_factory=deque)
    # What was refused, and what the limits leave: folded anew when the record has changed otherwise than by launches.
    _memory: MarketMemory | None = None
    _gate: Gate | None = None
    _warned: set[_Cause] = field(default_factory=set)  # what was held back, since something was launched for the same

    def act(self, plan: Plan) -> None:
        """A launch that is refused while this waits goes on to its next best offer. One that is refused later is left
        to the plan of that tick, which knows what is wanted then."""
        self._memory = self._gate = None
        for action in plan.actions:
            self._act(action)
            self._fail_over()
        left_s = self.settings.answer_wait_s
        while left_s > 0 and self._attempts:
            left_s -= self.clouds.wait_for_launches(self._attempts, left_s)
            self.take_in()
            self._fail_over()
        self._attempts.clear()

    def _act(self, action: Action) -> None:
        match action:
            case Launch():
                self._launch(_Attempt.of(action))
            case Drain():
                self._drain(action)
            case Terminate():
                self._terminate(action)
            case Hold():
                pass  # nothing to do is the decision; the loop records it

    # --- launches ---------------------------------------------------------------------------------------------

    def _launch(self, attempt: _Attempt) -> None:
        """Ask for the next offer that may be asked for; the answer is taken in if it is there at once."""
        for offer in attempt.left:
            now_s = self.clock.now_s()
            self._memory = self._memory or MarketMemory.of(self.fleet, now_s)
            if (block := self._memory.block_of(offer, now_s)) is not None:
                attempt.ruled_out.append(f"{offer.market}: {block.describe(now_s)}")  # refused a moment ago
                continue
            with self.turn.of(self) as is_mine:
                self._gate = self._gate if is_mine and self._gate else self._new_gate(now_s)
                launch_id = self._ask_within(self._gate, offer, attempt)
            if launch_id:
                self._warned -= {cause for cause in self._warned if cause[0] == attempt.action.jobs}
                self._attempts[launch_id] = attempt
                self.send(self.fleet.nodes[launch_id])
                return
        self._warn(attempt)

    def _ask_within(self, gate: Gate, offer: Offer, attempt: _Attempt) -> str:
        """The launch that is asked for; none where a limit or a budget is against it, which then counts nowhere."""
        jobs, role = attempt.action.jobs, attempt.action.role
        limit, tenants = gate.ask(offer, jobs, role)
        if limit:
            attempt.pass_over(offer, limit, f"would pass {limit}")
            return ""
        if role is not Role.HEAD and (short := self.treasury.admit(offer, jobs)):  # without a head, nothing goes on
            attempt.pass_over(offer, _BUDGET, short)
            return ""
        gate.count(offer, tenants, role)
        return self._ask_for(offer, attempt, tenants)

    def _warn(self, attempt: _Attempt) -> None:
        """Once for each cause, not for each offer: a launch that is held back may be planned again at every tick."""
        for cause, (why, offers) in attempt.held_back.items():
            if (key := (attempt.action.jobs, cause)) not in self._warned:
                self._warned.add(key)
                others = f" and {len(offers) - 1} other offers" if len(offers) > 1 else ""
                logger.warning("not launched: %s%s: %s", offers[0].market, others, why)

    def _new_gate(self, now_s: float) -> Gate:
        return Gate(self.fleet.whole, self.settings.limits, now_s)

    def _fail_over(self) -> None:
        while self._refused:
            self._launch(self._refused.popleft())

    def _ask_for(self, offer: Offer, attempt: _Attempt, tenants: Iterable[str]) -> str:
        """On record before the call, together with what was tried in vain before it."""
        launch_id, now_s, action = self.new_id(), self.clock.now_s(), attempt.action
        reason = action.reason
        if offer != action.offer:
            reason += f"; first choice refused, next best at {format_usd(offer.price_uusd_per_h or 0)}/h"
        group, where = self._group_for(offer, attempt, now_s)
        reason += where
        self.record(
            LaunchRequested(
                at_s=now_s,
                launch_id=launch_id,
                offer=offer,
                reason=reason,
                cell=self.settings.cell,
                replaces=action.replaces,
                tenants=tuple(sorted(tenants)),
                role=action.role,
                jobs=action.jobs,
                placement_group=group,
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

    def _group_for(self, offer: Offer, attempt: _Attempt, now_s: float) -> tuple[str, str]:
        """The placement group to ask for, and in words where the node will lie. A group that was refused a moment ago
        is left out: its gang would rather have a node farther away than none."""
        gang = attempt.action.gang
        if not (gang and self.settings.placement_groups and has_groups(offer)):
            return "", ""
        group = group_name(self.settings.fleet, self.settings.cell, gang, offer.market)
        self._memory = self._memory or MarketMemory.of(self.fleet, now_s)
        block = self._memory.group_block_of(offer.market, group, now_s)
        if group not in attempt.full and block is None:
            return group, f"; in placement group {group}"
        why = block.describe(now_s) if block is not None else "refused"
        return "", f"; outside of placement group {group} ({why})"

    def send(self, node: NodeRecord) -> None:
        """Make the call for a launch that is on record."""
        self.sent.add(node.launch_id)
        self.clouds.launch(self._spec(node))
        self.take_in()

    def take_in(self) -> None:
        """What has come of launch calls by now."""
        for outcome in self.clouds.outcomes():
            attempt = self._attempts.pop(outcome.launch_id, None)
            error = self._refusal_in(outcome)
            if error is not None and attempt is not None:
                node = self.fleet.nodes[outcome.launch_id]
                attempt.go_on_after(node, refused_scope(node, error))
                self._refused.append(attempt)

    def _refusal_in(self, outcome: Outcome) -> ProviderError | None:
        name = outcome.launch_id
        match outcome.error:
            case None:
                return None
            case AmbiguousOutcome() as error:
                logger.warning("launch %s has no answer, the next listing tells: %s", name, error)
                return None
            case ProviderError() as error if error.retryable:
                logger.warning("launch %s is tried again: %s", name, error)
                self.sent.discard(name)
                return None
            case ProviderError() as error:
                self._note_refusal(name, error)
                return error
            case error:
                # A defect in a provider must not end the loop, and says nothing about whether the cloud acted.
                logger.error("launch %s failed in the provider; the next listing tells", name, exc_info=error)
                return None

    def _note_refusal(self, launch_id: str, error: ProviderError) -> None:
        logger.info("launch %s refused: %s", launch_id, error)
        node = self.fleet.nodes[launch_id]
        if node.state is not NodeState.REQUESTED:
            return  # the listing was quicker, and has told the same (settle.py), or better
        now_s = self.clock.now_s()
        block_s = news_block_s(MarketMemory.of(self.fleet, now_s), node, error, now_s)
        self._memory = self._gate = None
        self.record(
            LaunchRefused(
                at_s=now_s,
                launch_id=launch_id,
                error=type(error).__name__,
                message=error.message,
                scope=refused_scope(node, error),
                block_s=block_s,
            )
        )

    def _spec(self, node: NodeRecord) -> LaunchSpec:
        group = {LABEL_PLACEMENT_GROUP: node.placement_group} if node.placement_group else {}
        return LaunchSpec(
            launch_id=node.launch_id,
            fleet=self.settings.fleet,
            cell=node.cell,
            offer=node.offer,
            head_address=self.settings.head_address,
            labels={**node.offer.labels, LABEL_LAUNCH_ID: node.launch_id, **group},
            max_price_uusd_per_h=_most_for(node.offer),
            role=node.role,
            placement_group=node.placement_group,
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
            self._memory = None  # one that never joined speaks against its market
            requested = TerminateRequested(at_s=now_s, launch_id=action.launch_id, reason=action.reason)
            self.record(requested, _decision(now_s, "terminate", action))
        self.end([action.launch_id])

    def end(self, launch_ids: Iterable[str], clouds: Mapping[str, str] | None = None) -> None:
        """Ask the clouds to end these. What fails is asked again at the next tick, for as long as it is listed.
        `clouds` names the cloud of launch ids that the log does not know."""
        by_cloud: dict[str, list[str]] = {}
        for launch_id in launch_ids:
            node = self.fleet.nodes.get(launch_id)
            cloud = node.offer.market.cloud if node is not None else (clouds or {}).get(launch_id, "")
            by_cloud.setdefault(cloud, []).append(launch_id)
        self.clouds.end(by_cloud)

    def end_all(self, reason: str) -> None:
        """Ask for the end of every node that is alive by the log. A launch that was not sent never will be; of one
        whose call is under way, nothing is known until it has an answer."""
        alive, now_s = self.fleet.alive_nodes, self.clock.now_s()
        self.clouds.cancel_launches()
        self.sent = set(self.clouds.launching)
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


def _most_for(offer: Offer) -> int | None:
    """Spot prices move: beyond the regular price of the same machine, spot has no use. Where that is not known, the
    cloud's own limit holds. From the offer on record, so that a repeated call is the same request."""
    return offer.on_demand_uusd_per_h if offer.market.capacity is Capacity.SPOT else None


def _decision(at_s: float, name: str, action: Drain | Terminate) -> AnyEvent:
    return DecisionRecorded(
        at_s=at_s, action=name, subject=action.launch_id, reason=action.reason, alternatives=action.alternatives
    )
