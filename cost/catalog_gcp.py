"""Google's own prices: the Cloud Billing catalogue. A feed of catalog_refresh.py.

It sells no machines, but cores, memory and accelerators by region, in words meant for people. So the machines and their
zones are those of our list, and a price is a sum: vCPUs x core + GiB x memory + cards x card; unknown where a part is
not found. TPUs are sold by the chip, in older generations by the board (4 chips) or, in pods, by the core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Decimal
from typing import Any

from tradewind.cost.catalog_refresh import today
from tradewind.cost.price_list import InstanceType, PriceList, RegionPrice, Source
from tradewind.errors import AuthError, Transient
from tradewind.units import UUSD_PER_USD

CLOUD, SOURCE = "gcp", "Cloud Billing catalogue"
# Compute Engine (with TPUs from v5e on), and Cloud TPU (v2 to v4).
SERVICES = ("services/6F81-5844-456A", "services/E000-3F24-B8AA")
TIMEOUT_S = 60.0

# Which cores and memory a machine is made of; an a4 is paid with its accelerators.
_FAMILIES = {
    **{f"{name}-": name.upper() for name in ("a2", "g2", "g4", "n1", "n2", "e2")},
    "a3-highgpu": "A3",
    "a3-megagpu": "A3Plus",
    "a3-ultragpu": "A3Ultra",
}
_MACHINE_FREE = ("a4-",)
_PART = re.compile(r"^(?:Spot Preemptible |Preemptible )?(\w+)(?: Predefined)? Instance (Core|Ram)\b", re.IGNORECASE)
_CARD = re.compile(r"\bNvidia (?:Tesla )?(.+?) (?:GPU|\(1 gpu slice\))", re.IGNORECASE)
_CARDS = {
    **{name: name for name in ("A100", "L4", "T4", "V100", "P4", "P100", "B200")},
    "A100 80GB": "A100-80GB",
    "H100 80GB": "H100",
    "H100 80GB Plus": "H100-MEGA",
    "H100 80GB Mega": "H100-MEGA",
    "H200 141GB": "H200",
    "RTX 6000 96GB": "RTX-PRO-6000",
    "RTX PRO 6000": "RTX-PRO-6000",
}
_TPU = re.compile(r"\bTPU[ -]?(v\d+[ep]?)\b", re.IGNORECASE)
_TPU_NAMES = {"v5e": "v5litepod"}
_BOARD_CHIPS, _CORES_PER_CHIP = 4, 2
_BY_BOARD = ("v2", "v3")  # and their pods by the core
# Other ways to pay for the same thing.
_OTHER_DEALS = re.compile(
    r"Commitment|Custom|Sole Tenancy|Reserv|DWS|Calendar|Premium|Upgrade|Extended|Flex", re.IGNORECASE
)

Part = tuple[str, str]  # ("A2", "core"), ("card", "A100"), ("tpu", "v4"), ("tpu-pod", "v3")


@dataclass(frozen=True, slots=True)
class UnitPrice:
    part: Part
    region: str
    spot: bool
    usd_per_h: Decimal


class GcpFeed:
    cloud = CLOUD

    def __init__(self, endpoint: str = "", credentials: Any = None) -> None:
        self._endpoint, self._credentials = endpoint, credentials

    def fetch(self, known: PriceList, now_s: float) -> PriceList:
        units: dict[tuple[Part, str, bool], Decimal] = {}
        with _translated():
            for service in SERVICES:
                for sku in self._skus(service):
                    units.update(((each.part, each.region, each.spot), each.usd_per_h) for each in unit_prices(sku))
        prices = (_priced(units, known.types[each.instance_type], each) for each in known.prices())
        return PriceList.of(CLOUD, Source(SOURCE, today(now_s)), known.types.values(), prices)

    def _skus(self, service: str) -> Iterator[Any]:
        """The SDK pages by itself, and asks again where Google says that it may."""
        from google.cloud.billing_v1 import CloudCatalogClient, ListSkusRequest

        options = {"api_endpoint": self._endpoint} if self._endpoint else None
        client = CloudCatalogClient(credentials=self._credentials, transport="rest", client_options=options)
        from google.api_core import exceptions, retry

        again = retry.Retry(
            retry.if_exception_type(
                exceptions.ServiceUnavailable,
                exceptions.TooManyRequests,
                exceptions.InternalServerError,
                exceptions.BadGateway,
                exceptions.GatewayTimeout,
                OSError,  # a broken connection, in the words of `requests`
            ),
            initial=0.5,
            maximum=20.0,
            timeout=TIMEOUT_S,
        )
        yield from client.list_skus(ListSkusRequest(parent=service, page_size=5000), retry=again, timeout=TIMEOUT_S)


# --- what a SKU says; pure -------------------------------------------------------------------------------------


def unit_prices(sku: Any) -> Iterator[UnitPrice]:
    """Of a SKU that is a part of machines that we know; nothing of others."""
    usage, text = sku.category.usage_type, sku.description
    part = part_of(sku.category.resource_group, text)
    if part is None or usage not in ("OnDemand", "Preemptible") or _OTHER_DEALS.search(text):
        return
    amount = _amount(sku)
    if amount:
        for region in sku.service_regions:
            yield UnitPrice(part, region, usage == "Preemptible", amount)


def part_of(group: str, text: str) -> Part | None:
    if group == "TPU":
        found = _TPU.search(text)
        version = found.group(1).lower() if found else ""
        kind = "tpu-pod" if version in _BY_BOARD and "pod" in text.lower() else "tpu"
        return (kind, _TPU_NAMES.get(version, version)) if found else None
    if group == "GPU":
        found = _CARD.search(text)
        name = _CARDS.get(found.group(1)) if found else None
        return ("card", name) if name else None
    found = _PART.search(text)
    return (found.group(1).lower(), found.group(2).lower()) if found else None


def _amount(sku: Any) -> Decimal | None:
    """Dollars an hour of the unit, by the newest entry. The last tier is what one pays who uses more than a trifle."""
    if not sku.pricing_info:
        return None
    expression = sku.pricing_info[-1].pricing_expression
    if expression.usage_unit not in ("h", "GiBy.h") or not expression.tiered_rates:
        return None
    price = expression.tiered_rates[-1].unit_price
    if price.currency_code not in ("", "USD"):
        return None
    return Decimal(price.units) + Decimal(price.nanos) / 10**9


# --- sums; pure ------------------------------------------------------------------------------------------------

Units = Mapping[tuple[Part, str, bool], Decimal]


def _priced(units: Units, each: InstanceType, old: RegionPrice) -> RegionPrice:
    on_demand, spot = (_sum(units, _parts(each), old.region, is_spot) for is_spot in (False, True))
    return RegionPrice(old.region, each.name, on_demand, dict.fromkeys(old.spot_uusd_per_h, spot))


def _sum(units: Units, parts: Iterable[tuple[Part, Decimal]], region: str, spot: bool) -> int | None:
    total = Decimal(0)
    for part, amount in parts:
        price = units.get((part, region, spot))
        if price is None:
            return None
        total += amount * price
    return int((total * UUSD_PER_USD).to_integral_value(rounding=ROUND_HALF_EVEN)) or None


def _parts(each: InstanceType) -> list[tuple[Part, Decimal]]:
    if each.accelerator.startswith("TPU-"):
        return [_slice(each)]
    found: list[tuple[Part, Decimal]] = []
    if not each.name.startswith(_MACHINE_FREE):
        family = next((family for prefix, family in _FAMILIES.items() if each.name.startswith(prefix)), "").lower()
        found += [((family, "core"), Decimal(str(each.vcpus))), ((family, "ram"), Decimal(str(each.memory_gib)))]
    if each.accelerator:
        card = "H100-MEGA" if each.name.startswith("a3-mega") else each.accelerator
        found.append((("card", card), Decimal(str(each.accelerator_count))))
    return found


def _slice(each: InstanceType) -> tuple[Part, Decimal]:
    generation, chips = each.accelerator.removeprefix("TPU-").lower(), Decimal(str(each.total_count))
    if generation not in _BY_BOARD:
        return ("tpu", generation), chips
    if chips <= _BOARD_CHIPS:
        return ("tpu", generation), chips / _BOARD_CHIPS
    return ("tpu-pod", generation), chips * _CORES_PER_CHIP


@contextmanager
def _translated() -> Iterator[None]:
    from google.api_core import exceptions
    from google.auth import exceptions as auth

    hint = "`gcloud auth application-default login`; the account must be allowed to read the billing catalogue"
    try:
        yield
    except (auth.DefaultCredentialsError, auth.RefreshError, exceptions.Unauthorized, exceptions.Forbidden) as error:
        raise AuthError(str(error), hint, cloud=CLOUD) from error
    except (exceptions.GoogleAPIError, auth.GoogleAuthError, OSError) as error:
        raise Transient(str(error), "try again later; nothing was changed", cloud=CLOUD) from error
