"""Jobs that were sent past us (plain `ray job submit`, or a driver by hand): put on record when seen. Pure.

The submission's metadata may carry `name`, `tenant`, `budget` ("12.50"), `deadline` ("6h", from the submission on) and
`work` ("48h", of one replica).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.autoscaler.ray_snapshot import RayJob, RaySnapshot
from tradewind.autoscaler.shape import add_up
from tradewind.events import AnyEvent, HoldingChanged, JobStateChanged, JobSubmitted
from tradewind.model import Contract, JobSpec
from tradewind.states import JOB_TRANSITIONS, JobState, is_over
from tradewind.units import parse_duration_s, parse_usd

logger = logging.getLogger(__name__)


def adoptions(snapshot: RaySnapshot, fleet: FleetState, now_s: float, cell: str = "") -> list[AnyEvent]:
    """New foreign jobs, and the changes of those that are known. Our own jobs are the controller's affair."""
    found: list[AnyEvent] = []
    for job in _one_per_id(snapshot.jobs):
        known = fleet.jobs.get(job.job_id)
        if known is None and (job.submission_id or not job.is_dead) and not fleet.is_elsewhere(job.job_id):
            at_s = job.started_at_s or now_s
            found.append(JobSubmitted(at_s=at_s, job_id=job.job_id, spec=_spec(job), foreign=True, cell=cell))
            found.extend(_changes(job, JobState.QUEUED, now_s))
        elif known is not None and known.foreign:
            found.extend(_changes(job, known.state, now_s))
    return found


def holding_changes(snapshot: RaySnapshot, fleet: FleetState, now_s: float) -> list[AnyEvent]:
    """What jobs hold on our nodes now, where it differs from the record."""
    launch_ids = {node.ray_node_id: node.launch_id for node in snapshot.nodes if node.launch_id in fleet.nodes}
    now_held: dict[tuple[str, str], dict[str, float]] = {}
    for (job_id, ray_node_id), amounts in snapshot.holdings.items():
        if job_id in fleet.jobs and ray_node_id in launch_ids:
            key = (job_id, launch_ids[ray_node_id])
            both = add_up([now_held.get(key, {}), amounts])  # a slice has several Ray nodes
            now_held[key] = {name: round(amount, 4) for name, amount in sorted(both.items())}
    before = {(job.job_id, launch_id): held for job in _holders(fleet) for launch_id, held in job.holdings.items()}
    return [
        HoldingChanged(at_s=now_s, job_id=key[0], launch_id=key[1], resources=now_held.get(key, {}))
        for key in sorted(now_held.keys() | before.keys())
        if now_held.get(key, {}) != before.get(key, {})
    ]


def _holders(fleet: FleetState) -> Iterable[JobRecord]:
    return (job for job in list(fleet.jobs.values()) if job.holdings)


def _one_per_id(jobs: Iterable[RayJob]) -> list[RayJob]:
    """A submission may have several drivers, of which the living one tells most."""
    found: dict[str, RayJob] = {}
    for job in jobs:
        if not job.is_internal and (job.job_id not in found or not job.is_dead):
            found[job.job_id] = job
    return list(found.values())


def _state(job: RayJob) -> JobState:
    if job.submission_id:
        return {
            "PENDING": JobState.QUEUED,
            "SUCCEEDED": JobState.SUCCEEDED,
            "FAILED": JobState.FAILED,
            "STOPPED": JobState.STOPPED,
        }.get(job.status, JobState.RUNNING)
    return JobState.SUCCEEDED if job.is_dead else JobState.RUNNING  # Ray does not keep a plain driver's exit status


def _changes(job: RayJob, current: JobState, now_s: float) -> list[AnyEvent]:
    state = _state(job)
    if state is JobState.QUEUED or (state is JobState.RUNNING and current is not JobState.QUEUED):
        return []  # that it runs is no news while it recovers or stops
    if state not in JOB_TRANSITIONS[current]:
        return []
    reason = job.message.partition("\n")[0] if state in (JobState.FAILED, JobState.STOPPED) else ""
    at_s = (job.ended_at_s or now_s) if is_over(state) else now_s
    return [JobStateChanged(at_s=at_s, job_id=job.job_id, state=state, reason=reason)]


def _spec(job: RayJob) -> JobSpec:
    return JobSpec(
        name=job.metadata.get("name") or job.metadata.get("job_name") or job.job_id,
        entrypoint=job.entrypoint,
        tenant=job.metadata.get("tenant") or "default",
        contract=_contract(job),
    )


def _contract(job: RayJob) -> Contract:
    try:
        budget, deadline, work = (job.metadata.get(name) for name in ("budget", "deadline", "work"))
        return Contract(
            deadline_at_s=(job.started_at_s or 0.0) + parse_duration_s(deadline) if deadline else None,
            budget_uusd=parse_usd(budget) if budget else None,
            work_s=parse_duration_s(work) if work else None,
        )
    except ValueError as error:
        logger.warning("job %s: its contract is left out, because %s", job.job_id, error)
        return Contract()
