"""What is believed of a spot market: how soon a machine is lost, how soon one is to be had again. Pure; folded.

Spells of both kinds (there is a machine, there is none) have many short ones among them: what has just come may soon be
gone, what has stayed for an hour will stay for many. So each spell is *young* at first and *old* after `YOUNG_H`, and
each of the four (there or not, young or old) has a rate of its own at which it ends. Ends are a Poisson process with a
Gamma prior:

    rate = (ends seen + weight) / (hours seen + weight / prior rate)

The prior rates are round figures for GPU machines, from public records of 2022 and 2023; after some ends they hardly
count. Markets change, so what was seen counts half as much after `HALF_LIFE_H`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

YOUNG_H = 0.75
PRIOR_PER_H = (1.2, 0.4, 1.0, 0.2)  # none: young, old; some: young, old
PRIOR_ENDS = (3.0, 2.0, 3.0, 2.0)
HALF_LIFE_H = 48.0
DAILY_WEIGHT = 20.0  # ends in an hour of the day before that hour is believed to differ
DAILY_AHEAD = 6  # hours
_STEPS_PER_OCTAVE = 2  # rates are rounded: a table that is solved serves for many ticks


def slot(is_up: bool, age_h: float) -> int:
    """Which of the four."""
    return 2 * is_up + (age_h >= YOUNG_H)


@dataclass(frozen=True, slots=True)
class Tally:
    """What was seen of one market: hours and ends, by slot."""

    hours: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    ends: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    daily: tuple[float, float] = (1.0, 1.0)  # none, some: spells end so many times as often at this time of day

    def rate_per_h(self, index: int) -> float:
        return _rate_per_h(self.ends, self.hours, index) * self.daily[index // 2]


def _rate_per_h(ends: Sequence[float], hours: Sequence[float], index: int) -> float:
    weight = PRIOR_ENDS[index]
    return (ends[index] + weight) / (hours[index] + weight / PRIOR_PER_H[index])


NEVER = Tally()  # seen anything


@dataclass(frozen=True, slots=True)
class Odds:
    """For the solver. Each pair: young, old. A spell is one of all markets together: is there a machine anywhere?"""

    return_per_h: tuple[float, float]
    loss_per_h: tuple[float, float]  # of the machine: by a move to another market, or for good
    gone_per_h: tuple[float, float] | None = None  # of these, with no other market open; None: all of them


def odds_of(spell: Tally, machine: Tally, markets: int = 1, steps: int = _STEPS_PER_OCTAVE) -> Odds:
    """`spell`: of all markets together (some or none); `machine`: of the market in question; `markets`: how many in
    all. How often all are gone at once is counted, not made up from the markets: they may well be scarce together.
    A market that seems calmer than that is not believed to be: little was seen of it, or it was not there then."""
    back, lost = _pair(spell, 0, steps), _pair(machine, 2, steps)
    if markets < 2:
        return Odds(back, lost)
    gone = _pair(spell, 2, steps)
    return Odds(back, (max(lost[0], gone[0]), max(lost[1], gone[1])), gone)


def _pair(seen: Tally, first: int, steps: int) -> tuple[float, float]:
    return rounded(seen.rate_per_h(first), steps), rounded(seen.rate_per_h(first + 1), steps)


def rounded(value: float, steps: int = _STEPS_PER_OCTAVE) -> float:
    """To a grid of equal ratios."""
    return float(2.0 ** (round(math.log2(value) * steps) / steps))


class Sightings:
    """The fold of one market: is a machine to be had or not, time after time. What was so at the first look is taken
    for old: of spells that are met half-way, most are long ones. A clock that was set back tells of no time."""

    __slots__ = ("at_s", "by_hour", "ends", "hours", "is_up", "pace", "since_s")

    def __init__(self) -> None:
        self.hours, self.ends = [0.0] * 4, [0.0] * 4
        self.by_hour = [[[0.0] * 24, [0.0] * 24] for _ in range(2)]  # none, some: ends that were due, ends that came
        self.pace = [[1.0] * 24 for _ in range(2)]  # none, some: how many times as often spells end, by hour
        self.is_up: bool | None = None
        self.at_s = 0.0
        self.since_s = -math.inf

    def see(self, at_s: float, is_up: bool) -> None:
        was_up = self.is_up
        if was_up is not None:
            passed_h = (at_s - self.at_s) / 3600.0 if at_s > self.at_s else 0.0
            age_h = self.age_h(self.at_s)
            if passed_h <= 1.0:  # a look after a long break tells of no hour of the day
                self._count(was_up, age_h, passed_h, was_up != is_up)
            kept, first = 0.5 ** (passed_h / HALF_LIFE_H), 2 * was_up
            self.hours = hours = [each * kept for each in self.hours]
            self.ends = [each * kept for each in self.ends]
            if age_h >= YOUNG_H:
                hours[first + 1] += passed_h
            else:
                young_h = min(passed_h, YOUNG_H - age_h)
                hours[first] += young_h
                hours[first + 1] += passed_h - young_h
            if was_up != is_up:
                self.ends[slot(was_up, age_h + passed_h)] += 1.0
                self.since_s = at_s
        self.is_up, self.at_s = is_up, at_s

    def _count(self, was_up: bool, age_h: float, passed_h: float, is_over: bool) -> None:
        """By hour of the day."""
        hour = int(self.at_s / 3600.0) % 24
        due, came = self.by_hour[was_up]
        due[hour] += passed_h * _rate_per_h(self.ends, self.hours, slot(was_up, age_h))
        came[hour] += is_over
        self.pace[was_up][hour] = (came[hour] + DAILY_WEIGHT) / (due[hour] + DAILY_WEIGHT)

    def _daily(self, is_up: bool) -> float:
        """The next hours beside the whole day."""
        pace, hour = self.pace[is_up], int(self.at_s / 3600.0) % 24
        return sum((pace + pace)[hour : hour + DAILY_AHEAD]) / DAILY_AHEAD

    @property
    def tally(self) -> Tally:
        hours, ends = self.hours, self.ends
        counted = (hours[0], hours[1], hours[2], hours[3]), (ends[0], ends[1], ends[2], ends[3])
        return Tally(*counted, (self._daily(False), self._daily(True)))

    def age_h(self, now_s: float) -> float:
        return (now_s - self.since_s) / 3600.0


class Watch:
    """All markets of a job: each one, and all as one (is there a machine anywhere?)."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.markets = {key: Sightings() for key in keys}
        self.any = Sightings()

    def see(self, at_s: float, is_up: Sequence[bool]) -> None:
        for market, has_some in zip(self.markets.values(), is_up, strict=True):
            market.see(at_s, has_some)
        self.any.see(at_s, any(is_up))
