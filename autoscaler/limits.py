"""What no forecast and no bug may pass: of the fleet, and of parts of it (a cloud, a region, a quota, a tenant). Pure.

Every limit becomes bounds, one for each number in it. They are held three times: when workers are granted
(allocate.py), when nodes are chosen (packing_stock.py turns them into caps), and again just before each launch
(reconcile.py, by `Gate`). docs/designs/limits.md tells whose a node is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.model import Capacity, Offer, Role
from tradewind.states import NodeState, is_alive
from tradewind.units import format_usd

EACH = "*"  # in the place of a tenant: for each of them by itself
NOBODY = "default"  # whose something is when nobody says
COUNTED_S = 60.0  # launches per minute


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the fleet. What is left empty is any."""

    cloud: str = ""
    region: str = ""
    zone: str = ""
    instance_type: str = ""
    accelerator: str = ""
    capacity: tuple[Capacity, ...] = ()
    tenant: str = ""  # or EACH

    @property
    def is_everywhere(self) -> bool:
        """Whoever's it is."""
        return not (self.cloud or self.region or self.zone or self.instance_type or self.accelerator or self.capacity)

    def has(self, offer: Offer) -> bool:
        market = offer.market
        return (
            self.cloud in ("", market.cloud)
            and self.region in ("", market.region)
            and self.zone in ("", market.zone)
            and self.instance_type in ("", market.instance_type)
            and self.accelerator in ("", offer.accelerator)
            and (not self.capacity or market.capacity in self.capacity)
        )

    def __str__(self) -> str:
        """ " of tenant research in aws us-east-1"; empty for the whole fleet."""
        places = [self.cloud, self.region, self.zone, self.instance_type, self.accelerator, *self.capacity]
        place = " ".join(word for word in places if word)
        tenant = f" of tenant {self.tenant}" if self.tenant else ""
        return f"{tenant} in {place}" if place else tenant


@dataclass(frozen=True, slots=True)
class Rule:
    """Limits on one part of the fleet. None: no limit."""

    part: Part
    max_nodes: int | None = None
    max_uusd_per_h: int | None = None
    max_accelerators: float | None = None
    launches_per_minute: int | None = None

    def __post_init__(self) -> None:
        _check(self, ("max_nodes", "max_uusd_per_h", "max_accelerators", "launches_per_minute"))


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the whole fleet, and rules for parts of it."""

    max_nodes: int | None = None
    max_uusd_per_h: int | None = None
    launches_per_minute: int | None = 60
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        _check(self, ("max_nodes", "max_uusd_per_h", "launches_per_minute"))

    @property
    def all_rules(self) -> tuple[Rule, ...]:
        whole = Rule(Part(), self.max_nodes, self.max_uusd_per_h, None, self.launches_per_minute)
        return (whole, *self.rules)

    @property
    def are_about_tenants(self) -> bool:
        return any(rule.part.tenant for rule in self.rules)


def _check(limits: Rule | Limits, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(limits, name)
        if value is not None and value < 0:
            raise ValueError(f"{name} cannot be negative: {value}")


_WHOLE = Part()


# --- bounds -------------------------------------------------------------------------------------------------------


def _one(offer: Offer) -> float:  # noqa: ARG001
    return 1.0


def _price(offer: Offer) -> float:
    return float(offer.price_uusd_per_h or 0)


def _accelerators(offer: Offer) -> float:
    return offer.accelerator_count * offer.hosts


@dataclass(frozen=True, slots=True)
class Bound:
    """One number that is not passed."""

    name: str  # as people read it: "the limit of 4 nodes of tenant research"
    part: Part
    most: float
    weigh: Callable[[Offer], float]  # what one launch takes of it
    is_rate: bool = False  # counts the launches of the last minute, not what is there

    @property
    def is_money(self) -> bool:
        return self.weigh is _price

    @property
    def is_count(self) -> bool:
        return self.weigh is _one

    def is_about(self, offer: Offer, tenants: Collection[str]) -> bool:
        return self.part.has(offer) and (not self.part.tenant or self.part.tenant in tenants)


def bounds_of(limits: Limits, tenants: Iterable[str] = ()) -> tuple[Bound, ...]:
    """In the order in which they are named when several are reached. `tenants` are those that there are."""
    return _bounds_of(limits, tuple(sorted(set(tenants))))


@lru_cache(maxsize=64)  # every tick asks for them several times
def _bounds_of(limits: Limits, tenants: tuple[str, ...]) -> tuple[Bound, ...]:
    return tuple(
        bound for rule in limits.all_rules for part in _parts(rule.part, tenants) for bound in _bounds(rule, part)
    )


def _parts(part: Part, tenants: Iterable[str]) -> Iterator[Part]:
    if part.tenant != EACH:
        yield part
        return
    for tenant in tenants:
        yield Part(part.cloud, part.region, part.zone, part.instance_type, part.accelerator, part.capacity, tenant)


def _bounds(rule: Rule, part: Part) -> Iterator[Bound]:
    if rule.max_nodes is not None:
        yield Bound(f"the limit of {_count(rule.max_nodes, 'node')}{part}", part, rule.max_nodes, _one)
    if rule.launches_per_minute is not None:
        name = f"the limit of {_count(rule.launches_per_minute, 'launch', 'es')} per minute{part}"
        yield Bound(name, part, rule.launches_per_minute, _one, is_rate=True)
    if rule.max_accelerators is not None:
        name = f"the limit of {_count(rule.max_accelerators, 'accelerator')}{part}"
        yield Bound(name, part, rule.max_accelerators, _accelerators)
    if rule.max_uusd_per_h is not None:
        name = f"the limit of {format_usd(rule.max_uusd_per_h)} per hour{part}"
        yield Bound(name, part, rule.max_uusd_per_h, _price)


def _count(number: float, noun: str, plural: str = "s") -> str:
    return f"{number if isinstance(number, int) else f'{number:g}'} {noun}{'' if number == 1 else plural}"


# --- whose ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tenants:
    """Whose jobs and nodes are.

    A node is of the tenants whose jobs hold something on it; while nobody does, of those for whom it was bought.
    Requests of which Ray does not say whose they are may be of any job that asks Ray by itself: they are counted for
    all tenants that have such a job, since a limit that might be passed is passed."""

    of_job: Mapping[str, str] = field(default_factory=dict)
    askers: frozenset[str] = frozenset({NOBODY})
    of_node: Mapping[str, frozenset[str]] = field(default_factory=dict)  # by launch id

    @classmethod
    def of(cls, fleet: FleetState) -> Tenants:
        jobs, held = fleet.open_jobs, dict[str, set[str]]()
        for job in jobs:
            for launch_id in job.holdings:
                held.setdefault(launch_id, set()).add(job.spec.tenant)
        return cls(
            {job.job_id: job.spec.tenant for job in jobs},
            frozenset(job.spec.tenant for job in jobs if not job.spec.max_workers) or frozenset({NOBODY}),
            {node.launch_id: frozenset(held.get(node.launch_id) or node.tenants) for node in fleet.alive_nodes},
        )

    @property
    def known(self) -> frozenset[str]:
        return self.askers.union(self.of_job.values(), *self.of_node.values())

    def of_jobs(self, job_ids: Iterable[str]) -> frozenset[str]:
        """For whom something is bought on behalf of these jobs; where nobody says, for whoever may be asking."""
        return frozenset(self.of_job.get(job_id, NOBODY) for job_id in job_ids) or self.askers


@dataclass(slots=True)
class Lot:
    """Nodes of one offer and the same tenants: limits are checked for each lot, not for each node."""

    offer: Offer
    count: int = 0
    tenants: frozenset[str] = frozenset()


def lots_of(nodes: Iterable[NodeRecord], tenants: Tenants) -> list[Lot]:
    if not tenants.of_node:  # no limit asks whose they are
        offers = [node.offer for node in nodes]
        keys = list(map(id, offers))
        by_id = dict(zip(keys, offers, strict=True))
        return [Lot(by_id[key], count) for key, count in Counter(keys).items()]
    found: dict[tuple[int, frozenset[str]], Lot] = {}
    for node in nodes:
        whose = tenants.of_node.get(node.launch_id) or frozenset(node.tenants)
        key = (id(node.offer), whose)  # the record keeps one object for offers that are equal
        if key not in found:
            found[key] = Lot(node.offer, tenants=whose)
        found[key].count += 1
    return list(found.values())


def used(bound: Bound, lots: Iterable[Lot]) -> float:
    part, weigh = bound.part, bound.weigh
    mine = lots if part == _WHOLE else [lot for lot in lots if bound.is_about(lot.offer, lot.tenants)]
    return float(sum([lot.count if weigh is _one else lot.count * weigh(lot.offer) for lot in mine]))


def launched_since(nodes: Iterable[NodeRecord], since_s: float) -> list[NodeRecord]:
    """Refused launches are not counted: failing over is not buying."""
    return [node for node in nodes if node.requested_at_s > since_s and node.state is not NodeState.FAILED]


def left_of(limits: Limits, fleet: FleetState, tenants: Tenants, now_s: float) -> list[tuple[Bound, float]]:
    """What each bound leaves, by the record."""
    counting = (*fleet.alive_nodes, *fleet.nodes.launched_since(now_s - COUNTED_S))  # some are gone already
    counted = Counted.of({node.launch_id: node for node in counting}.values(), tenants, now_s)
    return [(bound, bound.most - counted.used(bound)) for bound in bounds_of(limits, tenants.known)]


@dataclass(frozen=True, slots=True)
class Counted:
    """What counts against which bound. The head of a cell costs money like any other node, but nobody who allows so
    many nodes thinks of it."""

    paid: Sequence[Lot] = ()
    workers: Sequence[Lot] = ()
    fresh: Sequence[Lot] = ()  # of the last minute

    @classmethod
    def of(cls, nodes: Collection[NodeRecord], tenants: Tenants, now_s: float) -> Counted:
        # By identity and local names: this runs over the whole fleet.
        failed, gone, worker = NodeState.FAILED, NodeState.GONE, Role.WORKER
        alive = [node for node in nodes if (state := node.state) is not failed and state is not gone]
        workers = [node for node in alive if node.role is worker]
        paid = lots_of(alive, tenants)
        counted = paid if len(workers) == len(alive) else lots_of(workers, tenants)
        return cls(paid, counted, lots_of(launched_since(nodes, now_s - COUNTED_S), tenants))

    @classmethod
    def of_workers(cls, nodes: Sequence[NodeRecord], tenants: Tenants, since_s: float | None) -> Counted:
        """Of nodes that are known to be alive, and workers. Launches are counted since then; None: not at all."""
        lots = lots_of(nodes, tenants)
        return cls(lots, lots, () if since_s is None else lots_of(launched_since(nodes, since_s), tenants))

    @classmethod
    def everywhere(cls, fleet: FleetState, tenants: Tenants) -> Counted | None:
        """All that is alive, as it is counted already, without launches. None: limits ask whose nodes are, so each must
        be looked at."""
        if tenants.of_node:
            return None
        workers, heads = ([Lot(*each) for each in found] for found in fleet.census.everywhere())
        return cls([*workers, *heads], workers)

    @classmethod
    def beside(cls, fleet: FleetState, launched: Iterable[NodeRecord], tenants: Tenants, now_s: float) -> Counted:
        """All that is not a worker of this part of the fleet: other cells, and heads. `launched` in the last minute.
        Where limits ask whose nodes are, each is looked at; otherwise they are counted already."""
        if tenants.of_node:
            return cls.of([node for node in fleet.whole.alive_nodes if _is_beside(node, fleet)], tenants, now_s)
        if not fleet.is_part:
            return cls.of([node for node in fleet.alive_nodes if node.role is not Role.WORKER], tenants, now_s)
        workers, heads = ([Lot(*each) for each in found] for found in fleet.census.beside_the_workers_of(fleet.name))
        fresh = [node for node in launched if is_alive(node.state) and _is_beside(node, fleet)]
        return cls([*workers, *heads], workers, lots_of(fresh, tenants))

    def used(self, bound: Bound) -> float:
        if bound.is_rate:
            return used(bound, self.fresh)
        return used(bound, self.paid if bound.is_money else self.workers)


def _is_beside(node: NodeRecord, fleet: FleetState) -> bool:
    return node.role is not Role.WORKER or node.launch_id not in fleet.nodes


class Gate:
    """The last one before a launch: what each bound leaves by the record, counted down with every launch."""

    def __init__(self, fleet: FleetState, limits: Limits, now_s: float) -> None:
        self._by_tenant = limits.are_about_tenants
        self.tenants = Tenants.of(fleet) if self._by_tenant else Tenants()
        self._left = left_of(limits, fleet, self.tenants, now_s)

    def admit(self, offer: Offer, job_ids: Iterable[str] = (), role: Role = Role.WORKER) -> tuple[str, frozenset[str]]:
        """The limit that one more of these would pass (nothing: it may be launched, and is counted), and the tenants
        for whom it then counts: those of the jobs, as far as they have room for it. Where it is not known for whom it
        is, everybody who may be asking must have room."""
        passed, tenants = self.ask(offer, job_ids, role)
        if not passed:
            self.count(offer, tenants, role)
        return passed, tenants

    def ask(self, offer: Offer, job_ids: Iterable[str] = (), role: Role = Role.WORKER) -> tuple[str, frozenset[str]]:
        """As `admit`, and nothing is counted: others may still be against it."""
        if role is Role.HEAD:
            return self._passed_by_head(offer), frozenset()
        named = frozenset(self.tenants.of_job.get(job_id, NOBODY) for job_id in job_ids)
        passed = {tenant: self._passed(offer, tenant) for tenant in sorted(named or self.tenants.askers)}
        fine = frozenset(tenant for tenant, name in passed.items() if not name)
        if not fine or (not named and len(fine) < len(passed)):
            return next(name for name in passed.values() if name), frozenset()
        return "", fine if self._by_tenant else frozenset()

    def count(self, offer: Offer, tenants: Collection[str], role: Role = Role.WORKER) -> None:
        """One of these is launched, for these tenants."""
        self._left = [
            (bound, left - bound.weigh(offer) if _counts(bound, offer, tenants, role) else left)
            for bound, left in self._left
        ]

    def passed(self, offer: Offer) -> str:
        """The limit that one more would pass, whoever it is for; of limits on tenants nothing is said."""
        return self._passed(offer, "")

    def _passed_by_head(self, offer: Offer) -> str:
        about = ((bound, left) for bound, left in self._left if _counts(bound, offer, (), Role.HEAD))
        return next((bound.name for bound, left in about if bound.weigh(offer) > left + 1e-9), "")

    def _passed(self, offer: Offer, tenant: str) -> str:
        tight = (b for b, left in self._left if b.is_about(offer, (tenant,)) and b.weigh(offer) > left + 1e-9)
        return next((bound.name for bound in tight), "")


def _counts(bound: Bound, offer: Offer, tenants: Collection[str], role: Role) -> bool:
    """A head is nobody's, and counts as money and as a launch."""
    return bound.is_about(offer, tenants) and (role is not Role.HEAD or bound.is_money or bound.is_rate)
