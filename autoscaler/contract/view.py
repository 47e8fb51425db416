"""What the contract policy sees of one job at one moment, and what it answers. Values only."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace
from enum import StrEnum

from tradewind.autoscaler.contract.odds import NEVER, Tally
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity


def rate_uusd_per_h(replicas: int, machine_uusd_per_h: int, seats: float) -> int:
    """Of so many replicas on machines that hold `seats` each (below 1: one needs several): whole machines are paid."""
    return machine_uusd_per_h * math.ceil(replicas / seats - 1e-9)


@dataclass(frozen=True, slots=True)
class SpotMarket:
    key: str
    price_uusd_per_h: int  # of one machine
    is_open: bool  # a machine could be had now
    age_h: float = 1e9  # for how long it has been so
    seen: Tally = NEVER
    seats: float = 1.0  # replicas that a machine holds
    most: int = sys.maxsize  # replicas that the limits leave there

    def rate_uusd_per_h(self, replicas: int) -> int:
        return rate_uusd_per_h(replicas, self.price_uusd_per_h, self.seats)

    def at(self, replicas: int) -> SpotMarket:
        """With the price of one of so many replicas."""
        if self.seats == 1.0:
            return self
        return replace(self, price_uusd_per_h=math.ceil(self.rate_uusd_per_h(replicas) / replicas), seats=1.0)


@dataclass(frozen=True, slots=True)
class Running:
    """Where the job is now."""

    key: str
    capacity: Capacity
    replicas: int = 1
    warming_s: float = 0.0  # time that still passes before it goes on with the work


@dataclass(frozen=True, slots=True)
class ContractView:
    """`work_left_s` is the time that one replica would take. `speeds[n - 1]` is how many times faster n replicas are;
    all of one job lie in one market, and may share machines there. `deadline_at_s` and `budget_left_uusd` are None
    where nothing was promised."""

    now_s: float
    work_left_s: float
    restart_s: float  # from asking for a machine until the job goes on, with what is done again
    tick_s: float  # until the next decision
    on_demand_key: str
    on_demand_uusd_per_h: int  # of one machine
    deadline_at_s: float | None = None
    budget_left_uusd: int | None = None
    spot: tuple[SpotMarket, ...] = ()
    together: Tally = NEVER  # of all spot markets as one: is there a machine anywhere?
    together_age_h: float = 1e9
    running: Running | None = None
    speeds: tuple[float, ...] = (1.0,)
    reaction_s: float | None = None  # time from a loss until it is seen; None: a tick
    on_demand_refusal: float = 0.01  # chance that on-demand is out of stock when it is asked for
    on_demand_seats: float = 1.0  # replicas that a machine holds
    on_demand_most: int = sys.maxsize  # replicas that the limits leave there

    def __post_init__(self) -> None:
        for name in ("work_left_s", "restart_s", "tick_s"):
            if not 0.0 <= getattr(self, name) < float("inf"):
                raise _problem(name, "must be a number of seconds, 0 or more")
        if self.deadline_at_s is not None and math.isnan(self.deadline_at_s):
            raise _problem("deadline_at_s", "must be a moment, or None for no deadline")
        if self.on_demand_uusd_per_h <= 0 or any(market.price_uusd_per_h <= 0 for market in self.spot):
            raise _problem("price", "must be above 0: an unknown price is no price")
        if self.on_demand_seats <= 0.0 or any(market.seats <= 0.0 for market in self.spot):
            raise _problem("seats", "must be above 0: what holds nothing is no offer")
        if self.on_demand_most < 1:
            raise _problem("on_demand_most", "must be 1 at least: without on-demand nothing can be promised")
        if not self.speeds or not all(0.0 < speed < math.inf for speed in self.speeds):
            raise _problem("speeds", "must be above 0, one for each number of replicas")

    @property
    def fastest(self) -> int:
        """The number of replicas that is done first on demand."""
        return max(self.sure_sizes, key=lambda size: (self.speeds[size - 1], -size))

    @property
    def sure_sizes(self) -> range:
        """Those that can be had on demand."""
        return range(1, min(len(self.speeds), self.on_demand_most) + 1)

    def on_demand_rate_uusd_per_h(self, replicas: int) -> int:
        return rate_uusd_per_h(replicas, self.on_demand_uusd_per_h, self.on_demand_seats)

    def at(self, replicas: int) -> ContractView:
        """With the prices of one of so many replicas, each its share of the machines that all of them need, and the
        markets in which the limits leave room for them."""
        if self.on_demand_seats == 1.0 and all(each.seats == 1.0 and each.most >= replicas for each in self.spot):
            return self
        price = math.ceil(self.on_demand_rate_uusd_per_h(replicas) / replicas)
        spot = tuple(market.at(replicas) for market in self.spot if market.most >= replicas)
        return replace(self, on_demand_uusd_per_h=price, on_demand_seats=1.0, spot=spot)

    def slack_s(self, replicas: int) -> float:
        """Time that may be lost, if so many replicas do the rest. Infinite without a deadline."""
        if self.deadline_at_s is None:
            return float("inf")
        return self.deadline_at_s - self.now_s - self.work_left_s / self.speeds[replicas - 1]


def _problem(field: str, message: str) -> ConfigError:
    return ConfigError([Problem("contract", field, message)], "see docs/designs/contract.md")


@dataclass(frozen=True, slots=True)
class Choice:
    """Somewhere to run in the next tick. `key` is empty for nowhere; `replicas` is then the size that waits."""

    key: str
    capacity: Capacity | None
    replicas: int
    cost_uusd: float  # expected, from now to the end, if this is chosen now


class Aim(StrEnum):
    """What can still be kept. Budgets are hard, so a deadline that is not paid for gives way to them."""

    SURE = "sure"  # on demand would keep all of it
    POSSIBLE = "possible"  # on demand alone would pass the budget; with enough spot, both are kept
    LATE = "late"  # there is too little time, whatever is paid
    BUDGET = "budget"  # the deadline has given way to the budget
    SHORT = "short"  # the budget is below the cheapest that is known: as far as it goes


@dataclass(frozen=True, slots=True)
class ContractDecision:
    choice: Choice
    reason: str
    slack_s: float  # at the fastest size; infinite where there is no deadline, or where it has given way
    beaten: tuple[Choice, ...] = ()  # all others that were looked at, the cheapest first: who decides more needs them
    aim: Aim = Aim.SURE

    @property
    def key(self) -> str:
        return self.choice.key
