"""When to run a job whose deadline leaves slack: in the hours in which electricity is clean, or cheap. Pure.

`carbon_window` is asked again every hour, with a newer forecast (carbon_forecast.py): run now, or wait? The best hours
are found exactly, by going backwards over hours x work left x running or not; every start costs `restart_s` of running
in which no work is done. The deadline comes first: work is rounded up and hours are rounded down, so what is left
always fits, and where nothing can be spared the job runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

HOUR_S = 3600.0
UNIT_S = 300.0  # what work and hours are counted in
LEAST_SAVED = 0.005  # of what running at once would emit: for less, nobody waits
_NEVER = 1e300


@dataclass(frozen=True, slots=True)
class Work:
    """What is left to do of a job that can be paused."""

    left_s: float  # of running, without restarts
    deadline_at_s: float
    restart_s: float  # of running that each start costs: boot, load, what was not saved
    running: bool = False


@dataclass(frozen=True, slots=True)
class Window:
    """The decision for now, and the plan behind it."""

    run: bool
    reason: str
    planned: tuple[tuple[float, float], ...] = ()  # from, until
    saved: float = 0.0  # of what running at once would emit, as forecast


def carbon_window(now_s: float, work: Work, intensity: Sequence[float], margin_s: float = 0.0) -> Window:
    """`intensity` per kWh: of the clock hour in which `now_s` lies, and of those after it, up to the deadline at least.
    `margin_s` before the deadline is kept free, for what a plan cannot know."""
    slots = _slots(now_s, work.deadline_at_s - margin_s, len(intensity))
    need, start = _units_up(work.left_s), _units_up(work.restart_s)
    if need == 0:
        return Window(False, "nothing is left to do")
    values, choices = _backwards(slots, np.asarray(intensity, dtype=float), need, start)
    planned, total = _walk(now_s, slots, choices, values, need, start, work.running)
    if total >= _NEVER:
        return Window(True, "the deadline leaves no hour to spare")
    at_once = _at_once(slots, intensity, need + (0 if work.running else start))
    saved = 1.0 - total / at_once if at_once > 0 else 0.0
    run = bool(planned) and planned[0][0] <= now_s
    if not run and saved < LEAST_SAVED:
        return Window(True, "no hours before the deadline are so much better that they are worth a rest")
    return Window(run, _reason(run, planned, saved), tuple(planned), saved)


def _slots(now_s: float, until_s: float, hours: int) -> list[int]:
    """Units of each clock hour from now until then."""
    first_end_s = (now_s // HOUR_S + 1) * HOUR_S
    ends = [first_end_s + HOUR_S * number for number in range(hours)]
    starts = [now_s, *ends[:-1]]
    return [max(0, int((min(end, until_s) - start) / UNIT_S + 1e-6)) for start, end in zip(starts, ends, strict=True)]


def _units_up(duration_s: float) -> int:
    return max(0, math.ceil(duration_s / UNIT_S - 1e-6))


def _backwards(
    slots: Sequence[int], intensity: NDArray[np.float64], need: int, start: int
) -> tuple[list[NDArray[np.float64]], list[NDArray[np.bool_]]]:
    """By hour, running or not, and units left: what is still to be emitted at the least; and whether to run."""
    left = np.arange(need + 1)
    value = np.full((2, need + 1), _NEVER)
    value[:, 0] = 0.0
    values, choices = [value], []
    for length, each in zip(reversed(slots), intensity[: len(slots)][::-1], strict=True):
        after = values[-1]
        here, runs = np.empty_like(after), np.zeros((2, need + 1), dtype=bool)
        for running in (0, 1):
            lost = 0 if running else min(start, length)
            done = np.minimum(left, length - lost)
            costs = after[1][left - done] + each * (done + lost)
            # Of equal plans the one that runs first: nobody waits for nothing. What is left of an hour may be less than
            # a unit: a job that runs then runs through it.
            runs[running] = (costs <= after[0]) & (left > 0) & ((length > lost) | (running == 1))
            here[running] = np.where(runs[running], costs, after[0])
        here[:, 0] = 0.0
        values.append(here)
        choices.append(runs)
    return values[::-1], choices[::-1]


def _walk(
    now_s: float,
    slots: Sequence[int],
    choices: Sequence[NDArray[np.bool_]],
    values: Sequence[NDArray[np.float64]],
    need: int,
    start: int,
    running: bool,
) -> tuple[list[tuple[float, float]], float]:
    """The plan that the table holds, forwards: when it runs."""
    total = float(values[0][int(running)][need])
    planned: list[tuple[float, float]] = []
    at_s, is_running = now_s, running
    for length, runs in zip(slots, choices, strict=True):
        end_s = (at_s // HOUR_S + 1) * HOUR_S
        if need and runs[int(is_running)][need]:
            lost = 0 if is_running else min(start, length)
            done = min(need, length - lost)
            until_s = at_s + (done + lost) * UNIT_S if done == need else end_s
            if planned and planned[-1][1] >= at_s:
                planned[-1] = (planned[-1][0], until_s)
            else:
                planned.append((at_s, until_s))
            need, is_running = need - done, True
        else:
            is_running = False
        at_s = end_s
    return planned, total


def _at_once(slots: Sequence[int], intensity: Sequence[float], need: int) -> float:
    total = 0.0
    for length, each in zip(slots, intensity, strict=False):
        total += each * min(need, length)
        need -= min(need, length)
    return total


def _reason(run: bool, planned: Sequence[tuple[float, float]], saved: float) -> str:
    """By the clock, not in hours from now: what is told stays the same until it changes."""
    if run:
        return "this hour is one of the best that are left before the deadline"
    begins = datetime.fromtimestamp(planned[0][0], UTC)
    when = f"{begins:%H:%M} UTC ({begins:%-d %b})"
    return f"better hours begin at {when}, and the deadline can wait: {saved:.0%} less than at once, as forecast"
