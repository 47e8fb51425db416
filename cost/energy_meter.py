"""What this machine really takes: NVML's energy counters of its cards, RAPL's of its processors. The edge of energy.py.

Both count joules since some moment, so power is a difference of two readings. A machine that has neither (most virtual
ones hide RAPL) is told apart: then there is no meter, and energy.py estimates. The memory of the host is in RAPL's
package counters on some processors only, so a measured figure is rather too low than too high.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

POWERCAP = Path("/sys/class/powercap")


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


class EnergyMeter:
    """Watts of all counters together, since the last question."""

    def __init__(self, counters: Sequence[Counter], clock: Callable[[], float] = time.monotonic) -> None:
        self.counters, self._clock = tuple(counters), clock
        self._last = (clock(), self._joules())

    def watts(self) -> float | None:
        """None where no time has passed, or there is nothing to measure by."""
        now = (self._clock(), self._joules())
        (before_s, before_j), self._last = self._last, now
        passed_s = now[0] - before_s
        return (now[1] - before_j) / passed_s if self.counters and passed_s > 0 else None

    def _joules(self) -> float:
        return sum(counter.joules() for counter in self.counters)


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
