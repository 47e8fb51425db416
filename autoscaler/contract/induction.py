"""The least expected cost of a job with a deadline, by backward induction. Pure: rates and prices in, a table out.

State: work left, slack (time left - work left), and what there is: nothing, a spot machine, or an on-demand machine
while spot is or is not to be had; each spell young or old (odds.py). Working takes work and leaves the slack; being
idle takes slack and leaves the work; a new machine costs `restart_h` of slack, and its price for that long. With less
slack than one restart only a running on-demand machine is in time. Along the work w, with rate r at which something
happens whose value is R:

    V' = price + r (R - V)   ->   V(w) = e^(-r h) V(w - h) + ...       exact for R that is linear between the points

which is a product with one triangular matrix for all of w. All values at one slack depend on smaller slacks alone, so
the table is made row by row. Rows lie close where slack is short, at ever wider steps beyond. Prices are those of
on-demand = 1, costs are in hours of it. Rounding costs money, never the deadline: that is held by decide.py.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tradewind.autoscaler.contract.odds import YOUNG_H, Odds

Values = NDArray[np.float64]  # [work], [young or old, work] or [row, young or old, work]
_POINTS = 40  # of the work
_ONWARD = 0.5  # of the last step: less is too dear, more is unstable
_ROWS = 36  # of the slack: their number is what costs time, and what makes the values good
_MOST_ROWS = 300  # as if, where restarts cost nearly nothing: the first step is not shorter
_AGEING_PER_H = 1.0 / YOUNG_H
_TOO_LONG_H = 1e6  # stands for "cannot be done"
LONGEST_H = 64.0  # of work: what is longer is judged as a shorter job with as much slack for its work
_LEAST_RESTART_H = 0.04  # below, a row would depend on little but its own guess
_K = _POINTS + 1
_APART = np.subtract.outer(np.arange(_POINTS + 1), np.arange(_POINTS + 1))
_APART[_APART < 0] = _POINTS + 1  # of no weight
_TWICE = np.tile(np.arange(_K), 2)


@dataclass(frozen=True, slots=True)
class Terms:
    """One problem. `work_h` and `slack_h` are the most that the table shall answer for."""

    odds: Odds
    spot_price: float
    restart_h: float
    work_h: float
    slack_h: float


@dataclass(frozen=True, slots=True)
class Table:
    """Expected costs by [row of slack, young or old, work]."""

    terms: Terms
    slacks_h: list[float]
    step_h: float
    idle: Values  # waiting for spot until it comes or the slack of the row before is reached
    spot: Values  # on a running spot machine
    without: Values  # on a running on-demand machine, while there is no spot
    beside: Values  # ... while there is
    scale: float = 1.0  # the job is so many times longer than the one that was solved

    def at(self, rows: Values, is_old: bool, work_h: float, slack_h: float) -> float:
        """Between the points, on straight lines; outside of the table, what its edge says."""
        work_h, slack_h = work_h / self.scale, slack_h / self.scale
        row = min(max(bisect_right(self.slacks_h, slack_h) - 1, 0), len(self.slacks_h) - 2)
        up = (slack_h - self.slacks_h[row]) / (self.slacks_h[row + 1] - self.slacks_h[row])
        up = min(max(up, 0.0), 1.0)
        point = min(work_h / self.step_h, float(_POINTS))
        left = min(int(point), _POINTS - 1)
        right = point - left
        (a, b), (c, d) = rows[row : row + 2, int(is_old), left : left + 2].tolist()
        return self.scale * float((1.0 - up) * (a + right * (b - a)) + up * (c + right * (d - c)))

    def at_all(self, rows: Values, is_old: NDArray[np.bool_], work_h: Values, slack_h: Values) -> Values:
        """The same for many states at once."""
        edges = np.array(self.slacks_h)
        work_h, slack_h = work_h / self.scale, slack_h / self.scale
        row = np.clip(np.searchsorted(edges, slack_h, side="right") - 1, 0, len(edges) - 2)
        up = np.clip((slack_h - edges[row]) / (edges[row + 1] - edges[row]), 0.0, 1.0)
        point = np.clip(work_h / self.step_h, 0.0, float(_POINTS))
        left = np.minimum(point.astype(int), _POINTS - 1)
        right, old = point - left, is_old.astype(int)
        low = (1.0 - right) * rows[row, old, left] + right * rows[row, old, left + 1]
        high = (1.0 - right) * rows[row + 1, old, left] + right * rows[row + 1, old, left + 1]
        found: Values = self.scale * ((1.0 - up) * low + up * high)
        return found

    def on_demand_h(self, work_h: float, slack_h: float, is_up: bool, is_old: bool) -> float:
        """Of who runs on demand. With less slack than a restart he stays there to the end."""
        if slack_h < self.terms.restart_h:
            return work_h
        return self.at(self.beside if is_up else self.without, is_old, work_h, slack_h)


@lru_cache(maxsize=4096)
def solve(terms: Terms) -> Table:
    """A millisecond or two; the same terms are answered at once."""
    scale = max(1.0, terms.work_h / LONGEST_H)
    restart_h = max(terms.restart_h, _LEAST_RESTART_H)
    solved = _Induction(replace(terms, restart_h=restart_h, work_h=terms.work_h / scale, slack_h=terms.slack_h / scale))
    for row in range(len(solved.slacks_h)):
        solved.fill(row)
    return solved.table(terms, scale)


def _slacks_h(restart_h: float, slack_h: float) -> list[float]:
    """The first step is half a restart; each further one is longer, by the ratio with which all rows reach the end."""
    reach_h = max(slack_h - restart_h, 0.01)
    first_h = max(restart_h / 2.0, reach_h / _MOST_ROWS)
    low, high = 1.0, 2.0
    for _ in range(20):
        ratio = (low + high) / 2.0
        is_short = first_h * (ratio**_ROWS - 1.0) / (ratio - 1.0) < reach_h
        low, high = (ratio, high) if is_short else (low, ratio)
    return [restart_h + first_h * (high**row - 1.0) / (high - 1.0) for row in range(_ROWS + 1)]


def _along(rate_per_h: float, step_h: float) -> tuple[Values, Values]:
    """(M, c) with V = M R + price c, for V' = price + rate (R - V) and V(0) = 0."""
    kept = math.exp(-rate_per_h * step_h)
    mean = (1.0 - kept) / (rate_per_h * step_h)
    powers = kept ** np.arange(_POINTS + 2.0)
    powers[-1] = 0.0
    decay = powers[_APART]
    decay[:, 0] = 0.0
    matrix = decay * (1.0 - mean)
    matrix[:, :-1] += decay[:, 1:] * (mean - kept)
    return matrix, decay.sum(axis=1) * (1.0 - kept) / rate_per_h


class _Spell:
    """Spells of one kind, which end (young, old) at these rates, or grow old. Who works all through one has the values
    `matrix @ ends + price x hours`, where `ends` is what follows, after a young one and after an old one."""

    def __init__(self, ends_per_h: tuple[float, float], step_h: float) -> None:
        young_per_h = ends_per_h[0] + _AGEING_PER_H
        self.rates = (young_per_h, ends_per_h[1])
        self.share = ends_per_h[0] / young_per_h  # of young spells that end before they are old
        self.young, self.old = _along(young_per_h, step_h), _along(ends_per_h[1], step_h)
        (young, young_h), (old, old_h) = self.young, self.old
        grown = (1.0 - self.share) * young  # after which the rest is done in an old spell
        self.matrix = np.block([[self.share * young, grown @ old], [np.zeros((_K, _K)), old]])
        self.hours = np.concatenate([young_h + grown @ old_h, old_h])
        self.matrix_of_one = self.matrix[:, :_K] + self.matrix[:, _K:]  # where the same follows after both


@lru_cache(maxsize=512)
def _spell(ends_per_h: tuple[float, float], step_h: float) -> _Spell:
    return _Spell(ends_per_h, step_h)


@dataclass(frozen=True, slots=True)
class _Ahead:
    """Of each row: how likely nothing happens until the slack of the row before is reached (young, old), when it
    happens, if it does, and where its values come from. The same for all prices and rates of loss."""

    slacks_h: list[float]
    kept: Values
    aged: list[float]
    is_in_time: list[bool]
    is_late: NDArray[np.bool_]  # who waits so long does not begin
    where: Values


@lru_cache(maxsize=128)
def _ahead(restart_h: float, slack_h: float, return_rates: tuple[float, float]) -> _Ahead:
    listed = _slacks_h(restart_h, slack_h)
    slacks_h, rates = np.array(listed), np.array(return_rates)
    wide_h = np.diff(slacks_h, prepend=slacks_h[0] - 1.0)[:, None]
    kept = np.exp(-rates * wide_h)
    after_h = 1.0 / rates - wide_h * kept / (1.0 - kept)
    then_h = slacks_h[:, None] - restart_h - np.column_stack([np.zeros(len(slacks_h)), after_h])
    is_late = then_h < slacks_h[0] - 1e-12
    aged = (after_h[:, 0] / wide_h[:, 0]).tolist()
    in_time = (~is_late[:, 0]).tolist()
    return _Ahead(listed, np.repeat(kept, _K, axis=1), aged, in_time, is_late[:, 1:, None], _weights(slacks_h, then_h))


class _Induction:
    """The rows that are filled so far, the smallest slack first. A row has the young ones, then the old ones.

    All that a row needs from rows with less slack is one product with `ahead.where`: on spot and on demand, after a
    restart (0), and after waiting for spot in a young (1) and in an old (2) spell without it, and a restart."""

    def __init__(self, terms: Terms) -> None:
        self.terms, odds = terms, terms.odds
        self.step_h = max(terms.work_h, 1e-6) / _POINTS
        self.down, self.up = _spell(odds.return_per_h, self.step_h), _spell(odds.loss_per_h, self.step_h)
        self.ahead = _ahead(terms.restart_h, terms.slack_h, self.down.rates)
        self.slacks_h = self.ahead.slacks_h
        self.starts = np.where(self.ahead.is_late, _TOO_LONG_H, terms.spot_price * terms.restart_h)
        self.work_h = np.tile(self.step_h * np.arange(float(_K)), 2)
        self.least, self.start = terms.spot_price * np.tile(self.work_h, 2), terms.spot_price * terms.restart_h
        self.idle, self.nothing, self.beside = np.full((3, len(self.slacks_h), 2 * _K), _TOO_LONG_H)
        self.running = np.full((len(self.slacks_h), 4 * _K), _TOO_LONG_H)
        self.spot, self.without = self.running[:, : 2 * _K], self.running[:, 2 * _K :]
        self.spot_hours = terms.spot_price * self.up.hours
        # A loss while another market is open is a move; for who works on demand it is nothing at all.
        gone_per_h = odds.gone_per_h or odds.loss_per_h
        self.gone = _spell(gone_per_h, self.step_h)
        self.other = np.repeat(1.0 - np.array(gone_per_h) / np.array(odds.loss_per_h), _K)  # young, old

    def fill(self, row: int) -> None:
        """Where rows lie farther apart than a restart costs, a row depends on itself: on a guess that goes on half
        as steeply as the rows before."""
        running = self.running
        if row > 1:
            running[row] = np.maximum(running[row - 1] + _ONWARD * (running[row - 1] - running[row - 2]), self.least)
        elif row:
            running[1] = running[0]
        found = self.ahead.where[row, :, : row + 1] @ running[: row + 1]
        begun = found[0] if self.ahead.is_in_time[row] else None
        self._wait(row, found[1:, :_K], begun)
        self._on_spot(row, begun)
        self._on_demand(row, begun)

    def _wait(self, row: int, come: Values, begun: Values | None) -> None:
        """Nothing runs, no spot: wait on, or begin on demand."""
        restart_h, idle = self.terms.restart_h, self.idle[row]
        if row:
            self._idle(row, come)
        begin = self.work_h if begun is None else begun[2 * _K :]
        self.nothing[row] = np.minimum(idle, begin + restart_h)
        self.nothing[row, ::_K] = idle[::_K] = 0.0

    def _idle(self, row: int, come: Values) -> None:
        """Until something happens, or the slack of the row before is reached."""
        idle, last, kept = self.idle[row], self.nothing[row - 1], self.ahead.kept[row]
        then = np.minimum((come + self.starts[row]).ravel(), last)
        idle[_K:] = (then + kept * (last - then))[_K:]
        # What has grown old waits on: of this row only waiting is known yet, and that is what it did until now.
        now = np.minimum(idle[_K:], last[_K:])
        grown = now + self.ahead.aged[row] * (last[_K:] - now)
        then = grown + self.down.share * (then[:_K] - grown)
        idle[:_K] = then + kept[:_K] * (last[:_K] - then)

    def _on_spot(self, row: int, begun: Values | None) -> None:
        """A loss with another market open makes nobody's spell young: some machine has been there as long as before."""
        lost = self.nothing[row, _TWICE]
        if begun is not None:
            lost += self.other * (np.minimum(begun[: 2 * _K] + self.start, lost) - lost)
        self.spot[row] = self.up.matrix @ lost + self.spot_hours

    def _on_demand(self, row: int, begun: Values | None) -> None:
        if begun is None:
            self.without[row] = self.beside[row] = self.work_h
            return
        starts = begun[: 2 * _K] + self.start
        # Whether to leave at once when spot comes is judged by the row before: it is known, and nearly the same.
        come = np.minimum(starts[:_K], self.beside[row - 1, :_K])
        self.without[row] = self.down.matrix_of_one @ come + self.down.hours
        ended, beside, gone = self.without[row, :_K], self.beside[row], self.gone
        beside[_K:] = gone.old[0] @ ended + gone.old[1]
        grown = np.minimum(starts[_K:], beside[_K:])
        beside[:_K] = gone.young[0] @ (grown + gone.share * (ended - grown)) + gone.young[1]

    def table(self, terms: Terms, scale: float) -> Table:
        idle, spot, without, beside = (
            each.reshape(-1, 2, _K) for each in (self.idle, self.spot, self.without, self.beside)
        )
        return Table(terms, self.slacks_h, self.step_h, idle, spot, without, beside, scale)


def _weights(slacks_h: Values, at_h: Values) -> Values:
    """[row, which, row]: with what weights the values at these slacks, all of them at most that of their row, are made
    from those of the rows: on straight lines."""
    rows, number = np.arange(len(slacks_h))[:, None], len(slacks_h)
    low = np.clip(np.searchsorted(slacks_h, at_h, side="right") - 1, 0, np.maximum(rows - 1, 0))
    high = np.minimum(low + 1, rows)
    part = (at_h - slacks_h[low]) / np.where(high > low, slacks_h[high] - slacks_h[low], np.inf)
    found = np.zeros((number, at_h.shape[1], number))
    which = np.arange(at_h.shape[1])[None, :]
    found[rows, which, low] = 1.0 - part
    found[rows, which, high] += part
    return found
