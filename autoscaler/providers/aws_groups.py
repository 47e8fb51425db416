"""Cluster placement groups of EC2: made with the first instance that names them, deleted when they are empty."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_requests import TAG_FLEET, group_arguments
from tradewind.autoscaler.providers.aws_settings import CLOUD, AwsSettings
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.groups import about_the_group
from tradewind.errors import Conflict, NotFound, ProviderError, Transient

DUPLICATE, IN_USE, UNKNOWN = (f"InvalidPlacementGroup.{what}" for what in ("Duplicate", "InUse", "Unknown"))


class Groups:
    """Remembers which it has seen, so that one gang asks for its group once."""

    def __init__(self, settings: AwsSettings, ec2: Callable[[str], Any]) -> None:
        self._settings, self._ec2 = settings, ec2
        self._made: set[tuple[str, str]] = set()

    def ensure(self, spec: LaunchSpec) -> None:
        """Made by somebody else in the same moment is just as well."""
        region = spec.offer.market.region
        if not spec.placement_group or (region, spec.placement_group) in self._made:
            return
        try:
            with about_the_group(), translated("CreatePlacementGroup", region):
                self._ec2(region).create_placement_group(**group_arguments(spec, self._settings))
        except Conflict as error:
            if error.code != DUPLICATE:
                raise
        self._made.add((region, spec.placement_group))

    def check(self, spec: LaunchSpec, error: ProviderError) -> None:
        """A launch was refused: if its group was swept up before, the same launch may be sent again."""
        if spec.placement_group and error.code == UNKNOWN:
            self._made.discard((spec.offer.market.region, spec.placement_group))
            raise Transient(error.message, cloud=CLOUD, code=error.code) from error

    def delete(self, region: str, name: str) -> None:
        """One that is gone, or has got an instance meanwhile, is no debris any more."""
        self._made.discard((region, name))
        try:
            with translated("DeletePlacementGroup", region):
                self._ec2(region).delete_placement_group(GroupName=name)
        except NotFound:
            return
        except Conflict as error:
            if error.code != IN_USE:
                raise


def empty_groups_in(ec2: Any, region: str, fleet: str, used: Collection[str]) -> list[str]:
    """Of this fleet, and no living node is in them. EC2 does not page these."""
    filters = [{"Name": f"tag:{TAG_FLEET}", "Values": [fleet]}, {"Name": "strategy", "Values": ["cluster"]}]
    with translated("DescribePlacementGroups", region):
        groups = ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
    gone = ("deleting", "deleted")
    return [each["GroupName"] for each in groups if each["State"] not in gone and each["GroupName"] not in used]
