"""Price lists in CSV, one row a type and zone (the layout of SkyPilot's catalogue) -> our own lists.

    python benchmarks/pricing/lists.py FOLDER OUT     from aws.csv, gcp.csv, azure.csv (the built-in ones: cost/data)

Traps of that layout: an empty price is unknown; GCP's machines and accelerators have rows of their own, and are summed;
a TPU's row has no machine at all; Azure knows no zones, so the region stands for them.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source
from tradewind.units import usd_to_uusd

sys.path.insert(0, str(Path(__file__).parents[1]))
from pricing.facts import (
    ACCELERATOR_GIB,
    CORRECTED_COUNTS,
    GCP_CARDS,
    GCP_MACHINES,
    LEFT_OUT,
    MAX_TPU_HOSTS,
    NETWORK_GBPS,
    PLAIN,
    RENAMED,
    TPUS,
)

Row = Mapping[str, str]
Pair = tuple[int | None, int | None]  # on demand, spot
Sold = tuple[InstanceType, str, str, Pair]  # type, region, zone
NAME, DATES = "skypilot-catalog", {"aws": "2026", "gcp": "2026", "azure": "2024"}
COMMENTS = (
    "Tradewind's built-in price list; the format is told in cost/price_list.py. Made by benchmarks/pricing/lists.py.",
    "vCPUs and memory of TPU hosts are approximate; network is the nominal one of a host.",
)


def read_folder(folder: Path, dates: Mapping[str, str] = DATES) -> list[PriceList]:
    """Of the clouds whose file is there."""
    makers = {"aws": _of_aws, "azure": _of_azure, "gcp": _of_gcp}
    files = {cloud: folder / f"{cloud}.csv" for cloud in makers}
    return [_listed(cloud, makers[cloud](_rows(path)), dates[cloud]) for cloud, path in files.items() if path.is_file()]


def _rows(path: Path) -> list[Row]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _listed(cloud: str, sold: Iterable[Sold], date: str) -> PriceList:
    types: dict[str, InstanceType] = {}
    spot: dict[tuple[str, str, int | None], dict[str, int | None]] = {}
    for each, region, zone, pair in sold:
        types[each.name] = each
        regular, cheap = (price or None for price in pair)  # 0 is no price
        zones = spot.setdefault((region, each.name, regular), {})  # a local zone has its own price on demand
        zones[zone] = cheap or zones.get(zone)  # a list may name a zone twice, once without a price
    prices = (RegionPrice(region, name, regular, zones) for (region, name, regular), zones in spot.items())
    return PriceList.of(cloud, Source(NAME, date), types.values(), prices)


def _of_aws(rows: Iterable[Row]) -> Iterator[Sold]:
    for row in (row for row in rows if _is_kept("aws", row)):
        yield _type(row), row["Region"], row["AvailabilityZone"], _pair(row)


def _of_azure(rows: Iterable[Row]) -> Iterator[Sold]:
    for row in (row for row in rows if _is_kept("azure", row)):
        yield _type(row), row["Region"], row["Region"], _pair(row)


def _is_kept(cloud: str, row: Row) -> bool:
    name, count = row["AcceleratorName"], float(row["AcceleratorCount"] or 0)
    if not name:
        return row["InstanceType"] in PLAIN[cloud]
    return count >= 1 and not name.startswith(LEFT_OUT)  # a part of a card is another thing than a card


def _type(row: Row, accelerator: str = "", count: float = 0.0, name: str = "") -> InstanceType:
    listed = row["AcceleratorName"]
    accelerator = accelerator or RENAMED.get(listed, listed.replace(" ", "-"))
    machine = row["InstanceType"]
    return InstanceType(
        name or machine,
        accelerator,
        CORRECTED_COUNTS.get(machine, count or float(row["AcceleratorCount"] or 0)),
        1,
        float(row["vCPUs"]),
        float(row["MemoryGiB"]),
        ACCELERATOR_GIB.get(accelerator),
        NETWORK_GBPS.get(machine),
    )


# --- GCP: sums -------------------------------------------------------------------------------------------------


def _of_gcp(rows: Iterable[Row]) -> Iterator[Sold]:
    machines: dict[str, list[Row]] = {}
    cards: dict[tuple[str, str], dict[float, Pair]] = {}  # (zone, accelerator) -> by count
    for row in rows:
        if row["InstanceType"]:
            machines.setdefault(row["InstanceType"], []).append(row)
        elif row["AcceleratorName"].startswith("tpu-"):
            yield from _slice(row)
        else:
            by_count = cards.setdefault((row["AvailabilityZone"], row["AcceleratorName"]), {})
            by_count[float(row["AcceleratorCount"])] = _pair(row)
    for machine, listed, ours, count in _gcp_machines():
        name = f"{machine}+{ours.lower()}x{count}" if machine.startswith("n1-") else machine
        for row in machines.get(machine, ()):
            accelerators = cards.get((row["AvailabilityZone"], listed), {}).get(count)
            if accelerators:
                prices = _sum(_pair(row), accelerators)
                yield _type(row, ours, count, name), row["Region"], row["AvailabilityZone"], prices
    for row in (row for machine in PLAIN["gcp"] for row in machines.get(machine, ())):
        yield _type(row), row["Region"], row["AvailabilityZone"], _pair(row)


def _gcp_machines() -> Iterator[tuple[str, str, str, int]]:
    for machine, (listed, ours, count) in GCP_MACHINES.items():
        yield machine, listed, ours, count
    for card, hosts in GCP_CARDS.items():
        yield from ((machine, card, card, count) for machine, count in hosts)


def _slice(row: Row) -> Iterator[Sold]:
    """Powers of two, up to 64 hosts: the others are for those who have talked to Google anyway."""
    name = row["AcceleratorName"]
    _, generation, size = name.split("-")
    if generation not in TPUS or int(size) & (int(size) - 1):
        return
    cores_per_chip, by_chips, memory = TPUS[generation]
    chips = int(size) // cores_per_chip
    per_host = chips if chips in by_chips else 4
    hosts = chips // per_host
    if hosts <= MAX_TPU_HOSTS:
        vcpus, host_memory = by_chips[per_host]
        accelerator = f"TPU-{generation.upper()}"
        each = InstanceType(name, accelerator, per_host, hosts, vcpus, host_memory, memory)
        yield each, row["Region"], row["AvailabilityZone"], _pair(row)


# --- prices ----------------------------------------------------------------------------------------------------


def _pair(row: Row) -> Pair:
    return _price(row["Price"]), _price(row["SpotPrice"])


def _price(text: str) -> int | None:
    return usd_to_uusd(text) if text else None


def _sum(machine: Pair, accelerators: Pair) -> Pair:
    """Unknown where a part of it is. A part may cost nothing: an a4 machine is paid with its accelerators."""
    (regular, cheap), (more, cheap_more) = machine, accelerators
    return _added(regular, more), _added(cheap, cheap_more)


def _added(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the built-in price lists from lists in CSV.")
    parser.add_argument("folder", type=Path, help="with aws.csv, gcp.csv, azure.csv")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    for listed in read_folder(given.folder):
        listed.write(given.out / f"{listed.cloud}.csv", COMMENTS)
        print(f"{listed.cloud}: {len(listed.types)} types, {len(listed.lines)} prices, {len(listed)} zones")


if __name__ == "__main__":
    main()
