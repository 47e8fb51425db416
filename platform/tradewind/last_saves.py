"""The last save of a job that is to end or to leave its cell: whether there is one to wait for, and what is said where
it does not succeed.

A job that is to end is granted nothing any more: it saves at its next step and lets go of its workers. A save may fail
for as long as its storage does. What then happens depends on who asked:

- a budget, or a person: it ends when the time for it is over. What is lost is told.
- a move to another cell: it stays, and is asked again later; elsewhere it could not load its state from that storage,
  either. After `MOST_PUT_OFF` tries it leaves all the same, since in this cell it cannot go on.

(A rest in a dirty hour is given up: rests.py.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from tradewind.autoscaler.fleet import JobRecord
from tradewind.events import DecisionRecorded
from tradewind.units import format_duration

MOST_PUT_OFF = 2


class LastSave(Enum):
    NOTHING = auto()  # there are no workers that hold anything
    UNDER_WAY = auto()
    TOO_LATE = auto()


@dataclass(slots=True)
class LastSaves:
    """Since when each has been told. By a steady clock: one that is set must not cut off a save."""

    save_s: float
    steady_s: Callable[[], float] = time.monotonic
    _since_s: dict[str, float] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)  # people, of those that could not

    def look(self, job: JobRecord) -> LastSave:
        if not job.holds_state:
            return LastSave.NOTHING
        since_s = self._since_s.setdefault(job.job_id, self.steady_s())
        return LastSave.UNDER_WAY if self.steady_s() - since_s < self.save_s else LastSave.TOO_LATE

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._since_s

    def is_news(self, job_id: str) -> bool:
        """Whether people have not been told yet that this one could not save; now they are."""
        is_news = job_id not in self._told
        self._told.add(job_id)
        return is_news

    def forget(self, job_id: str) -> None:
        """It is not to end any more."""
        self._since_s.pop(job_id, None)
        self._told.discard(job_id)

    def keep(self, job_ids: Collection[str]) -> None:
        """Nobody else is to end any more."""
        self._since_s = {job_id: since_s for job_id, since_s in self._since_s.items() if job_id in job_ids}
        self._told.intersection_update(job_ids)


def unsaved(job: JobRecord, what: str, within_s: float, now_s: float) -> DecisionRecorded:
    """For people: why it was not saved, and what of it is at stake."""
    why = f" ({job.phase_reason})" if job.phase_reason else ""
    last = (
        "nothing of it is saved" if job.checkpoint_step is None else f"its last save is of step {job.checkpoint_step}"
    )
    reason = (
        f"{what}: it could not save within {format_duration(within_s)}{why}; {last}, it has come to step {job.step}"
    )
    return DecisionRecorded(at_s=now_s, action="unsaved", subject=job.job_id, reason=reason, jobs=(job.job_id,))
