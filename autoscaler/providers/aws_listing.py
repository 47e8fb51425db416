"""What EC2 tells of an instance and of its spot request -> CloudNode. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from tradewind.autoscaler.providers.aws_requests import TAG_LAUNCH_ID, TAG_OFFER, from_tag_list, offer_from_text
from tradewind.autoscaler.providers.aws_settings import CLOUD
from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.model import Capacity, EndReason, Market

NOTICE_S = 120.0  # what AWS promises between the mark and the end
MARKED = ("marked-for-termination", "marked-for-stop")  # the status of a spot request while the notice runs
_STATES = {
    "pending": CloudState.PENDING,
    "running": CloudState.RUNNING,
    "shutting-down": CloudState.STOPPING,
    "stopping": CloudState.STOPPING,
    "stopped": CloudState.STOPPING,  # we never stop one; its disk is still billed, so it is not gone
    "terminated": CloudState.GONE,
}
_TRANSITION_TIME = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
_BY_REASON = {
    "Client.UserInitiatedShutdown": EndReason.TERMINATED,
    "Server.SpotInstanceTermination": EndReason.PREEMPTED,
    "Server.SpotInstanceShutdown": EndReason.PREEMPTED,
    "Server.ScheduledStop": EndReason.PREEMPTED,  # AWS retires the hardware
}


@dataclass(frozen=True, slots=True)
class SpotStatus:
    """Of the spot request behind an instance."""

    code: str
    message: str
    at_s: float | None

    @classmethod
    def of(cls, request: Mapping[str, Any]) -> SpotStatus:
        status = request.get("Status", {})
        at = status.get("UpdateTime")
        return cls(status.get("Code", ""), status.get("Message", ""), at.timestamp() if at is not None else None)


def node_of(instance: Mapping[str, Any], region: str, spot: SpotStatus | None = None) -> CloudNode:
    tags = from_tag_list(instance.get("Tags", []))
    state = _STATES[instance["State"]["Name"]]
    created_at_s = instance["LaunchTime"].timestamp()
    ended_at_s = _ended_at(instance, spot) if state is CloudState.GONE else None
    has_run = state is not CloudState.PENDING and not _never_ran(instance)
    notice_s = spot.at_s + NOTICE_S if spot and spot.at_s is not None and spot.code in MARKED else None
    return CloudNode(
        launch_id=tags.get(TAG_LAUNCH_ID) or instance["InstanceId"],  # somebody took the tag off: it is ours still
        instance_id=instance["InstanceId"],
        offer=offer_from_text(tags.get(TAG_OFFER, ""), market_of(instance, region)),
        state=state,
        created_at_s=created_at_s,
        billed_from_s=created_at_s if has_run else None,
        billed_until_s=ended_at_s if has_run else None,
        notice_deadline_s=notice_s if state is CloudState.RUNNING else None,
        end=_end_of(instance) if state is CloudState.GONE else None,
        detail=_detail(instance, spot),
        address=instance.get("PrivateIpAddress", ""),
        placement_group=instance["Placement"].get("GroupName", ""),
    )


def market_of(instance: Mapping[str, Any], region: str) -> Market:
    capacity = Capacity.SPOT if instance.get("InstanceLifecycle") == "spot" else Capacity.ON_DEMAND
    return Market(CLOUD, region, instance["Placement"]["AvailabilityZone"], instance["InstanceType"], capacity)


def _reason(instance: Mapping[str, Any]) -> str:
    code: str = instance.get("StateReason", {}).get("Code", "")
    return code


def _never_ran(instance: Mapping[str, Any]) -> bool:
    """It went from pending to its end: accepted, never billed."""
    failed = ("Server.InsufficientInstanceCapacity", "Server.InternalError", "Client.InternalError")
    return _reason(instance) in (*failed, "Client.InvalidSnapshot.NotFound", "Client.VolumeLimitExceeded")


def _end_of(instance: Mapping[str, Any]) -> EndReason:
    """Anything else ended by itself: a failed boot, a shutdown from inside."""
    return _BY_REASON.get(_reason(instance), EndReason.CRASHED)


def _ended_at(instance: Mapping[str, Any], spot: SpotStatus | None) -> float | None:
    """EC2 has no field for it: the time stands in the text of the transition, or in the spot request."""
    found = _TRANSITION_TIME.search(instance.get("StateTransitionReason", ""))
    if found:
        return datetime.strptime(found.group(1), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    return spot.at_s if spot is not None else None


def _detail(instance: Mapping[str, Any], spot: SpotStatus | None) -> str:
    parts = [instance.get("StateReason", {}).get("Message", "")]
    if spot is not None and spot.code.startswith(("marked-", "instance-terminated-", "instance-stopped-")):
        parts.append(f"{spot.code}: {spot.message}")
    return "; ".join(part for part in parts if part)
