"""Wishes and limits -> how many replicas each training job is granted. Pure; first version.

Every job gets its minimum, in the order of the wishes; then all grow in turn, replica by replica, towards their
maximum, for as long as the limits on nodes and on dollars per hour would let the cheapest fitting offers carry them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.view import Limits
from tradewind.model import Offer, Resources, Target, Wish


@dataclass(frozen=True, slots=True)
class _Cost:
    """What one replica takes of the limits, on the cheapest offer that fits its workers."""

    nodes: float
    uusd_per_h: float


def allocate(
    wishes: Iterable[Wish],
    limits: Limits,
    offers: Sequence[Offer],
    resources_of: Callable[[Offer], Resources] = lambda offer: offer.resources,
    previous: Mapping[str, Target] | None = None,
) -> dict[str, Target]:
    """A target per job. The epoch rises when the number changes, and only then."""
    wishes = list(wishes)
    granted = _share(wishes, [_cost(wish, offers, resources_of) for wish in wishes], limits)
    return {
        wish.job_id: _target((previous or {}).get(wish.job_id), count, wish.replica_workers)
        for wish, count in zip(wishes, granted, strict=True)
    }


def _share(wishes: Sequence[Wish], costs: Sequence[_Cost], limits: Limits) -> list[int]:
    """The minimum is granted whatever the limits say: whether it can be bought is decided where it is bought."""
    granted = [wish.min_replicas for wish in wishes]
    grew = True
    while grew:
        grew = False
        for i, wish in enumerate(wishes):
            more = [*granted[:i], granted[i] + 1, *granted[i + 1 :]]
            if more[i] <= wish.max_replicas and _within(more, costs, limits):
                granted, grew = more, True
    return granted


def _within(granted: Sequence[int], costs: Sequence[_Cost], limits: Limits) -> bool:
    nodes = sum(count * cost.nodes for count, cost in zip(granted, costs, strict=True))
    uusd_per_h = sum(count * cost.uusd_per_h for count, cost in zip(granted, costs, strict=True))
    small = limits.max_nodes is None or nodes <= limits.max_nodes + 1e-9
    return small and (limits.max_uusd_per_h is None or uusd_per_h <= limits.max_uusd_per_h + 1e-9)


def _cost(wish: Wish, offers: Sequence[Offer], resources_of: Callable[[Offer], Resources]) -> _Cost:
    """Free when no offer fits: the job may find room on nodes that nobody bought for it."""
    shape, workers = Shape.of(wish.resources, wish.labels), wish.replica_workers
    costs = []
    for offer in offers:
        copies = offer.hosts * shape.copies_in(resources_of(offer)) if shape.allows(offer.labels) else 0
        if copies and offer.price_uusd_per_h is not None:
            costs.append(_Cost(workers / copies, workers * offer.price_uusd_per_h / copies))
    return min(costs, key=lambda cost: cost.uusd_per_h, default=_Cost(0.0, 0.0))


def _target(last: Target | None, replicas: int, replica_workers: int) -> Target:
    if last is not None and (last.replicas, last.replica_workers) == (replicas, replica_workers):
        return last
    return Target(epoch=last.epoch + 1 if last else 1, replicas=replicas, replica_workers=replica_workers)
