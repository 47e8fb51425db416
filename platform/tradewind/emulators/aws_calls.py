"""The other calls of the emulated EC2, and those of STS and Service Quotas that a preflight makes."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tradewind.emulators import aws_placement
from tradewind.emulators.aws_books import CODES, QUOTA_NAMES, Books, Image, Machine, Part, Region
from tradewind.emulators.aws_wire import Form, Refused, iso, matches, page, tag_set

ACCOUNT = "123456789012"
Result = Mapping[str, Any]
_PAGING = ("Filter.N.Name", "Filter.N.Value.N", "MaxResults", "NextToken")


class Calls:
    """`listing_lag_s`: a new instance is listed only then, though it can be ended by its id at once."""

    def __init__(self, books: Books, page_size: int) -> None:
        self.books, self.page_size, self.listing_lag_s = books, page_size, 0.0
        self.by_action: dict[str, Callable[[Form, Region], Result]] = {
            "DescribeInstances": self.describe_instances,
            "TerminateInstances": self.terminate_instances,
            "GetConsoleOutput": self.console_output,
            "DescribeSpotInstanceRequests": self.describe_spot_requests,
            "DescribeSpotPriceHistory": self.describe_spot_prices,
            "DescribeVolumes": self.describe_volumes,
            "DeleteVolume": self.delete_volume,
            "DescribeNetworkInterfaces": self.describe_interfaces,
            "DeleteNetworkInterface": self.delete_interface,
            "DescribeImages": self.describe_images,
            "DescribeSubnets": self.describe_subnets,
            "DescribeRegions": self.describe_regions,
            "DescribeSecurityGroups": self.describe_groups,
            "CreatePlacementGroup": aws_placement.create_group,
            "DeletePlacementGroup": aws_placement.delete_group,
            "DescribePlacementGroups": aws_placement.describe_groups,
        }

    def describe_instances(self, form: Form, region: Region) -> Result:
        form.allow([*_PAGING, "InstanceId.N"])
        wanted, filters = form.many("InstanceId"), form.filters()
        oldest_s = self.books.clock() - self.listing_lag_s
        visible = [machine for machine in region.machines.values() if machine.launched_at_s <= oldest_s]
        if unknown := set(wanted) - {machine.id for machine in visible}:
            raise Refused("InvalidInstanceID.NotFound", f"The instance IDs '{', '.join(sorted(unknown))}' do not exist")
        found = [
            machine
            for machine in visible
            if (not wanted or machine.id in wanted)
            and matches(filters, {"instance-state-name": machine.state, "instance-id": machine.id}, machine.tags)
        ]
        chosen, token = page(found, form, self.page_size)
        items = [{"reservationId": f"r-{each.id[2:]}", "instancesSet": [instance_item(each)]} for each in chosen]
        return {"reservationSet": items, "nextToken": token or None}

    def terminate_instances(self, form: Form, region: Region) -> Result:
        form.allow(["InstanceId.N"])
        names = form.many("InstanceId")
        if not names:
            raise Refused("MissingParameter", "The request must contain the parameter InstanceId")
        for name in names:  # all or none
            if not re.fullmatch(r"i-[0-9a-f]{8}([0-9a-f]{9})?", name):
                raise Refused("InvalidInstanceID.Malformed", f'Invalid id: "{name}"')
            if name not in region.machines:
                raise Refused("InvalidInstanceID.NotFound", f"The instance ID '{name}' does not exist")
        items = []
        for machine in (region.machines[name] for name in names):
            before = machine.state
            self.books.end_by_user(machine)
            states = {"currentState": _state(machine.state), "previousState": _state(before)}
            items.append({"instanceId": machine.id, **states})
        return {"instancesSet": items}

    def console_output(self, form: Form, region: Region) -> Result:
        """EC2 posts the console late, but for `Latest`, which asks the machine itself."""
        form.allow(["InstanceId", "Latest"])
        machine = region.machines.get(form.require("InstanceId"))
        if machine is None:
            raise Refused("InvalidInstanceID.NotFound", f"The instance ID '{form.get('InstanceId')}' does not exist")
        text = base64.b64encode(self.books.console(machine).encode()).decode()
        return {"instanceId": machine.id, "timestamp": iso(self.books.clock()), "output": text or None}

    def describe_spot_requests(self, form: Form, region: Region) -> Result:
        form.allow(_PAGING)
        filters = form.filters()
        spot = [machine for machine in region.machines.values() if machine.is_spot]
        found = [each for each in spot if matches(filters, {"status-code": each.spot_status[0]}, each.tags)]
        chosen, token = page(found, form, self.page_size)
        return {"spotInstanceRequestSet": [_spot_item(each) for each in chosen], "nextToken": token or None}

    def describe_spot_prices(self, form: Form, region: Region) -> Result:
        form.allow(["InstanceType.N", "ProductDescription.N", "StartTime", "MaxResults", "NextToken"])
        types, now = form.many("InstanceType"), iso(self.books.clock())
        prices = [(zone, kind, usd) for (zone, kind), usd in region.spot_prices.items() if not types or kind in types]
        chosen, token = page(prices, form, self.page_size)
        items = [
            {
                "instanceType": kind,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{usd:.6f}",
                "timestamp": now,
                "availabilityZone": zone,
            }
            for zone, kind, usd in chosen
        ]
        return {"spotPriceHistorySet": items, "nextToken": token}

    def describe_volumes(self, form: Form, region: Region) -> Result:
        form.allow(_PAGING)
        chosen, token = page(_filtered(region.volumes, form), form, self.page_size)
        items = [
            {
                "volumeId": part.id,
                "size": part.size_gib,
                "availabilityZone": part.zone,
                "status": _status(part),
                "createTime": iso(part.created_at_s),
                "encrypted": part.encrypted,
                "tagSet": tag_set(part.tags),
            }
            for part in chosen
        ]
        return {"volumeSet": items, "nextToken": token or None}

    def describe_interfaces(self, form: Form, region: Region) -> Result:
        form.allow(_PAGING)
        chosen, token = page(_filtered(region.interfaces, form), form, self.page_size)
        items = [
            {
                "networkInterfaceId": part.id,
                "availabilityZone": part.zone,
                "status": _status(part),
                "tagSet": tag_set(part.tags),
            }
            for part in chosen
        ]
        return {"networkInterfaceSet": items, "nextToken": token or None}

    def delete_volume(self, form: Form, region: Region) -> Result:
        form.allow(["VolumeId"])
        part = region.volumes.get(form.require("VolumeId"))
        if part is None:
            raise Refused("InvalidVolume.NotFound", f"The volume '{form.get('VolumeId')}' does not exist.")
        if part.machine_id:
            raise Refused("VolumeInUse", f"Volume {part.id} is currently attached to {part.machine_id}")
        del region.volumes[part.id]
        return {"return": True}

    def delete_interface(self, form: Form, region: Region) -> Result:
        form.allow(["NetworkInterfaceId"])
        part = region.interfaces.get(form.require("NetworkInterfaceId"))
        if part is None:
            name = form.get("NetworkInterfaceId")
            raise Refused("InvalidNetworkInterfaceID.NotFound", f"The networkInterface ID '{name}' does not exist")
        if part.machine_id:
            raise Refused("InvalidNetworkInterface.InUse", f"Interface {part.id} is currently in use")
        del region.interfaces[part.id]
        return {"return": True}

    def describe_images(self, form: Form, region: Region) -> Result:
        form.allow(["ImageId.N"])
        for name in form.many("ImageId"):
            if name not in region.images:
                raise Refused("InvalidAMIID.NotFound", f"The image id '[{name}]' does not exist")
        items = [_image_item(name, region.images[name]) for name in form.many("ImageId") or region.images]
        return {"imagesSet": items}

    def describe_subnets(self, form: Form, region: Region) -> Result:
        form.allow(["SubnetId.N"])
        for name in form.many("SubnetId"):
            if name not in region.subnets:
                raise Refused("InvalidSubnetID.NotFound", f"The subnet ID '{name}' does not exist")
        items = [
            {
                "subnetId": name,
                "availabilityZone": region.subnets[name],
                "availableIpAddressCount": 4000,
                "vpcId": "vpc-1",
            }
            for name in form.many("SubnetId") or region.subnets
        ]
        return {"subnetSet": items}

    def describe_regions(self, form: Form, region: Region) -> Result:
        del region  # all of them answer for all
        form.allow([])
        return {"regionInfo": [{"regionName": n, "regionEndpoint": f"ec2.{n}.local"} for n in self.books.regions]}

    def describe_groups(self, form: Form, region: Region) -> Result:
        form.allow(["GroupId.N"])
        for name in form.many("GroupId"):
            if name not in region.groups:
                raise Refused("InvalidGroup.NotFound", f"The security group '{name}' does not exist")
        names = form.many("GroupId") or region.groups
        return {"securityGroupInfo": [_group_item(name, region) for name in names]}


def _group_item(name: str, region: Region) -> dict[str, Any]:
    among = {"ipProtocol": "-1", "groups": [{"groupId": name}]}
    everybody = {"ipProtocol": "tcp", "fromPort": 22, "toPort": 22, "ipRanges": [{"cidrIp": "0.0.0.0/0"}]}
    rules: list[dict[str, Any]] = [] if name in region.closed_groups else [among]
    rules += [everybody] if name in region.open_groups else []
    return {"groupId": name, "groupName": region.groups[name], "vpcId": "vpc-1", "ipPermissions": rules}


def instance_item(machine: Machine) -> dict[str, Any]:
    """As DescribeInstances and RunInstances tell it."""
    return {
        "instanceId": machine.id,
        "imageId": machine.image,
        "instanceState": _state(machine.state),
        "reason": machine.transition,
        "clientToken": machine.token,
        "instanceType": machine.type,
        "launchTime": iso(machine.launched_at_s),
        "placement": {"availabilityZone": machine.zone, "groupName": machine.placement_group or None},
        "subnetId": machine.subnet,
        "privateIpAddress": machine.private_address,
        "stateReason": {"code": machine.reason[0], "message": machine.reason[1]} if machine.reason[0] else None,
        "instanceLifecycle": "spot" if machine.is_spot else None,
        "spotInstanceRequestId": machine.spot_request or None,
        "tagSet": tag_set(machine.tags),
    }


def _image_item(name: str, image: Image) -> dict[str, Any]:
    disk = {"deviceName": image.root_device, "ebs": {"volumeSize": image.size_gib, "deleteOnTermination": True}}
    return {
        "imageId": name,
        "imageState": "available",
        "name": "emulated",
        "rootDeviceName": image.root_device,
        "blockDeviceMapping": [disk],
    }


def _spot_item(machine: Machine) -> dict[str, Any]:
    code, message = machine.spot_status
    return {
        "spotInstanceRequestId": machine.spot_request,
        "state": "active" if machine.is_alive else "closed",
        "status": {"code": code, "message": message, "updateTime": iso(machine.spot_status_at_s)},
        "instanceId": machine.id,
        "tagSet": tag_set(machine.tags),
    }


def _state(name: str) -> dict[str, Any]:
    return {"code": CODES[name], "name": name}


def _status(part: Part) -> str:
    return "in-use" if part.machine_id else "available"


def _filtered(parts: Mapping[str, Part], form: Form) -> list[Part]:
    filters = form.filters()
    return [part for part in parts.values() if matches(filters, {"status": _status(part)}, part.tags)]


def caller_identity(arn: str) -> bytes:
    result = f"<Arn>{arn}</Arn><UserId>AIDAEMULATED</UserId><Account>{ACCOUNT}</Account>"
    inner = f"<GetCallerIdentityResult>{result}</GetCallerIdentityResult>"
    return f'<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">{inner}</GetCallerIdentityResponse>'.encode()


def service_quota(body: bytes, region: Region) -> bytes:
    asked = json.loads(body)
    code = asked.get("QuotaCode", "")
    if asked.get("ServiceCode") != "ec2" or code not in region.quotas:
        raise Refused("NoSuchResourceException", f"no quota {code}")
    quota = {"ServiceCode": "ec2", "QuotaCode": code, "QuotaName": QUOTA_NAMES[code], "Value": region.quotas[code]}
    return json.dumps({"Quota": quota}).encode()
