"""The Cloud Billing catalogue on loopback: services and their SKUs, in pages.

    desk.sell("A2 Instance Core", "CPU", {"us-central1": "0.031611"})          on demand; spot=True for spot

Beside what is sold stand commitments, custom machines, sole tenancy and DWS prices of the same things.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from tradewind.emulators.gcp_http import Answer, Request
from tradewind.emulators.prices import PriceDesk

COMPUTE, TPU = "6F81-5844-456A", "E000-3F24-B8AA"
_STATUS = {
    "throttled": (429, "RESOURCE_EXHAUSTED"),
    "failing": (503, "UNAVAILABLE"),
    "denied": (403, "PERMISSION_DENIED"),
}
_PATH = re.compile(r"/v1/services/([0-9A-F-]+)/skus")


class GcpPriceDesk(PriceDesk):
    def __init__(self, page_size: int = 50) -> None:
        super().__init__(self._page, _refusal)
        self.page_size = page_size
        self.skus: dict[str, list[dict[str, Any]]] = {COMPUTE: [], TPU: []}

    def sell(
        self, text: str, group: str, usd_by_region: Mapping[str, str], *, spot: bool = False, service: str = COMPUTE
    ) -> None:
        unit = "GiBy.h" if " Ram" in text else "h"
        usage = "Preemptible" if spot else "OnDemand"
        for region, usd in usd_by_region.items():
            add = self.skus[service].append
            add(_sku(f"{text} running in {region}", group, usage, region, usd, unit))
            add(_sku(f"Commitment v1: {text} in {region} for 1 Year", group, "Commit1Yr", region, "0.0001", unit))
            add(_sku(f"Custom {text} running in {region}", group, usage, region, "0.0002", unit))
            add(_sku(f"{text} Sole Tenancy running in {region}", group, usage, region, "0.0003", unit))
            add(_sku(f"{text} reserved with DWS Calendar Mode in {region}", group, usage, region, "0.0004", unit))
            add(_sku(f"{text} running in {region}", group, usage, region, "0.0005", "mo"))

    def _page(self, request: Request) -> Answer:
        found = _PATH.fullmatch(request.path)
        if found is None or found.group(1) not in self.skus:
            return 404, {"error": {"code": 404, "message": "no such service", "status": "NOT_FOUND"}}
        skus = self.skus[found.group(1)]
        start = int(request.query.get("pageToken") or 0)
        end = start + min(self.page_size, int(request.query.get("pageSize") or self.page_size))
        return 200, {"skus": skus[start:end], "nextPageToken": str(end) if end < len(skus) else ""}


def _refusal(_: Request, wrong: str) -> Answer:
    code, status = _STATUS[wrong]
    return code, {"error": {"code": code, "message": wrong, "status": status}}


def _sku(text: str, group: str, usage: str, region: str, usd: str, unit: str) -> dict[str, Any]:
    whole, part = divmod(Decimal(usd), 1)
    return {
        "name": "services/x/skus/x",
        "description": text,
        "category": {"resourceFamily": "Compute", "resourceGroup": group, "usageType": usage},
        "serviceRegions": [region],
        "pricingInfo": [
            {
                "pricingExpression": {
                    "usageUnit": unit,
                    "tieredRates": [
                        {
                            "startUsageAmount": 0,
                            "unitPrice": {"currencyCode": "USD", "units": str(whole), "nanos": int(part * 10**9)},
                        }
                    ],
                }
            }
        ],
    }
