"""The least that the job can cost for one who knows the whole trace: a dynamic program, exact.

State: the tick, where the job runs, and how much time has been lost so far (idle or restarting). Work done is the time
that has passed less what was lost, so the deadline is kept as long as no more is lost than deadline - work. All losses
are made of ticks and restarts: they are whole multiples of what divides both, and nothing is rounded.

A restart that is begun is also completed: breaking it off earns nothing that being idle does not.
"""

from __future__ import annotations

import math

import numpy as np
from contracting.world import Flags, Task
from numpy.typing import NDArray

Costs = NDArray[np.float64]  # by time lost, in units


def optimum(task: Task, has_spot: Flags) -> float:
    """In the price of on-demand x second. Needs whole seconds in gap and restart; infinite where it cannot be done."""
    gap_s, restart_s = round(task.gap_s), round(task.restart_s)
    unit_s = math.gcd(gap_s, restart_s) if restart_s else gap_s
    gap, restart = gap_s // unit_s, restart_s // unit_s
    size = math.floor((task.deadline_s - task.work_s) / unit_s + 1e-9) + 1
    if size <= 0:
        return math.inf
    prices = [*([task.spot_price] * len(has_spot)), 1.0]
    length = restart // gap + 1  # ticks from a start until the restart is over: at least one, partly productive
    ticks = math.ceil(task.deadline_s / task.gap_s)
    open_at = np.vstack([has_spot[:, :ticks], np.ones((1, ticks), bool)])
    starts_at = _through(open_at, length)
    lost_s = np.arange(size) * float(unit_s)
    over = [np.zeros(size)] * (len(prices) + 1)
    ahead = [over] * (length + 1)  # ahead[n]: n ticks later; each: idle, then by place
    for tick in range(ticks - 1, -1, -1):
        left_s = np.maximum(task.work_s - tick * task.gap_s + lost_s, 0.0)
        begun = _begin(left_s, task, prices, starts_at[:, tick], ahead[length - 1], restart, length)
        idle = np.minimum(_shift(ahead[0][0], gap), begun)
        idle[left_s <= 0.0] = 0.0
        used_s = np.minimum(left_s, task.gap_s)
        now = [idle]
        for place, price in enumerate(prices):
            # Who runs may go on, or leave: then he is as one that has nothing.
            now.append(
                np.minimum(ahead[0][place + 1] + used_s * price, idle) if open_at[place, tick] else idle,
            )
        ahead = [now, *ahead[:length]]
    return float(ahead[0][0][0])


def _begin(
    left_s: Costs, task: Task, prices: list[float], may: Flags, later: list[Costs], restart: int, length: int
) -> Costs:
    """The cheapest of all places that can be begun now and stay until the restart is over."""
    best = np.full(len(left_s), np.inf)
    used_s = np.minimum(left_s + task.restart_s, length * task.gap_s)
    for place, price in enumerate(prices):
        if may[place]:
            best = np.minimum(best, used_s * price + _shift(later[place + 1], restart))
    return best


def _shift(costs: Costs, units: int) -> Costs:
    """So much more is lost: beyond the end of the array the deadline is missed."""
    return np.concatenate([costs[units:], np.full(min(units, len(costs)), np.inf)]) if units else costs


def _through(open_at: Flags, length: int) -> Flags:
    """Whether a place is open in a tick and in the ones after it, `length` in all. After the end nothing is asked."""
    found = open_at.copy()
    for step in range(1, length):
        found[:, :-step] &= open_at[:, step:]
    return found
