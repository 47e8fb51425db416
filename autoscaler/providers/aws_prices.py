"""AWS as a PriceSource: the price list's offers, spot ones at what EC2 asks at the moment.

Asked for every five minutes and kept between: the loop wants them at every tick. A spot market of which EC2 tells no
price keeps that of the price list; one that neither knows is unknown (None), never free.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from tradewind.autoscaler.providers.aws_clients import Clients, in_each
from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_settings import CLOUD
from tradewind.model import Capacity, Offer
from tradewind.units import usd_to_uusd

KEPT_S = 300.0
AGAIN_S = 60.0  # after a region did not answer
SOURCE = "EC2 spot price history"

logger = logging.getLogger(__name__)

_Prices = Mapping[tuple[str, str], tuple[int, str]]  # (zone, type) -> (micro-dollars an hour, date)


class AwsPrices:
    def __init__(self, offers: Iterable[Offer], clients: Clients) -> None:
        self._offers = [offer for offer in offers if offer.market.cloud == CLOUD]
        self._clients = clients
        self._spot: dict[str, _Prices] = {}  # by region; the last that was told
        self._ask_at_s = float("-inf")

    def offers(self, now_s: float) -> Sequence[Offer]:
        if now_s >= self._ask_at_s:
            self._ask(now_s)
        return [self._priced(offer) for offer in self._offers]

    def _ask(self, now_s: float) -> None:
        """A region that does not answer keeps its last prices; that is said, and asked again sooner."""
        wanted: dict[str, set[str]] = {}
        for market in (offer.market for offer in self._offers if offer.market.capacity is Capacity.SPOT):
            wanted.setdefault(market.region, set()).add(market.instance_type)
        told, errors = in_each(
            {region: partial(_history, self._clients, region, types, now_s) for region, types in wanted.items()}
        )
        for error in errors.values():
            logger.warning("spot prices are old: %s", error)
        self._spot.update(told)
        self._ask_at_s = now_s + (AGAIN_S if errors else KEPT_S)

    def _priced(self, offer: Offer) -> Offer:
        market = offer.market
        if market.capacity is not Capacity.SPOT:
            return offer
        told = self._spot.get(market.region, {}).get((market.zone, market.instance_type))
        if told is None:
            return offer
        return replace(offer, price_uusd_per_h=told[0], price_source=SOURCE, price_date=told[1])


def _history(clients: Clients, region: str, types: Iterable[str], now_s: float) -> _Prices:
    """With the present as its start, the history is the last price of each zone and type."""
    client: Any = clients.get("ec2", region)
    found: dict[tuple[str, str], tuple[datetime, int]] = {}
    with translated("DescribeSpotPriceHistory", region):
        pages = client.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=sorted(types),
            ProductDescriptions=["Linux/UNIX"],
            StartTime=datetime.fromtimestamp(now_s, UTC),
        )
        for item in (item for page in pages for item in page["SpotPriceHistory"]):
            key = (item["AvailabilityZone"], item["InstanceType"])
            told = (item["Timestamp"], usd_to_uusd(item["SpotPrice"]))
            found[key] = max(told, found.get(key, told))
    return {key: (price, at.date().isoformat()) for key, (at, price) in found.items() if price > 0}
