"""What policies did with a trace, and with all traces of a file: waits against dollars, read on curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.simulate import Outcome

EXTRA = 1.05  # of the dollars of the reactive policy


@dataclass(frozen=True, slots=True)
class Result:
    """All policies on one trace."""

    name: str
    reactive: Outcome
    curve: tuple[Outcome, ...]  # constant head-rooms
    rules: tuple[Outcome, ...]  # head-rooms after rises, one for each rule
    ours: Outcome  # at the default price of waiting
    others: tuple[Outcome, ...]  # ours at other prices
    clairvoyant: Outcome

    @property
    def jobs(self) -> int:
        return len(self.ours.waits_s)

    @property
    def head_room_wait_s(self) -> float:
        """Of the head-room curve at our dollars. Where we spend less than any point of it, its first one counts; beyond
        its last one nothing is known (0, so the bar does not hold: give more --head-room)."""
        if self.ours.uusd > max(each.uusd for each in (self.reactive, *self.curve)):
            return 0.0
        return wait_at(self.ours.uusd, (self.reactive, *self.curve))

    @property
    def is_in_reach(self) -> bool:
        """Whether 5 % more dollars are enough for whoever knows the future."""
        return self.clairvoyant.uusd <= EXTRA * self.reactive.uusd

    @property
    def wait_in_budget_s(self) -> float:
        """Of our curve at 5 % more dollars than reactive. Between two of its points lies who takes each for a part of
        the time."""
        return wait_at(EXTRA * self.reactive.uusd, (self.reactive, self.ours, *self.others))

    @property
    def head_room_in_budget_s(self) -> float:
        return wait_at(EXTRA * self.reactive.uusd, (self.reactive, *self.curve))

    @property
    def rules_in_budget_s(self) -> float:
        """Of who may choose among all rules, and mix any two, when he has seen what each did with this trace."""
        return wait_at(EXTRA * self.reactive.uusd, (self.reactive, *self.curve, *self.rules))


@dataclass(frozen=True, slots=True)
class Whole:
    """All traces of a file. Each is compared at its own dollars; what counts is the wait of all their jobs."""

    results: tuple[Result, ...]

    def mean(self, wait_s: Callable[[Result], float]) -> float:
        jobs = sum(each.jobs for each in self.results)
        return sum(each.jobs * wait_s(each) for each in self.results) / jobs if jobs else 0.0

    @property
    def ratio(self) -> float:
        """Our wait by that of the head-room at equal dollars."""
        head_room_s = self.mean(lambda each: each.head_room_wait_s)
        return self.mean(lambda each: each.ours.mean_wait_s) / head_room_s if head_room_s else 1.0

    @property
    def in_reach(self) -> Whole:
        return Whole(tuple(each for each in self.results if each.is_in_reach))

    def gap_closed(self, wait_s: Callable[[Result], float]) -> float:
        """Of the gap between reactive and clairvoyant."""
        reactive_s = self.mean(lambda each: each.reactive.mean_wait_s)
        gap_s = reactive_s - self.mean(lambda each: each.clairvoyant.mean_wait_s)
        return (reactive_s - self.mean(wait_s)) / gap_s if gap_s > 0 else 1.0

    @property
    def dollars(self) -> float:
        """Ours at the default price, by those of reactive."""
        return sum(each.ours.uusd for each in self.results) / max(sum(each.reactive.uusd for each in self.results), 1)


def wait_at(uusd: float, outcomes: Sequence[Outcome]) -> float:
    """The least mean wait for so many dollars. Any two outcomes may be mixed: who takes each of two policies for a part
    of the time lies on the straight line between them. Where all cost more, the cheapest counts."""
    points = sorted((float(each.uusd), each.mean_wait_s) for each in outcomes)
    below = [point for point in points if point[0] <= uusd] or points[:1]
    above = [point for point in points if point[0] > uusd]
    mixed = [w + (uusd - spent) * (v - w) / (more - spent) for spent, w in below for more, v in above if spent <= uusd]
    return min(*(wait_s for _, wait_s in below), *mixed, math.inf)
