"""What is wanted at the moment, running or waiting, by tenant and shape: what the forecasts are about. Pure.

What jobs have stated is on record. What is asked for beside that, only Ray tells: it is put on record, too
(`DemandChanged`), so that the fold over the event log (forecast/demand_log.py) knows what is known here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.demand import pending_needs
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.forecast import (
    Part,
    SeriesKey,
    Told,
    asked_of,
    part_of,
    stated_by,
    states_workers,
    total_of,
    unit_of,
)
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.events import DemandChanged
from tradewind.model import Wish

NOBODY = "default"  # whose a request is counted as when nobody says
MOST_SERIES = 32  # that a cell tells of: the largest
WHOLE_S = 3600.0  # so often the whole list is told: whoever reads a part of the log knows what changes are about
CROWDED_S = 600.0  # ... and so often where there are more than that, and others may be the largest by now


def wanted_of(jobs: Iterable[JobRecord], asked: Mapping[SeriesKey, float]) -> dict[SeriesKey, float]:
    """By tenant and shape: what these jobs, which are open, have stated, and what is asked of Ray."""
    return total_of([*(stated_by(job.spec) for job in jobs), *asked.items()])


def asked_of_ray(snapshot: RaySnapshot, fleet: FleetState, wishes: Sequence[Wish]) -> dict[SeriesKey, float]:
    """Beside what jobs have stated: what is held, what waits, and what is to be kept at hand."""
    ray = _Ray.of(snapshot, {job.job_id: job for job in fleet.open_jobs}, wishes)
    ours = {node.ray_node_id for node in snapshot.nodes if node.launch_id in fleet.nodes}
    found = total_of([*ray.wished(), *ray.held(ours), *ray.waiting()])
    wanted = wanted_of(ray.jobs.values(), found) if snapshot.constraints else {}
    for key, more in ray.kept_at_hand(wanted):
        found[key] = found.get(key, 0.0) + more
    return found


def demand_change(
    asked: Mapping[SeriesKey, float], last: Told | None, cell: str, now_s: float, quiet_s: float
) -> list[DemandChanged]:
    """What is new, unless something was told within `quiet_s`: then it is told later. So tasks that come and go at any
    rate fill no log; and a busy cell tells what has changed, not all that is asked for. Nothing of it is rounded away:
    how often demand rose is what forecasts are made of."""
    if last is not None and 0 <= now_s - last.at_s < quiet_s:
        return []
    now = {key: round(amount, 4) for key, amount in asked.items() if round(amount, 4)}
    if last is None:
        return [_whole(now, cell, now_s)] if now else []
    known = set(last.keys)
    fresh = _largest_first({key: amount for key, amount in now.items() if key not in known})
    before = enumerate(zip(last.keys, last.amounts, strict=True))
    changes = tuple((place, now.get(key, 0.0)) for place, (key, amount) in before if now.get(key, 0.0) != amount)
    room, age_s = MOST_SERIES - len(last.keys), now_s - last.whole_at_s
    if (changes or fresh) and (not now or not 0 <= age_s < WHOLE_S or (len(fresh) > room and age_s >= CROWDED_S)):
        return [_whole(now, cell, now_s)]
    more = tuple(asked_of(*each) for each in fresh[:room])
    return [DemandChanged(at_s=now_s, cell=cell, asked=more, goes_on=True, changes=changes)] if changes or more else []


def _whole(now: Mapping[SeriesKey, float], cell: str, now_s: float) -> DemandChanged:
    largest = _largest_first(now)[:MOST_SERIES]
    return DemandChanged(at_s=now_s, cell=cell, asked=tuple(asked_of(*each) for each in largest))


def _largest_first(asked: Mapping[SeriesKey, float]) -> list[Part]:
    return sorted(asked.items(), key=lambda part: (-part[1], part[0]))


def lost_demand(fleet: FleetState, cells: Collection[str], now_s: float) -> list[DemandChanged]:
    """Of cells that the fleet no longer has, and that nobody else will tell of."""
    told = fleet.asked
    return [DemandChanged(at_s=now_s, cell=cell) for cell in sorted(told) if told[cell].wanted and cell not in cells]


@dataclass(frozen=True, slots=True)
class _Ray:
    snapshot: RaySnapshot
    jobs: Mapping[str, JobRecord]  # open ones
    wishes: Sequence[Wish]
    stating: frozenset[str]
    counted: frozenset[str]  # with those that wish
    owner: str  # of the queue

    @classmethod
    def of(cls, snapshot: RaySnapshot, jobs: Mapping[str, JobRecord], wishes: Sequence[Wish]) -> _Ray:
        """Ray does not say whose a request in its queue is: where all jobs that ask it are of one tenant, theirs."""
        stating = frozenset(job_id for job_id, job in jobs.items() if states_workers(job.spec))
        counted = stating | {wish.job_id for wish in wishes}
        asking = {job.spec.tenant for job_id, job in jobs.items() if job_id not in counted}
        return cls(snapshot, jobs, wishes, stating, counted, asking.pop() if len(asking) == 1 else NOBODY)

    def wished(self) -> Iterator[Part | None]:
        """Of jobs that told only when they ran how many workers they can use: their maximum, as of those that stated
        theirs."""
        for wish in self.wishes:
            if wish.job_id not in self.stating:
                yield part_of(self._tenant(wish.job_id), Shape.of(wish.resources, wish.labels), wish.max_workers)

    def held(self, ours: set[str]) -> Iterator[Part | None]:
        alike = Counter(
            (self._tenant(job_id), tuple(amounts.items()))
            for (job_id, ray_node_id), amounts in self.snapshot.holdings.items()
            if job_id not in self.counted and ray_node_id in ours
        )
        for (tenant, held), count in alike.items():
            yield part_of(tenant, Shape.of(dict(held)), count)

    def waiting(self) -> Iterator[Part | None]:
        for gang in self.snapshot.gangs:
            if gang.job_id not in self.counted:
                yield from (part_of(self._tenant(gang.job_id), bundle) for bundle in gang.bundles)
        if self.counted and self.counted >= self.jobs.keys():
            return  # the queue is theirs
        for need in pending_needs(self.snapshot, self.counted):
            yield part_of(self.owner, need.shape, need.count)

    def kept_at_hand(self, wanted: Mapping[SeriesKey, float]) -> Iterator[Part]:
        """`request_resources` is about the whole of the cluster: what is wanted anyway is a part of it."""
        for shape, count in self.snapshot.constraints:
            unit, number = unit_of(shape)
            served = sum(amount * unit.copies_in(dict(key.shape.resources)) for key, amount in wanted.items())
            if unit.resources and number * count > served:
                yield SeriesKey(self.owner, unit), number * count - served

    def _tenant(self, job_id: str) -> str:
        return self.jobs[job_id].spec.tenant if job_id in self.jobs else NOBODY
