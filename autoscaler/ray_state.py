"""The edge to one cell's GCS, and the only file that touches Ray's private state (pinned: 2.60).

It speaks to GCS by plain gRPC, not by Ray's own `GcsClient`: that one ends the whole process 60 s after it has lost
the head, and a controller must outlive a head. Every call has a time limit and raises RayError when it fails.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from tradewind.autoscaler.holdings import Claim, add_claims, claim_rest, guests_of, is_own_resource, unclaimed
from tradewind.autoscaler.ray_snapshot import (
    Counted,
    DrainReason,
    Gang,
    RayJob,
    RayNode,
    RayReport,
    RaySnapshot,
    RayStatus,
    Strategy,
)
from tradewind.autoscaler.shape import LabelRule, Selector, Shape
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID

_NODE_ID = re.compile(r"[0-9a-f]{56}")
_SUPERVISOR_PREFIX = "_ray_internal_job_actor_"  # + submission id: the actor in which an entrypoint runs
_SUBMISSION_PREFIX = b"_ray_internal_job_info_"
_SUBMISSION_NAMESPACE = b"job"
_HEAD_RESOURCE = "node:__internal_head__"
_MAX_TASKS = 10_000
_ACTOR_PENDING, _ACTOR_ALIVE, _ACTOR_RESTARTING = 1, 2, 3
_GROUP_REMOVED = 3
_NOT_IN = 2


class RayState:
    """RayPort of a real head at `gcs_address` ("127.0.0.2:20379")."""

    def __init__(self, gcs_address: str, timeout_s: float = 5.0) -> None:
        from ray._private.gcs_utils import create_gcs_channel
        from ray.core.generated import autoscaler_pb2_grpc, gcs_service_pb2_grpc

        self.gcs_address = gcs_address
        self._timeout_s = timeout_s
        self._channel = create_gcs_channel(gcs_address)  # takes Ray's token and TLS settings from the environment
        self._autoscaler = autoscaler_pb2_grpc.AutoscalerStateServiceStub(self._channel)
        self._actors = gcs_service_pb2_grpc.ActorInfoGcsServiceStub(self._channel)
        self._groups = gcs_service_pb2_grpc.PlacementGroupInfoGcsServiceStub(self._channel)
        self._jobs = gcs_service_pb2_grpc.JobInfoGcsServiceStub(self._channel)
        self._tasks = gcs_service_pb2_grpc.TaskInfoGcsServiceStub(self._channel)
        self._nodes = gcs_service_pb2_grpc.NodeInfoGcsServiceStub(self._channel)
        self._kv = gcs_service_pb2_grpc.InternalKVGcsServiceStub(self._channel)
        # GCS keeps the report of the highest version: a controller that starts again must go on above the last one.
        self._report_version = time.time_ns() // 1_000_000
        self._announced = False

    def close(self) -> None:
        self._channel.close()

    def is_there(self) -> bool:
        """Whether the head answers at all; costs it next to nothing."""
        from ray.core.generated import gcs_service_pb2 as gs

        try:
            self._call(self._nodes.CheckAlive, gs.CheckAliveRequest())
        except RayError:
            return False
        return True

    def snapshot(self) -> RaySnapshot:
        self._announce()
        state = self._cluster_state()
        jobs = self._read_jobs(_head_of(state.node_states))
        by_ray_job = {job.ray_job_id: job.job_id for job in jobs if job.ray_job_id}
        actors, groups = self._read_actors(), self._read_groups()
        nodes = tuple(_node(row) for row in state.node_states)
        claims = _actor_claims(actors, by_ray_job)
        held = add_claims([*claims, *_group_claims(groups, by_ray_job)])
        rest = unclaimed(nodes, held)
        if rest:
            running = [job.job_id for job in jobs if not job.is_dead and not job.is_internal and job.ray_job_id]
            tasks = self._running_tasks(by_ray_job) if len(set(running)) > 1 else []
            held = _merge(held, claim_rest(rest, running, tasks))
        return RaySnapshot(
            nodes=nodes,
            pending=_counted(state.pending_resource_requests),
            pending_actors=_pending_actors(actors, by_ray_job),
            gangs=tuple(_gang(row, groups, by_ray_job) for row in state.pending_gang_resource_requests),
            constraints=_counted(row for c in state.cluster_resource_constraints for row in c.resource_requests),
            jobs=jobs,
            holdings=held,
            guests=guests_of(claims, {job.job_id for job in jobs if job.is_internal}),
            version=state.cluster_resource_state_version,
        )

    def drain(
        self, ray_node_id: str, reason: DrainReason, message: str, deadline_s: float | None = None
    ) -> tuple[bool, str]:
        from ray.core.generated import autoscaler_pb2 as pb

        # GCS dies of an id of the wrong length, and takes the whole cell with it; an unknown id it accepts in silence.
        if not _NODE_ID.fullmatch(ray_node_id):
            raise RayError(f"{ray_node_id!r} is not a Ray node id", "give the 56 hex digits that the snapshot shows")
        known = {row.node_id.hex(): row for row in self._cluster_state().node_states}
        if ray_node_id not in known or _status(known[ray_node_id]) is RayStatus.DEAD:
            return False, "Ray has no living node of this id"
        wanted = "IDLE_TERMINATION" if reason is DrainReason.IDLE else "PREEMPTION"
        reply = self._call(
            self._autoscaler.DrainNode,
            pb.DrainNodeRequest(
                node_id=bytes.fromhex(ray_node_id),
                reason=pb.DrainNodeReason.Value(f"DRAIN_NODE_REASON_{wanted}"),
                reason_message=message,
                deadline_timestamp_ms=int((deadline_s or 0.0) * 1000),
            ),
        )
        return bool(reply.is_accepted), str(reply.rejection_reason_message)

    def report(self, report: RayReport) -> None:
        from ray.core.generated import autoscaler_pb2 as pb

        self._report_version += 1
        state = pb.AutoscalingState(
            last_seen_cluster_resource_state_version=report.version, autoscaler_state_version=self._report_version
        )
        for kind, launch_id, details in report.pending:
            state.pending_instances.add(
                instance_type_name=kind, ray_node_type_name=kind, instance_id=launch_id, details=details
            )
        for shape in report.infeasible:
            request = state.infeasible_resource_requests.add()
            request.resources_bundle.update(dict(shape.resources))
        for kind, why, at_s in report.failed:
            state.failed_instance_requests.add(
                instance_type_name=kind, ray_node_type_name=kind, count=1, reason=why, failed_ts=int(at_s)
            )
        self._call(self._autoscaler.ReportAutoscalingState, pb.ReportAutoscalingStateRequest(autoscaling_state=state))

    # --- calls ------------------------------------------------------------------------------------------------

    def _call(self, method: Any, request: Any) -> Any:
        import grpc  # type: ignore[import-untyped]

        try:
            return method(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            code = getattr(error, "code", lambda: "unknown")()
            raise RayError(f"Ray's head at {self.gcs_address} does not answer: {code}") from error

    def _announce(self) -> None:
        """Tell drivers that requests go to GCS (autoscaler v2): otherwise `request_resources` and `ray status`
        talk to the old monitor, which does not run here."""
        from ray._raylet import (  # type: ignore[attr-defined]
            GCS_AUTOSCALER_STATE_NAMESPACE,
            GCS_AUTOSCALER_V2_ENABLED_KEY,
        )
        from ray.core.generated import gcs_service_pb2 as gs

        if self._announced:
            return
        request = gs.InternalKVPutRequest(
            key=GCS_AUTOSCALER_V2_ENABLED_KEY.encode(),
            namespace=GCS_AUTOSCALER_STATE_NAMESPACE.encode(),
            value=b"1",
            overwrite=True,
        )
        self._call(self._kv.InternalKVPut, request)
        self._announced = True

    def _cluster_state(self) -> Any:
        from ray.core.generated import autoscaler_pb2 as pb

        reply = self._call(self._autoscaler.GetClusterResourceState, pb.GetClusterResourceStateRequest())
        return reply.cluster_resource_state

    def _read_actors(self) -> list[Any]:
        """Living and waiting ones. By state, because GCS keeps up to 100,000 dead ones."""
        from ray.core.generated import gcs_service_pb2 as gs

        found: list[Any] = []
        for state in (_ACTOR_PENDING, _ACTOR_ALIVE, _ACTOR_RESTARTING):
            request = gs.GetAllActorInfoRequest()
            request.filters.state = state
            found.extend(self._call(self._actors.GetAllActorInfo, request).actor_table_data)
        return found

    def _read_groups(self) -> list[Any]:
        from ray.core.generated import gcs_service_pb2 as gs

        reply = self._call(self._groups.GetAllPlacementGroup, gs.GetAllPlacementGroupRequest())
        return [row for row in reply.placement_group_table_data if row.state != _GROUP_REMOVED]

    def _read_jobs(self, head_node_id: str) -> tuple[RayJob, ...]:
        from ray.core.generated import gcs_service_pb2 as gs

        # Without the skips, GCS calls back every driver.
        request = gs.GetAllJobInfoRequest(skip_submission_job_info_field=True, skip_is_running_tasks_field=True)
        submissions = self._read_submissions()
        rows = self._call(self._jobs.GetAllJobInfo, request).job_info_list
        drivers = [_job(row, submissions, head_node_id) for row in rows]
        connected = {job.submission_id for job in drivers}
        waiting = [_submission(key, row) for key, row in submissions.items() if key not in connected]
        return (*drivers, *waiting)

    def _read_submissions(self) -> dict[str, dict[str, Any]]:
        """What the Jobs API has on record. A job whose driver has not connected (yet) is only there."""
        from ray.core.generated import gcs_service_pb2 as gs

        keys = self._call(
            self._kv.InternalKVKeys,
            gs.InternalKVKeysRequest(prefix=_SUBMISSION_PREFIX, namespace=_SUBMISSION_NAMESPACE),
        ).results
        if not keys:
            return {}
        rows = self._call(
            self._kv.InternalKVMultiGet, gs.InternalKVMultiGetRequest(keys=keys, namespace=_SUBMISSION_NAMESPACE)
        ).results
        return {row.key[len(_SUBMISSION_PREFIX) :].decode(): json.loads(row.value) for row in rows}

    def _running_tasks(self, by_ray_job: Mapping[str, str]) -> list[Claim]:
        from ray.core.generated import gcs_service_pb2 as gs

        request = gs.GetTaskEventsRequest(limit=_MAX_TASKS)
        request.filters.exclude_driver = True
        request.filters.state_filters.add(state="RUNNING", predicate=gs.FilterPredicate.EQUAL)
        rows = self._call(self._tasks.GetTaskEvents, request).events_by_task
        return [
            Claim(_job_name(row.job_id, by_ray_job), row.state_updates.node_id.hex(), row.task_info.required_resources)
            for row in rows
            if row.task_info.type == 0 and not row.task_info.placement_group_id  # plain tasks; bundles are counted
        ]


# --- rows -> values (pure) ------------------------------------------------------------------------------------------


def _head_of(rows: Iterable[Any]) -> str:
    return next((row.node_id.hex() for row in rows if _HEAD_RESOURCE in row.total_resources), "")


def _status(row: Any) -> RayStatus:
    return {1: RayStatus.RUNNING, 2: RayStatus.DEAD, 3: RayStatus.IDLE, 4: RayStatus.DRAINING}.get(
        row.status, RayStatus.RUNNING
    )


def _node(row: Any) -> RayNode:
    labels = dict(row.labels)
    is_head = _HEAD_RESOURCE in row.total_resources
    return RayNode(
        ray_node_id=row.node_id.hex(),
        launch_id="" if is_head else labels.get(LABEL_LAUNCH_ID, "") or row.instance_id,
        status=_status(row),
        total={key: value for key, value in row.total_resources.items() if is_own_resource(key)},
        available={key: value for key, value in row.available_resources.items() if is_own_resource(key)},
        labels=labels,
        idle_s=row.idle_duration_ms / 1000,
    )


def _selectors(rows: Iterable[Any]) -> tuple[Selector, ...]:
    return tuple(
        tuple(
            LabelRule(c.label_key, tuple(sorted(c.label_values)), c.operator == _NOT_IN) for c in row.label_constraints
        )
        for row in rows
    )


def _shape(row: Any) -> Shape:
    return Shape.of(row.resources_bundle, selectors=_selectors(row.label_selectors))


def _counted(rows: Iterable[Any]) -> Counted:
    counts: Counter[Shape] = Counter()
    for row in rows:
        # Work that waits for its own placement group waits for no node.
        if not any("_group_" in key for key in row.request.resources_bundle):
            counts[_shape(row.request)] += row.count
    return tuple(sorted(counts.items()))


def _gang(row: Any, groups: Iterable[Any], by_ray_job: Mapping[str, str]) -> Gang:
    """`details` reads "id:STRATEGY|STATE". Of the fallback selectors, any one will do for a bundle."""
    gang_id, _, rest = row.details.partition(":")
    alternatives = [choice.resource_requests for choice in row.bundle_selectors] or [row.requests]
    bundles = tuple(
        Shape.of(
            same[0].resources_bundle, selectors=[s for one in same for s in _selectors(one.label_selectors) or ((),)]
        )
        for same in zip(*alternatives, strict=False)
    )
    group = next((g for g in groups if g.placement_group_id.hex() == gang_id), None)
    return Gang(
        gang_id=gang_id,
        strategy=Strategy(rest.partition("|")[0] or "PACK"),
        bundles=bundles,
        job_id=_job_name(group.creator_job_id, by_ray_job) if group is not None else "",
        placed_on=frozenset(b.node_id.hex() for b in group.bundles if b.node_id) if group is not None else frozenset(),
    )


def _job(row: Any, submissions: Mapping[str, Mapping[str, Any]], head_node_id: str) -> RayJob:
    metadata = dict(row.config.metadata)
    submission_id = metadata.get("job_submission_id", "")
    sent = submissions.get(submission_id, {})
    return RayJob(
        ray_job_id=row.job_id.hex(),
        submission_id=submission_id,
        is_dead=row.is_dead,
        status=sent.get("status") or "",
        namespace=row.config.ray_namespace,
        entrypoint=sent.get("entrypoint") or row.entrypoint,
        message=sent.get("message") or "",
        metadata={**metadata, **(sent.get("metadata") or {})},
        started_at_s=row.start_time / 1000 if row.start_time else None,
        ended_at_s=row.end_time / 1000 if row.end_time else None,
        head_node_id=head_node_id,
    )


def _submission(submission_id: str, row: Mapping[str, Any]) -> RayJob:
    return RayJob(
        ray_job_id="",
        submission_id=submission_id,
        is_dead=row.get("status") in ("SUCCEEDED", "FAILED", "STOPPED"),
        status=row.get("status") or "",
        entrypoint=row.get("entrypoint") or "",
        message=row.get("message") or "",
        metadata=row.get("metadata") or {},
        started_at_s=row["start_time"] / 1000 if row.get("start_time") else None,
        ended_at_s=row["end_time"] / 1000 if row.get("end_time") else None,
    )


def _job_name(raw_job_id: bytes, by_ray_job: Mapping[str, str]) -> str:
    return by_ray_job.get(raw_job_id.hex(), f"ray-{raw_job_id.hex()}")


def _actor_claims(actors: Iterable[Any], by_ray_job: Mapping[str, str]) -> list[Claim]:
    """Actors inside a placement group are left out: their bundle is counted."""
    claims = []
    for row in actors:
        if row.state == _ACTOR_ALIVE and not row.placement_group_id:
            own = row.name.removeprefix(_SUPERVISOR_PREFIX) if row.name.startswith(_SUPERVISOR_PREFIX) else ""
            claims.append(Claim(own or _job_name(row.job_id, by_ray_job), row.node_id.hex(), row.required_resources))
    return claims


def _group_claims(groups: Iterable[Any], by_ray_job: Mapping[str, str]) -> list[Claim]:
    return [
        Claim(_job_name(group.creator_job_id, by_ray_job), bundle.node_id.hex(), bundle.unit_resources)
        for group in groups
        for bundle in group.bundles
        if bundle.node_id
    ]


def _pending_actors(actors: Iterable[Any], by_ray_job: Mapping[str, str]) -> dict[str, Counted]:
    counts: dict[str, Counter[Shape]] = {}
    for row in actors:
        if row.state != _ACTOR_ALIVE and not row.placement_group_id:
            mine = counts.setdefault(_job_name(row.job_id, by_ray_job), Counter())
            mine[Shape.of(row.required_resources)] += 1
    return {job_id: tuple(sorted(mine.items())) for job_id, mine in counts.items()}


def _merge(held: Mapping[tuple[str, str], Mapping[str, float]], more: Iterable[Claim]) -> dict[Any, dict[str, float]]:
    return add_claims([*(Claim(job, node, amounts) for (job, node), amounts in held.items()), *more])
