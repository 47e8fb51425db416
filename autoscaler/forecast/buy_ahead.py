"""Whether to buy before the demand comes: only where the expected cost of waiting exceeds that of idling. Pure.

Of each node more, one after the other (a node serves `per_node` of the series' unit):

    chance  = P(demand at the launch horizon is above what the nodes before it serve)
    waiting = chance * boot time * what an hour of waiting costs
    idling  = (1 - chance) * idle time * price of the node

The chance falls from node to node, so buying stops at the first that is not worth it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tradewind.autoscaler.forecast.outlook import Outlook
from tradewind.units import format_duration, format_usd


@dataclass(frozen=True, slots=True)
class NodeEconomics:
    """What one more node serves and costs, and what it costs to be without it."""

    per_node: float  # of the series' unit
    boot_s: float
    idle_s: float  # how long a node that nobody uses is kept
    price_uusd_per_h: int
    waiting_uusd_per_h: int  # what an hour costs in which the work of one node waits


@dataclass(frozen=True, slots=True)
class Prewarm:
    nodes: int
    waiting_uusd: int  # expected, without these nodes
    idling_uusd: int  # expected, with them
    reason: str


def prewarm(outlook: Outlook | None, capacity: float, economics: NodeEconomics, max_nodes: int) -> Prewarm:
    """How many nodes to buy ahead. `capacity` is what is there, coming or bought for present demand in this tick."""
    if outlook is None or not outlook.has_interval:
        return Prewarm(0, 0, 0, "nothing is bought ahead: too little history for a forecast")
    nodes, waiting, idling = 0, 0.0, 0.0
    while True:
        chance = outlook.chance_above(capacity + nodes * economics.per_node)
        wait = chance * economics.boot_s / 3600.0 * economics.waiting_uusd_per_h
        idle = (1.0 - chance) * economics.idle_s / 3600.0 * economics.price_uusd_per_h
        if nodes == max_nodes or wait <= idle:
            break
        nodes, waiting, idling = nodes + 1, waiting + wait, idling + idle
    why = _reason(outlook, chance, wait, idle, is_capped=wait > idle)
    return Prewarm(nodes, round(waiting), round(idling), why)


def _reason(outlook: Outlook, chance: float, wait_uusd: float, idle_uusd: float, is_capped: bool) -> str:
    ahead = format_duration(outlook.horizon_s)
    demand = f"in {ahead} demand is {outlook.p50:g} (90 %: {outlook.p90:g}), by {outlook.model}"
    costs = f"waiting for it {format_usd(round(wait_uusd))}, idling {format_usd(round(idle_uusd))}"
    end = "the limit on nodes holds it back" if is_capped else "it is not bought ahead"
    return f"{demand}; one node more is needed with a chance of {chance:.0%}: {costs}, {end}"
