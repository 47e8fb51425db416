"""RunInstances of the emulated EC2: what is refused, and what is made."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tradewind.emulators.aws_books import TYPES, Books, Machine, Part, Region, quota_code
from tradewind.emulators.aws_placement import GroupRoom, check_place, check_room
from tradewind.emulators.aws_wire import Form, Refused

FIELDS = (
    "ClientToken",
    "MinCount",
    "MaxCount",
    "ImageId",
    "InstanceType",
    "Placement.AvailabilityZone",
    "Placement.GroupName",
    "UserData",
    "NetworkInterface.N.DeviceIndex",
    "NetworkInterface.N.SubnetId",
    "NetworkInterface.N.AssociatePublicIpAddress",
    "NetworkInterface.N.DeleteOnTermination",
    "NetworkInterface.N.SecurityGroupId.N",
    "BlockDeviceMapping.N.DeviceName",
    "BlockDeviceMapping.N.Ebs.VolumeSize",
    "BlockDeviceMapping.N.Ebs.VolumeType",
    "BlockDeviceMapping.N.Ebs.Encrypted",
    "BlockDeviceMapping.N.Ebs.DeleteOnTermination",
    "MetadataOptions.HttpEndpoint",
    "MetadataOptions.HttpTokens",
    "MetadataOptions.HttpPutResponseHopLimit",
    "InstanceInitiatedShutdownBehavior",
    "IamInstanceProfile.Name",
    "InstanceMarketOptions.MarketType",
    "InstanceMarketOptions.SpotOptions.SpotInstanceType",
    "InstanceMarketOptions.SpotOptions.MaxPrice",
    "InstanceMarketOptions.SpotOptions.InstanceInterruptionBehavior",
    "CapacityReservationSpecification.CapacityReservationPreference",
    "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId",
    "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationResourceGroupArn",
    "TagSpecification.N.ResourceType",
    "TagSpecification.N.Tag.N.Key",
    "TagSpecification.N.Tag.N.Value",
)
MAX_USER_DATA_BYTES = 16384
_TAGGABLE = ("instance", "volume", "network-interface", "spot-instances-request")


Pool = tuple[str, str, bool]  # zone, type, spot
Capacity = Callable[[float], int]  # how many machines can be had at a time


@dataclass
class Shop:
    """What is sold at the moment."""

    sold_out: set[Pool] = field(default_factory=set)
    capacity: dict[Pool, Capacity] = field(default_factory=dict)  # pools without an entry never run dry
    failing_boots: int = 0  # of the next launches
    profiles: set[str] = field(default_factory=lambda: {"tradewind-node", "tradewind-head"})
    reservations: set[str] = field(default_factory=set)
    group_room: GroupRoom = field(default_factory=GroupRoom)


def from_trace(counts: Sequence[int], gap_s: float, start_s: float) -> Capacity:
    """A recorded trace of how many could be had, one number every `gap_s`; its last one stays."""

    def at(now_s: float) -> int:
        index = int((now_s - start_s) // gap_s)
        return counts[max(0, min(index, len(counts) - 1))]

    return at


def held_in(pool: Pool, region: Region) -> list[Machine]:
    """Oldest first."""
    up = (machine for machine in region.machines.values() if machine.state in ("pending", "running"))
    return [machine for machine in up if (machine.zone, machine.type, machine.is_spot) == pool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request, read and found well-formed."""

    type: str
    zone: str
    subnet: str
    is_spot: bool
    max_price_usd: float | None
    tags: dict[str, dict[str, str]]
    user_data: str
    group: str


def run_instances(form: Form, region: Region, books: Books, shop: Shop) -> Machine:
    """The same token gives the same instance; with other arguments it is refused."""
    form.allow(FIELDS)
    wanted = _read(form, region, shop)
    if form.is_true("DryRun"):
        raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
    token = form.get("ClientToken")
    fingerprint = hashlib.sha256(repr(sorted(form.fields.items())).encode()).hexdigest()
    if token in region.tokens:
        return _again(region, token, fingerprint)
    _check_price(wanted, region)
    _check_quota(wanted, region)
    held = held_in((wanted.zone, wanted.type, wanted.is_spot), region)
    _check_stock(wanted, shop, form, len(held), books.clock())
    check_room(wanted.group, wanted.type, region, shop.group_room)
    machine = _make(form, wanted, region, books, shop)
    if token:
        region.tokens[token] = (fingerprint, machine.id)
    return machine


def _again(region: Region, token: str, fingerprint: str) -> Machine:
    known, machine_id = region.tokens[token]
    if known != fingerprint:
        raise Refused("IdempotentParameterMismatch", "The client token was used with other parameters before")
    machine = region.machines.get(machine_id)
    if machine is None or machine.state in ("shutting-down", "terminated"):
        raise Refused("IdempotentInstanceTerminated", f"The instance {machine_id} of this client token has ended")
    return machine


def _read(form: Form, region: Region, shop: Shop) -> Wanted:
    for key in ("MinCount", "MaxCount", "ImageId"):
        form.require(key)
    if (form.get("MinCount"), form.get("MaxCount")) != ("1", "1"):
        raise Refused("InvalidParameterValue", "the emulator makes one instance a request")
    _check_image(form, region)
    token = form.get("ClientToken")
    if len(token) > 64 or not token.isascii():
        raise Refused("InvalidParameterValue", "ClientToken must be at most 64 ASCII characters")
    kind = form.get("InstanceType", "m1.small")
    if kind not in TYPES:
        raise Refused("InvalidParameterValue", f"Invalid value '{kind}' for InstanceType.")
    profile = form.get("IamInstanceProfile.Name")
    if profile and profile not in shop.profiles:
        raise Refused("InvalidParameterValue", f"Value ({profile}) for parameter iamInstanceProfile.name is invalid")
    zone, subnet = _place(form, region)
    market = form.get("InstanceMarketOptions.MarketType")
    if market not in ("", "spot"):
        raise Refused("InvalidParameterValue", f"Invalid market type {market}")
    price = form.get("InstanceMarketOptions.SpotOptions.MaxPrice")
    group = form.get("Placement.GroupName")
    check_place(group, kind, zone, region)
    return Wanted(kind, zone, subnet, market == "spot", _price(price), _tags(form), _user_data(form), group)


def _check_image(form: Form, region: Region) -> None:
    image = form.get("ImageId")
    if not re.fullmatch(r"ami-[0-9a-f]{8}([0-9a-f]{9})?", image):
        raise Refused("InvalidAMIID.Malformed", f'Invalid id: "{image}"')
    if image not in region.images:
        raise Refused("InvalidAMIID.NotFound", f"The image id '[{image}]' does not exist")
    size_gib = int(form.get("BlockDeviceMapping.1.Ebs.VolumeSize", "1000000"))
    if size_gib < region.images[image].size_gib:
        message = (
            f"Volume of size {size_gib}GB is smaller than snapshot, expect size>= {region.images[image].size_gib}GB"
        )
        raise Refused("InvalidBlockDeviceMapping", message)


def _place(form: Form, region: Region) -> tuple[str, str]:
    subnet = form.require("NetworkInterface.1.SubnetId")
    if subnet not in region.subnets:
        raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{subnet}' does not exist")
    zone = form.get("Placement.AvailabilityZone") or region.subnets[subnet]
    if zone not in region.subnets.values():
        raise Refused("InvalidParameterValue", f"Invalid availability zone: [{zone}]")
    if zone != region.subnets[subnet]:
        raise Refused("InvalidParameterValue", f"The subnet {subnet} is not in the zone {zone}")
    for group in form.many("NetworkInterface.1.SecurityGroupId"):
        if group not in region.groups:
            raise Refused("InvalidGroup.NotFound", f"The security group '{group}' does not exist")
    return zone, subnet


def _price(text: str) -> float | None:
    if text and not re.fullmatch(r"\d+(\.\d+)?", text):
        raise Refused("InvalidParameterValue", f"Invalid value for maxPrice: {text}")
    return float(text) if text else None


def _user_data(form: Form) -> str:
    try:
        plain = base64.b64decode(form.get("UserData"), validate=True)
    except binascii.Error:
        raise Refused("InvalidParameterValue", "Invalid BASE64 encoding of user data.") from None
    if len(plain) > MAX_USER_DATA_BYTES:
        raise Refused("InvalidParameterValue", "User data is limited to 16384 bytes")
    return plain.decode()


def _tags(form: Form) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for n in range(1, form.count("TagSpecification") + 1):
        kind = form.require(f"TagSpecification.{n}.ResourceType")
        if kind not in _TAGGABLE:
            raise Refused("InvalidParameterValue", f"'{kind}' is not a valid taggable resource type")
        pairs = range(1, form.count(f"TagSpecification.{n}.Tag") + 1)
        keys = [form.require(f"TagSpecification.{n}.Tag.{m}.Key") for m in pairs]
        found[kind] = {key: form.get(f"TagSpecification.{n}.Tag.{m}.Value") for m, key in zip(pairs, keys, strict=True)}
        _check_tags(found[kind])
    if "spot-instances-request" in found and not form.get("InstanceMarketOptions.MarketType"):
        raise Refused("InvalidParameterValue", "A spot request is tagged, but none is made")
    return found


def _check_tags(tags: dict[str, str]) -> None:
    if len(tags) > 50:
        raise Refused("TagLimitExceeded", "The maximum number of tags is 50")
    for key, value in tags.items():
        if not key or len(key) > 127 or key.lower().startswith("aws:"):
            raise Refused("InvalidParameterValue", f"Tag key {key!r} is not valid")
        if len(value) > 255 or not re.fullmatch(r"[\w\s+\-=.:/@]*", value):
            raise Refused("InvalidParameterValue", f"Tag value {value!r} is not valid")


def _check_price(wanted: Wanted, region: Region) -> None:
    price = region.spot_prices.get((wanted.zone, wanted.type))
    if wanted.is_spot and wanted.max_price_usd is not None and price is not None and wanted.max_price_usd < price:
        message = f"Your Spot request price of {wanted.max_price_usd} is lower than the minimum required {price}."
        raise Refused("SpotMaxPriceTooLow", message)


def _check_quota(wanted: Wanted, region: Region) -> None:
    code = quota_code(wanted.type, wanted.is_spot)
    if region.vcpus_in_use(code) + TYPES[wanted.type] <= region.quotas[code]:
        return
    if wanted.is_spot:
        raise Refused("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
    raise Refused("VcpuLimitExceeded", "You have requested more vCPU capacity than your current vCPU limit")


def _check_stock(wanted: Wanted, shop: Shop, form: Form, held: int, now_s: float) -> None:
    target = form.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId")
    if target and target not in shop.reservations:
        raise Refused(
            "InvalidCapacityReservationIdNotFoundException", f"The capacity reservation {target} does not exist"
        )
    pool = (wanted.zone, wanted.type, wanted.is_spot)
    is_full = pool in shop.capacity and held >= shop.capacity[pool](now_s)
    if not target and (is_full or pool in shop.sold_out):
        message = f"We currently do not have sufficient {wanted.type} capacity in the zone {wanted.zone}."
        raise Refused("InsufficientInstanceCapacity", message, 500)  # yes, a server error


def _make(form: Form, wanted: Wanted, region: Region, books: Books, shop: Shop) -> Machine:
    now_s = books.clock()
    machine = Machine(
        id=books.new_id("i"),
        region=region.name,
        zone=wanted.zone,
        type=wanted.type,
        is_spot=wanted.is_spot,
        image=form.get("ImageId"),
        subnet=wanted.subnet,
        tags=wanted.tags.get("instance", {}),
        token=form.get("ClientToken"),
        user_data=wanted.user_data,
        launched_at_s=now_s,
        runs_at_s=now_s + books.boots_in_s,
        spot_request=books.new_id("sir") if wanted.is_spot else "",
        spot_status_at_s=now_s,
        fails_to_boot=shop.failing_boots > 0,
        has_public_address=form.get("NetworkInterface.1.AssociatePublicIpAddress") != "false",
        metadata_tokens=form.get("MetadataOptions.HttpTokens", "optional"),
        hop_limit=int(form.get("MetadataOptions.HttpPutResponseHopLimit", "2")),
        shutdown=form.get("InstanceInitiatedShutdownBehavior", "stop"),
        profile=form.get("IamInstanceProfile.Name"),
        private_address=books.address(),
        placement_group=wanted.group,
        reservation=form.get("CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"),
    )
    shop.failing_boots = max(0, shop.failing_boots - 1)
    region.machines[machine.id] = machine
    _add_parts(form, wanted, region, books, machine)
    return machine


def _add_parts(form: Form, wanted: Wanted, region: Region, books: Books, machine: Machine) -> None:
    disk = "BlockDeviceMapping.1.Ebs"
    volume = Part(
        id=books.new_id("vol"),
        zone=wanted.zone,
        tags=wanted.tags.get("volume", {}),
        machine_id=machine.id,
        ends_with_machine=form.get(f"{disk}.DeleteOnTermination", "true") == "true",
        encrypted=form.is_true(f"{disk}.Encrypted"),
        size_gib=int(form.get(f"{disk}.VolumeSize", "8")),
        created_at_s=machine.launched_at_s,
    )
    interface = Part(
        id=books.new_id("eni"),
        zone=wanted.zone,
        tags=wanted.tags.get("network-interface", {}),
        machine_id=machine.id,
        ends_with_machine=form.get("NetworkInterface.1.DeleteOnTermination", "true") == "true",
    )
    region.volumes[volume.id], region.interfaces[interface.id] = volume, interface
    machine.volumes.append(volume)
    machine.interfaces.append(interface)
