"""The loop's view + the log -> what the contract policy sees of one job (`ContractView`). Pure.

Markets are the cheapest spot offers that fit, the one that the job is in, and the cheapest that are open. A market is
open unless it refused a moment ago (market.py), or the job is there; so one whose block is over is asked again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.contract.net_offer import net_of
from tradewind.autoscaler.contract.odds import Watch
from tradewind.autoscaler.contract.pricing import Priced, priced
from tradewind.autoscaler.contract.progress import (
    boot_s,
    has_begun,
    start_s,
    unsaved_s,
    warming_s,
    will_tell,
    work_of,
)
from tradewind.autoscaler.contract.room import Room, least, rooms_of
from tradewind.autoscaler.contract.view import ContractView, Running, SpotMarket
from tradewind.autoscaler.contract.watching import watch_of
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.limits import Bound, bounds_of
from tradewind.autoscaler.packing_stock import used_of, why_closed
from tradewind.autoscaler.ray_snapshot import RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import NodeView, View
from tradewind.model import Wish
from tradewind.states import NodeState

_MARKETS = 3  # spot offers that are looked at in any case
_OPEN = 2  # ... and those that are open


@dataclass(frozen=True, slots=True)
class Case:
    """One job with a contract at one moment. `contract` is None where nothing can be computed; `unknown` says why."""

    job: JobRecord
    wish: Wish
    here: tuple[NodeView, ...] = ()  # nodes that it is on, or that come for it; without those that leave
    contract: ContractView | None = None
    idle: Mapping[str, Priced] = field(default_factory=dict)  # spot markets with a node that is free
    net: str = ""  # the machine type that on-demand is to be of; empty: any
    unknown: str = ""
    basis: str = ""  # where the work comes from, in words
    is_stated: bool = False  # nothing but what the person said
    will_tell: bool = False  # ... until its first steps are taken
    has_begun: bool = False  # it has had machines, or still has


def case_of(
    job: JobRecord, wish: Wish, most: int, view: View, fleet: FleetState, tick_s: float, budget_left_uusd: int | None
) -> Case:
    """`most`: replicas that the limits leave; `tick_s`: until the next decision."""
    pace = fleet.paces.get(job.job_id)
    here = tuple(_here(job, view))
    held = _replicas(job, wish, here)
    work = work_of(job, pace, wish, most)
    if work is None:
        return Case(job, wish, here, unknown=_why_unknown(job))
    replicas = max(1, held, wish.min_replicas)  # fewer, while a node goes, are no size to run at
    fitting = priced(wish, work.speeds, view, pace.accelerator if pace else "")
    keys = frozenset(node.requested.offer.market.key for node in here)
    rooms = rooms_of(fitting, view.settings.limits, job.spec.tenant, _taken(job, view))
    net, is_named = net_of(job, pace, wish, rooms, keys, view)
    if net is None:
        return Case(job, wish, here, unknown="no on-demand offer fits it, so that nothing could be promised")
    # `most` is what the limits leave on the cheapest offer of all, and they may have become smaller.
    work = work_of(job, pace, wish, max(most, held, min(wish.max_replicas, net.replicas(wish)))) or work
    dear = net.priced
    boots_s = boot_s(view.knowledge, dear.offer.market, view.settings.usual_boot_s)
    restart_s = boots_s + start_s(pace) + unsaved_s(job, pace, work, replicas)
    spot = _spot(rooms, wish, keys, view)
    watch = watch_of((each.priced.key for each in spot), fleet.spells, fleet.prices, view.now_s)
    running = _running(job, wish, here, view.now_s, restart_s, fleet)
    found = ContractView(
        now_s=view.now_s,
        work_left_s=work.left_s,
        restart_s=restart_s,
        tick_s=tick_s,
        on_demand_key=dear.key,
        on_demand_uusd_per_h=dear.machine_uusd_per_h,
        deadline_at_s=job.spec.contract.deadline_at_s,
        budget_left_uusd=budget_left_uusd,
        spot=tuple(_market(each, wish, replicas if each.priced.key in keys else 0, watch, view) for each in spot),
        together=watch.any.tally,
        together_age_h=_age_h(watch.any.age_h(view.now_s)),
        running=running,
        speeds=work.speeds,
        on_demand_seats=dear.seats,
        on_demand_most=sure if (sure := net.replicas(wish)) >= least(wish) else sys.maxsize,
    )
    tells = work.is_stated and will_tell(pace, wish)
    idle = _idle(fitting, wish, view)
    named = dear.offer.market.instance_type if is_named else ""
    return Case(job, wish, here, found, idle, named, "", work.basis, work.is_stated, tells, has_begun(pace))


def _why_unknown(job: JobRecord) -> str:
    if job.spec.contract.work_s is not None:
        return "the work that was stated is done, and its steps do not tell how much is left"
    return "how much work it has is not known: neither its steps nor --work tell"


# --- where it is ----------------------------------------------------------------------------------------------------


def _here(job: JobRecord, view: View) -> Iterable[NodeView]:
    """Nodes with workers of the job; where there are none, those that were bought for it and nobody else uses."""
    alive = [node for node in view.nodes if not node.is_leaving]
    mine = [node for node in alive if node.launch_id in job.holdings]
    return mine or [node for node in alive if job.job_id in node.requested.jobs and not _is_used(node)]


def _is_used(node: NodeView) -> bool:
    return node.ray is not None and any(
        node.ray.available.get(name, 0.0) < amount - 1e-6 for name, amount in node.ray.total.items()
    )


def _replicas(job: JobRecord, wish: Wish, here: Iterable[NodeView]) -> int:
    shape = Shape.of(wish.resources)
    return sum(shape.copies_in(job.holdings.get(node.launch_id, {})) for node in here) // wish.replica_workers


def _running(
    job: JobRecord, wish: Wish, here: tuple[NodeView, ...], now_s: float, restart_s: float, fleet: FleetState
) -> Running | None:
    """In the market where most of it is. Nodes that come for it are where it will be, after a while."""
    if not here:
        return None
    offers = [node.requested.offer for node in here]
    keys = [offer.market.key for offer in offers]
    main = max(offers, key=lambda offer: (keys.count(offer.market.key), offer.market.key))
    held = _replicas(job, wish, here)
    asked_s = None if held else min(node.requested.requested_at_s for node in here)
    warming = warming_s(fleet.paces.get(job.job_id), restart_s, asked_s, now_s)
    return Running(main.market.key, main.market.capacity, max(1, held, wish.min_replicas), warming)


# --- what could be had ----------------------------------------------------------------------------------------------


def _taken(job: JobRecord, view: View) -> Callable[[Bound], float]:
    """Of limits, by others: not by nodes that the job is on, nor by those that come for it or that nobody uses."""
    used = used_of(view, bounds_of(view.settings.limits, view.tenants.known))
    coming = (node for node in view.stirring if job.job_id in node.requested.jobs and not _is_used(node))
    mine = (node for node in view.nodes if node.launch_id in job.holdings)
    free = (node for node in view.stirring if _is_free(node))
    offers = {node.launch_id: node.requested.offer for node in (*coming, *mine, *free)}.values()
    return lambda bound: used(bound) - sum(bound.weigh(offer) for offer in offers if bound.part.has(offer))


def _spot(rooms: list[Room], wish: Wish, keys: frozenset[str], view: View) -> list[Room]:
    """The cheapest that the limits leave room in for the least that it needs."""
    spot = [each for each in rooms if not each.priced.is_on_demand]
    cheap = [each for each in spot if each.replicas(wish) >= least(wish) or each.priced.key in keys]
    open_ = [each.priced.key for each in cheap if not why_closed(each.priced.offer, view)][:_OPEN]
    wanted = keys.union(open_)
    return [each for index, each in enumerate(cheap) if index < _MARKETS or each.priced.key in wanted]


def _idle(fitting: Iterable[Priced], wish: Wish, view: View) -> dict[str, Priced]:
    """Spot markets in which a node of ours is there, nobody uses it, and a worker fits on it. It is paid for, and need
    not boot."""
    shape = Shape.of(wish.resources, wish.labels)
    free = [node for node in view.stirring if _is_free(node) and node.ray and shape.allows(node.ray.labels)]
    keys = {node.requested.offer.market.key for node in free if node.ray and shape.copies_in(node.ray.available)}
    return {each.key: each for each in fitting if each.key in keys and not each.is_on_demand}


def _is_free(node: NodeView) -> bool:
    ready = node.requested.state is NodeState.READY and not node.is_leaving
    return ready and node.ray is not None and node.ray.status is RayStatus.IDLE


def _market(room: Room, wish: Wish, held: int, watch: Watch, view: View) -> SpotMarket:
    """`held`: by the job, there."""
    each, most = room.priced, max(room.replicas(wish), held)
    seen = watch.markets[each.key]
    is_open = held > 0 or not why_closed(each.offer, view)
    guessed_h = 0.0 if seen.is_up is False else 1e9  # its block is over: perhaps it has just come back
    age_h = seen.age_h(view.now_s) if seen.is_up is is_open else guessed_h
    return SpotMarket(each.key, each.machine_uusd_per_h, is_open, _age_h(age_h), seen.tally, each.seats, most)


def _age_h(age_h: float) -> float:
    return min(max(age_h, 0.0), 1e9)
