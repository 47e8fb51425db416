"""Ray Train's control loop with our own policies. This file, `ray_group.py` and `ray_record.py` alone touch Ray Train's
internals.

    ElasticTrainer.fit -> ElasticController (an actor beside the driver)
        size      ElasticPolicy: live nodes that do not drain, the platform's target; `sizing.py` decides
        failures  LossPolicy: `losses.py` decides
        group     InPlaceGroup (`ray_group.py`): workers come and go one by one

What stock Ray Train does differently, and costs a minute per loss: it asks the autoscaling coordinator, whose view is
20 s old and knows no drain; it does not save before a resize; it spins while there is no room for the minimum.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.torch.config import _TorchBackend
from ray.train.v2._internal.callbacks import DatasetsCallback, WorkingDirectorySetupCallback
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.execution.callback import WorkerGroupCallback
from ray.train.v2._internal.execution.controller import TrainController
from ray.train.v2._internal.execution.failure_handling import FailureDecision, FailurePolicy
from ray.train.v2._internal.execution.scaling_policy import NoopDecision, ResizeDecision, ScalingPolicy
from ray.train.v2._internal.util import ObjectRefWrapper
from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

from tradewind.jobs import losses, sizing, spares
from tradewind.jobs.checkpoint import Checkpoints
from tradewind.jobs.cluster_view import find_silent_nodes, look_at_nodes
from tradewind.jobs.layout import Layout
from tradewind.jobs.ray_group import EXPLANATION_S, InPlaceGroup, is_dead, member_of
from tradewind.jobs.ray_record import mend_record
from tradewind.model import Labels, Phase, Resources, Target

logger = logging.getLogger(__name__)

NODE_ID_LABEL = "ray.io/node-id"
LOOK_INTERVAL_S = 0.25
WAIT_INTERVAL_S = 0.25  # between two looks while there is no room for the minimum
AVOID_S = 30.0  # a node that does not answer: Ray takes it for alive for some seconds

# How Ray Train's controller should run. A variable that the user has set wins.
CONTROLLER_ENV = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.1",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "15",  # the room was seen a moment ago: if it is gone, look again
    "RAY_TRAIN_WORKER_HEALTH_CHECK_TIMEOUT_S": "60",
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",  # ours looks more often, and saves before it leaves
    "RAY_WARN_BLOCKING_GET_INSIDE_ASYNC": "0",
}


@dataclass(frozen=True, slots=True)
class ElasticOrder:
    """What the control loop has to keep to."""

    job_id: str
    limits: sizing.Limits
    worker: Resources
    where: str  # folder or URI of the run: checkpoints, attempt counter
    selector: Labels = field(default_factory=dict)
    max_failures: int = 0
    settle_s: float = 5.0
    spares: bool = True
    layout: Layout = field(default_factory=Layout)


class Link:
    """What the policies of one controller share: the coordinator, and the group as it was last seen."""

    def __init__(self, order: ElasticOrder, coordinator: Any) -> None:
        self.order = order
        self.coordinator = coordinator
        self.attempt = 0
        self.nodes: tuple[str, ...] = ()  # of each rank of the group that runs, or ran last
        self.group: Any = None  # the worker group
        self.spare_kind = spares.expected_kind(order.job_id) if order.spares else None
        self.spares: Counter[str] = Counter()  # spare processes by node that were asked for and not used
        self.ordered: Counter[str] = Counter()  # processes that were ever started
        self.avoid: dict[str, float] = {}  # nodes that do not answer -> until when they are avoided
        self.tally = losses.Tally()
        self.rested = False  # the last group ended because it was told to

    def phase(self, phase: Phase, reason: str, workers: int | None = None) -> None:
        self.coordinator.phase.remote(phase.value, reason, workers)

    def charge(self, why: losses.Cause) -> bool:
        """Count a failure; whether to go on."""
        _, progress = self.look()
        self.tally, again = losses.charge(self.tally, why, progress["step"], self.order.max_failures)
        return again

    def look(self) -> tuple[Target | None, dict[str, Any]]:
        found = ray.get(self.coordinator.look.remote())
        return (Target(**found["target"]) if found["target"] else None), found["progress"]

    def avoided(self, now_s: float) -> list[str]:
        self.avoid = {node: until for node, until in self.avoid.items() if until > now_s}
        return sorted(self.avoid)


class ElasticPolicy(ScalingPolicy):  # type: ignore[misc]
    """Looks at the cluster, has `sizing` decide, and asks the workers to save before anything planned happens."""

    def __init__(self, scaling_config: Any, link: Link) -> None:
        super().__init__(scaling_config)
        self._link = link
        self._looked_at_s = 0.0
        self._wanted = -1  # the size that is within reach, and since when it has been the same
        self._wanted_since_s = 0.0
        self._rest_asked = 0.0, 0  # when, and in which attempt
        self._saved_at_s: dict[str, tuple[float, int]] = {}  # leaving nodes -> when, and in which attempt, for them

    def make_decision_for_non_running_worker_group(self) -> Any:
        order, now, first = self._link.order, time.monotonic(), self._link.attempt == 0
        target, _ = self._link.look()
        if sizing.rests(target):
            self._link.phase(Phase.RESTING, "", 0)
            return NoopDecision()
        rooms = self._rooms(look_at_nodes(), now)
        fits, goal = order.limits.whole(sum(rooms.values())), sizing.goal(order.limits, target)
        waited_s = self._wanted_for_s(fits, now)
        if sizing.may_start(fits, order.limits.min_workers, goal, first, waited_s, order.settle_s):
            return self._resize(min(goal, fits))
        self._order_spares(rooms, settled=True)  # imports are done while further nodes come
        waiting = f"room for {fits} of {order.limits.min_workers} to {goal} workers"
        again = Phase.RESIZING if self._link.rested else Phase.RESTARTING
        self._link.phase(Phase.STARTING if first else again, waiting, 0)
        return NoopDecision()

    def make_decision_for_running_worker_group(self, worker_group_state: Any, worker_group_status: Any) -> Any:  # noqa: ARG002
        now = time.monotonic()
        if now - self._looked_at_s < LOOK_INTERVAL_S:
            return NoopDecision()
        self._looked_at_s = now
        self._link.nodes = tuple(worker.metadata.node_id for worker in worker_group_state.workers)
        target, progress = self._link.look()
        self._link.attempt = progress["attempt"]
        group = sizing.Group(self._link.attempt, self._link.nodes)
        nodes = look_at_nodes()
        self._link.avoid.update(dict.fromkeys(self._link.group.take_lost_nodes(), now + AVOID_S))
        rooms = self._rooms(nodes, now)
        self._link.group.warn(
            {node.node_id: node.drain_deadline_s for node in nodes if node.drain_deadline_s is not None}
        )
        self._order_spares(rooms, progress["steps_per_s"] is not None)
        decision = sizing.decide(group, self._link.order.limits, target, sum(rooms.values()), nodes)
        match decision:
            case sizing.Resize():
                self._change(decision, rooms, nodes, now)
            case sizing.SaveOnly():
                self._save_only(group, decision, nodes)
            case sizing.Rest():
                self._rest(group, decision, now)
            case _:  # a lost node shows as a failed worker at the next poll
                self._call_off()
        return NoopDecision()

    def _change(
        self,
        change: sizing.Resize,
        rooms: Mapping[str, int],
        nodes: Sequence[sizing.NodeView],
        now: float,
    ) -> None:
        """Further workers are started, and surplus ones let go, while the others train."""
        workers = self._link.group
        leaving = {node.node_id for node in nodes if node.draining}
        out = [worker for worker in workers.get_workers() if worker.metadata.node_id in leaving]
        missing = change.size - (workers.size - len(out))
        waited_s, settle_s = self._wanted_for_s(change.size, now), self._link.order.settle_s
        if missing > 0 and (out or sizing.ripe(change, True, self._is_warm(rooms), waited_s, settle_s, time.time())):
            workers.grow(missing, self.selector())
        if missing < 0:
            staying = [worker for worker in workers.get_workers() if worker not in out]
            out += staying[missing:]
        ready = not workers.joining or (change.leaves_at_s or 0) - time.time() <= sizing.HANDOVER_MARGIN_S
        if out and ready:
            notice_s = max(0.0, change.leaves_at_s - time.time()) if change.leaves_at_s is not None else None
            self._link.coordinator.let_go.remote([member_of(worker) for worker in out], notice_s)

    def _wanted_for_s(self, size: int, now: float) -> float:
        """For how long the same size has been within reach."""
        if self._wanted != size:
            self._wanted, self._wanted_since_s = size, now
        return now - self._wanted_since_s

    def _is_warm(self, rooms: Mapping[str, int]) -> bool:
        """Whether each of these nodes has its spares, and all of them have done their imports."""
        link = self._link
        if link.spare_kind is None:
            return True
        held, warm = Counter(link.nodes), spares.count_warm(link.order.job_id)
        missing = spares.wanted(held, rooms, link.spares, True, link.order.limits.max_workers)
        return not missing.keys() & rooms.keys() and all(warm[node] >= link.ordered[node] for node in rooms)

    def _save_only(self, group: sizing.Group, change: sizing.SaveOnly, nodes: Sequence[sizing.NodeView]) -> None:
        """When the notice comes, and again and again shortly before the end: what is not saved then is taken again."""
        now_s = time.time()
        deadlines = {node.node_id: node.drain_deadline_s or 0.0 for node in nodes}
        due = [
            node
            for node in change.nodes
            if sizing.save_is_due(self._saved_at_s.get(node), deadlines[node], now_s, self._link.attempt)
        ]
        for node in due:
            self._saved_at_s[node] = now_s, self._link.attempt
        if due:
            self._link.coordinator.ask.remote(group.attempt, change.reason)

    def _rest(self, group: sizing.Group, change: sizing.Rest, now: float) -> None:
        asked_s, attempt = self._rest_asked
        if attempt != group.attempt or now - asked_s >= sizing.REST_AGAIN_S:
            self._rest_asked = now, group.attempt
            self._link.coordinator.ask.remote(group.attempt, change.reason, rest=True)

    def _call_off(self) -> None:
        self._wanted = -1

    def _rooms(self, nodes: Sequence[sizing.NodeView], now: float) -> dict[str, int]:
        order, held = self._link.order, Counter(self._link.nodes)
        return sizing.rooms(nodes, order.worker, held, order.selector, self._link.avoided(now))

    def _order_spares(self, rooms: Mapping[str, int], settled: bool) -> None:
        """Processes for the group after this one start now, once this one takes steps: they compete with it."""
        link = self._link
        if link.spare_kind is None:
            return
        held = Counter(node for node in link.nodes if node in rooms)
        need = spares.wanted(held, rooms, link.spares, settled, link.order.limits.max_workers)
        for node in ray.nodes() if need else []:
            if node["NodeID"] in need:
                link.spares[node["NodeID"]] += need[node["NodeID"]]
                link.ordered[node["NodeID"]] += need[node["NodeID"]]
                spares.order(node, link.spare_kind, need[node["NodeID"]])

    def _resize(self, size: int) -> Any:
        return ResizeDecision(num_workers=size, resources_per_worker=dict(self._link.order.worker))

    def _get_num_workers_for_resource_request(self) -> int:
        return self._link.order.limits.max_workers

    # Ray's autoscaling coordinator is not asked: the wish stands in ours.
    def after_controller_start(self, train_run_context: Any) -> None: ...

    async def before_controller_shutdown(self) -> None: ...

    def before_controller_abort(self) -> None: ...

    def on_controller_start_worker_group(self, *, scaling_config: Any, num_workers: int) -> Any:  # noqa: ARG002
        return self.selector()

    def selector(self) -> dict[str, str] | None:
        """Keep workers off nodes that leave or do not answer: the scheduler may not know of it yet."""
        leaving = {node.node_id for node in look_at_nodes() if node.draining}
        unfit = sorted(leaving.union(self._link.avoided(time.monotonic())))
        selector = dict(self._link.order.selector)
        if unfit:
            selector[NODE_ID_LABEL] = f"!in({','.join(unfit)})"
        return selector or None


class LossPolicy(FailurePolicy):  # type: ignore[misc]
    """Tells lost nodes from the user's own errors, and gives each its budget."""

    def __init__(self, failure_config: Any, link: Link) -> None:
        super().__init__(failure_config)
        self._link = link

    def make_decision(self, training_failed_error: Any) -> Any:
        if isinstance(training_failed_error, ControllerError):
            return self._startup_failed(training_failed_error)
        if not isinstance(training_failed_error, WorkerGroupError):
            return FailureDecision.RAISE
        failures = training_failed_error.worker_failures
        dead = sum(is_dead(error) for error in failures.values())
        lost = self._find_lost_nodes()
        if not lost and not dead and all(losses.is_communication(error) for error in failures.values()):
            lost = self._wait_for_lost_nodes()
        why = losses.cause(failures, dead, len(lost))
        return self._charge(why)

    def _charge(self, why: losses.Cause) -> Any:
        again = self._link.charge(why)
        if again:
            if self._link.group is not None:
                self._link.group.vacate()
            self._link.rested = why is losses.Cause.RESTED
            if self._link.rested:
                self._link.phase(Phase.RESTING, "", 0)
            else:
                self._link.phase(Phase.RESTARTING, str(why))
        return FailureDecision.RETRY if again else FailureDecision.RAISE

    def _startup_failed(self, error: Any) -> Any:
        """The group did not start: its room was taken, or a node went. Look again; the old claim is void."""
        name = type(error.controller_failure).__name__
        if name not in ("WorkerGroupStartupFailedError", "WorkerGroupStartupTimeoutError"):
            return FailureDecision.RAISE
        lost = self._find_lost_nodes()
        self._link.nodes = ()
        if name == "WorkerGroupStartupTimeoutError" or lost:
            return FailureDecision.RETRY
        return self._charge(losses.Cause.WORKER_CRASHED)

    def _wait_for_lost_nodes(self) -> list[str]:
        """Survivors see a closed connection before the node's last process is gone."""
        end = time.monotonic() + EXPLANATION_S
        while not (lost := self._find_lost_nodes()) and time.monotonic() < end:
            time.sleep(0.1)
        return lost

    def _find_lost_nodes(self) -> list[str]:
        """Nodes of the group that are dead, or that Ray takes for alive although their raylet does not answer."""
        lost = find_silent_nodes(set(self._link.nodes))
        until = time.monotonic() + AVOID_S
        self._link.avoid.update(dict.fromkeys(lost, until))
        return lost


class GroupWatch(WorkerGroupCallback):  # type: ignore[misc]
    """Counts the attempts, and lets the coordinator know who they are."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def before_worker_group_start(self, worker_group_context: Any) -> None:
        link = self._link
        link.attempt = Checkpoints.at(link.order.where).next_attempt(above=link.attempt)
        least, layout = link.order.limits.min_workers, link.order.layout
        link.coordinator.begin_attempt.remote(
            link.attempt, worker_group_context.num_workers, least, layout.replica_size, layout.whole
        )
        if self._link.nodes == ():
            self._link.phase(Phase.STARTING, "workers start", worker_group_context.num_workers)

    def after_worker_group_start(self, worker_group: Any) -> None:
        link = self._link
        link.group = worker_group
        worker_group.bind(link.coordinator, lambda: link.charge(losses.Cause.WORKER_CRASHED))
        link.nodes = tuple(worker.metadata.node_id for worker in worker_group.get_workers())
        link.ordered += Counter(link.nodes) - link.spares  # started without being asked for
        link.spares -= Counter(link.nodes)  # used up
        if link.order.spares:
            found = spares.Kind(ray.get_runtime_context().get_job_id(), worker_group.execute_single(0, _runtime_env))
            if found != link.spare_kind:
                logger.info("spare processes were of another kind: %s, not %s", link.spare_kind, found)
                link.spare_kind = found
                link.spares.clear()


class ElasticController(TrainController):  # type: ignore[misc]
    worker_group_cls = InPlaceGroup

    def __init__(
        self,
        *,
        env: Mapping[str, str],
        order: ElasticOrder,
        coordinator: Any,
        train_run_context: Any,
        callbacks: Any,
        **rest: Any,
    ) -> None:
        # Set here and not by Ray: workers would inherit it, and an environment of its own costs a process start.
        os.environ.update(env)
        link = Link(order, coordinator)
        mend_record(train_run_context.run_config.storage_context)
        super().__init__(
            scaling_policy=ElasticPolicy(train_run_context.scaling_config, link),
            failure_policy=LossPolicy(train_run_context.run_config.failure_config, link),
            train_run_context=train_run_context,
            callbacks=[*callbacks, GroupWatch(link)],
            **rest,
        )

    async def _step(self) -> Any:
        before = self.get_state()
        result = await super()._step()
        if result.next_state is before:  # nothing to do but wait for room
            await asyncio.sleep(WAIT_INTERVAL_S)
        return result


class _Backend(_TorchBackend):  # type: ignore[misc]
    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        """Members make the process group by themselves, and each one after it (`seat.py`)."""

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        """The processes end; leaving the group politely would wait for peers that are gone."""


class ElasticTorchConfig(TorchConfig):  # type: ignore[misc]
    @property
    def backend_cls(self) -> type[_Backend]:
        return _Backend


class ElasticTrainer(TorchTrainer):  # type: ignore[misc]
    """A TorchTrainer whose worker group follows the cluster."""

    def __init__(self, *args: Any, order: ElasticOrder, coordinator: Any, **rest: Any) -> None:
        super().__init__(
            *args,
            torch_config=ElasticTorchConfig(backend="chosen by the members"),
            **rest,
        )
        self._order, self._coordinator = order, coordinator

    def fit(self) -> Any:
        env = CONTROLLER_ENV | {key: os.environ[key] for key in CONTROLLER_ENV if key in os.environ}
        here = {NODE_ID_LABEL: ray.get_runtime_context().get_node_id()}
        actor = ray.remote(num_cpus=0, label_selector=here)(ElasticController)
        controller = actor.remote(
            env=env,
            order=self._order,
            coordinator=self._coordinator,
            train_fn_ref=ObjectRefWrapper(self._get_train_func()),
            train_run_context=self.train_run_context,
            callbacks=_useful(self._create_default_callbacks()),
            validation_config=self.validation_config,
        )
        if threading.current_thread() is threading.main_thread():
            self._register_sigint_handler(controller)
        ray.get(controller.run.remote())
        result = ray.get(controller.get_result.remote())
        if result.error:
            raise result.error
        return result


def _useful(callbacks: Sequence[Any]) -> list[Any]:
    """Ray Train's own callbacks but three. One moves workers into a folder of its own: relative paths in the user's
    code should mean what they say. One is an actor that removes the placement group of a dead controller, which Ray
    does by itself. One is an actor for Ray Data, which `fit` does not use. Each process is one more to wait for."""
    left_out = WorkingDirectorySetupCallback | PlacementGroupCleanerCallback | DatasetsCallback
    return [callback for callback in callbacks if not isinstance(callback, left_out)]


def _runtime_env() -> str:
    return str(ray.get_runtime_context().get_runtime_env_string())
