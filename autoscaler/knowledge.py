"""What the log tells of markets: how often spot nodes are taken, and how long nodes take to boot. Pure.

`Experience` is folded event by event, inside of FleetState: its cost does not grow with the number of nodes on record.
`Knowledge` is what is believed of it at one moment, on the view; prices (effective.py) are made from that.

A market of which little is known is judged by its kin: market -> type in that cloud -> cloud -> what is usual. At each
step preemptions are a Poisson process whose rate has a Gamma prior: its mean is the belief about the wider circle, its
weight that of one preemption seen. The posterior mean is

    hazard = (taken + PRIOR_TAKEN) / (node hours + PRIOR_TAKEN / wider hazard)

so a market that nobody was taken from in T hours is believed to have a hazard below 1 / T, and never none at all.

Old evidence fades with a half-life, so that a market that has calmed down is forgiven. With n nodes running, the faded
node time E follows dE/dt = n - E / tau, which has a closed form between two events.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from tradewind.model import Capacity, Market

HALF_LIFE_S = 48 * 3600.0  # markets have moods of days
PRIOR_TAKEN = 1.0  # what the wider circle says weighs as much as one preemption seen
PRIOR_BOOTS = 2.0  # ... or as two boots
_BOOTS_KEPT = 32  # a market: the newest tell enough
_TAU_S = HALF_LIFE_S / math.log(2)


Circles = tuple[str, str, str]


@lru_cache(maxsize=65536)  # every decision asks for those of all that is sold
def circles(market: Market) -> Circles:
    """The names under which evidence about a market is added up, the widest first. Spot and on-demand stay apart."""
    wide = f"{market.cloud}//{market.capacity}"
    return wide, f"{market.cloud}/{market.instance_type}/{market.capacity}", market.key


@dataclass(slots=True)
class _Row:
    """One circle, as of `at_s`."""

    at_s: float
    running: int = 0
    node_s: float = 0.0  # faded
    taken: float = 0.0  # faded
    boots_s: deque[float] = field(default_factory=lambda: deque(maxlen=_BOOTS_KEPT))
    by_size_s: tuple[float, ...] = ()  # the same, in order

    def joined(self, boot_s: float) -> None:
        self.boots_s.append(boot_s)
        self.by_size_s = tuple(sorted(self.boots_s))

    def at(self, now_s: float) -> tuple[float, float]:
        """(node seconds, nodes taken), both faded. A clock that was set back tells of no time at all."""
        kept = math.exp(-max(0.0, now_s - self.at_s) / _TAU_S)
        return self.node_s * kept + self.running * _TAU_S * (1.0 - kept), self.taken * kept

    def advance(self, now_s: float) -> None:
        self.node_s, self.taken = self.at(now_s)
        self.at_s = now_s


@dataclass(slots=True)
class Experience:
    """The fold. Times are those of the events; a few seconds of disorder among them do no harm."""

    rows: dict[str, _Row] = field(default_factory=dict)
    # When each market was last asked with success, by what came of it: refusals are compared with that.
    launched_when_asked_s: dict[str, float] = field(default_factory=dict)
    joined_when_asked_s: dict[str, float] = field(default_factory=dict)

    def launched(self, market: Market, at_s: float, asked_s: float) -> None:
        _raise_to(self.launched_when_asked_s, market.key, asked_s)
        for row in self._rows(market, at_s):
            row.running += 1

    def joined(self, market: Market, at_s: float, asked_s: float) -> None:
        _raise_to(self.joined_when_asked_s, market.key, asked_s)
        for row in self._rows(market, at_s):
            row.joined(max(0.0, at_s - asked_s))

    def taken(self, market: Market, at_s: float) -> None:
        """The cloud took a node, or gave notice that it will."""
        for row in self._rows(market, at_s):
            row.taken += 1.0

    def ended(self, market: Market, at_s: float) -> None:
        for row in self._rows(market, at_s):
            row.running = max(0, row.running - 1)

    def _rows(self, market: Market, at_s: float) -> list[_Row]:
        found = [self.rows.get(circle) or self.rows.setdefault(circle, _Row(at_s)) for circle in circles(market)]
        for row in found:
            row.advance(at_s)
        return found


def _raise_to(latest_s: dict[str, float], key: str, at_s: float) -> None:
    latest_s[key] = max(latest_s.get(key, at_s), at_s)


class Evidence(NamedTuple):
    node_h: float = 0.0
    taken: float = 0.0
    boots_s: tuple[float, ...] = ()  # the newest, in order of size


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is believed at one moment. `usual_...` is what is believed where nothing is known."""

    usual_hazard_per_h: float
    usual_boot_s: float
    evidence: Mapping[str, Evidence] = field(default_factory=dict)  # by circle
    _figures: dict[Market, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)
    _of_kinds: dict[str, tuple[float, float]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, experience: Experience, now_s: float, usual_hazard_per_h: float, usual_boot_s: float) -> Knowledge:
        found = {}
        for circle, row in list(experience.rows.items()):
            node_s, taken = row.at(now_s)
            found[circle] = Evidence(node_s / 3600.0, taken, row.by_size_s)
        return cls(usual_hazard_per_h, usual_boot_s, found)

    def hazard_per_h(self, market: Market) -> float:
        """Expected preemptions of one node in an hour. On-demand nodes are not taken."""
        return self.figures(market)[0]

    def boot_s(self, market: Market) -> float:
        """The usual time (median) from asking for a node until it joins Ray, by the same shrinkage."""
        return self.figures(market)[1]

    def figures(self, market: Market) -> tuple[float, float]:
        """(hazard per hour, boot time)"""
        known = self._figures.get(market)
        if known is None:
            known = self._figures[market] = self.figures_in(circles(market), market)
        return known

    def figures_in(self, names: Circles, market: Market) -> tuple[float, float]:
        """The same, for who knows the circles already."""
        wide, kind, own = names
        if kind not in self._of_kinds:
            self._of_kinds[kind] = self._within(kind, self._within(wide, (self.usual_hazard_per_h, self.usual_boot_s)))
        hazard_per_h, boot_s = self._within(own, self._of_kinds[kind])
        return hazard_per_h if market.capacity is Capacity.SPOT else 0.0, boot_s

    def _within(self, circle: str, wider: tuple[float, float]) -> tuple[float, float]:
        """(hazard per hour, boot time) of a circle, by its own evidence and by what is believed of the wider one."""
        mine = self.evidence.get(circle)
        if mine is None:
            return wider
        hazard_per_h, boot_s = wider
        node_h, taken, boots_s = mine
        number = len(boots_s)
        median_boot_s = boots_s[number // 2] if number else 0.0
        return (
            (taken + PRIOR_TAKEN) / (node_h + PRIOR_TAKEN / hazard_per_h),
            (number * median_boot_s + PRIOR_BOOTS * boot_s) / (number + PRIOR_BOOTS),
        )
