"""How much work a job has left, how fast sizes are, and what a restart costs: from what the log tells. Pure.

Work is counted in seconds of one replica. Steps that were measured tell most; until there are some, what the person
stated is believed; where neither is there nothing is known, and who asks must be safe without it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.knowledge import Knowledge, circles
from tradewind.autoscaler.pace import Pace
from tradewind.model import Market, Wish
from tradewind.units import format_duration

SCALING = 0.9  # twice the replicas are so many times twice as fast, until it is measured
USUAL_START_S = 60.0  # from having machines to the first step, until it is measured
MARGIN = 0.05  # speeds move: so much more work than is thought
_TRUSTED_S = 60.0  # of steps: before that, they are not believed to be faster than was stated
_NEVER = 1e-9  # the speed of sizes below the least


@dataclass(frozen=True, slots=True)
class Work:
    left_s: float  # of one replica
    speeds: tuple[float, ...]  # by number of replicas, of one
    step_s: float = 0.0  # of one replica; 0: not measured
    basis: str = ""  # where it comes from, in words
    is_stated: bool = False  # nothing but what the person said


def law(replicas: float) -> float:
    return float(replicas ** (1.0 + math.log2(SCALING)))


def work_of(job: JobRecord, pace: Pace | None, wish: Wish, most: int) -> Work | None:
    """None: it is not known. `most`: replicas that it may have."""
    pace = pace or Pace()
    measured = _measured(pace, wish.replica_workers)
    stated_s = _stated_left_s(job, pace, wish.replica_workers)
    sizes = range(1, max(most, wish.min_replicas, 1) + 1)
    if job.total_steps and measured:
        work = _by_steps(job, measured, sizes)
        if pace.measured_s < _TRUSTED_S and stated_s is not None and stated_s > work.left_s:
            work = Work(stated_s, work.speeds, work.step_s, _stated(job))
    elif stated_s is not None and stated_s > 0.0:
        work = Work(stated_s, tuple(law(number) for number in sizes), basis=_stated(job), is_stated=True)
    else:
        return None
    speeds = tuple(
        speed if size >= wish.min_replicas else _NEVER for size, speed in zip(sizes, work.speeds, strict=True)
    )
    return Work(work.left_s * (1.0 + MARGIN), speeds, work.step_s, work.basis, work.is_stated)


def _stated(job: JobRecord) -> str:
    return f"it rests on the {format_duration(job.spec.contract.work_s or 0.0)} of work that were stated"


def will_tell(pace: Pace | None, wish: Wish) -> bool:
    """Its first steps are still to come, and they will be heard of (`tw.fit` reports them). One whose steps came and
    did not say how many there are in all tells no more than was stated."""
    return wish.can_move and not (pace is not None and pace.steps)


def has_begun(pace: Pace | None) -> bool:
    """It has had machines, or still has."""
    return pace is not None and pace.held_s > 0.0


def _measured(pace: Pace, replica_workers: int) -> dict[int, tuple[float, float]]:
    """By replicas: (seconds of a step, seconds that were looked at)"""
    found: dict[int, tuple[float, float]] = {}
    for workers, (_, seconds) in pace.steps.items():
        step_s = pace.step_s(workers)
        if step_s is not None and workers >= replica_workers:
            found[workers // replica_workers] = (step_s, seconds)
    return found


def _by_steps(job: JobRecord, measured: Mapping[int, tuple[float, float]], sizes: range) -> Work:
    """What was measured longest is the unit; sizes that were not measured are seen from the nearest that was."""
    unit_size = max(measured, key=lambda size: (measured[size][1], size))
    unit_s = measured[unit_size][0] * law(unit_size)

    def speed(size: int) -> float:
        near = min(measured, key=lambda known: (abs(math.log(known / size)), known))
        return unit_s / measured[near][0] * law(size) / law(near)

    left = max(0, (job.total_steps or 0) - done_steps(job))
    return Work(left * unit_s, tuple(speed(size) for size in sizes), unit_s, f"{left} steps are left")


def done_steps(job: JobRecord) -> int:
    return min(job.step, job.total_steps) if job.total_steps else job.step


def _stated_left_s(job: JobRecord, pace: Pace, replica_workers: int) -> float | None:
    stated_s = job.spec.contract.work_s
    if stated_s is None:
        return None
    done_s = sum(seconds * law(workers / replica_workers) for workers, seconds in pace.worked_s.items() if workers)
    return stated_s - done_s


def unsaved_s(job: JobRecord, pace: Pace | None, work: Work, replicas: int) -> float:
    """What would be done again after a loss without notice, at the present size: all since the last save, or as much as
    there was between the last saves (so that it does not go up and down with each of them)."""
    if not work.step_s or replicas < 1:
        return 0.0
    gaps = pace.gaps if pace is not None else ()
    steps = max(0, job.step - (job.checkpoint_step or 0), *gaps)
    return steps * work.step_s / work.speeds[min(replicas, len(work.speeds)) - 1]


def boot_s(knowledge: Knowledge | None, market: Market, usual_s: float) -> float:
    """From asking for a machine until it is there; rather too long than too short."""
    if knowledge is None:
        return usual_s
    seen = [knowledge.evidence[circle].boots_s for circle in circles(market)[1:] if circle in knowledge.evidence]
    slow = [boots[int(0.9 * (len(boots) - 1) + 0.5)] for boots in seen if boots]
    return max([knowledge.boot_s(market), *slow])


def start_s(pace: Pace | None) -> float:
    return max(pace.starts_s) if pace is not None and pace.starts_s else USUAL_START_S


def warming_s(pace: Pace | None, restart_s: float, asked_s: float | None, now_s: float) -> float:
    """Time that still passes before a job that has room, or is about to have some, goes on with its work. One that
    takes longer than expected is not believed to be ready at once."""
    if pace is not None and pace.is_working and asked_s is None:
        return 0.0
    begun_s = asked_s if asked_s is not None else pace.phase_since_s if pace is not None and pace.phase else now_s
    return max(restart_s - max(0.0, now_s - begun_s), 0.2 * restart_s)
