"""AWS's price list service and EC2's price calls on loopback, for the SDK unchanged. It sells what a price list says.

Beside each product stand those that must not be taken: Windows, dedicated hosts, reservations at 0, local zones. Zones
have other names than ids, as in every account. Signatures are read, not verified.
"""

from __future__ import annotations

import json
from typing import Any

from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice
from tradewind.emulators.aws_wire import Form, Refused, Scope, error_response, iso, page, response
from tradewind.emulators.gcp_http import Answer, Request
from tradewind.emulators.prices import PriceDesk
from tradewind.units import uusd_to_usd

_REFUSALS = {
    "throttled": ("RequestLimitExceeded", 503),
    "failing": ("InternalError", 500),
    "denied": ("UnauthorizedOperation", 403),
}


class AwsPriceDesk(PriceDesk):
    """`regions` are those that the account has; products are sold in all."""

    def __init__(self, sold: PriceList, regions: tuple[str, ...] | None = None, page_size: int = 100) -> None:
        super().__init__(self._carry, _refusal)
        self.sold, self.page_size = sold, page_size
        self.regions = regions or tuple(sorted({each.region for each in sold.prices()}))
        self.products = [product for each in sold.prices() for product in _products(each, sold.types)]

    def _carry(self, request: Request) -> Answer:
        scope = Scope.of(request.headers.get("authorization", ""))
        if scope is None:
            return 403, error_response(Refused("MissingAuthenticationToken", "not signed", 403)).decode()
        if scope.service == "pricing":
            return 200, self._get_products(json.loads(request.raw))
        form = Form(request.raw)
        calls = {
            "DescribeRegions": self._regions,
            "DescribeAvailabilityZones": self._zones,
            "DescribeInstanceTypeOfferings": self._offerings,
            "DescribeSpotPriceHistory": self._spot,
            "DescribeInstanceTypes": self._types,
        }
        try:
            return 200, response(form.action, calls[form.action](form, scope.region)).decode()
        except Refused as refused:
            return refused.status, error_response(refused).decode()

    def _get_products(self, asked: dict[str, Any]) -> dict[str, Any]:
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        found = [p for p in self.products if wanted.items() <= p["product"]["attributes"].items()]
        start = int(asked.get("NextToken", "0"))
        end = start + min(self.page_size, asked.get("MaxResults", 100))
        more = {"NextToken": str(end)} if end < len(found) else {}
        return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(each) for each in found[start:end]], **more}

    # --- EC2 ---

    def _regions(self, _: Form, __: str) -> dict[str, Any]:
        return {"regionInfo": [{"regionName": name, "optInStatus": "opted-in"} for name in self.regions]}

    def _zones(self, _: Form, region: str) -> dict[str, Any]:
        return {
            "availabilityZoneInfo": [
                {"zoneName": name, "zoneId": zone, "regionName": region, "zoneType": "availability-zone"}
                for zone, name in self._names(region).items()
            ]
        }

    def _offerings(self, form: Form, region: str) -> dict[str, Any]:
        names = self._names(region)
        found = [
            {"instanceType": each.instance_type, "locationType": "availability-zone", "location": names[zone]}
            for each in self._in(region)
            for zone in each.spot_uusd_per_h
        ]
        items, token = page(found, form, self.page_size)
        return {"instanceTypeOfferingSet": list(items), "nextToken": token or None}

    def _spot(self, form: Form, region: str) -> dict[str, Any]:
        """The price of now, and the one before it, as EC2 tells both."""
        names, wanted = self._names(region), set(form.many("InstanceType"))
        found = [
            {
                "instanceType": each.instance_type,
                "productDescription": "Linux/UNIX",
                "spotPrice": f"{uusd_to_usd(price * (3 if old else 1)):f}",
                "timestamp": iso(1_700_000_000.0 - (3600.0 if old else 0.0)),
                "availabilityZone": names[zone],
            }
            for each in self._in(region)
            for zone, price in each.spot_uusd_per_h.items()
            if price is not None and each.instance_type in wanted
            for old in (False, True)
        ]
        items, token = page(found, form, self.page_size)
        return {"spotPriceHistorySet": list(items), "nextToken": token or None}

    def _types(self, form: Form, region: str) -> dict[str, Any]:
        wanted = form.filters().get("instance-type", [])
        here = {each.instance_type for each in self._in(region)}
        found = [_described(self.sold.types[name]) for name in sorted(here) if name in wanted]
        items, token = page(found, form, self.page_size)
        return {"instanceTypeSet": list(items), "nextToken": token or None}

    def _in(self, region: str) -> list[RegionPrice]:
        return [each for each in self.sold.prices() if each.region == region]

    def _names(self, region: str) -> dict[str, str]:
        zones = sorted({zone for each in self._in(region) for zone in each.spot_uusd_per_h})
        return {zone: f"{region}{chr(ord('a') + number)}" for number, zone in enumerate(reversed(zones))}


def _refusal(request: Request, wrong: str) -> Answer:
    code, status = _REFUSALS[wrong]
    if "x-amz-target" in request.headers:
        return status, {"__type": "ThrottlingException" if wrong == "throttled" else code, "message": wrong}
    return status, error_response(Refused(code, wrong, status)).decode()


def _products(each: RegionPrice, types: Any) -> list[dict[str, Any]]:
    if each.on_demand_uusd_per_h is None:
        return []
    kind: InstanceType = types[each.instance_type]
    attributes = {
        "instanceType": each.instance_type,
        "regionCode": each.region,
        "locationType": "AWS Region",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "marketoption": "OnDemand",
        "instanceFamily": "GPU instance" if kind.accelerator else "General purpose",
    }
    usd = f"{uusd_to_usd(each.on_demand_uusd_per_h):f}"
    local = {"locationType": "AWS Local Zone", "regionCode": f"{each.region}-lax-1"}
    return [
        _product(attributes, usd),
        _product(attributes, "0.0000000000"),  # as for capacity blocks
        _product({**attributes, "operatingSystem": "Windows"}, "99"),
        _product({**attributes, "tenancy": "Dedicated"}, "98"),
        _product({**attributes, "capacitystatus": "UnusedCapacityReservation"}, "97"),
        _product({**attributes, **local}, "96"),
    ]


def _product(attributes: dict[str, str], usd: str) -> dict[str, Any]:
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": usd}}
    upfront = {"unit": "Quantity", "pricePerUnit": {"USD": "50000"}}
    return {
        "product": {"attributes": attributes, "sku": "X"},
        "terms": {"OnDemand": {"X.T": {"priceDimensions": {"X.T.D": dimension, "X.T.U": upfront}}}},
    }


def _described(each: InstanceType) -> dict[str, Any]:
    name = each.accelerator.removesuffix("-80GB").removesuffix("-32GB")
    gpu = {
        "name": name,
        "manufacturer": "NVIDIA",
        "count": int(each.accelerator_count),
        "memoryInfo": {"sizeInMiB": int((each.accelerator_memory_gib or 0) * 1024)},
    }
    return {
        "instanceType": each.name,
        "processorInfo": {"supportedArchitectures": ["x86_64"]},
        "vCpuInfo": {"defaultVCpus": int(each.vcpus)},
        "memoryInfo": {"sizeInMiB": int(each.memory_gib * 1024)},
        "networkInfo": {"networkPerformance": f"Up to {each.network_gbps:g} Gigabit" if each.network_gbps else "High"},
        "gpuInfo": {"gpus": [gpu], "totalGpuMemoryInMiB": 0} if each.accelerator else None,
    }
