"""A controller in memory with training jobs that heed what they are granted: the real journal, agent, loop and
coordinators; Ray, the cloud and the training itself are fakes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tradewind.agent import Agent
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.cells.cell import Cell
from tradewind.controller import Controller
from tradewind.events import AnyEvent
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.jobs.coordinator import Coordinator
from tradewind.jobs.sizing import rests
from tradewind.journal import Journal
from tradewind.model import JobSpec, Phase, Target, Wish
from tradewind.states import is_over
from tradewind.store import EventLog

GPU = {"GPU": 1.0}
OFFER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.36, cpus=4, gpus=1)

SETTINGS = LoopSettings(
    fleet="test",
    idle_timeout_s=20.0,
    min_node_life_s=1.0,
    drain_grace_s=1.0,
    market=MarketSettings(handover_deadline_s=5.0),  # who loses something by a drain loses it soon
)


@dataclass
class Head:
    gcs_address: str = "127.0.0.2:20379"
    dashboard_url: str = "http://127.0.0.1:8265"
    env: dict[str, str] = field(default_factory=dict)
    alive: bool = True


@dataclass
class Trainee:
    """One job with one worker: a step a second, as ray_train.py and member.py have it."""

    job_id: str
    coordinator: Coordinator
    ray: FakeRay
    step: int = 0
    saved: int = 0
    storage_works: bool = True
    works: bool = False  # it has its worker
    lost_steps: int = 0  # that were not saved when its worker went
    kept_steps: list[int] = field(default_factory=list)  # where it went on, each time

    def second(self) -> None:
        target = asyncio.run(self.coordinator.look())["target"]
        if self.works and not self.ray.nodes_of(self.job_id):
            self._lose()
        if rests(Target(**target) if target else None):
            self._rest()
        elif self.works:
            self.step += 1
            self._tell(Phase.TRAINING)
            asyncio.run(self.coordinator.committed(1, 1, 0.0, 1.0, self.step, self.step, 8, 0.5))
        elif self.ray.nodes_of(self.job_id):
            self.works, self.step = True, self.saved
            self.kept_steps.append(self.step)
            self._tell(Phase.TRAINING)
        elif not any(work.job_id == self.job_id for work in self.ray._work):
            self.ray.submit(GPU, job_id=self.job_id)
            self._tell(Phase.STARTING)

    def end(self) -> None:
        """Its driver was killed."""
        self._lose() if self.works else None
        self.ray.finish(self.job_id)

    def _rest(self) -> None:
        if self.works and not self.storage_works:
            asyncio.run(self.coordinator.phase(Phase.TRAINING.value, "the disk is full", 1))
            return
        if self.works:
            self.saved, self.works = self.step, False
        self.ray.finish(self.job_id)
        self._tell(Phase.RESTING)

    def _lose(self) -> None:
        self.lost_steps += self.step - self.saved
        self.works = False
        self._tell(Phase.RESTARTING)

    def _tell(self, phase: Phase) -> None:
        asyncio.run(self.coordinator.phase(phase.value, "", int(self.works)))


class Losing(FakeCoordinators):
    """The next orders do not arrive; nobody hears of it, since nobody waits for an answer."""

    loses = 0

    def set_target(self, job_id: str, target: Target) -> bool:
        if self.loses and job_id in self.by_job:
            self.loses -= 1
            return True
        return super().set_target(job_id, target)


@dataclass
class Watch:
    """The controller's own clock, which may be set; the cloud's goes on as it did."""

    world: FakeClock
    ahead_s: float = 0.0

    def now_s(self) -> float:
        return self.world.now_s() + self.ahead_s

    def steady_s(self) -> float:
        return self.world.steady_s()

    def sleep(self, duration_s: float) -> None:
        self.world.sleep(duration_s)


class Killed(BaseException):
    """The controller's process is no more."""


class GrantWorld:
    def __init__(self, folder: Path, jobs: int) -> None:
        self.folder, self.clock = folder, FakeClock(time.time())
        self.watch = Watch(self.clock)
        self.cloud, self.jobs, self.coordinators = FakeCloud(self.clock, [OFFER]), FakeJobs(), Losing()
        self.ray, self.jobs.obeys = FakeRay(self.clock, [self.cloud]), True
        self.resting: dict[str, str] = {}
        self.trainees: dict[str, Trainee] = {}
        self.kill_in: int | None = None  # records; of an odd number, the last is not written any more
        self.open()
        for _ in range(jobs):
            self._submit()

    def open(self) -> None:
        """A controller starts; again after a crash at any point."""
        self.journal = Journal.load(EventLog.open(self.folder / "events.db"))
        fleet = self.journal.fleet.cell("local")
        agent = Agent("g", "d", self.folder, self._record, fleet, steady_s=self.clock.steady_s)
        agent.jobs, agent.coordinators = self.jobs, self.coordinators
        loop = Loop(
            clock=self.watch,
            record=self._record,
            fleet=fleet,
            ray=self.ray,
            providers={"gcp": self.cloud},
            prices=self.cloud,
            settings=SETTINGS,
            wishes=agent.wishes,
        )
        loop.resting = lambda: dict(self.resting)
        self.cell = Cell("local", "local", "here", Head(), agent, loop, {"gcp": self.cloud})  # type: ignore[arg-type]
        self.controller = Controller("test", self.journal, {"local": self.cell}, self.folder / "logs", 0.02)

    def _record(self, *events: AnyEvent) -> None:
        for event in events:
            if self.kill_in is not None and self.kill_in // 2 == 0:
                is_written, self.kill_in = self.kill_in % 2 == 0, None
                self.journal.record(*([event] if is_written else []))
                raise Killed
            self.kill_in = self.kill_in - 2 if self.kill_in is not None else None
            self.journal.record(event)

    def close(self) -> None:
        self.journal.log.close()

    def _submit(self) -> None:
        spec = JobSpec("train", "python train.py", min_workers=1, max_workers=1, worker_resources=GPU)
        job_id = self.controller.submit(spec).job_id
        self.controller._tick(self.cell)
        self.jobs.move(job_id, "RUNNING")
        coordinator = self.coordinators.start(job_id)
        asyncio.run(coordinator.declare(asdict(Wish(job_id, 1, 1, GPU))))
        self.trainees[job_id] = Trainee(job_id, coordinator, self.ray)

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for job_id, trainee in list(self.trainees.items()):
                if self.jobs.rows[job_id].status == "STOPPED":
                    trainee.end()
                    self.coordinators.by_job.pop(job_id, None)
                    del self.trainees[job_id]
                else:
                    trainee.second()
            try:
                self.controller._tick(self.cell)
            except Killed:
                self.close()
                self.open()
            self.clock.sleep(1.0)

    def is_over(self, job_id: str) -> bool:
        return is_over(self.journal.fleet.jobs[job_id].state)

    @property
    def events(self) -> list[AnyEvent]:
        return [event for _, event in self.journal.log.read()]
