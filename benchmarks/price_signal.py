"""Does the price of a spot market tell how soon its machines are lost or come back, and does what we learn of it harm
where it does not?

    python benchmarks/price_signal.py                made-up markets, from --seed
    python benchmarks/price_signal.py --prices FILE --type p3.2xlarge --trace zone=TRACE.json --begin 2023-02-15

A trace is one of spot availability (`metadata.gap_seconds`, `data`), a price file has the columns ts_utc,
AvailabilityZone, InstanceType, SpotPrice. --trace may be repeated. Zones have other names in every account, so where it
is not known whose prices a trace has, give each zone that it may be: `use1-az1,use1-az2=TRACE.json`. A look is taken
every five minutes, or every tick if that is longer.

Ours learns for each market what its price tells (contract/signs.py); "none" does not look at prices; "believer" takes
for granted that a price above the usual tells of losses (slope 0.3), and one below it of returns. The figure is the
likelihood of the next look, in nats for each end of a spell, above that of "none".

Bars: where prices tell, ours gains at least a hundredth of a nat; where they tell nothing, and on each record, it loses
at most 0.003. Exit status 1 where a bar does not hold.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from bars import Bar, show

from tradewind.autoscaler.contract import Sightings
from tradewind.autoscaler.contract.odds import slot

GAIN, HARM = 0.01, -0.003
BELIEVED = 0.3
LOOK_S = 300.0
HOUR_S = 3600.0
KINDS = {  # of made-up markets: (what pressure does to the rates, noise of the price)
    "prices tell": (1.0, 0.0),
    "prices tell a little": (0.5, 0.0),
    "prices tell, with noise": (1.0, 0.05),
    "high prices are the calm ones": (-1.0, 0.0),
    "prices tell nothing": (0.0, 0.0),
}


@dataclass(frozen=True, slots=True)
class Record:
    name: str
    gap_s: float
    begin_s: float
    is_up: Sequence[bool]
    price_at: Callable[[float], float | None]


@dataclass(frozen=True, slots=True)
class Gains:
    """In nats for each end."""

    ours: float
    believer: float
    ends: int


def gains_of(record: Record) -> Gains:
    seen, ours, believer, ends = Sightings(), 0.0, 0.0, 0
    for number, is_up in enumerate(record.is_up):
        at_s = record.begin_s + number * record.gap_s
        if seen.is_up is not None and seen.price.has_moved:
            kind, hours = int(seen.is_up), record.gap_s / HOUR_S
            tally, is_over = seen.tally, is_up != seen.is_up
            rate = tally.rate_per_h(slot(seen.is_up, seen.age_h(seen.at_s)))
            plain = rate / tally.priced[kind]
            slope = BELIEVED if seen.is_up else -BELIEVED
            none = _likelihood(plain, hours, is_over)
            ours += _likelihood(rate, hours, is_over) - none
            believer += _likelihood(plain * math.exp(slope * seen.price.distance), hours, is_over) - none
            ends += is_over
        if (price := record.price_at(at_s)) is not None:
            seen.priced(at_s, price)
        seen.see(at_s, is_up)
    return Gains(ours / max(ends, 1), believer / max(ends, 1), ends)


def _likelihood(rate_per_h: float, hours: float, is_over: bool) -> float:
    return math.log(-math.expm1(-rate_per_h * hours)) if is_over else -rate_per_h * hours


# --- records ------------------------------------------------------------------------------------------------------


def made_up(name: str, seed: int, days: float) -> Record:
    """Pressure comes and goes within half a day; it moves the price, told every three hours, and the rates."""
    strength, noise = KINDS[name]
    random, looks = np.random.default_rng(seed), round(days * 86400.0 / LOOK_S)
    pressure, pull = np.zeros(looks), LOOK_S / (12 * HOUR_S)
    for number in range(1, looks):
        pressure[number] = pressure[number - 1] * (1.0 - pull) + random.normal() * math.sqrt(2.0 * pull)
    is_up, found = True, []
    for push in pressure:
        rate_per_h = 0.25 * math.exp(strength * push) if is_up else 0.5 * math.exp(-strength * push)
        is_up ^= bool(random.random() < -math.expm1(-rate_per_h * LOOK_S / HOUR_S))
        found.append(is_up)
    prices = np.exp(0.05 * pressure[::36] + noise * random.normal(size=len(pressure[::36])))
    return Record(name, LOOK_S, 0.0, found, lambda at_s: float(prices[int(at_s / LOOK_S) // 36]))


def recorded(zones: Sequence[str], path: Path, options: argparse.Namespace) -> Iterator[Record]:
    told = json.loads(path.read_text())
    gap_s = float(told["metadata"]["gap_seconds"])
    every = max(1, round(LOOK_S / gap_s))
    is_up = [bool(count) for count in told["data"][::every]]
    begin_s = datetime.fromisoformat(options.begin).replace(tzinfo=UTC).timestamp()
    for zone in zones:
        times_s, prices = read_prices(options.prices, zone, options.type)
        yield Record(f"{path.stem} at the prices of {zone}", gap_s * every, begin_s, is_up, _lookup(times_s, prices))


def _lookup(times_s: np.ndarray, prices: np.ndarray) -> Callable[[float], float | None]:
    def price_at(at_s: float) -> float | None:
        index = int(np.searchsorted(times_s, at_s, side="right")) - 1
        return None if index < 0 else float(prices[index])

    return price_at


def read_prices(path: Path, zone: str, instance_type: str) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["AvailabilityZone"], row["InstanceType"]) == (zone, instance_type)
        ]
    told = sorted((float(row["ts_utc"]), float(row["SpotPrice"])) for row in rows if _is_price(row["SpotPrice"]))
    if not told:
        sys.exit(f"{path} has no prices of {instance_type} in {zone}")
    return np.array([at_s for at_s, _ in told]), np.array([price for _, price in told])


def _is_price(text: str) -> bool:
    return text.replace(".", "", 1).isdigit() and float(text) > 0.0


# --- bars ---------------------------------------------------------------------------------------------------------


def bar_of(name: str, gains: Sequence[Gains], least: float) -> Bar:
    ours = sum(each.ours for each in gains) / len(gains)
    peers = {"none": 0.0, "believer": sum(each.believer for each in gains) / len(gains)}
    ends = sum(each.ends for each in gains)
    return Bar(f"{name} ({ends} ends): nats for each end", ours, peers, least, ours, f">= {least}", ours >= least)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prices", type=Path)
    parser.add_argument("--type", default="", help="the instance type in the price file")
    parser.add_argument("--trace", action="append", default=[], help="ZONE[,ZONE...]=FILE; may be repeated")
    parser.add_argument("--begin", default="", help="when the traces begin (UTC, 2023-02-15 or 2023-02-15T06:00)")
    parser.add_argument("--days", type=float, default=45.0, help="of made-up markets (default 45)")
    parser.add_argument("--repeat", type=int, default=6, help="made-up markets of each kind (default 6)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if bool(options.trace) != bool(options.prices and options.type and options.begin):
        parser.error("--trace needs --prices, --type and --begin, and they need it")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options, bars = parse(arguments), []
    for name, (strength, _) in KINDS.items() if not options.trace else ():
        gains = [gains_of(made_up(name, options.seed + number, options.days)) for number in range(options.repeat)]
        bars.append(bar_of(f"made up, {name}", gains, GAIN if strength else HARM))
    for told in options.trace:
        zones, _, path = told.partition("=")
        bars += [bar_of(each.name, [gains_of(each)], HARM) for each in recorded(zones.split(","), Path(path), options)]
    return show(bars, options.json)


if __name__ == "__main__":
    sys.exit(main())
