"""A job with a deadline in markets whose availability is a trace: the world that all policies of spot_contract.py meet.

Time goes in ticks of the trace. At the start of a tick it is seen which spot markets have a machine in that tick; on
spot in a market that has none any more, the job stands. Then the policy says where the job runs in this tick. A new
place costs `restart_s` without progress, paid like any other time. What is not needed of the last tick is not paid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]  # [market, tick]
NOTHING = -1  # places: NOTHING, a spot market by number, or ON_DEMAND
ON_DEMAND = -2


@dataclass(frozen=True, slots=True)
class Task:
    """One job, and what the places cost. Money in the price of on-demand x second."""

    work_s: float
    deadline_s: float
    restart_s: float
    gap_s: float
    spot_price: float  # on-demand is 1


@dataclass(frozen=True, slots=True)
class Sight:
    """What a policy sees at the start of a tick."""

    tick: int
    elapsed_s: float
    work_left_s: float
    place: int
    warming_s: float  # of the place: time that still passes without progress
    has_spot: NDArray[np.bool_]  # by market
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class Run:
    cost: float
    finish_s: float
    restarts: int
    on_demand_s: float


Chooser = Callable[[Sight], int]


def play(task: Task, has_spot: Flags, choose: Chooser, budget: float = float("inf")) -> Run:
    """Until the work is done, the flags end, or the budget is used: then it stops, and is never done."""
    left_s, place, warming_s, cost, on_demand_s = task.work_s, NOTHING, 0.0, 0.0, 0.0
    restarts = tick = 0
    while tick < has_spot.shape[1]:
        now = has_spot[:, tick]
        if place >= 0 and not now[place]:
            place, warming_s = NOTHING, 0.0
        wanted = choose(Sight(tick, tick * task.gap_s, left_s, place, warming_s, now, cost))
        if wanted >= 0 and not now[wanted]:
            raise ValueError(f"market {wanted} has nothing at tick {tick}")
        if wanted != place:
            place, warming_s = wanted, task.restart_s if wanted != NOTHING else 0.0
            restarts += wanted != NOTHING
        if place != NOTHING:
            lost_s = min(warming_s, task.gap_s)
            used_s, price = min(task.gap_s, lost_s + left_s), 1.0 if place == ON_DEMAND else task.spot_price
            if cost + used_s * price > budget + 1e-6:
                return Run(budget, float("inf"), restarts, on_demand_s)
            cost += used_s * price
            on_demand_s += used_s if place == ON_DEMAND else 0.0
            left_s, warming_s = left_s - (used_s - lost_s), warming_s - lost_s
            if left_s <= 1e-6:
                return Run(cost, tick * task.gap_s + used_s, restarts, on_demand_s)
        tick += 1
    return Run(cost, float("inf"), restarts, on_demand_s)
