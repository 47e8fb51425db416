"""Proximity placement groups of Azure: made with the first machine that names them, deleted when they are empty."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from typing import Any

from tradewind.autoscaler.providers.azure_api import JSON, AzureApi
from tradewind.autoscaler.providers.azure_settings import CLOUD, TAG_CELL, TAG_FLEET, AzureSettings
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.groups import about_the_group, if_allowed
from tradewind.errors import NotFound, ProviderError, Transient

KIND = "proximityPlacementGroups"


def group_body(spec: LaunchSpec, settings: AzureSettings) -> dict[str, Any]:
    """Its datacenter is that of the first machine in it; the machine names the zone."""
    tags = {**settings.tags, TAG_FLEET: spec.fleet, TAG_CELL: spec.cell}
    properties = {"proximityPlacementGroupType": "Standard"}
    return {"location": spec.offer.market.region, "tags": tags, "properties": properties}


class Groups:
    """Remembers which it has seen, so that one gang asks for its group once."""

    def __init__(self, api: AzureApi) -> None:
        self._api = api
        self._made: set[str] = set()
        self._lock = threading.Lock()

    def ensure(self, spec: LaunchSpec) -> None:
        """To put the same once more changes nothing."""
        name = spec.placement_group
        if not name:
            return
        with self._lock, about_the_group():
            if name not in self._made:
                self._api.put_group(name, group_body(spec, self._api.settings))
                self._made.add(name)

    def check(self, spec: LaunchSpec, error: ProviderError) -> None:
        """A launch was refused: if its group was swept up before, the same launch may be sent again."""
        name, said = spec.placement_group, error.message.lower()
        if name and f"{KIND}/{name}".lower() in said and "not found" in said:
            self._made.discard(name)
            raise Transient(error.message, cloud=CLOUD, code=error.code) from error

    def empty(self, going: Collection[str] = ()) -> list[str]:
        """Those without machines, but for such that go themselves: one that failed stays in its group until then."""
        groups = if_allowed(lambda: list(self._ours()))
        return [group["name"] for group in groups if _members(group) <= {name.lower() for name in going}]

    def _ours(self) -> Iterator[JSON]:
        """Other cells of the fleet have groups in the same resource group, in other regions."""
        settings = self._api.settings
        regions = {region.name for region in settings.regions}
        for group in self._api.list_groups():
            is_ours = (group.get("tags") or {}).get(TAG_FLEET) == settings.fleet
            if is_ours and group["location"].lower() in regions:
                yield group

    def delete(self, name: str) -> None:
        """One that is gone, or has got a machine meanwhile, is no debris any more."""
        self._made.discard(name)
        try:
            self._api.delete_group(name)
        except NotFound:
            return
        except ProviderError:
            if name in self.empty():
                raise


def _members(group: JSON) -> set[str]:
    """Azure writes the names in resource ids in any case."""
    return {each["id"].rpartition("/")[2].lower() for each in group.get("properties", {}).get("virtualMachines") or ()}
