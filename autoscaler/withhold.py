"""Demand of a tenant that has reached a limit of its own is not planned for. Pure.

Nothing may be bought for it, and it must not stand on the plan of what others have bought either: they would then buy a
second time. In Ray it still runs where there is room.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.limits import Bound, Tenants
from tradewind.autoscaler.packing_rules import gang_source, pieces_of
from tradewind.autoscaler.packing_stock import jobs_in
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer, Resources


@dataclass(frozen=True, slots=True)
class Room:
    """What the limits of tenants leave, and what could be bought at all."""

    left: Sequence[tuple[Bound, float]]
    tenants: Tenants
    offers: Sequence[Offer]
    resources_of: Callable[[Offer], Resources]

    def limit_on(self, shapes: Iterable[Shape], whose: Iterable[str]) -> str:
        """The limit that stands in the way of every offer for one of these shapes; nothing: one may be bought."""
        for tenant in sorted(whose):
            passed = [self._passed(offer, tenant) for offer in self.offers]
            if any(passed):
                for shape in shapes:
                    mine = [name for offer, name in zip(self.offers, passed, strict=True) if self._fits(offer, shape)]
                    if mine and all(mine):
                        return mine[0]
        return ""

    def _passed(self, offer: Offer, tenant: str) -> str:
        tight = (b.name for b, left in self.left if b.is_about(offer, (tenant,)) and b.weigh(offer) > left + 1e-9)
        return next(tight, "")

    def _fits(self, offer: Offer, shape: Shape) -> bool:
        return shape.allows(offer.labels) and shape.copies_in(self.resources_of(offer)) > 0


def withhold(demand: Demand, room: Room) -> tuple[Demand, tuple[Hold, ...]]:
    """What is planned for, and what is not. Constraints always are: they are met by totals, so they take no room from
    others, and a node that was bought for them would be sold and bought again. The caps keep more from being bought."""
    gangs = {gang_source(gang): gang.job_id for gang in demand.gangs}
    holds: list[Hold] = []

    def is_planned(asked: Need | Gang) -> bool:
        hold = _hold(asked, room, gangs)
        holds.extend([hold] if hold else [])
        return hold is None

    planned = Demand(
        tuple(need for need in demand.needs if is_planned(need)),
        tuple(gang for gang in demand.gangs if is_planned(gang)),
        demand.constraints,
    )
    return planned, tuple(holds)


def _hold(asked: Need | Gang, room: Room, gangs: Mapping[str, str]) -> Hold | None:
    source = asked.source if isinstance(asked, Need) else gang_source(asked)
    job_ids = jobs_in(source, gangs)
    shapes = [asked.shape] if isinstance(asked, Need) else pieces_of(asked)
    limit = room.limit_on(shapes, room.tenants.of_jobs(job_ids))
    if not limit:
        return None
    subject = f"{asked.count} x {asked.shape} ({source})" if isinstance(asked, Need) else source
    return Hold(subject, f"{limit} is reached", jobs=tuple(job_ids))
