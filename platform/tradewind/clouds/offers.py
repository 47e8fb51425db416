"""What may be bought in one region, by the price list and the fleet file's selectors. Pure.

AWS's zones have other names in every account, so the price list has them by their ids (use1-az4), and which of them is
us-east-1a nobody knows here. So each type of the region is offered in each zone of the fleet file, spot at the middle
price of the region until EC2 tells the zone's own (aws_prices.py). A zone that does not sell it says so (Unsupported).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from tradewind.config_models import FleetConfig, OfferSelector
from tradewind.cost import catalog
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity, Market, Offer

HEAD_TYPES = 3  # the cheapest that are enough, should the first be sold out; dearer ones are a waste
# Where the fleet file does not say what may be bought: accelerators that many have quota for, and plain machines.
USUAL = ("L4", "T4", "A10G", "A100", "H100", "V100", "")


def offers_in(config: FleetConfig, cloud: str, region: str, zones: tuple[str, ...]) -> tuple[Offer, ...]:
    """Cheapest first. Without a known price nobody can choose: such offers are left out."""
    selectors = config.offers or tuple(OfferSelector(accelerator=name) for name in USUAL)
    found: dict[Market, Offer] = {}
    for number, selector in enumerate(selectors):
        if selector.cloud in (None, cloud) and selector.region in (None, region):
            with _told_as(f"offers[{number}]" if config.offers else f"{cloud}.regions"):
                matches = list(_selected(selector, cloud, region, zones))
            found.update((offer.market, offer) for offer in matches if offer.price_uusd_per_h is not None)
    return tuple(sorted(found.values(), key=_by_price))


def heads_in(config: FleetConfig, cloud: str, region: str, zones: tuple[str, ...]) -> tuple[Offer, ...]:
    """On-demand machines without an accelerator that are enough for a head, cheapest first."""
    types = config.head.instance_types
    wanted = types.get(cloud) or types.get("*")  # type: ignore[call-overload]
    selector = OfferSelector(instance_type=wanted, capacity=(Capacity.ON_DEMAND,))
    with _told_as("head" if wanted else f"{cloud}.regions"):
        listed = [offer for offer in _selected(selector, cloud, region, zones) if offer.hosts == 1]
    fitting = [
        offer for offer in listed if offer.price_uusd_per_h is not None and (wanted or _is_enough(offer, config))
    ]
    if not fitting:
        what = wanted or f"machine with {config.head.vcpus:g} CPUs and {config.head.memory_gib:g} GiB"
        problem = Problem("fleet file", "head", f"the price list has no {what} in {cloud}'s {region}")
        raise ConfigError([problem], "choose another head.instance_type")
    cheapest = sorted(fitting, key=_by_price)
    cheap = list(dict.fromkeys(offer.market.instance_type for offer in cheapest))[:HEAD_TYPES]
    return tuple(offer for offer in cheapest if offer.market.instance_type in cheap)


@contextmanager
def _told_as(field: str) -> Iterator[None]:
    """A name that the price list does not have is a mistake in this line of the file."""
    try:
        yield
    except ConfigError as error:
        problems = [Problem("fleet file", f"{field}: {each.field}", each.message) for each in error.problems]
        raise ConfigError(problems, error.hint) from error


def _is_enough(offer: Offer, config: FleetConfig) -> bool:
    head = config.head
    return not offer.accelerator and offer.vcpus >= head.vcpus and offer.memory_gib >= head.memory_gib


def _selected(selector: OfferSelector, cloud: str, region: str, zones: tuple[str, ...]) -> Iterator[Offer]:
    for capacity in selector.capacity:
        listed = catalog.load().find(
            selector.accelerator,
            cloud=cloud,
            region=region,
            zone=None if zones else selector.zone,
            instance_type=selector.instance_type,
            capacity=capacity,
        )
        if not zones:
            yield from listed
        else:
            wanted = [zone for zone in zones if selector.zone in (None, zone)]
            yield from (_in_zone(offer, zone) for offer in _middling(listed) for zone in wanted)


def _middling(offers: Iterable[Offer]) -> Iterator[Offer]:
    """Of each type, the one with the middle price over the zones of its region."""
    by_type: dict[str, list[Offer]] = {}
    for offer in offers:
        by_type.setdefault(offer.market.instance_type, []).append(offer)
    for alike in by_type.values():
        priced = sorted((offer for offer in alike if offer.price_uusd_per_h is not None), key=_by_price)
        yield priced[len(priced) // 2] if priced else alike[0]


def _in_zone(offer: Offer, zone: str) -> Offer:
    return replace(offer, market=replace(offer.market, zone=zone))


def _by_price(offer: Offer) -> tuple[int, str]:
    return offer.price_uusd_per_h or 0, offer.market.key
