"""Why a node, a job or the fleet is as it is: events and their folds in, a Story (api.py) out. Pure.

The controller finds the events that name the subject and hands them over with the folds (`Scene`). Nothing is guessed
here: a reason is the one that was recorded with the decision, and what the record does not hold becomes a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import groupby

from tradewind.api import About, Story, StoryLine
from tradewind.autoscaler.actions import Hold, Plan
from tradewind.autoscaler.dry_run import DRY_RUN
from tradewind.autoscaler.fleet import FleetState, JobRecord, NodeRecord
from tradewind.autoscaler.shape import Shape, add_up
from tradewind.events import (
    AnyEvent,
    BudgetChanged,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    HoldingChanged,
    JobPlaced,
    JobStateChanged,
    JobSubmitted,
    LaunchRefused,
    MoveRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    TerminateRequested,
)
from tradewind.model import EndReason, Phase
from tradewind.node_logs import boot_notes
from tradewind.render import brings_text, count_text, names_text, offer_text, price_text
from tradewind.states import NodeState, is_alive, is_over
from tradewind.units import format_duration, format_usd
from tradewind.views import Costs
from tradewind.why_lines import facts, in_order, newest, with_others

LAST: dict[About, int] = {"node": 50, "job": 50, "now": 10}  # lines at the most, unless told otherwise
_STARTS = ("launch", "adopt")
_DONE = {"drain": "drained", "terminate": "given back", "grant": "allowed", "contract": "by its contract"}  # by action
_TAKEN = (EndReason.PREEMPTED, EndReason.CRASHED, EndReason.LOST)


@dataclass(frozen=True)
class Scene:
    """Everything that a story is told from."""

    fleet: FleetState
    now_s: float
    events: Sequence[AnyEvent] = ()  # that name the subject, as they stand in the log; of `now`: the last decisions
    is_cut: bool = False  # there are older ones
    costs: Costs = field(default_factory=lambda: Costs(0, 0, {}, {}, {}))
    plan: Plan | None = None  # of the last tick; None: there was none yet
    asked: tuple[str, ...] = ()  # what was asked for at the last tick, served or not

    @cached_property
    def decisions(self) -> list[DecisionRecorded]:
        return [event for event in self.events if isinstance(event, DecisionRecorded)]

    @cached_property
    def superseded(self) -> frozenset[str]:
        """Launch ids that were refused, and stand in the line of the try after them."""
        return frozenset(name for event in self.decisions for name in event.refused)

    @cached_property
    def ends_decided_s(self) -> frozenset[float]:
        """An intent and its decision are recorded together: then the decision, which says more, is told."""
        return frozenset(event.at_s for event in self.decisions if event.action in _DONE)

    @property
    def note(self) -> str:
        return " (simulated)" if self.fleet.simulated else ""


# --- a node ----------------------------------------------------------------------------------------------------


def node_story(scene: Scene, launch_id: str, last: int = LAST["node"]) -> Story:
    node = scene.fleet.nodes[launch_id]
    bought = next((event for event in scene.decisions if event.subject == launch_id and event.action in _STARTS), None)
    first = _bought_line(scene, node, bought)
    lines = [first, *in_order(_node_line(event, scene, launch_id) for event in scene.events)]
    kept, left_out = newest(lines, last)
    return Story(
        about="node",
        subject=launch_id,
        title=f"Node {launch_id}: {node.end or node.state}{scene.note}",
        facts=_node_facts(scene, node, bought),
        # Why it was bought is what was asked for: it stays, whatever is left out after it.
        lines=tuple(kept if first in kept else [first, *kept[1:]]),
        notes=(*cut_notes(scene, left_out), *_node_notes(bought), *boot_notes(node)),
    )


def _node_facts(scene: Scene, node: NodeRecord, bought: DecisionRecorded | None) -> tuple[tuple[str, str], ...]:
    offer, costs = node.offer, scene.costs
    price = price_text(offer.price_uusd_per_h)
    now_price = costs.prices.get(node.launch_id)
    if is_alive(node.state) and now_price is not None and now_price != offer.price_uusd_per_h:
        price += f" when it was bought, {price_text(now_price)} now"
    if offer.on_demand_uusd_per_h and offer.on_demand_uusd_per_h != offer.price_uusd_per_h:
        price += f" (on-demand {price_text(offer.on_demand_uusd_per_h)})"
    jobs = _jobs_in(bought.jobs, bought.reason) if bought else []
    held = {event.job_id for event in scene.events if isinstance(event, HoldingChanged)}
    spent = format_usd(costs.by_node.get(node.launch_id, 0))
    return facts(
        ("market", str(offer.market)),
        ("brings", brings_text(offer)),
        ("price", price),
        ("cost so far", f"{spent}{scene.note}{_lived(node, scene.now_s)}"),
        ("bought for", names_text(jobs)),
        ("used by", names_text(sorted(held)) or ("nobody" if node.joined_at_s else "")),
    )


def _lived(node: NodeRecord, now_s: float) -> str:
    if node.launched_at_s is None:
        return ""
    return f" in {format_duration((node.ended_at_s or now_s) - node.launched_at_s)}"


def _bought_line(scene: Scene, node: NodeRecord, event: DecisionRecorded | None) -> StoryLine:
    """From the decision, or (where that is not there) from the node's record alone."""
    adopted = event is not None and event.action == "adopt"
    line = StoryLine(
        at_s=event.at_s if event else node.requested_at_s,
        what="taken in" if adopted else f"asked for {offer_text(node.offer)}",
        reason=node.reason,
    )
    return _with_rivals(line, event, scene.fleet) if event else line


def _with_rivals(line: StoryLine, event: DecisionRecorded, fleet: FleetState) -> StoryLine:
    """What the decision beat, who refused, and who was not asked: neither of those was beaten."""
    tried = [fleet.nodes[name].offer.market.key for name in (event.subject, *event.refused) if name in fleet.nodes]
    others = {*tried, *(text.split(": ")[0] for text in event.ruled_out)}
    left = (text for text in event.alternatives if text.split(" ")[0] not in others)
    refused = tuple(_refusal(name, fleet) for name in event.refused)
    return replace(with_others(line, left), refused=refused, ruled_out=event.ruled_out)


def _refusal(launch_id: str, fleet: FleetState) -> str:
    node = fleet.nodes.get(launch_id)
    return f"{offer_text(node.offer)}: {node.detail}" if node else f"{launch_id}: no longer on record"


def _node_line(event: AnyEvent, scene: Scene, launch_id: str) -> StoryLine | None:
    """One event of a node's life; None for what is told elsewhere."""
    match event:
        case NodeLaunched():
            return StoryLine(at_s=event.at_s, what=f"the cloud has it, as {event.instance_id}, and bills it")
        case NodeJoined():
            waited_s = event.at_s - scene.fleet.nodes[launch_id].requested_at_s
            return StoryLine(at_s=event.at_s, what=f"joined Ray, {format_duration(waited_s)} after it was asked for")
        case HoldingChanged():
            did = f"holds {_amounts(event.resources)}" if event.resources else "has left it"
            return StoryLine(at_s=event.at_s, what=f"job {event.job_id} {did}")
        case NoticeReceived():
            left_s = event.deadline_s - event.at_s
            return StoryLine(at_s=event.at_s, what=f"notice: the cloud takes it in {format_duration(left_s)}")
        case DecisionRecorded() if launch_id in event.refused and event.subject not in scene.superseded:
            return next(launch_lines([event], scene, "instead, "))
        case DecisionRecorded() if event.subject == launch_id and event.action not in _STARTS:
            what = _DONE.get(event.action, event.action)
            return with_others(StoryLine(at_s=event.at_s, what=what, reason=event.reason), event.alternatives)
        case _:
            return _end_line(event, scene)


def _end_line(event: AnyEvent, scene: Scene) -> StoryLine | None:
    match event:
        case LaunchRefused():
            blocked = f" ({event.scope} ruled out for {format_duration(event.block_s)})" if event.block_s else ""
            return StoryLine(at_s=event.at_s, what=f"refused, {event.error}", reason=f"{event.message}{blocked}")
        case DrainRequested() | TerminateRequested() if event.at_s not in scene.ends_decided_s:
            return StoryLine(at_s=event.at_s, what=_DONE[event.kind.removesuffix("_requested")], reason=event.reason)
        case DrainRefused():
            return StoryLine(at_s=event.at_s, what="Ray refused the drain: it stays", reason=event.message)
        case NodeGone():
            return StoryLine(at_s=event.at_s, what=f"gone, {event.end}", reason=event.detail)
        case _:
            return None


def _node_notes(bought: DecisionRecorded | None) -> list[str]:
    if bought is None:
        return ["The decision to buy it is not in the log: what it beat is not known."]
    if bought.action == "adopt":
        return ["What happened before it was taken in is not in this log."]
    if "first choice refused" in bought.reason and not bought.refused and not bought.ruled_out:
        return ["Who refused before it was not recorded yet when it was bought."]
    return []


# --- a job -----------------------------------------------------------------------------------------------------


def job_story(scene: Scene, job_id: str, last: int = LAST["job"]) -> Story:
    job = scene.fleet.jobs[job_id]
    kept, left_out = newest(in_order([*_job_lines(scene, job), *_held_lines(scene, job)]), last)
    return Story(
        about="job",
        subject=job_id,
        title=f"Job {job_id}: {job.state}{f', {job.phase}' if job.phase and not is_over(job.state) else ''}",
        facts=_job_facts(scene, job),
        lines=tuple(kept),
        notes=(*cut_notes(scene, left_out), *_job_notes(scene, job)),
    )


def _job_facts(scene: Scene, job: JobRecord) -> tuple[tuple[str, str], ...]:
    spec, open_ = job.spec, not is_over(job.state)
    asks = f"{spec.min_workers}..{spec.max_workers} workers of {Shape.of(spec.worker_resources, spec.worker_labels)}"
    holding = _amounts(add_up(job.holdings.values()))
    holds = _holds_of(scene, job)
    rests = open_ and (target := scene.plan.targets.get(job.job_id) if scene.plan else None) and target.replicas == 0
    waits = "; ".join(f"{hold.subject}: {hold.reason}" for hold in holds)
    return facts(
        ("asks for", asks if spec.max_workers else "what it asks Ray for itself"),
        ("workers", str(job.workers) if open_ and (job.workers or spec.max_workers) else ""),
        ("rests", (holds[0].reason if holds else "nothing is granted for now") if rests else ""),
        ("waits for", waits if open_ and not rests else ""),
        ("holds", f"{holding} on {names_text(sorted(job.holdings))}" if job.holdings else "nothing"),
        ("not larger", _why_not_larger(scene, job) if open_ and not rests else ""),
        ("contract", scene.fleet.courses.get(job.job_id, "") if open_ else ""),
        ("last save", f"step {job.checkpoint_step}" if job.checkpoint_step is not None else ""),
        ("cost so far", f"{format_usd(scene.costs.by_job.get(job.job_id, 0))}{scene.note}"),
        ("reason", job.reason),
    )


def _why_not_larger(scene: Scene, job: JobRecord) -> str:
    """The first that is on record: it has all, it may not, it is held back, its nodes are on the way."""
    if not job.spec.max_workers:
        return ""  # what such a job could use is known to itself alone
    if job.workers >= job.spec.max_workers:
        return "it has all the workers that it asked for"
    grants = [event for event in scene.decisions if (event.action, event.subject) == ("grant", job.job_id)]
    target = scene.plan.targets.get(job.job_id) if scene.plan else None
    if grants and target and job.workers >= target.workers:
        return f"it is allowed {grants[-1].reason}"
    if held := _holds_of(scene, job):
        return held[0].reason
    bought = {event.subject for event in _bought_for(scene, job)}
    if coming := [node.launch_id for node in coming_of(scene.fleet) if node.launch_id in bought]:
        return f"nodes for it are on the way: {names_text(coming)}"
    granted = f"; it is allowed {grants[-1].reason}" if grants else ""
    return f"nothing on record holds it back: its workers are starting, or it has not asked yet{granted}"


def _bought_for(scene: Scene, job: JobRecord) -> list[DecisionRecorded]:
    return [e for e in scene.decisions if e.action == "launch" and job.job_id in _jobs_in(e.jobs, e.reason)]


def _holds_of(scene: Scene, job: JobRecord) -> list[Hold]:
    holds = scene.plan.holds if scene.plan else []
    return [hold for hold in holds if job.job_id in _jobs_in(hold.jobs, hold.subject)]


def _job_lines(scene: Scene, job: JobRecord) -> list[StoryLine | None]:
    lines: list[StoryLine | None] = []
    shown: tuple[object, ...] = ()
    for event in scene.events:
        if not isinstance(event, PhaseChanged):
            lines.append(_job_line(event, job))
        elif event.phase is not Phase.CHECKPOINTING and shown != (event.attempt, event.phase, event.workers):
            # Reports may come twice, and saves interrupt the training all the time: neither is a change.
            shown = (event.attempt, event.phase, event.workers)
            what = f"{event.phase} with {count_text(event.workers, 'worker')}, attempt {event.attempt}"
            lines.append(StoryLine(at_s=event.at_s, what=what, reason=event.reason))
    return [*lines, *launch_lines(_bought_for(scene, job), scene)]


def _job_line(event: AnyEvent, job: JobRecord) -> StoryLine | None:
    match event:
        case JobSubmitted():
            sent = "seen: it was sent past us" if event.foreign else f"submitted by {event.spec.tenant}"
            return StoryLine(at_s=event.at_s, what=sent, reason=event.spec.entrypoint)
        case JobStateChanged():
            return StoryLine(at_s=event.at_s, what=str(event.state), reason=event.reason)
        case JobPlaced() | MoveRequested():
            return StoryLine(at_s=event.at_s, what=_place_text(event), reason=event.reason)
        case BudgetChanged():
            return StoryLine(at_s=event.at_s, what=f"budget: it may cost {format_usd(event.budget_uusd)} in all now")
        case DecisionRecorded(action="budget") if event.subject == job.job_id:
            return StoryLine(at_s=event.at_s, what="budget", reason=event.reason)
        case DecisionRecorded(action="unsaved") if event.subject == job.job_id:
            return StoryLine(at_s=event.at_s, what="not saved", reason=event.reason)
        case DecisionRecorded(action="grant" | "contract") if event.subject == job.job_id:
            line = StoryLine(at_s=event.at_s, what=_DONE[event.action], reason=event.reason)
            return with_others(line, event.alternatives)
        case DecisionRecorded(action="hold") if job.job_id in _jobs_in(event.jobs, event.subject):
            return hold_line(event.subject, event.reason, event.alternatives, event.at_s)
        case _:
            return None


def _place_text(event: JobPlaced | MoveRequested) -> str:
    if isinstance(event, JobPlaced):
        return f"placed in {event.cell}"
    return "stays in its cell for now, where it was to leave it" if event.called_off else "is to leave its cell"


def _held_lines(scene: Scene, job: JobRecord) -> Iterator[StoryLine | None]:
    """What changed at one tick is one line: a job of a hundred nodes moves on all of them at once."""
    ours = (e for e in scene.events if isinstance(e, HoldingChanged) and e.job_id == job.job_id)
    since: dict[str, float] = {}
    for at_s, events in groupby(ours, key=lambda event: event.at_s):
        changes = {event.launch_id: event.resources for event in events}
        taken, left = ([name for name, held in changes.items() if bool(held) is wanted] for wanted in (True, False))
        if taken:
            amounts = _amounts(add_up(changes[name] for name in taken))
            yield StoryLine(at_s=at_s, what=f"holds {amounts} on {names_text(taken)}")
        if left:
            yield StoryLine(at_s=at_s, what=f"has left {names_text(left)}")
            yield from (_loss_line(scene, name, since.pop(name, at_s), at_s) for name in left)
        since |= {name: since.get(name, at_s) for name in taken}
    yield from (_loss_line(scene, name, from_s, scene.now_s) for name, from_s in since.items())


def _loss_line(scene: Scene, launch_id: str, from_s: float, until_s: float) -> StoryLine | None:
    """A node that the job was on when it went. One that the job had left in time is no loss."""
    node = scene.fleet.nodes.get(launch_id)
    if node is None or node.end not in _TAKEN or node.ended_at_s is None or not from_s <= node.ended_at_s <= until_s:
        return None
    notice = "with notice" if node.notice_deadline_s is not None else "without notice"
    return StoryLine(at_s=node.ended_at_s, what=f"lost node {launch_id}: {node.end}, {notice}", reason=node.detail)


def _job_notes(scene: Scene, job: JobRecord) -> list[str]:
    """Ray's queue does not say whose a task is; what a job with workers of its own asks for is known by its name."""
    holds = scene.plan.holds if scene.plan else []
    nameless = [hold for hold in holds if not hold.jobs and hold.subject.endswith("(tasks and actors)")]
    if is_over(job.state) or not nameless or job.spec.max_workers:
        return []
    return [f"What is held back without a name may be its own ({len(nameless)}): `tradewind why now`"]


# --- words -----------------------------------------------------------------------------------------------------


def launch_lines(events: Iterable[DecisionRecorded], scene: Scene, lead: str = "") -> Iterator[StoryLine]:
    """Nodes of one market that were bought for the same reason one after the other are one line. A try that was
    refused stands in the line of the try after it."""
    nodes = scene.fleet.nodes
    final = [event for event in events if event.subject not in scene.superseded and event.subject in nodes]
    for (offered, detail, *_), alike in groupby(final, key=lambda event: bought_as(event, nodes[event.subject])):
        first, *more = alike
        names = names_text([first.subject, *(event.subject for event in more)])
        what = f"{lead}asked for {names}, {offered}{f' ({detail})' if detail else ''}"
        yield _with_rivals(StoryLine(at_s=first.at_s, what=what, reason=first.reason), first, scene.fleet)


def bought_as(event: DecisionRecorded, node: NodeRecord) -> tuple[str, str, str, int]:
    refused = node.detail if node.state is NodeState.FAILED else ""
    return offer_text(node.offer), refused, event.reason, round(event.at_s / 60)


def hold_line(subject: str, reason: str, ruled_out: tuple[str, ...], at_s: float | None) -> StoryLine:
    if reason == DRY_RUN and ruled_out:  # not held back by anything: it begins with why it would be done
        return with_others(StoryLine(at_s=at_s, what=subject, reason=f"{DRY_RUN}; {ruled_out[0]}"), ruled_out[1:])
    return StoryLine(at_s=at_s, what=f"held back {subject}", reason=reason, ruled_out=ruled_out)


def _jobs_in(jobs: Sequence[str], text: str) -> list[str]:
    """By the field, and by the words: a need is written as "2 x {GPU: 1} (job NAME)"."""
    return list(dict.fromkeys([*jobs, *re.findall(r"\bjob ([^\s,;()]+)", text)]))


def coming_of(fleet: FleetState) -> list[NodeRecord]:
    return [node for node in fleet.alive_nodes if node.state in (NodeState.REQUESTED, NodeState.BOOTING)]


def cut_notes(scene: Scene, left_out: int) -> list[str]:
    notes = [f"{count_text(left_out, 'earlier line')} left out: `--last N` shows more."] if left_out else []
    if scene.is_cut:
        when = datetime.fromtimestamp(scene.events[0].at_s)
        notes.append(f"There are too many events: those before {when:%Y-%m-%d %H:%M:%S} were not read.")
    return notes


def _amounts(resources: Mapping[str, float]) -> str:
    return str(Shape.of(resources))
