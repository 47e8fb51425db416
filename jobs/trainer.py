"""The door for users: `fit(train, workers=(2, 4), ...)` runs `train(run)` in every worker, and keeps it going.

Stands between the user's script (a Ray driver) and `ray_train.py`, which runs Ray Train with our policies.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tradewind.errors import JobError, JobFailed
from tradewind.jobs import coordinator as coordinators
from tradewind.jobs import spares
from tradewind.jobs.layout import Layout
from tradewind.jobs.progress import ProgressLine
from tradewind.jobs.sizing import Limits
from tradewind.model import GRANT_ENV, HOME_ENV, JOB_ID_ENV, RUN_ENV, STORAGE_ENV, Phase, Wish, driver_job_id

if TYPE_CHECKING:
    from tradewind.jobs.run import Run
    from tradewind.jobs.settings import RunSettings

logger = logging.getLogger(__name__)

DEFAULT_HOME = "~/.tradewind"
RAY_JOB_CONFIG_ENV = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # how Ray tells a driver that it was submitted, and as what
FAREWELL_S = 5.0  # how long the last events wait for the agent


@dataclass(frozen=True, slots=True)
class FitResult:
    """How a training run ended."""

    name: str
    step: int
    loss: float | None
    checkpoint: str | None  # folder or URI, also of the next
    folder: str
    attempts: int


def fit(
    train: Callable[[Run], Any],
    *,
    workers: int | tuple[int, int] | None = None,
    resources: Mapping[str, float] | None = None,
    labels: Mapping[str, str] | None = None,
    parallel: str | Mapping[str, int] | None = None,
    precision: str | None = None,
    storage: str | Path | None = None,
    name: str | None = None,
    checkpoint_every: int | None = None,
    checkpoint_every_s: float | None = None,
    keep: int = 3,
    max_failures: int = 0,
    on_nan: str = "fail",
    seed: int = 0,
    ledger: str | Path | None = None,
    curve: str | Path | None = None,
    progress: bool = True,
    settle_s: float = 5.0,
    hang_timeout_s: float = 120.0,
) -> FitResult:
    """Train on `workers` (one number, or the least and the most) that come and go.

    `resources` is what one worker needs, `labels` selects nodes. What is left out of these three is as the job was
    submitted, or one worker with one CPU. `parallel` is how the model is spread: "ddp", "fsdp", "fsdp=all", "tp=2",
    "pp=2,fsdp=2", ...; workers then come and go in whole replicas. `precision="bf16"` computes forward passes under
    autocast.

    `storage` is the fleet's folder for checkpoints, or `runs` in TRADEWIND_HOME (~/.tradewind) outside of one; also
    s3://, gs://, abfs://. A run with the same `storage` and `name` goes on from its last checkpoint. How often one is
    written follows from what it costs, unless you say how many steps or seconds. `keep` of them are kept.

    Lost nodes are never counted as failures; `max_failures` is how many exceptions of `train` are tried again. A loss
    that is no number ends the run before it reaches the model; `on_nan="skip"` leaves such steps out. `ledger` and
    `curve` write down every sample and every loss. When no step is taken for `hang_timeout_s` (and four times longer
    than ever before), workers that do not answer are replaced.
    """
    from tradewind.jobs.settings import RunSettings

    _join_ray()
    given_id = _given_id()
    job_id = given_id or _driver_id()
    asked = _submitted(job_id)
    limits = _limits(workers if workers is not None else (asked.min_workers, asked.max_workers))
    layout = Layout.parse(parallel, limits.min_workers)
    _check_choices(limits, layout, precision, on_nan)
    wish = _wish(asked, limits.in_replicas(layout.replica_size), resources, labels)
    name = name or os.environ.get(RUN_ENV) or given_id or f"run-{uuid.uuid4().hex[:8]}"
    settings = RunSettings(
        job_id=job_id,
        where=_place(storage or _storage(os.environ), name),
        checkpoint_every=checkpoint_every,
        checkpoint_every_s=checkpoint_every_s,
        keep=keep,
        seed=seed,
        threads=max(1, int(wish.resources.get("CPU", 1))),
        max_workers=wish.max_workers,
        layout=layout,
        precision=precision,
        on_nan=on_nan,
        ledger=_absolute(ledger),
        curve=_absolute(curve),
    )
    with _coordinator_of(settings, wish, hang_timeout_s, name) as coordinator:
        with ProgressLine(coordinator, name) if progress else contextlib.nullcontext():
            _run(train, settings, coordinator, wish, max_failures, settle_s)
        return _result(name, settings.where, coordinator)


def _join_ray() -> None:
    import ray

    if not ray.is_initialized():
        ray.init(log_to_driver=True, logging_level="warning")


def _wish(asked: Wish, limits: Limits, resources: Mapping[str, float] | None, labels: Mapping[str, str] | None) -> Wish:
    """What the user says, and for the rest what the job was submitted with."""
    return Wish(
        asked.job_id,
        limits.min_workers,
        limits.max_workers,
        dict(resources if resources is not None else asked.resources),
        dict((labels if labels is not None else asked.labels) or {}),
        replica_workers=limits.replica,
        can_move=True,
    )


@contextlib.contextmanager
def _coordinator_of(settings: RunSettings, wish: Wish, hang_timeout_s: float, name: str) -> Iterator[Any]:
    """Knows what the run wants, until it has told how that ended."""
    import ray

    coordinator = coordinators.start(settings.job_id)
    coordinator.keep_checkpoints.remote(settings.where, settings.keep, str(settings.layout))
    coordinator.watch_for_hangs.remote(hang_timeout_s)
    coordinator.declare.remote(asdict(wish))
    coordinator.phase.remote(Phase.STARTING.value, "the run starts", 0)
    try:
        yield coordinator
    finally:
        try:
            _farewell(settings.job_id, coordinator)
        except ray.exceptions.RayError as error:  # the cluster is gone; why `fit` ends matters more
            logger.warning("the end of %s could not be told: %s", name, error)


def _storage(environ: Mapping[str, str]) -> str:
    """The fleet's; outside of one, a folder in the home of all fleets."""
    return environ.get(STORAGE_ENV) or str(Path(environ.get(HOME_ENV) or DEFAULT_HOME) / "runs")


def _place(storage: str | Path, name: str) -> str:
    """The folder or URI of a run."""
    text = str(storage)
    if "://" in text and not text.startswith("file://"):
        return f"{text.rstrip('/')}/{name}"
    folder = Path(text.removeprefix("file://")).expanduser().absolute() / name
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder)


def _check_choices(limits: Limits, layout: Layout, precision: str | None, on_nan: str) -> None:
    if not 1 <= limits.min_workers <= limits.max_workers:
        asked = f"{limits.min_workers} to {limits.max_workers}"
        raise JobError(f"{asked} workers make no sense", "give workers=4, or the least and the most: workers=(2, 4)")
    if limits.max_workers % layout.replica_size:
        size = layout.replica_size
        hint = f"let the most workers be a multiple of {size}"
        raise JobError(
            f"a replica of {layout} has {size} workers, and at most {limits.max_workers} are asked for", hint
        )
    if precision not in (None, "bf16"):
        raise JobError(f"precision {precision!r} is not known", "use 'bf16', or leave it out for that of the model")
    if on_nan not in ("fail", "skip"):
        raise JobError(f"on_nan {on_nan!r} is not known", "use 'fail' or 'skip'")


def _limits(workers: int | tuple[int, int]) -> Limits:
    return Limits(workers, workers) if isinstance(workers, int) else Limits(*workers)


def _submitted(job_id: str) -> Wish:
    """What the platform was asked for when this job was submitted, else the least."""
    given = os.environ.get(GRANT_ENV)
    return replace(Wish(**json.loads(given)), job_id=job_id) if given else Wish(job_id, 1, 1, {"CPU": 1})


def _given_id() -> str:
    """The name under which the platform knows this job: what the controller gave it, or Ray's submission id."""
    submitted = json.loads(os.environ.get(RAY_JOB_CONFIG_ENV) or "{}").get("metadata", {})
    return os.environ.get(JOB_ID_ENV) or str(submitted.get("job_submission_id") or "")


def _driver_id() -> str:
    """Of a plain driver: its number in Ray's job table."""
    import ray

    heads = (node["NodeID"] for node in ray.nodes() if "node:__internal_head__" in node["Resources"])
    return driver_job_id(ray.get_runtime_context().get_job_id(), next(heads, ""))


def _run(
    train: Callable[[Run], Any],
    settings: RunSettings,
    coordinator: Any,
    wish: Wish,
    max_failures: int,
    settle_s: float,
) -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.v2.api.exceptions import TrainingFailedError

    from tradewind.jobs.ray_train import ElasticOrder, ElasticTrainer
    from tradewind.jobs.run import work

    limits = Limits(wish.min_workers, wish.max_workers, wish.replica_workers)
    warm = spares.environment(settings.job_id, ray.get_runtime_context().runtime_env)
    order = ElasticOrder(
        settings.job_id,
        limits,
        wish.resources,
        settings.where,
        wish.labels,
        max_failures,
        settle_s,
        spares=bool(warm),
        layout=settings.layout,
    )
    trainer = ElasticTrainer(
        partial(work, train, settings, coordinator),
        order=order,
        coordinator=coordinator,
        scaling_config=ScalingConfig(
            num_workers=(limits.min_workers, limits.max_workers),
            use_gpu=wish.resources.get("GPU", 0) > 0,
            resources_per_worker=dict(wish.resources),
        ),
        run_config=RunConfig(
            name=settings.where.rsplit("/", 1)[1],
            storage_path=settings.where.rsplit("/", 1)[0] or "/",
            worker_runtime_env=warm,
        ),
    )
    try:
        trainer.fit()
    except TrainingFailedError as error:
        raise JobFailed(
            _what_failed(settings.where.rsplit("/", 1)[1], error), "the traceback above is the worker's"
        ) from error


def _what_failed(name: str, error: Any) -> str:
    failures = getattr(error, "worker_failures", None)
    if not failures:
        return f"{name} failed: {error}"
    rank, first = next(iter(failures.items()))
    root = getattr(first, "_base_exc", first)  # Ray Train wraps it to keep the worker's traceback
    return f"{name} failed on rank {rank}: {type(root).__name__}: {root}"


def _result(name: str, where: str, coordinator: Any) -> FitResult:
    import ray

    from tradewind.jobs.checkpoint import Checkpoints

    now = ray.get(coordinator.look.remote())["progress"]
    found = Checkpoints.at(where).newest()
    checkpoint = f"{where}/{found.name}" if found else None
    return FitResult(name, found.step if found else now["step"], now["loss"], checkpoint, where, now["attempt"])


def _farewell(job_id: str, coordinator: Any) -> None:
    """The end is told; the last reports wait for the agent, if there is one."""
    import ray

    spares.forget(job_id)
    ray.get(coordinator.phase.remote(Phase.DONE.value, "", 0))
    ray.get(coordinator.declare.remote(None))
    end = time.monotonic() + FAREWELL_S
    while time.monotonic() < end and not ray.get(coordinator.drained.remote()):
        time.sleep(0.1)
    ray.kill(coordinator)


def _absolute(path: str | Path | None) -> Path | None:
    return Path(path).expanduser().absolute() if path else None
