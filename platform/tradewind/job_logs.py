"""What jobs print: asked of the cell where they run, and kept when they leave it. An edge: files beside the log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.cells.cell import Cell, survived
from tradewind.entrypoint import submission_of
from tradewind.states import is_over


@dataclass(frozen=True, slots=True)
class JobLogs:
    """A job that moves leaves a part in each cell; put together they are its log."""

    folder: Path
    cells: Mapping[str, Cell]

    def read(self, job: JobRecord) -> bytes:
        kept = self.folder / f"{job.job_id}.log"
        return kept.read_bytes() if kept.exists() else self._parts(job) + self._printed(job)

    def keep_part(self, job: JobRecord) -> None:
        """It is about to leave its cell."""
        if job.placements:
            with survived():
                self._keep(f"{job.job_id}.part{job.placements}", self._printed(job))

    def keep_ended(self, jobs: Iterable[JobRecord]) -> None:
        """What a job printed outlives the Ray cluster that ran it."""
        for job in jobs:
            if is_over(job.state) and not (self.folder / f"{job.job_id}.log").exists():
                with survived():
                    self._keep(f"{job.job_id}.log", self._parts(job) + self._printed(job))

    def _printed(self, job: JobRecord) -> bytes:
        """In the cell where it is, or was last."""
        cell = self.cells.get(job.cell)
        if cell is None or not cell.head.alive:
            return b""
        return cell.agent.logs(submission_of(job)).encode(errors="replace")

    def _parts(self, job: JobRecord) -> bytes:
        parts = (self.folder / f"{job.job_id}.part{number}" for number in range(1, job.placements))
        return b"".join(part.read_bytes() for part in parts if part.exists())

    def _keep(self, name: str, text: bytes) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / name, text.decode(errors="replace"))
