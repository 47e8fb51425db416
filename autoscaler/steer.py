"""What the contract of one job asks of the loop until the next decision. Values only; pilot.py makes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Steer:
    """`what` names the choice, in words that stay the same while it does; `why` is what it was chosen for."""

    job_id: str
    what: str
    why: str
    beaten: tuple[str, ...] = ()
    is_free: bool = False  # nothing is asked: it is bought for as if it had no contract
    waits: bool = False  # nothing is bought for it, and what it holds is given back
    workers: int = 0  # that it may have
    labels: Mapping[str, str] = field(default_factory=dict)  # that offers for it must have
    misplaced: frozenset[str] = frozenset()  # launch ids that it is to leave, once there is room where it should be
    is_net: bool = False  # it is to get there, and has the time, even where nothing may be bought beside what it has
    is_urgent: bool = False  # there is no time to rest in
    warning: str = ""  # what of the contract is given up; it is part of `what`, so that it is recorded once

    @property
    def reason(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True)
class Kept:
    """Of the fleet's limit on money: what jobs with a deadline may need beyond what they pay now, to be on demand when
    their safety net asks for it. What others buy must leave it free."""

    uusd_per_h: int = 0
    jobs: frozenset[str] = frozenset()  # for which it is kept
