"""Time as a thing that is handed in: the loop asks a Clock, decisions get `now_s` as a value."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since the epoch, which somebody may set forward or back; seconds that only ever pass; and waiting."""

    def now_s(self) -> float: ...

    def steady_s(self) -> float:
        """Since some moment or other: for how long something took, whatever happens to the calendar."""
        ...

    def sleep(self, duration_s: float) -> None: ...


class SystemClock:
    def now_s(self) -> float:
        return time.time()

    def steady_s(self) -> float:
        """With the time that the machine was asleep: clouds bill it, too. Not every system tells it."""
        boot = getattr(time, "CLOCK_BOOTTIME", None)
        return time.monotonic() if boot is None else time.clock_gettime(boot)

    def sleep(self, duration_s: float) -> None:
        time.sleep(duration_s)


class FakeClock:
    """Stands still until it is told to move; sleeping moves it."""

    def __init__(self, start_s: float = 1_000_000.0) -> None:
        self._now_s = start_s
        self._steady_s = 0.0

    def now_s(self) -> float:
        return self._now_s

    def steady_s(self) -> float:
        return self._steady_s

    def sleep(self, duration_s: float) -> None:
        self._now_s += duration_s
        self._steady_s += duration_s

    def set_by(self, jump_s: float) -> None:
        """Somebody sets the clock: no time passes."""
        self._now_s += jump_s
