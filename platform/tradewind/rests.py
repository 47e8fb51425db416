"""Keeps jobs to clean hours where the fleet wishes so: looks once a minute, and when there are new figures, who rests.
The loop asks `resting`.

The decision is pure (`cost/clean_hours.py`); this is where it meets the journal and the file with the grid's figures.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tradewind.autoscaler.fleet import JobRecord
from tradewind.cost.carbon import HOUR_S
from tradewind.cost.clean_hours import Candidate, CleanHours, Models, window_of
from tradewind.cost.grid_file import Grid, read_grid
from tradewind.errors import ConfigError
from tradewind.journal import Journal
from tradewind.last_saves import unsaved
from tradewind.model import Phase
from tradewind.states import JobState

log = logging.getLogger(__name__)

LOOK_S = 60.0
SAVE_S = 300.0  # for the save before a rest; longer where a start takes longer, too
CARBON_COLUMN = "g_per_kwh"  # other columns (prices, say) are no carbon
_GONE = -1  # in the place of the time of a file that is not there


class Rests:
    """`wish` None: nobody ever rests."""

    def __init__(
        self,
        journal: Journal,
        wish: CleanHours | None = None,
        path: Path | None = None,
        column: str = "",
        clock: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
        knows: Callable[[str], bool] = lambda job_id: True,  # noqa: ARG005
    ) -> None:
        """`knows`: whether a job has been told to rest. Not all are at once, or at all: contracts may be in haste, and
        heads silent."""
        self._journal, self._wish, self._path, self._column, self._clock = journal, wish, path, column, clock
        self._steady_s, self._knows = steady_s, knows
        self._one = threading.Lock()
        self._looked_at_s = -LOOK_S
        self._resting: dict[str, str] = {}
        self._ran_in: dict[str, int] = {}  # the last clock hour in which it was told to run
        self._asked_at_s: dict[str, float] = {}  # since when those who know that they are to rest have not saved
        self._grid, self._changed_ns, self._models = Grid(), 0, Models()

    def resting(self) -> Mapping[str, str]:
        """Who rests now, each with the reason. Called from the loops' threads, at every tick."""
        now_s = self._clock()
        with self._one:
            if self._wish is None:
                return self._resting
            if self._read() or not 0 <= now_s - self._looked_at_s < LOOK_S:
                self._looked_at_s = now_s
                self._resting = self._without_unsaved(self._look(self._wish, now_s), now_s)
            return self._resting

    def intensity(self, region: str, from_s: float, until_s: float) -> float | None:
        """gCO2/kWh of the grid while something ran there. None: the file tells of something else, or not of then. Takes
        no lock, since whoever asks may hold the journal's: the grid is one value, read anew by `resting`."""
        if self._wish is None or self._column != CARBON_COLUMN:
            return None
        return self._grid.mean(self._wish.zones.get(region, self._wish.zone), from_s, until_s)

    def _look(self, wish: CleanHours, now_s: float) -> dict[str, str]:
        hour, found = int(now_s // HOUR_S), dict[str, str]()
        with self._journal.reading() as (fleet, ledger):
            for job in fleet.open_jobs:
                candidate = self._candidate(job, hour)
                if candidate is None:
                    continue
                window = window_of(candidate, ledger, self._grid, wish, now_s, self._models)
                if window is not None and not window.run:
                    found[job.job_id] = window.reason
                elif window is not None:
                    self._ran_in[job.job_id] = hour
            self._ran_in = {job_id: at for job_id, at in self._ran_in.items() if at == hour}
        return found

    def _without_unsaved(self, found: dict[str, str], now_s: float) -> dict[str, str]:
        """Who cannot save does not rest in this hour: clean hours are a wish, and not worth the work of an hour. It
        goes on, and people are told."""
        save_s, steady_s = max(SAVE_S, self._wish.restart_s if self._wish else 0.0), self._steady_s()
        with self._journal.reading() as (fleet, _):
            holding = [fleet.jobs[job_id] for job_id in found if fleet.jobs[job_id].holds_state]
        since_s = {job.job_id: self._asked_at_s.get(job.job_id, steady_s) for job in holding if self._knows(job.job_id)}
        unable = [job for job in holding if steady_s - since_s.get(job.job_id, steady_s) >= save_s]
        for job in unable:
            told = unsaved(job, "does not rest in this hour, and goes on", save_s, now_s)
            log.warning("job %s: %s", job.job_id, told.reason)
            self._journal.record(told)
            self._ran_in[job.job_id] = int(now_s // HOUR_S)
            del found[job.job_id]
        self._asked_at_s = {job_id: at_s for job_id, at_s in since_s.items() if job_id in found}
        return found

    def _candidate(self, job: JobRecord, hour: int) -> Candidate | None:
        """A foreign job knows of no checkpoints: nobody can tell it to rest."""
        deadline_at_s = job.spec.contract.deadline_at_s
        if deadline_at_s is None or job.foreign or job.state is JobState.STOPPING:
            return None
        if job.phase is Phase.RESTARTING and job.workers:
            return None  # those who are left cannot save before they have met
        return Candidate(job.job_id, deadline_at_s, bool(job.holdings), self._ran_in.get(job.job_id) == hour)

    def _read(self) -> bool:
        """Whether there are new figures. A file that cannot be read leaves what was known, which soon counts as old; it
        is tried again when it changes."""
        if self._path is None:
            return False
        try:
            changed_ns = self._path.stat().st_mtime_ns
        except OSError:
            changed_ns = _GONE
        if changed_ns == self._changed_ns:
            return False
        self._changed_ns = changed_ns
        try:
            self._grid = read_grid(self._path, self._column)
        except (OSError, ConfigError) as error:
            log.warning("the grid's figures could not be read, nobody rests on old ones: %s", error)
            return False
        return True
