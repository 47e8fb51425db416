"""A cloud's own bill, as a file, turned into charges by resource and day. `read` opens the file; the rest is pure.

Known by their columns: FOCUS (any cloud, and our own export), AWS cost and usage reports (both spellings of columns),
Google's billing export from BigQuery, Azure's cost export (both generations). Amounts are dollars: a bill in another
currency is taken where it tells its dollars, too, and refused otherwise.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path

from tradewind.errors import ConfigError, Problem
from tradewind.units import usd_to_uusd

Cells = Mapping[str, str]
LAUNCH_TAGS = ("tradewind:launch-id", "tradewind-launch-id", "tradewind_launch_id", "tradewind.io/launch-id")


@dataclass(frozen=True, slots=True)
class Charge:
    cloud: str  # "aws", "gcp", "azure"; empty: the file does not say
    resource: str  # as the cloud names it, without the path before it; empty: it is about no single resource
    day: str  # ISO date
    cost_uusd: int
    what: str  # as people read it
    is_machine: bool  # the running of a virtual machine; not its disk, its traffic, a tax or a credit
    hours: float | None = None
    launch_id: str = ""  # by its tags
    is_spot: bool = False
    credits_uusd: int = 0  # negative: what was taken off, and is in the cost
    is_covered: bool = False  # paid for by a reservation or a savings plan, at least in part


def read(path: Path) -> list[Charge]:
    try:
        packed = path.read_bytes()
        if packed[:4] in (b"PAR1", b"PK\x03\x04"):
            raise ValueError("it is a Parquet or a zip file")
        text = (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed).decode("utf-8-sig")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        problem = Problem(str(path), "", f"cannot be read: {error}")
        raise ConfigError([problem], "give the bill as CSV (.csv or .csv.gz)") from error
    return parse(text, path.name)


def parse(text: str, name: str = "bill") -> list[Charge]:
    """Raises ConfigError where the columns are of no kind that is known, or a cell is no number."""
    rows = csv.DictReader(io.StringIO(text, newline=""))
    columns = {name.strip() for name in rows.fieldnames or ()}
    reader = next((found for needed, found in _READERS if needed <= columns), None)
    if reader is None:
        problem = Problem(name, "columns", f"no bill that is known: {', '.join(sorted(columns)[:6]) or 'empty'}")
        hint = (
            "known: FOCUS, AWS CUR, Google's BigQuery billing export, Azure's cost export; as CSV with its first line"
        )
        raise ConfigError([problem], hint)
    found = list(_all(rows, reader, name))
    if not found:
        raise ConfigError([Problem(name, "", "has no charges, only its first line")], "choose a period with use in it")
    return found


def parse_focus(text: str) -> list[Charge]:
    """Our own export, with the launch id as the resource's name. Of a fleet that has not bought anything: nothing."""
    return list(_all(csv.DictReader(io.StringIO(text, newline="")), _focus, "the ledger"))


def _all(rows: Iterable[Cells], reader: Callable[[Cells], Charge], name: str) -> Iterator[Charge]:
    for number, row in enumerate(rows, 2):
        try:
            yield reader({key: value or "" for key, value in row.items() if key is not None})
        except (ValueError, ArithmeticError) as error:  # a rate of exchange of 0
            raise ConfigError([Problem(f"{name}:{number}", "", str(error))], "the file may be cut off") from error


# --- the formats ----------------------------------------------------------------------------------------------------


def _focus(row: Cells) -> Charge:
    tags = _tags(row.get("Tags", ""))
    _dollars(row.get("BillingCurrency", ""))
    category, usage = row.get("ChargeCategory") or "Usage", row.get("x_UsageType", "")
    machine = row.get("ServiceCategory") == "Compute" and category == "Usage" and (not usage or _runs(usage))
    unit = row.get("ConsumedUnit", "").lower()
    what = row.get("ChargeDescription") or row.get("ServiceName", "")
    return Charge(
        cloud=_cloud(row.get("ProviderName", "")),
        resource=_last(row.get("ResourceId", "")),
        day=_day(row["ChargePeriodStart"]),
        cost_uusd=_uusd(row["BilledCost"]),
        what=what if category == "Usage" else f"{category}: {what}".removesuffix(": "),
        is_machine=machine,
        hours=_number(row.get("ConsumedQuantity", "")) if unit.startswith(("hour", "hr")) else None,
        launch_id=_launch_id(tags),
        is_spot=row.get("PricingCategory") == "Dynamic",
        is_covered=machine and row.get("PricingCategory") == "Committed",
    )


def _aws(row: Cells) -> Charge:
    """Both spellings: `lineItem/UnblendedCost` and, of the second version, `line_item_unblended_cost`."""

    def cell(old: str, new: str) -> str:
        return row.get(old) or row.get(new, "")

    usage = cell("lineItem/UsageType", "line_item_usage_type")
    kind = cell("lineItem/LineItemType", "line_item_line_item_type")
    runs = _runs(usage)
    _dollars(cell("lineItem/CurrencyCode", "line_item_currency_code"))
    tags = {key.rpartition("user:")[2]: value for key, value in row.items() if key.startswith("resourceTags/")}
    return Charge(
        cloud="aws",
        resource=_last(cell("lineItem/ResourceId", "line_item_resource_id")),
        day=_day(cell("lineItem/UsageStartDate", "line_item_usage_start_date")),
        cost_uusd=_uusd(cell("lineItem/UnblendedCost", "line_item_unblended_cost")),
        what=usage if usage and kind in ("Usage", "") else f"{kind}: {usage}".removesuffix(": "),
        is_machine=runs and kind in _AWS_RUNNING,
        hours=_number(cell("lineItem/UsageAmount", "line_item_usage_amount")) if runs and kind in _AWS_TIME else None,
        launch_id=_launch_id({**tags, **_tags(row.get("resource_tags", ""))}),
        is_spot="SpotUsage" in usage,
        is_covered=runs and kind in _AWS_COVERED,
    )


# A savings plan shows as the use, at its list price, and as the same amount taken back; the plan itself is another row.
_AWS_COVERED = ("DiscountedUsage", "SavingsPlanCoveredUsage", "SavingsPlanNegation")
_AWS_TIME = ("Usage", "DiscountedUsage", "SavingsPlanCoveredUsage", "")
_AWS_RUNNING = (*_AWS_TIME, "SavingsPlanNegation")


def _runs(usage_type: str) -> bool:
    """Of AWS: whether it is the running of a machine."""
    return any(word in usage_type for word in ("BoxUsage", "SpotUsage", "DedicatedUsage"))


def _google(row: Cells) -> Charge:
    """A machine is billed in parts (cores, memory, accelerators): they are added up by its name. Credits are JSON."""
    sku = _any(row, "sku.description", "sku_description")
    service = _any(row, "service.description", "service_description")
    credits = json.loads(row.get("credits") or "[]")
    rate = _rate(row)
    credits_uusd = sum(_uusd(str(each.get("amount", 0)), rate) for each in credits)
    kind = row.get("cost_type") or "regular"
    is_machine = service in ("Compute Engine", "Cloud TPU") and kind == "regular" and bool(_GOOGLE_RUNS.search(sku))
    return Charge(
        cloud="gcp",
        resource=_last(_any(row, "resource.name", "resource_name")),
        day=_day(_any(row, "usage_start_time", "usage.start_time")),
        cost_uusd=_uusd(row["cost"], rate) + credits_uusd,
        credits_uusd=credits_uusd,
        what=(sku or service) if kind in ("regular", sku.lower()) else f"{kind}: {sku or service}",
        is_machine=is_machine and not _GOOGLE_BESIDE.search(sku),
        launch_id=_launch_id(_tags(row.get("labels", ""))),
        is_spot="spot" in sku.lower() or "preemptible" in sku.lower(),
    )


_GOOGLE_RUNS = re.compile(r"\b(core|ram|gpu|instance)\b|\btpu", re.IGNORECASE)
_GOOGLE_BESIDE = re.compile(r"\bPD\b|egress|licens|data transfer|\bip charge", re.IGNORECASE)


def _rate(row: Cells) -> Decimal:
    """Units of the bill's currency for a dollar."""
    currency, rate = row.get("currency", ""), row.get("currency_conversion_rate", "")
    if currency in ("", "USD") or not rate:
        _dollars(currency)
        return Decimal(1)
    return Decimal(rate)


def _azure(row: Cells) -> Charge:
    lower = {key.strip().lower(): value for key, value in row.items()}
    cost = next((lower[key] for key in _AZURE_COSTS if lower.get(key)), "")
    if not lower.get("costinusd"):
        _dollars(lower.get("billingcurrency") or lower.get("billingcurrencycode") or lower.get("currency", ""))
    category, kind = lower.get("metercategory", ""), lower.get("chargetype") or "Usage"
    pricing = lower.get("pricingmodel", "").lower()
    meter = lower.get("metername") or lower.get("metersubcategory", "")
    is_machine = category == "Virtual Machines" and kind == "Usage"
    return Charge(
        cloud="azure",
        resource=_last(lower.get("resourceid") or lower.get("instanceid", "")).lower(),  # its case changes by the day
        day=_day(lower.get("date") or lower.get("usagedatetime", "")),
        cost_uusd=_uusd(cost),
        what=": ".join(each for each in (kind if kind != "Usage" else "", category, meter) if each),
        is_machine=is_machine,
        hours=_number(lower.get("quantity") or lower.get("usagequantity", "")) if is_machine else None,
        launch_id=_launch_id(_tags(lower.get("tags", ""))),
        is_spot="spot" in meter.lower() or pricing == "spot",
        is_covered=is_machine and pricing in ("reservation", "savingsplan"),
    )


_AZURE_COSTS = ("costinusd", "costinbillingcurrency", "pretaxcost", "cost")
_READERS: tuple[tuple[frozenset[str], Callable[[Cells], Charge]], ...] = (
    (frozenset({"BilledCost", "ChargePeriodStart"}), _focus),
    (frozenset({"lineItem/UnblendedCost"}), _aws),
    (frozenset({"line_item_unblended_cost"}), _aws),
    (frozenset({"cost", "usage_start_time"}), _google),
    (frozenset({"CostInBillingCurrency", "MeterCategory"}), _azure),
    (frozenset({"costInBillingCurrency", "meterCategory"}), _azure),
    (frozenset({"PreTaxCost", "MeterCategory"}), _azure),
    (frozenset({"Cost", "MeterCategory"}), _azure),
)


# --- cells ----------------------------------------------------------------------------------------------------------


def _any(row: Cells, *names: str) -> str:
    return next((row[name] for name in names if row.get(name)), "")


def _uusd(text: str, rate: Decimal = Decimal(1)) -> int:
    try:
        return usd_to_uusd(Decimal(text.strip()) / rate) if text.strip() else 0
    except InvalidOperation as error:
        raise ValueError(f"{text!r} is no amount") from error


def _dollars(currency: str) -> None:
    if currency.strip().upper() not in ("", "USD"):
        raise ValueError(f"the amounts are in {currency}, the ledger is in USD: export the bill in dollars")


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


def _last(path: str) -> str:
    """An ARN or a path ends in the name of the resource."""
    return path.rstrip("/").rpartition("/")[2]


def _day(text: str) -> str:
    text = text.strip()
    if "/" in text:  # Azure: 03/31/2025
        return datetime.strptime(text.split(" ")[0], "%m/%d/%Y").date().isoformat()
    at = datetime.fromisoformat(text.replace(" UTC", "").replace("Z", "+00:00"))
    return (at.astimezone(UTC) if at.tzinfo else at).date().isoformat()


def _cloud(provider: str) -> str:
    words = {"aws": "aws", "amazon": "aws", "google": "gcp", "microsoft": "azure", "azure": "azure"}
    return next((cloud for word, cloud in words.items() if word in provider.lower()), "")


def _tags(text: str) -> dict[str, str]:
    """JSON, a list of pairs as Google writes it, or Azure's `"a": "b"` without the braces around it."""
    text = text.strip()
    if not text:
        return {}
    try:
        found = json.loads(text if text[0] in "[{" else f"{{{text}}}")
    except ValueError:
        return {}  # tags only help to explain: a charge without them is still a charge
    if isinstance(found, list):
        return {str(each.get("key", "")): str(each.get("value", "")) for each in found if isinstance(each, dict)}
    return {str(key): str(value) for key, value in found.items()}


def _launch_id(tags: Mapping[str, str]) -> str:
    """Of AWS's second version, every tag of a user begins with `user_`."""
    plain = {key.removeprefix("user_"): value for key, value in tags.items()}
    return next((plain[name] for name in LAUNCH_TAGS if plain.get(name)), "")
