"""Receipts and bills: the ledger's entries added up for people. Pure; shown by CLI, SDK, HTTP API and dashboard.

A receipt tells what one job paid for what it held. Booting, idle and failed nodes are nobody's in particular: no
share of them is put on any job's receipt. The bill of the fleet shows them openly: total = jobs + overhead.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from tradewind.cost import catalog
from tradewind.cost.account import Entry, NodeAccount
from tradewind.cost.compare import SingleCloud, cheapest_single_cloud
from tradewind.cost.energy import Footprint
from tradewind.cost.energy_receipt import Intensity, footprint_of
from tradewind.cost.extras import Estimates, estimate
from tradewind.cost.figures import Utilisation
from tradewind.cost.history import WHOLE_PPM
from tradewind.cost.labels import JOB_LABELS, OVERHEAD, Label
from tradewind.cost.ledger import JobHistory, Ledger
from tradewind.cost.outlook import Forecast, forecast, job_rate
from tradewind.cost.settle import FLEET
from tradewind.model import Capacity, EndReason
from tradewind.states import JobState
from tradewind.units import MS_PER_H, to_ms

OLD_LIST_S = 180 * 86400.0  # a price list that is older is told of
Part = tuple[NodeAccount, tuple[Entry, ...]]  # a node, and those of its entries that are looked at


@dataclass(frozen=True, slots=True)
class MarketLine:
    market: str  # Market.key
    capacity: Capacity
    accelerator: str
    nodes: int
    held_s: float  # node time, whatever share of the node was held
    accelerator_hours: float
    cost_uusd: int


@dataclass(frozen=True, slots=True)
class NodeLine:
    launch_id: str
    market: str
    accelerator: str
    accelerators: float  # of all hosts together
    launched_s: float
    joined_s: float | None
    ended_s: float | None  # None: still billed
    end: EndReason | None
    price_uusd_per_h: int | None  # the present or last one; None: unknown
    cost_uusd: int
    labels_uusd: dict[Label, int]
    unpriced_s: float  # time without a known price: not in the cost


@dataclass(frozen=True, slots=True)
class JobLine:
    job_id: str
    name: str
    tenant: str
    state: JobState
    cost_uusd: int
    useful_uusd: int
    accelerator_hours: float


@dataclass(frozen=True, slots=True)
class Figures:
    """What people ask for. None: cannot be said (no accelerator, nothing useful yet, or a price is unknown)."""

    total_uusd: int
    accelerator_hours: float
    useful_accelerator_hours: float
    paid_uusd_per_accelerator_h: int | None
    effective_uusd_per_accelerator_h: int | None  # all that was paid, per useful hour
    on_demand_uusd: int | None  # the same node time at the on-demand list price
    saved_uusd: int | None
    saved_fraction: float | None
    unpriced_nodes: tuple[str, ...]  # some of their time has no known price, and is not in the total


@dataclass(frozen=True, slots=True)
class Receipt(Figures):
    job_id: str
    name: str
    tenant: str
    state: JobState
    simulated: bool
    from_s: float
    until_s: float
    labels_uusd: dict[Label, int]  # they add up to the total
    markets: tuple[MarketLine, ...]
    steps: int  # each counted once
    recomputed_steps: int
    samples: int  # in `steps`
    attempts: int
    preemptions: int  # nodes that were taken while the job held them
    notices: int  # of these and others, announced
    rested_s: float = 0.0  # without nodes, by plan: it waited for better hours
    team: str = ""
    budget_uusd: int | None = None
    rate_uusd_per_h: int = 0  # as it stands now
    uusd_per_step: int | None = None  # all that was paid, by steps that count; None as above
    uusd_per_million_samples: int | None = None
    utilisation: Utilisation | None = None  # of the accelerators that it held
    single_cloud: SingleCloud | None = None
    old_lists_days: dict[str, int] = field(default_factory=dict)  # cloud -> the age of the price list, where it is old
    forecast: Forecast | None = None
    estimates: Estimates = field(default_factory=Estimates)
    footprint: Footprint | None = None  # electricity and carbon of what it held
    sci_g_per_step: float | None = None  # Software Carbon Intensity: gCO2e by steps that count
    sci_g_per_million_samples: float | None = None

    def __str__(self) -> str:
        """As `tradewind cost JOB` prints it."""
        from tradewind.cost.render import render_receipt

        return render_receipt(self)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """In notebooks."""
        printer.text(str(self))


@dataclass(frozen=True, slots=True)
class Bill(Figures):
    simulated: bool
    from_s: float
    until_s: float
    labels_uusd: dict[Label, int]  # they add up to the total
    jobs_uusd: int
    overhead_uusd: int  # with jobs_uusd: the total
    jobs: tuple[JobLine, ...]
    markets: tuple[MarketLine, ...]
    nodes: tuple[NodeLine, ...]
    rate_uusd_per_h: int  # of the nodes that are billed now
    utilisation: Utilisation | None = None
    single_cloud: SingleCloud | None = None
    old_lists_days: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        """As `tradewind cost` prints it."""
        from tradewind.cost.render import render_bill

        return render_bill(self)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        printer.text(str(self))


def receipt(ledger: Ledger, job_id: str, now_s: float, intensity: Intensity | None = None) -> Receipt:
    """What one job paid by `now_s`; carbon by the hours in which it ran where `intensity` knows. Raises JobNotFound."""
    job, now_ms = ledger.job(job_id), to_ms(now_s)
    parts = [_part(account, job_id) for account in ledger.job_accounts(job_id, now_s)]
    held = [ledger.nodes[launch_id] for launch_id in job.nodes]
    progress = ledger.timelines[job_id].progress
    figures, markets = _figures(parts), _markets(parts)
    until_ms = min(now_ms, job.ended_ms if job.ended_ms is not None else now_ms)
    paid_uusd = None if figures.unpriced_nodes else figures.total_uusd
    footprint = footprint_of(parts, intensity)
    return Receipt(
        **asdict(figures),
        job_id=job_id,
        name=job.name,
        tenant=job.tenant,
        state=job.state,
        simulated=ledger.simulated,
        from_s=_from_s(job, parts, now_ms),
        until_s=until_ms / 1000,
        labels_uusd=_labels(JOB_LABELS, parts),
        markets=markets,
        steps=progress.steps,
        recomputed_steps=progress.recomputed_steps,
        samples=progress.samples,
        attempts=progress.attempts,
        preemptions=sum(node.lost_by(job_id, now_ms) for node in held),
        notices=sum(node.noticed(job_id, now_ms) for node in held),
        rested_s=job.rests.by_ms(now_ms, job.ended_ms) / 1000,
        team=job.team,
        budget_uusd=job.budget_uusd,
        rate_uusd_per_h=job_rate(ledger, job_id, now_s),
        uusd_per_step=_each(paid_uusd, progress.steps),
        uusd_per_million_samples=_each(paid_uusd, progress.samples, 1_000_000),
        utilisation=_utilisation(parts),
        single_cloud=_single_cloud(markets),
        old_lists_days=_old_lists_days(markets, now_s),
        forecast=forecast(ledger, job_id, figures.total_uusd, now_s),
        estimates=estimate(job.saves, until_ms),
        footprint=footprint,
        sci_g_per_step=footprint.sci_g_per(progress.steps) if footprint else None,
        sci_g_per_million_samples=footprint.sci_g_per(progress.samples / 1e6) if footprint else None,
    )


def bill(ledger: Ledger, now_s: float) -> Bill:
    """What the fleet cost by `now_s`, and who paid it."""
    accounts = ledger.accounts(now_s)
    parts = [(account, account.entries) for account in accounts]
    labels = _labels(tuple(Label), parts)
    overhead_uusd = sum(labels[label] for label in OVERHEAD)
    figures, markets = _figures(parts), _markets(parts)
    return Bill(
        **asdict(figures),
        simulated=ledger.simulated,
        from_s=min((account.launched_ms / 1000 for account in accounts), default=now_s),
        until_s=now_s,
        labels_uusd=labels,
        jobs_uusd=figures.total_uusd - overhead_uusd,
        overhead_uusd=overhead_uusd,
        jobs=_jobs(ledger, accounts),
        markets=markets,
        nodes=tuple(_node_line(account) for account in accounts),
        rate_uusd_per_h=sum(account.price_uusd_per_h or 0 for account in accounts if account.ended_ms is None),
        utilisation=_utilisation(parts),
        single_cloud=_single_cloud(markets),
        old_lists_days=_old_lists_days(markets, now_s),
    )


def _part(account: NodeAccount, job_id: str) -> Part:
    return account, tuple(entry for entry in account.entries if entry.job_id == job_id)


def _from_s(job: JobHistory, parts: Sequence[Part], now_ms: int) -> float:
    held = (account.launched_ms for account, _ in parts)
    return (job.submitted_ms if job.submitted_ms is not None else min(held, default=now_ms)) / 1000


def _figures(parts: Sequence[Part]) -> Figures:
    total_uusd = sum(entry.cost_uusd for _, entries in parts for entry in entries)
    unpriced = tuple(account.launch_id for account, entries in parts if any(entry.unpriced_ms for entry in entries))
    hours = sum(_accelerator_hours(account, entries) for account, entries in parts)
    useful = sum(
        _accelerator_hours(account, (entry for entry in entries if entry.label is Label.USEFUL))
        for account, entries in parts
    )
    on_demand = _on_demand(parts)
    # With a price missing, the total is too low for any comparison.
    saved = None if on_demand is None or unpriced else on_demand - total_uusd
    return Figures(
        total_uusd=total_uusd,
        accelerator_hours=hours,
        useful_accelerator_hours=useful,
        paid_uusd_per_accelerator_h=None if unpriced else _per_hour(total_uusd, hours),
        effective_uusd_per_accelerator_h=None if unpriced else _per_hour(total_uusd, useful),
        on_demand_uusd=on_demand,
        saved_uusd=saved,
        saved_fraction=saved / on_demand if on_demand and saved is not None else None,
        unpriced_nodes=unpriced,
    )


def _on_demand(parts: Sequence[Part]) -> int | None:
    if any(account.on_demand_uusd is None for account, entries in parts if entries):
        return None
    return sum(entry.on_demand_uusd for _, entries in parts for entry in entries)


def _per_hour(cost_uusd: int, hours: float) -> int | None:
    return round(cost_uusd / hours) if hours > 0 else None


def _accelerator_hours(account: NodeAccount, entries: Iterable[Entry]) -> float:
    held_ppm_ms = sum(entry.accelerator_ppm_ms for entry in entries)
    return held_ppm_ms * account.accelerators / (WHOLE_PPM * MS_PER_H)


def _each(paid_uusd: int | None, count: int, unit: int = 1) -> int | None:
    return None if paid_uusd is None or count <= 0 else round(paid_uusd * unit / count)


def _utilisation(parts: Sequence[Part]) -> Utilisation | None:
    hours = dict.fromkeys(Label, 0.0)
    for account, entries in parts:
        for entry in entries:
            hours[entry.label] += _accelerator_hours(account, (entry,))
    paid = sum(hours.values())
    if paid <= 0:
        return None
    held = sum(hours[label] for label in JOB_LABELS)
    busy = hours[Label.USEFUL] + hours[Label.RECOMPUTED]
    return Utilisation(held / paid, busy / paid, hours[Label.USEFUL] / paid)


def _single_cloud(markets: Sequence[MarketLine]) -> SingleCloud | None:
    """None too where some of it had no accelerator: machines without one are not compared."""
    hours: dict[str, float] = {}
    for line in markets:
        hours[line.accelerator] = hours.get(line.accelerator, 0.0) + line.accelerator_hours
    return None if not hours or "" in hours else cheapest_single_cloud(hours)


def _old_lists_days(markets: Sequence[MarketLine], now_s: float) -> dict[str, int]:
    """Of the clouds that were used, and of the one that they are compared with."""
    other = _single_cloud(markets)
    clouds = {line.market.partition("/")[0] for line in markets} | ({other.cloud} if other else set())
    ages_s = catalog.load().stale(now_s, OLD_LIST_S)
    return {cloud: int(ages_s[cloud] // 86400) for cloud in sorted(clouds) if cloud in ages_s}


def _labels(labels: Sequence[Label], parts: Iterable[Part]) -> dict[Label, int]:
    found = dict.fromkeys(labels, 0)
    for _, entries in parts:
        for entry in entries:
            found[entry.label] += entry.cost_uusd
    return found


def _markets(parts: Sequence[Part]) -> tuple[MarketLine, ...]:
    """Dearest first: where the money went."""
    by_market: dict[str, list[Part]] = {}
    for account, entries in parts:
        if entries:
            by_market.setdefault(account.offer.market.key, []).append((account, entries))
    lines = (_market_line(key, found) for key, found in by_market.items())
    return tuple(sorted(lines, key=lambda line: (-line.cost_uusd, line.market)))


def _market_line(key: str, parts: Sequence[Part]) -> MarketLine:
    offer = parts[0][0].offer
    return MarketLine(
        market=key,
        capacity=offer.market.capacity,
        accelerator=offer.accelerator,
        nodes=len(parts),
        held_s=sum(_held_ms(account, entries) for account, entries in parts) / 1000,
        accelerator_hours=sum(_accelerator_hours(account, entries) for account, entries in parts),
        cost_uusd=sum(entry.cost_uusd for _, entries in parts for entry in entries),
    )


def _held_ms(account: NodeAccount, entries: Sequence[Entry]) -> int:
    """The time of one job is that of its labels; the time of all is the node's, however many shared it."""
    if len(entries) == len(account.entries):
        return account.duration_ms
    return sum(entry.duration_ms for entry in entries)


def _jobs(ledger: Ledger, accounts: Sequence[NodeAccount]) -> tuple[JobLine, ...]:
    """Every job that paid or could have, dearest first."""
    parts: dict[str, list[Part]] = {job_id: [] for job_id in ledger.jobs}
    for account in accounts:
        for job_id in {entry.job_id for entry in account.entries} - {FLEET}:
            parts[job_id].append(_part(account, job_id))
    lines = (_job_line(ledger.jobs[job_id], found) for job_id, found in parts.items())
    return tuple(sorted(lines, key=lambda line: (-line.cost_uusd, line.job_id)))


def _job_line(job: JobHistory, parts: Sequence[Part]) -> JobLine:
    labels = _labels(JOB_LABELS, parts)
    return JobLine(
        job_id=job.job_id,
        name=job.name,
        tenant=job.tenant,
        state=job.state,
        cost_uusd=sum(labels.values()),
        useful_uusd=labels[Label.USEFUL],
        accelerator_hours=sum(_accelerator_hours(account, entries) for account, entries in parts),
    )


def _node_line(account: NodeAccount) -> NodeLine:
    labels = _labels(tuple(Label), [(account, account.entries)])
    return NodeLine(
        launch_id=account.launch_id,
        market=account.offer.market.key,
        accelerator=account.offer.accelerator,
        accelerators=account.accelerators,
        launched_s=account.launched_ms / 1000,
        joined_s=_seconds(account.joined_ms),
        ended_s=_seconds(account.ended_ms),
        end=account.end,
        price_uusd_per_h=account.price_uusd_per_h,
        cost_uusd=account.cost_uusd,
        labels_uusd={label: cost for label, cost in labels.items() if cost},
        unpriced_s=account.unpriced_ms / 1000,
    )


def _seconds(at_ms: int | None) -> float | None:
    return None if at_ms is None else at_ms / 1000
