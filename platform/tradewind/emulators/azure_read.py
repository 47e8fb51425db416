"""What can be read from the emulated subscription: listings in pages, sizes, quotas, images, networks, prices, roles
(part of azure.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from urllib.parse import urlencode

from tradewind.emulators import azure_rules as rules
from tradewind.emulators.azure_compute import Compute
from tradewind.emulators.azure_http import JSON, Answer, Refused, Request
from tradewind.emulators.azure_state import REGIONS, SIZES, ZONES


@dataclass
class Reader:
    compute: Compute
    page_size: int
    url: Callable[[], str]
    usage: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)  # (region, quota) -> (limit, used)
    restricted: dict[tuple[str, str], str] = field(default_factory=dict)  # (region, size) -> zone; "": all of it

    def page(self, items: Iterable[JSON], request: Request, link: str = "nextLink", key: str = "value") -> Answer:
        found, start = list(items), int(request.query.get("$skiptoken", "0"))
        end = start + self.page_size
        body: JSON = {key: found[start:end]}
        if end < len(found):
            query = urlencode({**request.query, "$skiptoken": str(end)})
            body[link] = f"{self.url()}{request.path}?{query}"
        return Answer(200, body)

    # --- resources ---------------------------------------------------------------------------------------------

    def vms(self, request: Request, group: str = "") -> Answer:
        """Instance views only with statusOnly, and that only for all of the subscription: as in Azure."""
        status_only = request.query.get("statusOnly") == "true"
        if request.query.get("$expand") or (group and status_only):
            raise Refused(400, "InvalidParameter", "instanceView can be expanded only with a filter by scale set.")
        if self.compute.faults.dead_regions:
            raise Refused(503, "ServiceUnavailable", "The request could not be completed in all regions.")
        now_s = self.compute.time.now_s()
        there = [vm for (where, _), vm in self.compute.vms.items() if not group or where == group.lower()]
        listed = [vm for vm in there if vm.listed_from_s <= now_s]
        if not status_only:
            return self.page((vm.body for vm in listed), request)
        views = ({"vmId": vm.properties["vmId"], "instanceView": vm.view()} for vm in listed)
        shown = ({"id": vm.body["id"].upper(), "name": vm.name, "location": vm.region} for vm in listed)
        return self.page(({**vm, "properties": view} for vm, view in zip(shown, views, strict=True)), request)

    def vm(self, request: Request, group: str, name: str) -> Answer:
        vm = self.compute.vms.get((group.lower(), name.lower()))
        if vm is None:
            raise _missing(request)
        if request.query.get("$expand") != "instanceView":
            return Answer(200, vm.body)
        return Answer(200, {**vm.body, "properties": {**vm.properties, "instanceView": vm.view()}})

    def nics(self, request: Request, group: str) -> Answer:
        return self.page((nic for (where, _), nic in self.compute.nics.items() if where == group.lower()), request)

    def nic(self, request: Request, group: str, name: str) -> Answer:
        if (group.lower(), name.lower()) not in self.compute.nics:
            raise _missing(request)
        return Answer(200, self.compute.nics[group.lower(), name.lower()])

    def disks(self, request: Request, group: str) -> Answer:
        return self.page((disk for (where, _), disk in self.compute.disks.items() if where == group.lower()), request)

    def placement_groups(self, request: Request, group: str) -> Answer:
        return self.page(self.compute.placement.listed(group), request)

    def operation(self, request: Request) -> Answer:
        if request.path not in self.compute.operations:
            raise _missing(request)
        return Answer(200, {"name": request.path.rpartition("/")[2], **self.compute.operations[request.path]})

    # --- the activity log --------------------------------------------------------------------------------------

    def events(self, request: Request) -> Answer:
        """Newest first, of 90 days at the most; the start of the time must be given."""
        wanted = rules.terms(request.query.get("$filter", ""))
        since = [value for name, operator, value in wanted if (name, operator) == ("eventTimestamp", "ge")]
        if not since:
            raise Refused(400, "BadRequest", "The start time must be given: eventTimestamp ge '...'")
        now_s = self.compute.time.now_s()
        told = [event for from_s, event in reversed(self.compute.events) if from_s <= now_s]
        return self.page((event for event in told if all(_holds(event, term) for term in wanted)), request)

    # --- what a preflight reads --------------------------------------------------------------------------------

    def group(self, request: Request, group: str) -> Answer:
        if group.lower() not in self.compute.groups:
            raise Refused(404, "ResourceGroupNotFound", f"Resource group '{group}' could not be found.")
        return Answer(200, {"id": request.path, "name": group, "location": "eastus"})

    def permissions(self, request: Request, group: str) -> Answer:
        del group
        role = {"actions": ["*/read", "Microsoft.Compute/*", "Microsoft.Network/*", "Microsoft.ManagedIdentity/*"]}
        return self.page([{**role, "notActions": sorted(self.compute.faults.denied)}], request)

    def network(self, request: Request) -> Answer:
        """A virtual network, or a subnet of one."""
        path = request.path.lower()
        found = [
            region for subnet, region in self.compute.subnets.items() if path in (subnet, subnet.split("/subnets/")[0])
        ]
        if not found:
            raise _missing(request)
        name = request.path.rpartition("/")[2]
        return Answer(
            200,
            {"id": request.path, "name": name, "location": found[0], "properties": {"addressPrefix": "10.0.0.0/16"}},
        )

    def image(self, request: Request) -> Answer:
        if request.path.lower() not in self.compute.image_ids:
            raise _missing(request)
        return Answer(200, {"id": request.path, "name": request.path.rpartition("/")[2]})

    def image_versions(self, request: Request, region: str, publisher: str, offer: str, sku: str) -> Answer:
        _check_region(region)
        found = (publisher, offer, sku) in self.compute.images
        if not found:
            raise Refused(404, "NotFound", f"Artifact: VMImage was not found: {request.path}")
        version = "22.04.2026102301"
        return Answer(200, [{"location": region, "name": version, "id": f"{request.path}/{version}"}])

    def skus(self, request: Request) -> Answer:
        matched = re.fullmatch(r"location eq '([^']*)'", request.query.get("$filter", ""))
        region = matched[1] if matched else ""
        return self.page((self._sku(name, region) for name in SIZES if region in REGIONS), request)

    def _sku(self, name: str, region: str) -> JSON:
        sku: JSON = {
            "resourceType": "virtualMachines",
            "name": name,
            "family": SIZES[name].family,
            "locations": [region],
            "locationInfo": [{"location": region, "zones": list(ZONES)}],
            "capabilities": [
                {"name": "vCPUs", "value": str(SIZES[name].vcpus)},
                {"name": "LowPriorityCapable", "value": "True"},
                {"name": "EncryptionAtHostSupported", "value": "True"},
            ],
            "restrictions": [],
        }
        zone = self.restricted.get((region, name))
        if zone is not None:
            kind = {"type": "Zone", "restrictionInfo": {"zones": [zone]}} if zone else {"type": "Location"}
            sku["restrictions"] = [{"values": [region], "reasonCode": "NotAvailableForSubscription", **kind}]
        return sku

    def usages(self, request: Request, region: str) -> Answer:
        _check_region(region)
        names = ["cores", "lowPriorityCores", *sorted({size.family for size in SIZES.values()})]
        told = {name: self.usage.get((region, name), (1000, 0)) for name in names}
        items = (
            {"unit": "Count", "name": {"value": n}, "limit": limit, "currentValue": used}
            for n, (limit, used) in told.items()
        )
        return self.page(items, request)

    def prices(self, request: Request) -> Answer:
        chosen = dict(re.findall(r"(\w+) eq '([^']*)'", request.query.get("$filter", "")))
        sizes = re.findall(r"armSkuName eq '([^']*)'", request.query.get("$filter", ""))
        region = chosen.get("armRegionName", "")
        items = [item for size in sizes if size in SIZES and region in REGIONS for item in self._price(region, size)]
        return self.page(items, request, "NextPageLink", "Items")

    def _price(self, region: str, size: str) -> list[JSON]:
        name = size.removeprefix("Standard_").replace("_", " ")
        spot_usd, usd = self.compute.spot_usd(region, size), SIZES[size].usd
        common = {
            "currencyCode": "USD",
            "armRegionName": region,
            "armSkuName": size,
            "unitOfMeasure": "1 Hour",
            "effectiveStartDate": "2026-11-01T00:00:00Z",
            "productName": f"Virtual Machines {name} Series",
            "serviceName": "Virtual Machines",
            "type": "Consumption",
        }
        windows = {**common, "productName": f"Virtual Machines {name} Series Windows"}
        return [
            {**common, "skuName": name, "retailPrice": usd},
            {**common, "skuName": f"{name} Spot", "retailPrice": spot_usd},
            {**common, "skuName": f"{name} Low Priority", "retailPrice": usd / 5},
            {**windows, "skuName": name, "retailPrice": usd * 2},
        ]


def _holds(event: JSON, term: tuple[str, str, str]) -> bool:
    name, operator, value = term
    if name == "eventTimestamp":
        at, limit = event["eventTimestamp"][:19], value[:19]
        return bool(at >= limit if operator == "ge" else at <= limit)
    if name in ("resourceUri", "resourceGroupName"):
        return bool(event["resourceId" if name == "resourceUri" else name].lower() == value.lower())
    raise Refused(400, "BadRequest", f"The filter has an unknown property: {name}")


def _check_region(region: str) -> None:
    if region not in REGIONS:
        raise Refused(
            400, "NoRegisteredProviderFound", f"No registered resource provider found for location '{region}'."
        )


def _missing(request: Request) -> Refused:
    return Refused(404, "ResourceNotFound", f"The Resource '{request.path}' was not found.")
