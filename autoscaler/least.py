"""Jobs that need more workers at once than a limit allows, whoever else is there: nothing is bought for them. Pure.

Such a job never starts, so a part of its nodes would be paid for nothing, and would take the room of others. Only what
no other demand can change is looked at here, a limit against the least that so many workers take of it, on what is sold
or there already: so the answer is the same at every tick. Who waits for room that others have is planned for, as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.limits import Bound
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer, Resources, Wish

_EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Allowed:
    """How many workers limits allow at all."""

    bounds: Sequence[Bound]
    offers: Sequence[Offer]
    resources_of: Callable[[Offer], Resources]
    beside: Callable[[Shape], int] = lambda _: 0  # on nodes that nobody bought
    _known: dict[tuple[Shape, str], list[tuple[Bound, float]]] = field(default_factory=dict)

    def short_of(self, wish: Wish, tenant: str) -> tuple[Bound, int] | None:
        """The first limit that allows fewer than the job needs at once, and how many."""
        if not wish.min_workers:
            return None
        shape = Shape.of(wish.resources, wish.labels)
        for bound, least in self._least(shape, tenant):
            if least * wish.min_workers > bound.most + _EPSILON:
                most = max(0, int(bound.most / least + _EPSILON)) + self.beside(shape)
                if most < wish.min_workers:
                    return bound, most
        return None

    def _least(self, shape: Shape, tenant: str) -> list[tuple[Bound, float]]:
        """What one worker takes at least of each limit that is about everything it fits on."""
        if (shape, tenant) not in self._known:
            fitting = self._on(shape)
            about = (
                bound
                for bound in (self.bounds if fitting else ())
                if not bound.is_rate and all(bound.is_about(offer, (tenant,)) for offer, _ in fitting)
            )
            self._known[shape, tenant] = [
                (bound, min(bound.weigh(offer) / copies for offer, copies in fitting)) for bound in about
            ]
        return self._known[shape, tenant]

    def _on(self, shape: Shape) -> list[tuple[Offer, int]]:
        allowed = [offer for offer in self.offers if shape.allows(offer.labels)]
        found = ((offer, offer.hosts * shape.copies_in(self.resources_of(offer))) for offer in allowed)
        return [(offer, copies) for offer, copies in found if copies]


def without_those_that_never_start(
    demand: Demand, wishes: Sequence[Wish], allowed: Callable[[Wish], tuple[Bound, int] | None]
) -> tuple[Demand, tuple[Hold, ...]]:
    """What is planned for, and what is not. `wishes`: of jobs that have not started."""
    holds: dict[str, Hold] = {}
    for wish in wishes:
        if found := allowed(wish):
            bound, most = found
            source = f"job {wish.job_id}"
            subject = f"{wish.min_workers} x {Shape.of(wish.resources, wish.labels)} ({source})"
            reason = f"it needs {wish.min_workers} workers at once, and {bound.name} allows {most}"
            holds[source] = Hold(subject, reason, jobs=(wish.job_id,))
    if not holds:
        return demand, ()
    needs = tuple(need for need in demand.needs if need.source not in holds)
    return Demand(needs, demand.gangs, demand.constraints), tuple(holds.values())
