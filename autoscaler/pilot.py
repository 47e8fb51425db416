"""Jobs with a contract -> where each of them is to run, and so what may be bought for it. Pure but for what it keeps of
the last decisions: a course is set anew after `contract_tick_s`, or as soon as something has changed.

A course becomes a `Steer`: how many workers the job may have, labels that offers for it must have (they go into its
wish, so that all of packing and the limits hold to them), nodes that it is to leave, or nothing at all while it waits.
A job with a deadline of which too little is known starts on demand, as fast as it can; its steps will tell more. One
that is in no need of a course is free: it runs as one without a contract.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.actions import alternative
from tradewind.autoscaler.contract.decide import decide
from tradewind.autoscaler.contract.live import Case, case_of
from tradewind.autoscaler.contract.settled import SPARE, on_demand_at, settled
from tradewind.autoscaler.contract.view import Aim, Choice, ContractDecision, ContractView
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.moves import Holders, works
from tradewind.autoscaler.packing_reasons import copies_on
from tradewind.autoscaler.packing_stock import why_closed
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.steer import Kept, Steer
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import (
    LABEL_ACCELERATOR,
    LABEL_CLOUD,
    LABEL_INSTANCE_TYPE,
    LABEL_MARKET_TYPE,
    LABEL_ZONE,
    Capacity,
    Offer,
    Target,
    Wish,
)
from tradewind.units import format_duration, format_usd

_PLACE = (LABEL_MARKET_TYPE, LABEL_CLOUD, LABEL_ZONE, LABEL_INSTANCE_TYPE)
_KIND = (*_PLACE, LABEL_ACCELERATOR)  # where a place is left open, speeds are still those of one kind of accelerator
WAITING = "waits for spot, as its contract says; `tradewind why job` tells more"
_FREE = "as without a contract"
_SAFE = "on demand, as fast as it can"
_SHOWN = 3  # alternatives on record


@dataclass(frozen=True, slots=True)
class Course:
    """What was decided for one job, and by what."""

    case: Case
    steer: Steer
    decision: ContractDecision | None = None

    @property
    def deadline_at_s(self) -> float | None:
        return self.case.job.spec.contract.deadline_at_s

    def is_late(self, now_s: float) -> bool:
        return self.deadline_at_s is not None and self.deadline_at_s <= now_s

    def net_uusd_per_h(self, limit_uusd_per_h: int) -> int:
        """On demand, beyond what it pays where it is; nothing where the limit does not pay for that."""
        if self.decision is None or self.case.contract is None:
            return 0
        whole = self.case.contract.on_demand_rate_uusd_per_h(max(self.decision.choice.replicas, 1))
        paid = sum(node.requested.offer.price_uusd_per_h or 0 for node in self.case.here)
        return max(whole - paid, 0) if whole <= limit_uusd_per_h else 0


@dataclass(slots=True)
class Pilot:
    """One of a loop. `courses` are those of the last look."""

    courses: dict[str, Course] = field(default_factory=dict)
    _signs: dict[str, object] = field(default_factory=dict)

    def look(
        self, view: View, fleet: FleetState, targets: Mapping[str, Target], left_uusd: Mapping[str, int]
    ) -> dict[str, Steer]:
        """`targets`: what the limits leave each job; `left_uusd`: of budgets, by job. While the head does not answer,
        everything stays as it is."""
        if view.snapshot is None:
            return self.steers
        wishes = {wish.job_id: wish for wish in view.wishes}
        jobs = [job for job in fleet.open_jobs if job.job_id in wishes and not job.spec.contract.is_empty]
        self.courses = {
            job.job_id: self._course(job, wishes[job.job_id], view, fleet, targets, left_uusd.get(job.job_id))
            for job in jobs
        }
        return self.steers

    @property
    def steers(self) -> dict[str, Steer]:
        """Of jobs that are not free."""
        return {name: course.steer for name, course in self.courses.items() if not course.steer.is_free}

    def kept(self, limits: Limits, now_s: float) -> Kept:
        """What the nets of all jobs with a deadline may come to need, at the sizes that are chosen now. For a net that
        the limit could not pay for anyway, or that would come too late, others need not wait."""
        if limits.max_uusd_per_h is None:
            return Kept()
        limit, courses = limits.max_uusd_per_h, self.courses.values()
        promised = [course for course in courses if course.deadline_at_s is not None]
        nets = (course.net_uusd_per_h(limit) for course in promised if not course.is_late(now_s))
        return Kept(sum(nets), frozenset(course.case.job.job_id for course in promised))

    def _course(
        self,
        job: JobRecord,
        wish: Wish,
        view: View,
        fleet: FleetState,
        targets: Mapping[str, Target],
        left_uusd: int | None,
    ) -> Course:
        most = targets[job.job_id].replicas if job.job_id in targets else wish.max_replicas
        sign = _sign(job, wish, most, view, fleet)
        known = self.courses.get(job.job_id)
        if known is not None and self._signs.get(job.job_id) == sign:
            return known
        found = course_of(case_of(job, wish, most, view, fleet, view.settings.contract_tick_s, left_uusd), view)
        self._signs[job.job_id] = sign
        return found


def _sign(job: JobRecord, wish: Wish, most: int, view: View, fleet: FleetState) -> object:
    """Whatever is another one than at the last look asks for a new decision."""
    pace = fleet.paces.get(job.job_id)
    nodes = tuple(
        (node.launch_id, node.is_coming, node.is_leaving)
        for node in view.nodes
        if node.launch_id in job.holdings or job.job_id in node.requested.jobs
    )
    blocks = frozenset(key for key, block in view.memory.blocks.items() if block.until_s > view.now_s)
    tick_s = view.settings.contract_tick_s
    turn = int((view.now_s + zlib.crc32(job.job_id.encode()) % tick_s) // tick_s)  # not all jobs at one moment
    working = pace.is_working if pace is not None else False
    return turn, wish, most, nodes, blocks, working, tuple(job.holdings), view.blind_clouds


# --- one course -----------------------------------------------------------------------------------------------------


def course_of(case: Case, view: View) -> Course:
    """The decision for one job, and what it means for the loop."""
    if case.contract is None and _must_be_safe(case, view):
        return Course(case, _safe(case))
    if case.contract is None or not _is_bound(case.contract):
        why = case.unknown or "its budget pays for on-demand to the end"
        return Course(case, Steer(case.job.job_id, _FREE, why, is_free=True))
    if why := _why_over(case.contract):
        return Course(case, _ending(case, why))
    decision = _decided(case, case.contract, view)
    return Course(case, _steer(case, case.contract, decision, view), decision)


def _must_be_safe(case: Case, view: View) -> bool:
    """There is a deadline, and perhaps no slack at all: a machine that may be taken is too much of a risk. What is on
    spot is left there, and where on-demand is out of stock anything is better than nothing."""
    is_on_spot = any(node.requested.offer.market.capacity is Capacity.SPOT for node in case.here)
    if case.job.spec.contract.deadline_at_s is None or is_on_spot:
        return False
    shape = Shape.of(case.wish.resources, case.wish.labels)
    dear = (offer for offer in view.offers if offer.market.capacity is Capacity.ON_DEMAND)
    return any(copies_on(offer, shape, view) and not why_closed(offer, view) for offer in dear)


def _safe(case: Case) -> Steer:
    labels = {LABEL_MARKET_TYPE: str(Capacity.ON_DEMAND)}
    why = f"{case.unknown}; so it starts where no machine is taken away"
    return Steer(case.job.job_id, _SAFE, why, workers=case.wish.max_workers, labels=labels, is_urgent=True)


def _why_over(contract: ContractView) -> str:
    """Nothing is left to decide: the last steps are taken and it saves, or its budget is used and it is stopped."""
    if contract.work_left_s <= 0.0:
        return "all of its steps are taken"
    is_spent = contract.budget_left_uusd is not None and contract.budget_left_uusd <= 0
    return "its budget is used" if is_spent else ""


def _ending(case: Case, why: str) -> Steer:
    """It keeps what it has, and gets no more than it needs to come to its end."""
    held = case.contract.running.replicas if case.contract is not None and case.contract.running else 0
    workers = max(held, case.wish.min_replicas, 1) * case.wish.replica_workers
    return Steer(case.job.job_id, "ends where it is", why, workers=workers)


def _is_bound(contract: ContractView) -> bool:
    """Who has no deadline, and can pay for on-demand to the end at any size that he may have, needs no course."""
    if contract.deadline_at_s is not None or contract.budget_left_uusd is None:
        return contract.deadline_at_s is not None
    usable = (n for n in contract.sure_sizes if contract.speeds[n - 1] >= 1e-6)
    return max(on_demand_at(contract, size).cost_uusd for size in usable) > contract.budget_left_uusd


def _decided(case: Case, contract: ContractView, view: View) -> ContractDecision:
    """The policy's word, with what only a fleet knows: nothing can be waited for where no spot is sold, or by who has
    no deadline and is paid on demand; work that was stated is checked by first steps before anybody waits; and a job
    that moves to a node that is bought first loses no more than the handing over."""
    found = decide(contract)
    if found.choice.capacity is None and (why := _why_not_wait(case, contract, found)):
        return replace(found, choice=_on_demand_of(found, contract), reason=why)
    if found.aim is Aim.SURE and _was_cut_short(case, contract):
        why = "it lost its machines before its first steps could tell how much work there is"
        return replace(found, choice=_on_demand_of(found, contract), reason=why)
    found, running = settled(found, contract), contract.running
    if running is None and found.slack_s < contract.restart_s:
        slack = format_duration(found.slack_s) if found.slack_s > 0 else "no"
        start = format_duration(contract.restart_s)
        reason = f"{slack} slack, and a start takes {start}: on demand at once, as fast as it can"
        return replace(found, choice=on_demand_at(contract, _quickest(case, contract)), reason=reason)
    is_late = found.slack_s < contract.restart_s and found.slack_s >= view.settings.market.handover_s
    if is_late and running is not None and running.capacity is Capacity.SPOT and case.wish.can_move:
        slack = format_duration(found.slack_s)
        reason = f"{slack} of slack are too little to lose a machine now"
        return replace(found, choice=on_demand_at(contract, contract.fastest), reason=reason)
    return found


def _quickest(case: Case, contract: ContractView) -> int:
    """On several kinds of machines the limits may leave room for more than on the one that is reckoned with."""
    sizes = contract.sure_sizes if case.net else range(1, len(contract.speeds) + 1)
    return max(sizes, key=lambda size: (contract.speeds[size - 1], -size))


def _was_cut_short(case: Case, contract: ContractView) -> bool:
    """It had machines, and no step was taken: with work that is only stated, a second spot machine is one too many."""
    return case.will_tell and case.has_begun and contract.deadline_at_s is not None and contract.running is None


def _why_not_wait(case: Case, contract: ContractView, found: ContractDecision) -> str:
    if not contract.spot:
        return "no spot market sells what fits it"
    if found.aim is Aim.SURE and contract.deadline_at_s is None:
        return "no spot now, and its budget pays for on-demand to the end at this size"
    if found.aim is Aim.SURE and case.will_tell:
        return "no spot now, and its first steps are to tell whether there is as much work as was stated"
    return ""


def _on_demand_of(found: ContractDecision, contract: ContractView) -> Choice:
    """The cheapest of those that were looked at."""
    seen = [choice for choice in found.beaten if choice.capacity is Capacity.ON_DEMAND]
    return min(seen, key=lambda choice: choice.cost_uusd, default=on_demand_at(contract, contract.fastest))


def _steer(case: Case, contract: ContractView, decision: ContractDecision, view: View) -> Steer:
    choice, wish = decision.choice, case.wish
    replicas = max(choice.replicas, wish.min_replicas, 1)
    stays = contract.running is not None and contract.running.key == choice.key
    idle = _idle_as_cheap(case, choice, view) if stays or contract.running is None else []
    warning = _warning(contract, decision)
    return Steer(
        case.job.job_id,
        _what(choice) + (f", {warning}" if warning else ""),
        f"{decision.reason}; {case.basis}{_used_first(idle)}",
        tuple(_beside(other, choice) for other in decision.beaten[:_SHOWN]),
        waits=choice.capacity is None,
        workers=replicas * wish.replica_workers,
        labels=_labels(case, choice, stays, idle, view),
        misplaced=frozenset(_misplaced(case, choice, stays, view)),
        is_net=choice.capacity is Capacity.ON_DEMAND and decision.slack_s >= contract.restart_s,
        is_urgent=decision.slack_s < SPARE * contract.restart_s,
        warning=warning,
    )


def _beside(other: Choice, choice: Choice) -> str:
    """Expectations that are alike as they are written are alike: nobody knows them better."""
    cost, chosen = (format_usd(round(each.cost_uusd)) for each in (other, choice))
    return alternative(f"{_what(other)} at {cost} expected", cost == chosen)


def _warning(contract: ContractView, decision: ContractDecision) -> str:
    """What of the contract is given up."""
    if decision.aim is Aim.SHORT:
        return "though its budget is below what the work costs anywhere"
    is_given_up = decision.aim is Aim.BUDGET and contract.deadline_at_s is not None
    return "the deadline gives way to the budget" if is_given_up else ""


def _what(choice: Choice) -> str:
    if choice.capacity is None:
        return "waits for spot"
    if choice.capacity is Capacity.ON_DEMAND:
        return f"on demand x {choice.replicas}"
    return f"{choice.key} x {choice.replicas}"


def _idle_as_cheap(case: Case, choice: Choice, view: View) -> list[Offer]:
    """Offers of other spot markets with nodes of ours that nobody uses, where a replica costs no more than where the
    job is to run. Not for who moves: the nodes that he is to leave would have such labels, too."""
    if choice.capacity is not Capacity.SPOT or case.contract is None:
        return []
    rates = {market.key: market.rate_uusd_per_h(choice.replicas) for market in case.contract.spot}
    idle = {key: each.rate_uusd_per_h(choice.replicas) for key, each in case.idle.items() if key != choice.key}
    keys = {key for key, rate in idle.items() if rate <= rates.get(choice.key, 0)}
    return [offer for offer in view.offers if offer.market.key in keys]


def _used_first(idle: Sequence[Offer]) -> str:
    if not idle:
        return ""
    return f"; idle nodes of {', '.join(offer.market.key for offer in idle)} cost no more, and are used first"


def _labels(case: Case, choice: Choice, stays: bool, idle: Sequence[Offer], view: View) -> dict[str, str]:
    """Of on-demand, any will do, but where the net has a name. A spot market that the job is in and that sells no more
    is completed from others. What is there, idle and as cheap is used before anything is bought: asked for is what it
    has in common with the choice, and packing takes what is there first."""
    if choice.capacity is None:
        return {}
    offer = next((offer for offer in view.offers if offer.market.key == choice.key), None)
    if choice.capacity is Capacity.ON_DEMAND or offer is None or (stays and why_closed(offer, view)):
        named = {LABEL_INSTANCE_TYPE: case.net} if case.net and choice.capacity is Capacity.ON_DEMAND else {}
        return {LABEL_MARKET_TYPE: str(choice.capacity), **named}
    others = [each.labels for each in idle]
    place = ((name, value) for name, value in offer.labels.items() if name in (_KIND if idle else _PLACE))
    return {name: value for name, value in place if all(other.get(name) == value for other in others)}


def _misplaced(case: Case, choice: Choice, stays: bool, view: View) -> Iterable[str]:
    """Nodes that it should leave and can: one whose work cannot move, or that others hold to, is left alone."""
    held = [node for node in case.here if node.launch_id in case.job.holdings]
    wrong = [node for node in held if not _is_right(node, choice, stays, case.net)]
    if not wrong or (choice.capacity is not Capacity.ON_DEMAND and not view.settings.market.exchange):
        return ()
    holders = Holders.of(replace(view, steers={}), wrong)
    return (node.launch_id for node in wrong if works(node) and holders.load_of(node) is not None)


def _is_right(node: NodeView, choice: Choice, stays: bool, net: str) -> bool:
    market = node.requested.offer.market
    if market.capacity is not choice.capacity:
        return False
    if market.capacity is Capacity.ON_DEMAND:
        return net in ("", market.instance_type)
    return stays or market.key == choice.key


# --- what the loop is told ------------------------------------------------------------------------------------------


def steered(wishes: Sequence[Wish], steers: Mapping[str, Steer]) -> tuple[Wish, ...]:
    """Wishes as their contracts have them: so many workers, on such offers."""
    return tuple(_steered(wish, steers[wish.job_id]) if wish.job_id in steers else wish for wish in wishes)


def _steered(wish: Wish, steer: Steer) -> Wish:
    return replace(wish, max_workers=min(wish.max_workers, steer.workers), labels={**wish.labels, **steer.labels})
