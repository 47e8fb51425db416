"""What is wanted at the moment, running or waiting, by tenant and shape: what the forecasts are about. Pure.

The same rules as the fold over the event log (forecast/series.py), so that a series goes on after a start where it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.forecast import SeriesKey, unit_of
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.model import Target, Wish

NOBODY = "default"  # whose a request is counted as when nobody says


def wanted_of(
    snapshot: RaySnapshot, open_jobs: Iterable[JobRecord], wishes: Iterable[Wish], targets: Mapping[str, Target]
) -> dict[SeriesKey, float]:
    """By tenant and shape. Where all jobs that ask Ray themselves are of one tenant, what waits in Ray's queue is its.

    A job that states its workers wants what it is granted, or its maximum while that is not decided. Of others, what
    they hold and what waits in Ray."""
    jobs = {job.job_id: job for job in open_jobs}
    found: dict[SeriesKey, float] = defaultdict(float)
    stated = {job_id: (dict(job.spec.worker_resources), job.spec.max_workers) for job_id, job in jobs.items()}
    labels = {job_id: job.spec.worker_labels for job_id, job in jobs.items()}
    for wish in wishes:
        stated[wish.job_id], labels[wish.job_id] = (dict(wish.resources), wish.max_workers), wish.labels
    stating = {job_id for job_id, (resources, most) in stated.items() if resources and most}
    for job_id in stating:
        resources, most = stated[job_id]
        key = SeriesKey(_tenant(jobs, job_id), Shape.of(resources, labels[job_id]))
        found[key] += targets[job_id].workers if job_id in targets else most
    for tenant, shape, count in _asked_of_ray(snapshot, jobs, stating):
        unit, number = unit_of(shape)
        if unit.resources:
            found[SeriesKey(tenant, unit)] += number * count
    return dict(found)


def _asked_of_ray(
    snapshot: RaySnapshot, jobs: Mapping[str, JobRecord], stating: set[str]
) -> Iterable[tuple[str, Shape, int]]:
    for (job_id, _), amounts in snapshot.holdings.items():
        if job_id not in stating:
            yield _tenant(jobs, job_id), Shape.of(amounts), 1
    for gang in snapshot.gangs:
        if gang.job_id not in stating:
            for bundle in gang.bundles:
                yield _tenant(jobs, gang.job_id), bundle, 1
    others = {job.spec.tenant for job in jobs.values() if job.job_id not in stating}
    if stating and not others:
        return  # the queue is theirs, and counted
    owner = next(iter(others)) if len(others) == 1 else NOBODY
    for shape, count in snapshot.pending:
        yield owner, shape, count


def _tenant(jobs: Mapping[str, JobRecord], job_id: str) -> str:
    return jobs[job_id].spec.tenant if job_id in jobs else NOBODY
