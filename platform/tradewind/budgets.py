"""Keeps budgets: before each tick it looks what is left, warns, stops who must stop, and is asked before each launch.

The decisions are pure (`cost/budget.py`); this is where they meet the journal. Cells ask from their own threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil

from tradewind.api import job_not_found
from tradewind.api_requests import ResumeRequest
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import View
from tradewind.cells.cell import survived
from tradewind.cost.budget import Budgets, Purse, Purses, Scope, duration_words, notices_of, purses
from tradewind.cost.history import NodeHistory
from tradewind.cost.ledger import Ledger
from tradewind.errors import JobError
from tradewind.events import BudgetChanged, DecisionRecorded
from tradewind.journal import Journal
from tradewind.model import JobSpec, Offer
from tradewind.states import JobState, is_over
from tradewind.units import format_usd

# A launch that was admitted is on record long before this; until it is, it counts although the record has it not.
ADMITTED_S = 10.0
REFUSED_S = 60.0  # for so long, what a budget does not pay for is not tried again


@dataclass(frozen=True, slots=True)
class _Admitted:
    """A launch that may not be on record yet."""

    steady_s: float
    price_uusd_per_h: int
    job_ids: tuple[str, ...]
    known: int  # nodes that were on record before

    def is_one(self, node: NodeHistory) -> bool:
        return (node.offer.price_uusd_per_h or 0) == self.price_uusd_per_h and set(node.bought_for) == set(self.job_ids)


class BudgetKeeper:
    """`admit`, `refuses` and `closed` are asked by the loop (autoscaler/treasury.py)."""

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
        self._admitted: deque[_Admitted] = deque()
        self._refused: dict[str, tuple[float, Offer]] = {}  # until when, and what
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
            why = self._purses.admit(offer, job_ids)
            if why:
                refused = (self._clock() + REFUSED_S, offer)
                self._refused = dict.fromkeys(job_ids, refused) | self._refused
            else:
                self._note_admitted(offer, tuple(job_ids))
            poor = self._purses.too_poor(offer.price_uusd_per_h, job_ids) if why else {}
        self._say_poor(poor, job_ids)
        return why

    def refuses(self, offer: Offer, job_ids: Collection[str]) -> str:
        """What is refused before it is planned is looked at anew at each tick: prices and budgets change. Where the
        cheapest could be paid, and what was chosen could not, that is not planned for again at once."""
        with self._one:
            self._forget()
            lately = [self._refused[job_id][1] for job_id in job_ids if job_id in self._refused]
            offer = next((each for each in (offer, *lately) if self._purses.refuses(each, job_ids)), offer)
            why = self._purses.refuses(offer, job_ids)
            poor = self._purses.too_poor(offer.price_uusd_per_h, job_ids) if why else {}
        self._say_poor(poor, job_ids)
        return why

    def has_budgets(self) -> bool:
        with self._one:
            return bool(self._purses.all)

    def _note_admitted(self, offer: Offer, job_ids: tuple[str, ...]) -> None:
        """It is the turn of who asks: no other launch comes on record before this one. Where a dearer one was refused
        just before, this is what is bought in its place."""
        for job_id in job_ids:
            self._refused.pop(job_id, None)
        with self._journal.reading() as (_, ledger):
            known = len(ledger.nodes)
        self._admitted.append(_Admitted(self._steady_s(), offer.price_uusd_per_h or 0, job_ids, known))

    def _say_poor(self, poor: Mapping[str, str], job_ids: Collection[str]) -> None:
        whose = "" if job_ids else " for tasks that wait, which may be its own"  # Ray does not tell whose they are
        for job_id, short in poor.items():
            self._say_once(job_id, "refused", 0, f"nothing is bought{whose}: {short}")

    def closed(self) -> dict[str, str]:
        with self._one:
            self._forget()
            return self._purses.closed()

    def _forget(self) -> None:
        now_s = self._clock()
        self._refused = {job_id: known for job_id, known in self._refused.items() if _is_ahead(known[0], now_s)}

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
            self._said.discard((job_id, "refused", 0))  # should the new one be too small as well, it is told again
            return None

    def _look(self, open_jobs: dict[str, str]) -> Purses:
        """Under the lock from the record to the new purses: no launch is admitted in between by the old ones."""
        with self._one, self._journal.reading() as (_, ledger):
            now_s, steady_s = self._clock(), self._steady_s()  # one that is set back must not drop any
            while self._admitted and steady_s - self._admitted[0].steady_s > ADMITTED_S:
                self._admitted.popleft()
            admitted = [(each.price_uusd_per_h, each.job_ids) for each in _not_on_record(self._admitted, ledger)]
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


def _not_on_record(admitted: Collection[_Admitted], ledger: Ledger) -> list[_Admitted]:
    """Those that are would be counted twice."""
    since = min((each.known for each in admitted), default=len(ledger.nodes))
    fresh = dict(enumerate(islice(ledger.nodes.values(), since, None), since))
    missing = []
    for each in admitted:
        place = next((index for index, node in fresh.items() if index >= each.known and each.is_one(node)), None)
        if place is None:
            missing.append(each)
        else:
            del fresh[place]
    return missing


def start_unpaid(job_id: str, spec: JobSpec, horizon_s: float, views: Collection[View]) -> str:
    """Why nothing can be bought for a new job: its budget does not pay for the cheapest machines on which it can start.
    Empty: it does, or it is not known what it needs and what that costs."""
    limit_uusd, shape = spec.contract.budget_uusd, Shape.of(spec.worker_resources, spec.worker_labels)
    if limit_uusd is None or not spec.max_workers:
        return ""
    found = [each for view in views for each in _starts(shape, spec.min_workers, view)]
    price, market = min(found, default=(0, ""))
    purse = Purse(Scope.JOB, job_id, limit_uusd, 0, horizon_s=horizon_s)
    if not purse.is_short(price):
        return ""
    needed_uusd, workers = purse.needs_uusd(price), f"{spec.min_workers} worker{'' if spec.min_workers == 1 else 's'}"
    rule = f"machines are bought only if it pays for {duration_words(horizon_s)} of them"
    least = f"the cheapest for {workers} ({market}) need {format_usd(needed_uusd)}"
    return f"that is too little to start: {rule}, and {least}; {purse.remedy(needed_uusd)}"


def _starts(shape: Shape, workers: int, view: View) -> Iterator[tuple[int, str]]:
    """What it costs an hour to run so many on machines of one market."""
    for offer in view.offers:
        copies = shape.copies_in(view.resources_of(offer)) if shape.allows(offer.labels) else 0
        if copies and offer.price_uusd_per_h is not None:
            yield offer.price_uusd_per_h * ceil(max(workers, 1) / copies), str(offer.market)


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
