"""The one place that wires clock, log, loop, provider, agent and ledger together, and answers for them.

It implements `ControllerPort` (api.py), which the server turns into HTTP. `service.py` starts and ends it as a process.
"""

from __future__ import annotations

import io
import logging
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from tradewind import __version__
from tradewind.agent import Agent
from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    About,
    DemandLine,
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
from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.autoscaler.providers.raylets import LocalHead
from tradewind.cost.receipt import Bill, Receipt, bill, receipt
from tradewind.errors import ConfigError, ControllerError, JobError, Problem, RayError, TradewindError
from tradewind.events import KINDS, ControllerStarted, ControllerStopped, JobStateChanged, JobSubmitted
from tradewind.forecast_view import ForecastDesk, Question
from tradewind.journal import Journal
from tradewind.logfile import read_chunk, tail_offset
from tradewind.model import JobSpec
from tradewind.states import JOB_TRANSITIONS, JobState, is_alive, is_over
from tradewind.views import Costs, decision_line, event_line, job_info, node_info
from tradewind.why import LAST, Scene, job_story, node_story, now_story

log = logging.getLogger(__name__)

RECENT_JOBS = 5
STOP_TIMEOUT_S = 20.0
LOG_POLL_S = 0.5
TOLD_EVENTS: dict[About, int] = {"node": 2000, "job": 2000, "now": 200}  # the newest, from which a story is told
# Most of a log are steps and saves, which explain nothing.
_EXPLAINING = KINDS - {"step_committed", "checkpoint_committed"}
TELLING: dict[About, frozenset[str]] = {
    "node": _EXPLAINING,
    "job": _EXPLAINING,
    "now": frozenset({"decision_recorded"}),
}


@dataclass(slots=True)
class Controller:
    """One fleet. `start` begins to tick; `shutdown` ends jobs, nodes and head, and says what is left (nothing)."""

    name: str
    journal: Journal
    head: LocalHead
    cloud: LocalCloud
    agent: Agent
    loop: Loop
    logs_path: Path
    tick_s: float
    ended: threading.Event = field(default_factory=threading.Event)
    _desk: ForecastDesk = field(default_factory=ForecastDesk)
    _started_at_s: float = field(default_factory=time.time)
    _plan: Plan | None = None
    _going_down: threading.Event = field(default_factory=threading.Event)  # no new jobs
    _closing: threading.Event = field(default_factory=threading.Event)  # no new ticks
    _one_shutdown: threading.Lock = field(default_factory=threading.Lock)
    _report: ShutdownReport | None = None
    _wake: threading.Event = field(default_factory=threading.Event)
    _ticks: threading.Thread | None = None

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self.journal.record(
            ControllerStarted(at_s=time.time(), fleet=self.name, pid=os.getpid(), version=__version__, simulated=True)
        )
        self._ticks = threading.Thread(target=self._run, name="ticks", daemon=True)
        self._ticks.start()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._tick()
            self._wake.wait(timeout=self.tick_s)
            self._wake.clear()

    def _tick(self) -> None:
        """An error ends its part of this tick, never the loop: nodes cost money while Ray's Jobs API is away, too."""
        with _survived():
            if not self.head.alive:
                raise RayError("the Ray head is gone", "another one is started; jobs resume")
            with _survived():
                self.agent.sync(time.time())
            with _survived():
                self._plan = self.loop.tick()
                self.agent.grant(self.loop.targets)
            self._keep_logs()

    # --- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> JobInfo:
        """On record first; the next tick starts it."""
        if self._going_down.is_set():
            raise ControllerError("the fleet is being taken down", "start it again with `tradewind up`, then submit")
        if spec.working_dir and not Path(spec.working_dir).is_dir():
            raise ConfigError(
                [Problem("job", "working_dir", f"there is no folder {spec.working_dir}")], "correct the path"
            )
        slug = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")[:30] or "job"
        job_id = f"{slug}-{secrets.token_hex(3)}"
        self.journal.record(JobSubmitted(at_s=time.time(), job_id=job_id, spec=spec))
        self._wake.set()
        return self.job(job_id)

    def jobs(self) -> Sequence[JobInfo]:
        with self.journal.reading() as (fleet, ledger):
            costs = Costs.of(ledger.accounts(time.time()))
            return [job_info(job, costs.by_job.get(job.job_id, 0)) for job in fleet.jobs.values()]

    def job(self, job_id: str) -> JobInfo:
        with self.journal.reading() as (fleet, ledger):
            job = _find(fleet, pick(job_id, fleet.jobs, job_not_found))
            return job_info(job, Costs.of(ledger.job_accounts(job.job_id, time.time())).by_job.get(job.job_id, 0))

    def stop(self, job_id: str) -> JobInfo:
        with self.journal.reading() as (fleet, _):
            job = _find(fleet, job_id)
        if is_over(job.state):
            return self.job(job_id)
        if job.foreign and not self.agent.stop_job(job_id):
            hint = "end its process where it runs; its nodes go when it is gone"
            raise JobError(f"{job_id} is a driver that was not started by Ray's Jobs API", hint)
        self._note_stopping(job_id)
        if not job.foreign:
            self.agent.stop_job(job_id)  # one that Ray does not have yet is ended by the next tick
        self._wake.set()
        return self.job(job_id)

    def _note_stopping(self, job_id: str) -> None:
        with self.journal.reading() as (fleet, _):
            if JobState.STOPPING in JOB_TRANSITIONS[fleet.jobs[job_id].state]:
                self.journal.record(JobStateChanged(at_s=time.time(), job_id=job_id, state=JobState.STOPPING))

    def logs(self, job_id: str, *, offset: int = 0, tail: int | None = None, wait_s: float = 0.0) -> LogChunk:
        until_s = time.monotonic() + wait_s
        while True:
            with self.journal.reading() as (fleet, _):
                over = is_over(_find(fleet, job_id).state)
            text = io.BytesIO(self._log_bytes(job_id))
            start = offset if tail is None else tail_offset(text, tail)
            chunk = read_chunk(text, start, over=over)
            if chunk.text or over or time.monotonic() >= until_s or self._closing.is_set():
                return chunk
            time.sleep(LOG_POLL_S)

    def _log_bytes(self, job_id: str) -> bytes:
        kept = self.logs_path / f"{job_id}.log"
        return kept.read_bytes() if kept.exists() else self.agent.logs(job_id).encode(errors="replace")

    def _keep_logs(self) -> None:
        """What a job printed outlives the Ray cluster that ran it."""
        with self.journal.reading() as (fleet, _):
            over = [job.job_id for job in fleet.jobs.values() if is_over(job.state)]
        self.logs_path.mkdir(parents=True, exist_ok=True)
        for job_id in over:
            kept = self.logs_path / f"{job_id}.log"
            if not kept.exists():
                with _survived():
                    write_atomically(kept, self.agent.logs(job_id).encode(errors="replace").decode())

    # --- views ---------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeInfo]:
        with self.journal.reading() as (fleet, ledger):
            return _node_infos(fleet, Costs.of(ledger.accounts(time.time())))

    def status(self) -> FleetStatus:
        now_s = time.time()
        with self.journal.reading() as (fleet, ledger):
            costs = Costs.of(ledger.accounts(now_s))
            shown = [*[job for job in fleet.jobs.values() if is_over(job.state)][-RECENT_JOBS:], *fleet.open_jobs]
            nodes = tuple(info for info in _node_infos(fleet, costs) if is_alive(info.state))
            return FleetStatus(
                fleet=self.name,
                version=__version__,
                simulated=fleet.simulated,
                uptime_s=now_s - self._started_at_s,
                ray_address=self.head.gcs_address,
                dashboard_url=self.head.dashboard_url,
                ray_env=self.head.env,
                nodes=nodes,
                jobs=tuple(job_info(job, costs.by_job.get(job.job_id, 0)) for job in shown),
                cost_uusd=costs.total_uusd,
                price_uusd_per_h=costs.rate_uusd_per_h,
                demand=_demand_lines(self._plan),
                decisions=tuple(decision_line(event) for event in self.journal.decisions),
                dry_run=self.loop.settings.dry_run,
            )

    def receipt(self, job_id: str) -> dict[str, Any]:
        with self.journal.reading() as (fleet, ledger):
            _find(fleet, job_id)
            return to_json(receipt(ledger, job_id, time.time()))

    def bill(self) -> dict[str, Any]:
        with self.journal.reading() as (_, ledger):
            return to_json(bill(ledger, time.time()))

    def events(self, *, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> Sequence[EventLine]:
        self.journal.wait_beyond(after, wait_s)
        return [event_line(sequence, event) for sequence, event in self.journal.log.read(after, limit)]

    def why(self, about: About, subject: str = "", last: int | None = None) -> Story:
        """The log is searched beside the loop: only the folds are read under its lock."""
        with self.journal.reading() as (fleet, _):
            name = _picked(fleet, about, subject)
        events = self.journal.log.naming(name, TELLING[about], TOLD_EVENTS[about] + 1)
        lines, view = last or LAST[about], self.loop.view
        with self.journal.reading() as (fleet, ledger):
            scene = Scene(
                fleet=fleet,
                now_s=time.time(),
                events=events[-TOLD_EVENTS[about] :],
                is_cut=len(events) > TOLD_EVENTS[about],
                costs=Costs.of(ledger.accounts(time.time())),
                plan=self._plan,
                asked=view.demand.lines() if view else (),
            )
            if about == "now":
                return now_story(scene, self.name, lines)
            return node_story(scene, name, lines) if about == "node" else job_story(scene, name, lines)

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """Beside the loop: of its work, only what it last looked at is read."""
        self._desk.read(self.journal.log.read(self._desk.sequence))
        view, settings = self.loop.view, self.loop.settings
        return self._desk.report(Question(time.time(), settings, what, hours, most, view.forecasts if view else {}))

    # --- playing the cloud, and the end --------------------------------------------------------------------------

    def preempt(self, target: str, notice_s: float | None) -> Sequence[str]:
        taken = self.cloud.preempt(target, notice_s)
        self._wake.set()
        return taken

    def shutdown(self) -> ShutdownReport:
        """Jobs first, so that they can end in order; then the nodes, until the cloud lists none; then the head.

        Asked for twice at once (`down` and Ctrl-C), it happens once, and both get the same answer."""
        self._going_down.set()
        with self._one_shutdown:
            self._report = self._report or self._shut_down()
            return self._report

    def _shut_down(self) -> ShutdownReport:
        stopped = self._stop_jobs()
        self._closing.set()
        self._wake.set()
        if self._ticks:
            self._ticks.join(timeout=STOP_TIMEOUT_S)
        self._close_jobs()
        ended = self.loop.end_all("the fleet is taken down", STOP_TIMEOUT_S)
        self.loop.close()
        with self.journal.reading() as (fleet, ledger):
            left = tuple(node.launch_id for node in fleet.alive_nodes)
            cost_uusd, simulated = Costs.of(ledger.accounts(time.time())).total_uusd, fleet.simulated
        self.journal.record(ControllerStopped(at_s=time.time(), reason="shutdown"))
        self.ended.set()
        return ShutdownReport(
            jobs_stopped=tuple(stopped), nodes_ended=tuple(ended), left=left, cost_uusd=cost_uusd, simulated=simulated
        )

    def _stop_jobs(self) -> list[str]:
        """Without a head there is nothing to stop. What does not obey goes with the head, at the latest."""
        stopped = []
        for job in self.jobs() if self.head.alive else ():
            with _survived():
                if not is_over(job.state) and self.stop(job.job_id):
                    stopped.append(job.job_id)
        self._await(lambda: all(is_over(self.job(job_id).state) for job_id in stopped), STOP_TIMEOUT_S)
        return stopped

    def _await(self, done: Callable[[], bool], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while not done() and self.head.alive and time.monotonic() < until_s:
            self._wake.set()
            time.sleep(0.2)

    def _close_jobs(self) -> None:
        """What has not ended by now ends with the head."""
        with self.journal.reading() as (fleet, _):
            reason, now_s = "the fleet was taken down", time.time()
            for job in fleet.open_jobs:
                self.journal.record(
                    JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.STOPPED, reason=reason)
                )

    @property
    def closing(self) -> bool:
        return self._closing.is_set()


@contextmanager
def _survived() -> Iterator[None]:
    """What goes wrong is logged; whoever comes next goes on."""
    try:
        yield
    except TradewindError as error:
        log.error("%s", error)
    except Exception:
        log.exception("an error that nobody expected; the loop goes on")


def _find(fleet: FleetState, job_id: str) -> JobRecord:
    job = fleet.jobs.get(job_id)
    if job is None:
        raise job_not_found(job_id, fleet.jobs)
    return job


def _picked(fleet: FleetState, about: About, subject: str) -> str:
    if about == "now":
        return ""
    return pick(subject, fleet.nodes, node_not_found) if about == "node" else pick(subject, fleet.jobs, job_not_found)


def _node_infos(fleet: FleetState, costs: Costs) -> list[NodeInfo]:
    jobs = fleet.open_jobs
    return [
        node_info(
            node,
            jobs,
            price_uusd_per_h=costs.prices.get(node.launch_id),
            cost_uusd=costs.by_node.get(node.launch_id, 0),
        )
        for node in fleet.nodes.values()
    ]


def to_json(value: Receipt | Bill) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return found


def _demand_lines(plan: Plan | None) -> tuple[DemandLine, ...]:
    return tuple(DemandLine(what=hold.subject, hold=hold.reason) for hold in plan.holds) if plan else ()
