"""What the emulated subscription holds beside its machines: bad days, sizes, images, networks, prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

Pool = tuple[str, str, bool]  # zone ("eastus-1", or "eastus" for a machine without one), size, spot
REGIONS = ("eastus", "eastus2", "westus2", "westeurope", "southcentralus")
ZONES = ("1", "2", "3")
IMAGE = ("microsoft-dsvm", "ubuntu-hpc", "2204")


@dataclass(frozen=True)
class Size:
    family: str
    vcpus: int
    spot_usd: float
    usd: float


SIZES = {
    "Standard_NC4as_T4_v3": Size("Standard NCASv3_T4 Family", 4, 0.19, 0.526),
    "Standard_NC64as_T4_v3": Size("Standard NCASv3_T4 Family", 64, 1.57, 4.352),
    "Standard_NC24ads_A100_v4": Size("StandardNCADSA100v4Family", 24, 1.35, 3.673),
    "Standard_ND96isr_H100_v5": Size("standardNDSH100v5Family", 96, 29.5, 98.32),
    "Standard_D2s_v5": Size("standardDSv5Family", 2, 0.02, 0.096),
    "Standard_D4s_v5": Size("standardDSv5Family", 4, 0.04, 0.192),
    "Standard_D8s_v5": Size("standardDSv5Family", 8, 0.08, 0.384),
    "Standard_D16s_v5": Size("standardDSv5Family", 16, 0.16, 0.768),
}


@dataclass
class Faults:
    """Bad days, to be set by a test at any time. Numbers count down with each call of the kind."""

    throttled: int = 0  # calls that are refused for their rate
    broken: int = 0  # calls that get an HTTP 503, with nothing done
    cut_after: int = 0  # launches that are carried out without an answer
    cut_before: int = 0  # launches that are not carried out, without an answer
    hang_after_s: float = 0.0  # real time that a launch is held back after it was carried out
    failed_boots: int = 0  # launches that get hardware and never come up
    unknown_code: str = ""  # the next launch is refused with it
    listing_lag_s: float = 0.0  # a new machine is listed only then
    log_lag_s: float = 0.0  # what happens is in the activity log only then; in Azure that is some minutes
    credentials_expired: bool = False
    denied: set[str] = field(default_factory=set)  # permissions
    dead_regions: set[str] = field(default_factory=set)
    sold_out: set[Pool] = field(default_factory=set)
    capacity: dict[Pool, Callable[[float], int]] = field(default_factory=dict)  # how many, by time; else no end
    quota: int | None = None  # machines in a region
    group_room: int | None = None  # machines in one proximity placement group
    spot_usd: dict[tuple[str, str], float] = field(default_factory=dict)  # (region, size), where it is not the list's

    def is_dry(self, pool: Pool, held: int, now_s: float) -> bool:
        return pool in self.sold_out or (pool in self.capacity and held >= self.capacity[pool](now_s))

    def take(self, name: str) -> bool:
        """Whether this call is one of those that are counted."""
        left: int = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
        return left > 0


def stamp(at_s: float) -> str:
    """As Azure writes it, with seven digits."""
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f0+00:00")
