"""What one event makes of what is known of its job. Pure; `fleet.py` asks, and keeps what else follows from it."""

from __future__ import annotations

from tradewind.autoscaler.copier import Copier
from tradewind.autoscaler.records import JobRecord
from tradewind.events import (
    AnyEvent,
    CheckpointCommitted,
    HoldingChanged,
    JobPlaced,
    JobStateChanged,
    JobSubmitted,
    MoveRequested,
    PhaseChanged,
    StepCommitted,
)
from tradewind.model import LOCAL_CELL
from tradewind.states import JobState, is_over, move_job

_with = Copier(JobRecord)


def submitted(event: JobSubmitted) -> JobRecord:
    return JobRecord(
        job_id=event.job_id,
        spec=event.spec,
        state=JobState.QUEUED,
        submitted_at_s=event.at_s,
        foreign=event.foreign,
        cell=event.cell or (LOCAL_CELL if event.foreign else ""),
    )


def after(job: JobRecord, event: AnyEvent) -> JobRecord:
    match event:
        case StepCommitted():
            return _stepped(job, event)
        case JobPlaced():
            return _with(job, cell=event.cell, placements=job.placements + 1, moving="", moves_put_off=0)
        case MoveRequested(called_off=True):
            return _with(job, moving="", moves_put_off=job.moves_put_off + 1)
        case MoveRequested():
            return _with(job, moving=event.reason)
        case JobStateChanged():
            return _moved(job, event)
        case HoldingChanged():
            return _with(job, holdings=_held(job, event))
        case PhaseChanged():
            told = {"phase": event.phase, "phase_reason": event.reason}
            return _reported(job, event, attempt=event.attempt, workers=event.workers, **told)
        case CheckpointCommitted():
            return _reported(job, event, checkpoint_step=event.step, moves_put_off=0)
        case _:
            return job


def _stepped(job: JobRecord, event: StepCommitted) -> JobRecord:
    return _reported(
        job,
        event,
        step=event.last_step,
        loss=event.loss,
        workers=event.workers,
        attempt=event.attempt,
        total_steps=event.total_steps,
    )


def _moved(job: JobRecord, event: JobStateChanged) -> JobRecord:
    state = move_job(job.state, event.state, event.job_id)
    started = event.at_s if job.started_at_s is None and state is JobState.RUNNING else job.started_at_s
    ended = event.at_s if is_over(state) else None
    reason = (job.reason if job.state is JobState.STOPPING else "") or event.reason  # why it was stopped says more
    return _with(job, state=state, reason=reason, started_at_s=started, ended_at_s=ended)


def _held(job: JobRecord, event: HoldingChanged) -> dict[str, dict[str, float]]:
    held = {key: value for key, value in job.holdings.items() if key != event.launch_id}
    return held | ({event.launch_id: dict(event.resources)} if event.resources else {})


def _reported(job: JobRecord, event: PhaseChanged | StepCommitted | CheckpointCommitted, **told: object) -> JobRecord:
    """Reports come at least once: one that is not newer than the last is a repetition."""
    if event.sequence <= job.reported_sequence:
        return job
    return _with(job, reported_sequence=event.sequence, **told)
