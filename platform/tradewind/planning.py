"""From a job file and the catalogue to an answer of autoscaler/contract/plan.py, and its text. Calls nobody."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from tradewind.autoscaler.contract.plan import LIKELY, SURE, Answer, Point, lacks, plan
from tradewind.autoscaler.contract.progress import SCALING, USUAL_START_S
from tradewind.autoscaler.contract.view import ContractView, SpotMarket
from tradewind.autoscaler.view import View
from tradewind.config import FleetConfig
from tradewind.errors import ConfigError, Problem
from tradewind.model import JobSpec
from tradewind.plan_offers import ALLOW, Bare, Shelf, basis_of, shelves_for, shelves_of
from tradewind.submission import build_spec
from tradewind.units import format_duration, format_usd

_TICK_S = 60.0
_MARKETS = 3  # spot markets that are looked at, the cheapest ones
_BAR = 30


def ask(
    job_file: str,
    now_s: float,
    *,
    work_s: float | None = None,
    restart_s: float,
    scaling: float = 0.9,
    deadline: str | None = None,
    budget: str | None = None,
    cloud: str | None = None,
    fleet: FleetConfig | None = None,
) -> Answer:
    """Raises ConfigError. Nothing is known of the markets yet: spot is taken to be out of stock at first. Priced is
    what the fleet may buy; without one, what the catalogue has."""
    spec = build_spec(Path(job_file), now_s=now_s, deadline=deadline, budget=budget, work=work_s)
    if spec.contract.work_s is None:
        problem = Problem(job_file, "work", "is not stated, and there are no steps yet that could tell")
        raise ConfigError([problem], "say how long one worker would need, like --work 48h, or `work: 48h` in the file")
    fast = speeds(spec, scaling)
    shelves = shelves_for(spec, fast, fleet, cloud, now_s)
    view, shelf = _best(shelves, lambda shelf: _view(spec, shelf, fast, now_s, restart_s, is_open=False))
    return replace(plan(view), basis=basis_of(fleet, shelf))


def promise(spec: JobSpec, views: Sequence[View], now_s: float) -> str:
    """What is said of a contract that a fleet takes on, by what its cells see. One that cannot be kept: ConfigError."""
    found = weigh(spec, views, now_s)
    if isinstance(found, Bare):
        return _unpromised(spec, found)
    said, stated_s = admitted(spec, found), spec.contract.work_s
    return (
        f"{said}; until its steps tell, this rests on --work {format_duration(stated_s)}" if said and stated_s else said
    )


def weigh(spec: JobSpec, views: Sequence[View], now_s: float) -> Answer | Bare | None:
    """Can this fleet keep the contract, within its limits? None: not enough is known to say anything (no work was
    stated, the program asks Ray itself, or no cell has looked yet)."""
    if spec.contract.is_empty or spec.contract.work_s is None or not spec.max_workers or not views:
        return None
    fast = speeds(spec, SCALING)
    shelves = shelves_of(spec, fast, views)
    if isinstance(shelves, Bare):
        return shelves
    restart_s = views[0].settings.usual_boot_s + USUAL_START_S
    view, shelf = _best(shelves, lambda shelf: _view(spec, shelf, fast, now_s, restart_s, is_open=True))
    return replace(plan(view, plays=100), basis=shelf.less)


def _best(shelves: Sequence[Shelf], view: Callable[[Shelf], ContractView]) -> tuple[ContractView, Shelf]:
    """The cheapest that keeps the contract; where none does, the one that is the least late, and lacks the least."""
    return min(((view(shelf), shelf) for shelf in shelves), key=lambda row: lacks(row[0]))


def _unpromised(spec: JobSpec, bare: Bare) -> str:
    """A job that can start without its net is taken on, as in a fleet that sells spot alone."""
    if not bare.can_start:
        raise ConfigError([Problem(spec.name, "contract", f"cannot be kept: {bare.limit}")], ALLOW)
    return f"nothing is promised: {bare.limit}" if bare.limit else ""


def _view(
    spec: JobSpec, shelf: Shelf, fast: Sequence[float], now_s: float, restart_s: float, *, is_open: bool
) -> ContractView:
    """`is_open`: whether spot is taken to be there at first."""
    return ContractView(
        now_s=now_s,
        work_left_s=spec.contract.work_s or 0.0,
        restart_s=restart_s,
        tick_s=_TICK_S,
        on_demand_key=shelf.on_demand.key,
        on_demand_uusd_per_h=shelf.on_demand.machine_uusd_per_h,
        deadline_at_s=spec.contract.deadline_at_s,
        budget_left_uusd=spec.contract.budget_uusd,
        spot=tuple(
            SpotMarket(each.key, each.machine_uusd_per_h, is_open, seats=each.seats) for each in shelf.spot[:_MARKETS]
        ),
        speeds=tuple(fast[: shelf.most]),
        on_demand_seats=shelf.on_demand.seats,
    )


def admitted(spec: JobSpec, answer: Answer | None) -> str:
    """What is said of a contract that is taken on; raises ConfigError for one that cannot be kept."""
    if answer is None:
        return ""
    limit = (answer.basis,) if answer.basis else ()
    if not answer.is_feasible:
        told = "; ".join([answer.summary, *limit])
        raise ConfigError([Problem(spec.name, "contract", f"cannot be kept: {told}")], "; ".join(answer.remedies))
    return "; ".join([answer.summary, *limit, *answer.remedies])


def speeds(spec: JobSpec, scaling: float) -> tuple[float, ...]:
    """Twice the workers are 2 x `scaling` times as fast. Sizes below the job's least are never the better ones: they
    are as fast as nothing, and cost the same."""
    power = 1.0 + math.log2(max(scaling, 0.5))
    most, least = max(spec.max_workers, 1), max(spec.min_workers, 1)
    return tuple(float(number) ** power if number >= least else 1e-9 for number in range(1, most + 1))


def plan_text(answer: Answer) -> str:
    lines = [f"{_verdict(answer)}: {answer.summary}"]
    found = answer.outlook
    if found is not None:
        low, high = (format_usd(cost) for cost in found.cost_range_uusd)
        first, last = (format_duration(time_s) for time_s in found.finish_range_s)
        lines += [
            f"  cost      {format_usd(found.cost_uusd)} expected, {low} to {high} in four of five cases",
            f"  finish    in {format_duration(found.finish_s)}, {first} to {last} in four of five cases",
        ]
        if found.budget_chance < 1.0:
            lines.append(
                f"  budget    enough for it, late perhaps, with {found.budget_chance:.0%}; of these, the figures above"
            )
        if answer.budget_uusd is not None:
            lines.append(
                f"  sure      never more than {format_usd(answer.budget_uusd)}: it saves and stops before that"
            )
    lines += [f"  try       {remedy}" for remedy in answer.remedies]
    lines.append(f"  priced    {_prices(answer)}")
    lines += [f"  of        {answer.basis}"] if answer.basis else []
    lines += (
        ["  spot      taken to be out of stock at first: where a fleet finds some, it costs less"]
        if answer.spot
        else []
    )
    lines += ["", f"Expected cost by deadline{_unlimited(answer)}:", *_bars(answer), _cheapest(answer)]
    return "\n".join(lines)


def _verdict(answer: Answer) -> str:
    if not answer.is_feasible:
        return "No"
    chance = 1.0 if answer.outlook is None else answer.outlook.chance
    return "Yes" if chance >= SURE else "Likely" if chance >= LIKELY else "Unlikely"


def _unlimited(answer: Answer) -> str:
    """Where the budget changes what is paid, the curve is of something else than the cost above it."""
    if answer.budget_uusd is None:
        return ""
    is_free = answer.outlook is not None and any(
        point.cost_uusd == answer.outlook.cost_uusd for point in answer.curve if point.deadline_s == answer.asked_s
    )
    return "" if is_free else ", without a budget"


def _prices(answer: Answer) -> str:
    """Of one worker: its share of the machines that all of them need."""
    parts = [f"{answer.on_demand.key} {format_usd(answer.on_demand.uusd_per_h)}/h"]
    parts += [f"{each.key} {format_usd(each.uusd_per_h)}/h" for each in answer.spot]
    each = "for the worker" if answer.replicas == 1 else f"for each of {answer.replicas} workers"
    return f"{', '.join(parts)}, {each}" + ("" if answer.spot else "; no spot market sells it")


def _cheapest(answer: Answer) -> str:
    cheapest = format_duration(answer.cheapest_deadline_s)
    if answer.cheapest_deadline_s >= answer.curve[-1].deadline_s:
        return f"Cheapest deadline: {cheapest} or more."
    return f"Cheapest deadline: {cheapest}; more time spares next to nothing."


def _bars(answer: Answer) -> list[str]:
    most = max(point.cost_uusd for point in answer.curve) or 1
    return [_bar(point, most, point.deadline_s == answer.asked_s) for point in answer.curve]


def _bar(point: Point, most_uusd: int, is_asked: bool) -> str:
    size = max(1, round(_BAR * point.cost_uusd / most_uusd))
    return (
        f"  {format_duration(point.deadline_s):>7}  {format_usd(point.cost_uusd):>10}  {'#' * size}  x {point.replicas}"
        + ("  <- asked for" if is_asked else "")
    )
