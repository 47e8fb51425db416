"""What else tells how soon a spell ends: the hour of the day, and the price. Pure; folded.

Each sign is a factor on the rates of odds.py. It is 1 until a market's own past says otherwise: ends that came are set
against ends that were due by the rates alone. No direction is assumed: in one market a rising price tells of losses, in
another of nothing at all.
"""

from __future__ import annotations

import math

WEIGHT = 20.0  # ends that say "no difference": fewer than about so many teach nothing
_HOURS_AHEAD = 6  # of the day, whose mean is applied
USUAL_H = 24.0  # half-life of what a price usually is; its scatter has four times that
SCATTER = 0.02  # of a price, before any was seen: within two days GPU spot prices of 2024 moved by 2.4 % on the mean
_CALMEST = 0.005  # a scatter: after months at one price, not every cent is unusual
_FARTHEST = 2.0  # scatters: a price that is farther away tells no more than that
_DOUBT = 2.0  # squared standard errors by which a slope must lie beside 0; what it has more counts in part
_SAME = 1e-6  # prices that differ by less are one
_MOST = math.log(4.0)  # a price makes ends at most four times as frequent, or as rare


class HourOfDay:
    """Of both kinds of spells (none, some): ends that were due and that came, by hour."""

    __slots__ = ("_came", "_due", "_pace")

    def __init__(self) -> None:
        self._due, self._came = ([[0.0] * 24 for _ in range(2)] for _ in range(2))
        self._pace = [[1.0] * 24 for _ in range(2)]  # how many times as often they end

    def count(self, is_up: bool, at_s: float, due: float, came: bool) -> None:
        hour, all_due, all_came = int(at_s / 3600.0) % 24, self._due[is_up], self._came[is_up]
        all_due[hour] += due
        all_came[hour] += came
        self._pace[is_up][hour] = (all_came[hour] + WEIGHT) / (all_due[hour] + WEIGHT)

    def factor(self, is_up: bool, at_s: float) -> float:
        """The mean of the next hours."""
        pace, hour = self._pace[is_up], int(at_s / 3600.0) % 24
        return sum((pace + pace)[hour : hour + _HOURS_AHEAD]) / _HOURS_AHEAD


class PriceSign:
    """How far the price lies from what it usually is, in its own scatter, and what such prices told before:

        factor = exp(slope * distance)

    The slope is one Newton step of a Poisson regression from 0, where ends are as often due as they come on the whole
    (else a market that is restless for other reasons would seem to be so by its price), with a prior at 0:

        slope = sum(distance * (came - due)) / (sum(distance^2 * due) + WEIGHT)

    and less than it says by as much as it could be chance (`_DOUBT`)."""

    __slots__ = ("_at_s", "_came", "_due", "_log", "_sums", "_usual", "_variance", "_weights", "has_moved")

    def __init__(self) -> None:
        self._log: float | None = None  # of the price
        self.has_moved = False  # before that there is nothing to learn
        self._usual, self._variance, self._at_s = 0.0, SCATTER**2, 0.0
        self._due, self._came = [0.0, 0.0], [0.0, 0.0]  # none, some
        self._sums, self._weights = [0.0, 0.0], [0.0, 0.0]

    def tell(self, at_s: float, price: float) -> None:
        """The price is this from now on."""
        log = math.log(price)
        if self._log is None:
            self._usual, self._at_s = log, at_s
        self.has_moved = self.has_moved or log != self._usual
        self.advance(at_s)
        self._log = log

    def advance(self, at_s: float) -> None:
        """Time passes: what was unusual becomes usual. A clock that was set back tells of no time."""
        passed_h, self._at_s = (at_s - self._at_s) / 3600.0, at_s
        if self._log is None or passed_h <= 0.0 or abs(self._log - self._usual) < _SAME:
            return
        apart = self._log - self._usual
        self._usual += apart * (1.0 - 0.5 ** (passed_h / USUAL_H))
        kept = 0.5 ** (passed_h / (4.0 * USUAL_H))
        self._variance = max(kept * self._variance + (1.0 - kept) * apart * apart, _CALMEST**2)

    @property
    def distance(self) -> float:
        if self._log is None or abs(self._log - self._usual) < _SAME:
            return 0.0
        return max(-_FARTHEST, min(_FARTHEST, (self._log - self._usual) / math.sqrt(self._variance)))

    def count(self, is_up: bool, due: float, came: bool) -> None:
        if distance := self.distance:
            usual = due * (self._came[is_up] + WEIGHT) / (self._due[is_up] + WEIGHT)
            self._sums[is_up] += distance * (came - usual)
            self._weights[is_up] += distance * distance * usual
        self._due[is_up] += due
        self._came[is_up] += came

    def slope(self, is_up: bool) -> float:
        seen, weight = self._sums[is_up], self._weights[is_up]
        surely = max(0.0, 1.0 - _DOUBT * weight / (seen * seen)) if seen else 0.0
        return surely * seen / (weight + WEIGHT)

    def factor(self, is_up: bool) -> float:
        if not self._sums[is_up]:
            return 1.0
        return math.exp(max(-_MOST, min(_MOST, self.slope(is_up) * self.distance)))
