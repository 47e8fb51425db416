"""How often to save: pure. From what a save costs, how often state is lost, and how much notice there is.

Outcome of each save -> Costs      losses that were seen -> Rate      -> choose -> Interval (shown to people)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tradewind.units import format_duration

FIRST_S = 60.0  # before anything was measured
LONGEST_S = 3600.0  # whatever the formula says: people look at checkpoints, too
NOTICE_MARGIN_S = 10.0  # of a notice: it is told late, and a step ends first
SMOOTHING = 0.5  # weight of the last save: storage is slow for hours, or for one save
DRAG = 0.1  # share of the write time that training loses to it (processor, memory and network are shared)


@dataclass(frozen=True, slots=True)
class Costs:
    """What a save takes, smoothed over the last ones."""

    stall_s: float
    write_s: float

    def then(self, stall_s: float, write_s: float) -> Costs:
        return Costs(_smooth(self.stall_s, stall_s), _smooth(self.write_s, write_s))

    @property
    def training_s(self) -> float:
        return self.stall_s + DRAG * self.write_s


@dataclass(frozen=True, slots=True)
class Rate:
    """Losses per hour and node: a prior that counts like some hours of watching, and what was seen since.

    The mean of a gamma distribution after Poisson events: (prior events + events) / (prior hours + hours).
    """

    events: float = 1.0
    node_h: float = 100.0

    @classmethod
    def prior(cls, per_node_h: float, weight_h: float = 24.0) -> Rate:
        return cls(per_node_h * weight_h, weight_h)

    def seen(self, events: int = 0, node_h: float = 0.0) -> Rate:
        return replace(self, events=self.events + events, node_h=self.node_h + node_h)

    @property
    def per_node_h(self) -> float:
        return self.events / self.node_h


@dataclass(frozen=True, slots=True)
class Interval:
    every_s: float
    why: str  # for people

    def __str__(self) -> str:
        return f"every {format_duration(self.every_s)}: {self.why}"


def choose(costs: Costs | None, *, nodes: int, sudden: Rate, noticed: Rate, notice_s: float) -> Interval:
    """The interval that loses least time. `sudden`: losses without notice; `noticed`: with `notice_s` seconds of it.

    A saved interval of W seconds costs C, and a loss costs W/2 on average, every M seconds; the sum per second, C/W +
    W/2M, is least at W = sqrt(2 C M) (Young 1974, Daly 2006). Losses with a notice that is long enough to save in lose
    nothing and do not count. W is never shorter than a save takes to be written.
    """
    if costs is None:
        return Interval(FIRST_S, "nothing was measured yet")
    durable_s = costs.stall_s + costs.write_s
    in_time = notice_s >= durable_s + NOTICE_MARGIN_S
    per_h = nodes * (sudden.per_node_h + (0.0 if in_time else noticed.per_node_h))
    best_s = math.sqrt(2 * costs.training_s * 3600 / per_h) if per_h else math.inf
    every_s = max(costs.write_s, min(best_s, LONGEST_S))
    why = f"a save costs {format_duration(costs.training_s)} and is durable after {format_duration(durable_s)}"
    why += f", {per_h:.2g} losses/h"
    if noticed.per_node_h:
        why += f" ({format_duration(notice_s)} of notice is {'enough' if in_time else 'too short'} to save in)"
    return Interval(every_s, why)


def _smooth(before: float, now: float) -> float:
    return (1 - SMOOTHING) * before + SMOOTHING * now
