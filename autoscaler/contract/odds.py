"""What is believed of a spot market: how soon a machine is lost, how soon one is to be had again. Pure; folded.

Spells of both kinds (there is a machine, there is none) have many short ones among them: what has just come may soon be
gone, what has stayed for an hour will stay for many. So each spell is *young* at first and *old* after `YOUNG_H`, and
each of the four (there or not, young or old) has a rate of its own at which it ends. Ends are a Poisson process with a
Gamma prior:

    rate = (ends seen + weight) / (hours seen + weight / prior rate)

The prior rates are round figures for GPU machines, from public records of 2022 and 2023; after some ends they hardly
count. Markets change, so what was seen counts half as much after `HALF_LIFE_H`. The hour of the day and the price may
make ends more or less frequent (signs.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tradewind.autoscaler.contract.signs import HourOfDay, PriceSign

YOUNG_H = 0.75
PRIOR_PER_H = (1.2, 0.4, 1.0, 0.2)  # none: young, old; some: young, old
PRIOR_ENDS = (3.0, 2.0, 3.0, 2.0)
HALF_LIFE_H = 48.0
_MEAN_LIFE_H = HALF_LIFE_H / math.log(2.0)
_LONGEST_H = 14 * 24  # a look after a longer break tells of no hour of the day, and of no price
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
    priced: tuple[float, float] = (1.0, 1.0)  # ... and at such a price

    @property
    def lasting(self) -> Tally:
        """Without what is so only in the next hours."""
        return Tally(self.hours, self.ends)

    def rate_per_h(self, index: int) -> float:
        return _rate_per_h(self.ends, self.hours, index) * self.daily[index // 2] * self.priced[index // 2]


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

    __slots__ = ("at_s", "daily", "ends", "hours", "is_up", "price", "since_s")

    def __init__(self) -> None:
        self.hours, self.ends = [0.0] * 4, [0.0] * 4
        self.daily, self.price = HourOfDay(), PriceSign()
        self.is_up: bool | None = None
        self.at_s = 0.0
        self.since_s = -math.inf

    def see(self, at_s: float, is_up: bool) -> None:
        was_up = self.is_up
        if was_up is not None:
            passed_h = (at_s - self.at_s) / 3600.0 if at_s > self.at_s else 0.0
            age_h = self.age_h(self.at_s)
            self._count(was_up, passed_h, was_up != is_up)
            kept, first = 0.5 ** (passed_h / HALF_LIFE_H), 2 * was_up
            self.hours = hours = [each * kept for each in self.hours]
            self.ends = [each * kept for each in self.ends]
            # Hours fade while they pass, too: however often it was looked at, the sum is the same.
            old_kept = 0.5 ** ((passed_h - _young_h(age_h, passed_h)) / HALF_LIFE_H)
            hours[first] += _MEAN_LIFE_H * (old_kept - kept)
            hours[first + 1] += _MEAN_LIFE_H * (1.0 - old_kept)
            if was_up != is_up:
                self.ends[slot(was_up, age_h + passed_h)] += 1.0
                self.since_s = at_s
        self.is_up, self.at_s = is_up, at_s

    def priced(self, at_s: float, uusd_per_h: float, is_known: bool = True) -> None:
        """The price has changed. What was so before it was so at the old one, if it is known to have been so until
        then."""
        if is_known and self.is_up is not None and at_s > self.at_s:
            self.see(at_s, self.is_up)
        self.price.tell(at_s, uusd_per_h)

    def _count(self, was_up: bool, passed_h: float, is_over: bool) -> None:
        """For the signs: what was due by the rates alone, and what came, hour by hour."""
        if passed_h > _LONGEST_H:
            self.price.advance(self.at_s + passed_h * 3600.0)
            return
        at_s, end_s, first = self.at_s, self.at_s + passed_h * 3600.0, 2 * was_up
        young, ends, hours = _rate_per_h(self.ends, self.hours, first), self.ends[first + 1], self.hours[first + 1]
        while True:  # as hours pass without an end, less of it is due
            old = (ends + PRIOR_ENDS[first + 1]) / (hours + PRIOR_ENDS[first + 1] / PRIOR_PER_H[first + 1])
            until_s = min((at_s // 3600.0 + 1.0) * 3600.0, end_s)
            is_last = until_s >= end_s
            old_h = self._count_piece(was_up, (young, old), at_s, until_s, is_over and is_last)
            if is_last:
                return
            kept, at_s = 0.5 ** ((until_s - at_s) / 3600.0 / HALF_LIFE_H), until_s
            ends, hours = ends * kept, hours * kept + old_h

    def _count_piece(
        self, was_up: bool, rates: tuple[float, float], from_s: float, until_s: float, is_over: bool
    ) -> float:
        """Within one clock hour. Answers for how much of it the spell was old."""
        hours = (until_s - from_s) / 3600.0
        young_h = _young_h((from_s - self.since_s) / 3600.0, hours)
        due = young_h * rates[0] + (hours - young_h) * rates[1]
        self.daily.count(was_up, from_s, due, is_over)
        if self.price.has_moved:
            self.price.advance(from_s)
            self.price.count(was_up, due, is_over)
            self.price.advance(until_s)
        return hours - young_h

    @property
    def tally(self) -> Tally:
        hours, ends = self.hours, self.ends
        counted = (hours[0], hours[1], hours[2], hours[3]), (ends[0], ends[1], ends[2], ends[3])
        daily = self.daily.factor(False, self.at_s), self.daily.factor(True, self.at_s)
        return Tally(*counted, daily, (self.price.factor(False), self.price.factor(True)))

    def age_h(self, now_s: float) -> float:
        return (now_s - self.since_s) / 3600.0


def _young_h(age_h: float, passed_h: float) -> float:
    """Of the time that passed, what the spell was young for."""
    return 0.0 if age_h >= YOUNG_H else min(passed_h, YOUNG_H - age_h)


class Watch:
    """All markets of a job: each one, and all as one (is there a machine anywhere?)."""

    def __init__(self, keys: Sequence[str]) -> None:
        self.markets = {key: Sightings() for key in keys}
        self.any = Sightings()
        self._prices: dict[str, float] = {}
        self._mean = 1.0  # of their prices, from 1 on

    def see(self, at_s: float, is_up: Sequence[bool]) -> None:
        for market, has_some in zip(self.markets.values(), is_up, strict=True):
            market.see(at_s, has_some)
        self.any.see(at_s, any(is_up))

    def changed(self, at_s: float, is_up: Sequence[bool]) -> None:
        """The same, but only where something has: how often one looks does not matter. Before it is asked what is
        believed, all are to be seen."""
        for market, has_some in zip((*self.markets.values(), self.any), (*is_up, any(is_up)), strict=True):
            if has_some is not market.is_up:
                market.see(at_s, has_some)

    def priced(self, at_s: float, key: str, uusd_per_h: float, is_known: bool = True, are_known: bool = True) -> None:
        """The price of a market has changed; whether what was seen of it, and of all as one, is known until then. The
        price of all as one is their (geometric) mean: markets that come later, or go, leave it where it was."""
        known = self._prices.get(key)
        if known == uusd_per_h:
            return
        self._prices[key] = uusd_per_h
        self.markets[key].priced(at_s, uusd_per_h, is_known)
        moved = 1.0 if known is None else (uusd_per_h / known) ** (1.0 / len(self._prices))
        self._mean *= moved
        self.any.priced(at_s, self._mean, are_known)
