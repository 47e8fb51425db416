"""Time as a thing that is handed in: the loop asks a Clock, decisions get `now_s` as a value."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, and waiting."""

    def now_s(self) -> float: ...

    def sleep(self, duration_s: float) -> None: ...


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class FakeClock:
    """Stands still until it is told to move; sleeping moves it."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, duration_s: float) -> None:
        self._now_s += duration_s
