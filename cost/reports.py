"""The reports of one job, as rows of numbers (56 bytes each) in the order in which they begin. Pure.

Stands under `timeline.py`, which tells from them what the job did. The rows are one array, not an array for each field:
millions of reports of many jobs come in turn, and each then touches one place in memory instead of seven.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from struct import Struct

ReportKey = tuple[int, int, int]  # start in ms, attempt, sequence: tells a repetition, and gives the order
Row = tuple[int, int, int, int, int, int, int]

_WIDTH = 7  # start_ms, attempt, sequence, end_ms, first_step, last_step, samples
_pack = Struct(f"{_WIDTH}q").pack


class Reports:
    """In order of ReportKey, each once. Those that come out of order wait in `late` until they are merged."""

    __slots__ = ("_last_start_ms", "_rows", "late")

    def __init__(self) -> None:
        self._rows = array("q")
        self._last_start_ms = -1
        self.late: list[Row] = []

    def __len__(self) -> int:
        return len(self._rows) // _WIDTH

    def add(self, key: ReportKey, end_ms: int, first_step: int, last_step: int, samples: int) -> bool:
        """True: it is the newest, and in its place. A repetition is left out, any other one is late.

        A late one is never newer than those in place, so only late ones can repeat each other.
        """
        if self._rows and key <= self._key(len(self) - 1):
            if not self._has(key):
                self.late.append((*key, end_ms, first_step, last_step, samples))
            return False
        self._last_start_ms = key[0]
        self._rows.frombytes(_pack(*key, end_ms, first_step, last_step, samples))
        return True

    def put_next(
        self, start_ms: int, attempt: int, sequence: int, end_ms: int, first_step: int, last_step: int, samples: int
    ) -> bool:
        """`add` of one that begins after all others, which is most of them; False: it does not."""
        if start_ms <= self._last_start_ms:
            return False
        self._last_start_ms = start_ms
        self._rows.frombytes(_pack(start_ms, attempt, sequence, end_ms, first_step, last_step, samples))
        return True

    def rows(self, first: int = 0) -> Iterator[Row]:
        values = iter(self._rows[first * _WIDTH :])
        return zip(values, values, values, values, values, values, values, strict=True)

    def merge_late(self) -> int:
        """Put the late ones in their places. Returns how many reports at the beginning are as they were."""
        once = {row[:3]: row for row in sorted(self.late, reverse=True)}
        late = sorted(once.values())
        places = [self._place(row[:3]) for row in late]
        self._rows = _with(self._rows, places, late)
        self.late = []
        return places[0]

    def _key(self, place: int) -> ReportKey:
        start_ms, attempt, sequence = self._rows[place * _WIDTH : place * _WIDTH + 3]
        return start_ms, attempt, sequence

    def _place(self, key: ReportKey) -> int:
        return bisect_left(range(len(self)), key, key=self._key)

    def _has(self, key: ReportKey) -> bool:
        place = self._place(key)
        return place < len(self) and self._key(place) == key


def _with(rows: array[int], places: list[int], late: list[Row]) -> array[int]:
    """The rows with each late one put before its place; whole stretches are copied at once."""
    merged, copied = array("q"), 0
    for place, row in zip(places, late, strict=True):
        merged.extend(rows[copied : place * _WIDTH])
        merged.extend(row)
        copied = place * _WIDTH
    merged.extend(rows[copied:])
    return merged
