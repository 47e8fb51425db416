"""A world without a loop: one job, one worker, scripted markets and a virtual clock. Nodes, refusals and steps are
events that the test writes itself; the decisions come from the same `Pilot` as on a fleet."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from contract_world import GPU, JOB, SETTINGS, Closed, H

from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.market import MarketMemory
from tradewind.autoscaler.pilot import Pilot
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.steer import Steer
from tradewind.autoscaler.view import NodeView, View
from tradewind.errors import Stockout
from tradewind.events import (
    AnyEvent,
    CheckpointCommitted,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    PhaseChanged,
    StepCommitted,
)
from tradewind.model import Contract, EndReason, JobSpec, Offer, Phase, Wish
from tradewind.states import JobState, NodeState

WISH = Wish(JOB, 1, 1, GPU, can_move=True)


@dataclass
class Sim:
    work_h: float
    contract: Contract
    closed: Closed
    offers: Sequence[Offer]
    tick_s: float = 20.0
    boot_s: float = 12.0
    start_s: float = 30.0
    step_s: float = 10.0
    now_s: float = 1_000_000.0
    fleet: FleetState = field(default_factory=FleetState)
    pilot: Pilot = field(default_factory=Pilot)
    told: list[tuple[float, str]] = field(default_factory=list)  # when, and the reason

    def __post_init__(self) -> None:
        self.began_s, self.left = self.now_s, round(self.work_h * H / self.step_s)
        self.total, self.ready_s, self.saved = self.left, float("inf"), 0
        self.attempt = 0
        self.ended_s: float | None = None
        self._numbers, self._sequence = itertools.count(1), itertools.count(1)
        deadline_s = self.contract.deadline_at_s
        contract = replace(self.contract, deadline_at_s=None if deadline_s is None else self.now_s + deadline_s)
        spec = JobSpec(JOB, "x", min_workers=1, max_workers=1, worker_resources=GPU, contract=contract)
        self.see(JobSubmitted(at_s=self.now_s, job_id=JOB, spec=spec))
        self.see(JobStateChanged(at_s=self.now_s, job_id=JOB, state=JobState.RUNNING))

    def see(self, *events: AnyEvent) -> None:
        for event in events:
            self.fleet.apply(event)

    def run(self, until_s: float) -> Sim:
        while self.ended_s is None and self.now_s - self.began_s < until_s:
            self._weather()
            steer = self._decide()
            if steer is not None:
                self._act(steer)
            self._train()
            self.now_s += self.tick_s
        return self

    # --- the world ----------------------------------------------------------------------------------------------

    def _is_closed(self, key: str) -> bool:
        at_s = self.now_s - self.began_s
        return any(start <= at_s < end for start, end in self.closed.get(key, ()))

    def _weather(self) -> None:
        for node in self.fleet.alive_nodes:
            if self._is_closed(node.offer.market.key):
                if node.launch_id in self.fleet.jobs[JOB].holdings:
                    self.left = self.total - self.saved
                self._leave(node)
                self.see(NodeGone(at_s=self.now_s, launch_id=node.launch_id, end=EndReason.PREEMPTED))
            elif node.state is NodeState.BOOTING and self.now_s >= node.requested_at_s + self.boot_s:
                self.see(NodeJoined(at_s=self.now_s, launch_id=node.launch_id, ray_node_id=node.launch_id))

    def _leave(self, node: NodeRecord) -> None:
        if node.launch_id in self.fleet.jobs[JOB].holdings:
            self.see(HoldingChanged(at_s=self.now_s, job_id=JOB, launch_id=node.launch_id))
            self.ready_s, self.attempt = float("inf"), self.attempt + 1
            self._say(PhaseChanged, phase=Phase.STARTING, workers=0)

    def _come(self, node: NodeRecord) -> None:
        self.see(HoldingChanged(at_s=self.now_s, job_id=JOB, launch_id=node.launch_id, resources=GPU))
        self.ready_s, self.attempt = self.now_s + self.start_s, self.attempt + 1
        self._say(PhaseChanged, phase=Phase.STARTING, workers=1)

    def _view(self) -> View:
        held = self.fleet.jobs[JOB].holdings
        nodes = tuple(NodeView(node, ray=_ray(node, node.launch_id in held)) for node in self.fleet.alive_nodes)
        return View(
            self.now_s,
            SETTINGS,
            nodes,
            RaySnapshot(holdings={(JOB, name): GPU for name in held}),
            offers=tuple(self.offers),
            memory=MarketMemory.of(self.fleet, self.now_s),
            wishes=(WISH,),
            knowledge=Knowledge.of(self.fleet.experience, self.now_s, 0.1, SETTINGS.usual_boot_s),
        )

    # --- the fleet ----------------------------------------------------------------------------------------------

    def _decide(self) -> Steer | None:
        self.pilot.look(self._view(), self.fleet, {}, {})
        steer = self.pilot.courses[JOB].steer
        if not self.told or self.told[-1][1].split(": ")[0] != steer.what:
            self.told.append((self.now_s - self.began_s, steer.reason))
        return steer

    def _act(self, steer: Steer) -> None:
        alive = self.fleet.alive_nodes
        right = [node for node in alive if node.launch_id not in steer.misplaced and _allows(steer, node.offer)]
        ready = [node for node in right if node.state is NodeState.READY]
        if not steer.waits and not right:
            self._buy(steer)
        if steer.waits or ready:
            for node in [node for node in alive if node not in right]:
                self._leave(node)
                self.see(NodeGone(at_s=self.now_s, launch_id=node.launch_id, end=EndReason.TERMINATED))
        if ready and not self.fleet.jobs[JOB].holdings and not steer.waits:
            self._come(ready[0])

    def _buy(self, steer: Steer) -> None:
        """A refusal is answered in the same tick by the next best offer of those that are allowed."""
        for offer in sorted(self.offers, key=lambda offer: offer.price_uusd_per_h or 0):
            if not _allows(steer, offer) or MarketMemory.of(self.fleet, self.now_s).block_of(offer, self.now_s):
                continue
            name, at_s = f"n{next(self._numbers)}", self.now_s
            self.see(LaunchRequested(at_s=at_s, launch_id=name, offer=offer, reason="", jobs=(JOB,)))
            if not self._is_closed(offer.market.key):
                self.see(NodeLaunched(at_s=at_s, launch_id=name, instance_id=name))
                return
            block_s, scope = Stockout.block_s, Stockout.scope
            told = {"error": "Stockout", "message": "", "scope": scope, "block_s": block_s}
            self.see(LaunchRefused(at_s=at_s, launch_id=name, **told))  # type: ignore[arg-type]

    # --- the job ------------------------------------------------------------------------------------------------

    def _train(self) -> None:
        if self.now_s < self.ready_s or not self.fleet.jobs[JOB].holdings:
            return
        if self.fleet.jobs[JOB].phase is not Phase.TRAINING:
            self._say(PhaseChanged, phase=Phase.TRAINING, workers=1)
        steps, first = min(round(self.tick_s / self.step_s), self.left), self.total - self.left + 1
        self.left -= steps
        self._say(
            StepCommitted,
            began_s=self.now_s - self.tick_s,
            first_step=first,
            last_step=first + steps - 1,
            workers=1,
            samples=1,
            total_steps=self.total,
        )
        if self.total - self.left - self.saved >= 10:
            self.saved = self.total - self.left
            self._say(CheckpointCommitted, step=self.saved, path="x", duration_s=0.1)
        if not self.left:
            self.ended_s = self.now_s - self.began_s

    def _say(self, kind: type, **words: object) -> None:
        self.see(kind(at_s=self.now_s, job_id=JOB, sequence=next(self._sequence), attempt=self.attempt, **words))


def _allows(steer: Steer, offer: Offer) -> bool:
    return all(offer.labels.get(name) == value for name, value in steer.labels.items())


def _ray(node: NodeRecord, is_held: bool) -> RayNode | None:
    if node.state is not NodeState.READY:
        return None
    total = {"CPU": 4.0, "GPU": 1.0}
    free = {"CPU": 3.0, "GPU": 0.0} if is_held else total
    status = RayStatus.RUNNING if is_held else RayStatus.IDLE
    return RayNode(node.launch_id, node.launch_id, status, total, free, node.offer.labels)
