"""What a fleet says about its Azure subscription, and the names of its resources there. Pure; checked when built.

The name of a machine is made from the launch id and a digest of the fleet, and nothing else: within a resource group
Azure has one machine of a name, so that a launch id can never have two, in whatever zone or region. And it is known
without asking: a machine can be looked up and ended before it is listed.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.errors import ConfigError, InvalidRequest, Problem, Scope
from tradewind.model import Market, Role

CLOUD = "azure"
TAG_FLEET, TAG_CELL, TAG_LAUNCH_ID = "tradewind-fleet", "tradewind-cell", "tradewind-launch-id"
DEFAULT_IMAGE = "microsoft-dsvm:ubuntu-hpc:2204:latest"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")  # of a fleet or a cell
_LAUNCH_ID = re.compile(r"[a-z]([a-z0-9-]{0,48}[a-z0-9])?")  # with digest and "-disk": 64 signs, the most for a name
_GROUP = re.compile(r"[-\w.()]{0,89}[-\w()]")
_SUBNET = re.compile(r"/subscriptions/[^/]+/resourceGroups/[^/]+/.*/virtualNetworks/[^/]+/subnets/[^/]+", re.I)
_URN = re.compile(r"[^/:]+:[^/:]+:[^/:]+:[^/:]+")


@dataclass(frozen=True, slots=True)
class AzureRegion:
    """A network lies in one region."""

    name: str  # "eastus"
    subnet: str  # its whole id, "/subscriptions/.../subnets/..."
    security_group: str = ""  # likewise; empty: the subnet's
    capacity_reservation: str = ""  # the id of a capacity reservation group, for on-demand machines


@dataclass(frozen=True, slots=True)
class AzureSettings:
    """One resource group, which may hold machines of several regions, fleets and people."""

    fleet: str
    subscription: str
    resource_group: str
    regions: tuple[AzureRegion, ...]
    image: str = DEFAULT_IMAGE  # publisher:offer:sku:version, or the id of an image
    identity: str = ""  # the id of a user-assigned identity, by which a node reads secrets and data
    head_identity: str = ""  # of heads, which may read more; empty: as all
    disk_gib: int = 128
    disk_type: str = "Premium_LRS"
    ssh_public_key: str = ""  # empty: nobody can log in
    encryption_at_host: bool = True  # the subscription must have the feature Microsoft.Compute/EncryptionAtHost
    tags: Mapping[str, str] = field(default_factory=dict)  # beside ours, on everything that is made
    answer_wait_s: float = 20.0  # how long a launch waits for a yes or no before it counts as accepted
    timeout_s: float = 30.0  # of one call
    endpoint_url: str = ""  # of an emulator or another Azure than the public one; empty: management.azure.com
    prices_url: str = "https://prices.azure.com/api/retail/prices"
    ca_file: str = ""  # by which the endpoint's certificate is checked; empty: the system's
    placement_groups: bool = True  # launches may ask for one: the preflight looks whether they can be made

    def __post_init__(self) -> None:
        if problems := [Problem("azure", name, message) for name, message in _mistakes(self)]:
            raise ConfigError(problems)

    def region(self, market: Market) -> AzureRegion:
        found = next((region for region in self.regions if region.name == market.region), None)
        if market.cloud != CLOUD or found is None:
            names = ", ".join(region.name for region in self.regions)
            raise InvalidRequest(f"{market} is not in a region of this fleet ({names})", cloud=CLOUD)
        return found

    def identity_of(self, role: Role) -> str:
        return (self.head_identity if role is Role.HEAD else "") or self.identity

    def path(self, kind: str, name: str) -> str:
        """The id of a resource of this group: path("Microsoft.Compute/virtualMachines", "tw-1")."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}/providers/{kind}/{name}"


def _mistakes(settings: AzureSettings) -> Iterator[tuple[str, str]]:
    names = [region.name for region in settings.regions]
    if not _NAME.fullmatch(settings.fleet):
        yield "fleet", f"{settings.fleet!r} must be 1 to 63 lower-case letters, digits or '-'"
    if not settings.subscription:
        yield "subscription", "the subscription's id is needed: `az account show --query id`"
    if not _GROUP.fullmatch(settings.resource_group):
        yield "resource_group", f"{settings.resource_group!r} is not the name of a resource group"
    if not names or len(set(names)) != len(names):
        yield "regions", "at least one is needed, and none twice"
    for region in settings.regions:
        if not _SUBNET.fullmatch(region.subnet):
            yield f"regions.{region.name}.subnet", f"{region.subnet!r} is not the id of a subnet"
    if not _URN.fullmatch(settings.image) and not settings.image.startswith("/"):
        yield "image", f"{settings.image!r} is neither publisher:offer:sku:version nor the id of an image"
    if settings.disk_gib < 30:
        yield "disk_gib", f"{settings.disk_gib} is below 30, the least for Linux"
    if ours := [key for key in settings.tags if key.startswith("tradewind-")]:
        yield "tags", f"{', '.join(ours)}: this prefix is taken"
    if settings.answer_wait_s < 0 or settings.timeout_s <= 0:
        yield "answer_wait_s, timeout_s", "must not be negative"


@dataclass(frozen=True, slots=True)
class Names:
    """How this fleet's resources are called, and what a name says."""

    fleet: str

    @property
    def _digest(self) -> str:
        return hashlib.sha256(self.fleet.encode()).hexdigest()[:8]

    def vm(self, launch_id: str) -> str:
        return f"{launch_id}-{self._digest}"

    def nic(self, launch_id: str) -> str:
        return f"{self.vm(launch_id)}-nic"

    def disk(self, launch_id: str) -> str:
        return f"{self.vm(launch_id)}-disk"

    def launch_id(self, vm: str) -> str:
        """Of a machine of ours by its name; "" for everybody else's."""
        launch_id, _, digest = vm.lower().rpartition("-")
        return launch_id if digest == self._digest else ""


def is_launch_id(text: str) -> bool:
    return bool(_LAUNCH_ID.fullmatch(text))


def check_spec(spec: LaunchSpec, settings: AzureSettings) -> None:
    """What no name or tag of Azure can hold is refused before anything is sent."""
    if not is_launch_id(spec.launch_id):
        raise _unfit("launch id", spec.launch_id)
    if not _NAME.fullmatch(spec.cell):
        raise _unfit("cell", spec.cell)
    if spec.fleet != settings.fleet:
        raise InvalidRequest(f"this provider serves fleet {settings.fleet}, not {spec.fleet}", cloud=CLOUD)
    if spec.offer.hosts != 1:
        raise InvalidRequest(f"{spec.offer.market} has {spec.offer.hosts} hosts: Azure sells single ones", cloud=CLOUD)
    settings.region(spec.offer.market)


def zone_number(market: Market) -> str:
    """ "eastus-2" -> "2"; a zone that is the region itself leaves the choice to Azure."""
    return market.zone.removeprefix(market.region).removeprefix("-")


def zone_of(region: str, number: str) -> str:
    return f"{region}-{number}" if number else region


def poll_times_s() -> Iterator[float]:
    """How long to wait between two looks at a new machine: most refusals come within seconds."""
    yield from (1.0, 1.0, 2.0, 4.0)
    yield from itertools.repeat(8.0)


def _unfit(what: str, value: str) -> InvalidRequest:
    hint = "use lower-case letters, digits and '-', beginning with a letter"
    message = f"Azure has no name like the {what} {value[:80]!r}"
    return InvalidRequest(message, hint, cloud=CLOUD, scope=Scope.NOTHING)
