"""How the rest of a job may go: its policy, played many times against what is believed of the markets. Pure; seeded.

Each play draws its own rates from the posterior of odds.py (so little knowledge gives wide ranges; outages of other
days are less alike than those of a Poisson process, so fewer of them count), then spells from these rates, and decides
by the same table and the same nets as decide.py; who has used his budget stops. Steps are a tick, or a 500th of the
time left (of a long job a quarter of an hour) if that is longer. On-demand may be out of stock when it is asked for:
then it waits, an hour on the mean.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tradewind.autoscaler.contract.choices import Size
from tradewind.autoscaler.contract.decide import HOPE, sized
from tradewind.autoscaler.contract.induction import Table
from tradewind.autoscaler.contract.odds import PRIOR_ENDS, YOUNG_H, Tally
from tradewind.autoscaler.contract.view import ContractView
from tradewind.model import Capacity

Many = NDArray[np.float64]
Flags = NDArray[np.bool_]
_STEPS = 500.0
_LONGEST_STEP_H = 0.25
_MOST_STEPS = 3000.0
_STOCK_OUT_H = 1.0
_PATIENCE, _A_WEEK_H = 8.0, 168.0  # x the work, or a week: so long a budget without a deadline is looked at
_COUNTS = (
    0.5,
    0.25,
    1.0,
    1.0,
)  # what an end counts, by slot: outages of other days are less alike than Poisson has them
_NOTHING, _SPOT, _ON_DEMAND = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Outlook:
    """Of all plays. Ranges hold four of five, from 10 to 90 %, and the mean: few that are far off may take it beyond.
    Where a budget keeps some of them from being done, cost
    and finish are those of the others (of all, where none is)."""

    cost_uusd: int  # mean
    cost_range_uusd: tuple[int, int]
    finish_s: float  # mean, from now on
    finish_range_s: tuple[float, float]
    deadline_chance: float  # that it is done in time
    chance: float  # that deadline and budget are both kept
    budget_chance: float = 1.0  # that it is done within the budget, late perhaps

    def __str__(self) -> str:
        return f"{self.chance:.0%}"


def outlook(view: ContractView, plays: int = 400, seed: int = 0) -> Outlook:
    played = _Plays(view, plays, seed)
    played.run()
    done = played.work_h <= 0.0
    in_time = done & (played.finish_h * 3600.0 <= _left_s(view) + 1.0)
    told = done if done.any() and view.budget_left_uusd is not None else np.full(plays, True)
    finish_s, cost_uusd = 3600.0 * played.finish_h[told], played.cost_uusd[told]
    low, high = _range_of(cost_uusd)
    first, last = _range_of(finish_s)
    return Outlook(
        round(float(cost_uusd.mean())),
        (round(low), round(high)),
        float(finish_s.mean()),
        (first, last),
        float(in_time.mean()),
        float(in_time.mean()),
        float(done.mean()),
    )


def _range_of(played: Many) -> tuple[float, float]:
    low, high = np.quantile(played, [0.1, 0.9])
    mean = float(played.mean())
    return min(float(low), mean), max(float(high), mean)


def chances(view: ContractView, budgets_uusd: list[float], plays: int = 400, seed: int = 0) -> list[float]:
    """That the rest costs at most so much."""
    played = _Plays(view, plays, seed)
    played.run()
    return [float((played.cost_uusd <= budget).mean()) for budget in budgets_uusd]


def _left_s(view: ContractView) -> float:
    return np.inf if view.deadline_at_s is None else view.deadline_at_s - view.now_s


def _size_of(view: ContractView) -> Size:
    """One that on-demand can complete: what can be had on spot alone would promise too much."""
    size = sized(view)
    return size if size.replicas in view.sure_sizes else Size(view, view.fastest)


class _Plays:
    """All plays side by side: one entry each."""

    def __init__(self, view: ContractView, plays: int, seed: int) -> None:
        size, self.random = _size_of(view), np.random.default_rng(seed)
        budget_uusd, view = view.budget_left_uusd, size.view  # what is asked for now
        self.view = view
        self.table: Table = size.table()
        self.uusd, self.restart_h = size.uusd, size.restart_h
        self.time_h = size.work_h + size.slack_h
        self.spot_price = self.table.terms.spot_price
        self.step_h = max(
            view.tick_s / 3600.0, min(self.time_h / _STEPS, _LONGEST_STEP_H), self.time_h / _MOST_STEPS, 1e-4
        )
        seen = size.market().seen if view.spot else Tally()
        self.rates = np.stack([self._draw(view.together, slot, plays) for slot in (0, 1)])
        self.losses = np.stack([self._draw(seen, slot, plays) for slot in (2, 3)])
        is_one = len(view.spot) < 2
        self.gone = self.losses if is_one else np.stack([self._draw(view.together, slot, plays) for slot in (2, 3)])
        self.work_h = np.full(plays, size.work_h)
        self.place = np.full(plays, _place(view))
        self.is_up = np.full(plays, size.is_up)
        self.age_h = np.full(plays, min(size.age_h, 1e6))
        self.warming_h = np.full(plays, size.warming_h)
        self.cost_uusd, self.finish_h = np.zeros(plays), np.full(plays, np.inf)
        self.budget_uusd = np.inf if budget_uusd is None else float(budget_uusd)
        self.is_stopped = np.zeros(plays, bool)
        self.now_h = 0.0

    def _draw(self, seen: Tally, slot: int, plays: int) -> Many:
        """The mean is that of odds.py; how far they scatter depends on how many ends count."""
        count = (seen.ends[slot] + PRIOR_ENDS[slot]) * _COUNTS[slot]
        found: Many = self.random.gamma(count, seen.rate_per_h(slot) / count, plays)
        return np.maximum(found, 1e-3)

    def run(self) -> None:
        self.finish_h[self.work_h <= 0.0] = 0.0
        end_h = self._end_h()
        while self.now_h < end_h and ((self.work_h > 0.0) & ~self.is_stopped).any():
            self._choose()
            self._work()
            self._change()
            self.now_h += self.step_h
        self.finish_h = np.minimum(self.finish_h, end_h)

    def _end_h(self) -> float:
        """What is not done then is taken to be never done. Who has no deadline and only spot in his budget may wait for
        weeks; that is not looked at to the end."""
        found_h = 3.0 * max(self.time_h, float(self.work_h[0]) + self.restart_h) + 10.0
        is_patient = self.view.deadline_at_s is None and np.isfinite(self.budget_uusd)
        return min(found_h, max(_PATIENCE * float(self.work_h[0]), _A_WEEK_H)) if is_patient else found_h

    def _choose(self) -> None:
        slack_h = self.time_h - self.now_h - self.work_h
        is_old, table = self.age_h >= YOUNG_H, self.table
        is_here = self.place == _ON_DEMAND
        lost_h = np.where(is_here, self.warming_h, self.restart_h)
        beside = table.at_all(table.beside, is_old, self.work_h, slack_h - lost_h)
        rows = np.where(self.is_up, beside, table.at_all(table.without, is_old, self.work_h, slack_h - lost_h))
        best = np.where(slack_h - lost_h < self.restart_h, self.work_h, rows) + lost_h
        start = table.at_all(table.spot, is_old, self.work_h, slack_h - self.restart_h)
        start += self.spot_price * self.restart_h
        wait = table.at_all(table.idle, is_old, self.work_h, slack_h)
        may_spot = self.is_up & (self.place != _SPOT) & (slack_h >= 2.0 * self.restart_h)
        may_wait = ~self.is_up & (slack_h >= self.restart_h + self.step_h)
        if np.isfinite(self.budget_uusd):
            best, may_spot, may_wait = self._within(best, lost_h, slack_h, may_spot, may_wait)
        to_spot = may_spot & (start < best)
        to_none = may_wait & (wait < best)
        to_demand = ~to_spot & ~to_none & (self.place != _SPOT) & ~is_here & ~np.isinf(best)
        self._move(to_spot, _SPOT)
        self._move(to_demand, _ON_DEMAND)
        leaves = to_none | (np.isinf(best) & (self.place == _ON_DEMAND) & ~to_spot)
        self.place = np.where(leaves, _NOTHING, self.place)

    def _within(
        self, best: Many, lost_h: Many, slack_h: Many, may_spot: Flags, may_wait: Flags
    ) -> tuple[Many, Flags, Flags]:
        """The same with a budget (decide.py): on-demand that is out of the question costs infinitely much, and where
        the deadline has given way, spot and waiting may take any time."""
        left_h = (self.budget_uusd - self.cost_uusd) / self.uusd
        is_paid = self.work_h + lost_h <= left_h
        again_h = self.work_h + self.restart_h
        sure_spot = may_spot & (again_h + self.spot_price * self.restart_h <= left_h)
        sure_wait = may_wait & (again_h <= left_h)
        patient_h = self.spot_price * (again_h + self.restart_h * self.work_h * self.losses[1])
        has_time = slack_h - lost_h >= 2.0 * self.restart_h + self.step_h
        is_possible = has_time & (lost_h + self.step_h + patient_h <= left_h) & (HOPE * best <= left_h)
        is_open = ~is_paid & (may_spot | may_wait | is_possible)  # both may still be kept, though nothing is sure
        is_late = ~is_paid & ~is_open
        may_spot = np.where(is_paid, sure_spot, may_spot | (is_late & self.is_up & (self.place != _SPOT)))
        may_wait = np.where(is_paid, sure_wait, may_wait | (is_late & ~self.is_up))
        return np.where(is_paid | is_possible, best, np.inf), may_spot, may_wait

    def _move(self, who: Flags, place: int) -> None:
        self.place = np.where(who, place, self.place)
        self.warming_h = np.where(who, self.restart_h, self.warming_h)
        if place == _ON_DEMAND and self.view.on_demand_refusal:
            is_out = who & (self.random.random(len(who)) < self.view.on_demand_refusal)
            self.warming_h = self.warming_h + is_out * self.random.exponential(_STOCK_OUT_H, len(who))

    def _work(self) -> None:
        runs = (self.place != _NOTHING) & (self.work_h > 0.0) & ~self.is_stopped
        warm_h = np.where(runs, np.minimum(self.warming_h, self.step_h), 0.0)
        used_h = np.where(runs, np.minimum(self.step_h, warm_h + self.work_h), 0.0)
        price = np.where(self.place == _SPOT, self.spot_price, 1.0) * self.uusd
        is_short = runs & (self.cost_uusd + used_h * price > self.budget_uusd + 1.0)
        self.finish_h = np.where(is_short, self.now_h, self.finish_h)
        self.is_stopped, runs = self.is_stopped | is_short, runs & ~is_short
        used_h = np.where(is_short, 0.0, used_h)
        self.cost_uusd = np.where(is_short, self.budget_uusd, self.cost_uusd + used_h * price)
        is_done = runs & (warm_h + self.work_h <= self.step_h)
        self.finish_h = np.where(is_done, self.now_h + used_h, self.finish_h)
        self.work_h = np.where(is_done, 0.0, self.work_h - (used_h - warm_h))
        self.warming_h = self.warming_h - warm_h

    def _change(self) -> None:
        """Spells end, or grow older. A machine that is lost more often than all are gone is lost to another market."""
        old, which = (self.age_h >= YOUNG_H).astype(int), np.arange(len(self.age_h))
        gone = self.gone[old, which]
        ends = self._happens(np.where(self.is_up, gone, self.rates[old, which]))
        moves = self._happens(np.maximum(self.losses[old, which] - gone, 0.0))
        self.place = np.where((ends | moves) & self.is_up & (self.place == _SPOT), _NOTHING, self.place)
        self.is_up = self.is_up ^ ends
        self.age_h = np.where(ends, 0.0, self.age_h + self.step_h)

    def _happens(self, rate_per_h: Many) -> Flags:
        found: Flags = self.random.random(len(rate_per_h)) < 1.0 - np.exp(-rate_per_h * self.step_h)
        return found


def _place(view: ContractView) -> int:
    if view.running is None:
        return _NOTHING
    return _SPOT if view.running.capacity is Capacity.SPOT else _ON_DEMAND
