"""What clouds refuse about placement groups, by the vendors' SDKs against the emulators: and that a refusal which is
about a group never speaks against an offer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cloud_world import BOOTED_S, FLEET, World, find_worlds, make_spec, marked
from contract import GANG, error_of

from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.market import refused_scope
from tradewind.autoscaler.providers.aws_clients import SdkClients
from tradewind.autoscaler.providers.base import Provider
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.errors import ProviderError, Scope
from tradewind.model import Offer
from tradewind.states import NodeState

WITH_GROUPS = {name: world for name, world in find_worlds().items() if name in ("aws", "azure", "gcp")}
OTHER = GANG.replace("0", "f")


@pytest.fixture(params=marked(WITH_GROUPS))
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = request.param(tmp_path)
    yield made
    made.close()


def launched(provider: Provider, launch_id: str, offer: Offer, group: str = GANG) -> ProviderError | None:
    return error_of(lambda: provider.launch(make_spec(launch_id, offer, placement_group=group)))


def scope_of(error: ProviderError, offer: Offer, group: str = GANG) -> Scope:
    node = NodeRecord("tw-x", offer, "cell", "", NodeState.REQUESTED, 0.0, 0.0, placement_group=group)
    return refused_scope(node, error)


def test_a_group_lies_in_one_zone(world: World) -> None:
    provider = world.provider()
    assert launched(provider, "tw-1", world.spot) is None
    error = launched(provider, "tw-2", world.other_zone)
    assert error is not None
    assert not error.retryable
    assert scope_of(error, world.other_zone) is Scope.GROUP
    assert world.groups() == {GANG: ["tw-1"]}


def test_two_gangs_have_a_group_each(world: World) -> None:
    provider = world.provider()
    assert launched(provider, "tw-1", world.spot) is None
    assert launched(provider, "tw-2", world.spot, OTHER) is None
    assert world.groups() == {GANG: ["tw-1"], OTHER: ["tw-2"]}


def test_a_group_with_a_node_that_has_just_come_is_not_deleted(world: World) -> None:
    """The listing that called it debris was older than the launch."""
    provider = world.provider()
    assert launched(provider, "tw-1", world.spot) is None
    world.advance(BOOTED_S)
    groups: Any = provider._groups  # type: ignore[attr-defined]
    region = world.spot.market.region
    place = {"aws": (region, GANG), "gcp": ((region, GANG),), "azure": (GANG,)}[world.name]
    groups.delete(*place)
    assert world.groups() == {GANG: ["tw-1"]}


def test_groups_in_all_regions_are_found(world: World) -> None:
    provider = world.provider()
    assert launched(provider, "tw-1", world.spot) is None
    assert launched(provider, "tw-2", world.other_region, OTHER) is None
    world.advance(BOOTED_S)
    provider.terminate(["tw-1", "tw-2"])
    world.advance(600.0)
    found = list(world.provider().list_debris())
    assert sorted(any(name in each for each in found) for name in (GANG, OTHER)) == [True, True]
    provider.delete_debris(found)
    assert world.groups() == {}


def test_a_stock_out_of_the_market_is_one_in_a_group_and_out(world: World) -> None:
    provider = world.provider()
    world.stock_out(world.spot)
    error = launched(provider, "tw-1", world.spot)
    assert error is not None
    assert scope_of(error, world.spot) is Scope.GROUP
    error = launched(provider, "tw-2", world.spot, "")
    assert error is not None
    assert scope_of(error, world.spot, "") is Scope.ZONE


# --- AWS alone -----------------------------------------------------------------------------------------------------


@pytest.fixture
def ec2() -> Iterator[Any]:
    import boto3

    with AwsEmulator() as cloud:
        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        yield SdkClients(cloud.url, session).get("ec2", "us-east-1")


def code_of(call: Callable[[], object]) -> str:
    from botocore.exceptions import ClientError

    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def test_what_ec2_refuses_about_groups(ec2: Any) -> None:
    def create(**changes: Any) -> str:
        return code_of(lambda: ec2.create_placement_group(**{"GroupName": "g", "Strategy": "cluster", **changes}))

    assert create(DryRun=True) == "DryRunOperation"
    assert ec2.describe_placement_groups()["PlacementGroups"] == []
    assert create() == ""
    assert create() == "InvalidPlacementGroup.Duplicate"
    assert create(GroupName="x" * 256) == "InvalidParameterValue"
    [group] = ec2.describe_placement_groups(GroupNames=["g"])["PlacementGroups"]
    assert (group["Strategy"], group["State"]) == ("cluster", "available")
    assert code_of(lambda: ec2.describe_placement_groups(GroupNames=["h"])) == "InvalidPlacementGroup.Unknown"
    assert code_of(lambda: ec2.delete_placement_group(GroupName="h")) == "InvalidPlacementGroup.Unknown"
    assert code_of(lambda: ec2.delete_placement_group(GroupName="g")) == ""


def test_a_launch_names_its_group_and_zone() -> None:
    from tradewind.autoscaler.providers.aws_requests import client_token, group_arguments, run_arguments
    from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings

    offer = WITH_GROUPS["aws"](Path()).spot
    settings = AwsSettings(FLEET, (AwsRegion("us-east-1", "ami-0", {"us-east-1a": "subnet-0"}),), tags={"team": "x"})
    spec = make_spec("tw-1", offer, placement_group=GANG)
    inside, outside = (run_arguments(each, settings, "") for each in (spec, replace(spec, placement_group="")))
    assert inside["Placement"] == {"AvailabilityZone": "us-east-1a", "GroupName": GANG}
    assert outside["Placement"] == {"AvailabilityZone": "us-east-1a"}
    assert inside["ClientToken"] == outside["ClientToken"] == client_token(FLEET, "tw-1")
    [tags] = group_arguments(spec, settings)["TagSpecifications"]
    assert {tag["Key"]: tag["Value"] for tag in tags["Tags"]}.items() >= {"tradewind:fleet": FLEET, "team": "x"}.items()
