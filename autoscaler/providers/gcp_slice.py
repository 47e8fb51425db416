"""A launch -> the TPU slice that Google is asked for, and a listed slice -> a CloudNode. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tradewind.autoscaler.providers import gcp_errors
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.gcp_instance import metadata_of, network_of
from tradewind.autoscaler.providers.gcp_settings import (
    LABEL_FLEET,
    LABEL_LAUNCH_ID,
    SCOPE,
    GcpSettings,
    Names,
    is_spot,
    region_of,
)
from tradewind.model import Capacity, EndReason, Market

PREFIX = "tpu-"  # before Google's accelerator type, in the catalogue: "tpu-v5litepod-16"
# Google's base images, by generation.
_RUNTIMES = {"v5litepod": "v2-alpha-tpuv5-lite", "v5p": "v2-alpha-tpuv5", "v6e": "v2-alpha-tpuv6e"}
_OLD_RUNTIME = "tpu-ubuntu2204-base"

_STATES = {
    "CREATING": CloudState.PENDING,
    "READY": CloudState.RUNNING,
    "STARTING": CloudState.RUNNING,
    "RESTARTING": CloudState.RUNNING,
    "REIMAGING": CloudState.RUNNING,
    "REPAIRING": CloudState.RUNNING,
    "STOPPING": CloudState.STOPPING,
    "DELETING": CloudState.STOPPING,
    "STOPPED": CloudState.GONE,  # these are no longer billed, but there, and count for the quota: debris
    "TERMINATED": CloudState.GONE,
    "PREEMPTED": CloudState.GONE,
}
# Of a queued resource; where it is ACTIVE, its node tells.
_QUEUE_STATES = {
    "CREATING": CloudState.PENDING,
    "ACCEPTED": CloudState.PENDING,
    "WAITING_FOR_RESOURCES": CloudState.PENDING,
    "PROVISIONING": CloudState.PENDING,
    "ACTIVE": CloudState.RUNNING,
    "SUSPENDING": CloudState.STOPPING,
    "DELETING": CloudState.STOPPING,
    "SUSPENDED": CloudState.GONE,
    "FAILED": CloudState.GONE,
}


# --- asking ----------------------------------------------------------------------------------------------------


def accelerator_type(instance_type: str) -> str:
    return instance_type.removeprefix(PREFIX)


def runtime_of(instance_type: str, settings: GcpSettings) -> str:
    generation = accelerator_type(instance_type).partition("-")[0]
    return settings.tpu_runtime or _RUNTIMES.get(generation, _OLD_RUNTIME)


def node_body(spec: LaunchSpec, names: Names, settings: GcpSettings, user_data: str) -> dict[str, Any]:
    """One node for the whole slice; every host gets the same metadata, and no external address."""
    market = spec.offer.market
    network = network_of(settings, region_of(market.zone))
    body: dict[str, Any] = {
        "accelerator_type": accelerator_type(market.instance_type),
        "runtime_version": runtime_of(market.instance_type, settings),
        "network_config": {**network, "enable_external_ips": False},
        "labels": {**settings.labels, **names.labels(spec)},
        "metadata": metadata_of(user_data),
        "tags": list(settings.network_tags),
        "shielded_instance_config": {"enable_secure_boot": settings.secure_boot},
        "scheduling_config": {"spot": is_spot(spec.offer), "reserved": _is_reserved(spec, settings)},
    }
    if settings.service_account:
        body["service_account"] = {"email": settings.service_account, "scope": [SCOPE]}
    return body


def queued_body(spec: LaunchSpec, name: str, node: Mapping[str, Any], settings: GcpSettings) -> dict[str, Any]:
    """The same node, but in Google's queue until its time is over. The tier stands for the node's scheduling."""
    parent = f"projects/{settings.project}/locations/{spec.offer.market.zone}"
    inner = {key: value for key, value in node.items() if key != "scheduling_config"}
    tier: dict[str, Any] = {"spot": {}} if is_spot(spec.offer) else {}
    if _is_reserved(spec, settings):
        tier = {"guaranteed": {}, "reservation_name": f"{parent}/reservations/{settings.reservation}"}
    return {
        "tpu": {"node_spec": [{"parent": parent, "node_id": name, "node": inner}]},
        "queueing_policy": {"valid_until_duration": {"seconds": int(settings.tpu_queue_s)}},
        **tier,
    }


def _is_reserved(spec: LaunchSpec, settings: GcpSettings) -> bool:
    return bool(settings.reservation) and not is_spot(spec.offer)


# --- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deed:
    """One operation on a slice of ours, as Google remembers it."""

    verb: str  # "create", "delete"
    zone: str
    kind: str  # "nodes", "queuedResources"
    name: str
    began_s: float
    ended_s: float | None  # None: still going on
    failure: str = ""
    code: str = ""  # of the failure


def short_name(full: str) -> str:
    return full.rpartition("/")[2]


def is_ours(labels: Mapping[str, str], fleet: str) -> bool:
    return labels.get(LABEL_FLEET) == fleet and bool(labels.get(LABEL_LAUNCH_ID))


def deed(operation: Any, zone: str) -> Deed | None:
    """Of a longrunning Operation; None if it is not about a node or a queued resource."""
    from google.cloud import tpu_v2

    metadata = tpu_v2.OperationMetadata.deserialize(operation.metadata.value)
    if not metadata.target or metadata.verb not in ("create", "delete"):
        return None
    return Deed(
        verb=metadata.verb,
        zone=zone,
        kind=metadata.target.split("/")[-2],
        name=short_name(metadata.target),
        began_s=metadata.create_time.timestamp(),
        ended_s=metadata.end_time.timestamp() if operation.done and metadata.end_time else None,
        failure=operation.error.message,
        code=gcp_errors.grpc_name(operation.error.code) if operation.error.code else "",
    )


def slice_node(node: Any, zone: str, names: Names, ready_s: float | None = None) -> CloudNode:
    """Of a listed Node of the SDK. Google does not tell since when it is ready: `ready_s`, if it is still on record."""
    state = _STATES.get(node.state.name, CloudState.RUNNING)  # a state that is new to us may well be billed
    created_s = node.create_time.timestamp()
    preempted = node.state.name == "PREEMPTED"
    return CloudNode(
        launch_id=node.labels[LABEL_LAUNCH_ID],
        instance_id=short_name(node.name),
        offer=names.offer(_market(node, zone, is_spot_node(node))),
        state=state,
        created_at_s=created_s,
        billed_from_s=(ready_s or created_s) if state is CloudState.RUNNING else None,
        end=(EndReason.PREEMPTED if preempted else EndReason.CRASHED) if state is CloudState.GONE else None,
        detail=node.health_description or (f"its state is {node.state.name}" if state is CloudState.GONE else ""),
    )


def queued_node(queued: Any, zone: str, names: Names) -> CloudNode:
    """Of a listed QueuedResource whose node is not there: not yet, or no longer."""
    inner = queued.tpu.node_spec[0].node
    state = _QUEUE_STATES.get(queued.state.state.name, CloudState.PENDING)
    failure = queued.state.failed_data.error
    code = gcp_errors.grpc_name(failure.code)
    refused = gcp_errors.remembered(code, failure.message) if failure.code else None
    suspended = queued.state.state.name == "SUSPENDED"
    return CloudNode(
        launch_id=inner.labels[LABEL_LAUNCH_ID],
        instance_id=short_name(queued.name),
        offer=names.offer(_market(inner, zone, "spot" in queued)),
        state=CloudState.PENDING if state is CloudState.RUNNING else state,
        created_at_s=queued.create_time.timestamp(),
        end=(EndReason.PREEMPTED if suspended else EndReason.CRASHED) if state is CloudState.GONE else None,
        detail=refused.message if refused else f"its queued resource is {queued.state.state.name}",
        refusal=refused if state is CloudState.GONE else None,
    )


def is_spot_node(node: Any) -> bool:
    return bool(node.scheduling_config.spot or node.scheduling_config.preemptible)


def _market(node: Any, zone: str, spot: bool) -> Market:
    capacity = Capacity.SPOT if spot else Capacity.ON_DEMAND
    return Market("gcp", region_of(zone), zone, PREFIX + node.accelerator_type, capacity)


def ended_slice(told: list[Deed], names: Names) -> CloudNode | None:
    """What Google remembers of a slice that is no longer listed: that it was deleted, or never came to be."""
    whose = names.whose(told[0].name, told[0].zone)
    by_age = sorted(told, key=lambda each: each.began_s)
    start = next((each for each in reversed(by_age) if each.verb == "create"), None)
    end = next((each for each in by_age if each.verb == "delete"), None)
    if whose is None or (end is None and not (start and start.failure)):
        return None
    return CloudNode(
        launch_id=whose[0],
        instance_id=told[0].name,
        offer=whose[1],
        state=CloudState.GONE,
        created_at_s=by_age[0].began_s,
        billed_from_s=start.ended_s if start and not start.failure else None,
        billed_until_s=(end.ended_s or end.began_s) if end else None,
        end=EndReason.TERMINATED if end else EndReason.CRASHED,
        detail="deleted" if end else start.failure if start else "",
        refusal=gcp_errors.remembered(start.code, start.failure) if start and start.code and not end else None,
    )
