"""The catalogue as a shop window: cheapest first, per accelerator-hour, zones of one price together. Pure.

Stands between the catalogue and `tradewind catalog`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tradewind.cost.catalog import MAX_AGE_S, Catalog
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity, Offer
from tradewind.units import format_usd

DAY_S = 86400.0


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody is looking for: `A100:8`, `A100`, or an instance type."""

    what: str
    capacity: Capacity | None = None
    cloud: str | None = None
    region: str | None = None
    min_vcpus: float = 0.0
    min_memory_gib: float = 0.0


@dataclass(frozen=True, slots=True)
class Deal:
    """One type in one region at one price; the zones in which it costs that."""

    cloud: str
    region: str
    zones: tuple[str, ...]
    instance_type: str
    capacity: str
    accelerator: str
    accelerators: float  # of all hosts
    hosts: int
    vcpus: float  # of one host, like memory and network
    memory_gib: float
    accelerator_memory_gib: float | None
    network_gbps: float | None
    price_uusd_per_h: int | None
    on_demand_uusd_per_h: int | None
    price_source: str
    price_date: str

    @property
    def per_accelerator_uusd_per_h(self) -> int | None:
        """Of a machine without one: the whole price."""
        return None if self.price_uusd_per_h is None else round(self.price_uusd_per_h / (self.accelerators or 1))

    @property
    def saved(self) -> float | None:
        """Against on-demand in the same place; negative where spot is the dearer one."""
        if self.price_uusd_per_h is None or self.on_demand_uusd_per_h is None:
            return None
        return 1.0 - self.price_uusd_per_h / self.on_demand_uusd_per_h

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "per_accelerator_uusd_per_h": self.per_accelerator_uusd_per_h, "saved": self.saved}


def deals(catalog: Catalog, question: Question) -> list[Deal]:
    """Cheapest per accelerator-hour first, then the cheaper whole; unknown prices last."""
    name, count = _parsed(question.what)
    limits = {"cloud": question.cloud, "region": question.region, "capacity": question.capacity}
    if count is None and name in catalog.instance_types:
        offers = catalog.find(instance_type=name, **limits)  # type: ignore[arg-type]
    else:
        offers = catalog.find(name, count=count, **limits)  # type: ignore[arg-type]
    fitting = (o for o in offers if o.vcpus >= question.min_vcpus and o.memory_gib >= question.min_memory_gib)
    return sorted(_together(catalog, fitting), key=_by_price)


def _parsed(what: str) -> tuple[str, float | None]:
    name, colon, count = what.partition(":")
    if not colon:
        return name, None
    if not name or not count.isdecimal() or int(count) == 0:
        problem = Problem("catalogue", "", f"{what!r} is not a name and a number")
        raise ConfigError([problem], "write it like A100:8, or only A100")
    return name, float(count)


def _together(catalog: Catalog, offers: Iterable[Offer]) -> list[Deal]:
    groups: dict[tuple[object, ...], list[Offer]] = {}
    for offer in offers:
        market = offer.market
        key = (market.cloud, market.region, market.instance_type, market.capacity)
        groups.setdefault((*key, offer.price_uusd_per_h, offer.on_demand_uusd_per_h), []).append(offer)
    return [_deal(catalog, group) for group in groups.values()]


def _deal(catalog: Catalog, group: Sequence[Offer]) -> Deal:
    offer, market = group[0], group[0].market
    facts = catalog.type_of(market)
    return Deal(
        cloud=market.cloud,
        region=market.region,
        zones=tuple(sorted(each.market.zone for each in group)),
        instance_type=market.instance_type,
        capacity=str(market.capacity),
        accelerator=offer.accelerator,
        accelerators=offer.accelerator_count * offer.hosts,
        hosts=offer.hosts,
        vcpus=offer.vcpus,
        memory_gib=offer.memory_gib,
        accelerator_memory_gib=facts.accelerator_memory_gib if facts else None,
        network_gbps=facts.network_gbps if facts else None,
        price_uusd_per_h=offer.price_uusd_per_h,
        on_demand_uusd_per_h=offer.on_demand_uusd_per_h,
        price_source=offer.price_source,
        price_date=offer.price_date,
    )


def _by_price(deal: Deal) -> tuple[bool, int, int, str, str, str]:
    each, whole = deal.per_accelerator_uusd_per_h, deal.price_uusd_per_h
    return (whole is None, each or 0, whole or 0, deal.instance_type, deal.region, deal.capacity)


# --- as text ---------------------------------------------------------------------------------------------------


def deals_text(found: Sequence[Deal], limit: int) -> str:
    known = [deal for deal in found if deal.price_uusd_per_h is not None]
    if not known:
        return "No offer has a known price." if found else "Nothing like this is sold."
    unit = "$/TPU-h" if known[0].accelerator.startswith("TPU") else "$/GPU-h"
    head = (
        unit if known[0].accelerator else "$/h",
        "$/h",
        "",
        "instance type",
        "accelerators",
        "where",
        "host",
        "saves",
    )
    lines = _aligned([head, *(_cells(deal) for deal in known[:limit])])
    if len(known) > limit:
        lines.append(f"... and {len(known) - limit} more (--limit)")
    if len(found) > len(known):
        lines.append(f"{len(found) - len(known)} more have no known price and are not listed")
    if any((deal.saved or 0.0) < 0 for deal in known[:limit]):
        lines.append("A negative saving: at the moment spot costs more than on-demand there.")
    return "\n".join(lines)


def _cells(deal: Deal) -> tuple[str, ...]:
    slices = f" on {deal.hosts} hosts" if deal.hosts > 1 else ""
    memory = f" {deal.accelerator_memory_gib:g} GiB" if deal.accelerator_memory_gib else ""
    network = f", {deal.network_gbps:g} Gbit/s" if deal.network_gbps else ""
    more = f" +{len(deal.zones) - 1}" if len(deal.zones) > 1 else ""
    return (
        _usd(deal.per_accelerator_uusd_per_h),
        _usd(deal.price_uusd_per_h),
        deal.capacity,
        deal.instance_type,
        f"{deal.accelerators:g} x {deal.accelerator}{memory}{slices}" if deal.accelerator else "none",
        f"{deal.cloud} {deal.zones[0]}{more}",
        f"{deal.vcpus:g} vCPUs, {deal.memory_gib:g} GiB{network}",
        "" if deal.saved is None or deal.capacity != Capacity.SPOT else f"{deal.saved:.0%}",
    )


def overview_text(catalog: Catalog) -> str:
    """All accelerators: where they are sold, in which numbers, and from how much an hour each."""
    rows = [("accelerator", "memory", "in numbers of", "on-demand from", "spot from", "clouds")]
    for name in catalog.accelerators:
        found = deals(catalog, Question(name))
        cheapest = {kind: _cheapest(found, kind) for kind in Capacity}
        numbers = sorted({deal.accelerators for deal in found})
        memory = next((deal.accelerator_memory_gib for deal in found if deal.accelerator_memory_gib), None)
        rows.append(
            (
                name,
                f"{memory:g} GiB" if memory else "",
                ", ".join(f"{number:g}" for number in numbers),
                cheapest[Capacity.ON_DEMAND],
                cheapest[Capacity.SPOT],
                " ".join(sorted({deal.cloud for deal in found})),
            )
        )
    return "\n".join(
        [*_aligned(rows), "Prices are those of one accelerator for an hour; `tradewind catalog A100:8` lists offers."]
    )


def _cheapest(found: Iterable[Deal], capacity: Capacity) -> str:
    return next((_usd(deal.per_accelerator_uusd_per_h) for deal in found if deal.capacity == capacity), "")


def sources_text(catalog: Catalog, clouds: Collection[str] = ()) -> str:
    """Of these clouds; none: of all."""
    told = (
        f"{each.cloud}: {each.source.name}, {each.source.date}"
        for each in catalog.lists
        if not clouds or each.cloud in clouds
    )
    return "Prices of " + "; ".join(told) + "."


def stale_warnings(
    catalog: Catalog, now_s: float, max_age_s: float = MAX_AGE_S, clouds: Collection[str] = ()
) -> list[str]:
    """For people who choose by these prices. One that tells only its year may be younger than this says."""
    lists = {listed.cloud: listed for listed in catalog.lists}
    return [
        f"{cloud}: the prices are {'up to ' if '-' not in lists[cloud].source.date else ''}"
        f"{age / DAY_S:.0f} days old ({lists[cloud].source.name}, {lists[cloud].source.date}); "
        f"`tradewind catalog refresh --cloud {cloud}` asks for new ones"
        for cloud, age in catalog.stale(now_s, max_age_s).items()
        if not clouds or cloud in clouds
    ]


def _usd(amount_uusd: int | None) -> str:
    return "unknown" if amount_uusd is None else format_usd(amount_uusd)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Amounts (the first two columns) to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if cell.startswith("$") else cell.ljust(width)
            for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
