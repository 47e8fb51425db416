"""A cloud's own bill, as a file, turned into charges by resource and day. `read` opens the file; the rest is pure.

Known by their columns: FOCUS (any cloud, and our own export), AWS cost and usage reports (both spellings of columns),
Google's billing export from BigQuery, Azure's cost export (both generations). Amounts are dollars.
"""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
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


def read(path: Path) -> list[Charge]:
    try:
        packed = path.read_bytes()
        text = (gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed).decode("utf-8-sig")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise ConfigError([Problem(str(path), "", f"cannot be read: {error}")], "give the bill as CSV") from error
    return parse(text, path.name)


def parse(text: str, name: str = "bill") -> list[Charge]:
    """Raises ConfigError where the columns are of no kind that is known, or a cell is no number."""
    rows = csv.DictReader(text.splitlines())
    columns = set(rows.fieldnames or ())
    reader = next((found for needed, found in _READERS if needed <= columns), None)
    if reader is None:
        problem = Problem(name, "columns", f"no bill that is known: {', '.join(sorted(columns)[:6]) or 'empty'}")
        hint = (
            "known: FOCUS, AWS CUR, Google's BigQuery billing export, Azure's cost export; as CSV with its first line"
        )
        raise ConfigError([problem], hint)
    return list(_all(rows, reader, name))


def parse_focus(text: str) -> list[Charge]:
    """Our own export, with the launch id as the resource's name."""
    return parse(text, "the ledger")


def _all(rows: Iterable[Cells], reader: Callable[[Cells], Charge], name: str) -> Iterator[Charge]:
    for number, row in enumerate(rows, 2):
        try:
            yield reader({key: value or "" for key, value in row.items() if key is not None})
        except ValueError as error:
            raise ConfigError([Problem(f"{name}:{number}", "", str(error))], "the file may be cut off") from error


# --- the formats ----------------------------------------------------------------------------------------------------


def _focus(row: Cells) -> Charge:
    tags = _tags(row.get("Tags", ""))
    machine = row.get("ServiceCategory") == "Compute" and row.get("ChargeCategory", "Usage") == "Usage"
    unit = row.get("ConsumedUnit", "").lower()
    return Charge(
        cloud=_cloud(row.get("ProviderName", "")),
        resource=_last(row.get("ResourceId", "")),
        day=_day(row["ChargePeriodStart"]),
        cost_uusd=_uusd(row["BilledCost"]),
        what=row.get("ChargeDescription") or row.get("ServiceName", ""),
        is_machine=machine,
        hours=_number(row.get("ConsumedQuantity", "")) if unit.startswith("hour") else None,
        launch_id=_launch_id(tags),
        is_spot=row.get("PricingCategory") == "Dynamic",
    )


def _aws(row: Cells) -> Charge:
    """Both spellings: `lineItem/UnblendedCost` and, of the second version, `line_item_unblended_cost`."""

    def cell(old: str, new: str) -> str:
        return row.get(old) or row.get(new, "")

    usage = cell("lineItem/UsageType", "line_item_usage_type")
    kind = cell("lineItem/LineItemType", "line_item_line_item_type")
    runs = any(word in usage for word in ("BoxUsage", "SpotUsage", "DedicatedUsage"))
    tags = {key.rpartition("user:")[2]: value for key, value in row.items() if key.startswith("resourceTags/")}
    return Charge(
        cloud="aws",
        resource=_last(cell("lineItem/ResourceId", "line_item_resource_id")),
        day=_day(cell("lineItem/UsageStartDate", "line_item_usage_start_date")),
        cost_uusd=_uusd(cell("lineItem/UnblendedCost", "line_item_unblended_cost")),
        what=usage or kind,
        is_machine=runs and kind in ("Usage", "DiscountedUsage", ""),
        hours=_number(cell("lineItem/UsageAmount", "line_item_usage_amount")) if runs else None,
        launch_id=_launch_id({**tags, **_tags(row.get("resource_tags", ""))}),
        is_spot="SpotUsage" in usage,
    )


def _google(row: Cells) -> Charge:
    """A machine is billed in parts (cores, memory, accelerators): they are added up by its name. Credits are JSON."""
    sku = _any(row, "sku.description", "sku_description")
    service = _any(row, "service.description", "service_description")
    credits = json.loads(row.get("credits") or "[]")
    cost_uusd = _uusd(row["cost"]) + sum(_uusd(str(each.get("amount", 0))) for each in credits)
    running = ("core", "ram", "gpu", "tpu", "instance")
    is_machine = service in ("Compute Engine", "Cloud TPU") and any(word in sku.lower() for word in running)
    return Charge(
        cloud="gcp",
        resource=_last(_any(row, "resource.name", "resource_name")),
        day=_day(_any(row, "usage_start_time", "usage.start_time")),
        cost_uusd=cost_uusd,
        what=sku or service,
        is_machine=is_machine and "PD" not in sku and "egress" not in sku.lower(),
        launch_id=_launch_id(_tags(row.get("labels", ""))),
        is_spot="spot" in sku.lower() or "preemptible" in sku.lower(),
    )


def _azure(row: Cells) -> Charge:
    lower = {key.lower(): value for key, value in row.items()}
    cost = next(
        (lower[key] for key in ("costinusd", "costinbillingcurrency", "pretaxcost", "cost") if key in lower), ""
    )
    category, kind = lower.get("metercategory", ""), lower.get("chargetype", "Usage")
    meter = lower.get("metername") or lower.get("metersubcategory", "")
    is_machine = category == "Virtual Machines" and kind == "Usage"
    return Charge(
        cloud="azure",
        resource=_last(lower.get("resourceid") or lower.get("instanceid", "")),
        day=_day(lower.get("date") or lower.get("usagedatetime", "")),
        cost_uusd=_uusd(cost),
        what=f"{category}: {meter}" if category else kind,
        is_machine=is_machine,
        hours=_number(lower.get("quantity") or lower.get("usagequantity", "")) if is_machine else None,
        launch_id=_launch_id(_tags(lower.get("tags", ""))),
        is_spot="spot" in meter.lower(),
    )


_READERS: tuple[tuple[frozenset[str], Callable[[Cells], Charge]], ...] = (
    (frozenset({"BilledCost", "ChargePeriodStart"}), _focus),
    (frozenset({"lineItem/UnblendedCost"}), _aws),
    (frozenset({"line_item_unblended_cost"}), _aws),
    (frozenset({"cost", "usage_start_time"}), _google),
    (frozenset({"CostInBillingCurrency", "MeterCategory"}), _azure),
    (frozenset({"costInBillingCurrency", "meterCategory"}), _azure),
    (frozenset({"PreTaxCost", "MeterCategory"}), _azure),
)


# --- cells ----------------------------------------------------------------------------------------------------------


def _any(row: Cells, *names: str) -> str:
    return next((row[name] for name in names if row.get(name)), "")


def _uusd(text: str) -> int:
    return usd_to_uusd(text) if text.strip() else 0


def _number(text: str) -> float | None:
    return float(text) if text.strip() else None


def _last(path: str) -> str:
    """An ARN or a path ends in the name of the resource."""
    return path.rstrip("/").rpartition("/")[2]


def _day(text: str) -> str:
    text = text.strip()
    if "/" in text:  # Azure: 03/31/2025
        return datetime.strptime(text.split(" ")[0], "%m/%d/%Y").date().isoformat()
    return datetime.fromisoformat(text.replace(" UTC", "").replace("Z", "+00:00")).date().isoformat()


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
    return next((tags[name] for name in LAUNCH_TAGS if tags.get(name)), "")
