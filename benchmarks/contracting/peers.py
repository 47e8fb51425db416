"""What others do: all on-demand, greedy, and Uniform Progress (Wu et al., "Can't Be Late", NSDI 2024, by its rules)."""

from __future__ import annotations

import numpy as np
from contracting.world import NOTHING, ON_DEMAND, Sight, Task

_EPSILON_S = 1e-6


class OnDemand:
    def __init__(self, _task: Task) -> None:
        pass

    def __call__(self, _sight: Sight) -> int:
        return ON_DEMAND


class Greedy:
    """Spot where there is some, nothing where there is none, until the safety net. Who is on spot stays there."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_late = False

    def __call__(self, sight: Sight) -> int:
        self.is_late = self.is_late or _must_hurry(self.task, sight)
        return ON_DEMAND if self.is_late else _spot(sight)


class UniformProgress:
    """Safety net: who has nothing and less than 2 d of slack goes on on-demand to the end. Exploitation: who is on spot
    stays until it is taken. Uniform progress: behind the straight line from nothing to all, on-demand where there is
    no spot; ahead, nothing. Taking risks: spot whenever there is some. Hysteresis: who is on on-demand leaves it when
    the progress is that of 2 d later."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.is_late = False

    def __call__(self, sight: Sight) -> int:
        task = self.task
        self.is_late = self.is_late or _must_hurry(task, sight)
        if self.is_late:
            return ON_DEMAND
        if sight.place >= 0:
            return sight.place
        done_s = task.work_s - sight.work_left_s
        ahead_s = 2.0 * task.restart_s if sight.place == ON_DEMAND else 0.0
        is_behind = done_s < (sight.elapsed_s + ahead_s) * task.work_s / task.deadline_s
        if sight.place == ON_DEMAND and (is_behind or _slack_s(task, sight) < _least_s(task)):
            return ON_DEMAND
        spot = _spot(sight)
        return ON_DEMAND if spot == NOTHING and is_behind else spot


def _must_hurry(task: Task, sight: Sight) -> bool:
    """The paper's rule asks this of who has nothing: on spot, slack does not shrink, and one restart is still left."""
    return sight.place == NOTHING and _slack_s(task, sight) < _least_s(task)


def _slack_s(task: Task, sight: Sight) -> float:
    return task.deadline_s - sight.elapsed_s - sight.work_left_s - sight.warming_s


def _least_s(task: Task) -> float:
    """2 d, as in the paper; where a tick is longer than d, the tick that may be lost idle and one restart."""
    return task.restart_s + max(task.restart_s, task.gap_s) - _EPSILON_S


def _spot(sight: Sight) -> int:
    """Where the job is, if it can stay; else the first market that has some."""
    if sight.place >= 0:
        return sight.place
    found = np.flatnonzero(sight.has_spot)
    return int(found[0]) if len(found) else NOTHING
