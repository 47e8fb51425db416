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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

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
from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.view import View
from tradewind.budgets import BudgetKeeper, start_unpaid
from tradewind.cells.cell import Cell, survived
from tradewind.cells.options import option_of
from tradewind.cells.route import Router
from tradewind.contracts import ContractDesk, with_reason
from tradewind.cost.budget import Budgets
from tradewind.cost.energy_receipt import Intensity
from tradewind.cost.ledger import Ledger
from tradewind.cost.receipt import Bill, Receipt, bill, receipt
from tradewind.errors import ConfigError, ControllerError, JobError, Problem, Unsupported
from tradewind.events import ControllerStarted, ControllerStopped, JobPlaced, JobStateChanged, JobSubmitted
from tradewind.forecast_view import ForecastDesk, Question
from tradewind.job_logs import JobLogs
from tradewind.journal import Journal
from tradewind.logfile import read_chunk, tail_offset
from tradewind.model import JobSpec
from tradewind.node_logs import node_log
from tradewind.planning import promise
from tradewind.prospects import doubt
from tradewind.states import JOB_TRANSITIONS, JobState, is_alive, is_over
from tradewind.views import (
    Costs,
    cell_info,
    decision_line,
    demand_lines,
    event_line,
    found_job,
    job_info,
    node_infos,
    picked,
    whole_plan,
)
from tradewind.why import Scene
from tradewind.why_told import story, told_of

log = logging.getLogger(__name__)

RECENT_JOBS = 5
TAKEN_DOWN = "the fleet was taken down"
STOP_TIMEOUT_S = 20.0
LOG_POLL_S = 0.5


@dataclass(slots=True)
class Controller:
    """One fleet. `start` begins to tick; `shutdown` ends jobs, nodes and head, and says what is left (nothing)."""

    name: str
    journal: Journal
    cells: Mapping[str, Cell]
    logs_path: Path
    tick_s: float
    router: Router = field(default_factory=Router)
    simulated: bool = True  # every amount is a pretence
    pack: Callable[[Path], str] | None = None  # a job's folder -> what stands for it; None: heads have our disk
    end_timeout_s: float = STOP_TIMEOUT_S  # for all nodes
    clean_up: Callable[[], Sequence[str]] = tuple  # what nodes leave behind; what could not be removed
    config_digest: str = ""  # of the fleet file
    budgets: Budgets = field(default_factory=Budgets)
    intensity: Intensity | None = None  # of the grid, by the hour; None: receipts take the regions' means
    ended: threading.Event = field(default_factory=threading.Event)
    _desk: ForecastDesk = field(default_factory=ForecastDesk)
    _started_at_s: float = field(default_factory=time.time)
    _routing: threading.Lock = field(default_factory=threading.Lock)
    _going_down: threading.Event = field(default_factory=threading.Event)  # no new jobs
    _closing: threading.Event = field(default_factory=threading.Event)  # no new ticks
    _one_shutdown: threading.Lock = field(default_factory=threading.Lock)
    _report: ShutdownReport | None = None
    _clock: Clock = field(init=False)  # of the loops
    _keeper: BudgetKeeper = field(init=False)
    _contracts: ContractDesk = field(init=False)
    _ticks: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._clock = next(iter(self.cells.values())).loop.clock
        self._keeper = BudgetKeeper(self.journal, self.budgets, self._clock.now_s, self._clock.steady_s)
        self._contracts = ContractDesk(self.cells, self._clock.now_s)
        for cell in self.cells.values():
            cell.loop.keep_within(self._keeper)

    # --- the loop's thread ---------------------------------------------------------------------------------------

    def start(self) -> None:
        self.journal.record(
            ControllerStarted(
                at_s=time.time(),
                fleet=self.name,
                pid=os.getpid(),
                version=__version__,
                simulated=self.simulated,
                config=self.config_digest,
            )
        )
        for cell in self.cells.values():
            self._ticks.append(threading.Thread(target=self._run, args=(cell,), name=f"ticks {cell.name}", daemon=True))
        for thread in self._ticks:
            thread.start()

    def _run(self, cell: Cell) -> None:
        """A thread for each cell: one that does not answer does not hold up the others."""
        while not self._closing.is_set():
            self._tick(cell)
            cell.wake.wait(timeout=self.tick_s)
            cell.wake.clear()

    def _tick(self, cell: Cell) -> None:
        with survived():
            self._route()
        with survived():
            self._keeper.tick(self.stop)
        cell.tick()
        with survived():
            with self.journal.reading():
                jobs = list(cell.fleet.jobs.values())
            self._logs.keep_ended(jobs)

    def _route(self) -> None:
        with self._routing:
            options = {name: option_of(cell) for name, cell in self.cells.items()}
            with self.journal.reading() as (fleet, _):
                jobs = fleet.open_jobs
            events = self.router.step(jobs, options, self._clock.now_s())
            placed = {event.job_id for event in events if isinstance(event, JobPlaced)}
            for job in jobs:
                if job.job_id in placed:
                    self._logs.keep_part(job)
            self.journal.record(*events)

    @property
    def _logs(self) -> JobLogs:
        return JobLogs(self.logs_path, self.cells)

    def _wake(self) -> None:
        for cell in self.cells.values():
            cell.wake.set()

    @property
    def _home(self) -> Cell:
        """The first cell: of several, plain `ray` is told of this one."""
        return next(iter(self.cells.values()))

    def _cell_of(self, job: JobRecord) -> Cell | None:
        return self.cells.get(job.cell)

    # --- jobs ----------------------------------------------------------------------------------------------------

    def submit(self, spec: JobSpec) -> JobInfo:
        """On record first; the next tick starts it."""
        if self._going_down.is_set():
            raise ControllerError("the fleet is being taken down", "start it again with `tradewind up`, then submit")
        spec = self._with_folder(spec)
        said = promise(spec, self._views(), self._clock.now_s())
        slug = re.sub(r"[^a-z0-9]+", "-", spec.name.lower()).strip("-")[:30] or "job"
        job_id = f"{slug}-{secrets.token_hex(3)}"
        self.journal.record(JobSubmitted(at_s=time.time(), job_id=job_id, spec=spec))
        if said:
            self._contracts.promised[job_id] = said
        self._wake()
        views = self._views()
        said = start_unpaid(job_id, spec, self.budgets.horizon_s, views)
        return replace(with_reason(self.job(job_id), said), warning=doubt(spec, views))

    def _with_folder(self, spec: JobSpec) -> JobSpec:
        """Packed as it is now: a job that moves in a week takes the same files along."""
        if not spec.working_dir or "://" in spec.working_dir:
            return spec
        folder = Path(spec.working_dir)
        if not folder.is_dir():
            raise ConfigError([Problem("job", "working_dir", f"there is no folder {folder}")], "correct the path")
        return replace(spec, working_dir=self.pack(folder)) if self.pack else spec

    def jobs(self) -> Sequence[JobInfo]:
        with self.journal.reading() as (fleet, ledger):
            costs, jobs = Costs.at(ledger, time.time()).by_job, list(fleet.jobs.values())
        return self._job_infos(jobs, costs)

    def job(self, job_id: str) -> JobInfo:
        with self.journal.reading() as (fleet, ledger):
            job = found_job(fleet, pick(job_id, fleet.jobs, job_not_found))
            costs = {job.job_id: ledger.job_cost(job.job_id, time.time())}
        return self._job_infos([job], costs)[0]

    def _job_infos(self, jobs: Sequence[JobRecord], costs_uusd: Mapping[str, int]) -> list[JobInfo]:
        """Not under the journal's lock: how contracts stand takes a while to find out."""
        contracts = self._contracts.infos(jobs, costs_uusd)
        return [job_info(job, costs_uusd.get(job.job_id, 0), contracts.get(job.job_id)) for job in jobs]

    def stop(self, job_id: str, reason: str = "") -> JobInfo:
        with self.journal.reading() as (fleet, _):
            job = found_job(fleet, job_id)
        if is_over(job.state):
            return self.job(job_id)
        cell = self._cell_of(job)
        if job.foreign and not (cell and cell.agent.stop_job(job_id)):
            hint = "end its process where it runs; its nodes go when it is gone"
            raise JobError(f"{job_id} is a driver that was not started by Ray's Jobs API", hint)
        self._note_stopping(job_id, reason)
        if cell is None:
            self._note_stopped(job_id)  # nobody has it yet
        self._wake()  # the cell's next tick has it save and ends it
        return self.job(job_id)

    def resume(self, job_id: str, request: ResumeRequest) -> JobInfo:
        fresh = self._keeper.resume(job_id, request)
        return self.submit(fresh) if fresh else self.job(job_id)

    def _note_stopping(self, job_id: str, reason: str) -> None:
        with self.journal.reading() as (fleet, _):
            if JobState.STOPPING in JOB_TRANSITIONS[fleet.jobs[job_id].state]:
                now_s, state = time.time(), JobState.STOPPING
                self.journal.record(JobStateChanged(at_s=now_s, job_id=job_id, state=state, reason=reason))

    def _note_stopped(self, job_id: str) -> None:
        self.journal.record(JobStateChanged(at_s=time.time(), job_id=job_id, state=JobState.STOPPED))

    def logs(self, job_id: str, *, offset: int = 0, tail: int | None = None, wait_s: float = 0.0) -> LogChunk:
        until_s = time.monotonic() + wait_s
        while True:
            with self.journal.reading() as (fleet, _):
                job = found_job(fleet, job_id)
            over = is_over(job.state)
            text = io.BytesIO(self._logs.read(job))
            start = offset if tail is None else tail_offset(text, tail)
            chunk = read_chunk(text, start, over=over)
            if chunk.text or over or time.monotonic() >= until_s or self._closing.is_set():
                return chunk
            time.sleep(LOG_POLL_S)

    def node_log(self, launch_id: str) -> str:
        with self.journal.reading() as (fleet, _):
            node = fleet.nodes[pick(launch_id, fleet.nodes, node_not_found)]
        cell = self.cells.get(node.cell)
        return node_log(cell, node) if cell else f"cell {node.cell} is no longer part of the fleet\n"

    # --- views ---------------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[NodeInfo]:
        with self.journal.reading() as (fleet, ledger):
            return node_infos(fleet, Costs.at(ledger, time.time()))

    def status(self) -> FleetStatus:
        with self.journal.reading() as (fleet, ledger):
            now_s = time.time()  # here: moments that the ledger is asked about come in order
            costs = Costs.at(ledger, now_s)
            shown = [*[job for job in fleet.jobs.values() if is_over(job.state)][-RECENT_JOBS:], *fleet.open_jobs]
            nodes = tuple(info for info in node_infos(fleet, costs) if is_alive(info.state))
            found = FleetStatus(
                fleet=self.name,
                version=__version__,
                simulated=fleet.simulated,
                uptime_s=now_s - self._started_at_s,
                ray_address=self._home.head.gcs_address,
                dashboard_url=self._home.head.dashboard_url,
                ray_env=self._home.head.env,
                nodes=nodes,
                cost_uusd=costs.total_uusd,
                price_uusd_per_h=costs.rate_uusd_per_h,
                demand=tuple(line for cell in self.cells.values() for line in demand_lines(cell.plan)),
                decisions=tuple(decision_line(event) for event in self.journal.decisions),
                dry_run=self._home.loop.settings.dry_run,
                cells=tuple(cell_info(cell) for cell in self.cells.values()),
            )
        return replace(found, jobs=tuple(self._job_infos(shown, costs.by_job)))

    def receipt(self, job_id: str) -> dict[str, Any]:
        with self.journal.reading() as (fleet, ledger):
            found_job(fleet, job_id)
            return to_json(receipt(ledger, job_id, time.time(), self.intensity))

    def bill(self) -> dict[str, Any]:
        with self.journal.reading() as (_, ledger):
            return to_json(bill(ledger, time.time()))

    def ledger(self) -> AbstractContextManager[tuple[Ledger, float]]:
        return self.journal.reading_now()

    def events(self, *, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> Sequence[EventLine]:
        self.journal.wait_beyond(after, wait_s)
        return [event_line(sequence, event) for sequence, event in self.journal.log.read(after, limit)]

    def why(self, about: About, subject: str = "", last: int | None = None) -> Story:
        """The log is searched beside the loop: only the folds are read under its lock."""
        with self.journal.reading() as (fleet, _):
            name = picked(fleet, about, subject)
        events, is_cut = told_of(self.journal.log, about, name)
        with self.journal.reading() as (fleet, ledger):
            scene = Scene(
                fleet=fleet,
                now_s=time.time(),
                events=events,
                is_cut=is_cut,
                costs=Costs.at(ledger, time.time()),
                plan=self._whole_plan(),
                asked=tuple(line for view in self._views() for line in view.demand.lines()),
            )
            return story(scene, about, name or self.name, last)

    def _views(self) -> list[View]:
        return [cell.loop.view for cell in self.cells.values() if cell.loop.view is not None]

    def _whole_plan(self) -> Plan | None:
        return whole_plan([cell.plan for cell in self.cells.values() if cell.plan is not None])

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """Beside the loop: of its work, only what it last looked at is read."""
        self._desk.read(self.journal.log.read(self._desk.sequence))
        forecasts = {key: found for view in self._views() for key, found in view.forecasts.items()}
        return self._desk.report(Question(time.time(), self._home.loop.settings, what, hours, most, forecasts))

    # --- playing the cloud, and the end --------------------------------------------------------------------------

    def preempt(self, target: str, notice_s: float | None) -> Sequence[str]:
        clouds = {id(each): each for cell in self.cells.values() for each in cell.providers.values()}
        for cloud in clouds.values():
            if isinstance(cloud, Taking):
                taken = cloud.preempt(target, notice_s)
                self._wake()
                return taken
        raise Unsupported("only the local cloud can be told to take a node", "preempt one by its cloud's own means")

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
        self._wake()
        for thread in self._ticks:
            thread.join(timeout=STOP_TIMEOUT_S)
        self._close_jobs()
        ended = self._end_cells()
        with self.journal.reading() as (fleet, ledger):
            left = tuple(node.launch_id for node in fleet.alive_nodes)
            cost_uusd, simulated = Costs.at(ledger, time.time()).total_uusd, fleet.simulated
        left = left or tuple(f"secrets of {name}" for name in self.clean_up())
        self.journal.record(ControllerStopped(at_s=time.time(), reason="shutdown"))
        self.ended.set()
        return ShutdownReport(
            jobs_stopped=tuple(stopped),
            nodes_ended=tuple(ended),
            left=left,
            cost_uusd=cost_uusd,
            simulated=simulated,
            fleet=self.name,
        )

    def _end_cells(self) -> list[str]:
        """All at once: a cloud takes its time."""
        with ThreadPoolExecutor(len(self.cells)) as pool:
            ends = [pool.submit(cell.end, TAKEN_DOWN, self.end_timeout_s) for cell in self.cells.values()]
            return sorted(launch_id for end in ends for launch_id in end.result())

    def _stop_jobs(self) -> list[str]:
        """Without a head there is nothing to stop. What does not obey goes with the head, at the latest."""
        stopped = []
        with self.journal.reading() as (fleet, _):
            jobs = fleet.open_jobs
        for job in jobs:
            cell = self._cell_of(job)
            with survived():
                if (cell is None or cell.head.alive) and self.stop(job.job_id):
                    stopped.append(job.job_id)
        wait_s = STOP_TIMEOUT_S + max(cell.agent.save_s for cell in self.cells.values())
        self._await(lambda: all(is_over(self.job(job_id).state) for job_id in stopped), wait_s)
        return stopped

    def _await(self, done: Callable[[], bool], timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        heads = [cell.head for cell in self.cells.values()]
        while not done() and any(head.alive for head in heads) and time.monotonic() < until_s:
            self._wake()
            time.sleep(0.2)

    def _close_jobs(self) -> None:
        """What has not ended by now ends with the head."""
        with self.journal.reading() as (fleet, _):
            open_ids, now_s = [job.job_id for job in fleet.open_jobs], time.time()
            for job_id in open_ids:
                end = JobStateChanged(at_s=now_s, job_id=job_id, state=JobState.STOPPED, reason=TAKEN_DOWN)
                self.journal.record(end)

    @property
    def closing(self) -> bool:
        return self._closing.is_set()


@runtime_checkable
class Taking(Protocol):
    """A cloud that takes nodes away when it is told to: the local one."""

    def preempt(self, target: str, notice_s: float | None) -> Sequence[str]: ...


def to_json(value: Receipt | Bill) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(type(value)).dump_python(value, mode="json")
    return found
