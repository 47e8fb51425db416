"""`tradewind simulate`: a fleet file, a job trace and records of markets -> a comparison of policies. Calls nobody."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tradewind.autoscaler.simulate.compare import Result, compare
from tradewind.autoscaler.simulate.contestants import contestants
from tradewind.autoscaler.simulate.contracts import Growth
from tradewind.autoscaler.simulate.engine import Setting, simulate
from tradewind.autoscaler.simulate.job_files import JobFile, look_through
from tradewind.autoscaler.simulate.market_files import Records, read_records
from tradewind.autoscaler.simulate.place import Venue
from tradewind.autoscaler.simulate.world import Physics
from tradewind.config import load_fleet
from tradewind.config_models import FleetConfig
from tradewind.errors import ConfigError, Problem
from tradewind.fleet_offers import all_offers
from tradewind.model import Capacity, Offer
from tradewind.service import settings_of

_MOVES = "jobs may be moved to cheaper nodes (market.move_work): all of them are taken to be able to"
_NEVER = "no record of the markets was given: spot is always there, and never taken"


@dataclass(frozen=True, slots=True)
class Request:
    """What is simulated. `fleet`, `jobs` and `traces` are paths."""

    fleet: str
    jobs: str
    traces: tuple[str, ...] = ()
    policies: tuple[str, ...] = ("reactive", "contract")
    seed: int = 0
    repeat: int = 1
    days: float | None = None
    duration_s: float | None = None
    slack: float | None = None
    tick_s: float = 60.0
    replicas: int = 1
    physics: Physics = field(default_factory=Physics)
    boots_as_usual: bool = True  # as the fleet file has it, instead of `physics.boot_s`


@dataclass(frozen=True, slots=True)
class Comparison:
    fleet: str
    jobs: str
    markets: tuple[str, ...]  # each with what stands for it
    notes: tuple[str, ...]
    seed: int
    repeat: int
    results: tuple[Result, ...]


def run(request: Request, tell: Callable[[str], None] = lambda _: None) -> Comparison:
    """Raises ConfigError where a file is wrong. `tell` hears what is being done."""
    chosen = contestants(request.policies)
    config = load_fleet(request.fleet)
    trace = look_through(Path(request.jobs), request.duration_s, request.days, request.slack)
    records = read_records([Path(path) for path in request.traces]) if request.traces else Records()
    venues, notes = venues_of(offers_for(config), records)
    setting = _setting(config, venues, request)
    tallies = []
    for contestant in chosen:
        repeats = []
        for number in range(request.repeat):
            tell(f"{contestant.name}, {number + 1} of {request.repeat} ...")
            seed = request.seed + number
            repeats.append(simulate(setting, trace.jobs(), contestant, seed, _begin_s(venues, request.seed, number)))
        tallies.append(repeats)
    results = compare([(each.name, each.summary) for each in chosen], tallies, request.seed)
    return Comparison(
        fleet=config.name,
        jobs=f"{trace.path.name}: {results[0].jobs:,} jobs in {results[0].days:.1f} days",
        markets=tuple(_market_text(venue) for venue in venues),
        notes=(
            *_trace_notes(trace, results[0]),
            *records.notes,
            *notes,
            *([_MOVES] if config.market.move_work else []),
        ),
        seed=request.seed,
        repeat=request.repeat,
        results=tuple(results),
    )


def _setting(config: FleetConfig, venues: Sequence[Venue], request: Request) -> Setting:
    loop = settings_of(config, "")
    physics = replace(request.physics, boot_s=loop.usual_boot_s) if request.boots_as_usual else request.physics
    loop = replace(loop, usual_boot_s=physics.boot_s or 1.0)
    return Setting(venues, loop, physics, Growth(request.replicas), request.tick_s)


def _begin_s(venues: Sequence[Venue], seed: int, number: int) -> float:
    """Where in the records a repeat begins: the first at their begin, all others anywhere."""
    lengths_s = [steps.length_s for venue in venues for steps in (venue.stock, venue.price) if steps is not None]
    longest_s = max((length_s for length_s in lengths_s if length_s < float("inf")), default=0.0)
    return random.Random(f"{seed}/{number}").uniform(0.0, longest_s) if number else 0.0


# --- what may be bought ---------------------------------------------------------------------------------------------


def offers_for(config: FleetConfig) -> list[Offer]:
    """Machines with GPUs. Of those that differ in nothing but cores and memory, the cheapest: jobs ask for GPUs."""
    best: dict[tuple[str, ...], Offer] = {}
    for offer in all_offers(config):
        if offer.hosts > 1 or offer.resources.get("GPU", 0.0) < 1 or offer.price_uusd_per_h is None:
            continue
        market = offer.market
        key = (market.cloud, market.zone, offer.accelerator, str(offer.accelerator_count), str(market.capacity))
        if key not in best or (best[key].price_uusd_per_h or 0) > offer.price_uusd_per_h:
            best[key] = offer
    if not best:
        problem = Problem("fleet file", "offers", "has nothing with a GPU and a known price")
        raise ConfigError([problem], "a simulation is about GPUs: allow some in `offers`")
    return sorted(best.values(), key=lambda offer: offer.market.key)


def venues_of(offers: Sequence[Offer], records: Records) -> tuple[list[Venue], list[str]]:
    """Offers with their records, and notes for people."""
    notes: list[str] = []
    dear = [Venue(offer) for offer in offers if offer.market.capacity is Capacity.ON_DEMAND]
    spot = [offer for offer in offers if offer.market.capacity is Capacity.SPOT]
    if not records.stocks:
        cheap = [Venue(offer) for offer in spot]
        notes += [_NEVER] if spot else []
    else:
        cheap = _by_name(spot, records, notes) or _stand_ins(spot, records, notes)
    found = [*cheap, *_few(dear, cheap)]
    return _priced(found, records, notes), notes


def _priced(venues: Sequence[Venue], records: Records, notes: list[str]) -> list[Venue]:
    """With the prices of their own zone; else, since a cloud's zones have other names in every account and list, with
    those of another zone of the region."""
    found, borrowed = [], 0
    for venue in venues:
        market = venue.offer.market
        price = records.prices.get((market.zone, market.instance_type))
        if price is None and market.capacity is Capacity.SPOT:
            others = sorted(key for key in records.prices if key[1] == market.instance_type and key[0] != market.zone)
            near = [key for key in others if key[0].startswith(market.region)]
            rank = sorted({each.offer.market.zone for each in venues}).index(market.zone)
            price = records.prices[near[rank % len(near)]] if near else None
            borrowed += price is not None
        found.append(replace(venue, price=price) if market.capacity is Capacity.SPOT else venue)
    if borrowed:
        notes.append(
            f"{borrowed} spot markets have the prices of another zone of their region: none is named after them"
        )
    if records.prices and not any(venue.price for venue in found):
        zone, kind = next(iter(records.prices))
        notes.append(
            f"none of the price records is of a market of this fleet (they have {kind} in {zone}, for example)"
        )
    return found


def _by_name(spot: Sequence[Offer], records: Records, notes: list[str]) -> list[Venue]:
    """A record is of a market when its name has the zone, and either the type or the accelerator with its number."""
    found = []
    for offer in spot:
        name = next((name for name in sorted(records.stocks) if _is_of(name, offer)), None)
        if name is not None:
            found.append(Venue(offer, records.stocks[name]))
    if found and len(found) < len(spot):
        notes.append(f"{len(spot) - len(found)} spot markets of the fleet have no record, and are left out")
    return found


def _is_of(name: str, offer: Offer) -> bool:
    words = re.split(r"_+|/", name.lower())
    market = offer.market
    if market.zone.lower() not in words:
        return False
    accelerator = offer.accelerator.lower()
    if market.instance_type.lower() in words:
        return True
    return any(
        word == accelerator and words[place + 1 : place + 2] in ([], [f"{offer.accelerator_count:g}"])
        for place, word in enumerate(words)
    )


def _stand_ins(spot: Sequence[Offer], records: Records, notes: list[str]) -> list[Venue]:
    """Records of other places: each stands for one zone of the fleet, the cheapest zones first."""
    zones: dict[tuple[str, str], float] = {}
    for offer in spot:
        key = (offer.market.cloud, offer.market.zone)
        zones[key] = min(zones.get(key, float("inf")), _per_gpu(offer))
    names = sorted(records.stocks)
    ranked = sorted(zones, key=lambda zone: (zones[zone], zone))
    given = dict(zip(ranked, names, strict=False))
    if given:
        notes.append(
            f"no record is named after a market of the fleet: {len(given)} of {len(names)} stand for its cheapest "
            f"{len(given)} of {len(zones)} zones, in the order of their names"
        )
    return [
        Venue(offer, records.stocks[given[offer.market.cloud, offer.market.zone]])
        for offer in spot
        if (offer.market.cloud, offer.market.zone) in given
    ]


def _few(dear: Sequence[Venue], cheap: Sequence[Venue]) -> list[Venue]:
    """On-demand is always there, so of each kind the cheapest place is enough; and those where spot is looked at."""
    zones = {(venue.offer.market.cloud, venue.offer.market.zone) for venue in cheap}
    best: dict[tuple[str, float], Venue] = {}
    for venue in dear:
        key = (venue.offer.accelerator, venue.offer.accelerator_count)
        if key not in best or _per_gpu(venue.offer) < _per_gpu(best[key].offer):
            best[key] = venue
    kept = {venue.offer.market.key for venue in best.values()}
    return [
        venue
        for venue in dear
        if venue.offer.market.key in kept or (venue.offer.market.cloud, venue.offer.market.zone) in zones
    ]


def _per_gpu(offer: Offer) -> float:
    return (offer.price_uusd_per_h or 0) / offer.accelerator_count


# --- in words -------------------------------------------------------------------------------------------------------


def _market_text(venue: Venue) -> str:
    offer = venue.offer
    known = [word for word, steps in (("stock", venue.stock), ("price", venue.price)) if steps is not None]
    return (
        f"{offer.market} ({offer.accelerator_count:g} x {offer.accelerator}){': ' + ', '.join(known) if known else ''}"
    )


def _trace_notes(trace: JobFile, first: Result) -> list[str]:
    notes = []
    if not trace.is_sorted:
        notes.append(f"{trace.path.name} is not in the order of time: it was sorted")
    if trace.left_out:
        notes.append(f"{trace.path.name}: {trace.left_out} rows ask for nothing, and are left out")
    if first.never_fit:
        notes.append(
            f"cannot: {first.never_fit} jobs are larger than the limits of the fleet allow (up to {first.largest_gpus} "
            "GPUs), and are left out; raise limits.max_nodes"
        )
    if first.hopeless:
        notes.append(
            f"cannot: {first.hopeless} of {first.deadlines} deadlines are shorter than the work on the job's own GPUs"
        )
    return notes
