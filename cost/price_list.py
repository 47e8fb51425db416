"""The price list of one cloud, as it stands in a file: types once, prices by region, spot prices by zone.

Stands below the catalogue, which asks three of these. A list is small (the built-in ones are 250 kB together) and is
read in milliseconds: lines are checked when they are read, and become numbers when somebody asks for them.

    source,aws,EC2 price list,2026-11-16
    type,p4d.24xlarge,A100,8,1,96,1152,40,400
    price,us-east-1,p4d.24xlarge,21957642,use1-az1=9871100 use1-az4=

type: instance type, accelerator, count, hosts, vCPUs, memory GiB, memory GiB of one accelerator, network Gbit/s; all
of one host but `hosts` (a TPU slice has several). price: region, instance type, on-demand, zone=spot ...; micro-dollars
an hour of the whole offer. Empty is unknown, never 0. Lines that begin with # are comments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.errors import ConfigError, Problem

_NAME, _NUMBER, _PRICE = r"[^,=\s]+", r"\d+(?:\.\d+)?", r"(?:[1-9]\d*)?"
_SOURCE = re.compile(r"source,([a-z0-9-]+),([^,]+),(\d{4}(?:-\d\d-\d\d)?)")
_TYPE = re.compile(
    rf"type,{_NAME},[^,=\s]*,{_NUMBER},[1-9]\d*,{_NUMBER},{_NUMBER},(?:{_NUMBER})?,(?:{_NUMBER})?",
)
_ZONES = rf"{_NAME}={_PRICE}(?: {_NAME}={_PRICE})*"
_PRICES = re.compile(rf"price,{_NAME},{_NAME},{_PRICE},{_ZONES}")
_FORMS = {
    "source": "source,CLOUD,WHERE FROM,YEAR or YYYY-MM-DD",
    "type": "type,INSTANCE TYPE,ACCELERATOR,COUNT,HOSTS,VCPUS,MEMORY GIB,ACCELERATOR GIB,NETWORK GBPS",
    "price": "price,REGION,INSTANCE TYPE,ON DEMAND,ZONE=SPOT ZONE=SPOT",
}
HINT = "prices are whole micro-dollars an hour above 0, and empty where they are unknown; see docs/designs/catalog.md"


@dataclass(frozen=True, slots=True)
class Source:
    """Where a cloud's prices come from. `date` is as exact as the source: a day, or only a year."""

    name: str
    date: str


@dataclass(frozen=True, slots=True)
class InstanceType:
    """What one host of a type has. None where it is not known."""

    name: str
    accelerator: str = ""
    accelerator_count: float = 0.0
    hosts: int = 1
    vcpus: float = 0.0
    memory_gib: float = 0.0
    accelerator_memory_gib: float | None = None
    network_gbps: float | None = None

    @property
    def total_count(self) -> float:
        """Accelerators of the whole offer, all hosts together."""
        return self.accelerator_count * self.hosts


@dataclass(frozen=True, slots=True)
class RegionPrice:
    """One type in one region: a price on demand, and by zone a spot price. Zones with another price on demand (local
    zones) have an entry of their own."""

    region: str
    instance_type: str
    on_demand_uusd_per_h: int | None
    spot_uusd_per_h: Mapping[str, int | None]  # by zone


@dataclass(frozen=True)
class PriceList:
    cloud: str
    source: Source
    types: Mapping[str, InstanceType]
    lines: tuple[tuple[str, str, str, str], ...]  # region, type, on-demand, zones: text, until it is asked for
    path: Path | None = field(default=None, compare=False)

    @classmethod
    def of(cls, cloud: str, source: Source, types: Iterable[InstanceType], prices: Iterable[RegionPrice]) -> PriceList:
        """Of values; types that are sold nowhere are left out."""
        lines = tuple(sorted(map(_line, prices), key=lambda line: (line[1], line[0], line[2])))
        sold = {line[1] for line in lines}
        return cls(cloud, source, {each.name: each for each in types if each.name in sold}, lines)

    def prices(self, names: Iterable[str] | None = None) -> Iterator[RegionPrice]:
        """Of the types asked for, or of all."""
        wanted = self.types if names is None else frozenset(names)
        for region, name, on_demand, zones in self.lines:
            if name in wanted:
                spot = dict(pair.split("=") for pair in zones.split(" "))
                yield RegionPrice(region, name, _price(on_demand), {zone: _price(text) for zone, text in spot.items()})

    def __len__(self) -> int:
        """Zones, summed over types."""
        return sum(zones.count("=") for *_, zones in self.lines)

    def text(self, comments: Iterable[str] = ()) -> str:
        lines = [f"# {comment}" for comment in comments]
        lines.append(f"source,{self.cloud},{self.source.name},{self.source.date}")
        lines += [f"type,{_type_text(self.types[name])}" for name in sorted(self.types)]
        lines += ["price," + ",".join(line) for line in self.lines]
        return "\n".join(lines) + "\n"

    def write(self, path: Path, comments: Iterable[str] = ()) -> None:
        """Whole or not at all: it may be read, or the machine may fail, at any moment."""
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        try:
            with open(draft, "w", encoding="utf-8") as file:
                file.write(self.text(comments))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def read(path: Path) -> PriceList:
    """Raises ConfigError with every mistake in the file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(str(path), "", f"cannot be read: {error}")
        raise ConfigError([problem], hint="leave the path out for the built-in lists") from error
    problems = list(_mistakes(path, lines))
    if problems:
        raise ConfigError(problems, hint=HINT)
    source = next(line for line in lines if line.startswith("source,")).split(",")
    types = (_type_of(line) for line in lines if line.startswith("type,"))
    prices = (line.split(",") for line in lines if line.startswith("price,"))
    return PriceList(
        source[1],
        Source(source[2], source[3]),
        {each.name: each for each in types},
        tuple((region, name, on_demand, zones) for _, region, name, on_demand, zones in prices),
        path,
    )


def _mistakes(path: Path, lines: list[str]) -> Iterator[Problem]:
    patterns = {"source": _SOURCE, "type": _TYPE, "price": _PRICES}
    types = {line.split(",", 2)[1] for line in lines if line.startswith("type,") and line.count(",") > 1}
    counts = {"source": 0, "type": 0, "price": 0}
    for number, line in enumerate(lines, 1):
        if not line or line[0] == "#":
            continue
        kind = line.partition(",")[0]
        if kind not in patterns:
            yield Problem(f"{path}:{number}", "", f"begins with {kind!r}; source, type and price are known")
        elif not patterns[kind].fullmatch(line):
            yield Problem(f"{path}:{number}", kind, f"must be {_FORMS[kind]}")
        elif kind == "price" and line.split(",", 3)[2] not in types:
            yield Problem(f"{path}:{number}", "price", f"no line tells the type {line.split(',', 3)[2]}")
        else:
            counts[kind] += 1
    if counts["source"] != 1:
        yield Problem(str(path), "source", f"there must be one line {_FORMS['source']}")


def _type_of(line: str) -> InstanceType:
    _, name, accelerator, count, hosts, vcpus, memory, accelerator_memory, network = line.split(",")
    return InstanceType(
        name,
        accelerator,
        float(count),
        int(hosts),
        float(vcpus),
        float(memory),
        float(accelerator_memory) if accelerator_memory else None,
        float(network) if network else None,
    )


def _type_text(each: InstanceType) -> str:
    numbers = (each.accelerator_count, each.hosts, each.vcpus, each.memory_gib)
    unsure = (each.accelerator_memory_gib, each.network_gbps)
    cells = [f"{number:.12g}" for number in numbers] + ["" if each is None else f"{each:.12g}" for each in unsure]
    return ",".join([each.name, each.accelerator, *cells])


def _line(price: RegionPrice) -> tuple[str, str, str, str]:
    zones = " ".join(f"{zone}={_price_text(spot)}" for zone, spot in sorted(price.spot_uusd_per_h.items()))
    return price.region, price.instance_type, _price_text(price.on_demand_uusd_per_h), zones


def _price_text(price: int | None) -> str:
    if price is not None and price <= 0:
        raise ValueError(f"{price} micro-dollars an hour is no price; None is for unknown ones")
    return "" if price is None else str(price)


def _price(text: str) -> int | None:
    return int(text) if text else None
