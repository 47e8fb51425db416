"""The emulated machines, interfaces and disks of a subscription, with operations and activity log (part of azure.py).

A machine is Creating -> (starting, running) -> Succeeded; its operation ends with it. Where there is no hardware, the
call is accepted all the same: the operation fails (with HTTP 200), and a machine is left that is Failed, with its disk
and its interface, until it is deleted.
"""

from __future__ import annotations

import base64
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field

from tradewind.emulators import azure_rules as rules
from tradewind.emulators.azure_http import JSON, Answer, Cut, Refused, Request
from tradewind.emulators.azure_placement import Groups, place_in
from tradewind.emulators.azure_state import IMAGE, REGIONS, SIZES, ZONES, Faults, Pool, stamp
from tradewind.emulators.gcp_state import Timeline

Place = tuple[str, str]  # resource group and name, in lower case: Azure does not tell cases apart
_VM, _NIC, _DISK = (
    "Microsoft.Compute/virtualMachines",
    "Microsoft.Network/networkInterfaces",
    "Microsoft.Compute/disks",
)


@dataclass
class Vm:
    """One machine. `body` is the resource as it is shown."""

    body: JSON
    custom_data: str = ""  # never shown again
    power: str = ""  # "", "starting", "running", "stopped", "deallocated"
    error: tuple[str, str] | None = None
    since_s: float = 0.0  # of its provisioning state
    listed_from_s: float = 0.0
    evicted_at_s: float | None = None  # announced to its metadata service
    event_id: str = ""

    @property
    def name(self) -> str:
        return str(self.body["name"])

    @property
    def place(self) -> Place:
        return place_of(self.body["id"])

    @property
    def properties(self) -> JSON:
        found: JSON = self.body["properties"]
        return found

    @property
    def region(self) -> str:
        return str(self.body["location"])

    @property
    def size(self) -> str:
        return str(self.properties["hardwareProfile"]["vmSize"])

    @property
    def is_spot(self) -> bool:
        return bool(self.properties.get("priority") == "Spot")

    @property
    def pool(self) -> Pool:
        return "-".join([self.region, *self.body.get("zones", [])]), self.size, self.is_spot

    @property
    def state(self) -> str:
        return str(self.properties["provisioningState"])

    @property
    def is_up(self) -> bool:
        return self.state in ("Creating", "Succeeded") or self.power in ("starting", "running")

    @property
    def user_data(self) -> str:
        return base64.b64decode(self.custom_data).decode()

    def view(self) -> JSON:
        code = f"ProvisioningState/{self.state.lower()}" + (f"/{self.error[0]}" if self.error else "")
        status = {"code": code, "level": "Error" if self.error else "Info", "time": stamp(self.since_s)}
        told = [{**status, "message": self.error[1]} if self.error else status]
        return {"statuses": [*told, *([{"code": f"PowerState/{self.power}", "level": "Info"}] if self.power else [])]}


def place_of(path: str) -> Place:
    parts = path.lower().split("/")
    return parts[4], parts[-1]


@dataclass
class Compute:
    subscription: str
    time: Timeline
    faults: Faults
    provision_s: float = 2.0
    boot_s: float = 20.0
    delete_s: float = 15.0
    retry_after_s: int = 1  # between two looks at an operation
    on_boot: Callable[[Vm], None] = lambda _: None
    on_end: Callable[[Vm], None] = lambda _: None
    console: Callable[[Vm], str] = lambda _: ""
    new_address: Callable[[], str] | None = None  # None: some of 10.0.0.0/16
    groups: set[str] = field(default_factory=lambda: {"tradewind"})
    images: set[tuple[str, str, str]] = field(default_factory=lambda: {IMAGE})
    image_ids: set[str] = field(default_factory=set)  # in lower case
    subnets: dict[str, str] = field(default_factory=dict)  # id in lower case -> region
    vms: dict[Place, Vm] = field(default_factory=dict)
    nics: dict[Place, JSON] = field(default_factory=dict)
    disks: dict[Place, JSON] = field(default_factory=dict)
    operations: dict[str, JSON] = field(default_factory=dict)
    events: list[tuple[float, JSON]] = field(default_factory=list)  # the activity log, and from when it tells
    placement: Groups = field(init=False)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(4))

    def __post_init__(self) -> None:
        self.placement = Groups(self.subscription, self.faults, self._members)

    def _members(self, place: Place) -> list[tuple[str, str]]:
        return [(vm.body["id"], vm.pool[0]) for vm in self.vms.values() if place_in(vm.body) == place]

    # --- machines ----------------------------------------------------------------------------------------------

    def put_vm(self, request: Request, group: str, name: str) -> Answer:
        from azure.mgmt.compute import types

        body = request.body
        rules.check_schema(body, types.VirtualMachine)
        rules.check_vm(name, body)
        self._check_group(group)
        there = self.vms.get((group.lower(), name.lower()))
        if there is not None:
            return self._put_again(request, body, there)
        self._check_links(body)
        self.placement.check(body)
        if self.faults.take("cut_before"):
            raise Cut
        vm = self._new(group, name, body)
        self._check_limits(vm)
        self.add(vm)
        headers = self._operation(vm.region)
        self._create(vm, headers)
        if self.faults.take("cut_after"):
            raise Cut
        return Answer(201, vm.body, headers)

    def _put_again(self, request: Request, body: JSON, vm: Vm) -> Answer:
        if request.headers.get("if-none-match") == "*":
            raise Refused(412, "PreconditionFailed", f"The resource '{vm.name}' exists already.")
        if body["location"] != vm.region:
            message = f"The resource '{vm.name}' already exists in location '{vm.region}'."
            raise Refused(409, "InvalidResourceLocation", message)
        for member in ("zones", "priority", "hardwareProfile"):
            before = vm.body.get(member) or vm.properties.get(member)
            after = body.get(member) or body["properties"].get(member)
            if before != after:
                raise Refused(409, "PropertyChangeNotAllowed", f"Changing property '{member}' is not allowed.")
        return Answer(200, vm.body, self._operation(vm.region))

    def _new(self, group: str, name: str, body: JSON) -> Vm:
        path = f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{_VM}/{name}"
        custom = body["properties"]["osProfile"].pop("customData", "")
        now_s = self.time.now_s()
        body.update(id=path, name=name, type=_VM)
        body["properties"].update(provisioningState="Creating", vmId=str(uuid.uuid4()), timeCreated=stamp(now_s))
        return Vm(body, custom, since_s=now_s, listed_from_s=now_s + self.faults.listing_lag_s)

    def add(self, vm: Vm) -> None:
        """Put a machine there, with its disk and on its interface."""
        self.vms[vm.place] = vm
        disk = vm.properties["storageProfile"]["osDisk"]
        disk.setdefault("name", f"{vm.name}_OsDisk")
        path = vm.body["id"].replace(f"{_VM}/{vm.name}", f"{_DISK}/{disk['name']}")
        self.add_disk(path, vm.body.get("tags", {}), vm.region, vm.body["id"])
        for each in vm.properties["networkProfile"]["networkInterfaces"]:
            if nic := self.nics.get(place_of(each["id"])):
                nic["properties"]["virtualMachine"] = {"id": vm.body["id"]}

    def add_disk(self, path: str, tags: JSON, region: str, used_by: str = "") -> None:
        body = {"id": path, "name": path.rpartition("/")[2], "type": _DISK, "location": region, "tags": dict(tags)}
        state = {"diskState": "Attached" if used_by else "Unattached", "creationData": {"createOption": "FromImage"}}
        self.disks[place_of(path)] = {**body, "properties": state, **({"managedBy": used_by} if used_by else {})}

    def _create(self, vm: Vm, headers: JSON) -> None:
        operation = headers["Azure-AsyncOperation"]
        self._note(vm, "write", "Started")
        full = self.placement.is_full(vm.body)
        dry = full or self.faults.is_dry(vm.pool, len(self.held_in(vm.pool)) - 1, self.time.clock())
        never = not dry and self.faults.take("failed_boots")
        self.time.after(self.provision_s, lambda: self._provision(vm, operation, dry, full))
        if not dry:
            self.time.after(self.boot_s, lambda: self._boot(vm, operation, never))

    def _provision(self, vm: Vm, operation: str, dry: bool, full: bool) -> None:
        if self.vms.get(vm.place) is not vm or vm.state != "Creating":
            return
        if not dry:
            vm.power = "starting"
            return
        if full:
            message = "Allocation failed. VM(s) with the following constraints cannot be allocated, because the "
            message += "condition is too restrictive: Proximity Placement Group."
            self._fail(vm, operation, "OverconstrainedAllocationRequest", message)
            return
        kind = "ZonalAllocationFailed" if vm.body.get("zones") else "AllocationFailed"
        message = "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
        self._fail(vm, operation, kind, message + ("zone." if vm.body.get("zones") else "region."))

    def _fail(self, vm: Vm, operation: str, code: str, message: str) -> None:
        vm.error = (code, message)
        self._move(vm, "Failed")
        self._note(vm, "write", "Failed")
        self._finish(operation, vm.error)

    def _boot(self, vm: Vm, operation: str, never: bool) -> None:
        if self.vms.get(vm.place) is not vm or vm.state != "Creating":
            return
        vm.power = "running"
        if never:
            message = f"OS Provisioning for VM '{vm.name}' did not finish in the allotted time."
            self._fail(vm, operation, "OSProvisioningTimedOut", message)
            return
        self._move(vm, "Succeeded")
        self._note(vm, "write", "Succeeded")
        self._finish(operation)
        self.on_boot(vm)

    def stopped(self, vm: Vm) -> None:
        """It went down by itself: stopped, and billed, until somebody deletes it."""
        if self.vms.get(vm.place) is vm and vm.power == "running":
            vm.power = "stopped"

    def boot_diagnostics(self, _: Request, group: str, name: str) -> Answer:
        """Links to blobs that need no login. Kept by Azure where the machine was made with it turned on."""
        vm = self.vms.get((group.lower(), name.lower()))
        if vm is None:
            raise Refused(404, "ResourceNotFound", f"The Resource '{_VM}/{name}' was not found.")
        if not vm.properties.get("diagnosticsProfile", {}).get("bootDiagnostics", {}).get("enabled"):
            raise Refused(409, "OperationNotAllowed", f"Boot diagnostics is not enabled on '{name}'.")
        return Answer(200, {"serialConsoleLogBlobUri": f"/bootdiagnostics/{vm.properties['vmId']}/serial.log"})

    def serial_log(self, vm_id: str) -> Answer:
        vm = next((each for each in self.vms.values() if each.properties["vmId"] == vm_id), None)
        if vm is None:
            raise Refused(404, "BlobNotFound", "The specified blob does not exist.")
        return Answer(200, self.console(vm))

    def _move(self, vm: Vm, state: str) -> None:
        vm.properties["provisioningState"], vm.since_s = state, self.time.now_s()

    def delete_vm(self, _: Request, group: str, name: str) -> Answer:
        vm = self.vms.get((group.lower(), name.lower()))
        if vm is None:
            return Answer(204)
        headers = self._operation(vm.region)
        if vm.state != "Deleting":
            self._move(vm, "Deleting")
            self._note(vm, "delete", "Started")
            self.time.after(self.delete_s, lambda: self._gone(vm, "delete"))
        self.time.after(self.delete_s, lambda: self._finish(headers["Azure-AsyncOperation"]))
        return Answer(202, None, headers)

    def _gone(self, vm: Vm, why: str) -> None:
        if self.vms.get(vm.place) is vm:
            self._note(vm, why, "Succeeded")
            self.remove(vm)

    def remove(self, vm: Vm) -> None:
        """No longer there, nor what is to end with it."""
        del self.vms[vm.place]
        disk = vm.properties["storageProfile"]["osDisk"]
        place = (vm.place[0], disk["name"].lower())
        if disk.get("deleteOption") == "Delete":
            self.disks.pop(place, None)
        elif place in self.disks:
            del self.disks[place]["managedBy"]
        for each in vm.properties["networkProfile"]["networkInterfaces"]:
            nic = self.nics.get(place_of(each["id"]), {"properties": {}})
            nic["properties"].pop("virtualMachine", None)
            if each.get("properties", {}).get("deleteOption") == "Delete":
                self.nics.pop(place_of(each["id"]), None)
        self.on_end(vm)

    def deleted_by_somebody(self, vm: Vm) -> None:
        """At once, from the portal; only the activity log tells."""
        self._gone(vm, "delete")

    def evict(self, vm: Vm, notice_s: float) -> None:
        """The metadata service tells at once; the machine goes when the notice is over."""
        vm.evicted_at_s, vm.event_id = self.time.now_s() + notice_s, str(uuid.uuid4()).upper()
        if notice_s > 0:
            self.time.after(notice_s, lambda: self.take_back(vm))
        else:
            self.take_back(vm)

    def take_back(self, vm: Vm) -> None:
        if self.vms.get(vm.place) is not vm:
            return
        if vm.properties.get("evictionPolicy", "Deallocate") == "Delete":
            self._gone(vm, "evictSpotVM/action")
        else:
            self._note(vm, "evictSpotVM/action", "Succeeded")
            vm.power, vm.evicted_at_s = "deallocated", None

    def held_in(self, pool: Pool) -> list[Vm]:
        """Oldest first; those that are being taken back are no longer held."""
        return [vm for vm in self.vms.values() if vm.is_up and vm.pool == pool and vm.evicted_at_s is None]

    # --- refusals ----------------------------------------------------------------------------------------------

    def _check_group(self, group: str) -> None:
        if group.lower() not in self.groups:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")

    def _check_links(self, body: JSON) -> None:
        properties, region = body["properties"], body["location"]
        size, image = (
            properties["hardwareProfile"].get("vmSize"),
            properties["storageProfile"].get("imageReference", {}),
        )
        if region not in REGIONS:
            raise Refused(400, "LocationNotAvailableForResourceType", f"The location '{region}' is not available.")
        if size not in SIZES:
            message = f"The value {size} provided for the VM size is not valid. The valid sizes are: {', '.join(SIZES)}"
            raise Refused(400, "InvalidParameter", message)
        if not set(body.get("zones", [])) <= set(ZONES):
            raise Refused(400, "InvalidAvailabilityZone", f"The zone(s) {body['zones']} are not supported.")
        urn = tuple(image.get(member, "") for member in ("publisher", "offer", "sku"))
        if urn not in self.images and image.get("id", "").lower() not in self.image_ids:
            raise Refused(404, "PlatformImageNotFound", f"The platform image '{':'.join(urn)}' is not available.")
        for each in properties["networkProfile"]["networkInterfaces"]:
            nic = self.nics.get(place_of(each["id"]))
            if nic is None or nic["location"] != region:
                raise Refused(400, "InvalidResourceReference", f"Resource {each['id']} was not found in {region}.")
            if nic["properties"].get("virtualMachine"):
                raise Refused(400, "NicInUse", f"Network Interface {each['id']} is used by existing resource.")

    def _check_limits(self, vm: Vm) -> None:
        if self.faults.unknown_code:
            code, self.faults.unknown_code = self.faults.unknown_code, ""
            raise Refused(409, code, "Something happened that has never happened before.")
        there = [each for each in self.vms.values() if each.is_up and each.region == vm.region]
        if self.faults.quota is not None and len(there) >= self.faults.quota:
            what = "LowPriorityCores" if vm.is_spot else SIZES[vm.size].family
            message = f"Operation could not be completed as it results in exceeding approved {what} quota."
            raise Refused(409, "OperationNotAllowed", f"{message} Location: {vm.region}.")
        limit, price = vm.properties.get("billingProfile", {}).get("maxPrice", -1), self.spot_usd(vm.region, vm.size)
        if vm.is_spot and limit != -1 and limit < price:
            message = f"The provided max price '{limit} USD' is lower than the current spot price '{price} USD'"
            raise Refused(409, "SpotPriceGreaterThanProvidedMaxPrice", f"{message} for Azure Spot VM size '{vm.size}'.")

    def spot_usd(self, region: str, size: str) -> float:
        return self.faults.spot_usd.get((region, size), SIZES[size].spot_usd)

    # --- interfaces and disks ----------------------------------------------------------------------------------

    def put_nic(self, request: Request, group: str, name: str) -> Answer:
        from azure.mgmt.network import types

        body, place = request.body, (group.lower(), name.lower())
        rules.check_schema(body, types.NetworkInterface)
        self._check_group(group)
        if not rules.RESOURCE_NAME.fullmatch(name):
            raise Refused(400, "InvalidResourceName", f"'{name}' is not a name for a network interface")
        rules.check_tags(body.get("tags", {}))
        there = self.nics.get(place)
        if there is not None and there["location"] != body.get("location"):
            raise Refused(409, "InvalidResourceLocation", f"'{name}' already exists in '{there['location']}'.")
        for each in body.get("properties", {}).get("ipConfigurations", []):
            subnet = each.get("properties", {}).get("subnet", {}).get("id", "")
            if self.subnets.get(subnet.lower()) != body.get("location"):
                raise Refused(
                    400, "InvalidResourceReference", f"Resource {subnet} referenced by '{name}' was not found."
                )
            each["properties"]["privateIPAddress"] = self._address()
        path = f"/subscriptions/{self.subscription}/resourceGroups/{group}/providers/{_NIC}/{name}"
        body.update(id=path, name=name, type=_NIC)
        body["properties"]["provisioningState"] = "Succeeded"
        if there is not None and "virtualMachine" in there["properties"]:
            body["properties"]["virtualMachine"] = there["properties"]["virtualMachine"]
        self.nics[place] = body
        return Answer(201 if there is None else 200, body)

    def _address(self) -> str:
        number = next(self._numbers)
        return self.new_address() if self.new_address else f"10.0.{number // 250}.{number % 250 + 1}"

    def address_of(self, vm: Vm) -> str:
        nic = self.nics.get(place_of(vm.properties["networkProfile"]["networkInterfaces"][0]["id"]), {})
        cards = nic.get("properties", {}).get("ipConfigurations", [])
        return str(cards[0]["properties"].get("privateIPAddress", "")) if cards else ""

    def delete_nic(self, _: Request, group: str, name: str) -> Answer:
        nic = self.nics.get((group.lower(), name.lower()))
        if nic is None:
            return Answer(204)
        if nic["properties"].get("virtualMachine"):
            raise Refused(400, "NicInUse", f"Network Interface {nic['id']} is used by existing resource.")
        del self.nics[group.lower(), name.lower()]
        return Answer(200)

    def delete_disk(self, _: Request, group: str, name: str) -> Answer:
        disk = self.disks.get((group.lower(), name.lower()))
        if disk is None:
            return Answer(204)
        if disk.get("managedBy"):
            raise Refused(409, "OperationNotAllowed", f"Disk {name} is attached to VM {disk['managedBy']}.")
        del self.disks[group.lower(), name.lower()]
        return Answer(200)

    # --- operations and the activity log -----------------------------------------------------------------------

    def _operation(self, region: str) -> JSON:
        """Headers that tell where to ask what becomes of it. The host is put in by azure.py."""
        path = f"/subscriptions/{self.subscription}/providers/Microsoft.Compute/locations/{region}/operations"
        link = f"{path}/{uuid.uuid4()}?api-version=2024-07-01"
        self.operations[link.partition("?")[0]] = {"status": "InProgress", "startTime": stamp(self.time.now_s())}
        return {
            "Azure-AsyncOperation": link,
            "Location": f"{link}&monitor=true",
            "Retry-After": str(self.retry_after_s),
        }

    def _finish(self, link: str, error: tuple[str, str] | None = None) -> None:
        operation = self.operations[link.partition("?")[0]]
        operation.update(status="Failed" if error else "Succeeded", endTime=stamp(self.time.now_s()))
        if error:
            operation["error"] = {"code": error[0], "message": error[1]}

    def _note(self, vm: Vm, operation: str, status: str) -> None:
        now_s = self.time.now_s()
        event = {
            "eventTimestamp": stamp(now_s),
            "operationName": {"value": f"{_VM}/{operation}"},
            "status": {"value": status},
            "resourceId": vm.body["id"],
            "resourceGroupName": vm.body["id"].split("/")[4],
            "correlationId": str(uuid.uuid4()),
        }
        self.events.append((now_s + self.faults.log_lag_s, event))
