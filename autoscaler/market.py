"""What the clouds refused or sold broken, and for how long that is believed. Pure: folded from the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache

from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.errors import InvalidRequest, PriceTooHigh, ProviderError, QuotaExceeded, Scope, Stockout
from tradewind.events import LaunchRefused
from tradewind.model import EndReason, Market, Offer
from tradewind.states import NodeState
from tradewind.units import format_duration

BOOT_FAILED = "BootFailed"
BOOT_BLOCK_S = 60.0  # a node that never joined Ray says as much of its market as a refusal does, and costs money
_REMEMBERED_S = 3600.0  # after it has ended: who has just come back is not trusted with a move yet
_MAX_DOUBLINGS = 3  # a place that keeps refusing is asked ever less often, up to 8 times the first wait
# Being told "none left" costs one call, and capacity comes back at any moment: it is asked for at least so often.
_SOLD_OUT_S = 1200.0
# How many first waits back a refusal still tells something: four in a row, at most 8 + 1 apart, wait longest.
_TOLD = 45
_SOLD_OUT = frozenset({Stockout.__name__, PriceTooHigh.__name__})


@dataclass(frozen=True, slots=True)
class MarketSettings:
    """What a node costs beside its price, and when work is moved to a cheaper one."""

    # Expected where nothing is known. Public records of GPU and CPU spot nodes lie between 0.03 and 0.7 an hour.
    usual_hazard_per_h: float = 0.1
    # Work that is done again after a preemption. Training that saves or hands over loses seconds, a task all that it
    # has done: the default lies between.
    lost_s_per_preemption: float = 600.0
    data_region: str = ""  # where the data lies: reading it from any other region costs `egress_uusd_per_h` a node
    egress_uusd_per_h: int = 0
    max_share: float | None = None  # of a job may lie in one market; None: all of it
    exchange: bool = True  # False: work is never moved to save money
    exchange_hysteresis_s: float = 900.0  # prices, stock and use must have been so for this long
    exchange_horizon_s: float = 7200.0  # how long a node is expected to be used from now on
    exchange_margin: float = 0.10  # of the nodes' cost over the horizon: what a move must bring beyond its own cost
    exchange_share: float = 0.10  # of the nodes may be moving at a time; one always may
    handover_s: float = 30.0  # how long a job stands still when it moves
    handover_deadline_s: float = 300.0  # to leave a node that is given up

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, int | float) and value < 0:
                raise ValueError(f"{each.name} cannot be negative: {value}")
        if self.exchange_hysteresis_s > _REMEMBERED_S:
            raise ValueError(f"exchange_hysteresis_s is at most {_REMEMBERED_S:.0f}: {self.exchange_hysteresis_s}")
        if self.exchange_horizon_s == 0 or self.usual_hazard_per_h == 0:
            raise ValueError("exchange_horizon_s and usual_hazard_per_h must be positive")
        if self.max_share is not None and not 0 < self.max_share <= 1:
            raise ValueError(f"max_share is above 0 and at most 1: {self.max_share}")


@dataclass(frozen=True, slots=True)
class Block:
    until_s: float
    error: str
    at_s: float
    repeats: int = 1

    def describe(self, now_s: float) -> str:
        return f"{self.error}, tried again in {format_duration(max(0.0, self.until_s - now_s))}"


_OF_OFFERS = tuple(scope for scope in Scope if scope is not Scope.GROUP)


def scope_key(market: Market, scope: Scope, group: str = "") -> str:
    """Spot and on-demand are sold from different pools and quotas: a refusal of one says nothing of the other. A group
    without a name stands for all groups of this type in the region."""
    if scope is Scope.GROUP:
        sold = f"{market.instance_type}/{market.capacity}"
        return f"group:{group}/{sold}" if group else f"groups:{market.cloud}/{market.region}/{sold}"
    if scope is Scope.OFFER:
        return f"offer:{market.key}"
    if scope is Scope.ZONE:
        return f"zone:{market.cloud}/{market.zone}/{market.instance_type}/{market.capacity}"
    if scope is Scope.REGION:
        return f"region:{market.cloud}/{market.region}/{market.instance_type}/{market.capacity}"
    return f"cloud:{market.cloud}" if scope is Scope.CLOUD else ""


@lru_cache(maxsize=65536)  # every tick looks at all offers of all cells
def _keys_of(market: Market) -> tuple[str, ...]:
    """Under which it may be ruled out."""
    return (*(scope_key(market, scope) for scope in _OF_OFFERS), f"boot/{scope_key(market, Scope.OFFER)}")


@dataclass(frozen=True, slots=True)
class MarketMemory:
    """What is ruled out until when. Forgets by itself: a block ends, and a launch that succeeds clears it."""

    blocks: Mapping[str, Block] = field(default_factory=dict)

    @classmethod
    def of(cls, fleet: FleetState, now_s: float) -> MarketMemory:
        nodes, asked = fleet.nodes, fleet.experience
        told = (each for each in fleet.refusals if _still_tells(each, now_s) and not _is_corrected(each, fleet))
        refused = _fold(told, nodes, asked.launched_when_asked_s, now_s)
        suspects = (nodes[launch_id] for launch_id in list(fleet.never_joined))
        broken = _fold(_boot_failures(suspects), nodes, asked.joined_when_asked_s, now_s)
        return cls({**refused, **{f"boot/{key}": block for key, block in broken.items()}})

    def block_of(self, offer: Offer, now_s: float) -> Block | None:
        """Of several, the first by scope."""
        if not self.blocks:
            return None
        found = (self.blocks.get(key) for key in _keys_of(offer.market))
        return next((block for block in found if block is not None and block.until_s > now_s), None)

    def group_block_of(self, market: Market, group: str, now_s: float) -> Block | None:
        """Whether this group, or every group of this type here, was refused a moment ago. The offer may be had."""
        keys = (scope_key(market, Scope.GROUP, name) for name in (group, "")) if self.blocks else ()
        found = (self.blocks.get(key) for key in keys)
        return next((block for block in found if block is not None and block.until_s > now_s), None)

    def is_clear_since(self, offer: Offer, since_s: float) -> bool:
        """Whether it was ruled out at no moment since then (an hour at most is remembered)."""
        return self.block_of(offer, since_s) is None


def news_block_s(memory: MarketMemory, node: NodeRecord, error: ProviderError, now_s: float) -> float:
    """How long a refusal rules out, by itself. Launches that were under way together are refused together: that is one
    refusal, not one after the other, each of which would rule the market out for longer."""
    if refused_scope(node, error) is Scope.GROUP:
        block = memory.group_block_of(node.offer.market, node.placement_group, now_s)
    else:
        block = memory.block_of(node.offer, now_s)
    is_news = block is None or block.error != type(error).__name__ or block.at_s < node.requested_at_s
    return error.block_s if is_news else 0.0


def refused_scope(node: NodeRecord, error: ProviderError) -> Scope:
    """A launch into a placement group that is refused speaks of the group first: room beside other nodes is scarcer
    than room, and a right or a type may be lacking for groups alone. Prices and quotas do not ask where a node lies."""
    of_offer = isinstance(error, PriceTooHigh | QuotaExceeded) and error.scope is not Scope.GROUP
    return Scope.GROUP if node.placement_group and not of_offer else error.scope


def refusal_key(refusal: LaunchRefused, node: NodeRecord) -> str:
    """What is ruled out. No room in one group says nothing of others; any other refusal of a group speaks of all."""
    scope = Scope(refusal.scope)
    group = node.placement_group if refusal.error == Stockout.__name__ else ""
    return scope_key(node.offer.market, scope, group)


def _still_tells(refusal: LaunchRefused, now_s: float) -> bool:
    """A month of refusals is folded at every tick otherwise."""
    return refusal.block_s > 0 and refusal.at_s + _TOLD * refusal.block_s + _REMEMBERED_S > now_s


def _is_corrected(refusal: LaunchRefused, fleet: FleetState) -> bool:
    """What the cloud did not understand came from the fleet file; another file says something else."""
    return refusal.error == InvalidRequest.__name__ and refusal.at_s < fleet.config_since_s


def _boot_failures(nodes: Iterable[NodeRecord]) -> Iterator[LaunchRefused]:
    """Nodes that were billed and ended without ever having joined Ray, and that the cloud did not take back. One that
    is just being given up counts already: its replacement is bought in the same tick."""
    for node in nodes:
        has_failed = node.end in (EndReason.CRASHED, EndReason.TERMINATED) or node.state is NodeState.TERMINATING
        if node.launched_at_s and not node.joined_at_s and has_failed:
            ended_at_s = node.ended_at_s or node.state_since_s
            yield LaunchRefused(
                at_s=ended_at_s,
                launch_id=node.launch_id,
                error=BOOT_FAILED,
                message=node.detail,
                scope=Scope.OFFER,
                block_s=max(BOOT_BLOCK_S, ended_at_s - node.requested_at_s),  # a slow failure is told late
            )


def _fold(
    refusals: Iterable[LaunchRefused], nodes: Mapping[str, NodeRecord], won: Mapping[str, float], now_s: float
) -> dict[str, Block]:
    """Of what may still be blocked, every refusal since the last success counts: how long the last block was tells
    whether the next refusal came soon after it."""
    by_key: dict[str, list[LaunchRefused]] = {}
    for refusal in refusals:
        node = nodes[refusal.launch_id]
        key, market = refusal_key(refusal, node), node.offer.market
        # What is sold outside of a group clears nothing about the group.
        won_s = float("-inf") if refusal.scope == Scope.GROUP else won.get(market.key, float("-inf"))
        if key and refusal.block_s > 0 and won_s <= refusal.at_s:
            by_key.setdefault(key, []).append(refusal)
    blocks: dict[str, Block] = {}
    for key, told in by_key.items():
        if any(r.at_s + r.block_s * 2**_MAX_DOUBLINGS + _REMEMBERED_S > now_s for r in told):
            for refusal in sorted(told, key=lambda r: r.at_s):
                blocks[key] = renew(blocks.get(key), refusal)
    return blocks


def renew(last: Block | None, refusal: LaunchRefused) -> Block:
    """Refused again soon after the last block ended: wait twice as long. Quiet for as long as a block: start anew."""
    again = last is not None and refusal.at_s < last.until_s + refusal.block_s
    repeats = last.repeats + 1 if again and last is not None else 1
    wait_s = refusal.block_s * 2 ** min(repeats - 1, _MAX_DOUBLINGS)
    if refusal.error in _SOLD_OUT:
        wait_s = min(wait_s, max(refusal.block_s, _SOLD_OUT_S))
    return Block(refusal.at_s + wait_s, refusal.error, refusal.at_s, repeats)
