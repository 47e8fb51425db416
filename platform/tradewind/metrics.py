"""The fleet as Prometheus metrics, read off log and ledger when Prometheus asks. `GET /metrics`, with the API's token.

Names follow Prometheus' conventions: base units (dollars, seconds, ratios), counters end in `_total`. What a label
costs is a gauge, since labels are corrected when a late report explains a past moment; the total of all only grows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from tradewind.api import ControllerPort, FleetStatus
from tradewind.cost.figures import OVERHEAD_NAME, Summary, summary
from tradewind.cost.labels import Label
from tradewind.cost.receipt import Receipt, receipt
from tradewind.states import JobState, NodeState, is_over
from tradewind.units import UUSD_PER_USD

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def metrics_text(port: ControllerPort) -> bytes:
    """Everything as the text that Prometheus reads."""
    from prometheus_client import generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fleet(port))
    return generate_latest(registry)


class _Fleet(Collector):
    """Asked anew at each scrape: nothing is kept here."""

    def __init__(self, port: ControllerPort) -> None:
        self._port = port

    def collect(self) -> Iterator[Metric]:
        status = self._port.status()
        with self._port.ledger() as (ledger, now_s):
            by_label, by_tenant = summary(ledger, "label", now_s), summary(ledger, "tenant", now_s)
            by_market = summary(ledger, "market", now_s)
            open_jobs = [job.job_id for job in status.jobs if not is_over(job.state) and job.job_id in ledger.jobs]
            receipts = [receipt(ledger, job_id, now_s) for job_id in open_jobs]
        yield from _money(status, by_label, by_tenant, by_market)
        yield from _use(by_label)
        yield from _jobs(status, receipts)
        yield from _contracts(status)
        yield from _nodes(status)


def _money(status: FleetStatus, by_label: Summary, by_tenant: Summary, by_market: Summary) -> Iterator[Metric]:
    total = CounterMetricFamily("tradewind_cost_dollars", "Paid so far (a pretence on the local cloud).")
    total.add_metric([], by_label.total.cost_uusd / UUSD_PER_USD)
    yield total
    yield _gauge("tradewind_price_dollars_per_hour", "Of all nodes that are billed now.", status.price_uusd_per_h)
    yield _by("tradewind_label_cost_dollars", "Paid so far, by what it bought.", "label", by_label)
    yield _by("tradewind_tenant_cost_dollars", "Paid so far, by tenant; overhead is nobody's.", "tenant", by_tenant)
    yield _by("tradewind_market_cost_dollars", "Paid so far, by market.", "market", by_market)
    if by_label.total.saved_uusd is not None:
        text = "What the same node time would have cost more at on-demand list prices."
        yield _gauge("tradewind_saved_dollars", text, by_label.total.saved_uusd)
    simulated = GaugeMetricFamily("tradewind_simulated", "1 where nothing is billed: the local cloud, or emulators.")
    simulated.add_metric([], float(by_label.simulated))
    yield simulated


def _by(name: str, text: str, label: str, found: Summary) -> Metric:
    metric = GaugeMetricFamily(name, text, labels=[label])
    for line in found.lines:
        shown = "overhead" if line.name == OVERHEAD_NAME else line.name
        metric.add_metric([shown], line.cost_uusd / UUSD_PER_USD)
    return metric


def _gauge(name: str, text: str, amount_uusd: int) -> Metric:
    metric = GaugeMetricFamily(name, text)
    metric.add_metric([], amount_uusd / UUSD_PER_USD)
    return metric


def _use(by_label: Summary) -> Iterator[Metric]:
    hours = CounterMetricFamily("tradewind_accelerator_seconds", "Of accelerators that were paid for.")
    hours.add_metric([], by_label.total.accelerator_hours * 3600)
    yield hours
    use = by_label.total.utilisation
    ratio = GaugeMetricFamily(
        "tradewind_accelerator_use_ratio", "Part of the paid accelerator time, since the beginning.", labels=["how"]
    )
    for how in ("allocated", "busy", "useful") if use else ():
        ratio.add_metric([how], getattr(use, how))
    yield ratio
    useful = by_label.total.labels_uusd.get(Label.USEFUL, 0)
    spent = GaugeMetricFamily("tradewind_useful_cost_ratio", "Part of the cost that bought new steps.")
    if by_label.total.cost_uusd:
        spent.add_metric([], useful / by_label.total.cost_uusd)
    yield spent


def _jobs(status: FleetStatus, receipts: list[Receipt]) -> Iterator[Metric]:
    """States of all that the status shows; money of those that are not over, so that old jobs do not pile up."""
    states = GaugeMetricFamily("tradewind_jobs", "Open jobs and the last that ended, by state.", labels=["state"])
    counts = Counter(job.state for job in status.jobs)
    for state in JobState:
        states.add_metric([state], counts[state])
    yield states
    names = ["job_id", "tenant"]  # "job" is Prometheus' own word
    cost = GaugeMetricFamily("tradewind_job_cost_dollars", "Paid so far by an open job.", labels=names)
    budget = GaugeMetricFamily("tradewind_job_budget_dollars", "What it may cost, where that was said.", labels=names)
    ahead = GaugeMetricFamily(
        "tradewind_job_forecast_dollars", "What it will cost in all.", labels=[*names, "quantile"]
    )
    steps = GaugeMetricFamily("tradewind_job_steps", "New steps taken by an open job.", labels=names)
    for each in receipts:
        mine = [each.job_id, each.tenant]
        cost.add_metric(mine, each.total_uusd / UUSD_PER_USD)
        steps.add_metric(mine, each.steps)
        if each.budget_uusd is not None:
            budget.add_metric(mine, each.budget_uusd / UUSD_PER_USD)
        if each.forecast is not None:
            found = each.forecast
            for quantile, uusd in (("0.1", found.low_uusd), ("0.5", found.total_uusd), ("0.9", found.high_uusd)):
                ahead.add_metric([*mine, quantile], uusd / UUSD_PER_USD)
    yield from (cost, budget, ahead, steps)


def _contracts(status: FleetStatus) -> Iterator[Metric]:
    names = ["job", "tenant"]
    text = "That an open job keeps its contract, from 0 to 1."
    chance = GaugeMetricFamily("tradewind_job_contract_chance_ratio", text, labels=names)
    left = GaugeMetricFamily("tradewind_job_deadline_timestamp_seconds", "When it must be done.", labels=names)
    for job in status.jobs:
        if job.contract is not None and not is_over(job.state):
            if job.contract.chance is not None:
                chance.add_metric([job.job_id, job.tenant], job.contract.chance)
            if job.contract.deadline_at_s is not None:
                left.add_metric([job.job_id, job.tenant], job.contract.deadline_at_s)
    yield from (chance, left)


def _nodes(status: FleetStatus) -> Iterator[Metric]:
    names = ["state", "cloud", "capacity"]
    found = GaugeMetricFamily("tradewind_nodes", "Nodes that the clouds may bill.", labels=names)
    for (state, cloud, capacity), count in sorted(
        Counter((node.state, node.cloud, node.capacity) for node in status.nodes).items()
    ):
        found.add_metric([state, cloud, capacity], count)
    yield found
    draining = sum(node.state is NodeState.DRAINING for node in status.nodes)
    leaving = GaugeMetricFamily("tradewind_nodes_draining", "Nodes that will take no new work.")
    leaving.add_metric([], draining)
    yield leaving
    waiting = GaugeMetricFamily("tradewind_demand_held_back", "Things that are asked for and not bought.")
    waiting.add_metric([], sum(bool(line.hold) for line in status.demand))
    yield waiting
    up = GaugeMetricFamily("tradewind_uptime_seconds", "Of the controller.")
    up.add_metric([], status.uptime_s)
    yield up
