"""Budgets of jobs, tenants and the fleet: what is left, what may still be bought, who must stop. Pure.

A budget is hard. Three rules hold it:
- A job stops while there is still enough to pay for its stopping: `reserve_s` of what it costs as it stands.
- A node is bought only if, with it, everything that the budget pays for could go on for `horizon_s`. Nodes that were
  bought and do not run yet count as if they ran. Buying happens in one place, one node after another, so that no number
  of submissions at once can pass by (`Purses.admit` counts each down).
- What cannot be attributed to a job counts against every budget that might have to pay for it.

So a budget is passed only by what a cloud bills after it was asked to end a node, beyond the reserve.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil

from tradewind.cost.figures import OVERHEAD_NAME, summary
from tradewind.cost.history import NodeHistory
from tradewind.cost.ledger import Ledger
from tradewind.cost.outlook import Forecast, forecast, job_rate
from tradewind.model import Offer
from tradewind.units import UUSD_PER_USD, format_duration, format_usd, to_ms

RESERVE_S = 120.0  # to save, to stop, and to have nodes ended
HORIZON_S = 600.0  # for which a purchase must be worth while
CENT_UUSD = UUSD_PER_USD // 100
MARKS = (0.5, 0.8, 0.95)  # of a budget, at which people are told
EACH = "*"  # in the place of a tenant: each of them by itself


Waiting = Sequence[tuple[int, frozenset[str]]]  # nodes that nobody holds yet: price, and for which jobs


class Scope(StrEnum):
    JOB = "job"
    TENANT = "tenant"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Budgets:
    """What the fleet file says. Jobs bring their own, in their contracts."""

    fleet_uusd: int | None = None
    tenants_uusd: Mapping[str, int] | None = None  # by tenant, or EACH
    monthly: bool = False  # they begin anew with each month (UTC); a job's never does
    reserve_s: float = RESERVE_S
    horizon_s: float = HORIZON_S

    @property
    def are_there(self) -> bool:
        return self.fleet_uusd is not None or bool(self.tenants_uusd)

    def of_tenant(self, tenant: str) -> int | None:
        known = self.tenants_uusd or {}
        return known.get(tenant, known.get(EACH))


@dataclass(frozen=True, slots=True)
class Purse:
    """One budget at one moment."""

    scope: Scope
    name: str  # job id, tenant; empty: the fleet
    limit_uusd: int
    spent_uusd: int
    rate_uusd_per_h: int = 0  # of what it pays for now, launches on their way included
    forecast: Forecast | None = None  # of a job
    reserve_s: float = RESERVE_S
    horizon_s: float = HORIZON_S

    @property
    def left_uusd(self) -> int:
        return self.limit_uusd - self.spent_uusd

    @property
    def spendable_uusd(self) -> int:
        """Without what stopping will cost: where nothing of it is left, the job is stopped."""
        return self.left_uusd - round(self.rate_uusd_per_h * self.reserve_s / 3600)

    @property
    def title(self) -> str:
        owner = "the fleet" if self.scope is Scope.FLEET else f"{self.scope} {self.name}"
        return f"the budget of {owner}, {format_usd(self.limit_uusd)}"

    def lasts(self, duration_s: float, more_uusd_per_h: int = 0) -> bool:
        """Whether it pays for what runs, and for so much more, for so long."""
        return (self.rate_uusd_per_h + more_uusd_per_h) * duration_s / 3600 <= self.left_uusd

    def needs_uusd(self, more_uusd_per_h: int = 0) -> int:
        """What must be left for a purchase of so much more."""
        return ceil((self.rate_uusd_per_h + more_uusd_per_h) * self.horizon_s / 3600)

    def is_short(self, more_uusd_per_h: int = 0) -> bool:
        return self.must_stop or not self.lasts(self.horizon_s, more_uusd_per_h)

    def why_short(self, more_uusd_per_h: int | None = None) -> str:
        """Why it pays for nothing more, or for nothing more of this price: the rule, what it takes, and what to do."""
        needed_uusd, left_uusd = self.needs_uusd(more_uusd_per_h or 0), max(self.left_uusd, 0)
        lasting = duration_words(self.horizon_s)
        if more_uusd_per_h is None:
            lacks = f"pays for nothing more: {lasting} of what it has to pay for cost {format_usd(needed_uusd)}"
        else:
            besides = "what it has to pay for, and of " if self.rate_uusd_per_h else ""
            one = f"{'one more' if besides else 'a'} machine at {format_usd(more_uusd_per_h)}/h"
            lacks = f"does not pay for {lasting} of {besides}{one}: {format_usd(needed_uusd)} are needed"
        return f"{self.title}, {lacks}, {format_usd(left_uusd)} are left; {self.remedy(needed_uusd)}"

    def remedy(self, needed_uusd: int) -> str:
        if self.scope is not Scope.JOB:
            return "raise it in the fleet file, under `budgets`"
        return f"raise it with `tradewind resume {self.name} --budget +{more_usd(needed_uusd - self.left_uusd)}`"

    @property
    def must_stop(self) -> bool:
        return self.left_uusd <= 0 or not self.lasts(self.reserve_s)

    @property
    def marks(self) -> tuple[float, ...]:
        return tuple(mark for mark in MARKS if self.spent_uusd >= mark * self.limit_uusd)

    @property
    def will_pass(self) -> bool:
        return self.forecast is not None and self.forecast.total_uusd > self.limit_uusd


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that people are told once."""

    subject: str  # job id, tenant, or "fleet"
    key: str  # tells a repetition
    text: str


def notices_of(purse: Purse) -> Sequence[Notice]:
    subject = purse.name or str(Scope.FLEET)
    spent = f"{format_usd(purse.spent_uusd)} of {purse.title}"
    found = [Notice(subject, f"{mark:.0%}", f"{mark:.0%} is used: {spent}") for mark in purse.marks[-1:]]
    if purse.forecast is not None and purse.will_pass:
        total = format_usd(purse.forecast.total_uusd)
        found.append(Notice(subject, "forecast", f"will be passed: {total} are forecast, {spent} are used"))
    return found


class Purses:
    """All budgets of one tick. `admit` counts what it lets through."""

    def __init__(self, purses: Iterable[Purse], tenant_of: Mapping[str, str]) -> None:
        self._purses = {(purse.scope, purse.name): purse for purse in purses}
        self._tenant_of = tenant_of

    @property
    def all(self) -> tuple[Purse, ...]:
        return tuple(self._purses.values())

    def admit(self, offer: Offer, job_ids: Collection[str]) -> str:
        """Why one of these may not be bought on behalf of these jobs; empty: it may, and is counted.

        Every job that is named pays with its own purse and its tenant's; where nobody is named, every open one might
        have to. The fleet always pays. A job that cannot is no reason if another one can: then that one pays.
        """
        price, (why, payers) = offer.price_uusd_per_h, self._weigh(offer, job_ids)
        if why:
            return why
        for key in {(Scope.FLEET, ""), *(key for job_id in payers for key in self._keys(job_id))}:
            if key in self._purses:
                purse = self._purses[key]
                self._purses[key] = replace(purse, rate_uusd_per_h=purse.rate_uusd_per_h + (price or 0))
        return ""

    def refuses(self, offer: Offer, job_ids: Collection[str]) -> str:
        """As `admit`, and nothing is counted."""
        return self._weigh(offer, job_ids)[0]

    def _weigh(self, offer: Offer, job_ids: Collection[str]) -> tuple[str, list[str]]:
        """Why not, or who pays."""
        price = offer.price_uusd_per_h
        if not self._purses:
            return "", []
        named = [job_id for job_id in job_ids if job_id in self._tenant_of]
        fleet = self._short(((Scope.FLEET, ""),), price)
        short = {job_id: self._short(self._keys(job_id), price) for job_id in named or self._tenant_of}
        payers = [job_id for job_id, why in short.items() if not why]
        if fleet or (short and (not payers or (not named and len(payers) < len(short)))):
            return fleet or next(why for why in short.values() if why), []
        return "", payers

    def too_poor(self, price_uusd_per_h: int | None, job_ids: Collection[str]) -> dict[str, str]:
        """Of these jobs (of all open ones, where nobody is named) those that cannot pay for one more of this price,
        each with what of its own is short: its budget, its tenant's or the fleet's. One that is too new to be known
        here is told when it is refused again."""
        asking = [job_id for job_id in job_ids or self._tenant_of if job_id in self._tenant_of]
        whole = self._short(((Scope.FLEET, ""),), price_uusd_per_h)
        short = {job_id: whole or self._short(self._keys(job_id), price_uusd_per_h) for job_id in asking}
        return {job_id: why for job_id, why in short.items() if why}

    def closed(self) -> dict[str, str]:
        """Jobs for which nothing can be bought any more, with the reason: their budget does not even last as it is."""
        found = {}
        for job_id in self._tenant_of:
            keys = ((Scope.FLEET, ""), *self._keys(job_id))
            purses = (self._purses[key] for key in keys if key in self._purses)
            tight = next((purse for purse in purses if purse.is_short()), None)
            if tight is not None:
                found[job_id] = tight.why_short()
        return found

    def must_stop(self) -> dict[str, str]:
        """Jobs that must save and stop now, with the reason."""
        found = {}
        for job_id in self._tenant_of:
            keys = (*self._keys(job_id), (Scope.FLEET, ""))
            spent = next((purse for key in keys if (purse := self._purses.get(key)) and purse.must_stop), None)
            if spent is not None:
                found[job_id] = f"{spent.title}, is used: raise it with `tradewind resume {job_id} --budget +20`"
        return found

    def _keys(self, job_id: str) -> tuple[tuple[Scope, str], ...]:
        return (Scope.JOB, job_id), (Scope.TENANT, self._tenant_of[job_id])

    def _short(self, keys: Iterable[tuple[Scope, str]], price_uusd_per_h: int | None) -> str:
        """The first of these that could not pay. Without a known price, nothing is bought on a budget."""
        for key in keys:
            purse = self._purses.get(key)
            if purse is not None and price_uusd_per_h is None:
                return f"{purse.title}: no price is known"
            if purse is not None and purse.is_short(price_uusd_per_h or 0):
                return purse.why_short(price_uusd_per_h)
        return ""


def purses(
    ledger: Ledger,
    budgets: Budgets,
    open_jobs: Mapping[str, str],
    now_s: float,
    admitted: Sequence[tuple[int, Collection[str]]] = (),
) -> Purses:
    """`open_jobs` are tenants by job id; `admitted` are prices and jobs of launches that may not be on record yet."""
    if not budgets.are_there and all(ledger.jobs[job].budget_uusd is None for job in open_jobs if job in ledger.jobs):
        return Purses((), open_jobs)
    alive = [node for node in ledger.nodes.values() if node.is_alive(to_ms(now_s))]
    asked = [(_price_of(ledger, node, now_s), frozenset(node.bought_for)) for node in alive if not node.changes]
    waiting = [*asked, *((price, frozenset(jobs)) for price, jobs in admitted)]
    rate = sum(_price_of(ledger, node, now_s) for node in alive) + sum(price for price, _ in admitted)
    found = (
        *_of_jobs(ledger, open_jobs, waiting, now_s),
        *_of_tenants(ledger, budgets, open_jobs, waiting, now_s),
        *_of_fleet(ledger, budgets, rate, now_s),
    )
    reserve_s, horizon_s = budgets.reserve_s, budgets.horizon_s
    return Purses([replace(purse, reserve_s=reserve_s, horizon_s=horizon_s) for purse in found], open_jobs)


def more_usd(lacking_uusd: int) -> str:
    """As `--budget` takes it, in whole cents."""
    return f"{max(ceil(lacking_uusd / CENT_UUSD), 1) / 100:.2f}"


def duration_words(duration_s: float) -> str:
    minutes, rest_s = divmod(round(duration_s), 60)
    if rest_s or not minutes:
        return format_duration(duration_s)
    return f"{minutes} minute{'' if minutes == 1 else 's'}"


def _price_of(ledger: Ledger, node: NodeHistory, now_s: float) -> int:
    prices = ledger.prices.get(node.offer.market.key)
    return (prices.at(node, to_ms(now_s)) if prices else node.offer.price_uusd_per_h) or 0


def _of_jobs(ledger: Ledger, open_jobs: Mapping[str, str], waiting: Waiting, now_s: float) -> Iterable[Purse]:
    for job_id in open_jobs:
        limit = ledger.jobs[job_id].budget_uusd if job_id in ledger.jobs else None
        if limit is not None:
            spent = ledger.job_cost(job_id, now_s)
            rate = job_rate(ledger, job_id, now_s) + _rate_of(waiting, {job_id})
            yield Purse(Scope.JOB, job_id, limit, spent, rate, forecast(ledger, job_id, spent, now_s))


def _of_tenants(
    ledger: Ledger, budgets: Budgets, open_jobs: Mapping[str, str], waiting: Waiting, now_s: float
) -> Iterable[Purse]:
    limits = {tenant: budgets.of_tenant(tenant) for tenant in set(open_jobs.values())}
    if all(limit is None for limit in limits.values()):
        return
    lines = summary(ledger, "tenant", now_s, from_s=_from_s(budgets, now_s)).lines
    spent = {line.name: line.cost_uusd for line in lines if line.name != OVERHEAD_NAME}
    for tenant, limit in sorted(limits.items()):
        jobs = {job_id for job_id, whose in open_jobs.items() if whose == tenant}
        running = sum(job_rate(ledger, job_id, now_s) for job_id in jobs if job_id in ledger.jobs)
        if limit is not None:
            yield Purse(Scope.TENANT, tenant, limit, spent.get(tenant, 0), running + _rate_of(waiting, jobs))


def _of_fleet(ledger: Ledger, budgets: Budgets, rate_uusd_per_h: int, now_s: float) -> Iterable[Purse]:
    if budgets.fleet_uusd is not None:
        spent = summary(ledger, "label", now_s, from_s=_from_s(budgets, now_s)).total.cost_uusd
        yield Purse(Scope.FLEET, "", budgets.fleet_uusd, spent, rate_uusd_per_h)


def _rate_of(waiting: Waiting, jobs: Collection[str]) -> int:
    """Of what was bought for any of these, or for nobody in particular."""
    return sum(price for price, bought_for in waiting if not bought_for or not bought_for.isdisjoint(jobs))


def _from_s(budgets: Budgets, now_s: float) -> float | None:
    if not budgets.monthly:
        return None
    now = datetime.fromtimestamp(now_s, UTC)
    return datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()
