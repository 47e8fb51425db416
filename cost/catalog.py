"""The catalogue: what can be launched where, and for how much. Reads price lists once; every question is pure.

Stands before the market: the controller turns these offers into what providers may launch. The built-in lists (one a
cloud, `data/`) serve until `tradewind catalog refresh` has put newer ones into the home's folder.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tradewind.cost import price_list
from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source
from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity, Market, Offer

__all__ = ["BUILTIN", "CLOUDS", "FOLDER", "MAX_AGE_S", "Catalog", "Source", "age_s", "load", "use"]

BUILTIN = Path(__file__).parent / "data"
CLOUDS = ("aws", "azure", "gcp")
FOLDER = ".catalog"  # in the home; no fleet can have this name
MAX_AGE_S = (
    30 * 86400.0
)  # older lists make plans warn: on-demand prices change a few times a year, spot ones by the day

_Matches = Callable[[str], bool]


@dataclass(frozen=True)
class Catalog:
    lists: tuple[PriceList, ...]

    def __len__(self) -> int:
        return sum(map(len, self.lists))

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(sorted({each.accelerator for listed in self.lists for each in listed.types.values()} - {""}))

    @property
    def instance_types(self) -> tuple[str, ...]:
        return tuple(sorted({name for listed in self.lists for name in listed.types}))

    @property
    def clouds(self) -> tuple[str, ...]:
        return tuple(listed.cloud for listed in self.lists)

    @property
    def regions(self) -> tuple[str, ...]:
        return tuple(sorted({region for listed in self.lists for region, *_ in listed.lines}))

    @property
    def zones(self) -> tuple[str, ...]:
        pairs = {pair for listed in self.lists for *_, zones in listed.lines for pair in zones.split(" ")}
        return tuple(sorted({pair.partition("=")[0] for pair in pairs}))

    def type_of(self, market: Market) -> InstanceType | None:
        """What a host of it has: memory of the accelerator, network."""
        return next((each.types.get(market.instance_type) for each in self.lists if each.cloud == market.cloud), None)

    def find(
        self,
        accelerator: str | None = None,
        *,
        count: float | None = None,
        cloud: str | None = None,
        region: str | None = None,
        zone: str | None = None,
        instance_type: str | None = None,
        capacity: Capacity | None = None,
        limit: int | None = None,
    ) -> tuple[Offer, ...]:
        """Offers that answer every question asked, cheapest first, unknown prices last.

        `accelerator=""` asks for machines without one; `count` is that of the whole offer, all hosts together. A name
        that the lists do not have at all raises ConfigError with the nearest one; names that exist but are not
        sold together give an empty answer.
        """
        of_cloud = self._named("cloud", cloud, self.clouds)
        of_accelerator = self._named("accelerator", accelerator, self.accelerators)
        of_type = self._named("instance type", instance_type, lambda: self.instance_types)
        of_region = self._named("region", region, lambda: self.regions)
        of_zone = self._named("zone", zone, lambda: self.zones)
        offers: list[Offer] = []
        for listed in (each for each in self.lists if of_cloud(each.cloud)):
            types = {
                name
                for name, each in listed.types.items()
                if of_accelerator(each.accelerator) and of_type(name) and count in (None, each.total_count)
            }
            for price in (price for price in listed.prices(types) if of_region(price.region)):
                offers += _offers(listed, price, of_zone, capacity)
        return tuple(sorted(offers, key=_by_price)[:limit])

    def cheapest(
        self, accelerator: str | None = None, *, cloud: str | None = None, capacity: Capacity | None = None
    ) -> Offer | None:
        """The first of `find` with a known price."""
        found = self.find(accelerator, cloud=cloud, capacity=capacity, limit=1)
        return found[0] if found and found[0].price_uusd_per_h is not None else None

    def stale(self, now_s: float, max_age_s: float = MAX_AGE_S) -> dict[str, float]:
        """The age of each cloud's list that is older than the limit."""
        ages_s = {listed.cloud: age_s(listed.source, now_s) for listed in self.lists}
        return {cloud: each for cloud, each in ages_s.items() if each > max_age_s}

    def _named(self, question: str, value: str | None, names: Sequence[str] | Callable[[], Sequence[str]]) -> _Matches:
        if value is None:
            return lambda _: True
        return names_like(question, value, names() if callable(names) else names).__contains__


def names_like(question: str, value: str, names: Sequence[str]) -> frozenset[str]:
    """Those that are meant. Case, and -, _ or blanks in a name, matter only where they tell two names apart: us-east-1
    and us-east1 are regions of different clouds."""
    if not value or value in names:
        return frozenset({value})
    alike = frozenset(name for name in names if _plain(name) == _plain(value))
    if not alike:
        raise _unknown(question, value, sorted(names))
    return alike


def load(path: Path | str | None = None) -> Catalog:
    """The lists of this process (`use`), else the built-in ones; with a folder, those in it before the built-in ones;
    with a file, that list alone."""
    if path is None:
        return _of_process()
    path = Path(path)
    if path.is_file():
        return Catalog((price_list.read(path),))
    newer = {listed.cloud: listed for listed in map(price_list.read, sorted(path.glob("*.csv")))}
    return Catalog(tuple(newer.get(listed.cloud, listed) for listed in _builtin().lists))


def use(folder: Path | None) -> Catalog:
    """From now on `load()` is about this folder's lists; None: the built-in ones. Said once, where a program starts:
    its decisions are then all made by the same prices, whatever a refresh does meanwhile."""
    global _folder
    _folder = folder
    _of_process.cache_clear()
    return load()


_folder: Path | None = None


@functools.cache
def _of_process() -> Catalog:
    return _builtin() if _folder is None else load(_folder)


def age_s(source: Source, now_s: float) -> float:
    """How old a list may be at the most: one that tells only its year counts from that year's first day."""
    made = datetime.fromisoformat(source.date if "-" in source.date else f"{source.date}-01-01").replace(tzinfo=UTC)
    return max(0.0, now_s - made.timestamp())


@functools.cache
def _builtin() -> Catalog:
    return Catalog(tuple(price_list.read(BUILTIN / f"{cloud}.csv") for cloud in CLOUDS))


def _offers(listed: PriceList, price: RegionPrice, of_zone: _Matches, capacity: Capacity | None) -> Iterator[Offer]:
    each = listed.types[price.instance_type]
    for zone, spot in price.spot_uusd_per_h.items():
        for sold, amount in ((Capacity.ON_DEMAND, price.on_demand_uusd_per_h), (Capacity.SPOT, spot)):
            if capacity in (None, sold) and of_zone(zone):
                yield Offer(
                    market=Market(listed.cloud, price.region, zone, each.name, sold),
                    vcpus=each.vcpus,
                    memory_gib=each.memory_gib,
                    accelerator=each.accelerator,
                    accelerator_count=each.accelerator_count,
                    hosts=each.hosts,
                    price_uusd_per_h=amount,
                    on_demand_uusd_per_h=price.on_demand_uusd_per_h,
                    price_source=listed.source.name,
                    price_date=listed.source.date,
                )


def _by_price(offer: Offer) -> tuple[bool, int, str]:
    price = offer.price_uusd_per_h
    return (price is None, price or 0, offer.market.key)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


def _unknown(question: str, value: str, names: Sequence[str]) -> ConfigError:
    by_lower_name = {name.lower(): name for name in names}
    near = [by_lower_name[name] for name in difflib.get_close_matches(value.lower(), by_lower_name, n=5, cutoff=0.5)]
    nearest = f"; the nearest is {near[0]}" if near else ""
    problem = Problem("catalogue", question, f"there is no {value!r}{nearest}")
    # A list of all is an answer only while it can be read at a glance.
    shown = names if len(names) <= 40 else near or [*names[:10], f"and {len(names) - 10} more"]
    return ConfigError([problem], hint=f"known: {', '.join(shown)}" if shown else "`tradewind catalog` lists them")
