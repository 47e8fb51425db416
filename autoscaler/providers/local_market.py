"""The weather of the local cloud: stock-outs, prices, failed boots and preemptions as a function of a script and time.

Pure. `local.py` asks at every look and does what is said. The same script and seed give the same weather for the
same launch ids, whenever and however often it is asked.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from fnmatch import fnmatchcase

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.errors import ConfigError, InvalidRequest, PriceTooHigh, Problem, Stockout, Unsupported
from tradewind.model import Capacity, Market, Offer
from tradewind.units import format_usd

_LAUNCH_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")  # what Ray takes as the value of a label
MAX_HOSTS = 8  # of one slice: each is a Ray node of its own on this machine


class Action(StrEnum):
    PREEMPT = "preempt"
    STOCKOUT = "stockout"
    RESTOCK = "restock"  # ends a stock-out before its time
    PRICE = "price"
    BOOT_FAILURE = "boot_failure"


@dataclass(frozen=True, slots=True)
class MarketEvent:
    """Something that happens at a given time to the markets that match a glob over `Market.key`."""

    at_s: float  # after the start of the cloud
    action: Action
    market: str = "*"
    notice_s: float | None = None  # preempt: warning ahead; None takes the node at once
    count: int | None = None  # preempt, boot_failure: how many nodes; None: all
    for_s: float | None = None  # stockout, price: how long; None: until another event ends it
    price_factor: float = 1.0  # price


@dataclass(frozen=True, slots=True)
class MarketScript:
    """What happens in the local cloud. The default is fair weather: no delay, no failure, nothing is taken."""

    seed: int = 0
    launch_delay_s: tuple[float, float] = (0.0, 0.0)
    boot_failure_rate: float = 0.0  # share of launches that never boot
    hazard_per_h: Mapping[str, float] = field(default_factory=dict)  # market glob -> preemptions per node and hour
    notice_s: float | None = None  # of preemptions by hazard; None: no notice
    stock: int | None = None  # nodes that a market has at once; None: any number
    events: Sequence[MarketEvent] = ()

    def __post_init__(self) -> None:
        if problems := list(_mistakes(self)):
            raise ConfigError([Problem("local cloud", name, message) for name, message in problems])


@dataclass(frozen=True, slots=True)
class Subject:
    """A node, as far as the weather is concerned."""

    launch_id: str
    market: Market
    created_at_s: float
    running_since_s: float | None = None
    taken_from_s: float | None = None  # a preemption is already decided


@dataclass(frozen=True, slots=True)
class Preemption:
    """The cloud takes a node: told at `noticed_at_s`, gone at `deadline_s` (the same, if there is no notice)."""

    launch_id: str
    noticed_at_s: float
    deadline_s: float
    reason: str


def is_out_of_stock(script: MarketScript, started_at_s: float, now_s: float, market: Market) -> bool:
    """The last stock-out or restock before now decides."""
    event = _last(script, started_at_s, now_s, market, {Action.STOCKOUT, Action.RESTOCK})
    return event is not None and event.action is Action.STOCKOUT and _lasts(event, started_at_s, now_s)


def price_factor(script: MarketScript, started_at_s: float, now_s: float, market: Market) -> float:
    event = _last(script, started_at_s, now_s, market, {Action.PRICE})
    return event.price_factor if event is not None and _lasts(event, started_at_s, now_s) else 1.0


def priced(offer: Offer, script: MarketScript, started_at_s: float, now_s: float) -> Offer:
    """The offer at its present price. An unknown price stays unknown."""
    if offer.price_uusd_per_h is None:
        return offer
    factor = price_factor(script, started_at_s, now_s, offer.market)
    return replace(offer, price_uusd_per_h=round(offer.price_uusd_per_h * factor))


def admit(
    spec: LaunchSpec,
    catalogue: Mapping[str, Offer],
    script: MarketScript,
    started_at_s: float,
    now_s: float,
    taken: int = 0,
) -> Offer:
    """What is sold for a launch, at its present price; or the refusal that a real cloud would give.

    `taken` counts the places of the market that are not free: our nodes there, and those that went to others.
    """
    market = spec.offer.market
    if not _LAUNCH_ID.fullmatch(spec.launch_id):
        hint = "use letters, digits, '-', '_' and '.', 63 at the most"
        raise InvalidRequest(f"{spec.launch_id!r} is not a launch id", hint, cloud=market.cloud, code="BadLaunchId")
    if market.key not in catalogue:
        raise InvalidRequest(f"nobody sells {market}", cloud=market.cloud, code="UnknownMarket")
    offer = priced(catalogue[market.key], script, started_at_s, now_s)
    if offer.hosts > MAX_HOSTS:
        hint = f"the local cloud has slices of up to {MAX_HOSTS} hosts"
        raise Unsupported(f"{market} is a slice of {offer.hosts} hosts", hint, cloud=market.cloud, code="TooManyHosts")
    is_full = script.stock is not None and taken >= script.stock
    if is_full or is_out_of_stock(script, started_at_s, now_s, market):
        raise Stockout(f"{market} is out of stock", cloud=market.cloud, code="InsufficientCapacity")
    limit_uusd, price_uusd = spec.max_price_uusd_per_h, offer.price_uusd_per_h
    if limit_uusd is not None and price_uusd is not None and limit_uusd < price_uusd:
        message = f"{market} costs {format_usd(price_uusd)} an hour, more than {format_usd(limit_uusd)}"
        raise PriceTooHigh(message, cloud=market.cloud, code="MaxPriceTooLow")
    return offer


def launch_delay_s(script: MarketScript, launch_id: str) -> float:
    shortest_s, longest_s = script.launch_delay_s
    return shortest_s + (longest_s - shortest_s) * _draw(script.seed, launch_id, "delay")


def fails_to_boot(script: MarketScript, started_at_s: float, subject: Subject, others: Iterable[Subject]) -> bool:
    """By chance, or because it is among the first `count` launches after a scripted boot failure."""
    if _draw(script.seed, subject.launch_id, "boot") < script.boot_failure_rate:
        return True
    known = sorted({subject, *others}, key=_by_age)
    return any(
        subject in _first_after(event, started_at_s, known)
        for event in script.events
        if event.action is Action.BOOT_FAILURE
    )


def lifetime_s(script: MarketScript, subject: Subject) -> float:
    """How long a running spot node lives: exponential with the market's hazard, by inversion of one uniform draw."""
    rates = (rate for glob, rate in script.hazard_per_h.items() if fnmatchcase(subject.market.key, glob))
    rate_per_h = next(rates, 0.0)  # the first glob that matches
    if rate_per_h <= 0 or subject.market.capacity is not Capacity.SPOT:
        return math.inf
    return -math.log(1.0 - _draw(script.seed, subject.launch_id, "life")) * 3600.0 / rate_per_h


def preemptions(
    script: MarketScript, started_at_s: float, since_s: float, now_s: float, subjects: Iterable[Subject]
) -> list[Preemption]:
    """Whom the cloud decides to take between the last look (`since_s`, excluded) and now (included)."""
    running = sorted((s for s in subjects if s.running_since_s is not None and s.taken_from_s is None), key=_by_age)
    found: dict[str, Preemption] = {}
    for event in script.events:
        if event.action is Action.PREEMPT and since_s < started_at_s + event.at_s <= now_s:
            # On-demand nodes are never taken; a glob that matches them by accident must not do it either.
            matching = [s for s in running if s.launch_id not in found and _is_spot(s) and _matches(event, s.market)]
            for subject in matching[: event.count]:
                found[subject.launch_id] = preemption(subject, now_s, event.notice_s, "scheduled")
    for subject in running:
        if subject.launch_id not in found and now_s >= (subject.running_since_s or 0.0) + lifetime_s(script, subject):
            found[subject.launch_id] = preemption(subject, now_s, script.notice_s, "by chance")
    return list(found.values())


def preemption(subject: Subject, now_s: float, notice_s: float | None, why: str) -> Preemption:
    deadline_s = now_s + (notice_s or 0.0)
    warning = f"{notice_s:g} s of notice" if notice_s else "no notice"
    return Preemption(subject.launch_id, now_s, deadline_s, f"{subject.market.cloud} took it back ({why}, {warning})")


def _is_spot(subject: Subject) -> bool:
    return subject.market.capacity is Capacity.SPOT


def _matches(event: MarketEvent, market: Market) -> bool:
    return fnmatchcase(market.key, event.market)


def _last(
    script: MarketScript, started_at_s: float, now_s: float, market: Market, actions: set[Action]
) -> MarketEvent | None:
    past = [e for e in script.events if e.action in actions and started_at_s + e.at_s <= now_s and _matches(e, market)]
    return max(enumerate(past), key=lambda pair: (pair[1].at_s, pair[0]))[1] if past else None


def _lasts(event: MarketEvent, started_at_s: float, now_s: float) -> bool:
    return event.for_s is None or now_s < started_at_s + event.at_s + event.for_s


def _first_after(event: MarketEvent, started_at_s: float, known: Sequence[Subject]) -> list[Subject]:
    begins_s = started_at_s + event.at_s
    ends_s = math.inf if event.for_s is None else begins_s + event.for_s
    return [s for s in known if begins_s <= s.created_at_s < ends_s and _matches(event, s.market)][: event.count]


def _by_age(subject: Subject) -> tuple[float, str]:
    return (subject.created_at_s, subject.launch_id)


def _draw(seed: int, launch_id: str, purpose: str) -> float:
    """A uniform number in [0, 1) that depends on nothing but its arguments."""
    digest = hashlib.sha256(f"{seed}|{launch_id}|{purpose}".encode()).digest()
    return int.from_bytes(digest[:7], "big") / 2**56


def _mistakes(script: MarketScript) -> Iterable[tuple[str, str]]:
    shortest_s, longest_s = script.launch_delay_s
    if not 0 <= shortest_s <= longest_s:
        yield "launch_delay", f"{script.launch_delay_s} is not (shortest, longest), both 0 or more"
    if not 0 <= script.boot_failure_rate <= 1:
        yield "boot_failures", f"{script.boot_failure_rate} is not between 0 and 1"
    if script.stock is not None and script.stock < 0:
        yield "stock", f"{script.stock} is below 0"
    for glob, rate in script.hazard_per_h.items():
        if rate < 0:
            yield "hazard_per_hour", f"{rate} for {glob} is below 0"
    for number, event in enumerate(script.events):
        if event.at_s < 0 or (event.for_s or 0) < 0 or (event.notice_s or 0) < 0:
            yield f"script[{number}]", "a time is below 0"
        if event.count is not None and event.count < 1:
            yield f"script[{number}].count", f"{event.count} is below 1"
        if event.price_factor <= 0:
            yield f"script[{number}].price_factor", f"{event.price_factor} is not above 0"
