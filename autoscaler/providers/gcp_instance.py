"""A launch -> the machine that Compute Engine is asked for, and a listed machine -> a CloudNode. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tradewind.autoscaler.placement import is_group_of
from tradewind.autoscaler.providers import gcp_errors
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.gcp_settings import (
    LABEL_LAUNCH_ID,
    SCOPE,
    GcpSettings,
    Names,
    is_spot,
    region_of,
)
from tradewind.errors import InvalidRequest
from tradewind.model import Capacity, EndReason, Market

NOTICE_S = 30.0  # between the announcement of a preemption and its end
# What the catalogue calls "n1-standard-8+t4x1" is a machine with cards; all other GPU types have theirs built in.
_CARDS = {
    "t4": "nvidia-tesla-t4",
    "p4": "nvidia-tesla-p4",
    "p100": "nvidia-tesla-p100",
    "v100": "nvidia-tesla-v100",
}
_CARD_NAMES = {card: short for short, card in _CARDS.items()}
_HYPERDISK_ONLY = ("a3-ultragpu", "a4-", "g4-", "c4-", "n4-")  # these take no persistent disk

_STOPPED = ("STOPPED", "SUSPENDED", "TERMINATED")
_STATES = {
    "PROVISIONING": CloudState.PENDING,
    "STAGING": CloudState.PENDING,
    "RUNNING": CloudState.RUNNING,
    "REPAIRING": CloudState.RUNNING,
    "PENDING_STOP": CloudState.STOPPING,
    "STOPPING": CloudState.STOPPING,
    "DEPROVISIONING": CloudState.STOPPING,
    "SUSPENDING": CloudState.STOPPING,
    # We never stop one: it went down by itself. Its disk is still billed, so it is not gone until it is deleted.
    **dict.fromkeys(_STOPPED, CloudState.STOPPING),
}


# --- asking ----------------------------------------------------------------------------------------------------


def instance_body(spec: LaunchSpec, name: str, names: Names, settings: GcpSettings, user_data: str) -> dict[str, Any]:
    """In the SDK's spelling. No external address: without access configs a machine has none."""
    zone = spec.offer.market.zone
    machine, cards = machine_of(spec.offer.market.instance_type)
    labels = {**settings.labels, **names.labels(spec)}
    body = {
        "name": name,
        "machine_type": f"zones/{zone}/machineTypes/{machine}",
        "labels": labels,
        "scheduling": _scheduling(spec),
        "guest_accelerators": _accelerators(cards, settings.project, zone),
        "disks": [_disk(name, machine, zone, labels, settings)],
        "network_interfaces": [network_of(settings, region_of(zone))],
        "metadata": {"items": [{"key": k, "value": v} for k, v in metadata_of(user_data).items()]},
        "tags": {"items": list(settings.network_tags)},
        "shielded_instance_config": {
            "enable_vtpm": True,
            "enable_integrity_monitoring": True,
            "enable_secure_boot": settings.secure_boot,
        },
        "reservation_affinity": _reservation(spec, settings),
    }
    if spec.placement_group:
        body["resource_policies"] = [policy_link(settings.project, region_of(zone), spec.placement_group)]
    if account := settings.account(spec.role):
        body["service_accounts"] = [{"email": account, "scopes": [SCOPE]}]
    return body


def _accelerators(cards: Mapping[str, int], project: str, zone: str) -> list[dict[str, Any]]:
    folder = f"projects/{project}/zones/{zone}/acceleratorTypes"
    return [{"accelerator_type": f"{folder}/{card}", "accelerator_count": count} for card, count in cards.items()]


def machine_of(instance_type: str) -> tuple[str, dict[str, int]]:
    """ "n1-standard-8+t4x1" -> ("n1-standard-8", {"nvidia-tesla-t4": 1})"""
    machine, plus, cards = instance_type.partition("+")
    if not plus:
        return machine, {}
    short, _, count = cards.rpartition("x")
    if short not in _CARDS or not count.isdigit():
        raise InvalidRequest(f"no such accelerator: {instance_type}", cloud="gcp")
    return machine, {_CARDS[short]: int(count)}


def instance_type_of(machine: str, cards: Mapping[str, int]) -> str:
    """The other way round; Google also lists the cards of types that have them built in."""
    added = [
        f"{_CARD_NAMES[card]}x{n}" for card, n in cards.items() if card in _CARD_NAMES and machine.startswith("n1-")
    ]
    return "+".join([machine, *added])


def metadata_of(user_data: str) -> dict[str, str]:
    """A script is run by Google's own agent, which every image has; anything else is for cloud-init."""
    key = "startup-script" if user_data.startswith("#!") else "user-data"
    return {key: user_data, "block-project-ssh-keys": "TRUE", "enable-oslogin": "TRUE", "serial-port-enable": "FALSE"}


def network_of(settings: GcpSettings, region: str) -> dict[str, str]:
    return {
        "network": _link(settings.network, settings.project, "global/networks"),
        "subnetwork": _link(settings.subnetwork, settings.project, f"regions/{region}/subnetworks"),
    }


def policy_link(project: str, region: str, name: str) -> str:
    return f"projects/{project}/regions/{region}/resourcePolicies/{name}"


def _link(name: str, project: str, folder: str) -> str:
    return name if "/" in name else f"projects/{project}/{folder}/{name}"


def _scheduling(spec: LaunchSpec) -> dict[str, Any]:
    """A lost node is replaced, never restarted. A machine with GPUs cannot move to another host."""
    terminates = is_spot(spec.offer) or bool(spec.offer.accelerator)
    common = {"automatic_restart": False, "on_host_maintenance": "TERMINATE" if terminates else "MIGRATE"}
    if not is_spot(spec.offer):
        return {**common, "provisioning_model": "STANDARD"}
    return {**common, "provisioning_model": "SPOT", "preemptible": True, "instance_termination_action": "DELETE"}


def _disk(name: str, machine: str, zone: str, labels: Mapping[str, str], settings: GcpSettings) -> dict[str, Any]:
    """Named like its machine, so that one that is left behind tells whose it was. Google encrypts all disks."""
    kind = "hyperdisk-balanced" if machine.startswith(_HYPERDISK_ONLY) else "pd-balanced"
    return {
        "boot": True,
        "auto_delete": True,
        "initialize_params": {
            "disk_name": name,
            "source_image": _link(settings.image, settings.project, "global/images"),
            "disk_size_gb": settings.disk_gib,
            "disk_type": f"zones/{zone}/diskTypes/{kind}",
            "labels": dict(labels),
        },
    }


def _reservation(spec: LaunchSpec, settings: GcpSettings) -> dict[str, Any]:
    """Spot machines cannot use a reservation."""
    if is_spot(spec.offer):
        return {"consume_reservation_type": "NO_RESERVATION"}
    if not settings.reservation:
        return {"consume_reservation_type": "ANY_RESERVATION"}
    return {
        "consume_reservation_type": "SPECIFIC_RESERVATION",
        "key": "compute.googleapis.com/reservation-name",
        "values": [settings.reservation],
    }


# --- what has happened -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Happening:
    """One operation on a machine of ours, as Google remembers it."""

    kind: str  # "insert", "delete", "compute.instances.preempted", ...
    zone: str
    name: str
    began_s: float
    ended_s: float | None  # None: still going on
    errors: tuple[tuple[str, str], ...] = ()  # (code, message)
    detail: str = ""


ENDS: Mapping[str, EndReason] = {
    "delete": EndReason.TERMINATED,
    "compute.instances.preempted": EndReason.PREEMPTED,
    "compute.instances.guestTerminate": EndReason.CRASHED,  # shut down from inside
    "compute.instances.hostError": EndReason.CRASHED,
    "compute.instances.terminateOnHostMaintenance": EndReason.CRASHED,
}
KINDS = ("insert", *ENDS)


def happening(operation: Any) -> Happening | None:
    """Of an Operation of the SDK; None if it is not about a machine."""
    zone, folder, name = _last_three(operation.target_link)
    if folder != "instances" or operation.operation_type not in KINDS:
        return None
    errors = tuple((each.code, each.message) for each in operation.error.errors)
    return Happening(
        kind=operation.operation_type,
        zone=zone,
        name=name,
        began_s=seconds(operation.start_time or operation.insert_time) or 0.0,
        ended_s=seconds(operation.end_time) if operation.status.name == "DONE" else None,
        errors=errors,
        detail="; ".join(message for _, message in errors) or operation.status_message,
    )


def _last_three(link: str) -> tuple[str, str, str]:
    """Zone, kind and name, of a link that ends with them."""
    rest, _, name = link.rpartition("/")
    rest, _, folder = rest.rpartition("/")
    return rest.rpartition("/")[2], folder, name


def seconds(timestamp: str) -> float | None:
    """ "2026-08-01T00:00:00.000-07:00" -> since 1970"""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None


# --- reading ---------------------------------------------------------------------------------------------------


def node_of(instance: Any, names: Names, happenings: Sequence[Happening] = ()) -> CloudNode:
    """Of a listed Instance of the SDK, with what has happened to it, oldest first."""
    end = next((each for each in happenings if each.kind in ENDS and not each.errors), None)
    is_preempted = end is not None and ENDS[end.kind] is EndReason.PREEMPTED
    return CloudNode(
        launch_id=instance.labels[LABEL_LAUNCH_ID],
        instance_id=instance.name,
        offer=names.offer(market_of(instance)),
        state=_STATES.get(instance.status, CloudState.RUNNING),  # a state that is new to us may well be billed
        created_at_s=seconds(instance.creation_timestamp) or 0.0,
        billed_from_s=seconds(instance.last_start_timestamp),
        notice_deadline_s=end.began_s + NOTICE_S if is_preempted and end else None,
        detail=_detail(instance, end),
        address=next((card.network_i_p for card in instance.network_interfaces), ""),
        placement_group=_group_of(instance, names),
    )


def _group_of(instance: Any, names: Names) -> str:
    found = (link.rpartition("/")[2] for link in instance.resource_policies)
    return next((name for name in found if is_group_of(names.fleet, name)), "")


def is_stopped(instance: Any) -> bool:
    return instance.status in _STOPPED


def market_of(instance: Any) -> Market:
    zone = instance.zone.rpartition("/")[2]
    cards = {each.accelerator_type.rpartition("/")[2]: each.accelerator_count for each in instance.guest_accelerators}
    instance_type = instance_type_of(instance.machine_type.rpartition("/")[2], cards)
    spot = instance.scheduling.provisioning_model == "SPOT" or instance.scheduling.preemptible
    return Market("gcp", region_of(zone), zone, instance_type, Capacity.SPOT if spot else Capacity.ON_DEMAND)


def _detail(instance: Any, end: Happening | None) -> str:
    stopped = [f"it went down by itself, its status is {instance.status}"] if is_stopped(instance) else []
    return ": ".join(filter(None, [*stopped, *([end.kind, end.detail] if end else []), instance.status_message]))


def ended_nodes(happenings: Sequence[Happening], names: Names, listed: set[str]) -> list[CloudNode]:
    """Machines that are no longer listed, and that Google remembers to have ended, or never to have begun."""
    by_name: dict[tuple[str, str], list[Happening]] = {}
    for each in sorted(happenings, key=lambda happening: happening.began_s):
        by_name.setdefault((each.zone, each.name), []).append(each)
    nodes = (ended_node(told, names) for (_, name), told in by_name.items() if name not in listed)
    return [node for node in nodes if node is not None]


def ended_node(told: Sequence[Happening], names: Names) -> CloudNode | None:
    whose = names.whose(told[0].name, told[0].zone)
    end = next((each for each in told if each.kind in ENDS and not each.errors), None)
    start = next((each for each in reversed(told) if each.kind == "insert"), None)
    failed = start if start is not None and start.errors else None
    last = end or failed
    if whose is None or last is None:
        return None
    return CloudNode(
        launch_id=whose[0],
        instance_id=told[0].name,
        offer=whose[1],
        state=CloudState.GONE,
        created_at_s=start.began_s if start else last.began_s,
        billed_from_s=start.ended_s if start and not failed else None,
        billed_until_s=None if failed else last.ended_s or last.began_s,
        end=ENDS[end.kind] if end else EndReason.CRASHED,
        detail=": ".join(filter(None, [last.kind, last.detail])),
        refusal=gcp_errors.remembered(*last.errors[0]) if last.errors else None,
    )
