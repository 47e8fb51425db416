"""The ledger as a FOCUS 1.0 file (FinOps Open Cost and Usage Specification), and summaries as plain CSV. Pure text.

One row of FOCUS is what one label of one job cost on one node on one day. The rows' BilledCost add up to the bill, to
the micro-dollar. What FOCUS has no column for (job, label, tenant, team) stands in Tags and in columns that begin with
x_.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta

from tradewind.cost.figures import Line, Summary
from tradewind.cost.history import NodeHistory
from tradewind.cost.ledger import Ledger
from tradewind.cost.settle import DAY_MS, FLEET, LABELS, Row, on_demand_price
from tradewind.model import Capacity
from tradewind.units import MS_PER_H, uusd_to_usd

COLUMNS = (
    "AvailabilityZone",
    "BilledCost",
    "BillingAccountId",
    "BillingAccountName",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "CommitmentDiscountCategory",
    "CommitmentDiscountId",
    "CommitmentDiscountName",
    "CommitmentDiscountStatus",
    "CommitmentDiscountType",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ProviderName",
    "PublisherName",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
    "x_Job",
    "x_Label",
    "x_Tenant",
    "x_Team",
    "x_AcceleratorHours",
    "x_Simulated",
)
PROVIDERS = {  # name, and the service that sells machines
    "aws": ("AWS", "Amazon Elastic Compute Cloud"),
    "gcp": ("Google Cloud", "Compute Engine"),
    "azure": ("Microsoft", "Virtual Machines"),
}
_PRICING = {Capacity.SPOT: "Dynamic", Capacity.ON_DEMAND: "Standard"}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def focus_csv(ledger: Ledger, fleet: str, now_s: float) -> Iterator[str]:
    """Line by line, since there may be a million."""
    yield _line(COLUMNS)
    for node, day, rows in ledger.statements(now_s):
        for row in rows:
            found = _focus_row(ledger, fleet, node, day, row)
            yield _line([found.get(column, "") for column in COLUMNS])


def _focus_row(ledger: Ledger, fleet: str, node: NodeHistory, day: int, row: Row) -> dict[str, str]:
    offer, market, job = node.offer, node.offer.market, ledger.jobs.get(row.job_id)
    cost, list_price = _usd(row.cost_uusd), on_demand_price(offer)
    hours = f"{row.duration_ms / MS_PER_H:.6f}"
    tags = {"tradewind:fleet": fleet, "tradewind:launch-id": node.launch_id, "tradewind:label": str(LABELS[row.label])}
    if job is not None and row.job_id != FLEET:
        tags |= {"tradewind:job": job.job_id, "tradewind:tenant": job.tenant}
        tags |= {"tradewind:team": job.team} if job.team else {}
    provider, service = PROVIDERS.get(market.cloud, (market.cloud, "Compute"))
    return {
        **_period(day),
        "AvailabilityZone": market.zone,
        "BilledCost": cost,
        "BillingAccountId": f"tradewind:{fleet}",
        "BillingAccountName": fleet,
        "BillingCurrency": "USD",
        "ChargeCategory": "Usage",
        "ChargeDescription": f"{market.instance_type} ({market.capacity}): {LABELS[row.label]}",
        "ChargeFrequency": "Usage-Based",
        "ConsumedQuantity": hours,
        "ConsumedUnit": "Hours",
        "ContractedCost": cost,
        "EffectiveCost": cost,
        "InvoiceIssuerName": provider,
        "ListCost": cost if row.unlisted_ms else _usd(row.on_demand_uusd),
        "ListUnitPrice": "" if list_price is None else _usd(list_price),
        "PricingCategory": _PRICING[market.capacity],
        "PricingQuantity": hours,
        "PricingUnit": "Hours",
        "ProviderName": provider,
        "PublisherName": provider,
        "RegionId": market.region,
        "RegionName": market.region,
        "ResourceId": node.instance_id or node.launch_id,
        "ResourceName": node.launch_id,
        "ResourceType": "Virtual Machine",
        "ServiceCategory": "Compute",
        "ServiceName": service,
        "SkuId": f"{market.instance_type}/{market.capacity}",
        "SkuPriceId": market.key,
        "SubAccountId": job.tenant if job is not None else "",
        "SubAccountName": job.tenant if job is not None else "",
        "Tags": json.dumps(tags, sort_keys=True),
        "x_Job": row.job_id,
        "x_Label": str(LABELS[row.label]),
        "x_Tenant": job.tenant if job is not None else "",
        "x_Team": job.team if job is not None else "",
        "x_AcceleratorHours": f"{row.accelerator_ppm_ms * offer.accelerator_count * offer.hosts / MS_PER_H / 1e6:.6f}",
        "x_Simulated": str(ledger.simulated).lower(),
    }


def _period(day: int) -> dict[str, str]:
    begin = _EPOCH + timedelta(milliseconds=day * DAY_MS)
    month = begin.replace(day=1)
    return {
        "ChargePeriodStart": _when(begin),
        "ChargePeriodEnd": _when(begin + timedelta(days=1)),
        "BillingPeriodStart": _when(month),
        "BillingPeriodEnd": _when((month + timedelta(days=32)).replace(day=1)),
    }


def _when(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def summary_csv(summary: Summary) -> str:
    """One row a group, in dollars; every label has a column. The last row is the total."""
    names = [str(label) for label in LABELS]
    head = [summary.by, "cost_usd", "on_demand_usd", "saved_usd", "accelerator_hours", "useful_accelerator_hours"]
    head += ["usd_per_accelerator_hour", "usd_per_useful_accelerator_hour", "allocated", "busy", "useful"]
    rows = [_line([*head, *(f"{name}_usd" for name in names), "unpriced_s", "simulated"])]
    rows += [_line(_cells(line, summary.simulated)) for line in (*summary.lines, summary.total)]
    return "".join(rows)


def _cells(line: Line, simulated: bool) -> Iterable[str]:
    use = line.utilisation
    yield from (line.name, _usd(line.cost_uusd), _maybe(line.on_demand_uusd), _maybe(line.saved_uusd))
    yield from (f"{line.accelerator_hours:.6f}", f"{line.useful_accelerator_hours:.6f}")
    yield from (_maybe(line.paid_uusd_per_accelerator_h), _maybe(line.effective_uusd_per_accelerator_h))
    yield from ("", "", "") if use is None else (f"{each:.4f}" for each in (use.allocated, use.busy, use.useful))
    yield from (_usd(line.labels_uusd.get(label, 0)) for label in LABELS)
    yield from (f"{line.unpriced_s:.3f}", str(simulated).lower())


def _usd(amount_uusd: int) -> str:
    return f"{uusd_to_usd(amount_uusd):.6f}"


def _maybe(amount_uusd: int | None) -> str:
    return "" if amount_uusd is None else _usd(amount_uusd)


def _line(cells: Iterable[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(list(cells))
    return text.getvalue()
