"""What a job on a fleet does of what the policy decides: it does not go to and fro. Pure.

The policy's tables know the price of a restart, but not that what would be lost goes up and down with each save, and
that a step may be slower than the last one. So a change must bring something, and leave slack to spare.
"""

from __future__ import annotations

from dataclasses import replace

from tradewind.autoscaler.contract.progress import MARGIN
from tradewind.autoscaler.contract.view import Aim, Choice, ContractDecision, ContractView, Running
from tradewind.model import Capacity
from tradewind.units import format_duration

_GAIN = 0.1  # of the cost to the end: what a move must bring
SPARE = 3.0  # restarts for which there must be slack before on-demand is left; two are what the policy asks for


def settled(found: ContractDecision, contract: ContractView) -> ContractDecision:
    """Nobody moves, or lets replicas go, for next to nothing, and who leaves on-demand, or lets replicas go, has slack
    to spare: otherwise the next save or the next slow step would send him back, and both moves were in vain. To
    on-demand, and to more replicas where he is, the way is always open."""
    running, best = contract.running, found.choice
    if running is None:
        return found
    is_same = best.key == running.key
    if best.replicas >= running.replicas if is_same else best.capacity is Capacity.ON_DEMAND:
        return found
    if not is_same and running.capacity is Capacity.ON_DEMAND and _is_nearly_paid(found, contract, running.replicas):
        reason = "its budget pays for on-demand to the end, but for what is kept in reserve"
        return replace(found, choice=on_demand_at(contract, running.replicas), reason=reason, aim=Aim.SURE)
    here = _staying(found, running)
    if here is None:
        return found
    if here.cost_uusd * (1.0 - _GAIN) <= best.cost_uusd:
        return replace(found, choice=here, reason=f"{found.reason}: too little is gained by that to move")
    if why := _too_little_slack(found, contract, running):
        return replace(found, choice=here, reason=why)
    return found


def _staying(found: ContractDecision, running: Running) -> Choice | None:
    """As it is; where so many would be too late, and it is asked whether to leave, with the number that is cheapest."""
    there = [other for other in found.beaten if other.key == running.key]
    as_it_is = [other for other in there if other.replicas == running.replicas]
    if as_it_is or found.choice.key == running.key:
        return as_it_is[0] if as_it_is else None
    return there[0] if there else None


def _too_little_slack(found: ContractDecision, contract: ContractView, running: Running) -> str:
    best, is_same = found.choice, found.choice.key == running.key
    keeps_deadline = found.aim in (Aim.SURE, Aim.POSSIBLE)
    slack_s = contract.slack_s(best.replicas) if is_same and keeps_deadline else found.slack_s
    needed_s = SPARE * contract.restart_s + contract.tick_s
    if slack_s >= needed_s or not (is_same or running.capacity is Capacity.ON_DEMAND):
        return ""
    slack = f"{format_duration(max(0.0, slack_s))} of slack"
    what = f"{best.replicas} would leave {slack}: too little to become slower"
    needed = f"{format_duration(needed_s)} are asked for"
    return f"{what if is_same else f'on demand, {slack} are too little to leave it'}: {needed}"


def _is_nearly_paid(found: ContractDecision, contract: ContractView, size: int) -> bool:
    """What is left pays for the work as it is thought to be, without the margin on it: nobody leaves on-demand for
    that, since another start would cost more."""
    if found.aim is not Aim.BUDGET or contract.budget_left_uusd is None:
        return False
    left_s = contract.work_left_s / (1.0 + MARGIN) / contract.speeds[size - 1]
    return contract.on_demand_rate_uusd_per_h(size) * left_s / 3600.0 <= contract.budget_left_uusd


def on_demand_at(contract: ContractView, size: int) -> Choice:
    """From a start to the end."""
    left_s = contract.work_left_s / contract.speeds[size - 1] + contract.restart_s
    cost_uusd = contract.on_demand_rate_uusd_per_h(size) * left_s / 3600.0
    return Choice(contract.on_demand_key, Capacity.ON_DEMAND, size, cost_uusd)
