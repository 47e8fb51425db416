"""Proximity placement groups of the emulated subscription: they lie in one zone once a machine is in them. How many
machines one has room for is a fault that tests set (part of azure.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tradewind.emulators import azure_rules as rules
from tradewind.emulators.azure_http import JSON, Answer, Refused, Request
from tradewind.emulators.azure_state import REGIONS, Faults

KIND = "Microsoft.Compute/proximityPlacementGroups"
Place = tuple[str, str]  # resource group and name, in lower case
Members = Callable[[Place], Iterable[tuple[str, str]]]  # (id, zone) of the machines in a group


@dataclass
class Groups:
    subscription: str
    faults: Faults
    members: Members
    groups: dict[Place, JSON] = field(default_factory=dict)

    def put(self, request: Request, group: str, name: str) -> Answer:
        from azure.mgmt.compute import types

        body = request.body
        rules.check_schema(body, types.ProximityPlacementGroup)
        if not rules.RESOURCE_NAME.fullmatch(name):
            raise Refused(400, "InvalidResourceName", f"'{name}' is not a name for a proximity placement group")
        if body.get("location") not in REGIONS:
            raise Refused(400, "LocationNotAvailableForResourceType", f"'{body.get('location')}' is not available.")
        if body.get("zones") and not body.get("properties", {}).get("intent", {}).get("vmSizes"):
            raise rules.invalid("zones", "They can be given together with an intent alone.")
        rules.check_tags(body.get("tags", {}))
        place = (group.lower(), name.lower())
        there = self.groups.get(place)
        if there is not None and there["location"] != body["location"]:
            message = f"The resource '{name}' already exists in location '{there['location']}'."
            raise Refused(409, "InvalidResourceLocation", message)
        path = f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{KIND}/{name}"
        self.groups[place] = {**body, "id": path, "name": name, "type": KIND}
        return Answer(200 if there else 201, self._shown(place))

    def delete(self, _: Request, group: str, name: str) -> Answer:
        place = (group.lower(), name.lower())
        if place not in self.groups:
            return Answer(204)
        if list(self.members(place)):
            message = f"Proximity Placement Group '{name}' cannot be deleted. Ensure that it contains no VM."
            raise Refused(409, "OperationNotAllowed", message)
        del self.groups[place]
        return Answer(200)

    def listed(self, group: str) -> list[JSON]:
        return [self._shown(place) for place in self.groups if place[0] == group.lower()]

    def _shown(self, place: Place) -> JSON:
        body = self.groups[place]
        inside = [{"id": path.upper()} for path, _ in self.members(place)]  # Azure writes these in capitals
        return {**body, "properties": {**body.get("properties", {}), "virtualMachines": inside}}

    # --- what a launch asks for ---

    def check(self, body: JSON) -> None:
        path = body["properties"].get("proximityPlacementGroup", {}).get("id", "")
        place = place_in(body)
        if place is None:
            return
        if place not in self.groups or self.groups[place]["location"] != body["location"]:
            raise Refused(400, "InvalidResourceReference", f"Resource {path} referenced by the machine was not found.")
        zone = "-".join([body["location"], *body.get("zones", [])])
        if {elsewhere for _, elsewhere in self.members(place)} - {zone}:
            message = f"The machines of the proximity placement group {path} are in another zone."
            raise Refused(409, "OverconstrainedZonalAllocationRequest", message)

    def is_full(self, body: JSON) -> bool:
        """With the machine itself in it."""
        place, room = place_in(body), self.faults.group_room
        return place is not None and room is not None and len(list(self.members(place))) > room


def place_in(body: JSON) -> Place | None:
    """The group that a machine names."""
    path = body["properties"].get("proximityPlacementGroup", {}).get("id", "")
    parts = path.lower().split("/")
    return (parts[4], parts[-1]) if path else None
