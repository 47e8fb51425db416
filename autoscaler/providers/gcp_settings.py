"""What a fleet says about its Google Cloud project, and the names of its resources there. Pure.

The name of a resource is made from the launch id, so that a lost answer can be looked up, and ends with a digest of
fleet and market: Google's records of what has ended hold nothing but the name, and from it alone we tell whose it was
and what.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.errors import ConfigError, InvalidRequest, PriceTooHigh, Problem, Scope
from tradewind.model import Capacity, Market, Offer, Role

LABEL_FLEET, LABEL_CELL, LABEL_LAUNCH_ID = "tradewind-fleet", "tradewind-cell", "tradewind-launch-id"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"  # what the node may do is said by its account's roles
_NAMESPACE = uuid.UUID("6d0c4d61-5f1e-4a39-9f51-5a5f0e1c7d11")  # of our request ids
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{1,63}")
_LAUNCH_ID = re.compile(r"[a-z]([-a-z0-9]{0,52}[a-z0-9])?")  # with the digest: 63 signs, as RFC 1035 has it


@dataclass(frozen=True, slots=True)
class GcpSettings:
    """One project. Names without a slash are of this project and, for subnetworks, of the node's region."""

    fleet: str
    project: str
    regions: tuple[str, ...]
    image: str = "projects/deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-py310"
    network: str = "default"
    subnetwork: str = "default"
    service_account: str = ""  # of the nodes; empty: none, they reach no Google API
    head_service_account: str = ""  # of heads, which may read more; empty: as all
    network_tags: tuple[str, ...] = ("tradewind",)  # firewall rules go by these
    disk_gib: int = 100
    labels: Mapping[str, str] = field(default_factory=dict)  # beside ours, on everything that is made
    reservation: str = ""  # name of a reservation for on-demand machines; empty: any that fits
    secure_boot: bool = False  # needs an image whose GPU driver is signed
    tpu_runtime: str = ""  # empty: Google's newest base image of the TPU's generation
    tpu_queue_s: float = 0.0  # how long a slice may wait in Google's queue; 0: now or never
    answer_wait_s: float = 20.0  # how long a launch waits for a yes or no before it counts as accepted
    timeout_s: float = 30.0  # of one call
    endpoint_url: str = ""  # of an emulator; empty: Google's
    placement_groups: bool = True  # launches may ask for one: the preflight looks whether they can be made

    def __post_init__(self) -> None:
        if problems := [Problem("gcp", name, message) for name, message in _mistakes(self)]:
            raise ConfigError(problems)

    def account(self, role: Role) -> str:
        return (self.head_service_account if role is Role.HEAD else "") or self.service_account


def _mistakes(settings: GcpSettings) -> Iterator[tuple[str, str]]:
    if not _LABEL_VALUE.fullmatch(settings.fleet):
        yield "fleet", f"{settings.fleet!r} must be 1 to 63 lower-case letters, digits, '-' or '_'"
    if not settings.project:
        yield "project", "the project's id is needed"
    if not settings.regions or len(set(settings.regions)) != len(settings.regions):
        yield "regions", "at least one is needed, and none twice"
    for name in ("image", "network", "subnetwork"):
        if not getattr(settings, name):
            yield name, "must not be empty"
    for key, value in settings.labels.items():
        if key.startswith("tradewind-") or not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            yield "labels", f"{key}: {value}: of a-z, 0-9, '-' and '_', and tradewind-... is taken"
    if settings.disk_gib < 10:
        yield "disk_gib", f"{settings.disk_gib} is below 10"
    if settings.tpu_queue_s < 0 or settings.answer_wait_s < 0 or settings.timeout_s <= 0:
        yield "tpu_queue_s, answer_wait_s, timeout_s", "must not be negative"


@dataclass(frozen=True)
class Names:
    """How this fleet's resources are called, and what a name says."""

    fleet: str
    offers: Mapping[Market, Offer]
    by_digest: Mapping[tuple[str, str], Offer]  # by zone and digest

    @classmethod
    def of(cls, fleet: str, offers: Iterable[Offer]) -> Names:
        known = {offer.market: offer for offer in offers}
        by_digest = {(market.zone, _digest(fleet, market)): offer for market, offer in known.items()}
        return cls(fleet, known, by_digest)

    def name(self, spec: LaunchSpec) -> str:
        if not _LAUNCH_ID.fullmatch(spec.launch_id):
            raise _unfit("launch id", spec.launch_id)
        if not _LABEL_VALUE.fullmatch(spec.cell):
            raise _unfit("cell", spec.cell)
        return f"{spec.launch_id}-{_digest(self.fleet, spec.offer.market)}"

    def labels(self, spec: LaunchSpec) -> dict[str, str]:
        return {LABEL_FLEET: self.fleet, LABEL_CELL: spec.cell, LABEL_LAUNCH_ID: spec.launch_id}

    def whose(self, name: str, zone: str) -> tuple[str, Offer] | None:
        """Launch id and offer of a name of ours; None for everybody else's."""
        launch_id, _, digest = name.rpartition("-")
        offer = self.by_digest.get((zone, digest))
        return (launch_id, offer) if offer is not None else None

    def offer(self, market: Market) -> Offer:
        """As configured; one that is no longer configured is known by its market alone."""
        return self.offers.get(market) or Offer(market, vcpus=0, memory_gib=0)


def _digest(fleet: str, market: Market) -> str:
    text = "/".join((fleet, market.zone, market.instance_type, market.capacity))
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def request_id(name: str, zone: str, attempt: int) -> str:
    """Google answers a repeated id with the first answer, for an hour at least. An answer that told to try again is
    not wanted a second time: hence the attempt."""
    return str(uuid.uuid5(_NAMESPACE, f"{zone}/{name}/{attempt}"))


def poll_times_s() -> Iterator[float]:
    """How long to wait between two looks at an operation: most refusals come within seconds, hardware takes longer."""
    yield from (1.0, 1.0, 2.0, 4.0)
    yield from itertools.repeat(8.0)


def check_price(spec: LaunchSpec) -> None:
    """Google takes no price limit: its list prices, spot included, change at most once a day."""
    price, limit = spec.offer.price_uusd_per_h, spec.max_price_uusd_per_h
    if limit is not None and price is not None and price > limit:
        raise PriceTooHigh(
            f"{spec.offer.market} costs {price} micro-dollars an hour, the limit is {limit}", cloud="gcp"
        )


def region_of(zone: str) -> str:
    return zone.rpartition("-")[0]


def is_spot(offer: Offer) -> bool:
    return offer.market.capacity is Capacity.SPOT


def _unfit(what: str, value: str) -> InvalidRequest:
    hint = "use lower-case letters, digits and '-', beginning with a letter"
    message = f"Google Cloud has no label or name like the {what} {value[:80]!r}"
    return InvalidRequest(message, hint, cloud="gcp", scope=Scope.NOTHING)
