"""What people are told of contracts: will they be kept, what will it cost, when is it done. Beside the loop.

An answer plays the rest of a job some hundred times (a tenth of a second of one core), so it is made when somebody
asks, and then holds for a while. Of many jobs only a few are played anew at a time; the others keep their last answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tradewind.api import ContractInfo, JobInfo
from tradewind.autoscaler.contract.outlook import Outlook, outlook
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.pilot import Course
from tradewind.cells.cell import Cell
from tradewind.states import JobState, is_over

GOOD_FOR_S = 30.0
PLAYS = 200
AT_ONCE = 3  # jobs that are played for one question
_UNSTEERED = "it asks Ray for its machines itself: what is bought for it cannot be told from what others need"
_NOT_YET = "it has not begun"


@dataclass(slots=True)
class ContractDesk:
    """Asks the loops of the cells what they have decided."""

    cells: Mapping[str, Cell]
    clock: Callable[[], float]
    promised: dict[str, str] = field(default_factory=dict)  # by job: what was said of it when it was submitted
    _known: dict[str, tuple[float, Outlook]] = field(default_factory=dict)  # by job: when, and what
    _one: threading.Lock = field(default_factory=threading.Lock)

    def infos(self, jobs: Iterable[JobRecord], spent_uusd: Mapping[str, int]) -> dict[str, ContractInfo]:
        """By job; those without a contract are not there."""
        bound = [job for job in jobs if not job.spec.contract.is_empty]
        courses = {job.job_id: self._course_of(job) for job in bound if not is_over(job.state)}
        self._play(courses)
        return {job.job_id: self._info(job, courses.get(job.job_id), spent_uusd.get(job.job_id, 0)) for job in bound}

    def _course_of(self, job: JobRecord) -> Course | None:
        cell = self.cells.get(job.cell)
        return None if cell is None else cell.loop.pilot.courses.get(job.job_id)

    def _play(self, courses: Mapping[str, Course | None]) -> None:
        with self._one:
            now_s = self.clock()
            views = {name: each.case.contract for name, each in courses.items() if each and each.case.contract}
            stale = [name for name in views if self._age_s(name, now_s) >= GOOD_FOR_S]
            for name in sorted(stale, key=lambda name: -self._age_s(name, now_s))[:AT_ONCE]:
                if (view := views[name]) is not None:
                    self._known[name] = (now_s, outlook(view, PLAYS))

    def _age_s(self, name: str, now_s: float) -> float:
        return now_s - self._known[name][0] if name in self._known else float("inf")

    def _info(self, job: JobRecord, course: Course | None, spent_uusd: int) -> ContractInfo:
        contract = job.spec.contract
        if is_over(job.state):
            self._known.pop(job.job_id, None)
            self.promised.pop(job.job_id, None)
            return ContractInfo(
                deadline_at_s=contract.deadline_at_s, budget_uusd=contract.budget_uusd, kept=_was_kept(job, spent_uusd)
            )
        known = self._known.get(job.job_id) if course is not None and course.case.contract is not None else None
        if course is None:
            reason = self.promised.get(job.job_id, _NOT_YET) if job.spec.max_workers else _UNSTEERED
            return ContractInfo(deadline_at_s=contract.deadline_at_s, budget_uusd=contract.budget_uusd, reason=reason)
        return ContractInfo(
            deadline_at_s=contract.deadline_at_s,
            budget_uusd=contract.budget_uusd,
            course=course.steer.what,
            reason=course.steer.why,
            basis=course.case.basis if course.case.is_stated else "",
            **_figures(known, spent_uusd),  # type: ignore[arg-type]
        )


def _figures(known: tuple[float, Outlook] | None, spent_uusd: int) -> dict[str, object]:
    if known is None:
        return {}
    at_s, found = known
    low, high = found.cost_range_uusd
    first_s, last_s = found.finish_range_s
    return {
        "chance": found.chance,
        "deadline_chance": found.deadline_chance,
        "budget_chance": found.budget_chance,
        "cost_uusd": spent_uusd + found.cost_uusd,
        "cost_range_uusd": (spent_uusd + low, spent_uusd + high),
        "finish_at_s": at_s + found.finish_s,
        "finish_range_s": (at_s + first_s, at_s + last_s),
        "as_of_s": at_s,
    }


def _was_kept(job: JobRecord, spent_uusd: int) -> bool:
    contract = job.spec.contract
    in_time = contract.deadline_at_s is None or (job.ended_at_s or 0.0) <= contract.deadline_at_s
    return job.state is JobState.SUCCEEDED and in_time and spent_uusd <= (contract.budget_uusd or spent_uusd)


def with_reason(info: JobInfo, said: str) -> JobInfo:
    """What is to be said of its contract now; nothing: what is known of it."""
    return replace(info, contract=replace(info.contract, reason=said)) if said and info.contract else info
