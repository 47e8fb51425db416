"""A fleet of cells in memory: the real journal, router, cells, loops and lines, on clouds and Rays that are fakes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tradewind import __version__
from tradewind.agent import Agent
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.autoscaler.turn import Turn
from tradewind.autoscaler.view import HeadSettings, LoopSettings
from tradewind.cells.calls import Hello
from tradewind.cells.cell import Cell
from tradewind.cells.heads import RemoteHead
from tradewind.cells.line import Line
from tradewind.cells.route import Router
from tradewind.controller import Controller
from tradewind.events import AnyEvent
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.journal import Journal
from tradewind.model import Capacity, JobSpec, Offer, Role
from tradewind.states import JobState, NodeState
from tradewind.store import EventLog

GPU = {"CPU": 1, "GPU": 1}
TRAINING = JobSpec(
    name="train", entrypoint="python train.py", min_workers=1, max_workers=2, worker_resources=GPU, tenant="t"
)


def offers_at(cloud: str, zone: str, usd_per_h: float) -> tuple[Offer, ...]:
    head = make_offer(f"{cloud}/{zone}/m7", usd_per_h=0.2, cpus=4, capacity=Capacity.ON_DEMAND)
    return (make_offer(f"{cloud}/{zone}/gpu", usd_per_h=usd_per_h, cpus=4, gpus=1), head)


@dataclass
class Place:
    """One cell's world."""

    cell: Cell
    cloud: FakeCloud
    ray: FakeRay
    jobs: FakeJobs
    line: Line
    silent: bool = False  # the agent's machine lives, and is not heard

    @property
    def heads(self) -> list[str]:
        fleet = self.cell.fleet
        return [node.launch_id for node in fleet.alive_nodes if node.role is Role.HEAD]

    @property
    def workers(self) -> list[str]:
        return [node.launch_id for node in self.cell.fleet.alive_nodes if node.role is Role.WORKER]


class FleetWorld:
    """Cells by name; each has one GPU type and one for its head, at these prices."""

    def __init__(
        self,
        folder: Path,
        prices: Sequence[tuple[str, str, float]] = (("aws", "us-east-1a", 0.30), ("gcp", "us-central1-a", 0.50)),
        limits: Limits | None = None,
        move_after_s: float = 60.0,
        head: HeadSettings | None = None,
    ) -> None:
        self.folder, self.limits, self.move_after_s = folder, limits or Limits(), move_after_s
        self.head = head or HeadSettings(lost_s=120.0, boot_timeout_s=300.0)
        self.clock = FakeClock(time.time() - 36_000)
        self.prices = prices
        self.clouds = {(cloud, zone): FakeCloud(self.clock, offers_at(cloud, zone, usd)) for cloud, zone, usd in prices}
        self.rays = {key: FakeRay(self.clock, [cloud]) for key, cloud in self.clouds.items()}
        self.jobs = {key: FakeJobs() for key in self.clouds}
        self.open()

    def open(self) -> None:
        """A controller starts; again after a crash."""
        self.journal = Journal.load(EventLog.open(self.folder / "events.db"))
        self.turn, self.places = Turn(), dict[str, Place]()
        for cloud, zone, _ in self.prices:
            place = self._place(cloud, zone)
            self.places[place.cell.name] = place
        cells = {name: place.cell for name, place in self.places.items()}
        self.controller = Controller(
            "test", self.journal, cells, self.folder / "logs", 0.02, Router(self.move_after_s), simulated=False
        )

    def _place(self, cloud: str, zone: str) -> Place:
        key, name = (cloud, zone), f"{cloud}-{zone.rstrip('abc').rstrip('-')}"
        fleet, line = self.journal.fleet.cell(name), Line(name)
        agent = Agent("", "", "s3://bucket/run", self.journal.record, fleet, same_disk=False)
        agent.jobs, agent.coordinators = self.jobs[key], FakeCoordinators()
        loop = Loop(
            clock=self.clock,
            record=self.journal.record,
            fleet=fleet,
            ray=self.rays[key],
            providers={cloud: self.clouds[key]},
            prices=self.clouds[key],
            settings=LoopSettings(fleet="test", cell=name, head=self.head, limits=self.limits, min_node_life_s=20.0),
            wishes=agent.wishes,
            turn=self.turn,
            head_silent_s=lambda: 1e6 if self.places[name].silent else 0.0,
        )
        cell = Cell(name, cloud, zone[:-1], RemoteHead(line), agent, loop, {cloud: self.clouds[key]}, line)
        return Place(cell, self.clouds[key], self.rays[key], self.jobs[key], line)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            for place in self.places.values():
                self._agents_call(place)
                self.controller._tick(place.cell)
            self.clock.sleep(1.0)

    def later(self, seconds: float) -> None:
        """So much later, after a few looks."""
        self.clock.sleep(seconds)
        self.tick(4)

    def _agents_call(self, place: Place) -> None:
        """The agent on a head that has booted says hello; one whose machine is gone cannot."""
        booted = {node.launch_id for node in place.cloud.booted()} & set(place.heads)
        spoken = place.line.present.launch_id if place.line.present else ""
        for launch_id in booted - {spoken}:
            if launch_id == place.line.head and not place.silent:
                versions = {"tradewind": __version__}
                place.line.hello(Hello(launch_id, f"10.0.0.{len(place.heads)}:6379", versions=versions))
        spoken = place.line.present.launch_id if place.line.present else ""
        place.ray.is_down = spoken not in booted

    def settle(self, *names: str) -> None:
        """Until the heads of these cells are ready."""
        for _ in range(60):
            self.tick()
            if all(self.places[name].cell.head.alive for name in names or self.places):
                return
        raise AssertionError("no head came up")

    def run(self, job_id: str) -> str:
        """The job's driver runs and its workers hold what it asked for; returns the name of its cell."""
        for _ in range(60):
            self.tick()
            job = self.journal.fleet.jobs[job_id]
            place = self.places.get(job.cell)
            if place is None or not place.jobs.rows:
                continue
            newest = list(place.jobs.rows)[-1]
            if place.jobs.rows[newest].status == "PENDING":
                place.jobs.move(newest, "RUNNING")
                place.ray.submit(GPU, job_id=job_id)
            if job.holdings and job.state is JobState.RUNNING:
                return job.cell
        raise AssertionError("it does not run")

    @property
    def events(self) -> list[AnyEvent]:
        return [event for _, event in self.journal.log.read()]

    def alive(self, role: Role = Role.WORKER) -> list[str]:
        states = (NodeState.FAILED, NodeState.GONE)
        nodes = self.journal.fleet.nodes.values()
        return [node.launch_id for node in nodes if node.role is role and node.state not in states]
