"""Electricity and carbon of what ran: kWh, gCO2e, and how they are known. Pure; the facts are in data/energy.csv.

Stands beside the ledger: it is given device-hours and says what they took.

    kWh  = hours x devices x watts x PUE / 1000
    gCO2 = kWh x grid intensity + embodied share
    SCI  = gCO2 / units of work (steps, samples, tokens)           Green Software Foundation, SCI specification

Watts are measured (energy_meter.py), or estimated from the device's wattage and utilisation: a device idles at a part
of its wattage and grows with what it does. What is estimated is said; what is not known is None, never 0.
"""

from __future__ import annotations

import csv
import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

FACTS = Path(__file__).parent / "data" / "energy.csv"
# These are usual orders of magnitude, not checked against a source.
IDLE_SHARE = 0.2  # of its wattage that a card takes while it does nothing
VCPU_IDLE_W, VCPU_BUSY_W = 0.7, 3.5  # of a server core, mean of current generations
WATTS_PER_GIB = 0.392  # of memory
PUE_UNKNOWN = 1.56  # mean of data centres, 2024
LIFE_H = 4 * 8760.0  # of a server: what making it emitted is shared out over four years


class Known(StrEnum):
    """How a figure is known."""

    MEASURED = "measured"
    PARTLY = "partly measured"  # of some devices, or of some nodes
    ESTIMATED = "estimated"


@dataclass(frozen=True, slots=True)
class Use:
    """What ran for some time in one place: all hosts alike. Measured watts are of one host."""

    cloud: str
    region: str
    hours: float
    hosts: float = 1.0
    accelerator: str = ""
    accelerators: float = 0.0  # of a host
    vcpus: float = 0.0
    memory_gib: float = 0.0
    utilisation: float = 0.5  # 0 to 1, of what it has
    card_watts: float | None = None  # of its cards together, as measured
    processor_watts: float | None = None  # of its cores and memory, as measured
    g_per_kwh: float | None = None  # of the hours in which it ran; None: the region's mean


@dataclass(frozen=True, slots=True)
class Footprint:
    kwh: float
    operational_g: float | None  # None: nobody knows how clean that region's electricity is
    embodied_g: float
    known: Known
    pue: float
    hourly: bool = False  # by the grid's figures of the hours in which it ran; else by the region's mean

    @property
    def total_g(self) -> float | None:
        return None if self.operational_g is None else self.operational_g + self.embodied_g

    def sci_g_per(self, units: float) -> float | None:
        """Software Carbon Intensity: of one step, sample or token."""
        return None if self.total_g is None or units <= 0 else self.total_g / units


def kwh(hours: float, devices: float, watts: float, pue: float) -> float:
    return hours * devices * watts * pue / 1000


def footprint(use: Use) -> Footprint:
    facts = load()
    pue = facts.pue(use.cloud)
    energy_kwh = kwh(use.hours, use.hosts, watts_of(use), pue)
    intensity = facts.g_per_kwh(use.cloud, use.region) if use.g_per_kwh is None else use.g_per_kwh
    return Footprint(
        kwh=energy_kwh,
        operational_g=None if intensity is None else energy_kwh * intensity,
        embodied_g=embodied_g(use),
        known=_known(use),
        pue=pue,
        hourly=use.g_per_kwh is not None,
    )


def added(footprints: Iterable[Footprint]) -> Footprint | None:
    """Of several: measured only where all are, unknown where one is. None of none."""
    each: Sequence[Footprint] = tuple(footprints)
    if not each:
        return None
    operational = [one.operational_g for one in each]
    total_kwh = sum(one.kwh for one in each)
    weights = total_kwh or float(len(each))
    return Footprint(
        kwh=total_kwh,
        operational_g=None if None in operational else sum(grams for grams in operational if grams is not None),
        embodied_g=sum(one.embodied_g for one in each),
        known=each[0].known if len({one.known for one in each}) == 1 else Known.PARTLY,
        pue=sum(one.pue * (one.kwh if total_kwh else 1.0) for one in each) / weights,
        hourly=all(one.hourly for one in each),
    )


def watts_of(use: Use) -> float:
    """Of one host: measured where it was, otherwise estimated."""
    cards = estimated_card_watts(use) if use.card_watts is None else use.card_watts
    return cards + (estimated_processor_watts(use) if use.processor_watts is None else use.processor_watts)


def _known(use: Use) -> Known:
    measured = [use.processor_watts is not None, *([use.card_watts is not None] if use.accelerators else [])]
    if all(measured):
        return Known.MEASURED
    return Known.PARTLY if any(measured) else Known.ESTIMATED


def estimated_card_watts(use: Use) -> float:
    """A card of unknown wattage counts as a middling one."""
    card = load().watts(use.accelerator) if use.accelerator else 0.0
    return use.accelerators * card * (IDLE_SHARE + (1.0 - IDLE_SHARE) * _utilisation(use))


def estimated_processor_watts(use: Use) -> float:
    """Cores and memory."""
    cores = use.vcpus * (VCPU_IDLE_W + (VCPU_BUSY_W - VCPU_IDLE_W) * _utilisation(use))
    return cores + use.memory_gib * WATTS_PER_GIB


def _utilisation(use: Use) -> float:
    if not 0.0 <= use.utilisation <= 1.0:
        raise ValueError(f"utilisation is between 0 and 1, not {use.utilisation}")
    return use.utilisation


def embodied_g(use: Use) -> float:
    """What making the hardware emitted, by its share of a life. Hosts are whole ones where they carry 8 cards or 192
    cores, and parts of one where they carry fewer."""
    facts = load()
    share = min(1.0, max(use.accelerators / 8, use.vcpus / 192))
    grams = 1000 * (facts.server_kg * share + facts.card_kg * use.accelerators)
    return grams * use.hours * use.hosts / LIFE_H


@dataclass(frozen=True)
class Facts:
    rows: dict[tuple[str, str], float]

    @property
    def server_kg(self) -> float:
        return self.rows["embodied_kg", "server"]

    @property
    def card_kg(self) -> float:
        return self.rows["embodied_kg", "accelerator"]

    def watts(self, accelerator: str) -> float:
        return self.rows.get(("watts", accelerator), self.rows["watts", ""])

    def pue(self, cloud: str) -> float:
        return self.rows.get(("pue", cloud), PUE_UNKNOWN)

    def g_per_kwh(self, cloud: str, region: str) -> float | None:
        return self.rows.get((f"grid/{cloud}", region))


@functools.cache
def load(path: Path = FACTS) -> Facts:
    with open(path, newline="", encoding="utf-8") as file:
        lines = (line for line in file if not line.startswith("#"))
        return Facts({(kind, name): float(value) for kind, name, value in csv.reader(lines)})
