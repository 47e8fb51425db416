"""The ports to Ray (RayPort, JobsPort, CoordinatorsPort) of a cell whose head dials out: calls go down its line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tradewind.autoscaler.ray_snapshot import DrainReason, RayReport, RaySnapshot
from tradewind.cells.calls import JobRow
from tradewind.cells.line import Line
from tradewind.errors import RayError
from tradewind.model import Target

SNAPSHOT_TIMEOUT_S = 20.0  # of ten thousand nodes
SUBMIT_TIMEOUT_S = 60.0  # the head fetches and unpacks the job's folder meanwhile
LOGS_TIMEOUT_S = 20.0


class RemoteRay:
    """RayPort."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def snapshot(self) -> RaySnapshot:
        found: RaySnapshot = self._line.call("ray.snapshot", timeout_s=SNAPSHOT_TIMEOUT_S)
        return found

    def drain(
        self, ray_node_id: str, reason: DrainReason, message: str, deadline_s: float | None = None
    ) -> tuple[bool, str]:
        accepted, why = self._line.call("ray.drain", ray_node_id, reason, message, deadline_s)
        return accepted, why

    def report(self, report: RayReport) -> None:
        self._line.call("ray.report", report)


class RemoteJobs:
    """JobsPort. As with Ray's own client, a head that does not answer is an OSError."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def _ask(self, name: str, *arguments: Any, timeout_s: float = 10.0) -> Any:
        try:
            return self._line.call(f"jobs.{name}", *arguments, timeout_s=timeout_s)
        except RayError as error:
            raise ConnectionError(error.message) from error

    def list_jobs(self) -> Sequence[JobRow]:
        found: Sequence[JobRow] = self._ask("list_jobs")
        return found

    def submit_job(
        self, *, entrypoint: str, submission_id: str, runtime_env: dict[str, Any] | None, metadata: dict[str, str]
    ) -> str:
        given = (entrypoint, submission_id, runtime_env, metadata)
        return str(self._ask("submit_job", *given, timeout_s=SUBMIT_TIMEOUT_S))

    def stop_job(self, job_id: str) -> bool:
        return bool(self._ask("stop_job", job_id))

    def get_job_logs(self, job_id: str) -> str:
        return str(self._ask("get_job_logs", job_id, timeout_s=LOGS_TIMEOUT_S))


class RemoteCoordinators:
    """CoordinatorsPort."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def poll(self, job_id: str, after_sequence: int) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self._line.call("coordinators.poll", job_id, after_sequence)
        return found

    def set_target(self, job_id: str, target: Target) -> bool:
        return bool(self._line.call("coordinators.set_target", job_id, target))
