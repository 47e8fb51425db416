"""What nodes may leave behind in EC2: a disk and a network interface, with the tags of their launch; an empty group."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_groups import empty_groups_in
from tradewind.autoscaler.providers.aws_requests import TAG_FLEET, TAG_LAUNCH_ID, from_tag_list
from tradewind.autoscaler.providers.base import CloudNode
from tradewind.autoscaler.providers.groups import if_allowed
from tradewind.errors import NotFound

GROUP = "group/"


def list_debris_in(ec2: Any, region: str, fleet: str, nodes: Collection[CloudNode]) -> list[str]:
    """Free disks and interfaces of this fleet, except those of living nodes (about to be attached), and groups that
    none of them is in."""
    living = {node.launch_id for node in nodes}
    filters = [{"Name": f"tag:{TAG_FLEET}", "Values": [fleet]}, {"Name": "status", "Values": ["available"]}]
    with translated("DescribeVolumes", region):
        volumes = [
            item for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters) for item in page["Volumes"]
        ]
    with translated("DescribeNetworkInterfaces", region):
        pages = ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters)
        interfaces = [item for page in pages for item in page["NetworkInterfaces"]]
    found = [(item["VolumeId"], item.get("Tags", [])) for item in volumes]
    found += [(item["NetworkInterfaceId"], item.get("TagSet", [])) for item in interfaces]
    loose = [name for name, tags in found if from_tag_list(tags).get(TAG_LAUNCH_ID) not in living]
    used = {node.placement_group for node in nodes}
    groups = if_allowed(lambda: empty_groups_in(ec2, region, fleet, used))
    return [f"{region}/{name}" for name in (*loose, *(f"{GROUP}{name}" for name in groups))]


def delete_debris_in(ec2: Any, region: str, resource: str) -> None:
    """Gone already is fine."""
    try:
        if resource.startswith("vol-"):
            with translated("DeleteVolume", region):
                ec2.delete_volume(VolumeId=resource)
        else:
            with translated("DeleteNetworkInterface", region):
                ec2.delete_network_interface(NetworkInterfaceId=resource)
    except NotFound:
        return
