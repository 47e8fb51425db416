"""What this machine really takes: NVML's energy counters of its cards, RAPL's of its processors. The edge of energy.py.

Both count joules since some moment, so what a node took is a difference of two readings (node/power.py tells them).
Most virtual machines hide RAPL: what has no counter stays an estimate of energy.py. The memory of the host is in RAPL's
package counters on some processors only, so a measured figure is rather too low than too high.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

POWERCAP = Path("/sys/class/powercap")
FIRST_TOLD_S = 60.0  # shorter readings say little


class Counter(Protocol):
    """Joules since some moment in the past; never falls."""

    name: str

    def joules(self) -> float: ...


class RaplCounter:
    """One processor package. The register runs over; a reading must come at least every quarter of an hour."""

    def __init__(self, folder: Path) -> None:
        self.name = f"rapl {(folder / 'name').read_text().strip()}"
        self._file = folder / "energy_uj"
        self._range_uj = int((folder / "max_energy_range_uj").read_text())
        self._last_uj, self._over_uj = int(self._file.read_text()), 0

    def joules(self) -> float:
        now_uj = int(self._file.read_text())
        if now_uj < self._last_uj:
            self._over_uj += self._range_uj
        self._last_uj = now_uj
        return (self._over_uj + now_uj) / 1e6


class NvmlCounter:
    """One card (Volta or newer). `nvml` is the module pynvml, initialised."""

    def __init__(self, nvml: Any, index: int) -> None:
        self._nvml, self._handle = nvml, nvml.nvmlDeviceGetHandleByIndex(index)
        self.name = f"nvml {index}"
        self.joules()  # older cards have no counter: then this raises, and there is none

    def joules(self) -> float:
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) / 1e3


@dataclass(frozen=True, slots=True)
class Reading:
    """What a machine has taken since its meter began. None: there is nothing to measure these by."""

    seconds: float
    card_joules: float | None
    processor_joules: float | None


class EnergyMeter:
    """Cards and processors apart: most virtual machines tell of their cards alone."""

    def __init__(
        self, cards: Sequence[Counter], processors: Sequence[Counter], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._began_s = clock, clock()
        self._cards, self._processors = (_Sum(counters) for counters in (cards, processors))

    def __bool__(self) -> bool:
        """Is there anything to measure by?"""
        return bool(self._cards.counters or self._processors.counters)

    def read(self) -> Reading:
        return Reading(self._clock() - self._began_s, self._cards.joules(), self._processors.joules())


class _Sum:
    """Of some counters, from now on. One that falls has begun anew (a driver was loaded again)."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self.counters = tuple(counters)
        self._last = [counter.joules() for counter in self.counters]
        self._total_j = 0.0

    def joules(self) -> float | None:
        now = [counter.joules() for counter in self.counters]
        risen = (after - before if after >= before else after for before, after in zip(self._last, now, strict=True))
        self._total_j += sum(risen)
        self._last = now
        return self._total_j if self.counters else None


def meter_here() -> EnergyMeter:
    """Of this machine. Without counters it is false, and there is nothing to read."""
    return EnergyMeter(nvml_counters(), rapl_counters())


def is_news(told_s: float | None, seconds: float) -> bool:
    """Whether a reading is worth telling, after one of so many seconds. What counts is the mean of a node's life, which
    changes ever more slowly: a month is told by some thirty readings."""
    return seconds >= FIRST_TOLD_S and (told_s is None or seconds >= told_s * 1.25)


def rapl_counters(root: Path = POWERCAP) -> list[Counter]:
    """Packages only: their parts (core, uncore) are in them. Reading needs root on most systems; without, none."""
    found: list[Counter] = []
    for folder in sorted(root.glob("intel-rapl:*")):
        if folder.name.count(":") == 1:
            try:
                found.append(RaplCounter(folder))
            except (OSError, ValueError):
                continue
    return found


def nvml_counters(nvml: Any = None) -> list[Counter]:
    """None where there is no driver."""
    import pynvml

    used = nvml or pynvml
    try:
        used.nvmlInit()
        return [NvmlCounter(used, index) for index in range(used.nvmlDeviceGetCount())]
    except used.NVMLError:
        return []
