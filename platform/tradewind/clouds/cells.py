"""Fleet file -> cells: one for each region of each cloud, with the settings of its provider. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar
from urllib.parse import urlsplit

from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.azure_settings import DEFAULT_IMAGE, AzureRegion, AzureSettings
from tradewind.autoscaler.providers.gcp_settings import GcpSettings
from tradewind.clouds.offers import heads_in, offers_in
from tradewind.config_clouds import CloudName
from tradewind.config_models import FleetConfig
from tradewind.errors import ConfigError, Problem
from tradewind.model import Offer

T = TypeVar("T")
Settings = AwsSettings | GcpSettings | AzureSettings


@dataclass(frozen=True, slots=True)
class CellPlan:
    """One region of one cloud, as the fleet file has it."""

    name: str  # "aws-us-east-1"
    cloud: CloudName
    region: str
    settings: Settings  # of this one region
    offers: tuple[Offer, ...]  # what workers may be, at list prices, cheapest first
    heads: tuple[Offer, ...]  # what the head may be, on-demand; the first is taken unless it is sold out

    @property
    def known(self) -> tuple[Offer, ...]:
        """Everything that may be launched here: a listed node is read by these."""
        found = {offer.market: offer for offer in (*self.offers, *self.heads)}
        return tuple(found.values())


def cell_name(cloud: str, region: str) -> str:
    return f"{cloud}-{region}"


def is_emulated(config: FleetConfig) -> bool:
    """Every cloud of the file answers on this very machine: nobody bills anything there, and amounts are a pretence."""
    sections = [getattr(config, cloud) for cloud in config.cloud_names]
    return bool(sections) and all(section and _is_here(section.endpoint_url) for section in sections)


def _is_here(url: str) -> bool:
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def cells_of(config: FleetConfig) -> tuple[CellPlan, ...]:
    """None for a fleet on this machine. Raises ConfigError where a cell has nothing to buy."""
    if not config.cloud_names:
        return ()
    found = []
    for cloud in config.cloud_names:
        for region, settings in _SETTINGS[cloud](config):
            zones = _zones(settings)
            offers, heads = offers_in(config, cloud, region, zones), heads_in(config, cloud, region, zones)
            found.append(CellPlan(cell_name(cloud, region), cloud, region, settings, offers, heads))
    _check_selectors(config, found)
    return tuple(found)


def _zones(settings: Settings) -> tuple[str, ...]:
    """Those that the fleet file names; none: the price list's."""
    return tuple(settings.regions[0].subnets) if isinstance(settings, AwsSettings) else ()


def _check_selectors(config: FleetConfig, cells: list[CellPlan]) -> None:
    """A selector that fits nothing anywhere is a mistake; one that fits in some cells only is not."""
    problems = []
    for number, selector in enumerate(config.offers):
        alone = config.model_copy(update={"offers": (selector,)})
        if not any(offers_in(alone, cell.cloud, cell.region, _zones(cell.settings)) for cell in cells):
            places = ", ".join(cell.name for cell in cells)
            message = f"there is nothing like this with a known price in {places}"
            problems.append(Problem("fleet file", f"offers[{number}]", message))
    if problems:
        raise ConfigError(
            problems, "leave out a line of the selector, or add the region; `tradewind catalog` lists all"
        )
    empty = [cell.name for cell in cells if not cell.offers]
    if empty:
        problem = Problem("fleet file", "offers", f"nothing can be bought in {', '.join(empty)}")
        raise ConfigError([problem], "add a selector that fits there, or take the region off the list")


# --- the settings of each cloud ------------------------------------------------------------------------------------


def _aws(config: FleetConfig) -> Iterator[tuple[str, Settings]]:
    section = _section(config.aws)
    for region in section.regions:
        yield (
            region.name,
            AwsSettings(
                fleet=config.name,
                regions=(AwsRegion(region.name, region.image, dict(region.subnets), region.security_groups),),
                instance_profile=section.instance_profile,
                head_instance_profile=section.head_instance_profile,
                disk_gib=section.disk_gib,
                root_device=section.root_device,
                capacity_reservation=section.capacity_reservation,
                tags=dict(section.tags),
                endpoint_url=section.endpoint_url,
                placement_groups=config.placement.groups == "auto",
            ),
        )


def _gcp(config: FleetConfig) -> Iterator[tuple[str, Settings]]:
    section = _section(config.gcp)
    for region in section.regions:
        settings = GcpSettings(
            fleet=config.name,
            project=section.project,
            regions=(region.name,),
            network=section.network,
            subnetwork=region.subnetwork or section.subnetwork,
            service_account=section.service_account,
            head_service_account=section.head_service_account,
            network_tags=section.network_tags,
            disk_gib=section.disk_gib,
            labels=dict(section.labels),
            reservation=section.reservation,
            secure_boot=section.secure_boot,
            tpu_runtime=section.tpu_runtime,
            tpu_queue_s=section.tpu_queue_s,
            placement_groups=config.placement.groups == "auto",
            endpoint_url=section.endpoint_url,
        )
        yield region.name, replace(settings, image=section.image) if section.image else settings


def _azure(config: FleetConfig) -> Iterator[tuple[str, Settings]]:
    section = _section(config.azure)
    for region in section.regions:
        settings = AzureSettings(
            fleet=config.name,
            subscription=section.subscription,
            resource_group=section.resource_group,
            regions=(AzureRegion(region.name, region.subnet, region.security_group, region.capacity_reservation),),
            image=section.image or DEFAULT_IMAGE,
            identity=section.identity,
            head_identity=section.head_identity,
            disk_gib=section.disk_gib,
            disk_type=section.disk_type,
            encryption_at_host=section.encryption_at_host,
            tags=dict(section.tags),
            endpoint_url=section.endpoint_url,
            ca_file=section.ca_file,
            placement_groups=config.placement.groups == "auto",
        )
        yield region.name, replace(settings, prices_url=section.prices_url) if section.prices_url else settings


def _section(section: T | None) -> T:
    if section is None:
        raise ValueError("a checked fleet file has a section for each of its clouds")
    return section


_SETTINGS: dict[CloudName, Callable[[FleetConfig], Iterator[tuple[str, Settings]]]] = {
    "aws": _aws,
    "gcp": _gcp,
    "azure": _azure,
}
