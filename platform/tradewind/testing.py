"""A controller in memory, for tests of whatever speaks to one: server, SDK, CLI, dashboard, your own tools.

It folds real events through the real state tables, so it refuses what the real one refuses; it starts nothing.
`python -m tradewind.testing --home H --fleet F` serves one as a process, in the place of `tradewind.controller`.
"""

from __future__ import annotations

import io
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tradewind import __version__
from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    About,
    EventLine,
    FleetStatus,
    ForecastReport,
    JobInfo,
    LogChunk,
    NodeInfo,
    ShutdownReport,
    Story,
    job_not_found,
    node_not_found,
    pick,
)
from tradewind.api_requests import ResumeRequest
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import JobNotFound, NotFound
from tradewind.events import (
    AnyEvent,
    ControllerStarted,
    DecisionRecorded,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    StepCommitted,
)
from tradewind.forecast_view import ForecastDesk, Question
from tradewind.home import FleetHome
from tradewind.logfile import read_chunk, tail_offset
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.states import JobState, is_alive, is_over
from tradewind.views import decision_line, event_line, job_info, node_info, picked
from tradewind.why import Scene
from tradewind.why_told import story

SPOT_A100 = Offer(
    Market("aws", "us-east-1", "us-east-1a", "p4d.24xlarge", Capacity.SPOT),
    vcpus=96,
    memory_gib=1152,
    accelerator="A100",
    accelerator_count=8,
    price_uusd_per_h=9_830_000,
    on_demand_uusd_per_h=32_770_000,
)


class FakeController:
    """Implements api.ControllerPort. The methods below the line are for the test: they make things happen."""

    def __init__(self, fleet: str = "fake", *, now_s: float | None = None) -> None:
        self._fleet_name = fleet
        self._now_s = now_s  # a fixed time, or (None) the real one
        self._began_s = time.time() if now_s is None else now_s
        self._state = FleetState()
        self._history: list[AnyEvent] = []
        self._events: list[EventLine] = []
        self._decisions: list[DecisionRecorded] = []
        self._logs: dict[str, bytes] = {}
        self._news = threading.Condition()
        self._desk = ForecastDesk()
        self._broken: Exception | None = None
        self._reports = 0  # of all coordinators, as their sequence
        self.left_behind: tuple[str, ...] = ()  # what shutdown will say is left
        self.dry_run = False
        self.ended = threading.Event()
        self.record(
            ControllerStarted(at_s=self.now_s, fleet=fleet, pid=os.getpid(), version=__version__, simulated=True)
        )

    @property
    def now_s(self) -> float:
        return time.time() if self._now_s is None else self._now_s

    # --- ControllerPort ------------------------------------------------------------------------------------------

    def status(self) -> FleetStatus:
        with self._news:
            self._check()
            alive = tuple(self._node(launch_id) for launch_id in self._state.nodes if self._is_alive(launch_id))
            return FleetStatus(
                fleet=self._fleet_name,
                version=__version__,
                simulated=True,
                uptime_s=self.now_s - self._began_s,
                ray_address="127.0.0.2:20379",
                nodes=alive,
                jobs=tuple(job_info(job) for job in self._state.jobs.values()),
                price_uusd_per_h=sum(node.price_uusd_per_h or 0 for node in alive),
                decisions=tuple(decision_line(event) for event in self._decisions),
                dry_run=self.dry_run,
            )

    def jobs(self) -> Sequence[JobInfo]:
        with self._news:
            self._check()
            return [job_info(job) for job in self._state.jobs.values()]

    def job(self, job_id: str) -> JobInfo:
        with self._news:
            self._check()
            return job_info(self._known(pick(job_id, self._state.jobs, job_not_found)))

    def submit(self, spec: JobSpec) -> JobInfo:
        with self._news:
            self._check()
            job_id = f"{spec.name}-{len(self._state.jobs) + 1}"
            self._logs[job_id] = b""
            self.record(JobSubmitted(at_s=self.now_s, job_id=job_id, spec=spec))
            return self.job(job_id)

    def stop(self, job_id: str) -> JobInfo:
        with self._news:
            if not is_over(self._known(job_id).state):
                self.move(job_id, JobState.STOPPING, "asked to stop")
                self.move(job_id, JobState.STOPPED, "asked to stop")
            return self.job(job_id)

    def resume(self, job_id: str, request: ResumeRequest) -> JobInfo:
        from tradewind.budgets import resumption

        with self._news:
            found = resumption(self._known(job_id), self._ledger(), request, self.now_s)
            if isinstance(found, JobSpec):
                return self.submit(found)
            self.record(found)
            return self.job(job_id)

    def logs(self, job_id: str, *, offset: int = 0, tail: int | None = None, wait_s: float = 0.0) -> LogChunk:
        with self._news:
            self._known(job_id)
            if tail is not None:
                offset = tail_offset(io.BytesIO(self._logs[job_id]), tail)
            self._news.wait_for(lambda: len(self._logs[job_id]) > offset or self._is_over(job_id), wait_s)
            return read_chunk(io.BytesIO(self._logs[job_id]), offset, over=self._is_over(job_id))

    def receipt(self, job_id: str) -> dict[str, Any]:
        with self._news:
            self._known(job_id)
            from tradewind.cost.receipt import receipt

            return _json(receipt(self._ledger(), job_id, self.now_s))

    def bill(self) -> dict[str, Any]:
        with self._news:
            self._check()
            from tradewind.cost.receipt import bill

            return _json(bill(self._ledger(), self.now_s))

    @contextmanager
    def ledger(self) -> Iterator[tuple[Any, float]]:
        with self._news:
            self._check()
            yield self._ledger(), self.now_s

    def events(self, *, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> Sequence[EventLine]:
        with self._news:
            self._check()
            self._news.wait_for(lambda: len(self._events) > after, wait_s)
            return self._events[after : after + limit]

    def nodes(self) -> Sequence[NodeInfo]:
        with self._news:
            self._check()
            return [self._node(launch_id) for launch_id in self._state.nodes]

    def why(self, about: About, subject: str = "", last: int | None = None) -> Story:
        """The real stories, over the events that it was given."""
        with self._news:
            self._check()
            scene = Scene(self._state, self.now_s, self._history)
            return story(scene, about, picked(self._state, about, subject) or self._fleet_name, last)

    def node_log(self, launch_id: str) -> str:
        with self._news:
            self._check()
            return f"console of {pick(launch_id, self._state.nodes, node_not_found)}\n"

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """The real one, over the events that it was given; nothing is bought ahead."""
        with self._news:
            self._check()
            self._desk.read(enumerate(self._history, start=1))
            return self._desk.report(Question(self.now_s, LoopSettings(self._fleet_name), what, hours, most))

    def preempt(self, target: str, notice_s: float | None) -> Sequence[str]:
        with self._news:
            self._check()
            found = [node.launch_id for node in self._state.alive_nodes if _matches(target, node.launch_id, node.offer)]
            if not found:
                raise NotFound(f"no node or market matches {target}", "`tradewind nodes` lists them")
            for launch_id in found:
                self._take(launch_id, notice_s)
            return found

    def shutdown(self) -> ShutdownReport:
        with self._news:
            self._check()
            jobs = [job.job_id for job in self._state.open_jobs]
            for job_id in jobs:
                self.stop(job_id)
            nodes = [node.launch_id for node in self._state.alive_nodes]
            for launch_id in nodes:
                self.record(NodeGone(at_s=self.now_s, launch_id=launch_id, end=EndReason.TERMINATED))
            self.ended.set()
            return ShutdownReport(
                jobs_stopped=tuple(jobs),
                nodes_ended=tuple(nodes),
                left=self.left_behind,
                simulated=True,
                fleet=self._fleet_name,
            )

    # --- for the test --------------------------------------------------------------------------------------------

    def record(self, *events: AnyEvent) -> None:
        with self._news:
            for event in events:
                self._state.apply(event)
                self._history.append(event)
                self._events.append(event_line(len(self._events) + 1, event))
                if isinstance(event, DecisionRecorded):
                    self._decisions.append(event)
            self._news.notify_all()

    def break_with(self, error: Exception | None) -> None:
        """Every call fails so from now on; None heals it."""
        self._broken = error

    def move(self, job_id: str, state: JobState, reason: str = "") -> None:
        self.record(JobStateChanged(at_s=self.now_s, job_id=job_id, state=state, reason=reason))

    def run(self, job_id: str, workers: int = 2) -> None:
        self.move(job_id, JobState.RUNNING)
        self._reports += 1
        self.record(
            PhaseChanged(
                at_s=self.now_s,
                job_id=job_id,
                attempt=1,
                sequence=self._reports,
                phase=Phase.TRAINING,
                workers=workers,
            )
        )

    def step(self, job_id: str, step: int, total_steps: int | None = None, loss: float | None = None) -> None:
        self._reports += 1
        self.record(
            StepCommitted(
                at_s=self.now_s,
                job_id=job_id,
                attempt=1,
                sequence=self._reports,
                began_s=self.now_s,
                first_step=step,
                last_step=step,
                workers=self._state.jobs[job_id].workers,
                samples=1,
                total_steps=total_steps,
                loss=loss,
            )
        )

    def print(self, job_id: str, text: str | bytes) -> None:
        """What the job prints."""
        with self._news:
            self._logs[job_id] += text.encode() if isinstance(text, str) else text
            self._news.notify_all()

    def add_node(self, launch_id: str, offer: Offer = SPOT_A100, job_id: str | None = None) -> None:
        """A node that has joined, held by this job."""
        at_s = self.now_s
        self.record(
            LaunchRequested(at_s=at_s, launch_id=launch_id, offer=offer, reason="cheapest that fits"),
            NodeLaunched(at_s=at_s, launch_id=launch_id, instance_id=f"i-{launch_id}"),
            NodeJoined(at_s=at_s, launch_id=launch_id, ray_node_id=launch_id.encode().hex()),
        )
        if job_id:
            self.record(HoldingChanged(at_s=at_s, job_id=job_id, launch_id=launch_id, resources={"GPU": 1.0}))

    # --- inside --------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._broken is not None:
            raise self._broken

    def _known(self, job_id: str) -> JobRecord:
        self._check()
        if job_id not in self._state.jobs:
            raise JobNotFound(f"there is no job {job_id}")
        return self._state.jobs[job_id]

    def _ledger(self) -> Any:
        from tradewind.cost.ledger import Ledger

        return Ledger.fold(self._history)

    def _is_over(self, job_id: str) -> bool:
        return is_over(self._known(job_id).state)

    def _is_alive(self, launch_id: str) -> bool:
        return is_alive(self._state.nodes[launch_id].state)

    def _node(self, launch_id: str) -> NodeInfo:
        return node_info(self._state.nodes[launch_id], self._state.jobs.values())

    def _take(self, launch_id: str, notice_s: float | None) -> None:
        if notice_s is None:
            self.record(NodeGone(at_s=self.now_s, launch_id=launch_id, end=EndReason.PREEMPTED))
        else:
            self.record(NoticeReceived(at_s=self.now_s, launch_id=launch_id, deadline_s=self.now_s + notice_s))


def _matches(target: str, launch_id: str, offer: Offer) -> bool:
    return target == launch_id or fnmatch(offer.market.key, target)


def _json(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return found


@contextmanager
def served(place: FleetHome, fake: FakeController | None = None) -> Iterator[FakeController]:
    """A fake behind the real HTTP server, announced and guarded like a real controller. For `with`."""
    from tradewind.server import create_app, serve

    found = fake or FakeController(place.fleet)
    with serve(create_app(found, place.make_token())) as running:
        place.announce(running.url, os.getpid(), __version__)
        try:
            yield found
        finally:
            place.withdraw()


if __name__ == "__main__":
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    given = parser.parse_args()
    with served(FleetHome(given.home, given.fleet)) as controller:
        controller.dry_run = given.dry_run
        controller.ended.wait()
