"""What a policy sees: one frozen picture of a moment. Pure; observe.py builds it, the policies read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.forecast import Forecast, SeriesKey
from tradewind.autoscaler.knowledge import Knowledge
from tradewind.autoscaler.limits import Counted, Tenants
from tradewind.autoscaler.limits import Limits as Limits  # a part of the settings: found here, too
from tradewind.autoscaler.market import MarketMemory, MarketSettings
from tradewind.autoscaler.providers.base import CloudNode
from tradewind.autoscaler.quotes import Quotes
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.steer import Kept, Steer
from tradewind.model import Offer, Resources, Wish
from tradewind.states import NodeState

SeenKey = tuple[str, str, str, float, float, float]  # cloud, zone (empty: any), type, and the size as it is listed
SeenResources = Mapping[SeenKey, Resources]  # by `seen_keys`: what such nodes brought to Ray


def seen_keys(offer: Offer) -> tuple[SeenKey, SeenKey]:
    """Under which keys it is known what such a node brings, the best first: in this place, and in any. How it is paid
    says nothing of a machine; a type that is listed with another size elsewhere is another machine."""
    market = offer.market
    size = offer.vcpus, offer.memory_gib, offer.accelerator_count
    return (market.cloud, market.zone, market.instance_type, *size), (market.cloud, "", market.instance_type, *size)


@dataclass(frozen=True, slots=True)
class HeadSettings:
    """The head of a cell, as a node that the loop buys. It runs Ray's head and the drivers of jobs."""

    instance_type: str = ""  # empty: the cheapest of this size
    vcpus: float = 4.0
    memory_gib: float = 16.0
    offers: tuple[Offer, ...] = ()  # what it may be; empty: what the fleet may buy
    keep: bool = True  # False: only while there are jobs for the cell
    idle_timeout_s: float = 900.0  # ... and so long after the last
    boot_timeout_s: float = 900.0  # from the launch to its agent's first words
    lost_s: float = 300.0  # how long its agent may be silent before it is given up


@dataclass(frozen=True, slots=True)
class LoopSettings:
    fleet: str
    cell: str = "local"
    head_address: str = ""
    limits: Limits = field(default_factory=Limits)
    idle_timeout_s: float = 60.0
    # Instead of it, where a forecast says that the node will not be wanted soon. None: until the forecast is asked
    # again, a fifth of its step; what is worth keeping it keeps.
    spare_timeout_s: float | None = None
    min_node_life_s: float = 60.0  # from joining on: no node is bought and sold again at once
    boot_timeout_s: float = 600.0  # from the launch to joining Ray
    drain_timeout_s: float = 120.0  # for drains without a deadline
    drain_grace_s: float = 15.0  # after a deadline, before we end the node ourselves
    launch_grace_s: float = 120.0  # how long a launch may stay without an answer and without being listed
    end_grace_s: float = 300.0  # how long a node may be there after we asked for its end, before people are told
    lost_grace_s: float = 60.0  # how long a known node may be absent from the cloud's list
    # How long a cloud may take to answer. A listing or prices: it is blind, and asked anew. A launch: it may have
    # happened, the listing tells. An end: it is asked again while the node is listed.
    look_deadline_s: float = 30.0
    launch_deadline_s: float = 60.0
    end_deadline_s: float = 60.0
    answer_wait_s: float = 0.25  # how long a tick waits for answers: once when it looks, once when it launches
    dry_run: bool = False  # nothing is launched, drained or ended; what would be is told
    adopt_jobs: bool = True  # jobs that were sent past us are put on record
    head: HeadSettings | None = None  # None: somebody else keeps the cell's head
    usable_memory: float = 0.6  # what Ray offers of a machine's memory, until a node of the type has been seen
    buy_ahead: bool = False  # True: demand is forecast, and nodes are bought before it comes where that is worth it
    forecast_step_s: float = 300.0
    usual_boot_s: float = 180.0  # from the launch to joining Ray, as a rule: how far ahead is bought
    # An hour in which the work of one node waits costs as much as so many hours of it: people wait, too.
    waiting_factor: float = 16.0
    market: MarketSettings = field(default_factory=MarketSettings)
    placement_groups: bool = True  # the nodes of a gang are asked for side by side, where the cloud can do so
    contract_tick_s: float = 30.0  # how often the course of a job with a contract is decided anew, at the least

    def __post_init__(self) -> None:
        if min(self.forecast_step_s, self.usual_boot_s, self.contract_tick_s) <= 0 or self.waiting_factor < 0:
            raise ValueError(
                "forecast_step_s, usual_boot_s and contract_tick_s are positive, waiting_factor not negative"
            )


@dataclass(frozen=True, slots=True)
class NodeView:
    """One node in its three truths: what was requested (log), what the cloud lists, what Ray sees."""

    requested: NodeRecord
    cloud: CloudNode | None = None
    ray: RayNode | None = None  # of a slice: all hosts as one, once all have joined
    hosts: tuple[RayNode, ...] = ()  # of a slice: those that live in Ray, each by itself

    @property
    def ray_node_ids(self) -> tuple[str, ...]:
        """By these Ray knows it: one for each host, the first host first."""
        alone = (self.ray,) if self.ray is not None else ()
        return tuple(ray.ray_node_id for ray in self.hosts or alone)

    @property
    def launch_id(self) -> str:
        return self.requested.launch_id

    @property
    def notice_deadline_s(self) -> float | None:
        return self.requested.notice_deadline_s

    @property
    def is_in_ray(self) -> bool:
        return self.ray is not None and self.ray.is_alive

    @property
    def is_coming(self) -> bool:
        """Paid for or asked for, and not in Ray yet."""
        return self.requested.state in (NodeState.REQUESTED, NodeState.BOOTING) and self.ray is None

    @property
    def is_leaving(self) -> bool:
        """Will take no new work: it does not count as capacity any more."""
        state = self.requested.state
        return self.notice_deadline_s is not None or state in (NodeState.DRAINING, NodeState.TERMINATING)


NodeViews = tuple[NodeView, ...]


@dataclass(frozen=True, slots=True)
class View:
    now_s: float
    settings: LoopSettings
    nodes: tuple[NodeView, ...] = ()  # alive by the log; without heads
    snapshot: RaySnapshot | None = None  # None: the head does not answer, so nothing is known of demand
    demand: Demand = field(default_factory=Demand)
    offers: tuple[Offer, ...] = ()
    memory: MarketMemory = field(default_factory=MarketMemory)
    blind_clouds: frozenset[str] = frozenset()  # or "cloud/region": not listed at this tick, nothing is bought there
    launched_last_minute: int = 0
    tenants: Tenants = field(default_factory=Tenants)  # whose jobs and nodes are, where limits ask for it
    seen_resources: SeenResources = field(default_factory=dict)
    wanted: Mapping[SeriesKey, float] = field(default_factory=dict)  # running and waiting, by tenant and shape
    forecasts: Mapping[SeriesKey, Forecast] = field(default_factory=dict)  # of the same; none: be reactive
    wishes: tuple[Wish, ...] = ()
    knowledge: Knowledge | None = None  # of markets; None: list prices are all that is known
    quotes: Quotes = field(default_factory=dict)  # prices of the last minutes
    withheld: tuple[Hold, ...] = ()  # what is asked for and not planned for: its tenant is at a limit
    heads: tuple[NodeView, ...] = ()  # likewise: what Ray's head runs on
    head_silent_s: float | None = None  # how long nothing was heard of its agent; None: it has not spoken yet
    jobs_left_s: float | None = None  # how long there has been no job for the cell; None: there is one
    steers: Mapping[str, Steer] = field(default_factory=dict)  # by job: those whose contract says where they run
    resting: Mapping[str, str] = field(default_factory=dict)  # jobs that wait for better hours, each with the reason
    kept: Kept = field(default_factory=Kept)  # of the limit on money, for jobs with a deadline
    elsewhere: Counted = field(default_factory=Counted)  # alive, not in `nodes`: other cells and heads, for the limits
    on_record: Counted | None = None  # `nodes` and `elsewhere` together, without launches; None: not counted yet
    _stirring: list[tuple[NodeViews, NodeViews]] = field(default_factory=list, repr=False, compare=False)

    @property
    def stirring(self) -> tuple[NodeView, ...]:
        """Nodes of which something may have to be decided: all but those that are ready, at work in Ray, and stay. In a
        large fleet nearly all are at work, and several policies ask: so they are looked for once."""
        if not self._stirring or self._stirring[0][0] is not self.nodes:  # copies of a view share it
            ready, running = NodeState.READY, RayStatus.RUNNING  # local names, and no calls: this runs over all nodes
            found = [
                node
                for node in self.nodes
                if (ray := node.ray) is None
                or ray.status is not running
                or (record := node.requested).state is not ready
                or record.notice_deadline_s is not None
            ]
            self._stirring[:] = [(self.nodes, tuple(found))]
        return self._stirring[0][1]

    def resources_of(self, offer: Offer) -> dict[str, float]:
        """What a node of this offer will bring. What one really brought is believed more than the catalogue:
        otherwise a request that only fits on paper would be bought for again and again."""
        found = offer.resources
        found["memory"] = found.get("memory", 0.0) * self.settings.usable_memory
        for key in seen_keys(offer):
            if amounts := self.seen_resources.get(key):
                found.update(amounts)
                break
        return found


def price_of(nodes: tuple[NodeView, ...]) -> int:
    """What the alive nodes cost per hour. A node without a price counts nothing here and is said so on the receipt."""
    return sum(node.requested.offer.price_uusd_per_h or 0 for node in nodes)
