"""The ledger beside a cloud's own bill: what differs, and why. Pure; `bills.py` reads both.

Both are charges by resource and day. The days and clouds of the bill decide what is compared. Every charge of the bill
is in exactly one line or in `others`, so that the lines and the others add up to the bill.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta

from tradewind.cost.bills import Charge
from tradewind.units import format_duration, format_usd

LEAST_UUSD = 10_000  # a cent: less is rounding
FREE_HOURS = 1.0
LATE_DAYS = 2  # clouds add to a bill for about so long
_PART = 0.1
NO_NAME = "names no machine: use the export with resources"


@dataclass(frozen=True, slots=True)
class Difference:
    """One machine on which ledger and bill do not agree."""

    resource: str
    launch_id: str  # empty: the ledger does not know it
    ledger_uusd: int
    billed_uusd: int
    why: str


@dataclass(frozen=True, slots=True)
class Other:
    """Charges of the bill that are not for running a machine, by what they are for."""

    what: str
    cost_uusd: int
    charges: int


@dataclass(frozen=True, slots=True)
class Reconciliation:
    from_day: str
    until_day: str  # included
    clouds: tuple[str, ...]
    ledger_uusd: int  # of these days and clouds
    billed_uusd: int  # all of the bill
    agreeing: int  # machines
    agreeing_billed_uusd: int
    differences: tuple[Difference, ...]  # the largest first
    others: tuple[Other, ...]

    @property
    def agrees(self) -> bool:
        return not self.differences


@dataclass(slots=True)
class _Side:
    cost_uusd: int = 0
    hours: float | None = None
    launch_id: str = ""
    is_spot: bool = False
    last_day: str = ""
    is_covered: bool = False
    credits_uusd: int = 0  # negative: in the cost
    is_in_parts: bool = False  # as Google bills: nobody says how long the machine ran

    def add(self, charge: Charge) -> None:
        self.cost_uusd += charge.cost_uusd
        if charge.hours is not None:
            self.hours = (self.hours or 0.0) + charge.hours
        self.launch_id = self.launch_id or charge.launch_id
        self.is_spot = self.is_spot or charge.is_spot
        self.is_covered = self.is_covered or charge.is_covered
        self.credits_uusd += charge.credits_uusd
        self.is_in_parts = self.is_in_parts or (charge.cloud == "gcp" and charge.hours is None)
        self.last_day = max(self.last_day, charge.day)


def compare(ledger: Sequence[Charge], bill: Sequence[Charge], tolerance: float = 0.01) -> Reconciliation:
    """`tolerance` is the part of a machine's cost by which both may differ."""
    days = sorted({charge.day for charge in bill})
    clouds = {charge.cloud for charge in bill} - {""}
    from_day, until_day = (days[0], days[-1]) if days else ("", "")
    mine = [each for each in ledger if from_day <= each.day <= until_day and (not clouds or each.cloud in clouds)]
    machines = [charge for charge in bill if charge.is_machine and charge.resource]
    ours, theirs = _by_machine(mine, mine), _by_machine(machines, mine)
    agreeing, agreeing_uusd, found = 0, 0, []
    for name in sorted(ours.keys() | theirs.keys()):
        here, there = ours.get(name, _Side()), theirs.get(name, _Side())
        if abs(here.cost_uusd - there.cost_uusd) <= max(LEAST_UUSD, tolerance * there.cost_uusd):
            agreeing, agreeing_uusd = agreeing + 1, agreeing_uusd + there.cost_uusd
            continue
        why = _why(name in ours, name in theirs, here, there, until_day)
        found.append(Difference(name, here.launch_id or there.launch_id, here.cost_uusd, there.cost_uusd, why))
    return Reconciliation(
        from_day=from_day,
        until_day=until_day,
        clouds=tuple(sorted(clouds)),
        ledger_uusd=sum(charge.cost_uusd for charge in mine),
        billed_uusd=sum(charge.cost_uusd for charge in bill),
        agreeing=agreeing,
        agreeing_billed_uusd=agreeing_uusd,
        differences=tuple(sorted(found, key=lambda each: -abs(each.ledger_uusd - each.billed_uusd))),
        others=_others(charge for charge in bill if not (charge.is_machine and charge.resource)),
    )


def _by_machine(charges: Iterable[Charge], ledger: Iterable[Charge]) -> dict[str, _Side]:
    """Under the cloud's name of the machine. A bill may name it by our launch id instead."""
    names = {each.launch_id: each.resource for each in ledger if each.launch_id}
    known = {each.resource.lower(): each.resource for each in ledger}
    found: dict[str, _Side] = defaultdict(_Side)
    for charge in charges:
        plain = known.get(charge.resource.lower(), charge.resource)
        found[names.get(charge.launch_id) or names.get(charge.resource) or plain].add(charge)
    return dict(found)


def _why(in_ledger: bool, in_bill: bool, here: _Side, there: _Side, until_day: str) -> str:
    if not in_ledger:
        if there.launch_id:
            return "its tag says that a fleet launched it, but this ledger does not know it: look with `tradewind reap`"
        return "this fleet did not launch it"
    if not in_bill:
        return _why_missing(here, until_day)
    if there.is_covered:
        return "a reservation or a savings plan pays for it, at least in part: its price is on another line of the bill"
    if here.hours and there.hours:
        return _why_dearer(here, there, here.hours, there.hours)
    return _why_unknown(here, there)


def _why_dearer(here: _Side, there: _Side, our_hours: float, their_hours: float) -> str:
    """Time, price, or both: each is named if it is more than a tenth of the difference."""
    paid, known = round(there.cost_uusd / their_hours), round(here.cost_uusd / our_hours)
    by_time, by_price = abs(math.log(their_hours / our_hours)), abs(math.log(max(paid, 1) / max(known, 1)))
    found = []
    if by_time > _PART * by_price:
        found.append(f"time: billed for {_time(their_hours)}, in the ledger {_time(our_hours)}")
    if by_price > _PART * by_time:
        moved = "the spot price moved between our looks" if here.is_spot else "a discount, or an old price list"
        found.append(f"price: billed at {format_usd(paid)}/h, in the ledger {format_usd(known)}/h: {moved}")
    return "; and ".join(found)


def _time(hours: float) -> str:
    return format_duration(hours * 3600)


def _why_unknown(here: _Side, there: _Side) -> str:
    """The bill does not say how long it ran."""
    part = there.cost_uusd / here.cost_uusd - 1 if here.cost_uusd else 0.0
    by = f"{abs(part):.0%} {'more' if part > 0 else 'less'} than in the ledger"
    ran = f", where it ran for {_time(here.hours)}" if here.hours else ""
    if there.credits_uusd and abs(there.cost_uusd - there.credits_uusd - here.cost_uusd) < abs(part) * here.cost_uusd:
        return f"credits: {format_usd(-there.credits_uusd)} were taken off (sustained use, commitments, promotions)"
    if there.is_in_parts:
        return f"price or time: {by}{ran}; the bill has it in parts (cores, memory, accelerators) and tells no time"
    return f"price or time: {by}{ran}; the bill does not say how long it ran"


def _why_missing(here: _Side, until_day: str) -> str:
    if here.is_spot and (here.hours or 0.0) < FREE_HOURS:
        return (
            "not billed: AWS takes nothing for a spot machine that it ends in the first hour, GCP in the first minute"
        )
    if here.last_day >= (date.fromisoformat(until_day) - timedelta(days=LATE_DAYS)).isoformat():
        return "not billed yet: clouds add to a bill for about two days"
    return "not in the bill: another account or region may be billed for it"


def _others(charges: Iterable[Charge]) -> tuple[Other, ...]:
    sums: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for charge in charges:
        what = f"{charge.what} ({NO_NAME})" if charge.is_machine else charge.what
        sums[what][0] += charge.cost_uusd
        sums[what][1] += 1
    found = (Other(what, cost, count) for what, (cost, count) in sums.items())
    return tuple(sorted(found, key=lambda other: (-abs(other.cost_uusd), other.what)))


def render(found: Reconciliation, most: int = 20) -> str:
    """For people."""
    where = ", ".join(found.clouds) or "all clouds"
    lines = [
        f"Ledger and bill, {found.from_day} to {found.until_day}, {where}",
        f"  ledger {format_usd(found.ledger_uusd)}, bill {format_usd(found.billed_uusd)}",
        f"  {_count(found.agreeing, 'machine', 'agrees', 'agree')} ({format_usd(found.agreeing_billed_uusd)})",
    ]
    if found.differences:
        lines.append(f"  {_count(len(found.differences), 'machine', 'differs', 'differ')}:")
        for each in found.differences[:most]:
            amounts = f"ledger {format_usd(each.ledger_uusd)}, bill {format_usd(each.billed_uusd)}"
            lines += [f"    {each.resource}: {amounts}", f"      {each.why}"]
        if len(found.differences) > most:
            lines.append(f"    and {len(found.differences) - most} more: --json has them all")
    if found.others:
        lines.append("  not for running machines, so not in the ledger:")
        lines += [
            f"    {each.what}: {format_usd(each.cost_uusd)} ({_count(each.charges, 'charge')})"
            for each in found.others[:most]
        ]
    return "\n".join(lines) + "\n"


def _count(number: int, noun: str, one: str = "", many: str = "") -> str:
    return f"{number} {noun} {one}".rstrip() if number == 1 else f"{number} {noun}s {many}".rstrip()
