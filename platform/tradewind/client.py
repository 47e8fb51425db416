"""The Python SDK: `connect` finds or starts a controller, `Fleet` and `Job` speak to it over its HTTP API.

import tradewind as tw
fleet = tw.connect()
job = fleet.submit("python train.py", workers=(2, 4))
job.watch()
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import quote

from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    MAX_WAIT_S,
    About,
    EventLine,
    FleetStatus,
    ForecastReport,
    JobInfo,
    LogChunk,
    NodeInfo,
    PreemptReply,
    ShutdownReport,
    Story,
)
from tradewind.api_requests import PreemptRequest, ResumeRequest, SubmitRequest
from tradewind.controller_process import CONTROLLER, START_TIMEOUT_S, await_end, ensure_controller, find_controller
from tradewind.errors import ConfigError, ControllerError, JobFailed, JobTimeout, Problem
from tradewind.home import FleetHome, meant_fleet, pick_fleet
from tradewind.model import JobSpec
from tradewind.states import JobState, is_over
from tradewind.submission import build_spec
from tradewind.units import parse_duration_s, parse_usd
from tradewind.wire import Wire

if TYPE_CHECKING:
    from tradewind.cost.figures import By, Summary
    from tradewind.cost.page import Report
    from tradewind.cost.receipt import Bill, Receipt

POLL_S = 0.25
DEFAULT_FLEET = "default"
SHUTDOWN_TIMEOUT_S = 180.0

Workers = int | str | tuple[int, int]
When = str | int | float | datetime


def connect(
    home: str | Path | None = None,
    fleet: str | None = None,
    start: bool = True,
    *,
    config: str | Path | None = None,
    command: Sequence[str] = CONTROLLER,
    timeout_s: float = START_TIMEOUT_S,
) -> Fleet:
    """The fleet of this name under this home; a controller is started when none runs (`start=False`: an error).

    What is not given comes from the environment (TRADEWIND_HOME, TRADEWIND_FLEET). TRADEWIND_URL with TRADEWIND_TOKEN
    names a controller elsewhere. `config` is the fleet file of a controller that is started.
    """
    if home is None and fleet is None and (remote := _remote()):
        return Fleet(*remote)
    place = locate(home, fleet)
    found, process = find_controller(place), None
    if start and found is None:
        found, process = ensure_controller(place, Path(config) if config else None, command, timeout_s)
    if found is None:
        raise _none_runs(place)
    return Fleet(found.url, place.read_token(), place=place, pid=found.pid, process=process)


def _none_runs(place: FleetHome) -> ControllerError:
    """One that ended in order withdrew its word. Of one that died, nodes may still run and cost."""
    died = place.announced()
    told = f"no controller runs for fleet {place.fleet} in {place.root}"
    if died is None:
        meant = meant_fleet(place)
        return ControllerError(told, f"did you mean `--fleet {meant}`? {ControllerError.default_hint}" if meant else "")
    hint = "`tradewind up` takes them over, `tradewind down` ends them"
    return ControllerError(f"{told}: process {died.pid} has died; its nodes may still run, and cost", hint)


def locate(home: str | Path | None = None, fleet: str | None = None, is_sure: bool = False) -> FleetHome:
    """The fleet's folder, by argument, else by environment, else the only one that runs, else the default (`is_sure`:
    an error where several run)."""
    if home is not None and fleet is not None:
        return FleetHome(Path(home).expanduser(), fleet)
    from tradewind.config import Settings

    settings = Settings.from_env()
    root = Path(home or settings.home).expanduser()
    named = settings.fleet if settings.fleet != DEFAULT_FLEET else None
    return FleetHome(root, pick_fleet(root, fleet or named, DEFAULT_FLEET, is_sure))


def _remote() -> tuple[str, str] | None:
    from tradewind.config import Settings

    settings = Settings.from_env()
    return (settings.url, settings.token or "") if settings.url else None


class Fleet:
    """A connection to one controller. As a context manager it closes the connection; the fleet goes on."""

    def __init__(
        self,
        url: str,
        token: str,
        *,
        place: FleetHome | None = None,
        pid: int | None = None,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.url = url
        self.place = place
        self.pid = pid
        self._process = process  # where this connection started the controller
        self._token = token
        self.wire = Wire(url, token)

    @property
    def dashboard_address(self) -> str:
        """Of the web page. The token stands behind the #, which browsers send to nobody."""
        return f"{self.url}/#token={quote(self._token)}"

    @property
    def started(self) -> bool:
        """Whether this connection started the controller."""
        return self._process is not None

    def submit(
        self,
        what: str | Path | Sequence[str] | JobSpec,
        *,
        name: str | None = None,
        workers: Workers | None = None,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
        working_dir: str | Path | None = None,
        tenant: str | None = None,
        team: str | None = None,
        deadline: When | None = None,
        budget: str | int | float | None = None,
        work: str | int | float | None = None,
        env: Mapping[str, str] | None = None,
        max_retries: int | None = None,
    ) -> Job:
        """Submit a command, a JobSpec, or a job file (`*.yaml`); what is given beside it replaces the file's word.

        `workers` is (min, max) or "2..4"; without, the job asks Ray for what it needs. `deadline` is a duration from
        now ("6h"), a datetime or its text (without a zone: in this machine's), or seconds from now; `budget` is in
        dollars; `work` is how long one replica would need, if that is known before its steps tell. A command runs in
        `working_dir`, which is the present folder unless told otherwise.
        """
        spec = build_spec(
            what,
            now_s=time.time(),
            name=name,
            workers=workers,
            resources=resources,
            labels=labels,
            working_dir=working_dir,
            tenant=tenant,
            team=team,
            deadline=deadline,
            budget=budget,
            work=work,
            env=env,
            max_retries=max_retries,
        )
        return Job(self, self.wire.post("/v1/jobs", JobInfo, SubmitRequest.of(spec)))

    def jobs(self) -> list[Job]:
        return [Job(self, info) for info in self.wire.get("/v1/jobs", list[JobInfo])]

    def job(self, job_id: str) -> Job:
        """By its id, or as much of its beginning as tells it apart. Raises JobNotFound, with the nearest id."""
        return Job(self, self.wire.get(_job_path(job_id), JobInfo))

    def status(self) -> FleetStatus:
        return self.wire.get("/v1/status", FleetStatus)

    def ray_env(self) -> dict[str, str]:
        """The environment in which plain `ray job submit`, `ray status` and `ray.init()` find this fleet's cluster."""
        return dict(self.status().ray_env)

    def nodes(self) -> list[NodeInfo]:
        return self.wire.get("/v1/nodes", list[NodeInfo])

    def bill(self) -> Bill:
        from tradewind.cost.receipt import Bill

        return self.wire.get("/v1/bill", Bill)

    def bill_json(self) -> dict[str, Any]:
        return self.wire.get("/v1/bill", dict[str, Any])

    def cost(self, by: By = "day", since: str | float | None = None) -> Summary:
        """All cost added up by "job", "tenant", "team", "market", "cloud", "day" or "label"; of the last days: "7d"."""
        from tradewind.cost.figures import Summary

        return self.wire.get("/v1/cost", Summary, by=by, from_s=_since_s(since))

    def cost_report(self, since: str | float | None = None) -> Report:
        """What the HTML report shows: `tradewind.cost.page.render_page` makes the page of it."""
        from tradewind.cost.page import Report

        return self.wire.get("/v1/cost/report", Report, from_s=_since_s(since))

    def focus(self) -> str:
        """Every node, day, job and label as CSV in the FOCUS format of the FinOps Foundation."""
        return self.wire.get_text("/v1/cost/focus")

    def events(self, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> list[EventLine]:
        """Of the log, after a sequence number; waits so long until there is one."""
        return self.wire.get("/v1/events", list[EventLine], after=after, limit=limit, wait_s=min(wait_s, MAX_WAIT_S))

    def why(self, about: About = "now", subject: str = "", last: int | None = None) -> Story:
        """Why a node ("node", launch id) or a job ("job", job id) is as it is, or what goes on ("now").

        A beginning of the id is enough. `last` is how many lines at the most. Print it to read it.
        """
        path = "/v1/why/now" if about == "now" else f"/v1/why/{about}/{quote(subject, safe='')}"
        return self.wire.get(path, Story, last=last)

    def node_log(self, launch_id: str) -> str:
        """What a node's machine wrote while it booted: why it did not come up. A beginning of its id is enough."""
        return self.wire.get(f"/v1/nodes/{quote(launch_id, safe='')}/log", str)

    def forecast(self, what: str = "", hours: float = FORECAST_HOURS, most: int = FORECAST_SERIES) -> ForecastReport:
        """Demand of each tenant and shape: its past, quantiles of what is coming, and how good they have been.

        `what` is a tenant or a part of a shape. Print it to see charts; `series` holds plain values to plot.
        """
        return self.wire.get("/v1/forecast", ForecastReport, what=what, hours=hours, most=most)

    def preempt(self, target: str, notice: str | float | None = None) -> list[str]:
        """Play the cloud: take the node of this launch id, or those of markets like "aws/*/spot" (local cloud only)."""
        notice_s = None if notice is None else parse_duration_s(notice)
        return list(
            self.wire.post("/v1/preempt", PreemptReply, PreemptRequest(target=target, notice_s=notice_s)).launch_ids
        )

    def down(self, timeout_s: float = SHUTDOWN_TIMEOUT_S) -> ShutdownReport:
        """Stop all jobs, end all nodes, end the controller. Raises ControllerError if anything is left."""
        report = self.wire.post("/v1/shutdown", ShutdownReport, timeout_s=timeout_s)
        if report.left:
            raise ControllerError(f"still there after the end: {', '.join(report.left)}", "run `tradewind down` again")
        if self.pid is not None and not await_end(self.pid, timeout_s, self._process):
            raise ControllerError(f"the controller (process {self.pid}) does not end", f"kill {self.pid}")
        self.close()
        return report

    def close(self) -> None:
        self.wire.close()

    def __enter__(self) -> Fleet:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Fleet({self.place.fleet if self.place else ''!r} at {self.url})"

    def _repr_html_(self) -> str:
        from tradewind.render import html_status

        return html_status(self.status())


class Job:
    """One job of a fleet. `info` is what was last heard of it."""

    def __init__(self, fleet: Fleet, info: JobInfo) -> None:
        self.fleet = fleet
        self.info = info

    @property
    def job_id(self) -> str:
        return self.info.job_id

    def status(self) -> JobInfo:
        self.info = self.fleet.wire.get(_job_path(self.job_id), JobInfo)
        return self.info

    @overload
    def logs(self, follow: Literal[False] = False, tail: int | None = None) -> str: ...

    @overload
    def logs(self, follow: Literal[True], tail: int | None = None) -> Iterator[str]: ...

    def logs(self, follow: bool = False, tail: int | None = None) -> str | Iterator[str]:
        """What it printed, as text; with `follow`, pieces as they come, until it ends."""
        pieces = self._log_pieces(follow, tail)
        return pieces if follow else "".join(pieces)

    def _log_pieces(self, follow: bool, tail: int | None) -> Iterator[str]:
        chunk = self._log_chunk(tail=tail)
        while True:
            if chunk.text:
                yield chunk.text
            if not chunk.more and (chunk.over or not follow):
                return
            chunk = self._log_chunk(offset=chunk.next_offset, wait_s=0.0 if chunk.more else 10.0)

    def _log_chunk(self, *, wait_s: float = 0.0, **where: int | None) -> LogChunk:
        return self.fleet.wire.get(f"{_job_path(self.job_id)}/logs/chunk", LogChunk, wait_s=wait_s, **where)

    def watch(self) -> JobInfo:
        """Live progress until the job is over: in a terminal, in a notebook, as plain lines elsewhere."""
        from tradewind.watch import watch_job

        return watch_job(self)

    def wait(self, timeout_s: float | None = None) -> JobInfo:
        """Until it is over. Raises JobFailed where it failed, JobTimeout where it is not over in time."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not is_over(self.status().state):
            if until_s is not None and time.monotonic() > until_s:
                raise JobTimeout(f"job {self.job_id} is still {self.info.state} after {timeout_s:g} s")
            time.sleep(POLL_S)
        if self.info.state is JobState.FAILED:
            raise JobFailed(
                f"job {self.job_id} failed: {self.info.reason or 'no reason was given'}",
                f"`tradewind logs {self.job_id}` shows what it printed",
            )
        return self.info

    def stop(self) -> JobInfo:
        """Asks it to save and stop; `wait` tells when it has."""
        self.info = self.fleet.wire.post(f"{_job_path(self.job_id)}/stop", JobInfo)
        return self.info

    def resume(self, budget: str | int | float | None = None) -> Job:
        """Of an open job, changes its budget: "+20" is so many dollars more, "50" is so much in all. One that is over
        is continued from its checkpoints by another job, which is returned and may cost what is left."""
        info = self.fleet.wire.post(f"{_job_path(self.job_id)}/resume", JobInfo, _resume_request(budget))
        return Job(self.fleet, info)

    def why(self, last: int | None = None) -> Story:
        """What it waits for or holds, what was bought for it, and why it is not larger. Print it to read it."""
        return self.fleet.why("job", self.job_id, last)

    def receipt(self) -> Receipt:
        from tradewind.cost.receipt import Receipt

        return self.fleet.wire.get(f"{_job_path(self.job_id)}/receipt", Receipt)

    def receipt_json(self) -> dict[str, Any]:
        return self.fleet.wire.get(f"{_job_path(self.job_id)}/receipt", dict[str, Any])

    def __repr__(self) -> str:
        return f"Job({self.job_id!r}, {self.info.name!r}, {self.info.state})"

    def _repr_html_(self) -> str:
        from tradewind.render import html_job

        return html_job(self.info)


def _resume_request(budget: str | int | float | None) -> ResumeRequest:
    if budget is None:
        return ResumeRequest()
    text = str(budget).strip()
    try:
        amount_uusd = parse_usd(text.removeprefix("+"))
    except ValueError as error:
        raise ConfigError([Problem("resume", "budget", str(error))], "write it like +20 or 50") from error
    if amount_uusd <= 0:
        raise ConfigError([Problem("resume", "budget", f"{text} is not more than nothing")], "write it like +20 or 50")
    return ResumeRequest(add_uusd=amount_uusd) if text.startswith("+") else ResumeRequest(budget_uusd=amount_uusd)


def _since_s(since: str | float | None) -> float | None:
    """How long ago, as a moment."""
    return None if since is None else time.time() - parse_duration_s(since)


def _job_path(job_id: str) -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}"
