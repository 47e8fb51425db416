"""Of budgets that were said to be kept with 90 %, are nine of ten kept? Asked during runs, and told when they end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from contracting.ours import USD, Ours
from contracting.world import Run, Sight

from tradewind.autoscaler.contract.outlook import chances, outlook

FACTORS = (0.7, 0.85, 0.95, 1.0, 1.05, 1.15, 1.3, 1.6)  # budgets, x the cost that is expected
EDGES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0 + 1e-9)
PLAYS = 200


@dataclass(frozen=True, slots=True)
class Said:
    chance: float
    cost: float  # at most so much in all, in the price of on-demand x second


@dataclass(slots=True)
class Asking:
    """Ours, asked for several budgets at the start, and again when half of the work is done. Answers of one job are
    not independent: a table needs many jobs, whatever the number of answers."""

    ours: Ours
    said: list[Said] = field(default_factory=list)
    asked: int = 0

    def __call__(self, sight: Sight) -> int:
        place = self.ours(sight)
        if self.asked < 2 and sight.work_left_s <= self.ours.task.work_s * (1.0 - 0.5 * self.asked):
            self.asked += 1
            view = self.ours.view(sight)
            expected_uusd = outlook(view, PLAYS).cost_uusd
            budgets_uusd = [expected_uusd * factor for factor in FACTORS]
            for chance, budget_uusd in zip(chances(view, budgets_uusd, PLAYS, seed=1), budgets_uusd, strict=True):
                self.said.append(Said(chance, sight.spent + budget_uusd / USD * 3600.0))
        return place

    def outcomes(self, run: Run) -> list[tuple[float, bool]]:
        return [(each.chance, run.cost <= each.cost) for each in self.said]


def table(outcomes: Sequence[tuple[float, bool]]) -> tuple[list[str], float]:
    """Lines for people, and the mean distance of what was said from what came, by the number of cases."""
    said, kept = np.array([chance for chance, _ in outcomes]), np.array([was for _, was in outcomes], float)
    lines, error = ["stated        cases  mean stated  kept"], 0.0
    for low, high in pairwise(EDGES):
        inside = (said >= low) & (said < high)
        if inside.any():
            stated, came = float(said[inside].mean()), float(kept[inside].mean())
            error += float(inside.sum()) * abs(stated - came) / len(said)
            lines.append(f"{low:4.0%} to {min(high, 1.0):4.0%}  {inside.sum():5d}  {stated:11.2f}  {came:4.2f}")
    return lines, error
