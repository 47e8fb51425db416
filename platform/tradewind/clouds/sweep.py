"""Everything of a fleet in all regions of its clouds, wherever its file leads: for `down`, which proves that nothing is
left, and for `reap`, which removes what nobody looks after. Acts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.azure_settings import AzureRegion, AzureSettings
from tradewind.autoscaler.providers.gcp_slice import PREFIX
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.clouds.leftovers import Leftover, Sight, look, remove
from tradewind.clouds.providers import CellCloud, open_cell
from tradewind.clouds.secret_stores import store_in
from tradewind.config_models import FleetConfig
from tradewind.cost import catalog
from tradewind.errors import ProviderError
from tradewind.model import Capacity

END_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where is looked: a cell of the file with its secrets, or the other regions of its cloud."""

    cell: CellCloud
    secrets: SecretStore | None


def places_of(config: FleetConfig, credentials: Mapping[str, Any] | None = None) -> tuple[Place, ...]:
    """Every cell, and for each cloud one more place: all of its regions that are not in the file."""
    given = credentials or {}
    plans = cells_of(config)
    places = [Place(_open(plan, given), store_in(config, plan, given.get(plan.cloud))) for plan in plans]
    for cloud in config.cloud_names:
        mine = [plan for plan in plans if plan.cloud == cloud]
        if (rest := _elsewhere(mine, given)) is not None:
            places.append(Place(_open(rest, given), None))
    return tuple(places)


def _open(plan: CellPlan, credentials: Mapping[str, Any]) -> CellCloud:
    return open_cell(plan, lambda spec: spec.launch_id, credentials)


def _elsewhere(plans: Sequence[CellPlan], credentials: Mapping[str, Any]) -> CellPlan | None:
    """One plan for all regions of a cloud that its cells are not in. Only for looking: nothing is launched by it."""
    first = plans[0]
    names = sorted(_regions(first, credentials) - {plan.region for plan in plans})
    if not names:
        return None
    settings = first.settings
    if isinstance(settings, AwsSettings):
        rest = tuple(AwsRegion(name, settings.regions[0].image, {f"{name}a": "subnet-0"}) for name in names)
        settings = replace(settings, regions=rest)
    elif isinstance(settings, AzureSettings):
        subnet = settings.regions[0].subnet
        settings = replace(settings, regions=tuple(AzureRegion(name, subnet) for name in names))
    else:
        settings = replace(settings, regions=tuple(names))
    slices = {offer.market.instance_type for offer in first.offers if offer.market.instance_type.startswith(PREFIX)}
    sold = (each for kind in sorted(slices) for each in catalog.load().find(cloud="gcp", instance_type=kind))
    offers = tuple(each for each in sold if each.market.region in names)  # slices are looked for where they are sold
    name = f"{first.cloud}, other regions"
    return replace(first, name=name, region="", settings=settings, offers=offers, heads=())


def _regions(plan: CellPlan, credentials: Mapping[str, Any]) -> set[str]:
    """AWS has regions that are closed until somebody opens them, and tells which are open; the others take any name."""
    if not isinstance(plan.settings, AwsSettings):
        return _listed(plan.cloud)
    from tradewind.autoscaler.providers.aws_clients import SdkClients

    clients = SdkClients(plan.settings.endpoint_url, credentials.get("aws"))
    try:
        with translated("DescribeRegions", plan.region):
            return {each["RegionName"] for each in clients.get("ec2", plan.region).describe_regions()["Regions"]}
    except ProviderError:
        return _listed(plan.cloud)  # without this right: those that are not open say so, each by itself


def _listed(cloud: str) -> set[str]:
    return {offer.market.region for offer in catalog.load().find("", cloud=cloud, capacity=Capacity.ON_DEMAND)}


def see(places: Sequence[Place], known: Collection[str] = (), *, lives: bool = False) -> Sight:
    """What is there. While a controller lives, its nodes (`known`) and secrets are not left over."""
    with ThreadPoolExecutor(max(1, len(places)), "sweep") as pool:
        sights = list(pool.map(lambda place: look(place.cell, None if lives else place.secrets), places))
    found = [thing for sight in sights for thing in sight.found if not (thing.kind == "node" and thing.name in known)]
    return Sight(tuple(found), tuple(blind for sight in sights for blind in sight.blind))


def remove_all(places: Sequence[Place], things: Sequence[Leftover], timeout_s: float = END_TIMEOUT_S) -> list[str]:
    """What could not be removed, and why."""
    with ThreadPoolExecutor(max(1, len(places)), "sweep") as pool:
        failed = pool.map(lambda place: remove(place.cell, place.secrets, things, timeout_s), places)
        return [line for lines in failed for line in lines]
