"""The emulated Compute Engine: machines, disks, operations, and what a preflight reads (part of gcp.py).

A machine goes PROVISIONING -> STAGING -> RUNNING; its insert operation is DONE when it runs. A refusal for stock or
quota comes inside of a DONE operation, as with Google.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tradewind.emulators import gcp_rules as rules
from tradewind.emulators.gcp_http import JSON, Cut, Refused, Request
from tradewind.emulators.gcp_placement import Policies
from tradewind.emulators.gcp_state import REGIONS, ZONES, Faults, Pool, Timeline

HOST = "https://www.googleapis.com/compute/v1"
Place = tuple[str, str]  # zone and name


@dataclass
class Vm:
    """One machine. `body` is the resource as it is shown."""

    zone: str
    body: JSON
    listed_from_s: float = 0.0
    preempted: bool = False  # its metadata service says so
    maintenance: str = "NONE"  # likewise: "TERMINATE_ON_HOST_MAINTENANCE"

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def machine(self) -> str:
        return str(self.body["machineType"]).rpartition("/")[2]

    @property
    def is_spot(self) -> bool:
        return bool(self.body.get("scheduling", {}).get("provisioningModel") == "SPOT")

    @property
    def pool(self) -> Pool:
        return self.zone, self.machine, self.is_spot

    @property
    def is_up(self) -> bool:
        return self.body["status"] in ("PROVISIONING", "STAGING", "RUNNING")

    def metadata(self, key: str) -> str:
        items = self.body.get("metadata", {}).get("items", ())
        return next((str(item["value"]) for item in items if item["key"] == key), "")


@dataclass
class Compute:
    project: str
    time: Timeline
    faults: Faults
    page_size: int
    provision_s: float = 2.0
    boot_s: float = 20.0
    delete_s: float = 15.0
    on_boot: Callable[[Vm], None] = lambda _: None
    on_end: Callable[[Vm], None] = lambda _: None
    console: Callable[[Vm], str] = lambda _: ""
    new_address: Callable[[], str] | None = None  # None: some of 10.128.0.0/16
    images: dict[str, JSON] = field(default_factory=dict)  # by the path after projects/
    subnetworks: set[tuple[str, str]] = field(default_factory=lambda: {(region, "default") for region in REGIONS})
    quotas: dict[tuple[str, str], tuple[float, float]] = field(
        default_factory=dict
    )  # (region or "", metric): limit, usage
    vms: dict[Place, Vm] = field(default_factory=dict)
    disks: dict[Place, JSON] = field(default_factory=dict)
    operations: dict[Place, JSON] = field(default_factory=dict)
    placement: Policies = field(init=False)
    _requests: dict[str, tuple[str, JSON]] = field(
        default_factory=dict
    )  # by request id: what was asked, and its answer
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(2))

    def __post_init__(self) -> None:
        self.placement = Policies(self.project, self.time, self.faults, self._members)

    def _members(self, region: str, policy: str) -> list[Place]:
        link = f"/regions/{region}/resourcePolicies/{policy}"
        return [
            place
            for place, vm in self.vms.items()
            if any(f"/{mine}".endswith(link) for mine in vm.body.get("resourcePolicies", ()))
        ]

    # --- machines ----------------------------------------------------------------------------------------------

    def insert(self, request: Request, zone: str) -> JSON:
        from google.cloud import compute_v1

        body = request.body
        rules.check_schema(body, compute_v1.Instance)
        rules.check_instance(body, zone)
        self._check_links(body, zone)
        self.placement.check(body, zone)
        again = self._repeated(request)
        if again is not None:
            return again
        if (zone, body["name"]) in self.vms:
            raise Refused(409, "alreadyExists", f"The resource '{self._path(zone, body['name'])}' already exists")
        if self.faults.take("cut_before"):
            raise Cut
        operation = self._insert(body, zone)
        self._remember(request, operation)
        if self.faults.take("cut_after"):
            raise Cut
        return operation

    def _insert(self, body: JSON, zone: str) -> JSON:
        operation = self._begin("insert", zone, "instances", body["name"])
        vm = Vm(zone, body)
        error = self._refusal(vm)
        if error:
            self.time.after(self.provision_s, lambda: self._finish(operation, error))
            return operation
        self.add(vm, operation["targetId"])
        self.time.after(self.provision_s, lambda: self._move(vm, "PROVISIONING", "STAGING"))
        never = self.faults.take("failed_boots")
        self.time.after(self.boot_s, lambda: self._boot(vm, operation, never))
        return operation

    def add(self, vm: Vm, number: str = "") -> Vm:
        """Put a machine there, PROVISIONING, with its disks."""
        now_s, number = self.time.now_s(), number or str(uuid.uuid4().int % 10**18)
        vm.listed_from_s = now_s + self.faults.listing_lag_s
        number_of = next(self._numbers)
        address = self.new_address() if self.new_address else f"10.128.{number_of // 250}.{number_of % 250 + 1}"
        vm.body["networkInterfaces"][0]["networkIP"] = address
        vm.body.update(
            id=number,
            status="PROVISIONING",
            zone=f"{HOST}/projects/{self.project}/zones/{vm.zone}",
            creationTimestamp=self.time.stamp(),
            selfLink=f"{HOST}/{self._path(vm.zone, vm.name)}",
        )
        self.vms[vm.zone, vm.name] = vm
        for disk in vm.body["disks"]:
            self._attach(vm, disk)
        return vm

    def _attach(self, vm: Vm, disk: JSON) -> None:
        wanted = disk.pop("initializeParams", {})
        name = wanted.get("diskName") or vm.name
        disk["source"] = f"{HOST}/projects/{self.project}/zones/{vm.zone}/disks/{name}"
        self.add_disk(vm.zone, name, wanted.get("labels", {}), [vm.body["selfLink"]])

    def add_disk(self, zone: str, name: str, labels: JSON, users: list[str]) -> None:
        link = f"{HOST}/projects/{self.project}/zones/{zone}"
        stamp = self.time.stamp()
        self.disks[zone, name] = {
            "name": name,
            "zone": link,
            "labels": labels,
            "users": users,
            "creationTimestamp": stamp,
        }

    def held_in(self, pool: Pool) -> list[Vm]:
        """Oldest first; those that are being taken back are no longer held."""
        return [vm for vm in self.vms.values() if vm.is_up and vm.pool == pool and not vm.preempted]

    def _refusal(self, vm: Vm) -> tuple[str, str] | None:
        region = vm.zone.rpartition("-")[0]
        there = [each for each in self.vms.values() if each.is_up and each.zone.rpartition("-")[0] == region]
        if self.faults.unknown_code:
            code, self.faults.unknown_code = self.faults.unknown_code, ""
            return code, "Something happened that has never happened before."
        if self.faults.quota is not None and len(there) >= self.faults.quota:
            limit = f"Limit: {self.faults.quota}.0 in region {region}."
            return "QUOTA_EXCEEDED", f"Quota 'PREEMPTIBLE_NVIDIA_L4_GPUS' exceeded.  {limit}"
        is_dry = self.faults.is_dry(vm.pool, len(self.held_in(vm.pool)), self.time.clock())
        if is_dry or self.placement.is_full(vm.body):
            where = f"The zone 'projects/{self.project}/zones/{vm.zone}'"
            why = "does not have enough resources available to fulfill the request.  Try a different zone."
            return "ZONE_RESOURCE_POOL_EXHAUSTED", f"{where} {why}"
        return None

    def _boot(self, vm: Vm, operation: JSON, never: bool) -> None:
        self._finish(operation)
        if self.vms.get((vm.zone, vm.name)) is not vm or not vm.is_up:
            return
        if never:
            self.stopped(vm)
            return
        vm.body.update(status="RUNNING", lastStartTimestamp=self.time.stamp())
        self.on_boot(vm)

    def stopped(self, vm: Vm) -> None:
        """It went down by itself. What it leaves is a stopped machine with its disk, until somebody deletes it."""
        if self.vms.get((vm.zone, vm.name)) is vm and vm.is_up:
            told = self._begin("compute.instances.guestTerminate", vm.zone, "instances", vm.name, "Instance shut down.")
            self._finish(told)
            vm.body.update(status="TERMINATED", lastStopTimestamp=self.time.stamp())

    def serial(self, request: Request, zone: str, name: str) -> JSON:
        vm, start = self._vm(zone, name), int(request.query.get("start", "0"))
        if request.query.get("port", "1") != "1":
            raise rules.invalid("port", request.query["port"], "only port 1 has output here")
        text = self.console(vm)
        return {"contents": text[start:], "start": str(start), "next": str(len(text))}

    def _move(self, vm: Vm, before: str, after: str) -> None:
        if vm.body["status"] == before:
            vm.body["status"] = after

    def delete(self, zone: str, name: str) -> JSON:
        vm = self._vm(zone, name)
        if vm.body["status"] == "STOPPING":
            raise Refused(400, "resourceNotReady", f"The resource '{self._path(zone, name)}' is not ready")
        vm.body["status"] = "STOPPING"
        operation = self._begin("delete", zone, "instances", name)
        self.time.after(self.delete_s, lambda: self._gone(vm, operation))
        return operation

    def _gone(self, vm: Vm, operation: JSON) -> None:
        self.remove(vm)
        self._finish(operation)

    def remove(self, vm: Vm) -> None:
        """No longer there, nor its disks."""
        if self.vms.get((vm.zone, vm.name)) is vm:
            del self.vms[vm.zone, vm.name]
            for disk in vm.body["disks"]:
                place = (vm.zone, disk["source"].rpartition("/")[2])
                if disk.get("autoDelete"):
                    self.disks.pop(place, None)
                elif place in self.disks:
                    self.disks[place]["users"] = []
            self.on_end(vm)

    def preempt(self, vm: Vm, notice_s: float) -> None:
        """The metadata service tells at once; the machine goes when the notice is over."""
        vm.preempted = True
        operation = self._begin("compute.instances.preempted", vm.zone, "instances", vm.name, "Instance was preempted.")
        operation["user"] = "system"
        if notice_s > 0:
            self.time.after(notice_s, lambda: self._gone(vm, operation))
        else:
            self._gone(vm, operation)

    def get(self, zone: str, name: str) -> JSON:
        return self._vm(zone, name).body

    def _vm(self, zone: str, name: str) -> Vm:
        if (zone, name) not in self.vms:
            raise Refused(404, "notFound", f"The resource '{self._path(zone, name)}' was not found")
        return self.vms[zone, name]

    def _check_links(self, body: JSON, zone: str) -> None:
        if zone not in ZONES:
            raise Refused(404, "notFound", f"The resource 'projects/{self.project}/zones/{zone}' was not found")
        for disk in body["disks"]:
            image = disk.get("initializeParams", {}).get("sourceImage", "").removeprefix("projects/")
            if image not in self.images:
                raise rules.invalid(
                    "resource.disks[0].initializeParams.sourceImage", image, "The image does not exist."
                )
        for card in body["networkInterfaces"]:
            path, _, name = str(card.get("subnetwork", "")).rpartition("/subnetworks/")
            region = path.rpartition("/")[2]
            if (region, name) not in self.subnetworks or region != zone.rpartition("-")[0]:
                raise rules.invalid(
                    "resource.networkInterfaces[0].subnetwork", card.get("subnetwork"), "It does not exist."
                )

    # --- request ids -------------------------------------------------------------------------------------------

    def _repeated(self, request: Request) -> JSON | None:
        number = request.query.get("requestId", "")
        if number and not rules.UUID.fullmatch(number):
            raise rules.invalid("requestId", number, "Must be a valid UUID")
        asked, answer = self._requests.get(number, ("", None))
        if answer is not None and asked != request.path + request.raw.decode():
            raise rules.invalid("requestId", number, "It was used for another request")
        return answer

    def _remember(self, request: Request, operation: JSON) -> None:
        if number := request.query.get("requestId", ""):
            self._requests[number] = (request.path + request.raw.decode(), operation)

    # --- operations --------------------------------------------------------------------------------------------

    def _begin(self, kind: str, zone: str, folder: str, name: str, told: str = "") -> JSON:
        label = f"operation-{uuid.uuid4().hex[:16]}"
        link, stamp = f"{HOST}/projects/{self.project}/zones/{zone}", self.time.stamp()
        operation = {
            "name": label,
            "operationType": kind,
            "zone": link,
            "targetLink": f"{link}/{folder}/{name}",
            "targetId": str(uuid.uuid4().int % 10**18),
            "status": "RUNNING",
            "statusMessage": told,
            "user": "tradewind@emulator",
            "insertTime": stamp,
            "startTime": stamp,
            "selfLink": f"{link}/operations/{label}",
        }
        self.operations[zone, label] = operation
        return operation

    def _finish(self, operation: JSON, error: tuple[str, str] | None = None) -> None:
        operation.update(status="DONE", progress=100, endTime=self.time.stamp())
        if error:
            operation["error"] = {"errors": [{"code": error[0], "message": error[1]}]}
            operation["httpErrorStatusCode"] = 503

    def operation(self, zone: str, name: str) -> JSON:
        if (zone, name) not in self.operations:
            raise Refused(404, "notFound", f"The resource 'zones/{zone}/operations/{name}' was not found")
        return self.operations[zone, name]

    # --- listings ----------------------------------------------------------------------------------------------

    def aggregated(self, request: Request, kind: str) -> JSON:
        """By zone, in pages. A dead region's zones say UNREACHABLE instead of what they hold."""
        items = [(zone, item) for zone, item in self._all(kind) if self._is_visible(zone, item)]
        chosen = rules.compile_filter(request.query.get("filter", ""))
        found = [(zone, item) for zone, item in items if chosen(item)]
        order = request.query.get("orderBy", "")
        if order == "creationTimestamp desc":
            found.sort(key=lambda pair: pair[1].get("insertTime") or pair[1]["creationTimestamp"], reverse=True)
        elif order:
            raise rules.invalid("orderBy", order, "only 'creationTimestamp desc' and 'name'")
        page, token = self._page(found, request)
        scopes: JSON = {f"zones/{zone}": {kind: []} for zone, _ in page}
        for zone, item in page:
            scopes[f"zones/{zone}"][kind].append(item)
        for zone in ZONES:
            if f"zones/{zone}" not in scopes:
                code = "UNREACHABLE" if zone.rpartition("-")[0] in self.faults.dead_regions else "NO_RESULTS_ON_PAGE"
                scopes[f"zones/{zone}"] = {"warning": {"code": code, "message": code}}
        return {"kind": f"compute#{kind}AggregatedList", "items": scopes, "nextPageToken": token}

    def _all(self, kind: str) -> Iterable[tuple[str, JSON]]:
        if kind == "instances":
            return [(zone, vm.body) for (zone, _), vm in self.vms.items() if vm.listed_from_s <= self.time.now_s()]
        found = self.disks if kind == "disks" else self.operations
        return [(zone, item) for (zone, _), item in found.items()]

    def _is_visible(self, zone: str, _: JSON) -> bool:
        return zone.rpartition("-")[0] not in self.faults.dead_regions

    def _page(self, items: list[tuple[str, JSON]], request: Request) -> tuple[list[tuple[str, JSON]], str]:
        asked = int(request.query.get("maxResults", "500"))
        if not 0 <= asked <= 500:
            raise rules.invalid("maxResults", asked, "Must be between 0 and 500")
        start, size = int(request.query.get("pageToken") or 0), min(asked, self.page_size)
        end = start + size
        return items[start:end], str(end) if end < len(items) else ""

    # --- the rest ----------------------------------------------------------------------------------------------

    def delete_disk(self, zone: str, name: str) -> JSON:
        disk = self.disks.get((zone, name))
        if disk is None:
            raise Refused(404, "notFound", f"The resource 'zones/{zone}/disks/{name}' was not found")
        if disk["users"]:
            raise Refused(400, "resourceInUseByAnotherResource", f"The disk resource '{name}' is already being used")
        del self.disks[zone, name]
        operation = self._begin("delete", zone, "disks", name)
        self._finish(operation)
        return operation

    def region(self, name: str) -> JSON:
        if name not in REGIONS:
            raise Refused(404, "notFound", f"The resource 'projects/{self.project}/regions/{name}' was not found")
        return {"name": name, "status": "UP", "quotas": self._quotas(name)}

    def about(self) -> JSON:
        return {"name": self.project, "quotas": self._quotas("")}

    def _quotas(self, region: str) -> list[JSON]:
        told = {metric: pair for (place, metric), pair in self.quotas.items() if place == region}
        return [{"metric": metric, "limit": limit, "usage": usage} for metric, (limit, usage) in told.items()]

    def subnetwork(self, region: str, name: str) -> JSON:
        if (region, name) not in self.subnetworks:
            raise Refused(404, "notFound", f"The resource 'regions/{region}/subnetworks/{name}' was not found")
        return {"name": name, "ipCidrRange": "10.128.0.0/20", "privateIpGoogleAccess": True}

    def image(self, path: str) -> JSON:
        if path not in self.images:
            raise Refused(404, "notFound", f"The resource 'projects/{path}' was not found")
        return self.images[path]

    def _path(self, zone: str, name: str) -> str:
        return f"projects/{self.project}/zones/{zone}/instances/{name}"
