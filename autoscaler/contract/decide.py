"""Where a job with a contract runs until the next tick: a pure function of a view, with its reason.

The cheapest of all choices (choices.py) is taken that leaves a sure way to keep deadline and budget. Where there is
none, less is asked for, step by step (`Aim`): first that both are kept as spot is expected to be; then, since a budget
is hard and a job that has used it stops, that the work is done within it, however late; and where no known price would
do that, as much of it as is paid. Where there is no budget, or enough of it, and too little time, the job goes on as
fast as it can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from tradewind.autoscaler.contract.choices import Size, choices
from tradewind.autoscaler.contract.induction import LONGEST_H
from tradewind.autoscaler.contract.nets import Nets
from tradewind.autoscaler.contract.odds import NEVER
from tradewind.autoscaler.contract.view import Aim, Choice, ContractDecision, ContractView, SpotMarket
from tradewind.model import Capacity
from tradewind.units import format_duration, format_usd

_ON_DEMAND, _SPOT = Capacity.ON_DEMAND, Capacity.SPOT
TOLD = 1.25  # a price that makes ends so many times as frequent, or as rare, is spoken of
HOPE = 0.75  # of the expected cost of keeping a deadline: with less, it is not paid for with what the work needs


@dataclass(frozen=True, slots=True)
class Course:
    """What is aimed at, the view in which only that is asked for, and the choices that it leaves, the cheapest first.
    No choices: too late."""

    aim: Aim
    view: ContractView
    choices: tuple[Choice, ...]


def decide(view: ContractView) -> ContractDecision:
    slack_s = view.slack_s(view.fastest)
    if view.work_left_s <= 0.0:
        return ContractDecision(Choice("", None, 0, 0.0), "the work is done", slack_s)
    if view.budget_left_uusd is not None and view.budget_left_uusd <= 0:
        return ContractDecision(Choice("", None, 0, 0.0), "the budget is spent", slack_s, aim=Aim.SHORT)
    course = course_of(view)
    if not course.choices:
        return _hurry(view, slack_s)
    best = next((each for each in course.choices if not _leaves_spot_in_vain(course.view, each)), course.choices[0])
    others = [choice for choice in course.choices if choice is not best]
    reason = _reason(course.view, best, course.view.slack_s(view.fastest)) + _why_not_sure(view, course)
    return ContractDecision(best, reason, course.view.slack_s(view.fastest), tuple(others), course.aim)


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


def sized(view: ContractView) -> Size:
    """With the number of replicas that is chosen now; the fastest where no choice is in time."""
    course = course_of(view)
    return Size(course.view, course.choices[0].replicas if course.choices else view.fastest)


def course_of(view: ContractView) -> Course:
    found = _cheapest_first(choices(view))
    if found or view.budget_left_uusd is None:
        return Course(Aim.SURE if found else Aim.LATE, view, found)
    return next(_without_a_sure_way(view, view.budget_left_uusd))


def _without_a_sure_way(view: ContractView, left_uusd: int) -> Iterator[Course]:
    """What may be aimed at instead, the best first. Of spot, only the markets count whose price pays for the rest."""
    paid = tuple(each for each in view.spot if _at_least_uusd(view, each) <= left_uusd)
    patient = replace(view, spot=paid, deadline_at_s=None, budget_left_uusd=None)
    spot = _cheapest_first(_no_on_demand(choices(patient)))
    hopeful = replace(view, spot=paid, budget_left_uusd=None)
    in_time = _cheapest_first(choices(hopeful))
    spare_uusd = left_uusd - spot[0].cost_uusd if spot else -math.inf
    possible = tuple(choice for choice in in_time if _leaves_both(view, choice, left_uusd, spare_uusd))
    if possible and view.deadline_at_s is not None:
        yield Course(Aim.POSSIBLE, hopeful, possible)
    if not in_time and Nets(replace(view, deadline_at_s=None)).to_the_end(view.fastest, view.restart_s):
        yield Course(Aim.LATE, view, ())
    late = replace(view, deadline_at_s=None)
    if sure := _cheapest_first(choices(late)):
        yield Course(Aim.BUDGET, late, sure)
    if spot:
        yield Course(Aim.BUDGET, patient, spot)
    anything = replace(patient, spot=view.spot)
    spot = _cheapest_first(_no_on_demand(choices(anything)))
    yield Course(Aim.SHORT, anything, spot or _cheapest_first(choices(anything)))


def _leaves_both(view: ContractView, choice: Choice, left_uusd: int, spare_uusd: float) -> bool:
    """On demand alone would pass the budget, so it is of use only where keeping the deadline is not beyond hope, while
    there is time to leave it for spot again, and while what is left afterwards pays for the rest on spot, waited for
    as long as it takes."""
    if choice.capacity is not _ON_DEMAND:
        return True
    if HOPE * choice.cost_uusd > left_uusd:
        return False
    here = view.running
    is_here = here is not None and (here.key, here.replicas) == (choice.key, choice.replicas)
    begin_s = here.warming_s if here is not None and is_here else view.restart_s
    price = view.on_demand_rate_uusd_per_h(choice.replicas)
    in_time = view.slack_s(choice.replicas) - begin_s >= 2.0 * view.restart_s + view.tick_s
    return in_time and price * (begin_s + view.tick_s) / 3600.0 <= spare_uusd


def _cheapest_first(found: Iterable[Choice]) -> tuple[Choice, ...]:
    return tuple(sorted(found, key=lambda choice: choice.cost_uusd))


def _no_on_demand(found: Iterable[Choice]) -> Iterator[Choice]:
    return (choice for choice in found if choice.capacity is not _ON_DEMAND)


def _at_least_uusd(view: ContractView, market: SpotMarket) -> float:
    """The rest in this market, without any loss, at the size that is cheapest for the work."""
    speeds = view.speeds[: market.most]
    per_work = min((market.rate_uusd_per_h(number) / speed for number, speed in enumerate(speeds, 1)), default=math.inf)
    return per_work * view.work_left_s / 3600.0


# --- in words -------------------------------------------------------------------------------------------------------


def _hurry(view: ContractView, slack_s: float) -> ContractDecision:
    """Too late for a restart. Who runs goes on where he is; others begin on demand, at the fastest size."""
    cost_uusd = _on_demand_uusd(view)
    if view.running is not None:
        here = view.running
        reason = "a move would be too late: it goes on where it is"
        choice = Choice(here.key, here.capacity, here.replicas, cost_uusd)
        return ContractDecision(choice, reason, slack_s, aim=Aim.LATE)
    choice = Choice(view.on_demand_key, _ON_DEMAND, view.fastest, cost_uusd)
    late = format_duration(max(0.0, view.restart_s - slack_s))
    reason = f"the deadline cannot be kept, it will be {late} late: as fast as it can"
    return ContractDecision(choice, reason, slack_s, aim=Aim.LATE)


def _on_demand_uusd(view: ContractView) -> float:
    rate = view.on_demand_rate_uusd_per_h(view.fastest)
    return rate * view.work_left_s / view.speeds[view.fastest - 1] / 3600.0


def _reason(view: ContractView, best: Choice, slack_s: float) -> str:
    slack = "no deadline" if math.isinf(slack_s) else f"{format_duration(max(0.0, slack_s))} of slack"
    cost = f"{format_usd(round(best.cost_uusd))} expected to the end"
    if not best.key:
        price = _by_price("it comes back", view.together.priced[0], view, best)
        return f"no spot now, and {slack}: waiting for it is cheapest, {cost}{price}"
    if best.capacity is _SPOT:
        seen = next((market.seen for market in view.spot if market.key == best.key), NEVER)
        price = _by_price("its machines are lost", seen.priced[1], view, best)
        return f"spot in {best.key} x {best.replicas}, {slack}: {cost}{price}"
    net = " (safety net)" if slack_s - view.restart_s < view.tick_s else ""
    return f"on demand x {best.replicas}{net}, {slack}: {cost}"


def _by_price(what: str, factor: float, view: ContractView, best: Choice) -> str:
    """Where the price tells something that counts. For long jobs it does not."""
    is_long = view.work_left_s / view.speeds[best.replicas - 1] > LONGEST_H * 3600.0
    if is_long or 1.0 / TOLD < factor < TOLD:
        return ""
    return f"; at such a price {what} {factor:.1f} x as often as usual, by what was seen"


def _why_not_sure(view: ContractView, course: Course) -> str:
    """What a budget has changed; nothing where all of the contract is sure."""
    left = format_usd(view.budget_left_uusd or 0)
    if course.aim is Aim.POSSIBLE:
        return f"; {left} are left, which on demand alone would pass"
    if course.aim is Aim.BUDGET and view.deadline_at_s is None:
        return f"; {left} are left, and only spot is paid by that"
    if course.aim is Aim.BUDGET:
        return f"; the deadline is not to be kept with the {left} that are left, and gives way to the budget"
    if course.aim is Aim.SHORT:
        return f"; {left} are left, less than the work costs anywhere: it goes on as far as that pays"
    return ""
