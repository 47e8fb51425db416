"""Compact placement policies of the emulated Compute Engine: resources of a region, by whose name machines lie side by
side in one zone. How many machines one has room for is a fault that tests set."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tradewind.emulators import gcp_rules as rules
from tradewind.emulators.gcp_http import JSON, Refused, Request
from tradewind.emulators.gcp_state import REGIONS, Faults, Timeline

# By "Placement policies overview": N1, E2 and N4 are not among the machine series of compact policies.
_COMPACT = re.compile(r"(a2|a3|a4|a4x|c2|c2d|c3|c3d|c4|c4d|g2|h3|h4d|n2|n2d)-")
_LINK = re.compile(
    r"(?:https://www.googleapis.com/compute/v1/)?projects/[^/]+/regions/([^/]+)/resourcePolicies/([^/]+)"
)
Members = Callable[[str, str], Iterable[tuple[str, str]]]  # region and policy -> (zone, machine) that have it


@dataclass
class Policies:
    project: str
    time: Timeline
    faults: Faults
    members: Members
    made_in_s: float = 1.0
    policies: dict[tuple[str, str], JSON] = field(default_factory=dict)  # by region and name
    operations: dict[tuple[str, str], JSON] = field(default_factory=dict)

    def insert(self, request: Request, region: str) -> JSON:
        from google.cloud import compute_v1

        body = request.body
        rules.check_schema(body, compute_v1.ResourcePolicy)
        name, placement = body.get("name", ""), body.get("groupPlacementPolicy", {})
        if region not in REGIONS:
            raise Refused(404, "notFound", f"The resource 'projects/{self.project}/regions/{region}' was not found")
        if not rules.NAME.fullmatch(name):
            raise rules.invalid("resource.name", name, f"Must be a match of regex '{rules.NAME.pattern}'")
        if placement.get("collocation") != "COLLOCATED":
            raise rules.invalid("resource.groupPlacementPolicy", placement, "this emulator has compact placement alone")
        if (region, name) in self.policies:
            raise Refused(409, "alreadyExists", f"The resource '{self._path(region, name)}' already exists")
        self.policies[region, name] = {**body, "region": region, "status": "CREATING"}
        operation = self._begin("insert", region, name)
        self.time.after(self.made_in_s, lambda: self._ready(region, name, operation))
        return operation

    def _ready(self, region: str, name: str, operation: JSON) -> None:
        if (region, name) in self.policies:
            self.policies[region, name]["status"] = "READY"
        operation.update(status="DONE", progress=100, endTime=self.time.stamp())

    def delete(self, region: str, name: str) -> JSON:
        if (region, name) not in self.policies:
            raise Refused(404, "notFound", f"The resource '{self._path(region, name)}' was not found")
        if users := list(self.members(region, name)):
            message = f"The resource_policy resource '{name}' is already being used by '{users[0][1]}'"
            raise Refused(400, "resourceInUseByAnotherResource", message)
        del self.policies[region, name]
        operation = self._begin("delete", region, name)
        operation.update(status="DONE", progress=100, endTime=self.time.stamp())
        return operation

    def operation(self, region: str, name: str) -> JSON:
        if (region, name) not in self.operations:
            raise Refused(404, "notFound", f"The resource 'regions/{region}/operations/{name}' was not found")
        return self.operations[region, name]

    def aggregated(self) -> JSON:
        if "compute.resourcePolicies.list" in self.faults.denied:
            message = f"Required 'compute.resourcePolicies.list' permission for 'projects/{self.project}'"
            raise Refused(403, "forbidden", message, "PERMISSION_DENIED")
        scopes: JSON = {}
        for region in REGIONS:
            here = [policy for (place, _), policy in self.policies.items() if place == region]
            code = "UNREACHABLE" if region in self.faults.dead_regions else "NO_RESULTS_ON_PAGE"
            is_told = here and code != "UNREACHABLE"
            told: JSON = {"resourcePolicies": here} if is_told else {"warning": {"code": code, "message": code}}
            scopes[f"regions/{region}"] = told
        return {"kind": "compute#resourcePolicyAggregatedList", "items": scopes}

    # --- what a launch asks for ---

    def check(self, body: JSON, zone: str) -> None:
        for link in body.get("resourcePolicies", ()):
            region, name = self._place(link)
            if region != zone.rpartition("-")[0] or (region, name) not in self.policies:
                raise Refused(404, "notFound", f"The resource '{self._path(region, name)}' was not found")
            if self.policies[region, name]["status"] != "READY":
                raise Refused(400, "resourceNotReady", f"The resource '{self._path(region, name)}' is not ready")
            self._check_machine(body, zone, region, name)

    def _check_machine(self, body: JSON, zone: str, region: str, name: str) -> None:
        machine = body["machineType"].rpartition("/")[2]
        if not _COMPACT.match(machine):
            raise rules.invalid("resource.resourcePolicies", name, f"{machine} does not support compact placement.")
        if body.get("scheduling", {}).get("onHostMaintenance") != "TERMINATE":
            raise rules.invalid("resource.scheduling", "MIGRATE", "Compact placement does not support live migration.")
        if elsewhere := {place for place, _ in self.members(region, name)} - {zone}:
            raise rules.invalid("resource.resourcePolicies", name, f"Its machines are in {sorted(elsewhere)[0]}.")

    def is_full(self, body: JSON) -> bool:
        room = self.faults.group_room
        wanted = [self._place(link) for link in body.get("resourcePolicies", ())]
        return room is not None and any(len(list(self.members(*place))) >= room for place in wanted)

    def _place(self, link: str) -> tuple[str, str]:
        found = _LINK.fullmatch(link)
        if found is None:
            raise rules.invalid("resource.resourcePolicies", link, "The URL is malformed.")
        return found[1], found[2]

    def _path(self, region: str, name: str) -> str:
        return f"projects/{self.project}/regions/{region}/resourcePolicies/{name}"

    def _begin(self, kind: str, region: str, name: str) -> JSON:
        label, stamp = f"operation-{uuid.uuid4().hex[:16]}", self.time.stamp()
        operation: JSON = {
            "name": label,
            "operationType": kind,
            "region": region,
            "targetLink": self._path(region, name),
            "status": "RUNNING",
            "insertTime": stamp,
            "startTime": stamp,
        }
        self.operations[region, label] = operation
        return operation
