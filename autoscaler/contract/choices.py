"""Where a job with a contract may run until the next tick, and what each is expected to cost to the end. Pure.

The costs come from the tables of induction.py. The nets (nets.py) take out every choice after which on-demand, begun at
the next tick, could be late or could not be paid. They look at the clock, the work, the restart and the budget alone:
no belief about a market can switch them off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from tradewind.autoscaler.contract.induction import LONGEST_H, Table, Terms, solve
from tradewind.autoscaler.contract.nets import EPSILON_S, Nets
from tradewind.autoscaler.contract.odds import YOUNG_H, odds_of, rounded, slot
from tradewind.autoscaler.contract.view import Choice, ContractView, SpotMarket
from tradewind.model import Capacity

_FAR = 20.0  # slack of so many times the work is as good as no deadline
_LOOKED_AT = 2  # spot markets, beside the one that the job is in
_ALL_SIZES = 8  # of more replicas than that, only every half octave is looked at
_STEPS_PER_OCTAVE = 2  # tables answer for work and slack up to such steps, for rates rounded to them
_STEPS_IF_LONG = 1  # what a market will be like in months is not known that well
_LONG_FAR = 4.0  # `_FAR` for long jobs
_ON_DEMAND, _SPOT = Capacity.ON_DEMAND, Capacity.SPOT


def choices(view: ContractView) -> Iterator[Choice]:
    """All that the safety net lets through: with the number of replicas that is there now (it needs no restart), then
    with others, those first that are cheapest where nothing is lost. The rest are left out once that alone would cost
    more than what is found is expected to."""
    now, least = _now(view), math.inf
    for size in sorted(_sizes(view), key=lambda size: (size != now, _cheapest_uusd(view, size), size)):
        if _cheapest_uusd(view, size) >= least:
            return
        for choice in Size(view, size).choices():
            least = min(least, choice.cost_uusd)
            yield choice


def _sizes(view: ContractView) -> set[int]:
    """All small ones, every half octave of larger ones, and those that fill machines."""
    most = len(view.speeds)
    found = {_now(view), _start(view), view.fastest, *range(1, min(most, _ALL_SIZES) + 1)}
    for number in _half_octaves(most):
        found |= {math.floor(number * seats + 1e-9) for seats in {1.0, view.on_demand_seats, *_seats(view)}}
    return {size for size in found if 0 < size <= most}


def _seats(view: ContractView) -> Iterator[float]:
    return (market.seats for market in view.spot)


def _half_octaves(most: int) -> Iterator[int]:
    size = 1
    while size <= most:
        yield from (size, size * 3 // 2)
        size *= 2


def _now(view: ContractView) -> int:
    return view.running.replicas if view.running else 0


def _start(view: ContractView) -> int:
    """Of all that are in time, the cheapest for the work on demand; 0 where none is."""
    fit = [size for size in view.sure_sizes if view.slack_s(size) >= view.restart_s - EPSILON_S]
    return min(fit, key=lambda size: (view.on_demand_rate_uusd_per_h(size) / view.speeds[size - 1], size), default=0)


def _cheapest_uusd(view: ContractView, replicas: int) -> float:
    rates = [view.on_demand_rate_uusd_per_h(replicas), *(market.rate_uusd_per_h(replicas) for market in view.spot)]
    return min(rates) * view.work_left_s / view.speeds[replicas - 1] / 3600.0


class Size:
    """The choices with one number of replicas. `view`: with the prices of one of them."""

    def __init__(self, view: ContractView, replicas: int) -> None:
        self.nets = Nets(view)
        self.view, self.replicas = view.at(replicas), replicas
        self._is_slow = view.speeds[replicas - 1] < view.speeds[view.fastest - 1]
        self.work_h = view.work_left_s / view.speeds[replicas - 1] / 3600.0
        self.slack_h = min(view.slack_s(replicas) / 3600.0, _FAR * max(self.work_h, 1.0))
        self.restart_h = view.restart_s / 3600.0
        self.uusd = self.view.on_demand_uusd_per_h * replicas  # an hour of it
        self.here = view.running if view.running and view.running.replicas == replicas else None
        self.warming_h = self.here.warming_s / 3600.0 if self.here else 0.0
        open_h = [market.age_h for market in self.view.spot if market.is_open]
        self.is_up = bool(open_h)
        # Of all markets as one: who loses a machine while another is open is as well off as before, but for the move.
        self.age_h = open_h[0] if open_h and len(self.view.spot) == 1 else view.together_age_h
        self._tables: dict[str, Table] = {}  # by market

    def choices(self) -> Iterator[Choice]:
        if self._is_too_late():
            return
        if self._may_pay_on_demand():
            yield self._on_demand()
        if self._may_wait():
            yield self._nowhere()
        for market, lost_h in self._spot_in_time():
            yield self._spot(market, lost_h)

    def rivals(self) -> list[Choice]:
        """Of the choices, those that may be the cheapest. A market that is no cheaper than one before it brings
        nothing: they have the same future (`_stand_in`)."""
        if self._is_too_late():
            return []
        spot = self._ever_cheaper(self._spot_in_time())
        if not self.keeps_spot:
            waiting = [self._nowhere()] if self._may_wait() else []
            return [self._on_demand(), *waiting, *(self._spot(market, lost_h) for market, lost_h in spot)]
        if len(spot) == 1:
            return [Choice(spot[0][0].key, _SPOT, self.replicas, math.nan)]
        return [self._spot(market, lost_h) for market, lost_h in spot]

    @property
    def keeps_spot(self) -> bool:
        """Who works on spot that is no dearer than on-demand does not leave it for that: he can do so when he has lost
        his machine, at the same cost in money and slack, and works cheaper until then."""
        if self.here is None or self.here.capacity is not _SPOT:
            return False
        market, lost_h = next(iter(self._spot_in_time()), (None, 0.0))
        if market is None or self.here.key != market.key:
            return False
        return not lost_h and market.price_uusd_per_h <= self.view.on_demand_uusd_per_h

    @staticmethod
    def _ever_cheaper(spot: Iterable[tuple[SpotMarket, float]]) -> list[tuple[SpotMarket, float]]:
        found: list[tuple[SpotMarket, float]] = []
        for market, lost_h in spot:
            if not found or market.price_uusd_per_h < found[-1][0].price_uusd_per_h:
                found.append((market, lost_h))
        return found

    def _is_too_late(self) -> bool:
        return self.slack_h + EPSILON_S / 3600.0 < self._begin_h(_ON_DEMAND, self.view.on_demand_key)

    def _is_tight(self) -> bool:
        """A start takes all the slack that this size has, and a faster one would follow at once: in vain."""
        return self.here is None and self._is_slow and self.slack_h < 2.0 * self.restart_h + self.view.tick_s / 3600.0

    def _may_pay_on_demand(self) -> bool:
        if self.replicas not in self.view.sure_sizes:
            return False
        begin_h = self._begin_h(_ON_DEMAND, self.view.on_demand_key)
        to_the_end = self.nets.to_the_end(self.replicas, begin_h * 3600.0)
        return to_the_end or self._holds(self.view.on_demand_uusd_per_h, begin_h)

    def _may_wait(self) -> bool:
        return not self.is_up and self._has_cheap_spot() and self._holds(0.0, self.view.tick_s / 3600.0)

    def _nowhere(self) -> Choice:
        table = self.table()
        hours = table.at(table.idle, self.age_h >= YOUNG_H, self.work_h, self.slack_h)
        return Choice("", None, self.replicas, hours * self.uusd)

    def _spot_in_time(self) -> Iterator[tuple[SpotMarket, float]]:
        """(market, time until work goes on there)"""
        if self._is_tight():
            return
        reaction_s = self.view.tick_s if self.view.reaction_s is None else self.view.reaction_s
        for market in self._candidates():
            lost_h = self._begin_h(_SPOT, market.key)
            if self._holds(market.price_uusd_per_h, lost_h, reaction_s):
                yield market, lost_h

    def _holds(self, price_uusd_per_h: float, lost_h: float, reaction_s: float = 0.0) -> bool:
        return self.nets.holds(self.replicas, price_uusd_per_h, lost_h * 3600.0, reaction_s)

    def _has_cheap_spot(self) -> bool:
        """Who waits for spot that costs no less waits for nothing."""
        return any(market.price_uusd_per_h < self.view.on_demand_uusd_per_h for market in self.view.spot)

    def _candidates(self) -> list[SpotMarket]:
        """Open markets that are worth a table: the best ones. Who is on spot looks at cheaper ones alone: he can still
        move at the same cost when he has lost his machine. That is so for other sizes, too: after a loss some machines
        are left, and elsewhere all of them would be bought anew."""
        found = [each for each in self.view.spot if each.is_open]
        key = self.view.running.key if self.view.running else ""
        here = [each for each in found if each.key == key]
        cheaper = [each for each in found if not here or each.price_uusd_per_h < here[0].price_uusd_per_h]
        return here + sorted(cheaper, key=self._price)[:_LOOKED_AT]

    def _begin_h(self, capacity: Capacity, key: str) -> float:
        """Time until work goes on there."""
        is_there = self.here and self.here.key == key and self.here.capacity is capacity
        return self.warming_h if is_there else self.restart_h

    def _on_demand(self) -> Choice:
        lost_h = self._begin_h(_ON_DEMAND, self.view.on_demand_key)
        left_h = self.slack_h - lost_h
        hours = self.table().on_demand_h(self.work_h, left_h, self.is_up, self.age_h >= YOUNG_H) + lost_h
        return Choice(self.view.on_demand_key, _ON_DEMAND, self.replicas, hours * self.uusd)

    def _spot(self, market: SpotMarket, lost_h: float) -> Choice:
        table = self.table(market)
        price = market.price_uusd_per_h / self.view.on_demand_uusd_per_h
        hours = table.at(table.spot, self.age_h >= YOUNG_H, self.work_h, self.slack_h - lost_h) + price * lost_h
        return Choice(market.key, _SPOT, self.replicas, hours * self.uusd)

    def market(self) -> SpotMarket:
        """The spot market that is best now, or was: its rates stand for those to come."""
        return min(self.view.spot, key=lambda each: (not each.is_open, self._price(each)))

    def _stand_in(self, market: SpotMarket) -> SpotMarket:
        """Where he will be after a loss: the best of those that are open and no dearer. How often he will be lost then
        is what counts, not how soon he loses what he has now."""
        found = [each for each in self.view.spot if each.is_open and each.price_uusd_per_h <= market.price_uusd_per_h]
        return min(found, key=self._price, default=market)

    def _price(self, market: SpotMarket) -> tuple[float, float]:
        """Of an hour of work there, with the restart that a loss will cost; then the one that has been open longest."""
        loss_per_h = market.seen.rate_per_h(slot(True, market.age_h))
        return market.price_uusd_per_h * (1.0 + loss_per_h * self.restart_h), -market.age_h

    def table(self, market: SpotMarket | None = None) -> Table:
        """With the rates and the price of one market."""
        if market is None and self.view.spot:
            market = self.market()
        key = market.key if market else ""
        if key not in self._tables:
            self._tables[key] = self._solve(market)
        return self._tables[key]

    def _solve(self, market: SpotMarket | None) -> Table:
        """All long jobs with as much slack for their work share one; what the next hours are like tells them little."""
        view, together = self.view, self.view.together
        seen = self._stand_in(market).seen if market else together
        price = market.price_uusd_per_h / view.on_demand_uusd_per_h if market else 1.0
        scale, is_long = max(self.work_h / LONGEST_H, 1.0), self.work_h > LONGEST_H
        slack_h = min(self.slack_h, _LONG_FAR * self.work_h) / scale if is_long else self.slack_h
        steps = _STEPS_IF_LONG if is_long else _STEPS_PER_OCTAVE
        if is_long:
            together, seen = together.lasting, seen.lasting
        found = solve(
            Terms(
                odds_of(together, seen, len(view.spot), steps),
                round(price, 2),
                rounded(self.restart_h, 8) if self.restart_h > 0.0 else 0.0,
                _above(self.work_h / scale),
                _above(max(slack_h, 2.0 * self.restart_h, 0.1), steps),
            )
        )
        return replace(found, scale=scale) if is_long else found


def _above(hours: float, steps: int = _STEPS_PER_OCTAVE) -> float:
    """The next step above: one table serves for many ticks."""
    return float(2.0 ** (math.ceil(math.log2(max(hours, 0.01)) * steps) / steps))
