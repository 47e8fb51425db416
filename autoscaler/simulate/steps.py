"""A record of something that changes in steps: how many nodes could be had, what one cost. Begins anew at its end."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Steps:
    """`values[n]` holds from `times_s[n]` on; the first time is 0. After `length_s` the record begins again."""

    times_s: tuple[float, ...]
    values: tuple[int, ...]
    length_s: float

    @classmethod
    def of(cls, points: Sequence[tuple[float, int]], length_s: float) -> Steps:
        """From (time, value) in the order of time; what does not change anything is left out."""
        first_s = points[0][0]
        kept = [points[0]]
        for at_s, value in points[1:]:
            if at_s == kept[-1][0]:
                kept[-1] = (at_s, value)
            elif value != kept[-1][1]:
                kept.append((at_s, value))
        return cls(tuple(at_s - first_s for at_s, _ in kept), tuple(value for _, value in kept), length_s)

    @classmethod
    def always(cls, value: int) -> Steps:
        return cls((0.0,), (value,), float("inf"))

    def at(self, at_s: float) -> int:
        within_s = at_s % self.length_s if self.length_s < float("inf") else at_s
        return self.values[bisect_right(self.times_s, within_s) - 1]

    def changes(self, begin_s: float) -> Iterator[tuple[float, int]]:
        """(time from `begin_s` on, value), for ever; the first one is at 0."""
        value = self.at(begin_s)
        yield 0.0, value
        if len(self.values) == 1:
            return
        lap = int(begin_s // self.length_s) if self.length_s < float("inf") else 0
        index = bisect_right(self.times_s, begin_s - lap * self.length_s if lap else begin_s)
        while True:
            for place in range(index, len(self.values)):
                if self.values[place] != value:
                    value = self.values[place]
                    yield (
                        lap * self.length_s + self.times_s[place] - begin_s if lap else (self.times_s[place] - begin_s),
                        value,
                    )
            if self.length_s == float("inf"):
                return
            lap, index = lap + 1, 0
