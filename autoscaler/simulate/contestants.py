"""The policies that can be compared, by name. Each is the code that ships, told different things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tradewind.autoscaler.packing_stock import EffectivePrice
from tradewind.autoscaler.plan import POLICIES
from tradewind.autoscaler.policies import buy
from tradewind.autoscaler.policies.base import Policy
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.simulate.place import Venue
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity, Offer

_NEVER_FIRST = 1e15  # micro-dollars: beyond any price


@dataclass(frozen=True, slots=True)
class Contestant:
    name: str
    summary: str
    buys_ahead: bool = False
    on_demand_only: bool = False
    spot_first: bool = False
    has_contracts: bool = False

    def settings(self, given: LoopSettings) -> LoopSettings:
        """Of the fleet, but for what the policy is about."""
        return replace(given, buy_ahead=self.buys_ahead, dry_run=False)

    def venues(self, given: Sequence[Venue]) -> list[Venue]:
        dear = Capacity.ON_DEMAND
        return [venue for venue in given if not self.on_demand_only or venue.offer.market.capacity is dear]

    @property
    def effective_price(self) -> EffectivePrice | None:
        """What it buys by; None: by what is known of the markets."""
        return _spot_first if self.spot_first else None

    @property
    def policies(self) -> tuple[Policy, ...]:
        if not self.spot_first:
            return POLICIES
        return tuple(Buy(self.effective_price) if policy is buy.decide else policy for policy in POLICIES)


def _spot_first(offer: Offer) -> float:
    """By list prices, whatever is known of losses; on-demand only where there is no spot."""
    price = float(offer.price_uusd_per_h or 0)
    return price if offer.market.capacity is Capacity.SPOT else price + _NEVER_FIRST


CONTESTANTS = {
    each.name: each
    for each in (
        Contestant("reactive", "buys what is asked for, the cheapest with losses and boots counted"),
        Contestant("forecast", "the same, and buys ahead where that is worth it", buys_ahead=True),
        Contestant("on-demand", "buys no spot at all", on_demand_only=True),
        Contestant("spot-first", "any spot before any on-demand, by list price alone", spot_first=True),
        Contestant("contract", "jobs with a deadline run where their contract is kept cheapest", has_contracts=True),
    )
}
DEFAULT = ("reactive", "contract")


def contestants(names: Sequence[str]) -> list[Contestant]:
    """Raises ConfigError for a name that is not known, or none at all."""
    known = ", ".join(CONTESTANTS)
    problems = [
        Problem("--policy", name, f"there is no such policy; known are {known}")
        for name in names
        if name not in CONTESTANTS
    ]
    if not names:
        problems = [Problem("--policy", "", f"names no policy; known are {known}")]
    if len(set(names)) != len(names):
        problems.append(Problem("--policy", "", "names one twice"))
    if problems:
        raise ConfigError(problems, "give one or several, like reactive,contract")
    return [CONTESTANTS[name] for name in names]
