"""How long things take in a simulation, and what can happen in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tradewind.errors import TradewindError


@dataclass(frozen=True, slots=True)
class Physics:
    """How long things take. The defaults stand in docs/designs/simulate.md with their sources."""

    boot_s: float = 180.0  # from the launch to joining Ray; the middle of many
    boot_spread: float = 0.2  # of its logarithm
    notice_s: float = 120.0
    save_s: float = 15.0  # a notice that is shorter is none
    restart_s: float = 30.0  # from having its machines again until a job goes on with its work
    checkpoint_s: float = 600.0  # between two checkpoints: what a loss without notice takes back

    def __post_init__(self) -> None:
        for name in Physics.__slots__:
            value = getattr(self, name)
            if not 0.0 <= value < float("inf"):
                raise TradewindError(f"{name} is {value}", "it must be 0 or more, and finite")


class Kind(IntEnum):
    """Of events. Of those at one moment, the first ones first."""

    WINDOW = 0
    END = 1
    TAKE = 2
    JOIN = 3
    NOTICE = 4
    PRICE = 5
    LEAVE = 6
