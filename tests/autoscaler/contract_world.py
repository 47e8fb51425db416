"""A training job with a contract, on the real loop with pretend machines: what the tests of contracts share.

The market is a script: when which spot market has machines. Whoever is in one that closes loses his node. The job takes
steps while it has all its workers, hands over when it is told to, and saves now and then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import (
    CheckpointCommitted,
    DecisionRecorded,
    JobStateChanged,
    JobSubmitted,
    PhaseChanged,
    StepCommitted,
)
from tradewind.model import Capacity, Contract, JobSpec, Offer, Phase, Wish
from tradewind.states import JobState

H = 3600.0
SPOT = make_offer("aws/us-east-1a/g6", usd_per_h=0.30, cpus=4, gpus=1)
OTHER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.33, cpus=4, gpus=1)
DEAR = make_offer("aws/us-east-1a/g6", usd_per_h=1.00, cpus=4, gpus=1, capacity=Capacity.ON_DEMAND)
GPU = {"CPU": 1, "GPU": 1}
JOB = "train"
SETTINGS = LoopSettings(
    fleet="test", head_address="127.0.0.2:20379", idle_timeout_s=60, min_node_life_s=30, usual_boot_s=60
)
Closed = Mapping[str, Sequence[tuple[float, float]]]  # market key -> spells without machines, in seconds from the start


@dataclass
class Voyage:
    """`work_h` is what one worker needs in all."""

    work_h: float
    contract: Contract  # deadline in seconds from the start
    closed: Closed = field(default_factory=dict)
    workers: tuple[int, int] = (1, 1)
    offers: Sequence[Offer] = (SPOT, DEAR)
    tick_s: float = 20.0
    start_s: float = 30.0  # from having all workers to the first step
    step_s: float = 10.0  # of one worker
    settings: LoopSettings = SETTINGS
    can_move: bool = True
    reports: bool = True  # False: nothing is heard of its steps

    def __post_init__(self) -> None:
        self.world = World(self.offers, self.settings)
        self.cloud, self.ray = self.world.cloud, self.world.ray
        self.began_s = self.world.clock.now_s()
        self.total_steps = round(self.work_h * H / self.step_s)
        self.done = 0.0  # steps
        self.ended_s: float | None = None
        self._sequence = self._attempt = self._saved = 0
        self._on: frozenset[str] = frozenset()
        self._ready_s = 0.0
        self._asked = 0
        self._submit()

    def _submit(self) -> None:
        deadline_s = self.contract.deadline_at_s
        contract = replace(self.contract, deadline_at_s=None if deadline_s is None else self.began_s + deadline_s)
        low, high = self.workers
        spec = JobSpec(
            JOB, "python train.py", min_workers=low, max_workers=high, worker_resources=GPU, contract=contract
        )
        self.world.record(JobSubmitted(at_s=self.began_s, job_id=JOB, spec=spec))
        self.world.record(JobStateChanged(at_s=self.began_s, job_id=JOB, state=JobState.RUNNING))
        self.world.wishes = [Wish(JOB, low, high, GPU, can_move=self.can_move)]

    # --- time ---------------------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.world.clock.now_s() - self.began_s

    def run(self, until_s: float, restarts_s: Sequence[float] = ()) -> Voyage:
        waiting = sorted(restarts_s)
        while self.now_s < until_s and self.ended_s is None:
            if waiting and self.now_s >= waiting[0]:
                waiting.pop(0)
                self.world.start()
            self.tick()
        return self

    def tick(self) -> None:
        self._weather()
        self.world.loop.tick()
        self._ask()
        self.ray.hand_over(JOB)
        self._train()
        self.world.clock.sleep(self.tick_s)

    def _weather(self) -> None:
        for key, spells in self.closed.items():
            if any(start <= self.now_s < end for start, end in spells):
                self.cloud.sold_out.add(key)
                for node in self.cloud.alive():
                    if node.offer.market.key == key:
                        self.cloud.preempt(node.launch_id)
            else:
                self.cloud.sold_out.discard(key)

    def _ask(self) -> None:
        """Workers are asked of Ray as they are granted; who has more lets them go."""
        granted = self.world.loop.targets[JOB].workers
        if granted != self._asked:
            self.ray.finish(JOB)
            self.ray.submit(GPU, granted, job_id=JOB)
            self._asked = granted

    def _train(self) -> None:
        held = [each for each in self.ray._work if each.job_id == JOB and each.on]
        nodes, now_s = frozenset(each.on for each in held), self.world.clock.now_s()
        if nodes != self._on or len(held) < self._asked:
            self._lose(nodes, now_s, is_whole=len(held) == self._asked)
        elif now_s >= self._ready_s:
            self._step(len(held), now_s)

    def _lose(self, nodes: frozenset[str], now_s: float, is_whole: bool) -> None:
        """A job that moves to a node that is there hands over; one that was killed goes back to its last save."""
        if self._on and not is_whole:
            self.done = float(self._saved)
        self._on = nodes
        self._attempt += 1
        self._ready_s = now_s + self.start_s
        self._say(PhaseChanged, attempt=self._attempt, phase=Phase.STARTING, workers=len(nodes))

    def _step(self, workers: int, now_s: float) -> None:
        if self.world.fleet.jobs[JOB].phase is not Phase.TRAINING:
            self._say(PhaseChanged, attempt=self._attempt, phase=Phase.TRAINING, workers=workers)
        first = int(self.done) + 1
        self.done = min(self.done + self.tick_s * workers**0.85 / self.step_s, float(self.total_steps))
        if self.reports:
            self._say(
                StepCommitted,
                attempt=self._attempt,
                began_s=now_s - self.tick_s,
                first_step=first,
                last_step=int(self.done),
                workers=workers,
                samples=1,
                total_steps=self.total_steps,
            )
        if self.done - self._saved >= 10:
            self._saved = int(self.done)
            self._say(CheckpointCommitted, attempt=self._attempt, step=self._saved, path="x", duration_s=0.1)
        if self.done >= self.total_steps:
            self.ended_s = self.now_s
            self.world.record(JobStateChanged(at_s=now_s, job_id=JOB, state=JobState.SUCCEEDED))
            self.ray.finish(JOB)
            self.world.wishes = []

    def _say(self, kind: type, **words: object) -> None:
        self._sequence += 1
        at_s = self.world.clock.now_s()
        self.world.record(kind(at_s=at_s, job_id=JOB, sequence=self._sequence, **words))

    # --- what came of it ----------------------------------------------------------------------------------------

    @property
    def decisions(self) -> list[DecisionRecorded]:
        return [e for e in self.world.events if isinstance(e, DecisionRecorded) and e.action == "contract"]

    @property
    def choices(self) -> list[str]:
        return [event.reason.split(": ")[0] for event in self.decisions]

    def markets(self) -> set[str]:
        return {node.offer.market.key for node in self.cloud.alive()}

    def all_on_demand_s(self) -> float:
        """How long it takes where on-demand is launched at the first tick: boot, start, and steps."""
        boot_s = self.cloud.start_s + self.cloud.boot_s
        ticks = -(-boot_s // self.tick_s) + -(-self.start_s // self.tick_s) + 1
        return (ticks + -(-self.work_h * H // self.tick_s)) * self.tick_s
