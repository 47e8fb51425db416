"""What a person chooses about AWS, once for the fleet and once for each region. Pure; checked when built."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tradewind.errors import ConfigError, InvalidRequest, Problem
from tradewind.model import Market, Role

CLOUD = "aws"
_FLEET = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_RESERVATION = re.compile(r"(open|none|cr-[0-9a-f]+|arn:[a-z-]+:resource-groups:\S+)?")


@dataclass(frozen=True, slots=True)
class AwsRegion:
    """Images, subnets and security groups have names of their own in each region."""

    name: str
    image: str  # "ami-..."
    subnets: Mapping[str, str]  # zone -> subnet; a zone without one is not used
    security_groups: tuple[str, ...] = ()  # none: the VPC's default group


@dataclass(frozen=True, slots=True)
class AwsSettings:
    fleet: str
    regions: tuple[AwsRegion, ...]
    instance_profile: str = ""  # its name; the identity by which a node reads secrets and data
    head_instance_profile: str = ""  # of heads, which may read more; empty: as all
    disk_gib: int = 100
    root_device: str = "/dev/sda1"  # as the image calls it; the preflight compares
    capacity_reservation: str = ""  # "", "open", "none", "cr-...", or the ARN of a resource group; on-demand only
    tags: Mapping[str, str] = field(default_factory=dict)  # beside ours, on everything that is made
    endpoint_url: str = ""  # an emulator, or a private endpoint
    placement_groups: bool = True  # launches may ask for one: the preflight looks whether they can be made

    def __post_init__(self) -> None:
        if problems := [Problem("aws", name, message) for name, message in _mistakes(self)]:
            raise ConfigError(problems)

    def profile(self, role: Role) -> str:
        return (self.head_instance_profile if role is Role.HEAD else "") or self.instance_profile

    def region(self, market: Market) -> AwsRegion:
        found = next((region for region in self.regions if region.name == market.region), None)
        if market.cloud != CLOUD or found is None:
            names = ", ".join(region.name for region in self.regions)
            raise InvalidRequest(f"{market} is not in a region of this fleet ({names})", cloud=CLOUD)
        return found


def _mistakes(settings: AwsSettings) -> Iterator[tuple[str, str]]:
    names = [region.name for region in settings.regions]
    if not _FLEET.fullmatch(settings.fleet):
        yield "fleet", f"{settings.fleet!r} must be 1 to 63 letters, digits, '-', '_' or '.'"
    if not names:
        yield "regions", "at least one is needed"
    if len(set(names)) != len(names):
        yield "regions", f"one is named twice: {', '.join(sorted(names))}"
    for region in settings.regions:
        if not region.image.startswith("ami-"):
            yield f"regions.{region.name}.image", f"{region.image!r} is not an image id like ami-0abc"
        if not region.subnets:
            yield f"regions.{region.name}.subnets", "at least one zone with its subnet is needed"
        for zone in region.subnets:
            if not zone.startswith(region.name):
                yield f"regions.{region.name}.subnets", f"zone {zone} is not in this region"
    if settings.disk_gib < 1:
        yield "disk_gib", f"{settings.disk_gib} is below 1"
    if not _RESERVATION.fullmatch(settings.capacity_reservation):
        yield "capacity_reservation", "must be open, none, cr-... or the ARN of a resource group"
    if ours := [key for key in settings.tags if key.startswith(("tradewind:", "aws:"))]:
        yield "tags", f"{', '.join(ours)}: these prefixes are taken"
