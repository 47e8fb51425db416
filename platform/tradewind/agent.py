"""On a cell's head: starts and stops our jobs, brings out what training jobs report, takes targets in. An edge.

The controller calls `sync` before each tick of the loop. With one local cell, agent and controller are one process.
Jobs that others sent to Ray are put on record by the loop (autoscaler/adopt.py); their reports come out here, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.cost.budget import RESERVE_S
from tradewind.entrypoint import entrypoint_of, spec_wish, submission_of
from tradewind.errors import IllegalTransition, JobError, RayError, TradewindError
from tradewind.events import AnyEvent, JobStateChanged, MoveRequested, decode
from tradewind.last_saves import MOST_PUT_OFF, LastSave, LastSaves, unsaved
from tradewind.model import (
    COORDINATOR_PREFIX,
    RAY_NAMESPACE,
    JobSpec,
    Phase,
    Target,
    Wish,
)
from tradewind.states import JOB_TRANSITIONS, JobState, is_over

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
HEARD_S = 60.0  # for so long, what a coordinator said holds although nothing is heard of it
SAVE_SHARE = 0.75  # of what a budget keeps in reserve: time to save in; the rest is for the end of nodes

_RAY_STATUS = {
    "PENDING": JobState.QUEUED,
    "RUNNING": JobState.RUNNING,
    "SUCCEEDED": JobState.SUCCEEDED,
    "FAILED": JobState.FAILED,
    "STOPPED": JobState.STOPPED,
}


def time_to_save_s(reserve_s: float, idle_timeout_s: float, *, fleet_pays: bool) -> float:
    """Of what a budget keeps in reserve. A budget of the fleet also pays for nodes that are idle until they go."""
    share_s = SAVE_SHARE * reserve_s
    return max(0.25 * reserve_s, min(share_s, reserve_s - idle_timeout_s)) if fleet_pays else share_s


class JobsPort(Protocol):
    """What is used of Ray's JobSubmissionClient. It refuses by RuntimeError; a head that does not answer is an
    OSError (those of `requests` are, too)."""

    def list_jobs(self) -> Sequence[Any]: ...

    def submit_job(
        self,
        *,
        entrypoint: str,
        submission_id: str,
        runtime_env: dict[str, Any] | None,
        metadata: dict[str, str],
    ) -> str: ...

    def stop_job(self, job_id: str) -> bool: ...

    def get_job_logs(self, job_id: str) -> str: ...


class CoordinatorsPort(Protocol):
    """The coordinators of the training jobs of a cell, by job."""

    def poll(self, job_id: str, after_sequence: int) -> Mapping[str, Any] | None:
        """Its reports and its wish; None where there is no coordinator. One that is too busy: TimeoutError."""
        ...

    def set_target(self, job_id: str, target: Target) -> bool:
        """Whether there was one to tell. Does not wait for it."""
        ...


class RayCoordinators:
    """The named actors of the Ray cluster that this process has joined."""

    def poll(self, job_id: str, after_sequence: int) -> Mapping[str, Any] | None:
        import ray

        try:
            coordinator = ray.get_actor(f"{COORDINATOR_PREFIX}{job_id}", namespace=RAY_NAMESPACE)
            found: Mapping[str, Any] = ray.get(coordinator.poll.remote(after_sequence), timeout=CALL_TIMEOUT_S)
        except (ValueError, ray.exceptions.RayActorError):
            return None
        return found

    def set_target(self, job_id: str, target: Target) -> bool:
        import ray

        try:
            coordinator = ray.get_actor(f"{COORDINATOR_PREFIX}{job_id}", namespace=RAY_NAMESPACE)
        except ValueError:
            return False
        coordinator.set_target.remote(target.epoch, target.replicas, target.deadline_s, target.replica_workers)
        return True


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
    storage: Path | str  # a folder, or a URL
    record: Callable[..., None]
    fleet: FleetState
    heard: dict[str, Wish | None] = field(default_factory=dict)  # by job, as its coordinator last told; None: over
    jobs: JobsPort | None = None  # from `connect` on
    coordinators: CoordinatorsPort = field(default_factory=RayCoordinators)
    same_disk: bool = True  # the head reads the folders of this machine; False: they are sent to it
    save_s: float = SAVE_SHARE * RESERVE_S  # for a job that is to end: what is not saved by then is lost
    steady_s: Callable[[], float] = time.monotonic
    _granted: dict[str, Target] = field(default_factory=dict)  # as coordinators last told, or were told since
    _rest_heard_s: dict[str, float] = field(default_factory=dict)  # when coordinators last said: granted nothing
    _last_saves: LastSaves = field(init=False)

    def __post_init__(self) -> None:
        self._last_saves = LastSaves(self.save_s, self.steady_s)

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
            self.jobs = JobSubmissionClient(self.dashboard_url)
        except (ConnectionError, RuntimeError) as error:
            raise RayError(f"cannot reach the Ray cluster at {self.gcs_address}: {error}") from error

    def close(self) -> None:
        import ray

        ray.shutdown()

    def sync(self, now_s: float) -> None:
        """Bring the log up to what this cell's jobs have done since the last call, and start what is queued."""
        known = self._list_jobs()
        jobs = self.fleet.open_jobs
        self._last_saves.keep({job.job_id for job in jobs if job.moving or job.state is JobState.STOPPING})
        for job in jobs:
            if not job.foreign:
                with _alone(job):
                    self._follow(job, known.get(submission_of(job)), now_s)
        for job in self.fleet.open_jobs:
            with _alone(job):
                self._hear(job, now_s)

    def _list_jobs(self) -> dict[str, RayJob]:
        try:
            rows = self._api.list_jobs()
        except (OSError, RuntimeError) as error:
            raise RayError(f"Ray's Jobs API at {self.dashboard_url} does not answer: {error}") from error
        return {row.submission_id: _ray_job(row) for row in rows if row.submission_id}

    @property
    def _api(self) -> JobsPort:
        if self.jobs is None:
            raise RayError("the agent has not joined its Ray cluster yet", "call connect() first")
        return self.jobs

    # --- starting and ending -------------------------------------------------------------------------------------

    def _follow(self, job: JobRecord, ray_job: RayJob | None, now_s: float) -> None:
        """One job of ours, and what Ray lists of it. A stop may have come before the start, or been lost on the way:
        it is asked for until Ray has no such job, or says that it ended."""
        if job.moving and job.state is not JobState.STOPPING:
            self._leave(job, ray_job, now_s)
        elif job.state is JobState.STOPPING and (ray_job is None or not is_over(_RAY_STATUS[ray_job.status])):
            self._end(job, now_s)
        elif ray_job is None:
            self._start(job, now_s)
        else:
            self._settle(job, ray_job, now_s)

    def _leave(self, job: JobRecord, ray_job: RayJob | None, now_s: float) -> None:
        """A job that moves is ended here, and waits to be placed elsewhere. One that succeeded first stays so."""
        if ray_job is not None and ray_job.status == "SUCCEEDED":
            self._settle(job, ray_job, now_s)
            return
        has_left = ray_job is None or is_over(_RAY_STATUS[ray_job.status])
        if not has_left:
            save = self._last_save(job, now_s)
            if save is LastSave.UNDER_WAY or (save is LastSave.TOO_LATE and self._stays(job, now_s)):
                return
            has_left = not self.stop_job(submission_of(job))
        if has_left and job.state is not JobState.QUEUED:
            self._hear(job, now_s)  # its last words
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.QUEUED, reason=job.moving))

    def _end(self, job: JobRecord, now_s: float) -> None:
        save = self._last_save(job, now_s)
        if save is LastSave.UNDER_WAY:
            return
        if save is LastSave.TOO_LATE:
            self._tell_unsaved(job, "ended without its last save", now_s)
        if not self.stop_job(submission_of(job)):
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.STOPPED))

    def _stays(self, job: JobRecord, now_s: float) -> bool:
        """Whether a job that is to move, and cannot save, waits for another try."""
        stays = job.moves_put_off < MOST_PUT_OFF
        self._tell_unsaved(job, "not moved yet" if stays else "moves without its last save", now_s)
        if stays:
            self.record(MoveRequested(at_s=now_s, job_id=job.job_id, reason=job.moving, called_off=True))
            self._last_saves.forget(job.job_id)  # should it be told to end before the next tick, its time begins anew
        return stays

    def _tell_unsaved(self, job: JobRecord, what: str, now_s: float) -> None:
        if self._last_saves.is_news(job.job_id):
            told = unsaved(job, what, self.save_s, now_s)
            log.error("job %s: %s", job.job_id, told.reason)
            self.record(told)

    def _last_save(self, job: JobRecord, now_s: float) -> LastSave:
        """Of a job that is to end. It is granted nothing any more, so it saves at its next step and lets go; that it
        has done so shows as no workers."""
        if job.job_id not in self.heard:  # this controller is new
            self._hear(job, now_s)
        if self.heard.get(job.job_id, job) is None:
            return LastSave.NOTHING
        found = self._last_saves.look(job)
        if found is not LastSave.NOTHING:
            self.grant({job.job_id: Target(1, 0)})
        return found

    def _start(self, job: JobRecord, now_s: float) -> None:
        """The submission id is made of the job id, so that a controller that died in between starts nothing twice."""
        spec = job.spec
        metadata = {"tenant": spec.tenant, "name": spec.name}
        try:
            self._api.submit_job(
                entrypoint=entrypoint_of(job, self.storage, enter=self.same_disk),
                submission_id=submission_of(job),
                runtime_env=self._runtime_env(spec),
                metadata=metadata,
            )
        except (RuntimeError, ValueError) as error:
            if "already exists" in str(error):
                return  # the listing lags behind: it was started before
            reason = f"Ray refused the job: {_last_line(str(error))}"
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=JobState.FAILED, reason=reason))
        except OSError as error:
            raise RayError(f"{job.job_id} is not started yet: {error}", "it is tried again by itself") from error

    def _runtime_env(self, spec: JobSpec) -> dict[str, Any] | None:
        found: dict[str, Any] = {"env_vars": dict(spec.env)} if spec.env else {}
        if spec.working_dir and not self.same_disk:
            found["working_dir"] = spec.working_dir
        return found or None

    def stop_job(self, job_id: str) -> bool:
        """False where Ray has no such job. Returns at once; asking twice does no harm."""
        try:
            self._api.stop_job(job_id)
        except (OSError, RuntimeError) as error:
            if "does not exist" in str(error):
                return False
            raise JobError(f"cannot stop {job_id}: {_last_line(str(error))}", "try again in a moment") from error
        return True

    def logs(self, job_id: str) -> str:
        try:
            return str(self._api.get_job_logs(job_id))
        except (OSError, RuntimeError) as error:
            if "does not exist" in str(error):
                return ""
            raise JobError(f"cannot read the log of {job_id}: {error}", "try again in a moment") from error

    def _settle(self, job: JobRecord, ray_job: RayJob, now_s: float) -> None:
        """Ray's word on a job's state becomes ours, where the table has a way there."""
        state = _RAY_STATUS[ray_job.status]
        if state is JobState.QUEUED or (state is JobState.RUNNING and job.state is JobState.RECOVERING):
            return  # no news: it starts; and Ray does not know of recovering
        if state is JobState.FAILED and job.state is JobState.STOPPING:
            state = JobState.STOPPED
        if state is not job.state and state in JOB_TRANSITIONS[job.state]:
            self._hear(job, now_s)  # the last words of a job that has just ended
            reason = first_line(ray_job.message) if state is JobState.FAILED else ""
            self.record(JobStateChanged(at_s=now_s, job_id=job.job_id, state=state, reason=reason))

    # --- training reports ----------------------------------------------------------------------------------------

    def _hear(self, job: JobRecord, now_s: float) -> None:
        try:
            report = self.coordinators.poll(job.job_id, job.reported_sequence)
        except TimeoutError:
            return  # busy, not gone: what it said last still holds
        if report is None:
            self._forget(job.job_id)
            return
        events = [decode(payload) for payload in report["events"]]
        self.record(*events, *_recovery(job, events, now_s))
        self.heard[job.job_id] = Wish(**report["wish"]) if report["wish"] else None
        if "target" in report:  # what it really has: an order may have been lost, or refused as out of date
            self._granted.pop(job.job_id, None)
            self._rest_heard_s.pop(job.job_id, None)
            if report["target"]:
                found = self._granted[job.job_id] = Target(**report["target"])
                if not found.replicas:
                    self._rest_heard_s[job.job_id] = self.steady_s()

    def _forget(self, job_id: str) -> None:
        """It no longer trains. Should the same program train once more, its new coordinator knows of no grant."""
        if job_id in self.heard:
            self.heard[job_id] = None
        self._granted.pop(job_id, None)
        self._rest_heard_s.pop(job_id, None)

    def knows_of_rest(self, job_id: str) -> bool:
        """Whether its coordinator said a moment ago that it is granted nothing. Asked from other cells' threads."""
        heard_s = self._rest_heard_s.get(job_id)
        return heard_s is not None and self.steady_s() - heard_s < HEARD_S

    def wishes(self) -> list[Wish]:
        """What the open jobs could use. Until a job's coordinator speaks, its spec does: nodes boot while the driver
        starts. For one that is being stopped, nothing is bought any more."""
        jobs = [job for job in self.fleet.open_jobs if job.state is not JobState.STOPPING]
        found = (self.heard[job.job_id] if job.job_id in self.heard else spec_wish(job) for job in jobs)
        return [wish for wish in found if wish is not None]

    def grant(self, targets: Mapping[str, Target]) -> None:
        """Tell the coordinators how many replicas the platform grants; unchanged grants are not sent again."""
        for job_id, target in targets.items():
            last = self._granted.get(job_id)
            if last and replace(last, epoch=target.epoch) == target:
                continue
            if job_id in self._last_saves and target.replicas:
                continue  # planned before it was told to end
            epoch = last.epoch + 1 if last else max(1, int(time.time()))  # of a coordinator that was not heard yet
            granted = replace(target, epoch=epoch)
            if self.coordinators.set_target(job_id, granted):
                self._granted[job_id] = granted


@contextmanager
def _alone(job: JobRecord) -> Iterator[None]:
    """What goes wrong with one job must not keep the others from being looked at."""
    try:
        yield
    except IllegalTransition as error:
        log.info("job %s was changed while it was looked at; the next tick looks again: %s", job.job_id, error.message)
    except TradewindError as error:
        log.error("%s", error)
    except Exception:
        log.exception("job %s could not be looked at; the others go on", job.job_id)


def first_line(message: str) -> str:
    """Of why Ray says that a job failed: it appends the log, which is kept elsewhere."""
    return message.partition("\n")[0].partition(", last available logs")[0].removeprefix("Job entrypoint ")


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


def _last_line(text: str) -> str:
    """The message of an answer of Ray's, which is a traceback and a full stop of its own."""
    return text.rstrip(". \n").rpartition("\n")[2].strip()


def _ray_job(row: Any) -> RayJob:
    return RayJob(
        job_id=row.submission_id,
        status=str(getattr(row.status, "value", row.status)),
        message=(row.message or "").strip(),
    )
