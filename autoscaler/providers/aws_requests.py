"""LaunchSpec + settings -> the arguments of RunInstances, and tags back into an offer. Pure.

One instance a launch. The client token depends on the fleet and the launch id alone: EC2 then answers the same request
with the same instance, and refuses the same launch id with another type or zone (IdempotentParameterMismatch). A second
attempt elsewhere has a launch id of its own (reconcile.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from tradewind.autoscaler.providers.aws_settings import CLOUD, AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.errors import InvalidRequest, Unsupported
from tradewind.model import Capacity, Market, Offer
from tradewind.units import uusd_to_usd

TAG_FLEET, TAG_CELL, TAG_LAUNCH_ID = "tradewind:fleet", "tradewind:cell", "tradewind:launch-id"
TAG_OFFER = "tradewind:offer"
MAX_USER_DATA_BYTES = 16384
_LAUNCH_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # what Ray takes as the value of a label
_TAGGED = ("instance", "volume", "network-interface")


def client_token(fleet: str, launch_id: str) -> str:
    return hashlib.sha256(f"{fleet}|{launch_id}".encode()).hexdigest()  # 64 signs are allowed


def run_arguments(spec: LaunchSpec, settings: AwsSettings, user_data: str) -> dict[str, Any]:
    """For RunInstances. Safe by default: no public address, an encrypted disk that ends with its node, IMDSv2 only."""
    check_spec(spec, settings, user_data)
    market, region = spec.offer.market, settings.region(spec.offer.market)
    is_spot = market.capacity is Capacity.SPOT
    tags = tags_of(spec, settings)
    kinds = (*_TAGGED, "spot-instances-request") if is_spot else _TAGGED
    arguments = {
        "ClientToken": client_token(spec.fleet, spec.launch_id),
        "MinCount": 1,
        "MaxCount": 1,
        "ImageId": region.image,
        "InstanceType": market.instance_type,
        "Placement": _place(spec),
        "NetworkInterfaces": [_interface(region, market.zone)],
        "BlockDeviceMappings": [_disk(settings)],
        "MetadataOptions": {"HttpEndpoint": "enabled", "HttpTokens": "required", "HttpPutResponseHopLimit": 1},
        "InstanceInitiatedShutdownBehavior": "terminate",
        "UserData": user_data,
        "TagSpecifications": [{"ResourceType": kind, "Tags": as_tag_list(tags)} for kind in kinds],
    }
    if profile := settings.profile(spec.role):
        arguments["IamInstanceProfile"] = {"Name": profile}
    if is_spot:
        arguments["InstanceMarketOptions"] = _spot(spec.max_price_uusd_per_h)
    elif settings.capacity_reservation:
        arguments["CapacityReservationSpecification"] = _reservation(settings.capacity_reservation)
    return arguments


def check_spec(spec: LaunchSpec, settings: AwsSettings, user_data: str) -> None:
    if not _LAUNCH_ID.fullmatch(spec.launch_id):
        hint = "use letters, digits, '-', '_' and '.', 63 at the most"
        raise InvalidRequest(f"{spec.launch_id!r} is not a launch id", hint, cloud=CLOUD)
    if spec.fleet != settings.fleet:
        raise InvalidRequest(f"this provider serves fleet {settings.fleet}, not {spec.fleet}", cloud=CLOUD)
    if spec.offer.hosts != 1:
        raise Unsupported(f"{spec.offer.market} has {spec.offer.hosts} hosts: AWS sells single instances", cloud=CLOUD)
    if len(user_data.encode()) > MAX_USER_DATA_BYTES:
        hint = "put what is large into the image, or fetch it at boot"
        raise InvalidRequest(f"user-data is longer than {MAX_USER_DATA_BYTES} bytes", hint, cloud=CLOUD)


def tags_of(spec: LaunchSpec, settings: AwsSettings) -> dict[str, str]:
    return {
        **settings.tags,
        "Name": f"{spec.fleet}-{spec.launch_id}",
        TAG_FLEET: spec.fleet,
        TAG_CELL: spec.cell,
        TAG_LAUNCH_ID: spec.launch_id,
        TAG_OFFER: offer_text(spec.offer),
    }


def group_arguments(spec: LaunchSpec, settings: AwsSettings) -> dict[str, Any]:
    """For CreatePlacementGroup. The name says whose it is, and that it is the same again."""
    own = {"Name": spec.placement_group, TAG_FLEET: spec.fleet, TAG_CELL: spec.cell}
    tags = [{"ResourceType": "placement-group", "Tags": as_tag_list({**settings.tags, **own})}]
    return {"GroupName": spec.placement_group, "Strategy": "cluster", "TagSpecifications": tags}


def _place(spec: LaunchSpec) -> dict[str, str]:
    group = {"GroupName": spec.placement_group} if spec.placement_group else {}
    return {"AvailabilityZone": spec.offer.market.zone, **group}


def as_tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def from_tag_list(tags: list[dict[str, str]]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in tags}


def offer_text(offer: Offer) -> str:
    """What a listing cannot tell, as a tag: a controller that lost its log adopts the node at its price."""
    prices = [offer.price_uusd_per_h, offer.on_demand_uusd_per_h]
    money = ["" if price is None else str(price) for price in prices]
    shape = [f"{offer.vcpus:g}", f"{offer.memory_gib:g}", offer.accelerator, f"{offer.accelerator_count:g}"]
    return ":".join([*shape, *money])


def offer_from_text(text: str, market: Market) -> Offer:
    """A tag that somebody changed gives an offer of unknown shape and price: the node is still listed."""
    parts = text.split(":")
    try:
        vcpus, memory_gib, accelerator, count, price, on_demand = parts
        return Offer(
            market=market,
            vcpus=float(vcpus),
            memory_gib=float(memory_gib),
            accelerator=accelerator,
            accelerator_count=float(count),
            price_uusd_per_h=int(price) if price else None,
            on_demand_uusd_per_h=int(on_demand) if on_demand else None,
            price_source="the tag of its launch",
        )
    except ValueError:
        return Offer(market=market, vcpus=0.0, memory_gib=0.0)


def _interface(region: AwsRegion, zone: str) -> dict[str, Any]:
    if zone not in region.subnets:
        hint = f"give {region.name} a subnet in this zone, or take the zone off the list"
        raise InvalidRequest(f"there is no subnet for zone {zone}", hint, cloud=CLOUD)
    interface: dict[str, Any] = {
        "DeviceIndex": 0,
        "SubnetId": region.subnets[zone],
        "AssociatePublicIpAddress": False,
        "DeleteOnTermination": True,
    }
    return {**interface, "Groups": list(region.security_groups)} if region.security_groups else interface


def _disk(settings: AwsSettings) -> dict[str, Any]:
    ebs = {"VolumeSize": settings.disk_gib, "VolumeType": "gp3", "Encrypted": True, "DeleteOnTermination": True}
    return {"DeviceName": settings.root_device, "Ebs": ebs}


def _spot(max_price_uusd_per_h: int | None) -> dict[str, Any]:
    options = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
    if max_price_uusd_per_h is not None:
        options["MaxPrice"] = f"{uusd_to_usd(max_price_uusd_per_h):f}"
    return {"MarketType": "spot", "SpotOptions": options}


def _reservation(wanted: str) -> dict[str, Any]:
    if wanted in ("open", "none"):
        return {"CapacityReservationPreference": wanted}
    key = "CapacityReservationResourceGroupArn" if wanted.startswith("arn:") else "CapacityReservationId"
    return {"CapacityReservationTarget": {key: wanted}}
