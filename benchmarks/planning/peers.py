"""Ray's own schedulers on the same case, each in a child process that is ended after a time limit. Not a benchmark.

Both know no price and no market: an offer becomes a node type of its own. What they would launch is priced by us.
Version 1 knows no labels (its requests go without selectors).
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from planning.cases import Case

from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer

UNLIMITED = 10**6


@dataclass(frozen=True, slots=True)
class Answer:
    """`seconds` is the time limit where `capped`: the true time is longer."""

    seconds: float
    launches: Mapping[str, int]  # market key -> nodes
    unserved: int
    capped: bool = False

    def price_uusd_per_h(self, offers: tuple[Offer, ...]) -> int:
        prices = {offer.market.key: offer.price_uusd_per_h or 0 for offer in offers}
        return sum(prices[key] * count for key, count in self.launches.items() if key in prices)


def ask(scheduler: Callable[[Case], Answer], case: Case, limit_s: float) -> Answer:
    """Run in a child: neither scheduler can be interrupted from inside."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(scheduler, case, theirs), daemon=True)
    began_s = time.perf_counter()
    child.start()
    theirs.close()
    # Building its input is not counted, so the child gets some seconds more than the limit.
    answered = ours.poll(limit_s + 30.0)
    answer = ours.recv() if answered else Answer(time.perf_counter() - began_s, {}, 0, capped=True)
    child.kill()
    child.join()
    return Answer(limit_s, {}, 0, capped=True) if answer.capped or answer.seconds > limit_s else answer


def _answer(scheduler: Callable[[Case], Answer], case: Case, to: Connection) -> None:
    logging.disable(logging.CRITICAL)
    to.send(scheduler(case))


# --- version 2 --------------------------------------------------------------------------------------------------


def ray_v2(case: Case) -> Answer:
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest

    scheduler, request = ResourceDemandScheduler(), SchedulingRequest(**_v2_request(case))
    began_s = time.perf_counter()
    reply = scheduler.schedule(request)
    seconds = time.perf_counter() - began_s
    launches = {launch.instance_type: launch.count for launch in reply.to_launch}
    left = len(reply.infeasible_resource_requests) + len(reply.infeasible_gang_resource_requests)
    return Answer(seconds, launches, left)


def _v2_request(case: Case) -> dict[str, Any]:
    from ray.autoscaler.v2.instance_manager.config import NodeTypeConfig
    from ray.autoscaler.v2.utils import ResourceRequestUtil

    types = {"head": NodeTypeConfig(name="head", min_worker_nodes=0, max_worker_nodes=1, resources={"CPU": 0.0})}
    for offer in case.view.offers:
        key = offer.market.key
        types[key] = NodeTypeConfig(
            name=key, min_worker_nodes=0, max_worker_nodes=UNLIMITED, resources=offer.resources, labels=offer.labels
        )
    requests = [(_v2_one(shape), count) for shape, count in case.snapshot.pending]
    return {
        "disable_launch_config_check": True,
        "node_type_configs": types,
        "max_num_nodes": UNLIMITED,
        "resource_requests": ResourceRequestUtil.group_by_count([one for one, n in requests for _ in range(n)]),
        "gang_resource_requests": _v2_gangs(case),
        "current_instances": _v2_instances(case),
    }


def _v2_one(shape: Shape, constraint: list[Any] | None = None) -> Any:
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.common_pb2 import LabelSelectorOperator

    names = {False: "LABEL_OPERATOR_IN", True: "LABEL_OPERATOR_NOT_IN"}
    selectors = [
        [(rule.key, LabelSelectorOperator.Value(names[rule.negated]), list(rule.values)) for rule in selector]
        for selector in shape.selectors
    ]
    return ResourceRequestUtil.make(dict(shape.resources), constraint, selectors or None)


def _v2_gangs(case: Case) -> list[Any]:
    from ray.autoscaler.v2.utils import ResourceRequestUtil
    from ray.core.generated.autoscaler_pb2 import GangResourceRequest

    kinds = ResourceRequestUtil.PlacementConstraintType
    laws = {Strategy.STRICT_SPREAD: kinds.ANTI_AFFINITY, Strategy.STRICT_PACK: kinds.AFFINITY}
    found = []
    for gang in case.snapshot.gangs:
        law = laws.get(gang.strategy)
        constraint = [(law, gang.gang_id, "")] if law is not None else None
        found.append(GangResourceRequest(requests=[_v2_one(bundle, constraint) for bundle in gang.bundles]))
    return found


def _v2_instances(case: Case) -> list[Any]:
    from ray.autoscaler.v2.schema import AutoscalerInstance
    from ray.core.generated.autoscaler_pb2 import NodeState, NodeStatus
    from ray.core.generated.instance_manager_pb2 import Instance, NodeKind

    head = Instance(
        instance_type="head", status=Instance.RAY_RUNNING, instance_id="h", node_id="h", node_kind=NodeKind.HEAD
    )
    state = NodeState(ray_node_type_name="head", node_id=b"h", instance_id="h", status=NodeStatus.RUNNING)
    found = [AutoscalerInstance(cloud_instance_id="h", im_instance=head, ray_node=state)]
    for node in case.view.nodes:
        name, key, ray = node.launch_id, node.requested.offer.market.key, node.ray
        status = Instance.RAY_RUNNING if ray else Instance.ALLOCATED
        instance = Instance(instance_type=key, status=status, instance_id=name, node_id=name, node_kind=NodeKind.WORKER)
        state = None
        if ray is not None:
            idle = ray.idle_s > 0
            state = NodeState(
                ray_node_type_name=key, node_id=name.encode(), instance_id=name,
                total_resources=dict(ray.total), available_resources=dict(ray.available), labels=dict(ray.labels),
                status=NodeStatus.IDLE if idle else NodeStatus.RUNNING, idle_duration_ms=0,
            )  # fmt: skip
        found.append(AutoscalerInstance(cloud_instance_id=name, im_instance=instance, ray_node=state))
    return found


# --- version 1 --------------------------------------------------------------------------------------------------


def ray_v1(case: Case) -> Answer:
    from ray.autoscaler._private.node_provider_availability_tracker import NodeAvailabilitySummary
    from ray.autoscaler._private.resource_demand_scheduler import ResourceDemandScheduler

    types = {"head": _v1_type({"CPU": 0.0})}
    types |= {offer.market.key: _v1_type(offer.resources) for offer in case.view.offers}
    scheduler = ResourceDemandScheduler(_V1Nodes(case), types, UNLIMITED, "head", 1e9)
    launching: dict[str, int] = {}
    for node in case.view.nodes:
        if node.ray is None:
            key = node.requested.offer.market.key
            launching[key] = launching.get(key, 0) + 1
    rays = {f"ip-{node.launch_id}": node.ray for node in case.view.nodes if node.ray is not None}
    requests = [dict(shape.resources) for shape, count in case.snapshot.pending for _ in range(count)]
    began_s = time.perf_counter()
    launches, left = scheduler.get_nodes_to_launch(
        ["h", *(ray.launch_id for ray in rays.values())],
        launching,
        requests,
        {"ip-h": {"CPU": 0.0}, **{address: dict(ray.available) for address, ray in rays.items()}},
        _v1_gangs(case),
        {"ip-h": {"CPU": 0.0}, **{address: dict(ray.total) for address, ray in rays.items()}},
        [],
        NodeAvailabilitySummary({}),
    )
    return Answer(time.perf_counter() - began_s, dict(launches), len(left))


def _v1_type(resources: Mapping[str, float]) -> dict[str, Any]:
    return {"resources": dict(resources), "min_workers": 0, "max_workers": UNLIMITED, "node_config": {}}


class _V1Nodes:
    """What it asks of a node provider."""

    def __init__(self, case: Case) -> None:
        self._types = {node.launch_id: node.requested.offer.market.key for node in case.view.nodes}

    def node_tags(self, node_id: str) -> dict[str, str]:
        from ray.autoscaler.tags import TAG_RAY_NODE_KIND, TAG_RAY_NODE_STATUS, TAG_RAY_USER_NODE_TYPE

        kind = "head" if node_id == "h" else "worker"
        node_type = self._types.get(node_id, "head")
        return {TAG_RAY_NODE_KIND: kind, TAG_RAY_USER_NODE_TYPE: node_type, TAG_RAY_NODE_STATUS: "up-to-date"}

    def internal_ip(self, node_id: str) -> str:
        return f"ip-{node_id}"


def _v1_gangs(case: Case) -> list[Any]:
    from ray.core.generated.common_pb2 import PlacementStrategy
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData

    found = []
    for gang in case.snapshot.gangs:
        table = PlacementGroupTableData(
            state=PlacementGroupTableData.PENDING, strategy=PlacementStrategy.Value(gang.strategy)
        )
        for bundle in gang.bundles:
            table.bundles.add().unit_resources.update(dict(bundle.resources))
        found.append(table)
    return found
