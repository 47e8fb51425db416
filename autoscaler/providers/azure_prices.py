"""Azure as a PriceSource: the price list's offers, at what Azure's public list of retail prices says now.

Asked for every ten minutes and kept between: Azure changes its spot prices a few times a month. No login is needed. A
market of which Azure tells no price keeps that of the price list; one that neither knows is unknown (None), never free.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import httpx

from tradewind.autoscaler.providers.azure_settings import CLOUD, AzureSettings
from tradewind.errors import Transient
from tradewind.model import Capacity, Offer
from tradewind.units import usd_to_uusd

KEPT_S = 600.0
AGAIN_S = 60.0  # after no answer
SOURCE = "Azure retail prices"
_log = logging.getLogger(__name__)

_Key = tuple[str, str, Capacity]  # region, size; a zone has no price of its own


class AzurePrices:
    def __init__(self, offers: Iterable[Offer], settings: AzureSettings) -> None:
        self._offers = [offer for offer in offers if offer.market.cloud == CLOUD]
        self._settings = settings
        self._told: dict[_Key, tuple[int, str]] = {}  # micro-dollars an hour, and since when
        self._ask_at_s = float("-inf")

    def offers(self, now_s: float) -> Sequence[Offer]:
        if now_s >= self._ask_at_s:
            self._ask(now_s)
        return [self._priced(offer) for offer in self._offers]

    def _ask(self, now_s: float) -> None:
        """Without an answer the last prices stay; that is said, and asked again sooner."""
        sizes: dict[str, set[str]] = {}
        for market in (offer.market for offer in self._offers):
            sizes.setdefault(market.region, set()).add(market.instance_type)
        self._ask_at_s = now_s + KEPT_S
        with self._client() as client:
            for region, wanted in sizes.items():
                try:
                    self._told.update(_prices(client, self._settings.prices_url, region, wanted))
                except Transient as error:
                    _log.warning("prices are old: %s", error)
                    self._ask_at_s = now_s + AGAIN_S

    def _client(self) -> httpx.Client:
        ca_file = self._settings.ca_file
        verify = ssl.create_default_context(cafile=ca_file) if ca_file else True
        return httpx.Client(verify=verify, timeout=self._settings.timeout_s)

    def _priced(self, offer: Offer) -> Offer:
        market = offer.market
        told = self._told.get((market.region, market.instance_type, market.capacity))
        regular = self._told.get((market.region, market.instance_type, Capacity.ON_DEMAND))
        if told is None:
            return offer
        on_demand_uusd = regular[0] if regular else offer.on_demand_uusd_per_h
        return replace(
            offer,
            price_uusd_per_h=told[0],
            on_demand_uusd_per_h=on_demand_uusd,
            price_source=SOURCE,
            price_date=told[1],
        )


def _prices(client: httpx.Client, url: str, region: str, sizes: Iterable[str]) -> dict[_Key, tuple[int, str]]:
    either = " or ".join(f"armSkuName eq '{size}'" for size in sorted(sizes))
    chosen = f"serviceName eq 'Virtual Machines' and priceType eq 'Consumption' and armRegionName eq '{region}'"
    found: dict[_Key, tuple[int, str]] = {}
    for item in _items(client, url, f"{chosen} and ({either})"):
        price_uusd = usd_to_uusd(item["retailPrice"])
        if _is_linux_hour(item) and price_uusd > 0:
            capacity = Capacity.SPOT if item["skuName"].endswith(" Spot") else Capacity.ON_DEMAND
            found[region, item["armSkuName"], capacity] = (price_uusd, item["effectiveStartDate"][:10])
    return found


def _is_linux_hour(item: Mapping[str, Any]) -> bool:
    """Not Windows, and not "Low Priority", the forerunner of spot that only Azure Batch sells."""
    hourly = item["unitOfMeasure"] == "1 Hour" and item["currencyCode"] == "USD"
    return hourly and "Windows" not in item["productName"] and "Low Priority" not in item["skuName"]


def _items(client: httpx.Client, url: str, chosen: str) -> Iterator[Mapping[str, Any]]:
    try:
        page = client.get(url, params={"$filter": chosen}).raise_for_status().json()
        yield from page["Items"]
        while page.get("NextPageLink"):
            page = client.get(page["NextPageLink"]).raise_for_status().json()
            yield from page["Items"]
    except (httpx.HTTPError, ValueError, KeyError) as error:
        raise Transient(f"{url}: {error}", cloud=CLOUD) from error
