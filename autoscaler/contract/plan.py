"""Answers before money is spent: can this contract be kept, what will it cost, and what would help. Pure.

Costs, ranges and chances are those of outlook.py, for the curve as well: the tables of induction.py believe that the
next outages are as those before, and would be up to 20 % lower than what stands beside them. They choose the size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from tradewind.autoscaler.contract.decide import sized
from tradewind.autoscaler.contract.outlook import Outlook, outlook
from tradewind.autoscaler.contract.view import ContractView
from tradewind.units import format_duration, format_usd

_NEAR = 1.05  # a cost that is so near to the least is as good
_POINTS = (1.0, 1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)  # x the shortest time
HELP_PLAYS = 200
SURE = 0.95  # a contract that is kept so often is answered with a plain yes
LIKELY = 0.5  # one that is kept less often is called unlikely


@dataclass(frozen=True, slots=True)
class Point:
    deadline_s: float  # from now on
    cost_uusd: int  # expected
    replicas: int


@dataclass(frozen=True, slots=True)
class Price:
    key: str
    uusd_per_h: int  # of one of the replicas that are planned


@dataclass(frozen=True, slots=True)
class Answer:
    is_feasible: bool  # it can be kept: whether it will be is `outlook.chance`
    summary: str
    remedies: tuple[str, ...]  # what would make it feasible, or more likely
    shortest_s: float  # on demand, at the fastest size
    least_uusd: int  # the cheapest spot market, never lost
    curve: tuple[Point, ...]
    cheapest_deadline_s: float  # from here on, more time spares next to nothing
    outlook: Outlook | None  # None where the contract cannot be kept
    on_demand: Price
    spot: tuple[Price, ...] = ()  # the markets that were looked at, the cheapest first
    asked_s: float | None = None  # the deadline that was asked for, from now on
    budget_uusd: int | None = None  # that was asked for; the curve is without it
    replicas: int = 1  # that are planned, at first
    basis: str = ""  # whose offers were priced, in words; set by who knows


def plan(view: ContractView, plays: int = 400, seed: int = 0) -> Answer:
    """`view` is that of a job that has not begun. Without a deadline, the costs are those of unlimited patience."""
    shortest_s = _shortest_s(view)
    curve = tuple(_curve(view, shortest_s, plays, seed))
    cheapest = next(point for point in curve if point.cost_uusd <= _NEAR * curve[-1].cost_uusd)
    least_uusd = _least_uusd(view)
    problems = tuple(_problems(view, shortest_s, least_uusd, curve))
    found = None if problems else outlook(view, plays, seed)
    size = sized(view)
    return Answer(
        not problems,
        "; ".join(what for what, _ in problems) if problems else _summary(view, found),
        tuple(remedy for _, remedy in problems) or tuple(_help(view, found, curve)),
        shortest_s,
        least_uusd,
        curve,
        cheapest.deadline_s,
        found,
        Price(view.on_demand_key, size.view.on_demand_uusd_per_h),
        tuple(Price(each.key, each.price_uusd_per_h) for each in view.at(size.replicas).spot),
        _asked_s(view),
        view.budget_left_uusd,
        size.replicas,
    )


def lacks(view: ContractView) -> tuple[float, int]:
    """Seconds and micro-dollars that the contract is short of at best; 0 where enough is there. Quick: nothing is
    played."""
    late_s = 0.0 if view.deadline_at_s is None else view.now_s + _shortest_s(view) - view.deadline_at_s
    short_uusd = 0 if view.budget_left_uusd is None else _least_uusd(view) - view.budget_left_uusd
    return max(late_s, 0.0), max(short_uusd, 0)


def _shortest_s(view: ContractView) -> float:
    return view.restart_s + view.work_left_s / view.speeds[view.fastest - 1]


def _curve(view: ContractView, shortest_s: float, plays: int, seed: int) -> Iterator[Point]:
    """Expected costs never rise with more time: who has more may always do the same. With the plays and the seed of the
    outlook: what stands for the deadline that was asked for is what the outlook says, and the others give way to it."""
    views = {
        deadline_s: replace(view, deadline_at_s=view.now_s + deadline_s, budget_left_uusd=None)
        for deadline_s in _deadlines_s(view, shortest_s)
    }
    played = {deadline_s: outlook(asked, plays, seed).cost_uusd for deadline_s, asked in views.items()}
    asked_s = _asked_s(view)
    floor, least = played.get(asked_s or 0.0, 0), max(played.values())
    for deadline_s, cost_uusd in played.items():
        is_before = asked_s is not None and deadline_s < asked_s
        least = min(least, max(cost_uusd, floor) if is_before else cost_uusd)
        yield Point(deadline_s, least, sized(views[deadline_s]).replicas)


def _asked_s(view: ContractView) -> float | None:
    return None if view.deadline_at_s is None else view.deadline_at_s - view.now_s


def _deadlines_s(view: ContractView, shortest_s: float) -> list[float]:
    """Whole minutes, each once; the one that was asked for among them."""
    found = {math.ceil(shortest_s * factor / 60.0 + 1.0) * 60.0 for factor in _POINTS}
    asked_s = _asked_s(view) or 0.0
    near = [each_s for each_s in found if abs(each_s - asked_s) < 0.02 * asked_s]
    return sorted(found.difference(near) | {asked_s} if asked_s >= shortest_s else found)


def _least_uusd(view: ContractView) -> int:
    rates = [view.on_demand_rate_uusd_per_h, *(market.rate_uusd_per_h for market in view.spot)]
    per_work = min(rate(number) / speed for number, speed in enumerate(view.speeds, 1) for rate in rates)
    return math.floor(per_work * view.work_left_s / 3600.0)


def _problems(
    view: ContractView, shortest_s: float, least_uusd: int, curve: tuple[Point, ...]
) -> Iterator[tuple[str, str]]:
    """(what is wrong, what would help)"""
    if view.deadline_at_s is not None and view.deadline_at_s <= view.now_s:
        yield "the deadline is in the past", f"give it {_enough(shortest_s)} from now at least"
    elif view.deadline_at_s is not None and view.now_s + shortest_s > view.deadline_at_s:
        left, needed = format_duration(view.deadline_at_s - view.now_s), format_duration(shortest_s)
        late_s = math.ceil(view.now_s + shortest_s - view.deadline_at_s)
        by = f" by {format_duration(late_s)}" if left == needed else ""
        told = f"{left} are too short{by}: the work takes {needed} with {view.fastest} on demand"
        yield told, _faster(view, shortest_s)
    if view.budget_left_uusd is not None and view.budget_left_uusd < least_uusd:
        budget, least = format_usd(view.budget_left_uusd), format_usd(least_uusd)
        yield f"{budget} is below the least that it can cost, {least}", _dearer(view, curve)


def _dearer(view: ContractView, curve: tuple[Point, ...]) -> str:
    """With the deadline that was asked for, where it can be kept; and with all the time in the world."""
    asked_s = _asked_s(view)
    asked = [point for point in curve if point.deadline_s == asked_s]
    found = [*asked, curve[-1]] if curve[-1] not in asked else asked
    texts = (f"{format_usd(point.cost_uusd)} with a deadline of {format_duration(point.deadline_s)}" for point in found)
    return f"a budget of {', or of '.join(texts)}, is enough on the mean"


def _faster(view: ContractView, shortest_s: float) -> str:
    """What the deadline would need: more time, or a job that is so many times faster. Rounded up: who follows it has
    enough."""
    left_s = (view.deadline_at_s or 0.0) - view.now_s - view.restart_s
    more = f"a deadline of {_enough(shortest_s)} at least"
    if left_s <= 0.0:
        return more
    factor = view.work_left_s / view.speeds[view.fastest - 1] / left_s
    if factor < 1.05:
        return more
    return f"{more}; or more replicas: {math.ceil(10.0 * factor - 1e-9) / 10.0:.1f} times the speed of {view.fastest}"


def _enough(duration_s: float) -> str:
    """At least so long, as it is written: whole minutes, from a day on whole hours."""
    whole_s = math.ceil(duration_s / 60.0) * 60.0
    return format_duration(whole_s if whole_s < 86400.0 else math.ceil(whole_s / 3600.0) * 3600.0)


def _summary(view: ContractView, found: Outlook | None) -> str:
    if found is None:
        return ""
    if view.work_left_s <= 0.0:
        return "there is no work to do, and nothing to pay"
    if view.deadline_at_s is None and view.budget_left_uusd is None:
        return "nothing was promised: spot where there is some"
    said = f"the contract can be kept, with a chance of {found.chance:.0%}" + (
        "" if found.chance >= LIKELY else " only"
    )
    if view.deadline_at_s is None or view.budget_left_uusd is None or found.chance >= LIKELY:
        return said
    return f"{said}; the budget comes first: within it, late perhaps, {found.budget_chance:.0%} are done"


def _help(view: ContractView, found: Outlook | None, curve: tuple[Point, ...]) -> Iterator[str]:
    """Of a contract that may fail: what would make it likely."""
    if found is None or found.chance >= 0.9:
        return
    if view.budget_left_uusd is not None:
        free = outlook(replace(view, budget_left_uusd=None), HELP_PLAYS)
        if free.cost_range_uusd[1] > view.budget_left_uusd:
            yield f"nine of ten cost at most {format_usd(free.cost_range_uusd[1])}: give such a budget"
        enough = [point for point in curve if point.cost_uusd <= view.budget_left_uusd]
        if enough and view.deadline_at_s is not None and view.now_s + enough[0].deadline_s > view.deadline_at_s:
            yield f"the budget is enough on the mean with a deadline of {format_duration(enough[0].deadline_s)}"
