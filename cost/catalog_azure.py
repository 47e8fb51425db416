"""Azure's own prices: its public list of retail prices, which needs no login. A feed of catalog_refresh.py.

Prices are by region, so the region stands for its zones. The list does not describe machines: types that our list does
not know are not asked for. Traps: Windows, Low Priority, several entries of one price with their dates, prices of 0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tradewind.cost.catalog_refresh import today
from tradewind.cost.price_list import PriceList, RegionPrice, Source
from tradewind.errors import Transient
from tradewind.units import usd_to_uusd

CLOUD, SOURCE = "azure", "Azure retail prices"
URL = "https://prices.azure.com/api/retail/prices"
ATTEMPTS, TIMEOUT_S, FIRST_WAIT_S, MAX_WAIT_S = 5, 30.0, 1.0, 60.0
NAMES_PER_QUESTION = 15
_RETRIED = (429, 500, 502, 503, 504)


class AzureFeed:
    cloud = CLOUD

    def __init__(self, url: str = URL, sleep: Callable[[float], None] = time.sleep) -> None:
        self._url, self._sleep = url, sleep

    def fetch(self, known: PriceList, now_s: float) -> PriceList:
        names = sorted(known.types)
        told: dict[tuple[str, str, bool], tuple[str, int]] = {}  # region, type, spot -> since when, how much
        for start in range(0, len(names), NAMES_PER_QUESTION):
            for item in self._items(names[start : start + NAMES_PER_QUESTION]):
                key = (item["armRegionName"], item["armSkuName"], item["skuName"].endswith(" Spot"))
                since, price = item["effectiveStartDate"][:10], usd_to_uusd(item["retailPrice"])
                if price > 0 and _is_linux_hour(item) and told.get(key, ("", 0))[0] <= since <= today(now_s):
                    told[key] = (since, price)
        places = sorted({(region, name) for region, name, _ in told if region and name in known.types})
        prices = (
            RegionPrice(region, name, _amount(told, region, name, False), {region: _amount(told, region, name, True)})
            for region, name in places
        )
        return PriceList.of(CLOUD, Source(SOURCE, today(now_s)), known.types.values(), prices)

    def _items(self, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        import httpx

        either = " or ".join(f"armSkuName eq '{name}'" for name in names)
        chosen = f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and ({either})"
        with httpx.Client(timeout=TIMEOUT_S) as client:
            page = self._page(client, self._url, {"$filter": chosen})
            yield from page["Items"]
            while page.get("NextPageLink"):
                page = self._page(client, page["NextPageLink"], None)
                yield from page["Items"]

    def _page(self, client: Any, url: str, params: Mapping[str, str] | None) -> Mapping[str, Any]:
        """Asked again after no answer, with doubling waits or what the service says."""
        import httpx

        wait_s, failed = FIRST_WAIT_S, ""
        for attempt in range(ATTEMPTS):
            if attempt:
                self._sleep(wait_s)
                wait_s = min(2 * wait_s, MAX_WAIT_S)
            try:
                answer = client.get(url, params=params)
                if answer.status_code not in _RETRIED:
                    page = answer.raise_for_status().json()
                    page["Items"]  # a page without is none
                    return page  # type: ignore[no-any-return]
                failed = f"HTTP {answer.status_code}"
                wait_s = min(_told_wait_s(answer.headers.get("Retry-After")) or wait_s, MAX_WAIT_S)
            except httpx.TransportError as error:
                failed = str(error) or type(error).__name__
            except (httpx.HTTPStatusError, ValueError, KeyError, TypeError) as error:
                raise Transient(f"{url}: {error}", "try again later; nothing was changed", cloud=CLOUD) from error
        raise Transient(f"{url}: {failed}, {ATTEMPTS} times", "try again later; nothing was changed", cloud=CLOUD)


def _is_linux_hour(item: Mapping[str, Any]) -> bool:
    """Not Windows, and not "Low Priority", the forerunner of spot that only Azure Batch sells."""
    hourly = item["unitOfMeasure"] == "1 Hour" and item["currencyCode"] == "USD" and item["type"] == "Consumption"
    return hourly and "Windows" not in item["productName"] and "Low Priority" not in item["skuName"]


def _amount(told: Mapping[tuple[str, str, bool], tuple[str, int]], region: str, name: str, spot: bool) -> int | None:
    found = told.get((region, name, spot))
    return found[1] if found else None


def _told_wait_s(header: str | None) -> float | None:
    return float(header) if header and header.isdecimal() else None
