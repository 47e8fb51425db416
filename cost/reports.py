"""The reports of one job, as columns of numbers (56 bytes a report) in the order in which they begin. Pure.

Stands under `timeline.py`, which tells from them what the job did.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

ReportKey = tuple[int, int, int]  # start in ms, attempt, sequence: tells a repetition, and gives the order
Row = tuple[int, int, int, int, int, int, int]

_COLUMNS = 7  # start_ms, attempt, sequence, end_ms, first_step, last_step, samples


class Reports:
    """In order of ReportKey, each once. Those that come out of order wait in `late` until they are merged."""

    __slots__ = ("_last_key", "columns", "late")

    def __init__(self) -> None:
        self.columns = tuple(array("q") for _ in range(_COLUMNS))
        self.late: list[Row] = []
        self._last_key: ReportKey | None = None

    def __len__(self) -> int:
        return len(self.columns[0])

    def add(self, key: ReportKey, end_ms: int, first_step: int, last_step: int, samples: int) -> bool:
        """True: it is the newest, and in its place. A repetition is left out, any other one is late.

        A late one is never newer than those in place, so only late ones can repeat each other.
        """
        if self._last_key is not None and key <= self._last_key:
            if not self._has(key):
                self.late.append((*key, end_ms, first_step, last_step, samples))
            return False
        self._last_key = key
        for column, value in zip(self.columns, (*key, end_ms, first_step, last_step, samples), strict=True):
            column.append(value)
        return True

    def put_next(
        self, start_ms: int, attempt: int, sequence: int, end_ms: int, first_step: int, last_step: int, samples: int
    ) -> bool:
        """`add` of one that begins after all others, which is most of them; False: it does not."""
        if self._last_key is not None and start_ms <= self._last_key[0]:
            return False
        self._last_key = (start_ms, attempt, sequence)
        starts, attempts, sequences, ends, firsts, lasts, sampled = self.columns  # no loop: this runs for every step
        starts.append(start_ms)
        attempts.append(attempt)
        sequences.append(sequence)
        ends.append(end_ms)
        firsts.append(first_step)
        lasts.append(last_step)
        sampled.append(samples)
        return True

    def rows(self, first: int = 0) -> Iterator[Row]:
        return islice(zip(*self.columns, strict=True), first, None)

    def merge_late(self) -> int:
        """Put the late ones in their places. Returns how many reports at the beginning are as they were."""
        once = {row[:3]: row for row in sorted(self.late, reverse=True)}
        late = sorted(once.values())
        places = [self._place(row[:3]) for row in late]
        self.columns = tuple(_with(column, places, [row[i] for row in late]) for i, column in enumerate(self.columns))
        self.late = []
        return places[0]

    def _place(self, key: ReportKey) -> int:
        starts, attempts, sequences = self.columns[:3]
        i = bisect_left(starts, key[0])
        while i < len(starts) and starts[i] == key[0] and (attempts[i], sequences[i]) < key[1:]:
            i += 1
        return i

    def _has(self, key: ReportKey) -> bool:
        i = self._place(key)
        return i < len(self) and tuple(column[i] for column in self.columns[:3]) == key


def _with(column: array[int], places: list[int], values: list[int]) -> array[int]:
    """The column with each value put before its place; whole stretches are copied at once."""
    merged, copied = array("q"), 0
    for place, value in zip(places, values, strict=True):
        merged.extend(column[copied:place])
        merged.append(value)
        copied = place
    merged.extend(column[copied:])
    return merged
