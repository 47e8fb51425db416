"""Where a job with a contract runs until the next tick: a pure function of a view, with its reason.

The costs of all choices come from the tables of induction.py; the cheapest is taken. Before that, the safety net takes
out every choice after which on-demand, begun at the next tick at the fastest size, could be late. It looks at the
clock, the work and the restart alone: no belief about a market can switch it off. Where the deadline cannot be kept any
more, the job goes on as fast as it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tradewind.autoscaler.contract.induction import LONGEST_H, Table, Terms, solve
from tradewind.autoscaler.contract.odds import YOUNG_H, odds_of, rounded, slot
from tradewind.autoscaler.contract.view import Choice, ContractDecision, ContractView, SpotMarket
from tradewind.model import Capacity
from tradewind.units import format_duration, format_usd

_EPSILON_S = 1e-3
_FAR = 20.0  # slack of so many times the work is as good as no deadline
_LOOKED_AT = 2  # spot markets, beside the one that the job is in
_ALL_SIZES = 8  # of more replicas than that, only every half octave is looked at
_STEPS_PER_OCTAVE = 2  # tables answer for work and slack up to such steps, for rates rounded to them
_STEPS_IF_LONG = 1  # what a market will be like in months is not known that well
_LONG_FAR = 4.0  # `_FAR` for long jobs
_ON_DEMAND, _SPOT = Capacity.ON_DEMAND, Capacity.SPOT


def decide(view: ContractView) -> ContractDecision:
    slack_s = view.slack_s(view.fastest)
    if view.work_left_s <= 0.0:
        return ContractDecision(Choice("", None, 0, 0.0), "the work is done", slack_s)
    if view.budget_left_uusd is not None and view.budget_left_uusd <= 0:
        return ContractDecision(Choice("", None, 0, 0.0), "the budget is spent", slack_s)
    found = sorted(choices(view), key=lambda choice: choice.cost_uusd)
    if not found:
        return _hurry(view, slack_s)
    best = next((choice for choice in found if not _leaves_spot_in_vain(view, choice)), found[0])
    others = [choice for choice in found if choice is not best]
    return ContractDecision(best, _reason(view, best, slack_s), slack_s, tuple(others[:3]))


def _leaves_spot_in_vain(view: ContractView, choice: Choice) -> bool:
    """Tables are not exact: where one says so, it is not believed (see `Size.keeps_spot`)."""
    return choice.capacity is _ON_DEMAND and Size(view, choice.replicas).keeps_spot


def choose(view: ContractView) -> Choice:
    """What `decide` chooses, without its words, and without the costs of what cannot win: several times as fast, for
    simulations, which ask for nothing else. The cost of a choice that has no rival is not reckoned: it is nan."""
    if len(view.speeds) > 1 or view.work_left_s <= 0.0 or view.budget_left_uusd is not None:
        return decide(view).choice
    rivals = Size(view, 1).rivals()
    if not rivals:
        return decide(view).choice
    return min(rivals, key=lambda choice: choice.cost_uusd)


def choices(view: ContractView) -> Iterator[Choice]:
    """All that the safety net lets through: with the number of replicas that is there now (it needs no restart), with
    the one that is cheapest for the work, and from there with more and with fewer as long as that is expected to cost
    less. More replicas are used when the deadline, or their speed for the money, is worth it."""
    sizes = _sizes(view)
    begin = [size for size in (_now(view), _start(view, sizes)) if size]
    found: dict[int, float] = {}
    for first in dict.fromkeys(begin):
        yield from _look(view, first, found)
    for way in (sizes, sizes[::-1]):
        best = min(found, key=lambda size: found[size], default=0)
        for size in way[way.index(best) + 1 :] if best in way else ():
            if size not in found:
                yield from _look(view, size, found)
            if found[size] >= found[best]:
                break
            best = size


def _look(view: ContractView, size: int, found: dict[int, float]) -> Iterator[Choice]:
    """A size is left out where even on spot alone it would cost more than another is expected to."""
    known = min(found.values(), default=math.inf)
    found[size] = math.inf
    if _cheapest_uusd(view, size) >= known:
        return
    for choice in Size(view, size).choices():
        found[size] = min(found[size], choice.cost_uusd)
        yield choice


def _sizes(view: ContractView) -> list[int]:
    """Those that are looked at, the smallest first."""
    most = len(view.speeds)
    found = {_now(view), _start(view, range(1, most + 1)), view.fastest, *range(1, min(most, _ALL_SIZES) + 1)}
    size = _ALL_SIZES
    while size < most:
        found |= {size, size * 3 // 2}
        size *= 2
    return sorted(size for size in found if 0 < size <= most)


def _now(view: ContractView) -> int:
    return view.running.replicas if view.running else 0


def _start(view: ContractView, sizes: Sequence[int]) -> int:
    """Of all that are in time, the cheapest for the work; 0 where none is."""
    fit = [size for size in sizes if view.slack_s(size) >= view.restart_s - _EPSILON_S]
    return min(fit, key=lambda size: (size / view.speeds[size - 1], size), default=0)


def _cheapest_uusd(view: ContractView, replicas: int) -> float:
    prices = [view.on_demand_uusd_per_h, *(market.price_uusd_per_h for market in view.spot)]
    return min(prices) * replicas * view.work_left_s / view.speeds[replicas - 1] / 3600.0


class Size:
    """The choices with one number of replicas."""

    def __init__(self, view: ContractView, replicas: int) -> None:
        self.view, self.replicas = view, replicas
        self.work_h = view.work_left_s / view.speeds[replicas - 1] / 3600.0
        self.slack_h = min(view.slack_s(replicas) / 3600.0, _FAR * max(self.work_h, 1.0))
        self.restart_h = view.restart_s / 3600.0
        self.net_s = view.slack_s(view.fastest) - view.restart_s + _EPSILON_S  # what may be lost until the next tick
        self.uusd = view.on_demand_uusd_per_h * replicas  # an hour of it
        self.here = view.running if view.running and view.running.replicas == replicas else None
        self.warming_h = self.here.warming_s / 3600.0 if self.here else 0.0
        open_h = [market.age_h for market in view.spot if market.is_open]
        self.is_up = bool(open_h)
        # Of all markets as one: who loses a machine while another is open is as well off as before, but for the move.
        self.age_h = open_h[0] if open_h and len(view.spot) == 1 else view.together_age_h
        self._tables: dict[str, Table] = {}  # by market

    def choices(self) -> Iterator[Choice]:
        if self._is_too_late():
            return
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
        return self.slack_h + _EPSILON_S / 3600.0 < self._begin_h(_ON_DEMAND, self.view.on_demand_key)

    def _may_wait(self) -> bool:
        return not self.is_up and self._has_cheap_spot() and self.net_s >= self.view.tick_s

    def _nowhere(self) -> Choice:
        table = self.table()
        hours = table.at(table.idle, self.age_h >= YOUNG_H, self.work_h, self.slack_h)
        return Choice("", None, self.replicas, hours * self.uusd)

    def _spot_in_time(self) -> Iterator[tuple[SpotMarket, float]]:
        """(market, time until work goes on there)"""
        reaction_s = self.view.tick_s if self.view.reaction_s is None else self.view.reaction_s
        for market in self._candidates():
            lost_h = self._begin_h(_SPOT, market.key)
            if self._may_lose(lost_h * 3600.0 + reaction_s):
                yield market, lost_h

    def _may_lose(self, lost_s: float) -> bool:
        """Whether on-demand is in time after a tick of which so much is lost: at the fastest size, for which slower
        work takes slack as well, or at this one."""
        view = self.view
        behind = 1.0 - view.speeds[self.replicas - 1] / view.speeds[view.fastest - 1]
        fastest_s = self.net_s - behind * max(0.0, view.tick_s - lost_s)
        return max(fastest_s, view.slack_s(self.replicas) - view.restart_s + _EPSILON_S) >= lost_s

    def _has_cheap_spot(self) -> bool:
        """Who waits for spot that costs no less waits for nothing."""
        return any(market.price_uusd_per_h < self.view.on_demand_uusd_per_h for market in self.view.spot)

    def _candidates(self) -> list[SpotMarket]:
        """Open markets that are worth a table: the best ones. Who is on spot looks at cheaper ones alone: he can still
        move at the same cost when he has lost his machine."""
        found = [each for each in self.view.spot if each.is_open]
        here = [each for each in found if self.here and each.key == self.here.key]
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
        """All long jobs with as much slack for their work share one."""
        view = self.view
        seen = self._stand_in(market).seen if market else view.together
        price = market.price_uusd_per_h / view.on_demand_uusd_per_h if market else 1.0
        scale, is_long = max(self.work_h / LONGEST_H, 1.0), self.work_h > LONGEST_H
        slack_h = min(self.slack_h, _LONG_FAR * self.work_h) / scale if is_long else self.slack_h
        steps = _STEPS_IF_LONG if is_long else _STEPS_PER_OCTAVE
        found = solve(
            Terms(
                odds_of(view.together, seen, len(view.spot), steps),
                round(price, 2),
                rounded(self.restart_h, 8) if self.restart_h > 0.0 else 0.0,
                _above(self.work_h / scale),
                _above(max(slack_h, 2.0 * self.restart_h, 0.1), steps),
            )
        )
        return replace(found, scale=scale) if is_long else found


def sized(view: ContractView) -> Size:
    """With the number of replicas that is cheapest now; the fastest where no choice is in time."""
    best = min(choices(view), key=lambda choice: choice.cost_uusd, default=None)
    return Size(view, best.replicas if best else view.fastest)


def _above(hours: float, steps: int = _STEPS_PER_OCTAVE) -> float:
    """The next step above: one table serves for many ticks."""
    return float(2.0 ** (math.ceil(math.log2(max(hours, 0.01)) * steps) / steps))


def _hurry(view: ContractView, slack_s: float) -> ContractDecision:
    """Too late for a restart. Who runs goes on where he is; others begin on demand, at the fastest size."""
    cost_uusd = view.on_demand_uusd_per_h * view.fastest * view.work_left_s / view.speeds[view.fastest - 1] / 3600.0
    late_s = format_duration(max(0.0, view.restart_s - slack_s))
    if view.running is not None:
        here = view.running
        reason = "a move would be too late: it goes on where it is"
        return ContractDecision(Choice(here.key, here.capacity, here.replicas, cost_uusd), reason, slack_s)
    choice = Choice(view.on_demand_key, _ON_DEMAND, view.fastest, cost_uusd)
    return ContractDecision(
        choice, f"the deadline cannot be kept, it will be {late_s} late: as fast as it can", slack_s
    )


def _reason(view: ContractView, best: Choice, slack_s: float) -> str:
    slack = "no deadline" if math.isinf(slack_s) else f"{format_duration(max(0.0, slack_s))} of slack"
    cost = f"{format_usd(round(best.cost_uusd))} expected to the end"
    if not best.key:
        return f"no spot now, and {slack}: waiting for it is cheapest, {cost}"
    if best.capacity is _SPOT:
        return f"spot in {best.key} x {best.replicas}, {slack}: {cost}"
    net = " (safety net)" if slack_s - view.restart_s < view.tick_s else ""
    return f"on demand x {best.replicas}{net}, {slack}: {cost}"
