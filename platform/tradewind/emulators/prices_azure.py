"""Azure's list of retail prices on loopback: pages, filters by name, and what else stands in the real list.

It sells what a price list says. Beside each price stand those that must not be taken: Windows, Low Priority, one that
begins in the future, one that has been replaced, another currency, and 0.
"""

from __future__ import annotations

import re
from typing import Any

from tradewind.cost.price_list import PriceList
from tradewind.emulators.gcp_http import Answer, Request
from tradewind.emulators.prices import PriceDesk
from tradewind.units import uusd_to_usd

PATH = "/api/retail/prices"
_NAMES = re.compile(r"armSkuName eq '([^']+)'")
_STATUS = {"throttled": 429, "failing": 503, "denied": 403}


class AzurePriceDesk(PriceDesk):
    def __init__(self, sold: PriceList, page_size: int = 100) -> None:
        super().__init__(self._page, lambda _, wrong: (_STATUS[wrong], {"Error": {"Code": wrong}}))
        self.items, self.page_size = items_of(sold), page_size

    def _page(self, request: Request) -> Answer:
        chosen = request.query.get("$filter", "")
        if request.path != PATH or "serviceName eq 'Virtual Machines'" not in chosen:
            return 400, {"Error": {"Code": "BadRequest"}}
        names = set(_NAMES.findall(chosen))
        found = [item for item in self.items if item["armSkuName"] in names]
        start = int(request.query.get("$skip", "0"))
        end = start + self.page_size
        link = f"{self.url}{PATH}?$filter={chosen}&$skip={end}" if end < len(found) else None
        return 200, {"BillingCurrency": "USD", "Items": found[start:end], "NextPageLink": link, "Count": end - start}


def items_of(sold: PriceList) -> list[dict[str, Any]]:
    found = []
    for each in sold.prices():
        for spot, price in ((False, each.on_demand_uusd_per_h), (True, each.spot_uusd_per_h[each.region])):
            short = each.instance_type.removeprefix("Standard_").replace("_", " ")
            item = _item(each.region, each.instance_type, f"{short}{' Spot' if spot else ''}", price)
            replaced = {"effectiveStartDate": "2019-01-01T00:00:00Z", "retailPrice": 66.0}
            usable = [] if price is None else [item, {**item, **replaced}]
            found += usable + [{**item, **other} for other in _NOT_USABLE]
    return found


_NOT_USABLE: list[dict[str, Any]] = [
    {"productName": "Virtual Machines Series Windows", "retailPrice": 99.0},
    {"skuName": "Some Low Priority", "retailPrice": 0.01},
    {"effectiveStartDate": "2999-01-01T00:00:00Z", "retailPrice": 77.0},
    {"currencyCode": "EUR", "retailPrice": 55.0},
    {"type": "Reservation", "retailPrice": 12345.0},
    {"effectiveStartDate": "2025-01-01T00:00:00Z", "retailPrice": 0.0},
]


def _item(region: str, name: str, sku: str, price_uusd: int | None) -> dict[str, Any]:
    price = float(uusd_to_usd(price_uusd or 0))
    return {
        "currencyCode": "USD",
        "tierMinimumUnits": 0.0,
        "retailPrice": price,
        "unitPrice": price,
        "armRegionName": region,
        "effectiveStartDate": "2024-02-01T00:00:00Z",
        "meterName": sku,
        "productName": "Virtual Machines Series",
        "skuName": sku,
        "serviceName": "Virtual Machines",
        "unitOfMeasure": "1 Hour",
        "type": "Consumption",
        "armSkuName": name,
    }
