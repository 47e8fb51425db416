"""The last looks at one series, equally far apart: what rose before each, and how far it rose after. Bounded memory.

Stands under growth.py. The hour of a look counts as well. The newest look is open: it is of the present, and changes
with every observation until the next begins. What came after a look is known once `ahead` further ones are over; a span
that nobody looked at is not learned from.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.float32]

_END, _PEAK, _IS_KNOWN, _RISES, _OUTCOME, _SIGNS = range(6)  # rows of the table; the signs are all that follow
_UNKNOWN = -1.0
_SMALLEST = 256
# Rises that none count as: none and one are farther apart than one and two, and quiet looks are many.
_NONE = 0.25
_NONE_FADING = 0.1
_NONE_SLOW = 0.3
_DAY_S = 86400.0


class Looks:
    """`spans` and `slow` are numbers of looks. Rises are counted three times: within the first span, between the first
    and the second, and so on; fading, with each span as the time in which a rise counts for 1/e; and fading slowly. The
    last two signs are the place of the hour on a clock's face of 24 hours, an hour apart as hours are."""

    def __init__(self, window: int, ahead: int, spans: tuple[int, ...], slow: tuple[int, ...] = ()) -> None:
        self.length = 0
        self._window, self._ahead, self._spans = window, ahead, spans
        self._fading = np.exp(-1.0 / np.array((*spans, *slow))).astype(np.float32)
        self._none = np.array([_NONE_FADING] * len(spans) + [_NONE_SLOW] * len(slow), dtype=np.float32)
        counts = len(spans) + len(self._fading)
        self._counts, self._hour = slice(_SIGNS, _SIGNS + counts), slice(_SIGNS + counts, _SIGNS + counts + 2)
        signs = counts + 2
        self._faded = slice(_SIGNS + signs, None)  # rows behind the signs: the fading counts themselves
        self._table = np.zeros((_SIGNS + signs + len(self._fading), _SMALLEST), dtype=np.float32)

    @property
    def level(self) -> float:
        return float(self._table[_END, self.length - 1])

    @property
    def outcome(self) -> float | None:
        """Of the look whose outcome became known when the newest began; None: nobody looked."""
        origin = self.length - 2 - self._ahead
        return float(self._table[_OUTCOME, origin]) if origin >= 0 and self._table[_OUTCOME, origin] >= 0 else None

    def begin(self, is_known: bool, at_s: float = 0.0) -> None:
        """A further look, at the level of the last one until something is seen."""
        if self.length:
            self._settle()
        if self.length == self._table.shape[1]:
            self._make_room()
        new, last = self.length, max(self.length - 1, 0)
        self._table[:, new] = self._table[:, last]
        self._table[_PEAK, new] = self._table[_END, last]
        self._table[_IS_KNOWN, new], self._table[_OUTCOME, new] = is_known, _UNKNOWN
        self._table[self._hour, new] = _place_of(at_s)
        self.length += 1
        self._sign()

    def see(self, level: float) -> None:
        """In the newest look."""
        now = self.length - 1
        is_first = now == 0
        self._table[_END, now] = level
        self._table[_PEAK, now] = level if is_first else max(self._table[_PEAK, now], level)
        if not is_first and self._table[_PEAK, now] > self._table[_END, now - 1]:
            self._table[_RISES, now] = self._table[_RISES, now - 1] + 1
        self._sign()

    def settled(self) -> tuple[Column, Column]:
        """Of each look whose outcome was seen, oldest first: its signs (sign, look), and how far demand rose after. The
        signs are of counts in spans, then of fading ones, then of those that fade slowly, then of the hour."""
        last = max(self.length - 1 - self._ahead, 0)
        rows = slice(max(last - self._window, 0), last)
        signs, outcomes = self._table[_SIGNS : self._faded.start, rows], self._table[_OUTCOME, rows]
        is_seen = outcomes != _UNKNOWN
        return (signs, outcomes) if is_seen.all() else (signs[:, is_seen], outcomes[is_seen])

    def signs(self) -> Column:
        """Of the newest look: how often demand had risen, on a logarithmic scale, and the hour."""
        return self._table[_SIGNS : self._faded.start, self.length - 1]

    def _sign(self) -> None:
        now = self.length - 1
        rises = self._table[_RISES]
        counts = [rises[now] - (rises[now - span] if now >= span else 0.0) for span in self._spans]
        has_risen = now > 0 and rises[now] > rises[now - 1]
        faded = self._table[self._faded, now - 1] * self._fading + has_risen if now else np.zeros_like(self._fading)
        self._table[self._faded, now] = faded
        signs = [np.log(np.diff(counts, prepend=0.0) + _NONE), np.log(faded + self._none)]
        self._table[self._counts, now] = np.concatenate(signs)

    def _settle(self) -> None:
        """The newest look is over, and with it what came after the one `ahead` before."""
        origin = self.length - 1 - self._ahead
        since = slice(origin, self.length)
        if origin >= 0 and self._table[_IS_KNOWN, since].all():
            lows = np.minimum.accumulate(self._table[_END, since][:-1])
            self._table[_OUTCOME, origin] = max(float((self._table[_PEAK, since][1:] - lows).max()), 0.0)

    def _make_room(self) -> None:
        """Twice as much, until the window is full; then the oldest go, a quarter of the window at once."""
        keep = self._window + self._ahead + self._spans[-1]
        if self.length >= keep + keep // 4:
            self._table[:, :keep] = self._table[:, self.length - keep : self.length]
            self._table[_RISES, :keep] -= self._table[_RISES, 0]  # only differences count: small numbers are exact
            self.length = keep
        else:
            more = min(self.length, keep + keep // 4 - self.length)
            self._table = np.concatenate([self._table, np.zeros_like(self._table[:, :more])], axis=1)


def _place_of(at_s: float) -> tuple[float, float]:
    turn, radius = math.tau * (at_s % _DAY_S) / _DAY_S, 24.0 / math.tau
    return radius * math.cos(turn), radius * math.sin(turn)
