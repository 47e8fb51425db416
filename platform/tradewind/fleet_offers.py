"""What a fleet on this machine may buy, and what its limits are about, by its file and the catalogue; and whether that
is sold at all, asked before a controller is started, with file and line. Pure, but for reading the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.providers.local_market import MAX_HOSTS
from tradewind.config import FleetConfig
from tradewind.config_models import LimitRule, OfferSelector
from tradewind.config_ray import fleet_part
from tradewind.config_yaml import Document, Place, compose, read
from tradewind.cost import catalog
from tradewind.errors import ConfigError, Problem
from tradewind.model import Offer

# The fleet of `tw.connect()` and `tradewind submit` when nobody has described one.
DEFAULT_OFFERS = ("L4", "T4", "A10G", "A100", "V100", "")
# Enough for a choice: every tick looks at all offers. Azure's few regions are all taken.
DEFAULT_REGIONS = {
    "aws": ("us-east-1", "us-east-2", "us-west-2", "eu-west-1", "eu-central-1", "eu-north-1", "ap-south-1"),
    "gcp": ("us-central1", "us-east1", "us-east4", "us-east5", "us-west1", "us-west4", "europe-west4"),
}
_FILE = "fleet file"  # where a problem is, as long as the lines are not at hand
_SHOWN = 6  # names of what there is instead


def offers_of(config: FleetConfig) -> tuple[Offer, ...]:
    """What the fleet may buy, by the catalogue. Offers without a price are left out: nobody can choose by it."""
    found: dict[str, Offer] = {}
    for number, selector in enumerate(config.offers):
        try:
            matches = _matches(selector)
        except ConfigError as error:  # a name that the catalogue does not know
            problems = [Problem(_FILE, f"offers[{number}].{p.field}", p.message) for p in error.problems]
            raise ConfigError(problems, error.hint) from error
        usable = [offer for offer in matches if _is_usable(offer)]
        if not usable:
            wrong = (
                f"the catalogue has no price for it, or only slices of more than {MAX_HOSTS} hosts" if matches else ""
            )
            problem = Problem(_FILE, f"offers[{number}]", wrong or "the catalogue has nothing like this")
            raise ConfigError([problem], _instead(selector))
        found.update((offer.market.key, offer) for offer in usable)
    if not config.offers:
        found.update((offer.market.key, offer) for name in DEFAULT_OFFERS for offer in _default_offers(name))
    return tuple(offer for offer in found.values() if _is_usable(offer))


def all_offers(config: FleetConfig) -> Sequence[Offer]:
    """The same for any fleet: in clouds, of all its regions."""
    from tradewind.clouds.cells import cells_of

    return [offer for cell in cells_of(config) for offer in cell.offers] if config.cloud_names else offers_of(config)


def limits_of(config: FleetConfig) -> Limits:
    limits = config.limits
    return Limits(
        max_nodes=limits.max_nodes,
        max_uusd_per_h=limits.max_uusd_per_h,
        launches_per_minute=limits.max_launches_per_minute,
        rules=tuple(_rule(rule) for rule in limit_rules(config)),
    )


def _rule(rule: LimitRule) -> Rule:
    return Rule(
        part=Part(
            cloud=rule.cloud or "",
            region=rule.region or "",
            zone=rule.zone or "",
            instance_type=rule.instance_type or "",
            accelerator=rule.accelerator or "",
            capacity=rule.capacity or (),
            tenant=rule.tenant or "",
        ),
        max_nodes=rule.max_nodes,
        max_uusd_per_h=rule.max_uusd_per_h,
        max_accelerators=rule.max_accelerators,
        launches_per_minute=rule.max_launches_per_minute,
    )


def limit_rules(config: FleetConfig) -> tuple[LimitRule, ...]:
    """The rules with the names of the catalogue. They are found as those in `offers` are: a limit on "l4" is about L4,
    and one on a name that nothing has would limit nothing, and is a mistake."""
    return tuple(_named(rule, f"limits.rules[{number}]") for number, rule in enumerate(config.limits.rules))


def _named(rule: LimitRule, field: str) -> LimitRule:
    words = [word for word in ("region", "zone", "instance_type", "accelerator") if getattr(rule, word)]
    return rule.model_copy(update={word: _name(getattr(rule, word), word, f"{field}.{word}") for word in words})


def _name(value: str, word: str, field: str) -> str:
    try:
        alike = sorted(catalog.names_like(word, value, getattr(catalog.load(), f"{word}s")))
    except ConfigError as error:
        raise ConfigError([Problem(_FILE, field, each.message) for each in error.problems], error.hint) from error
    if len(alike) > 1:
        problem = Problem(_FILE, field, f"{value!r} may be {' or '.join(alike)}")
        raise ConfigError([problem], "write it as one of these is written")
    return alike[0]


def check_offers(path: Path, config: FleetConfig) -> None:
    """Raises ConfigError, with the lines of the file, where the catalogue does not have what the fleet wants to buy, or
    to limit."""
    from tradewind.clouds.cells import cells_of

    try:
        limit_rules(config)
        if config.cloud_names:
            cells_of(config)
        else:
            offers_of(config)
    except ConfigError as error:
        document = fleet_part(compose(read(path), str(path)))
        raise ConfigError([_with_line(each, document) for each in error.problems], error.hint) from error


def _with_line(problem: Problem, document: Document) -> Problem:
    if problem.where != _FILE:
        return problem
    return Problem(document.where(_place(problem.field)), problem.field, problem.message)


def _place(field: str) -> Place:
    """ "offers[1].instance type" -> ("offers", 1, "instance_type")"""
    words = (word.strip().replace(" ", "_") for word in re.split(r"[.:\[\]]+", field))
    return tuple(int(word) if word.isdigit() else word for word in words if word)


def _instead(selector: OfferSelector) -> str:
    """What is sold, should one of the selector's words be another one."""
    found = [f"with another {word.replace('_', ' ')}: {names}" for word, names in _others(selector)]
    return "; ".join(found) or "leave out a line of the selector; `tradewind catalog` lists what there is"


def _others(selector: OfferSelector) -> Iterator[tuple[str, str]]:
    for word in ("region", "zone", "cloud", "instance_type", "accelerator"):
        if getattr(selector, word) is not None:
            sold = [offer for offer in _matches(selector.model_copy(update={word: None})) if _is_usable(offer)]
            names = list(dict.fromkeys(_value(offer, word) for offer in sold))
            if names:
                yield word, ", ".join(names[:_SHOWN]) + (" and others" if len(names) > _SHOWN else "")


def _value(offer: Offer, word: str) -> str:
    return (offer.accelerator or "none") if word == "accelerator" else str(getattr(offer.market, word))


def _default_offers(accelerator: str) -> list[Offer]:
    offers = catalog.load().find(accelerator)
    return [o for o in offers if o.market.region in DEFAULT_REGIONS.get(o.market.cloud, (o.market.region,))]


def _is_usable(offer: Offer) -> bool:
    return offer.price_uusd_per_h is not None and offer.hosts <= MAX_HOSTS


def _matches(selector: OfferSelector) -> list[Offer]:
    return [
        offer
        for capacity in selector.capacity
        for offer in catalog.load().find(
            selector.accelerator,
            cloud=selector.cloud,
            region=selector.region,
            zone=selector.zone,
            instance_type=selector.instance_type,
            capacity=capacity,
        )
    ]
