"""Keeps budgets: before each tick it looks what is left, warns, stops who must stop, and is asked before each launch.

The decisions are pure (`cost/budget.py`); this is where they meet the journal. Cells ask from their own threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from tradewind.autoscaler.fleet import JobRecord
from tradewind.cost.budget import Budgets, Purses, notices_of, purses
from tradewind.errors import JobError
from tradewind.events import DecisionRecorded
from tradewind.journal import Journal
from tradewind.model import Contract, JobSpec, Offer
from tradewind.states import JobState, is_over
from tradewind.units import format_usd

# A launch that was admitted is on record long before this: until then, it counts although the record does not have it.
ADMITTED_S = 10.0


class BudgetKeeper:
    """`admit` and `closed` are asked by the loop (autoscaler/treasury.py)."""

    def __init__(
        self, journal: Journal, budgets: Budgets | None = None, clock: Callable[[], float] = time.time
    ) -> None:
        self._journal, self._budgets, self._clock = journal, budgets or Budgets(), clock
        self._one = threading.Lock()
        self._purses = Purses((), {})
        self._admitted: deque[tuple[float, int, tuple[str, ...]]] = deque()
        self._said: set[tuple[str, str, int]] = set()

    def tick(self, stop: Callable[[str], object]) -> None:
        """`stop` asks a job to save and stop."""
        with self._journal.reading() as (fleet, _):
            jobs = {job.job_id: job for job in fleet.open_jobs}
        found = self._look({job_id: job.spec.tenant for job_id, job in jobs.items()})
        self._warn(found)
        for job_id, why in found.must_stop().items():
            if jobs[job_id].state is not JobState.STOPPING:
                self._say(job_id, "stopped, with a checkpoint: " + why)
                stop(job_id)

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:
        with self._one:
            why = self._purses.admit(offer, job_ids)
            if not why:
                self._admitted.append((self._clock(), offer.price_uusd_per_h or 0, tuple(job_ids)))
            return why

    def closed(self) -> dict[str, str]:
        with self._one:
            return self._purses.closed()

    def _look(self, open_jobs: dict[str, str]) -> Purses:
        """Under the lock from the record to the new purses: no launch is admitted in between by the old ones."""
        now_s = self._clock()
        with self._one, self._journal.reading() as (_, ledger):
            while self._admitted and self._admitted[0][0] < now_s - ADMITTED_S:
                self._admitted.popleft()
            admitted = [(price, job_ids) for _, price, job_ids in self._admitted]
            self._purses = purses(ledger, self._budgets, open_jobs, now_s, admitted)
            return self._purses

    def _warn(self, found: Purses) -> None:
        for purse in found.all:
            for notice in notices_of(purse):
                key = (notice.subject, notice.key, purse.limit_uusd)
                if key not in self._said:
                    self._said.add(key)
                    self._say(notice.subject, notice.text)

    def _say(self, subject: str, reason: str) -> None:
        with self._journal.reading() as (fleet, _):
            jobs = (subject,) if subject in fleet.jobs else ()
        self._journal.record(
            DecisionRecorded(at_s=self._clock(), action="budget", subject=subject, reason=reason, jobs=jobs)
        )


def raised(spent_uusd: int, limit_uusd: int | None, add_uusd: int | None, set_uusd: int | None) -> int | None:
    """The new budget of a job: what it was and so much more (`--budget +20`), or so much in all (`--budget 50`)."""
    if add_uusd is not None:
        return max(limit_uusd if limit_uusd is not None else spent_uusd, spent_uusd) + add_uusd
    return limit_uusd if set_uusd is None else set_uusd


def continued(job: JobRecord, spent_uusd: int, limit_uusd: int | None) -> JobSpec:
    """The spec of a job that goes on where one that is over has stopped. It may cost what the old one has left."""
    if job.foreign:
        raise JobError(f"{job.job_id} was sent by plain `ray job submit`", "send it again in the same way")
    if not is_over(job.state):
        raise JobError(f"{job.job_id} is {job.state}, not over", "its budget alone can be changed: --budget +20")
    if limit_uusd is not None and limit_uusd <= spent_uusd:
        used = f"{format_usd(spent_uusd)} of {format_usd(limit_uusd)}"
        raise JobError(f"the budget of {job.job_id} is used: {used}", "give it more with --budget +20")
    budget = None if limit_uusd is None else limit_uusd - spent_uusd
    contract = Contract(deadline_at_s=job.spec.contract.deadline_at_s, budget_uusd=budget)
    return replace(job.spec, contract=contract, continues=job.spec.continues or job.job_id)
