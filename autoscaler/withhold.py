"""Demand of a tenant that has reached a limit of its own is not planned for. Pure.

Nothing may be bought for it, and it must not stand on the plan of what others have bought either: they would then buy a
second time. In Ray it still runs where there is room. What fits on nodes that were bought for the tenant itself, there
or coming, is planned for: mostly it is they that reach the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tradewind.autoscaler.actions import Hold
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.limits import Bound, Tenants
from tradewind.autoscaler.packing import Packing, Slot
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
    slots_of: Callable[[frozenset[str]], Sequence[Slot]] = lambda _: ()  # of the nodes of these tenants

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
    limits: dict[str, str] = {}  # by who asks
    theirs: dict[frozenset[str], list[Need | Gang]] = {}
    everything: list[Need | Gang] = [*demand.needs, *demand.gangs]
    for asked in everything:
        whose = frozenset(room.tenants.of_jobs(jobs_in(source_of(asked), gangs)))
        if limit := room.limit_on([asked.shape] if isinstance(asked, Need) else pieces_of(asked), whose):
            limits[source_of(asked)] = limit
            theirs.setdefault(whose, []).append(asked)
    without = [left for whose, asked in theirs.items() for left in _without_place(asked, room.slots_of(whose))]
    holds = tuple(_hold(left, limits[source_of(left)], gangs) for left in without)
    return less(demand, without), holds


def _without_place(asked: Sequence[Need | Gang], slots: Sequence[Slot]) -> Sequence[Need | Gang]:
    if not slots:
        return asked
    needs = tuple(each for each in asked if isinstance(each, Need))
    gangs = tuple(each for each in asked if isinstance(each, Gang))
    return Packing(slots).fill(Demand(needs, gangs)).unplaced


def less(demand: Demand, without: Sequence[Need | Gang]) -> Demand:
    """The same without these, which are what is left of its needs, and whole gangs of it."""
    lacking = {(left.shape, left.source): left.count for left in without if isinstance(left, Need)}
    needs = (replace(need, count=need.count - lacking.get((need.shape, need.source), 0)) for need in demand.needs)
    return replace(
        demand,
        needs=tuple(need for need in needs if need.count > 0),
        gangs=tuple(gang for gang in demand.gangs if gang not in without),
    )


def source_of(asked: Need | Gang) -> str:
    return asked.source if isinstance(asked, Need) else gang_source(asked)


def _hold(left: Need | Gang, limit: str, gangs: Mapping[str, str]) -> Hold:
    return Hold(subject_of(left), f"{limit} is reached", jobs=tuple(jobs_in(source_of(left), gangs)))


def subject_of(left: Need | Gang) -> str:
    source = source_of(left)
    return f"{left.count} x {left.shape} ({source})" if isinstance(left, Need) else source
