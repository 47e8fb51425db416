"""On a cell's head: starts and stops our jobs, brings out what training jobs report, takes targets in. An edge.

The controller calls `sync` before each tick of the loop. With one local cell, agent and controller are one process.
Jobs that others sent to Ray are put on record by the loop (autoscaler/adopt.py); their reports come out here, too.
"""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.errors import JobError, RayError
from tradewind.events import AnyEvent, JobStateChanged, decode
from tradewind.model import COORDINATOR_PREFIX, JOB_ID_ENV, RAY_NAMESPACE, STORAGE_ENV, JobSpec, Phase, Target, Wish
from tradewind.states import JOB_TRANSITIONS, JobState, is_over

CALL_TIMEOUT_S = 5.0

_RAY_STATUS = {
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
}


@dataclass(frozen=True, slots=True)
class RayJob:
    """One row of Ray's job table."""

    job_id: str
    status: str
    message: str


@dataclass(slots=True)
class Agent:
    """Speaks to one Ray cluster: its Jobs API, and the coordinators of its training jobs."""

    gcs_address: str
    dashboard_url: str
    storage: Path
    record: Callable[..., None]
    fleet: FleetState
    heard: dict[str, Wish | None] = field(default_factory=dict)  # by job, as its coordinator last told; None: over
    _jobs: Any = None
    _granted: dict[str, Target] = field(default_factory=dict)

    def connect(self) -> None:
        import ray
        from ray.job_submission import JobSubmissionClient

        try:
            ray.init(
                address=self.gcs_address,
                namespace=RAY_NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
            self._jobs = JobSubmissionClient(self.dashboard_url)
        except (ConnectionError, RuntimeError) as error:
            raise RayError(f"cannot reach the Ray cluster at {self.gcs_address}: {error}") from error

    def close(self) -> None:
        import ray

        ray.shutdown()

    def sync(self, now_s: float) -> None:
        """Bring the log up to what this cell's jobs have done since the last call, and start what is queued."""
        known = self._list_jobs()
        for job in self.fleet.open_jobs:
            if job.foreign:
                continue
            if job.job_id in known:
                self._settle(job, known[job.job_id], now_s)
            elif job.state is JobState.STOPPING:  # before it was ever started, or its cluster is gone
                self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.STOPPED))
            else:
                self._start(job, now_s)
        for job in self.fleet.open_jobs:
            self._hear(job, now_s)

    def _list_jobs(self) -> dict[str, RayJob]:
        try:
            rows = self._jobs.list_jobs()
        except (OSError, RuntimeError) as error:  # what `requests` raises is an OSError, and no ConnectionError
            raise RayError(f"Ray's Jobs API at {self.dashboard_url} does not answer: {error}") from error
        return {row.submission_id: _ray_job(row) for row in rows if row.submission_id}

    # --- starting and ending -------------------------------------------------------------------------------------

    def _start(self, job: JobRecord, now_s: float) -> None:
        """The job id is Ray's submission id, so that a controller that died in between starts nothing twice."""
        spec = job.spec
        metadata = {"tenant": spec.tenant, "name": spec.name}
        try:
            self._jobs.submit_job(
                entrypoint=entrypoint_of(job, self.storage),
                submission_id=job.job_id,
                runtime_env={"env_vars": dict(spec.env)} if spec.env else None,
                metadata=metadata,
            )
        except OSError as error:
            raise RayError(f"Ray's Jobs API at {self.dashboard_url} does not answer: {error}") from error
        except (RuntimeError, ValueError) as error:
            if "already exists" in str(error):
                return  # the listing lags behind: it was started before
            reason = f"Ray refused the job: {str(error).strip().splitlines()[-1]}"
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.FAILED, reason=reason))

    def stop_job(self, job_id: str) -> bool:
        """False where Ray knows of no such submission."""
        try:
            self._jobs.stop_job(job_id)
        except (OSError, RuntimeError) as error:
            if "does not exist" in str(error):
                return False
            raise JobError(f"cannot stop {job_id}: {error}", "try again in a moment") from error
        return True

    def logs(self, job_id: str) -> str:
        try:
            return str(self._jobs.get_job_logs(job_id))
        except (OSError, RuntimeError) as error:
            if "does not exist" in str(error):
                return ""
            raise JobError(f"cannot read the log of {job_id}: {error}", "try again in a moment") from error

    def _settle(self, job: JobRecord, ray_job: RayJob, now_s: float) -> None:
        """Ray's word on a job's state becomes ours, where the table has a way there."""
        state = _RAY_STATUS[ray_job.status]
        if job.state is JobState.STOPPING and not is_over(state):
            self.stop_job(job.job_id)  # again: the first word may have come before Ray knew of the job
            return
        if state is JobState.RUNNING and job.state is JobState.RECOVERING:
            return
        if state is JobState.FAILED and job.state is JobState.STOPPING:
            state = JobState.STOPPED
        if state is not job.state and state in JOB_TRANSITIONS[job.state]:
            self._hear(job, now_s)  # the last words of a job that has just ended
            reason = first_line(ray_job.message) if state is JobState.FAILED else ""
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=state, reason=reason))

    # --- training reports ----------------------------------------------------------------------------------------

    def _hear(self, job: JobRecord, now_s: float) -> None:
        import ray

        try:
            coordinator = ray.get_actor(f"{COORDINATOR_PREFIX}{job.job_id}", namespace=RAY_NAMESPACE)
            report = ray.get(coordinator.poll.remote(job.reported_sequence), timeout=CALL_TIMEOUT_S)
        except (ValueError, ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            if job.job_id in self.heard:
                self.heard[job.job_id] = None  # it no longer trains
            return
        events = [decode(payload) for payload in report["events"]]
        self.record(*events, *_recovery(job, events, now_s))
        self.heard[job.job_id] = Wish(**report["wish"]) if report["wish"] else None

    def wishes(self) -> list[Wish]:
        """What the open jobs could use. Until a job's coordinator speaks, its spec does: nodes boot while the driver
        starts."""
        found = (self.heard[job.job_id] if job.job_id in self.heard else spec_wish(job) for job in self.fleet.open_jobs)
        return [wish for wish in found if wish is not None]

    def grant(self, targets: Mapping[str, Target]) -> None:
        """Tell the coordinators how many replicas the platform grants; unchanged grants are not sent again."""
        import ray

        for job_id, target in targets.items():
            last = self._granted.get(job_id)
            if last and (last.replicas, last.deadline_s) == (target.replicas, target.deadline_s):
                continue
            try:
                coordinator = ray.get_actor(f"{COORDINATOR_PREFIX}{job_id}", namespace=RAY_NAMESPACE)
            except ValueError:
                continue
            epoch = last.epoch + 1 if last else max(1, int(time.time()))  # survives a new controller
            coordinator.set_target.remote(epoch, target.replicas, target.deadline_s)
            self._granted[job_id] = Target(epoch=epoch, replicas=target.replicas, deadline_s=target.deadline_s)


def entrypoint_of(job: JobRecord, storage: Path) -> str:
    """The command as it runs on the head. What only the driver needs goes before it, not into a runtime environment:
    that would keep Ray's workers from being taken from the pool of started processes. The folder is not uploaded: a
    local cell has the same disk."""
    given = {JOB_ID_ENV: job.job_id, STORAGE_ENV: str(storage)}
    parts = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    parts += [f"cd {shlex.quote(job.spec.working_dir)}"] if job.spec.working_dir else []
    # On a line of its own, so that `a || b` and `a & b` mean what they mean in a shell.
    return f"{' && '.join(parts)} || exit\n{_with_retries(job.spec)}"


def _with_retries(spec: JobSpec) -> str:
    """In the shell, so that all tries are one job of Ray's, with one log. A lost node is no failure of the program."""
    if not spec.max_retries:
        return spec.entrypoint
    return (
        f"for left in $(seq {spec.max_retries} -1 0); do\n(\n{spec.entrypoint}\n)\nstatus=$?\n"
        '[ $status -eq 0 ] || [ $left -eq 0 ] && exit $status\necho "exit status $status; tries left: $left"\ndone'
    )


def first_line(message: str) -> str:
    """Of why Ray says that a job failed: it appends the log, which is kept elsewhere."""
    return message.partition("\n")[0].partition(", last available logs")[0].removeprefix("Job entrypoint ")


def spec_wish(job: JobRecord) -> Wish | None:
    """What a job asked for when it was submitted; None where it leaves that to its program."""
    spec = job.spec
    if not spec.max_workers or not spec.worker_resources:
        return None
    return Wish(job.job_id, spec.min_workers, spec.max_workers, spec.worker_resources, spec.worker_labels)


def _recovery(job: JobRecord, events: Sequence[AnyEvent], now_s: float) -> Iterator[AnyEvent]:
    """A restarting phase makes the job `recovering`; the next phase that trains makes it `running` again."""
    state = job.state
    for event in events:
        phase = getattr(event, "phase", None)
        if phase is Phase.RESTARTING and state is JobState.RUNNING:
            state = JobState.RECOVERING
            yield JobStateChanged(at_s=now_s, job_id=job.job_id, state=state, reason=getattr(event, "reason", ""))
        elif phase is Phase.TRAINING and state is JobState.RECOVERING:
            state = JobState.RUNNING
            yield JobStateChanged(at_s=now_s, job_id=job.job_id, state=state)


def _ray_job(row: Any) -> RayJob:
    return RayJob(
        job_id=row.submission_id,
        status=str(getattr(row.status, "value", row.status)),
        message=(row.message or "").strip(),
    )
