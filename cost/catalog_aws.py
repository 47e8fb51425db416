"""AWS's own prices: on-demand from the price list service, spot and zones from EC2 in every region of the account.

A feed of catalog_refresh.py. New GPU types come with their facts (EC2 describes them). Traps: products that are not
Linux on shared hardware, prices of 0 (capacity that was paid elsewhere), local zones, and one A100 name for two cards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from typing import Any

from tradewind.cost.catalog_refresh import today
from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source
from tradewind.errors import AuthError, Transient
from tradewind.units import usd_to_uusd

CLOUD, SOURCE = "aws", "AWS price list and EC2 spot history"
PRICING_REGION = "us-east-1"  # the service answers for all regions
ATTEMPTS, CONNECT_TIMEOUT_S, READ_TIMEOUT_S, THREADS = 5, 10, 60, 8
_SHARED_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_GPU_FAMILY = "GPU instance"
# Cards of one name and two sizes, by GiB; and names that are ours.
_BY_MEMORY = {("A100", 80): "A100-80GB", ("V100", 32): "V100-32GB"}
_RENAMED = {"RTX PRO Server 6000": "RTX-PRO-6000", "RTX PRO 4500": "RTX-PRO-4500"}
_LEFT_OUT = ("Radeon", "T4g", "M60", "K80")  # see benchmarks/pricing/facts.py
_LATER = "try again later; nothing was changed"
_AUTH_CODES = re.compile("[Aa]uth|Token|Credential|AccessDenied|UnrecognizedClient|SignatureDoesNotMatch|OptInRequired")


class AwsFeed:
    cloud = CLOUD

    def __init__(self, endpoint_url: str = "", session: Any = None) -> None:
        self._endpoint_url, self._session = endpoint_url, session
        self._client = cache(self._make)

    def fetch(self, known: PriceList, now_s: float) -> PriceList:
        with _translated():
            on_demand = self._on_demand(known)
            wanted = sorted({name for _, name in on_demand})
            regions = [each["RegionName"] for each in self._client("ec2", PRICING_REGION).describe_regions()["Regions"]]
            for region in regions:
                self._client("ec2", region)  # making one is not thread-safe, using it is
            with ThreadPoolExecutor(THREADS, "aws-prices") as pool:
                spot = dict(zip(regions, pool.map(lambda r: self._zones(r, wanted, now_s), regions), strict=True))
            facts = self._facts(known, on_demand, spot)
        # A region that the account has not opted into tells no zones: those of the list stay, without spot prices.
        old = {(each.region, each.instance_type): each.spot_uusd_per_h for each in known.prices()}
        zones = {
            (region, name): spot[region].get(name, {}) if region in spot else dict.fromkeys(old.get((region, name), ()))
            for region, name in on_demand
        }
        prices = (
            RegionPrice(region, name, price, zones[region, name])
            for (region, name), price in on_demand.items()
            if name in facts and zones[region, name]
        )
        return PriceList.of(CLOUD, Source(SOURCE, today(now_s)), facts.values(), prices)

    def _make(self, service: str, region: str) -> Any:
        import boto3
        from botocore.config import Config

        self._session = self._session or boto3.Session()
        config = Config(
            retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            user_agent_extra="tradewind",
        )
        url = self._endpoint_url or None
        return self._session.client(service, region_name=region, endpoint_url=url, config=config)

    # --- on demand ---

    def _on_demand(self, known: PriceList) -> dict[tuple[str, str], int]:
        """(region, type) -> price: of all GPU types, and of the other types in the list."""
        plain = [name for name, each in known.types.items() if not each.accelerator]
        questions = [{"instanceFamily": _GPU_FAMILY}, *({"instanceType": name} for name in plain)]
        pages = self._client("pricing", PRICING_REGION).get_paginator("get_products")
        found: dict[tuple[str, str], int] = {}
        for question in questions:
            chosen = [
                {"Type": "TERM_MATCH", "Field": field, "Value": value}
                for field, value in {**_SHARED_LINUX, **question}.items()
            ]
            for page in pages.paginate(ServiceCode="AmazonEC2", Filters=chosen):
                for product in map(json.loads, page["PriceList"]):
                    found.update(_priced(product))
        return found

    # --- zones and spot ---

    def _zones(self, region: str, wanted: list[str], now_s: float) -> dict[str, dict[str, int | None]]:
        """By type: the zones in which it is sold, by id (names differ between accounts), with their spot prices."""
        ec2 = self._client("ec2", region)
        named = ec2.describe_availability_zones(Filters=[{"Name": "zone-type", "Values": ["availability-zone"]}])
        ids = {zone["ZoneName"]: zone["ZoneId"] for zone in named["AvailabilityZones"]}
        found: dict[str, dict[str, int | None]] = {}
        offered = ec2.get_paginator("describe_instance_type_offerings").paginate(LocationType="availability-zone")
        for each in (each for page in offered for each in page["InstanceTypeOfferings"]):
            if each["InstanceType"] in wanted and each["Location"] in ids:
                found.setdefault(each["InstanceType"], {})[ids[each["Location"]]] = None
        for name, zone, price in self._spot(ec2, sorted(found), now_s):
            if zone in ids and ids[zone] in found[name]:
                found[name][ids[zone]] = price
        return found

    def _spot(self, ec2: Any, names: list[str], now_s: float) -> Iterator[tuple[str, str, int]]:
        """With the present as its start, the history is the last price of each; the newest comes last here."""
        if not names:
            return
        pages = ec2.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=names,
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.fromtimestamp(now_s, UTC),
        )
        told = [item for page in pages for item in page["SpotPriceHistory"]]
        for item in sorted(told, key=lambda item: item["Timestamp"]):
            price = usd_to_uusd(item["SpotPrice"])
            if price > 0:
                yield item["InstanceType"], item["AvailabilityZone"], price

    # --- facts ---

    def _facts(
        self, known: PriceList, on_demand: Iterable[tuple[str, str]], spot: Mapping[str, Mapping[str, object]]
    ) -> dict[str, InstanceType]:
        """Those of the list, and of types that it does not know those that EC2 tells where they are sold."""
        found = dict(known.types)
        new: dict[str, list[str]] = {}
        for name in sorted({name for _, name in on_demand} - set(found)):
            region = next((region for region, types in spot.items() if name in types), None)
            if region is not None:
                new.setdefault(region, []).append(name)
        for region, names in new.items():
            pages = self._client("ec2", region).get_paginator("describe_instance_types")
            for page in pages.paginate(Filters=[{"Name": "instance-type", "Values": names}]):
                told = (_type_of(item) for item in page["InstanceTypes"])
                found.update((each.name, each) for each in told if each is not None)
        return found


def _priced(product: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], int]]:
    attributes = product["product"]["attributes"]
    if attributes.get("locationType") != "AWS Region":
        return
    for term in product["terms"].get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            price = usd_to_uusd(dimension["pricePerUnit"].get("USD", "0"))
            if dimension["unit"] == "Hrs" and price > 0:
                yield (attributes["regionCode"], attributes["instanceType"]), price


def _type_of(item: Mapping[str, Any]) -> InstanceType | None:
    """None for what is no GPU to Ray, a part of one, or on an arm64 host."""
    cards = item.get("GpuInfo", {}).get("Gpus", [])
    if len(cards) != 1 or cards[0]["Count"] < 1 or "x86_64" not in item["ProcessorInfo"]["SupportedArchitectures"]:
        return None
    name, memory_gib = cards[0]["Name"], cards[0]["MemoryInfo"]["SizeInMiB"] / 1024
    if name.startswith(_LEFT_OUT):
        return None
    ours = _BY_MEMORY.get((name, round(memory_gib)), _RENAMED.get(name, name.replace(" ", "-")))
    network = re.search(r"([\d.]+) Gigabit", item["NetworkInfo"]["NetworkPerformance"])
    return InstanceType(
        item["InstanceType"],
        ours,
        float(cards[0]["Count"]),
        1,
        float(item["VCpuInfo"]["DefaultVCpus"]),
        item["MemoryInfo"]["SizeInMiB"] / 1024,
        round(memory_gib, 1),
        float(network.group(1)) if network else None,
    )


@contextmanager
def _translated() -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

    try:
        yield
    except (NoCredentialsError, PartialCredentialsError) as error:
        raise AuthError(str(error), "give credentials: `aws configure` or AWS_PROFILE", cloud=CLOUD) from error
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        hint = "these are needed: pricing:GetProducts and ec2:Describe*, see docs/guides/catalog.md"
        kind = AuthError if _AUTH_CODES.search(code) else Transient
        raise kind(str(error), hint if kind is AuthError else _LATER, cloud=CLOUD, code=code) from error
    except BotoCoreError as error:
        raise Transient(str(error), _LATER, cloud=CLOUD) from error
