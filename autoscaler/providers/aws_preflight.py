"""Can this account carry the fleet? One line each, with the command that mends it. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tradewind.autoscaler.placement import has_groups
from tradewind.autoscaler.providers.aws_clients import Clients
from tradewind.autoscaler.providers.aws_errors import DENIED, translated
from tradewind.autoscaler.providers.aws_requests import group_arguments, run_arguments
from tradewind.autoscaler.providers.aws_settings import CLOUD, AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import Check, LaunchSpec
from tradewind.errors import AuthError, ProviderError, Throttled, Transient
from tradewind.model import Capacity, Market, Offer

# Quotas of EC2 count vCPUs, by the first letters of the type: (on-demand, spot).
_QUOTAS = {
    "p5": ("L-417A185B", "L-C4BD4855"),
    "p": ("L-417A185B", "L-7212CCBC"),
    "g": ("L-DB2E81BA", "L-3819A6DF"),
    "vt": ("L-DB2E81BA", "L-3819A6DF"),
    "inf": ("L-1945791B", "L-B5D1601B"),
    "trn": ("L-2C3B7624", "L-6B0D517C"),
    "dl": ("L-6E869C2A", "L-85EED4F7"),
    "": ("L-1216C47A", "L-34B43A08"),  # the standard ones: A, C, D, H, I, M, R, T, Z
}


_POLICY = "attach the controller's policy (cluster-configs/iam) to this identity"


@dataclass(frozen=True, slots=True)
class Ground:
    """What is looked at."""

    settings: AwsSettings
    offers: Sequence[Offer]
    clients: Clients

    def offers_in(self, region: AwsRegion) -> list[Offer]:
        return [offer for offer in self.offers if offer.market.cloud == CLOUD and offer.market.region == region.name]


def quota_code(instance_type: str, capacity: Capacity) -> str:
    family = next(name for name in sorted(_QUOTAS, key=len, reverse=True) if instance_type.startswith(name))
    return _QUOTAS[family][capacity is Capacity.SPOT]


def check_account(ground: Ground) -> list[Check]:
    account = _credentials(ground)
    if not account.ok:
        return [account]
    return [account, *(check for region in ground.settings.regions for check in _check_region(ground, region))]


def _credentials(ground: Ground) -> Check:
    region = ground.settings.regions[0].name

    def ask() -> Check:
        with translated("GetCallerIdentity", region):
            who = ground.clients.get("sts", region).get_caller_identity()
        return Check("credentials", True, f"{who['Arn']} in account {who['Account']}")

    return _checked("credentials", ask, "`aws sts get-caller-identity` looks again")


def _check_region(ground: Ground, region: AwsRegion) -> Iterator[Check]:
    ec2 = ground.clients.get("ec2", region.name)
    name = region.name
    mend = (
        f"give another one in the fleet file; `aws ec2 describe-images --region {name} --owners self amazon` lists them"
    )
    yield _checked(f"{name} image", lambda: _image(ec2, ground.settings, region), mend)
    mend = f"`aws ec2 describe-subnets --region {name}` lists them"
    yield _checked(f"{name} subnets", lambda: _subnets(ec2, region), mend)
    if region.security_groups:
        mend = f"`aws ec2 describe-security-groups --region {name}` lists them"
        yield _checked(f"{name} security groups", lambda: _groups(ec2, region), mend)
    mend = "correct what it names in the fleet file, or make it (docs/guides/clouds.md)"
    yield _checked(f"{name} permission to launch", lambda: _dry_run(ec2, ground, region), mend)
    if ground.settings.placement_groups and any(has_groups(offer) for offer in ground.offers_in(region)):
        mend = f"{_POLICY}, or set `placement: {{groups: off}}`: gangs lie anywhere in their zone then"
        yield _checked(f"{name} placement groups", lambda: _placement(ec2, ground, region), mend)
    for code, offers in _by_quota(ground.offers_in(region)).items():
        mend = f"check the permission servicequotas:GetServiceQuota in {name}"
        yield _checked(f"{name} quota {code}", partial(_quota, ground, name, code, offers), mend)


def _checked(name: str, ask: Callable[[], Check], mend: str) -> Check:
    """An error is a check that failed, with its own hint where it has one that says more."""
    try:
        return ask()
    except AuthError as error:
        more = _POLICY if error.code in DENIED and _POLICY not in mend else mend
        return Check(name, False, error.message, f"{error.hint}; {more}")
    except (Transient, Throttled) as error:
        return Check(name, False, error.message, "AWS does not answer: check the network, or aws.endpoint_url")
    except ProviderError as error:
        return Check(name, False, error.message, mend)


def _image(ec2: Any, settings: AwsSettings, region: AwsRegion) -> Check:
    with translated("DescribeImages", region.name):
        images = ec2.describe_images(ImageIds=[region.image])["Images"]
    name = f"{region.name} image"
    if not images or images[0]["State"] != "available":
        return Check(name, False, f"{region.image} is not there", "give the id of an image of this region")
    root = images[0].get("RootDeviceName", "")
    if root != settings.root_device:
        fix = f"set root_device: {root}, or two disks are made"
        return Check(name, False, f"{region.image} calls its disk {root}, not {settings.root_device}", fix)
    disks = [disk.get("Ebs", {}) for disk in images[0].get("BlockDeviceMappings", []) if disk["DeviceName"] == root]
    needed_gib = max((disk.get("VolumeSize", 0) for disk in disks), default=0)
    if needed_gib > settings.disk_gib:
        return Check(name, False, f"{region.image} needs {needed_gib} GiB", f"set disk_gib: {needed_gib} or more")
    return Check(name, True, f"{region.image} ({images[0].get('Name', 'no name')})")


def _subnets(ec2: Any, region: AwsRegion) -> Check:
    with translated("DescribeSubnets", region.name):
        subnets = ec2.describe_subnets(SubnetIds=sorted(set(region.subnets.values())))["Subnets"]
    by_id = {subnet["SubnetId"]: subnet for subnet in subnets}
    name = f"{region.name} subnets"
    for zone, subnet_id in region.subnets.items():
        place = by_id[subnet_id]["AvailabilityZone"]
        if place != zone:
            return Check(name, False, f"{subnet_id} is in {place}, not in {zone}", "correct the zone in the fleet file")
        if by_id[subnet_id]["AvailableIpAddressCount"] < 1:
            return Check(name, False, f"{subnet_id} has no free address", "give the zone a larger subnet")
    free = sum(subnet["AvailableIpAddressCount"] for subnet in subnets)
    return Check(name, True, f"{len(subnets)} with {free} free addresses")


def _groups(ec2: Any, region: AwsRegion) -> Check:
    with translated("DescribeSecurityGroups", region.name):
        groups = ec2.describe_security_groups(GroupIds=list(region.security_groups))["SecurityGroups"]
    networks = {group.get("VpcId", "") for group in groups}
    name = f"{region.name} security groups"
    if len(networks) != 1:
        return Check(name, False, f"they are in {len(networks)} VPCs", "give groups of the subnets' VPC")
    change = f"-security-group-ingress --region {region.name} --group-id"
    for group in groups:
        if any(_is_open(rule) for rule in group.get("IpPermissions", [])):
            mend = f"take the rule away: `aws ec2 revoke{change} {group['GroupId']} --security-group-rule-ids ...`"
            return Check(name, False, f"{group['GroupName']} lets the whole internet in", mend)
    mine = {group["GroupId"] for group in groups}
    if not any(_lets_in(rule, mine) for group in groups for rule in group.get("IpPermissions", [])):
        first = groups[0]["GroupId"]
        mend = f"`aws ec2 authorize{change} {first} --protocol -1 --source-group {first}`"
        return Check(name, False, "their members cannot talk to each other", mend)
    return Check(name, True, ", ".join(group["GroupName"] for group in groups))


def _is_open(rule: Mapping[str, Any]) -> bool:
    ranges = [each.get("CidrIp") for each in rule.get("IpRanges", [])]
    return bool({"0.0.0.0/0", "::/0"} & {*ranges, *(each.get("CidrIpv6") for each in rule.get("Ipv6Ranges", []))})


def _lets_in(rule: Mapping[str, Any], groups: Collection[str]) -> bool:
    """Ray and the training group take ports as they need them."""
    whole = rule.get("IpProtocol") == "-1" or (rule.get("FromPort") == 0 and rule.get("ToPort") == 65535)
    return whole and any(pair.get("GroupId") in groups for pair in rule.get("UserIdGroupPairs", []))


def _dry_run(ec2: Any, ground: Ground, region: AwsRegion) -> Check:
    """A launch that is checked and not carried out."""
    spec = _preflight_spec(ground, region)
    with translated("RunInstances", region.name):
        _only_checked(ec2.run_instances, run_arguments(spec, ground.settings, "#!/bin/sh\n"))
    return Check(f"{region.name} permission to launch", True, f"{spec.offer.market} would be launched")


def _placement(ec2: Any, ground: Ground, region: AwsRegion) -> Check:
    spec = replace(_preflight_spec(ground, region), placement_group="tw-preflight")
    with translated("CreatePlacementGroup", region.name):
        _only_checked(ec2.create_placement_group, group_arguments(spec, ground.settings))
    return Check(f"{region.name} placement groups", True, "may be made for gangs")


def _only_checked(call: Callable[..., object], arguments: Mapping[str, Any]) -> None:
    """EC2 answers a call that would have been carried out by an error of its own."""
    from botocore.exceptions import ClientError

    try:
        call(**arguments, DryRun=True)
    except ClientError as error:
        if error.response["Error"]["Code"] != "DryRunOperation":
            raise


def _preflight_spec(ground: Ground, region: AwsRegion) -> LaunchSpec:
    offer = next(iter(ground.offers_in(region)), _any_offer(region))
    return LaunchSpec("preflight", ground.settings.fleet, "preflight", offer, "127.0.0.1:6379")


def _any_offer(region: AwsRegion) -> Offer:
    return Offer(Market(CLOUD, region.name, next(iter(region.subnets)), "g5.xlarge", Capacity.SPOT), 4, 16)


def _by_quota(offers: Sequence[Offer]) -> dict[str, list[Offer]]:
    found: dict[str, list[Offer]] = {}
    for offer in offers:
        found.setdefault(quota_code(offer.market.instance_type, offer.market.capacity), []).append(offer)
    return found


def _quota(ground: Ground, region: str, code: str, offers: Sequence[Offer]) -> Check:
    """Enough for one node of the smallest type that it limits."""
    with translated("GetServiceQuota", region):
        quota = ground.clients.get("service-quotas", region).get_service_quota(ServiceCode="ec2", QuotaCode=code)[
            "Quota"
        ]
    needed, found = min(offer.vcpus for offer in offers), quota["Value"]
    name, said = f"{region} quota {code}", f"{quota['QuotaName']}: {found:g} vCPUs"
    if found >= needed:
        return Check(name, True, said)
    fix = (
        f"aws service-quotas request-service-quota-increase --region {region} --service-code ec2 "
        f"--quota-code {code} --desired-value {max(needed, 64):g}"
    )
    return Check(name, False, f"{said}, one node needs {needed:g}", fix)
