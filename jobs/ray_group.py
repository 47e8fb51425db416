"""A worker group of Ray Train whose workers come and go one by one, while the others train. Beside `ray_train.py`, the
only file that touches Ray Train's internals.

Stock Ray Train ends all workers to change their number. Here the members settle it among themselves (`membership.py`);
this class follows: it takes lost workers out of Ray Train's books, and starts further ones. Each worker has a placement
group of its own: a common one cannot grow, and would claim room for the lost.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayActorError
from ray.train import Checkpoint, CheckpointUploadMode
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError, WorkerHealthCheckTimeoutError
from ray.train.v2._internal.execution.checkpoint.report_handler import ReportCallbackHandler
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import DistributedTrainFnUtils, set_train_fn_utils
from ray.train.v2._internal.execution.training_report import _TrainingReport
from ray.train.v2._internal.execution.worker_group import WorkerGroup, WorkerGroupPollStatus
from ray.train.v2._internal.execution.worker_group.execution_group import ReplicaGroup
from ray.train.v2._internal.execution.worker_group.placement_group_handle import PlacementGroupHandle
from ray.train.v2._internal.execution.worker_group.worker import Worker
from ray.train.v2._internal.util import bundle_to_remote_args
from ray.train.v2.api.preemption import PreemptionInfo
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tradewind.jobs.cluster_view import find_silent_nodes

logger = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0  # for the process of a joiner
EXPLANATION_S = 1.0  # how long a dead worker waits for its node to show as lost, too


class Rooms(PlacementGroupHandle):  # type: ignore[misc]
    """One placement group for each worker."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self.groups = list(groups)

    @property
    def placement_group(self) -> Any:
        return self.groups[0] if self.groups else None

    def ready(self) -> Any:
        return self.groups[-1].ready()

    def wait(self, timeout_seconds: float = 30) -> bool:
        end = time.monotonic() + timeout_seconds
        return all(group.wait(max(0.1, end - time.monotonic())) for group in self.groups)

    def shutdown(self) -> None:
        """May be called twice."""
        while self.groups:
            remove_placement_group(self.groups.pop())


@dataclass(slots=True)
class Joiner:
    """A worker on its way in: its process starts, then it prepares, then the others let it in."""

    actor: Any
    metadata: Any  # a reference
    since_s: float
    worker: Any = None
    poll: Any = None


def member_of(worker: Any) -> str:
    return str(worker.actor._actor_id.hex())


class QuickWorkerGroup(WorkerGroup):  # type: ignore[misc]
    """Ends workers without asking them first, unless they have finished: they may hang in a collective."""

    def shutdown(self) -> None:
        status = self.get_latest_poll_status()
        if status is None or not status.finished:
            for worker in self.get_workers():
                ray.kill(worker.actor)
        super().shutdown()

    @staticmethod
    def _get_worker_runtime_env(custom_runtime_env: Any) -> Any:
        # Nothing is added: a worker with an environment of its own cannot come from the pool of started processes.
        return dict(custom_runtime_env)


class InPlaceGroup(QuickWorkerGroup):
    def __init__(self, train_run_context: Any, worker_group_context: Any, callbacks: Any = None) -> None:
        super().__init__(train_run_context, worker_group_context, callbacks)
        self._reports = next(found for found in callbacks or [] if isinstance(found, ReportCallbackHandler))
        self._coordinator: Any = None
        self._joiners: list[Joiner] = []
        self._rooms = Rooms([])
        self._room_of: dict[str, Any] = {}  # by member
        self._dead_since_s: dict[str, float] = {}
        self._lost_nodes: set[str] = set()
        self._warned: dict[str, float] = {}
        self._may_go_on: Callable[[], bool] = bool

    # --- start

    def bind(self, coordinator: Any, may_go_on: Callable[[], bool]) -> None:
        """The processes are there and do not train yet: tell the coordinator who they are. `may_go_on` is asked when a
        worker has crashed although its node lives: whether the others may go on, or that was once too often."""
        self._coordinator, self._may_go_on = coordinator, may_go_on
        # What rank 0 reports counts: the others' number changes while reports are on their way.
        self._reports.set_required_ranks([0])
        ray.get(coordinator.enroll.remote([member_of(worker) for worker in self.get_workers()]))

    def _create_placement_group(self, scaling_config: Any, worker_group_context: Any) -> Any:  # noqa: ARG002
        selectors = worker_group_context.label_selector or [None] * worker_group_context.num_workers
        self._rooms = Rooms([self._room(selector) for selector in selectors])
        return self._rooms

    def _room(self, selector: Mapping[str, str] | None) -> Any:
        need = dict(self._worker_group_context.resources_per_worker)
        return placement_group([need], bundle_label_selector=[dict(selector)] if selector else None)

    def _create_workers(self, num_workers: int, placement_group: Any, *args: Any, **rest: Any) -> Any:  # noqa: ARG002
        actors = [self._start_actor(room) for room in self._rooms.groups]
        try:
            found = ray.get([actor.get_metadata.remote() for actor in actors])
        except RayActorError:
            for actor in actors:
                ray.kill(actor)
            raise
        need = self._worker_group_context.resources_per_worker
        pairs = zip(actors, found, strict=True)
        return WorkerGroup._assign_worker_ranks([Worker(actor, metadata, need) for actor, metadata in pairs])

    def _start_actor(self, room: Any) -> Any:
        env = self._get_worker_runtime_env(self._train_run_context.run_config.worker_runtime_env)
        need = bundle_to_remote_args(self._worker_group_context.resources_per_worker)
        where = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=0)
        actor = ray.remote(runtime_env=env, **need)(self._worker_cls).options(scheduling_strategy=where).remote()
        self._room_of[actor._actor_id.hex()] = room
        return actor

    # --- change

    @property
    def size(self) -> int:
        """With those on their way in."""
        return len(self.get_workers()) + len(self._joiners)

    def take_lost_nodes(self) -> set[str]:
        """Nodes that were found lost since the last call."""
        found, self._lost_nodes = self._lost_nodes, set()
        return found

    def warn(self, deadlines_s: Mapping[str, float]) -> None:
        """Nodes that will be taken away, and when (0: not said): for `ray.train.get_preemption_info` in user code."""
        if deadlines_s == self._warned:
            return
        self._warned = dict(deadlines_s)
        ranks: dict[str, list[int]] = {}
        for rank, worker in enumerate(self.get_workers()):
            if worker.metadata.node_id in deadlines_s:
                ranks.setdefault(worker.metadata.node_id, []).append(rank)
        if ranks:
            first_s = min((found for found in deadlines_s.values() if found), default=None)
            info = PreemptionInfo(int(first_s * 1000) if first_s else None, ranks)
            for worker in self.get_workers():
                worker.actor.mark_preempt.remote(info)

    @property
    def joining(self) -> bool:
        return bool(self._joiners)

    def grow(self, count: int, selector: Mapping[str, str] | None) -> None:
        """Start further workers. Returns at once; `poll_status` follows them."""
        for _ in range(count):
            room = self._room(selector)
            self._rooms.groups.append(room)
            actor = self._start_actor(room)
            self._joiners.append(Joiner(actor, actor.get_metadata.remote(), time.monotonic()))

    def poll_status(self, timeout: float | None = None) -> Any:
        """As Ray Train's, after lost and dismissed workers were taken out and new ones in."""
        self._assert_active()
        statuses = self._poll_workers_and_collect_errors(timeout)
        now = ray.get(self._coordinator.members.remote())
        keep = [i for i, status in enumerate(statuses) if not self._is_out(i, status, now)]
        if keep and len(keep) < len(statuses):
            self._drop(keep)
            statuses = [statuses[i] for i in keep]
        # A notice is for the user's code to read; Ray Train's controller would end the group for it.
        statuses = [replace(self._excuse(i, status), preemption_info=None) for i, status in enumerate(statuses)]
        statuses += self._follow_joiners(now["members"])
        found = WorkerGroupPollStatus(dict(enumerate(statuses)), self._worker_rank_to_replica_group_rank)
        for callback in self._callbacks:
            callback.after_worker_group_poll_status(found)
        self._latest_poll_status = found
        return found

    def _is_out(self, index: int, status: Any, now: Mapping[str, Any]) -> bool:
        """A worker that was let go and has ended, that is lost together with its node, or that crashed or hangs on a
        live one, if the others may go on without it."""
        worker = self.get_workers()[index]
        member, dead = member_of(worker), is_dead(status.error)
        if member in now["gone"] and not status.running and not dead:
            return True
        if not dead and member not in now["lost"]:
            return False
        if find_silent_nodes({worker.metadata.node_id}):
            self._lost_nodes.add(worker.metadata.node_id)
            self._coordinator.lose.remote([member])
            return True
        since_s = self._dead_since_s.setdefault(member, time.monotonic())
        if time.monotonic() - since_s < EXPLANATION_S:
            return False
        if len(self.get_workers()) == 1 or not self._may_go_on():
            ray.kill(worker.actor)  # if it hangs: its end is an error that the failure policy sees
            return False
        how = f"crashed: {status.error}" if dead else "hung"
        logger.warning("a worker on %s %s; the others go on", worker.metadata.node_ip, how)
        self._coordinator.lose.remote([member])
        return True

    def _excuse(self, index: int, status: Any) -> Any:
        """A dead worker is no error yet: its node may turn out to be lost in a moment."""
        since_s = self._dead_since_s.get(member_of(self.get_workers()[index]))
        waits = since_s is not None and time.monotonic() - since_s < EXPLANATION_S
        return replace(status, error=None, running=True) if waits and is_dead(status.error) else status

    def _drop(self, keep: Sequence[int]) -> None:
        workers, state = self.get_workers(), self.get_worker_group_state()
        for worker in (worker for i, worker in enumerate(workers) if i not in keep):
            self._end(worker.actor)
        queues, polls = self._reports._training_report_queues, dict(self._polls())
        self._reports._training_report_queues = [queues[i] for i in keep]
        self._polls().clear()
        self._polls().update({at: polls[i] for at, i in enumerate(keep) if i in polls})
        self._worker_group_state = replace(state, workers=[workers[i] for i in keep])
        state.sync_actor.reset.remote()  # survivors may wait for the lost one in a report
        self._number()

    def _follow_joiners(self, members: Sequence[str]) -> list[Any]:
        """Carry each joiner one step on. Those that the group has let in are workers from now on: their statuses."""
        entered = []
        for joiner in list(self._joiners):
            if joiner.worker is None:
                self._prepare(joiner)
            elif member_of(joiner.worker) in members:
                self._joiners.remove(joiner)
                entered.append(joiner)
            elif _failed(joiner):
                self._give_up(joiner, "it ended while it prepared")
        for joiner in sorted(entered, key=lambda found: members.index(member_of(found.worker))):
            self._worker_group_state = replace(self._worker_group_state, workers=[*self.get_workers(), joiner.worker])
            self._reports._training_report_queues.append(deque())
        if entered:
            self._number()
        found: list[Any] = ray.get([joiner.worker.actor.poll_status.remote() for joiner in entered])
        return found

    def _prepare(self, joiner: Joiner) -> None:
        """The process stands: give it its context, and let it run the user's function until it meets the others."""
        if not ray.wait([joiner.metadata], timeout=0)[0]:
            if time.monotonic() - joiner.since_s > START_TIMEOUT_S:
                self._give_up(joiner, f"it did not start within {START_TIMEOUT_S:.0f} s")
            return
        try:
            need = self._worker_group_context.resources_per_worker
            worker = Worker(joiner.actor, ray.get(joiner.metadata), need)
            WorkerGroup._assign_worker_ranks([worker], len(self.get_workers()), len(self.get_workers()) + 1)
            self._init_train_context([worker], self._worker_group_state.sync_actor)
            ray.get(self._coordinator.enroll.remote([member_of(worker)]))
            ray.get(joiner.actor.run_train_fn.remote(self._worker_group_context.train_fn_ref))
            joiner.worker = worker
        except RayActorError as error:
            self._give_up(joiner, str(error))

    def _give_up(self, joiner: Joiner, why: str) -> None:
        logger.warning("a worker that should join is given up: %s", why)
        self._joiners.remove(joiner)
        self._coordinator.lose.remote([str(joiner.actor._actor_id.hex())])
        self._end(joiner.actor)

    def _end(self, actor: Any) -> None:
        ray.kill(actor)
        room = self._room_of.pop(actor._actor_id.hex())
        self._rooms.groups.remove(room)
        remove_placement_group(room)

    def vacate(self) -> None:
        """The group has failed, and another one will be started: its room is free from now on. Ray would give the room
        of dead workers to them again, on the next node that comes."""
        for joiner in self._joiners:
            self._end(joiner.actor)
        self._joiners = []
        for worker in self.get_workers() if self._worker_group_state else []:
            ray.kill(worker.actor)
        self._rooms.shutdown()

    def shutdown(self) -> None:
        for joiner in self._joiners:
            self._end(joiner.actor)
        self._joiners = []
        super().shutdown()

    def _polls(self) -> dict[int, Any]:
        found: dict[int, Any] = self._world_rank_to_ongoing_poll
        return found

    def _number(self) -> None:
        need = self._worker_group_context.resources_per_worker
        workers = self.get_workers()
        self._replica_groups = [ReplicaGroup([worker], need, self._replica_group_callbacks) for worker in workers]
        self._worker_rank_to_replica_group_rank = {rank: rank for rank in range(len(workers))}
        for rank, worker in enumerate(workers):
            worker.distributed_context = replace(worker.distributed_context, world_rank=rank, world_size=len(workers))


def is_dead(error: Any) -> bool:
    inner = error.health_check_failure if isinstance(error, WorkerHealthCheckFailedError) else error
    return isinstance(inner, RayActorError | WorkerHealthCheckTimeoutError)


class _FnUtils(DistributedTrainFnUtils):  # type: ignore[misc]
    """What stands behind `ray.train`'s functions in a worker. Stock Ray Train has all workers wait for each other in
    them. When one is lost, some would wait there for it, and others in the next meeting for them."""

    def get_preemption_info(self) -> Any:
        return get_train_context().preemption_context.preemption_info

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: Any = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Any = None,
        validation: Any = False,
    ) -> None:
        """What rank 0 reports counts."""
        context = get_train_context()
        if context.get_world_rank() != 0:
            if checkpoint is not None:
                logger.warning("only rank 0's checkpoint is kept; models are saved by run.prepare and run.keep")
            return
        if checkpoint_upload_mode == CheckpointUploadMode.NO_UPLOAD:
            report = _TrainingReport(checkpoint=checkpoint, metrics=dict(metrics), validation=validation)
        else:
            name = checkpoint_dir_name or context.storage_context.make_default_checkpoint_dir_name()
            keep = delete_local_checkpoint_after_upload or False
            report = context._upload_checkpoint(name, dict(metrics), checkpoint, keep, checkpoint_upload_fn, validation)
        _put(context, report)


def _put(context: Any, report: Any) -> None:
    with context.report_order_condition:
        context.report_call_index += 1
        index = context.report_call_index
    context._wait_then_report(report, index)


def mend_ray_train() -> None:
    """In a worker, before user code runs."""
    set_train_fn_utils(_FnUtils())


def take_rank(rank: int, world: int) -> None:
    """In a worker: what `ray.train.get_context()` says from now on."""
    context = get_train_context()
    context.distributed_context = replace(context.distributed_context, world_rank=rank, world_size=world)
    context.preemption_context.preemption_info = None  # it was of the group before


def tell_ray_train(metrics: Mapping[str, Any], path: str) -> None:
    """In the worker of rank 0, from any thread: a checkpoint was committed. As `ray.train.report`, which would wait for
    all workers at the same step, and nothing is left to agree on."""
    context = get_train_context()
    filesystem = context.storage_context.storage_filesystem
    inside = f"{context.storage_context.experiment_fs_path}/{path.rstrip('/').rsplit('/', 1)[-1]}"
    report = _TrainingReport(checkpoint=Checkpoint(inside, filesystem), metrics=dict(metrics), validation=False)
    _put(context, report)


def _failed(joiner: Joiner) -> bool:
    """Whether a joiner has ended before it was let in."""
    if joiner.poll is None:
        joiner.poll = joiner.actor.poll_status.remote()
    if not ray.wait([joiner.poll], timeout=0)[0]:
        return False
    poll, joiner.poll = joiner.poll, None
    try:
        status = ray.get(poll)
    except RayActorError:
        return True
    return status.error is not None or not status.running
