"""What the clouds refused, and for how long that is believed. Pure: folded from LaunchRefused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.errors import Scope
from tradewind.events import LaunchRefused
from tradewind.model import Market, Offer
from tradewind.units import format_duration

_MAX_DOUBLINGS = 3  # a place that keeps refusing is asked ever less often, up to 8 times the first wait


@dataclass(frozen=True, slots=True)
class Block:
    until_s: float
    error: str
    at_s: float
    repeats: int = 1

    def describe(self, now_s: float) -> str:
        return f"{self.error}, tried again in {format_duration(max(0.0, self.until_s - now_s))}"


def scope_key(market: Market, scope: Scope) -> str:
    """Spot and on-demand are sold from different pools and quotas: a refusal of one says nothing of the other."""
    if scope is Scope.OFFER:
        return f"offer:{market.key}"
    if scope is Scope.ZONE:
        return f"zone:{market.cloud}/{market.zone}/{market.instance_type}/{market.capacity}"
    if scope is Scope.REGION:
        return f"region:{market.cloud}/{market.region}/{market.instance_type}/{market.capacity}"
    return f"cloud:{market.cloud}" if scope is Scope.CLOUD else ""


@dataclass(frozen=True, slots=True)
class MarketMemory:
    """What is ruled out until when. Forgets by itself: a block ends, and a launch that succeeds clears it."""

    blocks: Mapping[str, Block] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: FleetState, now_s: float) -> MarketMemory:
        recent = [r for r in fleet.refusals if r.at_s + r.block_s * 2 ** (_MAX_DOUBLINGS + 1) > now_s]
        markets = {r.launch_id: fleet.nodes[r.launch_id].offer.market for r in recent}
        return cls(_fold(recent, markets, _successes(fleet.nodes.values())))

    def block_of(self, offer: Offer, now_s: float) -> Block | None:
        found = (self.blocks.get(scope_key(offer.market, scope)) for scope in Scope)
        return next((block for block in found if block is not None and block.until_s > now_s), None)


def _fold(
    refusals: Iterable[LaunchRefused], markets: Mapping[str, Market], won: Mapping[str, float]
) -> dict[str, Block]:
    blocks: dict[str, Block] = {}
    for refusal in sorted(refusals, key=lambda r: r.at_s):
        market = markets[refusal.launch_id]
        key = scope_key(market, Scope(refusal.scope))
        if key and refusal.block_s > 0 and won.get(market.key, float("-inf")) <= refusal.at_s:
            blocks[key] = _renew(blocks.get(key), refusal)
    return blocks


def _renew(last: Block | None, refusal: LaunchRefused) -> Block:
    """Refused again soon after the last block ended: wait twice as long. Quiet for as long as a block: start anew."""
    again = last is not None and refusal.at_s < last.until_s + refusal.block_s
    repeats = last.repeats + 1 if again and last is not None else 1
    wait_s = refusal.block_s * 2 ** min(repeats - 1, _MAX_DOUBLINGS)
    return Block(refusal.at_s + wait_s, refusal.error, refusal.at_s, repeats)


def _successes(nodes: Iterable[NodeRecord]) -> dict[str, float]:
    """When each market last gave us a node. By the time of asking: that is what the refusals are compared with."""
    won: dict[str, float] = {}
    for node in nodes:
        if node.launched_at_s is not None:
            key = node.offer.market.key
            won[key] = max(won.get(key, 0.0), node.requested_at_s)
    return won
