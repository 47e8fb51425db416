"""Can this subscription carry the fleet? One line for each thing that has to be there, with the command that mends it.
Changes nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tradewind.autoscaler.placement import has_groups
from tradewind.autoscaler.providers.azure_api import JSON, AzureApi
from tradewind.autoscaler.providers.azure_settings import AzureRegion, zone_number
from tradewind.autoscaler.providers.base import Check
from tradewind.errors import AuthError, ProviderError, Throttled, Transient
from tradewind.model import Capacity, Offer

PERMISSIONS = (
    "Microsoft.Compute/virtualMachines/read",
    "Microsoft.Compute/virtualMachines/write",
    "Microsoft.Compute/virtualMachines/delete",
    "Microsoft.Compute/disks/read",
    "Microsoft.Compute/disks/write",
    "Microsoft.Compute/disks/delete",
    "Microsoft.Network/networkInterfaces/read",
    "Microsoft.Network/networkInterfaces/write",
    "Microsoft.Network/networkInterfaces/delete",
    "Microsoft.Network/networkInterfaces/join/action",
    "Microsoft.Insights/eventtypes/values/read",
)
GROUP_PERMISSIONS = tuple(f"Microsoft.Compute/proximityPlacementGroups/{what}" for what in ("read", "write", "delete"))
_ASSIGN = "Microsoft.ManagedIdentity/userAssignedIdentities/assign/action"
_SPOT_CORES, _ALL_CORES = "lowPriorityCores", "cores"


def check_subscription(api: AzureApi, offers: Sequence[Offer]) -> list[Check]:
    group = answered("azure resource group", lambda: _group(api), _make_group(api))
    if not group.ok:
        return [group]
    checks = [group, answered("azure permissions", lambda: _permissions(api))]
    if api.settings.placement_groups and any(has_groups(offer) for offer in offers):
        checks.append(answered("azure placement groups", lambda: _placement(api)))
    for region in api.settings.regions:
        checks += _region(api, region, [offer for offer in offers if offer.market.region == region.name])
    return checks


def answered(name: str, look: Callable[[], Check], fix: str = "") -> Check:
    """What a check finds, or why it could not look."""
    try:
        return look()
    except (AuthError, Throttled, Transient) as error:  # the error knows better what to do about these
        return Check(name, False, error.message, error.hint or fix)
    except ProviderError as error:
        return Check(name, False, error.message, fix or error.hint or "see the message")


def _make_group(api: AzureApi) -> str:
    group, region = api.settings.resource_group, api.settings.regions[0].name
    return f"az group create --subscription {api.settings.subscription} --name {group} --location {region}"


def _group(api: AzureApi) -> Check:
    settings = api.settings
    found = api.get(f"/subscriptions/{settings.subscription}/resourceGroups/{settings.resource_group}", "2021-04-01")
    return Check("azure resource group", True, f"{found['name']} in subscription {settings.subscription}")


# --- permissions -----------------------------------------------------------------------------------------------


def _permissions(api: AzureApi) -> Check:
    needed = [*PERMISSIONS, *([_ASSIGN] if api.settings.identity else [])]
    missing, fix = _missing(api, needed)
    if not missing:
        return Check("azure permissions", True, f"all {len(needed)}")
    return Check("azure permissions", False, f"missing: {', '.join(missing)}", fix)


def _placement(api: AzureApi) -> Check:
    missing, fix = _missing(api, GROUP_PERMISSIONS)
    if not missing:
        return Check("azure placement groups", True, "may be made for gangs")
    off = "or set `placement: {groups: off}`"
    return Check("azure placement groups", False, f"missing: {', '.join(missing)}", f"{fix}; {off}")


def _missing(api: AzureApi, needed: Sequence[str]) -> tuple[list[str], str]:
    """Which actions no role of ours allows, and what to do about it."""
    group = f"/subscriptions/{api.settings.subscription}/resourceGroups/{api.settings.resource_group}"
    roles = list(api.pages(f"{group}/providers/Microsoft.Authorization/permissions", "2022-04-01"))
    fix = f"add them to the controller's role on {group}: az role definition update"
    return [action for action in needed if not is_granted(action, roles)], fix


def is_granted(action: str, roles: Sequence[JSON]) -> bool:
    """By one role at least: its actions have it, and its notActions do not take it away."""
    return any(
        _matches(action, role.get("actions", ())) and not _matches(action, role.get("notActions", ())) for role in roles
    )


def _matches(action: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(re.escape(each).replace(r"\*", ".*"), action, re.I) for each in patterns)


# --- a region --------------------------------------------------------------------------------------------------


def _region(api: AzureApi, region: AzureRegion, offers: Sequence[Offer]) -> Iterator[Check]:
    yield answered(
        f"azure image in {region.name}", lambda: _image(api, region.name), "choose one: az vm image list --all"
    )
    fix = "give the id of one of this region: az network vnet subnet list"
    yield answered(f"azure subnet in {region.name}", lambda: _subnet(api, region), fix)
    sizes: dict[str, JSON] = {}

    def look() -> Check:
        found = (sku for sku in api.list_skus(region.name) if sku.get("resourceType") == "virtualMachines")
        sizes.update((sku["name"], sku) for sku in found)
        return Check(
            f"azure sizes in {region.name}", bool(sizes), f"{len(sizes)} are sold", "correct the region's name"
        )

    yield answered(f"azure sizes in {region.name}", look, "correct its name: az account list-locations")
    if sizes:
        yield from (_size(offer, sizes.get(offer.market.instance_type)) for offer in offers)
        yield from _quotas(api, region.name, offers, sizes)


def _image(api: AzureApi, region: str) -> Check:
    image, name = api.settings.image, f"azure image in {region}"
    if image.startswith("/"):
        return Check(name, True, str(api.get(image, "2024-03-03")["name"]))
    publisher, offer, sku, version = image.split(":")
    versions = [each["name"] for each in api.list_images(region, publisher, offer, sku)]
    if versions and version in ("latest", *versions):
        return Check(name, True, f"{image}, newest {max(versions)}")
    return Check(name, False, f"there is no {image}", f"choose one: az vm image list --all --publisher {publisher}")


def _subnet(api: AzureApi, region: AzureRegion) -> Check:
    network, _, _ = region.subnet.partition("/subnets/")
    place = str(api.get(network, "2024-05-01")["location"])
    found = api.get(region.subnet, "2024-05-01")
    name, range_ = f"azure subnet in {region.name}", found["properties"].get("addressPrefix", "")
    if place != region.name:
        return Check(name, False, f"its network is in {place}", f"give a subnet of a network in {region.name}")
    return Check(name, True, f"{found['name']}, {range_}")


def _size(offer: Offer, sku: Mapping[str, Any] | None) -> Check:
    """Sold in this region and zone, to this subscription, and as spot where that is wanted."""
    market, name = offer.market, f"azure {offer.market}"
    if sku is None:
        return Check(
            name, False, f"{market.region} does not have it", "take it off the offers, or choose another region"
        )
    number = zone_number(market)
    zones = {zone for info in sku.get("locationInfo", ()) for zone in info.get("zones", ())}
    if number and number not in zones:
        return Check(name, False, f"zones with it: {', '.join(sorted(zones)) or 'none'}", "choose another zone")
    for each in sku.get("restrictions", ()):
        barred = each.get("restrictionInfo", {}).get("zones", ())
        if each.get("type") == "Location" or number in barred:
            fix = "ask for access: portal.azure.com, Help + support, Service and subscription limits"
            return Check(name, False, f"restricted: {each.get('reasonCode', 'no reason given')}", fix)
    able = {each["name"]: each.get("value") for each in sku.get("capabilities", ())}
    if market.capacity is Capacity.SPOT and able.get("LowPriorityCapable") != "True":
        return Check(name, False, "is not sold as spot", "take it off the spot offers")
    return Check(name, True, "is sold")


def _quotas(api: AzureApi, region: str, offers: Sequence[Offer], sizes: Mapping[str, JSON]) -> list[Check]:
    """Spot has one quota for all sizes; on-demand has one for each family beside that for all."""
    needed: dict[str, float] = {}
    for offer in offers:
        family = sizes.get(offer.market.instance_type, {}).get("family", "")
        spot = offer.market.capacity is Capacity.SPOT
        for quota in (_SPOT_CORES,) if spot else filter(None, (_ALL_CORES, family)):
            needed[quota] = min(needed.get(quota, offer.vcpus), offer.vcpus)
    found: dict[str, JSON] = {}

    def look() -> Check:
        found.update((each["name"]["value"].lower(), each) for each in api.list_usage(region))
        return Check(f"azure quotas in {region}", True, f"{len(found)} are told")

    told = answered(f"azure quotas in {region}", look)
    checks = [_quota(region, found[name.lower()], n) for name, n in sorted(needed.items()) if name.lower() in found]
    return [told, *checks]


def _quota(region: str, usage: JSON, needed: float) -> Check:
    """Enough for one more node of the smallest size that it limits."""
    name, left = usage["name"]["value"], usage["limit"] - usage["currentValue"]
    said = f"{usage['currentValue']} of {usage['limit']} vCPUs in use"
    if left >= needed:
        return Check(f"azure quota {name} in {region}", True, said)
    fix = f"ask for more {name} in {region}: portal.azure.com, Quotas, Compute"
    return Check(f"azure quota {name} in {region}", False, f"{said}, one node needs {needed:g}", fix)
