"""The command of a job as it runs on a cell's head, and what it is known by there. Pure."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

from tradewind.autoscaler.fleet import JobRecord
from tradewind.model import GRANT_ENV, JOB_ID_ENV, RUN_ENV, STORAGE_ENV, JobSpec, Wish, submission_id


def submission_of(job: JobRecord) -> str:
    """A foreign job is known under the name that it was sent with."""
    return job.job_id if job.foreign else submission_id(job.job_id, job.placements)


def entrypoint_of(job: JobRecord, storage: Path | str, *, enter: bool = True) -> str:
    """The command as it runs on the head. What only the driver needs goes before it, not into a runtime environment:
    that would keep Ray's workers from being taken from the pool of started processes. With `enter` the folder is not
    uploaded: a local cell has the same disk."""
    given = {JOB_ID_ENV: job.job_id}
    if storage:  # else as the head has it
        given[STORAGE_ENV] = str(storage)
    if job.spec.continues:
        given[RUN_ENV] = job.spec.continues
    if wish := spec_wish(job):
        given[GRANT_ENV] = json.dumps(asdict(wish))  # so that `tw.fit` need not be told again
    parts = [f"export {name}={shlex.quote(value)}" for name, value in given.items()]
    parts += [f"cd {shlex.quote(job.spec.working_dir)}"] if job.spec.working_dir and enter else []
    # On a line of its own, so that `a || b` and `a & b` mean what they mean in a shell.
    return f"{' && '.join(parts)} || exit 1\n{_with_retries(job.spec)}"


def _with_retries(spec: JobSpec) -> str:
    """In the shell, so that all tries are one job of Ray's, with one log. A lost node is no failure of the program."""
    if not spec.max_retries:
        return spec.entrypoint
    return (
        f"for left in $(seq {spec.max_retries} -1 0); do\n(\n{spec.entrypoint}\n)\nstatus=$?\n"
        '[ $status -eq 0 ] || [ $left -eq 0 ] && exit $status\necho "exit status $status; tries left: $left"\ndone'
    )


def spec_wish(job: JobRecord) -> Wish | None:
    """What a job asked for when it was submitted; None where it leaves that to its program."""
    spec = job.spec
    if not spec.max_workers or not spec.worker_resources:
        return None
    return Wish(job.job_id, spec.min_workers, spec.max_workers, spec.worker_resources, spec.worker_labels)
