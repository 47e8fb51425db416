"""What the emulated project holds beside its resources: its clock, what is due, and its bad days."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

REGIONS = (
    "us-central1",
    "us-east1",
    "us-west1",
    "us-west4",
    "europe-west4",
    "asia-southeast1",
    "us-central2",
    "us-east5",
    "us-south1",
)
ZONES = tuple(f"{region}-{letter}" for region in REGIONS for letter in "abcf")
_MOUNTAIN_VIEW = timezone(timedelta(hours=-8))  # Google's timestamps are not in UTC

Pool = tuple[str, str, bool]  # zone, machine or TPU type, spot


@dataclass
class Faults:
    """Bad days, to be set by a test at any time. Numbers count down with each call of the kind."""

    throttled: int = 0  # calls that are refused for their rate
    broken: int = 0  # calls that get an HTTP 503, with nothing done
    cut_after: int = 0  # launches that are carried out without an answer
    cut_before: int = 0  # launches that are not carried out, without an answer
    hang_after_s: float = 0.0  # real time that a launch is held back after it was carried out
    failed_boots: int = 0  # launches that are accepted and shut down before they run
    half_launches: int = 0  # slices of which only some hosts come to be
    unknown_code: str = ""  # the next launch fails with it
    listing_lag_s: float = 0.0  # a new resource is listed only then
    credentials_expired: bool = False
    denied: set[str] = field(default_factory=set)  # permissions
    dead_regions: set[str] = field(default_factory=set)
    sold_out: set[Pool] = field(default_factory=set)
    capacity: dict[Pool, Callable[[float], int]] = field(
        default_factory=dict
    )  # how many there are, by time; else no end
    quota: int | None = None  # machines, or slices, in a region
    group_room: int | None = None  # machines in one placement policy

    def is_dry(self, pool: Pool, held: int, now_s: float) -> bool:
        return pool in self.sold_out or (pool in self.capacity and held >= self.capacity[pool](now_s))

    def take(self, name: str) -> bool:
        """Whether this call is one of those that are counted."""
        left: int = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
        return left > 0


@dataclass
class Timeline:
    """The project's clock, and what happens by itself at its time. Nothing moves but in `settle`."""

    clock: Callable[[], float]
    skew_s: float = 0.0
    lock: threading.RLock = field(default_factory=threading.RLock)
    _due: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _order: itertools.count[int] = field(default_factory=itertools.count)
    _at_s: float | None = None  # while something that was due happens: its time

    def now_s(self) -> float:
        return (self.clock() if self._at_s is None else self._at_s) + self.skew_s

    def after(self, delay_s: float, happens: Callable[[], None]) -> None:
        start_s = self.clock() if self._at_s is None else self._at_s
        heapq.heappush(self._due, (start_s + delay_s, next(self._order), happens))

    def settle(self) -> None:
        with self.lock:
            while self._due and self._due[0][0] <= self.clock():
                self._at_s, _, happens = heapq.heappop(self._due)
                try:
                    happens()
                finally:
                    self._at_s = None

    def stamp(self, at_s: float | None = None) -> str:
        moment = datetime.fromtimestamp(self.now_s() if at_s is None else at_s, _MOUNTAIN_VIEW)
        return moment.isoformat(timespec="milliseconds")
