"""Wishes and limits -> how many replicas each training job is granted. Pure; first version.

Every job gets its minimum, in the order of the wishes; then all grow in turn, replica by replica, towards their
maximum, for as long as the limits would let the cheapest fitting offers carry them. A limit on some offers counts for a
job when it has no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tradewind.autoscaler.least import Allowed
from tradewind.autoscaler.limits import NOBODY, Bound, Limits, bounds_of
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer, Resources, Target, Wish


@dataclass(frozen=True, slots=True)
class _Replica:
    """One replica of a job: on the cheapest offer that fits its workers. Without an offer it is free: the job may find
    room on nodes that nobody bought for it."""

    tenant: str
    fitting: Sequence[Offer] = ()
    offer: Offer | None = None
    nodes: float = 0.0  # of the offer
    can_start: bool = True  # whether the limits allow as many as the job needs at once

    def weight(self, bound: Bound) -> float:
        """What it takes of a bound."""
        if self.offer is None or not all(bound.is_about(offer, (self.tenant,)) for offer in self.fitting):
            return 0.0
        return bound.weigh(self.offer) * self.nodes


@dataclass(frozen=True, slots=True)
class Allocation:
    """What each job is granted, and how that was found."""

    targets: dict[str, Target] = field(default_factory=dict)
    wishes: tuple[Wish, ...] = ()
    replicas: tuple[_Replica, ...] = ()
    bounds: tuple[Bound, ...] = ()
    weights: tuple[tuple[float, ...], ...] = ()  # of a replica of each job, by bound

    def held_back_by(self, job_id: str) -> list[str]:
        """The limits without which the job would be granted more. Only of what it takes something itself."""
        index = next(i for i, wish in enumerate(self.wishes) if wish.job_id == job_id)
        mine = [i for i, weight in enumerate(self.weights[index]) if weight]
        return [self.bounds[i].name for i in mine if self._without(i)[index] > self.targets[job_id].replicas]

    def _without(self, bound: int) -> list[int]:
        rest = [i for i in range(len(self.bounds)) if i != bound]
        weights = [[each[i] for i in rest] for each in self.weights]
        return _share(self.wishes, self.replicas, weights, [self.bounds[i] for i in rest])


def allocate(
    wishes: Iterable[Wish],
    limits: Limits,
    offers: Sequence[Offer],
    resources_of: Callable[[Offer], Resources] = lambda offer: offer.resources,
    previous: Mapping[str, Target] | None = None,
    tenant_of: Mapping[str, str] | None = None,  # by job id
) -> dict[str, Target]:
    """A target per job. The epoch rises when the number changes, and only then."""
    return grant(wishes, limits, offers, resources_of, previous, tenant_of).targets


def grant(
    wishes: Iterable[Wish],
    limits: Limits,
    offers: Sequence[Offer],
    resources_of: Callable[[Offer], Resources],
    previous: Mapping[str, Target] | None = None,
    tenant_of: Mapping[str, str] | None = None,
    taken: Callable[[Bound], float] = lambda _: 0.0,  # of each bound, by others than these jobs
) -> Allocation:
    """`allocate`, with how it was found."""
    wishes, whose = tuple(wishes), tenant_of or {}
    replicas = tuple(_replica(wish, offers, resources_of, whose.get(wish.job_id, NOBODY)) for wish in wishes)
    found = [bound for bound in bounds_of(limits, {each.tenant for each in replicas}) if not bound.is_rate]
    allowed = Allowed(found, offers, resources_of)
    replicas = tuple(
        replace(each, can_start=allowed.short_of(wish, each.tenant) is None)
        for each, wish in zip(replicas, wishes, strict=True)
    )
    bounds = tuple(replace(bound, most=bound.most - taken(bound)) for bound in found)
    weights = tuple(tuple(replica.weight(bound) for bound in bounds) for replica in replicas)
    granted = _share(wishes, replicas, weights, bounds)
    targets = {
        wish.job_id: _target((previous or {}).get(wish.job_id), count, wish.replica_workers)
        for wish, count in zip(wishes, granted, strict=True)
    }
    return Allocation(targets, wishes, replicas, bounds, weights)


def _share(
    wishes: Sequence[Wish], replicas: Sequence[_Replica], weights: Sequence[Sequence[float]], bounds: Sequence[Bound]
) -> list[int]:
    """The minimum is granted whatever the limits say: whether it can be bought is decided where it is bought. For one
    that can never start nothing is, so it leaves its room to others."""
    fitting = [replica.can_start for replica in replicas]
    granted = [wish.min_replicas for wish in wishes]
    taken = [
        [count * weight * fits for weight in each] for count, each, fits in zip(granted, weights, fitting, strict=True)
    ]
    left = [bound.most - sum(each[i] for each in taken) for i, bound in enumerate(bounds)]
    grew = True
    while grew:
        grew = False
        for i, wish in enumerate(wishes):
            after = [room - weight for room, weight in zip(left, weights[i], strict=True)]
            fits = all(room >= -1e-9 for room, weight in zip(after, weights[i], strict=True) if weight)
            if granted[i] < wish.max_replicas and fits and fitting[i]:
                granted[i], left, grew = granted[i] + 1, after, True
    return granted


def _replica(wish: Wish, offers: Sequence[Offer], resources_of: Callable[[Offer], Resources], tenant: str) -> _Replica:
    shape = Shape.of(wish.resources, wish.labels)
    found: list[tuple[float, int, Offer]] = []
    for offer in offers:
        copies = offer.hosts * shape.copies_in(resources_of(offer)) if shape.allows(offer.labels) else 0
        if copies and offer.price_uusd_per_h is not None:
            found.append((offer.price_uusd_per_h / copies, copies, offer))
    if not found:
        return _Replica(tenant)
    _, copies, cheapest = min(found, key=lambda row: row[0])
    return _Replica(tenant, [offer for _, _, offer in found], cheapest, wish.replica_workers / copies)


def _target(last: Target | None, replicas: int, replica_workers: int) -> Target:
    if last is not None and (last.replicas, last.replica_workers) == (replicas, replica_workers):
        return last
    return Target(epoch=last.epoch + 1 if last else 1, replicas=replicas, replica_workers=replica_workers)
