"""The price list: what can be launched where, and for how much. Read once from a file; every question is pure.

Stands before the market: the controller turns these offers into what providers may launch. The format is described
in the head of `data/catalog.csv`. Rows stay text until somebody asks for them, so that loading costs milliseconds.
"""

from __future__ import annotations

import csv
import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.errors import ConfigError, Problem
from tradewind.model import Capacity, Market, Offer

BUILTIN = Path(__file__).parent / "data" / "catalog.csv"
COLUMNS = (
    "cloud",
    "region",
    "zone",
    "instance_type",
    "accelerator",
    "accelerator_count",
    "hosts",
    "vcpus",
    "memory_gib",
    "on_demand_uusd_per_h",
    "spot_uusd_per_h",
)
_SOURCE_MARK = "# source,"
_CLOUD, _REGION, _ZONE, _TYPE, _ACCELERATOR = range(5)
_QUESTIONS = {
    "cloud": _CLOUD,
    "region": _REGION,
    "zone": _ZONE,
    "instance_type": _TYPE,
    "accelerator": _ACCELERATOR,
}

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Source:
    """Where a cloud's prices come from. `date` is as exact as the source: a day, or only a year."""

    name: str
    date: str


@dataclass(frozen=True)
class Catalog:
    rows: tuple[Row, ...]
    sources: Mapping[str, Source] = field(default_factory=dict)  # by cloud
    path: Path = BUILTIN

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def accelerators(self) -> tuple[str, ...]:
        return tuple(name for name in self._names(_ACCELERATOR) if name)

    @property
    def instance_types(self) -> tuple[str, ...]:
        return self._names(_TYPE)

    @property
    def clouds(self) -> tuple[str, ...]:
        return self._names(_CLOUD)

    @property
    def regions(self) -> tuple[str, ...]:
        return self._names(_REGION)

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
        that the list does not have at all raises ConfigError with the nearest one; names that exist but are not
        sold together give an empty answer.
        """
        asked = {
            "accelerator": accelerator,
            "cloud": cloud,
            "region": region,
            "zone": zone,
            "instance_type": instance_type,
        }
        wanted = [(_QUESTIONS[name], self._known(name, value)) for name, value in asked.items() if value is not None]
        rows = (row for row in self.rows if all(row[column] in names for column, names in wanted))
        offers = (offer for row in rows for offer in self._offers(row, capacity))
        if count is not None:
            offers = (offer for offer in offers if offer.accelerator_count * offer.hosts == count)
        return tuple(sorted(offers, key=_by_price)[:limit])

    def cheapest(
        self, accelerator: str | None = None, *, cloud: str | None = None, capacity: Capacity | None = None
    ) -> Offer | None:
        """The first of `find` with a known price."""
        found = self.find(accelerator, cloud=cloud, capacity=capacity, limit=1)
        return found[0] if found and found[0].price_uusd_per_h is not None else None

    def _offers(self, row: Row, capacity: Capacity | None) -> Iterator[Offer]:
        on_demand, spot = _price(row[9]), _price(row[10])
        if capacity is not Capacity.SPOT:
            yield self._offer(row, Capacity.ON_DEMAND, on_demand, on_demand)
        if capacity is not Capacity.ON_DEMAND:
            yield self._offer(row, Capacity.SPOT, spot, on_demand)

    def _offer(self, row: Row, capacity: Capacity, price: int | None, on_demand: int | None) -> Offer:
        cloud, region, zone, instance_type, accelerator, count, hosts, vcpus, memory = row[:9]
        source = self.sources.get(cloud, Source("", ""))
        return Offer(
            market=Market(cloud, region, zone, instance_type, capacity),
            vcpus=float(vcpus),
            memory_gib=float(memory),
            accelerator=accelerator,
            accelerator_count=float(count),
            hosts=int(hosts),
            price_uusd_per_h=price,
            on_demand_uusd_per_h=on_demand,
            price_source=source.name,
            price_date=source.date,
        )

    def _names(self, column: int) -> tuple[str, ...]:
        return tuple(sorted({row[column] for row in self.rows}))

    def _known(self, question: str, value: str) -> frozenset[str]:
        """The list's own spellings of a name. Case, and -, _ or blanks in it, matter only where they tell two names
        apart: us-east-1 and us-east1 are regions of different clouds."""
        names = frozenset(self._names(_QUESTIONS[question]))
        if not value or value in names:
            return frozenset({value})
        alike = frozenset(name for name in names if _plain(name) == _plain(value))
        if not alike:
            raise _unknown(question, value, sorted(names - {""}), self.path)
        return alike


def load(path: Path | str | None = None) -> Catalog:
    """The catalogue in a file; the built-in one when none is named."""
    return _builtin() if path is None else _read(Path(path))


@functools.cache
def _builtin() -> Catalog:
    return _read(BUILTIN)


def _read(path: Path) -> Catalog:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        problem = Problem(str(path), "", f"cannot be read: {error.strerror}")
        raise ConfigError([problem], hint="leave the path out for the built-in catalogue") from error
    numbered = [(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
    rows = [tuple(row) for row in csv.reader(line for _, line in numbered)]
    _check(path, [number for number, _ in numbered], rows)
    return Catalog(tuple(rows[1:]), _sources(lines), path)


def _sources(lines: Iterable[str]) -> dict[str, Source]:
    found = (line.removeprefix(_SOURCE_MARK).split(",") for line in lines if line.startswith(_SOURCE_MARK))
    return {parts[0].strip(): Source(parts[1].strip(), parts[2].strip()) for parts in found if len(parts) == 3}


def _check(path: Path, numbers: list[int], rows: list[Row]) -> None:
    """Every mistake at once. Numbers are looked at here, so that no later question can fail on them."""
    if not rows or rows[0] != COLUMNS:
        problem = Problem(f"{path}:{numbers[0] if numbers else 1}", "", f"the first row must be {','.join(COLUMNS)}")
        raise ConfigError([problem], hint="see the head of the built-in cost/data/catalog.csv")
    problems = [
        Problem(f"{path}:{number}", name, found)
        for number, row in zip(numbers[1:], rows[1:], strict=True)
        for name, found in _mistakes(row)
    ]
    if problems:
        raise ConfigError(problems, hint="an unknown price is left empty; see the head of cost/data/catalog.csv")


def _mistakes(row: Row) -> Iterator[tuple[str, str]]:
    if len(row) != len(COLUMNS):
        yield "", f"has {len(row)} columns, not {len(COLUMNS)}"
        return
    for name, text in zip(COLUMNS[5:9], row[5:9], strict=True):
        if not text.replace(".", "", 1).isdecimal():
            yield name, f"{text!r} is not a number"
    if row[6] == "0" or not row[6].isdecimal():
        yield "hosts", f"{row[6]!r} is not a whole number above 0"
    for name, text in zip(COLUMNS[9:], row[9:], strict=True):
        if text and (not text.isdecimal() or int(text) == 0):
            yield name, f"{text!r} is not a whole number of micro-dollars above 0"


def _price(text: str) -> int | None:
    return int(text) if text else None


def _by_price(offer: Offer) -> tuple[bool, int, str]:
    price = offer.price_uusd_per_h
    return (price is None, price or 0, offer.market.key)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.lower() if letter not in "-_ ")


def _unknown(question: str, value: str, names: Sequence[str], path: Path) -> ConfigError:
    by_lower_name = {name.lower(): name for name in names}
    near = [by_lower_name[name] for name in difflib.get_close_matches(value.lower(), by_lower_name, n=5, cutoff=0.5)]
    nearest = f"; the nearest is {near[0]}" if near else ""
    problem = Problem(path.name, question.replace("_", " "), f"there is no {value!r}{nearest}")
    # A list of all is an answer only while it can be read at a glance.
    shown = names if len(names) <= 40 else near
    return ConfigError([problem], hint=f"known: {', '.join(shown)}" if shown else f"see {path}")
