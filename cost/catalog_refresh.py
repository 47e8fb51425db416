"""Newer price lists, from the clouds' own sources: asked for, looked at, and swapped in whole.

Each cloud is on its own: one that fails, or answers what cannot be, keeps its old list, and that is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tradewind.cost.catalog import Catalog
from tradewind.cost.price_list import PriceList, RegionPrice, Source
from tradewind.errors import ProviderError, TradewindError, Transient

MIN_SHARE = 0.5  # of the prices that were known before: a list that has shrunk by more is taken for a broken answer
MAX_FACTOR = 5.0  # a price that has changed by more is taken for a misread unit: unknown, rather than wrong


class PriceFeed(Protocol):
    """Asks one cloud. Raises ProviderError where it gets no whole answer; it has retried what is worth it."""

    @property
    def cloud(self) -> str: ...

    def fetch(self, known: PriceList, now_s: float) -> PriceList:
        """All prices of now. `known` tells types that the cloud itself does not describe."""
        ...


@dataclass(frozen=True, slots=True)
class Refreshed:
    """What became of one cloud's list."""

    cloud: str
    source: Source  # of the list that is in use now
    num_prices: int
    changed: int = 0  # prices that are not what they were
    doubted: int = 0  # prices that changed by more than can be, and are unknown now
    error: TradewindError | None = None

    @property
    def text(self) -> str:
        if self.error is not None:
            kept = f"kept the list of {self.source.date} ({self.source.name})"
            return f"{self.cloud}: {kept}: {self.error.message}"
        doubted = f", {self.doubted} not believed and left unknown" if self.doubted else ""
        return f"{self.cloud}: {self.num_prices} prices, {self.changed} changed{doubted} ({self.source.name})"


def refresh(folder: Path, old: Catalog, feeds: Iterable[PriceFeed], now_s: float) -> list[Refreshed]:
    """Newer lists into the folder, one cloud after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    lists = {listed.cloud: listed for listed in old.lists}
    return [_refreshed(folder, lists[feed.cloud], feed, now_s) for feed in feeds]


def _refreshed(folder: Path, old: PriceList, feed: PriceFeed, now_s: float) -> Refreshed:
    try:
        new, doubted = without_leaps(old, feed.fetch(old, now_s))
        check_whole(old, new)
        new.write(folder / f"{old.cloud}.csv")
    except TradewindError as error:
        return Refreshed(old.cloud, old.source, _num_known(old), error=error)
    except OSError as error:
        failed = ProviderError(f"cannot write to {folder}: {error.strerror}", "give another --home", cloud=old.cloud)
        return Refreshed(old.cloud, old.source, _num_known(old), error=failed)
    before, after = _by_market(old), _by_market(new)
    changed = sum(1 for key, price in after.items() if before.get(key) != price)
    return Refreshed(old.cloud, new.source, _num_known(new), changed, doubted)


def today(now_s: float) -> str:
    return datetime.fromtimestamp(now_s, UTC).date().isoformat()


# --- what can be -----------------------------------------------------------------------------------------------


def check_whole(old: PriceList, new: PriceList) -> None:
    """An answer that is much shorter than what was known is an outage that looks like an answer."""
    before, after = _num_known(old), _num_known(new)
    if after < MIN_SHARE * before:
        raise Transient(
            f"the answer has only {after} prices, {before} were known before",
            "try again later; nothing was changed",
            cloud=old.cloud,
        )


def without_leaps(old: PriceList, new: PriceList) -> tuple[PriceList, int]:
    """Prices that rose or fell by more than MAX_FACTOR become unknown; and how many these are. Spot prices do leap:
    they may also be anything that is usual against the price on demand."""
    before, doubted = _by_market(old), 0
    regular: dict[tuple[str, str], set[int]] = {}
    for (region, name, _, is_spot), price in before.items():
        if not is_spot:
            regular.setdefault((region, name), set()).add(price)

    def believed(price: int | None, *references: int | None) -> int | None:
        nonlocal doubted
        known = [each for each in references if each is not None]
        if price is None or not known or any(_is_near(price, each) for each in known):
            return price
        doubted += 1
        return None

    def looked_at(each: RegionPrice) -> RegionPrice:
        key = (each.region, each.instance_type)
        on_demand = believed(each.on_demand_uusd_per_h, *regular.get(key, ()))
        spot = {
            zone: believed(price, before.get((*key, zone, True)), on_demand and on_demand // 4)
            for zone, price in each.spot_uusd_per_h.items()
        }
        return RegionPrice(each.region, each.instance_type, on_demand, spot)

    prices = [looked_at(each) for each in new.prices()]
    return PriceList.of(new.cloud, new.source, new.types.values(), prices), doubted


_Key = tuple[str, str, str, bool]  # region, type, zone, spot


def _by_market(listed: PriceList) -> dict[_Key, int]:
    found: dict[_Key, int] = {}
    for each in listed.prices():
        for zone, spot in each.spot_uusd_per_h.items():
            for price, is_spot in ((each.on_demand_uusd_per_h, False), (spot, True)):
                if price is not None:
                    found[each.region, each.instance_type, zone, is_spot] = price
    return found


def _is_near(price: int, reference: int) -> bool:
    return reference / MAX_FACTOR <= price <= reference * MAX_FACTOR


def _num_known(listed: PriceList) -> int:
    return len(_by_market(listed))
