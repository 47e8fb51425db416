"""Cluster placement groups of the emulated EC2: they have a name in a region, and lie in one zone once an instance is
in them. How many instances one has room for is a fault that tests set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tradewind.emulators.aws_books import PlacementGroup, Region
from tradewind.emulators.aws_wire import Form, Refused, matches, tag_set

MOST_GROUPS = 500  # in a region
_TAGS = ("TagSpecification.N.ResourceType", "TagSpecification.N.Tag.N.Key", "TagSpecification.N.Tag.N.Value")
_BURSTABLE = ("t2.", "t3.", "t3a.", "t4g.", "m7i-flex.", "mac")  # EC2 takes none of these into a cluster


@dataclass
class GroupRoom:
    """How many instances fit side by side; by the group's name, and for all others."""

    by_name: dict[str, int] = field(default_factory=dict)
    usual: int = 1_000

    def of(self, name: str) -> int:
        return self.by_name.get(name, self.usual)


def create_group(form: Form, region: Region) -> Mapping[str, Any]:
    form.allow(["GroupName", "Strategy", *_TAGS])
    name, strategy = form.require("GroupName"), form.require("Strategy")
    if not name.isascii() or len(name) > 255:
        raise Refused("InvalidParameterValue", f"Value ({name}) for parameter groupName is invalid")
    if strategy != "cluster":
        raise Refused("InvalidParameterValue", f"the emulator has no {strategy} groups")
    if form.is_true("DryRun"):
        raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
    if name in region.placement_groups:
        raise Refused("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
    if len(region.placement_groups) >= MOST_GROUPS:
        raise Refused("ResourceLimitExceeded", f"You may have {MOST_GROUPS} placement groups in a region")
    kinds = [form.get(f"TagSpecification.{n}.ResourceType") for n in range(1, form.count("TagSpecification") + 1)]
    if wrong := set(kinds) - {"placement-group"}:
        raise Refused("InvalidParameterValue", f"'{', '.join(sorted(wrong))}' is not made by this request")
    group = PlacementGroup(name, _tags(form))
    region.placement_groups[name] = group
    return {"return": True, "placementGroup": _item(group)}


def delete_group(form: Form, region: Region) -> Mapping[str, Any]:
    form.allow(["GroupName"])
    name = form.require("GroupName")
    if name not in region.placement_groups:
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    if members_of(name, region):
        raise Refused("InvalidPlacementGroup.InUse", f"The placement group {name} is in use and may not be deleted.")
    del region.placement_groups[name]
    return {"return": True}


def describe_groups(form: Form, region: Region) -> Mapping[str, Any]:
    form.allow(["Filter.N.Name", "Filter.N.Value.N", "GroupName.N"])
    names, filters = form.many("GroupName"), form.filters()
    if unknown := set(names) - set(region.placement_groups):
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{sorted(unknown)[0]}' is unknown.")
    found = [
        group
        for group in region.placement_groups.values()
        if (not names or group.name in names)
        and matches(filters, {"group-name": group.name, "strategy": "cluster", "state": "available"}, group.tags)
    ]
    return {"placementGroupSet": [_item(group) for group in found]}


def check_place(name: str, kind: str, zone: str, region: Region) -> None:
    """What EC2 refuses before it looks for room."""
    if not name:
        return
    if name not in region.placement_groups:
        raise Refused("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
    if kind.startswith(_BURSTABLE):
        message = f"Cluster placement groups are not supported by the '{kind}' instance type."
        raise Refused("InvalidParameterCombination", message)
    if elsewhere := {machine.zone for machine in members_of(name, region)} - {zone}:
        message = f"The placement group {name} lies in {', '.join(sorted(elsewhere))}, not in {zone}"
        raise Refused("InvalidParameterCombination", message)


def check_room(name: str, kind: str, region: Region, room: GroupRoom) -> None:
    if name and len(members_of(name, region)) >= room.of(name):
        message = f"We currently do not have sufficient {kind} capacity in the placement group {name}."
        raise Refused("InsufficientInstanceCapacity", message, 500)  # the same code as without a group


def members_of(name: str, region: Region) -> list[Any]:
    return [machine for machine in region.machines.values() if machine.is_alive and machine.placement_group == name]


def _tags(form: Form) -> dict[str, str]:
    pairs = range(1, form.count("TagSpecification.1.Tag") + 1)
    return {
        form.require(f"TagSpecification.1.Tag.{n}.Key"): form.get(f"TagSpecification.1.Tag.{n}.Value") for n in pairs
    }


def _item(group: PlacementGroup) -> dict[str, Any]:
    return {"groupName": group.name, "strategy": "cluster", "state": "available", "tagSet": tag_set(group.tags)}
