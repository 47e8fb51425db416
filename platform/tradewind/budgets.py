"""Keeps budgets: before each tick it looks what is left, warns, stops who must stop, and is asked before each launch.

The decisions are pure (`cost/budget.py`); this is where they meet the journal. Cells ask from their own threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace

from tradewind.api import job_not_found
from tradewind.api_requests import ResumeRequest
from tradewind.autoscaler.fleet import JobRecord
from tradewind.cells.cell import survived
from tradewind.cost.budget import Budgets, Purses, Scope, notices_of, purses
from tradewind.cost.ledger import Ledger
from tradewind.errors import JobError
from tradewind.events import BudgetChanged, DecisionRecorded
from tradewind.journal import Journal
from tradewind.model import JobSpec, Offer
from tradewind.states import JobState, is_over
from tradewind.units import format_usd

# A launch that was admitted is on record long before this: until then, it counts although the record does not have it.
ADMITTED_S = 10.0
REFUSED_S = 60.0  # for so long, what a budget does not pay for is not tried again


class BudgetKeeper:
    """`admit` and `closed` are asked by the loop (autoscaler/treasury.py)."""

    def __init__(
        self,
        journal: Journal,
        budgets: Budgets | None = None,
        clock: Callable[[], float] = time.time,
        steady_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._journal, self._budgets, self._clock, self._steady_s = journal, budgets or Budgets(), clock, steady_s
        self._one = threading.Lock()
        self._purses = Purses((), {})
        self._admitted: deque[tuple[float, int, tuple[str, ...]]] = deque()
        self._refused: dict[str, tuple[float, str]] = {}  # until when, and why
        self._said: set[tuple[str, str, int]] = set()

    def tick(self, stop: Callable[[str, str], object]) -> None:
        """`stop` asks a job to save and stop, for a reason."""
        with self._journal.reading() as (fleet, _):
            jobs = {job.job_id: job for job in fleet.open_jobs}
        found = self._look({job_id: job.spec.tenant for job_id, job in jobs.items()})
        self._warn(found)
        for job_id, why in found.must_stop().items():
            if jobs[job_id].state is not JobState.STOPPING:
                self._say_once(job_id, "stopped", 0, "stopped, with a checkpoint: " + why)
                with survived():  # one that cannot be stopped must not keep the others running
                    stop(job_id, why)

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:
        with self._one:
            why, now_s = self._purses.admit(offer, job_ids), self._clock()
            if why:
                self._refused.update((job_id, (now_s + REFUSED_S, why)) for job_id in job_ids)
            else:
                self._admitted.append((self._steady_s(), offer.price_uusd_per_h or 0, tuple(job_ids)))
            poor = self._purses.too_poor(offer.price_uusd_per_h, job_ids) if why else {}
        whose = "" if job_ids else " for tasks that wait, which may be its own"  # Ray does not tell whose they are
        for job_id, short in poor.items():
            self._say_once(job_id, "refused", 0, f"nothing is bought{whose}: {offer.market} would pass {short}")
        return why

    def closed(self) -> dict[str, str]:
        """Who was refused a moment ago is not planned for again at every tick."""
        with self._one:
            now_s = self._clock()
            self._refused = {job_id: known for job_id, known in self._refused.items() if _is_ahead(known[0], now_s)}
            return {job_id: why for job_id, (_, why) in self._refused.items()} | self._purses.closed()

    def left_uusd(self) -> dict[str, int]:
        with self._one:
            return {purse.name: purse.spendable_uusd for purse in self._purses.all if purse.scope is Scope.JOB}

    def resume(self, job_id: str, request: ResumeRequest) -> JobSpec | None:
        """The spec of a job that goes on with one that is over; None: the budget of one that is not was changed."""
        with self._journal.reading() as (fleet, ledger):
            if job_id not in fleet.jobs:
                raise job_not_found(job_id, fleet.jobs)
            found = resumption(fleet.jobs[job_id], ledger, request, self._clock())
            if isinstance(found, JobSpec):
                return found
            self._journal.record(found)
            self._refused.pop(job_id, None)
            return None

    def _look(self, open_jobs: dict[str, str]) -> Purses:
        """Under the lock from the record to the new purses: no launch is admitted in between by the old ones."""
        with self._one, self._journal.reading() as (_, ledger):
            now_s, steady_s = self._clock(), self._steady_s()  # one that is set back must not drop any
            while self._admitted and steady_s - self._admitted[0][0] > ADMITTED_S:
                self._admitted.popleft()
            admitted = [(price, job_ids) for _, price, job_ids in self._admitted]
            self._purses = purses(ledger, self._budgets, open_jobs, now_s, admitted)
            return self._purses

    def _warn(self, found: Purses) -> None:
        for purse in found.all:
            for notice in notices_of(purse):
                self._say_once(notice.subject, notice.key, purse.limit_uusd, notice.text)

    def _say_once(self, subject: str, what: str, limit_uusd: int, text: str) -> None:
        if (key := (subject, what, limit_uusd)) not in self._said:
            self._said.add(key)
            self._say(subject, text)

    def _say(self, subject: str, reason: str) -> None:
        with self._journal.reading() as (fleet, _):
            jobs = (subject,) if subject in fleet.jobs else ()
        self._journal.record(
            DecisionRecorded(at_s=self._clock(), action="budget", subject=subject, reason=reason, jobs=jobs)
        )


def _is_ahead(until_s: float, now_s: float) -> bool:
    """Not by more than it ever was: then the clock was set back, and it would be a refusal for hours."""
    return 0 < until_s - now_s <= REFUSED_S


def resumption(job: JobRecord, ledger: Ledger, request: ResumeRequest, now_s: float) -> JobSpec | BudgetChanged:
    """What becomes of a request to go on: another job in the place of one that is over, else a larger budget."""
    spent_uusd, limit_uusd = ledger.job_cost(job.job_id, now_s), ledger.job(job.job_id).budget_uusd
    if request.add_uusd is not None and limit_uusd is None and not is_over(job.state):
        raise JobError(f"{job.job_id} has no budget that could be raised", "to give it one: --budget 50, in all")
    if request.add_uusd is not None:  # `--budget +20`: so much more than it was
        limit_uusd = max(spent_uusd, limit_uusd or 0) + request.add_uusd
    elif request.budget_uusd is not None:
        limit_uusd = request.budget_uusd
    if is_over(job.state):
        return continued(job, spent_uusd, limit_uusd)
    if limit_uusd is None:
        raise JobError(f"{job.job_id} is {job.state} and has no budget", "nothing has to be resumed")
    return BudgetChanged(at_s=now_s, job_id=job.job_id, budget_uusd=limit_uusd)


def continued(job: JobRecord, spent_uusd: int, limit_uusd: int | None) -> JobSpec:
    """The spec of a job that goes on where one that is over has stopped. It may cost what the old one has left."""
    if job.state is JobState.SUCCEEDED:
        raise JobError(f"{job.job_id} has succeeded: nothing is left to do", "to run it anew, submit it again")
    if job.foreign:
        raise JobError(f"{job.job_id} was sent by plain `ray job submit`", "send it again in the same way")
    if limit_uusd is not None and limit_uusd <= spent_uusd:
        used = f"{format_usd(spent_uusd)} of {format_usd(limit_uusd)}"
        raise JobError(f"the budget of {job.job_id} is used: {used}", "give it more with --budget +20")
    budget = None if limit_uusd is None else limit_uusd - spent_uusd
    contract = replace(job.spec.contract, budget_uusd=budget)
    return replace(job.spec, contract=contract, continues=job.spec.continues or job.job_id)
