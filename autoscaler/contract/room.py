"""How many workers of one job the fleet's limits leave on each offer, beside others or were nobody else there. Pure.

Stands beside pricing.py, and like it answers all who ask: the running policy (live.py), `tradewind plan`, and what is
promised at submission.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tradewind.autoscaler.contract.pricing import Priced
from tradewind.autoscaler.limits import Bound, Limits, bounds_of
from tradewind.model import Offer, Wish


@dataclass(frozen=True, slots=True)
class Room:
    priced: Priced
    workers: int
    limit: Bound | None = None  # the tightest

    def replicas(self, wish: Wish) -> int:
        return self.workers // wish.replica_workers


def least(wish: Wish) -> int:
    """Replicas without which it does not run."""
    return max(wish.min_replicas, 1)


def rooms_of(
    fitting: Iterable[Priced], limits: Limits, tenant: str, taken: Callable[[Bound], float] = lambda _: 0.0
) -> list[Room]:
    """In the same order. `taken`: by others, of a bound. Without rates: they say when, not what."""
    found = (bound for bound in bounds_of(limits, (tenant,)) if not bound.is_rate)
    bounds = [replace(bound, most=bound.most - taken(bound)) for bound in found]
    return [_room(each, bounds, tenant) for each in fitting]


def _room(priced: Priced, bounds: Sequence[Bound], tenant: str) -> Room:
    offer = priced.offer
    about = [bound for bound in bounds if bound.is_about(offer, (tenant,)) and bound.weigh(offer)]
    if not about:
        return Room(priced, sys.maxsize)
    limit = min(about, key=lambda bound: _nodes(offer, bound))
    return Room(priced, _nodes(offer, limit) * priced.copies, limit)


def _nodes(offer: Offer, bound: Bound) -> int:
    return max(int(bound.most / bound.weigh(offer) + 1e-9), 0)
