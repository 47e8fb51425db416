"""Ray's Jobs API and the coordinators of training jobs in memory, for tests of the agent and the controller.

They refuse what the real ones refuse, in the same words and by the same exceptions (agent.py: JobsPort,
CoordinatorsPort). The coordinators are the real class, without the actor around it. Nothing is started.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tradewind.jobs.coordinator import Coordinator
from tradewind.model import Target


@dataclass(frozen=True, slots=True)
class FakeRow:
    """One row of Ray's job table; a driver that nobody submitted has no submission id."""

    submission_id: str | None
    entrypoint: str = ""
    status: str = "PENDING"
    message: str | None = None
    runtime_env: dict[str, Any] | None = None
    metadata: Mapping[str, str] | None = None


class FakeJobs:
    """`rows` is the job table. What jobs do by themselves, the test does: `move` and `print`."""

    def __init__(self) -> None:
        self.rows: dict[str, FakeRow] = {}
        self.unlisted: set[str] = set()  # there, but the listing lags behind
        self.stops: list[str] = []
        self.obeys = False  # a stop ends the job at once
        self.fault: Exception | None = None  # every call raises it
        self.refusal = ""  # why no job is taken
        self._logs: dict[str, str] = {}

    # --- JobsPort ------------------------------------------------------------------------------------------------

    def list_jobs(self) -> list[FakeRow]:
        self._check()
        return [row for key, row in self.rows.items() if key not in self.unlisted]

    def submit_job(
        self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any] | None, metadata: dict[str, str]
    ) -> str:
        self._check()
        if submission_id in self.rows:
            raise _refusal(400, f"ValueError: Job with submission_id {submission_id} already exists.")
        if self.refusal:
            raise _refusal(400, self.refusal)
        self.rows[submission_id] = FakeRow(submission_id, entrypoint, "PENDING", None, runtime_env, metadata)
        return submission_id

    def stop_job(self, job_id: str) -> bool:
        self._check()
        self._known(job_id)
        self.stops.append(job_id)
        if self.obeys:
            self.move(job_id, "STOPPED")
        return True

    def get_job_logs(self, job_id: str) -> str:
        self._check()
        self._known(job_id)
        return self._logs.get(job_id, "")

    # --- for the test --------------------------------------------------------------------------------------------

    def move(self, job_id: str, status: str, message: str | None = None) -> None:
        self.rows[job_id] = replace(self.rows[job_id], status=status, message=message)

    def print(self, job_id: str, text: str) -> None:
        self._logs[job_id] = self._logs.get(job_id, "") + text

    def _check(self) -> None:
        if self.fault is not None:
            raise self.fault

    def _known(self, job_id: str) -> None:
        if job_id not in self.rows:
            raise RuntimeError(f"Request failed with status code 404: Job {job_id} does not exist.")


class FakeCoordinators:
    """By job id. `faults` are raised at the next calls for that job, for as long as they stand there."""

    def __init__(self) -> None:
        self.by_job: dict[str, Coordinator] = {}
        self.faults: dict[str, Exception] = {}
        self.targets: list[tuple[str, Target]] = []

    def start(self, job_id: str) -> Coordinator:
        """A driver of this job begins to train."""
        self.by_job[job_id] = Coordinator(job_id)
        return self.by_job[job_id]

    def poll(self, job_id: str, after_sequence: int) -> Mapping[str, Any] | None:
        if job_id in self.faults:
            raise self.faults[job_id]
        found = self.by_job.get(job_id)
        return None if found is None else asyncio.run(found.poll(after_sequence))

    def set_target(self, job_id: str, target: Target) -> bool:
        found = self.by_job.get(job_id)
        if found is None:
            return False
        self.targets.append((job_id, target))
        asyncio.run(found.set_target(target.epoch, target.replicas, target.deadline_s, target.replica_workers))
        return True


def _refusal(status: int, message: str) -> RuntimeError:
    """As Ray's client tells it: the server's traceback, and a full stop on a line of its own."""
    trace = f"Traceback (most recent call last):\n  File job_agent.py, in submit_job\n{message}\n"
    return RuntimeError(f"Request failed with status code {status}: {trace}.")
