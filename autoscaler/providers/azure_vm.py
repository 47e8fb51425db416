"""A launch -> the machine and its interface that Azure is asked for, and a listed machine -> a CloudNode. Pure."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tradewind.autoscaler.providers import azure_errors
from tradewind.autoscaler.providers.azure_settings import (
    CLOUD,
    TAG_CELL,
    TAG_FLEET,
    TAG_LAUNCH_ID,
    AzureSettings,
    Names,
    zone_number,
    zone_of,
)
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.errors import InvalidRequest
from tradewind.model import Capacity, EndReason, Market, Offer
from tradewind.units import uusd_to_usd

JSON = Mapping[str, Any]
MAX_CUSTOM_DATA_BYTES = 65535  # of the base64 text
ADMIN = "tradewind"
_ON = ("starting", "running")
_OFF = ("stopped", "deallocated")


# --- asking ----------------------------------------------------------------------------------------------------


def tags_of(spec: LaunchSpec, settings: AzureSettings) -> dict[str, str]:
    return {**settings.tags, TAG_FLEET: spec.fleet, TAG_CELL: spec.cell, TAG_LAUNCH_ID: spec.launch_id}


def nic_body(spec: LaunchSpec, settings: AzureSettings) -> dict[str, Any]:
    """Without a public address."""
    region = settings.region(spec.offer.market)
    address = {"subnet": {"id": region.subnet}, "privateIPAllocationMethod": "Dynamic", "primary": True}
    properties: dict[str, Any] = {"ipConfigurations": [{"name": "primary", "properties": address}]}
    if region.security_group:
        properties["networkSecurityGroup"] = {"id": region.security_group}
    return {"location": region.name, "tags": tags_of(spec, settings), "properties": properties}


def vm_body(spec: LaunchSpec, settings: AzureSettings, user_data: str, ssh_public_key: str) -> dict[str, Any]:
    """Safe by default: no password, encrypted on its host, and its disk and interface end with it. The disk gets the
    machine's tags from Azure."""
    market, number = spec.offer.market, zone_number(spec.offer.market)
    names = Names(settings.fleet)
    body: dict[str, Any] = {
        "location": market.region,
        "tags": tags_of(spec, settings),
        "properties": {
            "hardwareProfile": {"vmSize": market.instance_type},
            "storageProfile": {"imageReference": _image(settings.image), "osDisk": _disk(names, spec, settings)},
            "networkProfile": {"networkInterfaces": [_interface(names, spec, settings)]},
            "osProfile": _system(names.vm(spec.launch_id), user_data, ssh_public_key),
            "diagnosticsProfile": {"bootDiagnostics": {"enabled": True}},  # keeps the console, in Azure's own storage
            **_capacity(spec, settings),
        },
    }
    if spec.placement_group:
        path = settings.path("Microsoft.Compute/proximityPlacementGroups", spec.placement_group)
        body["properties"]["proximityPlacementGroup"] = {"id": path}
    if settings.encryption_at_host:
        body["properties"]["securityProfile"] = {"encryptionAtHost": True}
    if number:
        body["zones"] = [number]
    if identity := settings.identity_of(spec.role):
        body["identity"] = {"type": "UserAssigned", "userAssignedIdentities": {identity: {}}}
    return body


def _capacity(spec: LaunchSpec, settings: AzureSettings) -> dict[str, Any]:
    """A price limit of -1 means: up to the on-demand price. Reservations are for on-demand machines alone."""
    if spec.offer.market.capacity is Capacity.SPOT:
        limit = spec.max_price_uusd_per_h
        price = -1 if limit is None else float(uusd_to_usd(limit))
        return {"priority": "Spot", "evictionPolicy": "Delete", "billingProfile": {"maxPrice": price}}
    group = settings.region(spec.offer.market).capacity_reservation
    reserved = {"capacityReservation": {"capacityReservationGroup": {"id": group}}} if group else {}
    return {"priority": "Regular", **reserved}


def _image(image: str) -> dict[str, str]:
    if image.startswith("/"):
        return {"id": image}
    return dict(zip(("publisher", "offer", "sku", "version"), image.split(":"), strict=True))


def _disk(names: Names, spec: LaunchSpec, settings: AzureSettings) -> dict[str, Any]:
    return {
        "name": names.disk(spec.launch_id),
        "createOption": "FromImage",
        "deleteOption": "Delete",
        "diskSizeGB": settings.disk_gib,
        "managedDisk": {"storageAccountType": settings.disk_type},
    }


def _interface(names: Names, spec: LaunchSpec, settings: AzureSettings) -> dict[str, Any]:
    path = settings.path("Microsoft.Network/networkInterfaces", names.nic(spec.launch_id))
    return {"id": path, "properties": {"primary": True, "deleteOption": "Delete"}}


def _system(name: str, user_data: str, ssh_public_key: str) -> dict[str, Any]:
    custom = base64.b64encode(user_data.encode()).decode()
    if len(custom) > MAX_CUSTOM_DATA_BYTES:
        hint = "put what is large into the image, or fetch it at boot"
        raise InvalidRequest(f"user-data is longer than {MAX_CUSTOM_DATA_BYTES} bytes", hint, cloud=CLOUD)
    keys = [{"path": f"/home/{ADMIN}/.ssh/authorized_keys", "keyData": ssh_public_key}]
    return {
        "computerName": name,
        "adminUsername": ADMIN,
        "customData": custom,
        "linuxConfiguration": {"disablePasswordAuthentication": True, "ssh": {"publicKeys": keys}},
    }


# --- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Status:
    """What a machine's instance view says."""

    power: str = ""  # "starting", "running", "deallocated", ...; "": it has no hardware (yet)
    since_s: float | None = None  # of its provisioning state
    code: str = ""  # why it failed: "AllocationFailed"
    message: str = ""

    @classmethod
    def of(cls, view: JSON) -> Status:
        power, since_s, code, message = "", None, "", ""
        for each in view.get("statuses", ()):
            kind, _, value = each.get("code", "").partition("/")
            if kind == "PowerState":
                power = value
            elif kind == "ProvisioningState":
                since_s, message = seconds(each.get("time", "")), each.get("message", "")
                code = value.partition("/")[2] if value.startswith("failed") else ""
        return cls(power, since_s, code, message if code else "")


def node_of(vm: JSON, status: Status, offers: Mapping[Market, Offer]) -> CloudNode:
    """Of a machine with our tags."""
    market, created_at_s = market_of(vm), seconds(vm["properties"].get("timeCreated", "")) or 0.0
    state = _state(vm, status)
    gone = state is CloudState.GONE
    return CloudNode(
        launch_id=vm["tags"][TAG_LAUNCH_ID],
        instance_id=vm["properties"]["vmId"],
        offer=offers.get(market) or Offer(market, vcpus=0, memory_gib=0),
        state=state,
        created_at_s=created_at_s,
        billed_from_s=(status.since_s or created_at_s) if _is_billed(state, status) else None,
        end=EndReason.CRASHED if gone else None,
        detail=_detail(vm, status),
        refusal=azure_errors.remembered(status.code, status.message) if gone and status.code else None,
        placement_group=_group_of(vm),
    )


def _group_of(vm: JSON) -> str:
    """Azure writes names in capitals at times."""
    path = str((vm["properties"].get("proximityPlacementGroup") or {}).get("id", ""))
    return path.rpartition("/")[2].lower()


def market_of(vm: JSON) -> Market:
    region, properties = vm["location"], vm["properties"]
    zone = zone_of(region, next(iter(vm.get("zones") or ()), ""))
    capacity = Capacity.SPOT if properties.get("priority") in ("Spot", "Low") else Capacity.ON_DEMAND
    return Market(CLOUD, region, zone, properties["hardwareProfile"]["vmSize"], capacity)


def is_failed(vm: JSON) -> bool:
    return bool(vm["properties"].get("provisioningState") == "Failed")


def is_leftover(vm: JSON, status: Status) -> bool:
    """It does no work, and its disk is billed: it never came to be, or went down by itself (we never stop one)."""
    return (is_failed(vm) and status.power not in _ON) or (
        status.power in _OFF and vm["properties"].get("provisioningState") == "Succeeded"
    )


def is_ending(vm: JSON) -> bool:
    return bool(vm["properties"].get("provisioningState") == "Deleting")


def is_decided(vm: JSON, status: Status) -> bool:
    """Azure has found hardware for it, or has given up."""
    return vm["properties"].get("provisioningState") != "Creating" or status.power in _ON


def _state(vm: JSON, status: Status) -> CloudState:
    """One that runs but failed is billed and must be ended: as good as stopping. One that failed before it had any
    hardware is over: what is left of it is debris."""
    match vm["properties"].get("provisioningState"):
        case "Deleting":
            return CloudState.STOPPING
        case "Failed":
            return CloudState.STOPPING if status.power else CloudState.GONE
        case "Creating":
            return CloudState.PENDING
        case _:
            off = status.power in (*_OFF, "stopping", "deallocating")
            return CloudState.STOPPING if off else CloudState.RUNNING


def _is_billed(state: CloudState, status: Status) -> bool:
    return state is CloudState.RUNNING or (state is CloudState.STOPPING and bool(status.power))


def _detail(vm: JSON, status: Status) -> str:
    if is_failed(vm):
        return ": ".join(filter(None, [status.code or "its creation failed", status.message]))
    return f"it went down by itself, its power state is {status.power}" if is_leftover(vm, status) else ""


def seconds(timestamp: str) -> float | None:
    """ "2026-08-01T00:00:00.1234567+00:00" -> since 1970"""
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else None
