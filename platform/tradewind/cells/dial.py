"""On a cell's head: the agent that dials out to the controller and carries out what it is called for. An edge.

It holds no state: a controller that starts again is told hello once more, and goes on from its log and from Ray.
"""

from __future__ import annotations

import gzip
import json
import logging
import random
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import httpx

from tradewind import __version__
from tradewind.agent import CoordinatorsPort, JobsPort
from tradewind.autoscaler.ray_snapshot import RayPort
from tradewind.cells.calls import (
    ANSWER,
    GZIP_FROM_BYTES,
    HELLO,
    POLL,
    POLLED,
    WELCOME,
    Answer,
    Call,
    Hello,
    JobRow,
    Poll,
    error_name,
    error_text,
    read_arguments,
    write_result,
)
from tradewind.cells.folders import DIGEST_SCHEME, fetch_folder
from tradewind.node.join_desk import EnergyReport

log = logging.getLogger(__name__)

POLL_S = 15.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 15.0
WIDTH = 8  # calls at a time: a slow one does not hold up the others
MAX_LOG_BYTES = 24 * 2**20  # of one job's log, the newest


class DeskPort(Protocol):
    """What the join desk of this head knows of nodes that come up, or do not."""

    def log(self, launch_id: str) -> str:
        """The boot log of a node, as far as it was sent; empty: nothing is known."""
        ...

    def reports(self) -> Sequence[tuple[str, str]]:
        """(launch id, why it did not come up)"""
        ...

    def energy(self) -> Sequence[EnergyReport]:
        """What the hosts of its nodes have measured, the last of each."""
        ...


class _NoDesk:
    def log(self, launch_id: str) -> str:  # noqa: ARG002
        return ""

    def reports(self) -> Sequence[tuple[str, str]]:
        return ()

    def energy(self) -> Sequence[EnergyReport]:
        return ()


class _HelloAgain(Exception):
    """The controller has started again."""


class _Go(Exception):
    """Another agent speaks for the cell."""


class CellAgent:
    """`run` until told to stop. `heard_at_s` (steady clock) is when the controller was last heard."""

    def __init__(
        self,
        controller_url: str,
        ca_pem: str,
        cell: str,
        agent_token: str,
        hello: Hello,
        ray: RayPort,
        jobs: JobsPort,
        coordinators: CoordinatorsPort,
        *,
        desk: DeskPort | None = None,
        folders: Path | None = None,  # where working folders are kept; None: jobs bring none
        poll_s: float = POLL_S,
    ) -> None:
        self.cell, self.poll_s = cell, poll_s
        versions = {"tradewind": __version__, **hello.versions}
        self.hello = replace(hello, versions=versions, started_at_s=hello.started_at_s or time.time())
        self.heard_at_s: float | None = None
        self._folders = folders
        self._http = httpx.Client(
            base_url=f"{controller_url.rstrip('/')}/v1/cells/{cell}/",
            headers={"Authorization": f"Bearer {agent_token}"},
            verify=ssl.create_default_context(cadata=ca_pem),
            timeout=httpx.Timeout(30.0, connect=10.0),
            trust_env=False,  # a proxy of the environment must not see the token
        )
        self._carry: Mapping[str, Callable[..., Any]] = _carriers(ray, jobs, coordinators, desk or _NoDesk(), self)

    def run(self, stop: threading.Event) -> str:
        """Empty when it was told to stop here; why, when the controller says that another agent speaks for the cell."""
        wait_s, told = FIRST_WAIT_S, ""
        with self._http, ThreadPoolExecutor(WIDTH, thread_name_prefix="calls") as pool:
            while not stop.is_set():
                try:
                    self._serve(self._say_hello(), pool, stop)
                    wait_s = FIRST_WAIT_S
                except _HelloAgain:
                    log.info("the controller has started again: saying hello")
                except _Go as error:
                    log.warning("the controller sends this agent away: %s", error)
                    return str(error)
                except (httpx.HTTPError, OSError, ValueError) as error:
                    if str(error) != told:
                        log.warning("the controller does not answer, tried again and again: %s", error)
                    told = str(error)
                    heard = self.heard_at_s is not None and time.monotonic() - self.heard_at_s < wait_s
                    wait_s = FIRST_WAIT_S if heard else min(wait_s * 2, LONGEST_WAIT_S)
                    stop.wait(wait_s * random.uniform(0.5, 1.0))  # not all heads at once
        return ""

    def _say_hello(self) -> str:
        return WELCOME.validate_json(self._post("hello", HELLO.dump_json(self.hello))).session

    def _serve(self, session: str, pool: ThreadPoolExecutor, stop: threading.Event) -> None:
        while not stop.is_set():
            text = self._post("calls", POLL.dump_json(Poll(session, self.poll_s)), self.poll_s)
            for call in POLLED.validate_json(text):
                pool.submit(self._carry_out, session, call)

    def _carry_out(self, session: str, call: Call) -> None:
        try:
            value = write_result(call.name, self._carry[call.name](*read_arguments(call)))
            answer = Answer(session, value)
        except Exception as error:  # whatever it is, it is the caller's to hear
            log.debug("%s failed", call.name, exc_info=error)
            answer = Answer(session, error=error_name(error), message=error_text(error))
        try:
            self._post(f"calls/{call.call_id}", ANSWER.dump_json(answer))
        except (httpx.HTTPError, OSError, ValueError, _HelloAgain, _Go) as error:
            log.warning("the answer to %s was lost: %s", call.name, error or type(error).__name__)

    def _post(self, path: str, body: bytes, wait_s: float = 0.0) -> bytes:
        headers = {"Content-Type": "application/json"}
        if len(body) >= GZIP_FROM_BYTES:
            body, headers["Content-Encoding"] = gzip.compress(body, 3), "gzip"
        timeout = httpx.Timeout(30.0 + wait_s, connect=10.0)
        return self._read(self._http.post(path, content=body, headers=headers, timeout=timeout))

    def _read(self, response: httpx.Response) -> bytes:
        if response.is_success:
            self.heard_at_s = time.monotonic()
            return response.content
        kind, message = _reason(response)
        if kind == "hello":
            raise _HelloAgain
        if kind == "go":
            raise _Go(message)
        raise ConnectionError(f"the controller refuses: {message}")

    def fetch(self, digest: str) -> Path:
        """The packed working folder of a job."""
        if self._folders is None:
            raise RuntimeError("this head keeps no working folders")
        return fetch_folder(self._http, digest, self._folders)


def _reason(response: httpx.Response) -> tuple[str, str]:
    try:
        found = json.loads(response.content)
        return str(found["kind"]), str(found["message"])
    except (ValueError, KeyError, TypeError):
        return "", f"status {response.status_code}"


def _carriers(
    ray: RayPort, jobs: JobsPort, coordinators: CoordinatorsPort, desk: DeskPort, agent: CellAgent
) -> dict[str, Callable[..., Any]]:
    """By the names of calls.CALLS."""

    def list_jobs() -> tuple[JobRow, ...]:
        return tuple(_row(row) for row in jobs.list_jobs())

    def submit_job(entrypoint: str, submission_id: str, runtime_env: Any, metadata: dict[str, str]) -> str:
        folder = str((runtime_env or {}).get("working_dir", ""))
        if folder.startswith(DIGEST_SCHEME):
            runtime_env = {**runtime_env, "working_dir": str(agent.fetch(folder.removeprefix(DIGEST_SCHEME)))}
        return jobs.submit_job(
            entrypoint=entrypoint, submission_id=submission_id, runtime_env=runtime_env, metadata=metadata
        )

    def get_job_logs(job_id: str) -> str:
        text = jobs.get_job_logs(job_id)
        return text if len(text) <= MAX_LOG_BYTES else f"... (cut)\n{text[-MAX_LOG_BYTES:]}"

    return {
        "ray.snapshot": ray.snapshot,
        "ray.drain": ray.drain,
        "ray.report": ray.report,
        "jobs.list_jobs": list_jobs,
        "jobs.submit_job": submit_job,
        "jobs.stop_job": jobs.stop_job,
        "jobs.get_job_logs": get_job_logs,
        "coordinators.poll": lambda job_id, after: _as_dict(coordinators.poll(job_id, after)),
        "coordinators.set_target": coordinators.set_target,
        "node.log": desk.log,
        "node.energy": lambda: tuple(desk.energy()),
        "node.reports": lambda: tuple(desk.reports()),
    }


def _row(row: Any) -> JobRow:
    return JobRow(row.submission_id, str(getattr(row.status, "value", row.status)), row.message)


def _as_dict(report: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if report is None else dict(report)
