"""AWS beside the contract: what is asked of EC2, what its answers mean, and what the emulator itself refuses."""

from __future__ import annotations

import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from cloud_world import BOOTED_S, FLEET, make_spec
from worlds.aws_world import OFFERS, ON_DEMAND, OTHER_REGION, SPOT, AwsWorld, _clients, _emulator, settings_at

from tradewind.autoscaler.providers.aws_listing import SpotStatus, node_of
from tradewind.autoscaler.providers.aws_preflight import quota_code
from tradewind.autoscaler.providers.aws_prices import AwsPrices
from tradewind.autoscaler.providers.aws_requests import (
    MAX_USER_DATA_BYTES,
    client_token,
    offer_from_text,
    offer_text,
    run_arguments,
)
from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import Check, CloudState
from tradewind.autoscaler.providers.partial import PartialListing
from tradewind.emulators.aws_launch import from_trace
from tradewind.errors import AmbiguousOutcome, ConfigError, Conflict, InvalidRequest, Stockout, Transient, Unsupported
from tradewind.model import Capacity, EndReason

SETTINGS = settings_at("", FLEET)
GROUP = "arn:aws:resource-groups:us-east-1:1:group/g"  # of capacity reservations


@pytest.fixture
def world() -> Iterator[AwsWorld]:
    made = AwsWorld(_emulator())
    yield made
    made.close()


def ec2(world: AwsWorld) -> Any:
    return _clients(world.emulator.url).get("ec2", "us-east-1")


# --- what is asked for ---


def test_spot_with_a_price_limit() -> None:
    asked = run_arguments(make_spec("tw-1", SPOT, max_price_uusd_per_h=612_345), SETTINGS, "")
    options = asked["InstanceMarketOptions"]["SpotOptions"]
    assert options["MaxPrice"] == "0.612345"
    assert options["InstanceInterruptionBehavior"] == "terminate"
    assert (
        "MaxPrice" not in run_arguments(make_spec("tw-1", SPOT), SETTINGS, "")["InstanceMarketOptions"]["SpotOptions"]
    )
    assert "InstanceMarketOptions" not in run_arguments(make_spec("tw-1", ON_DEMAND), SETTINGS, "")


@pytest.mark.parametrize(
    ("wanted", "sent"),
    [
        ("open", {"CapacityReservationPreference": "open"}),
        ("none", {"CapacityReservationPreference": "none"}),
        ("cr-0abc", {"CapacityReservationTarget": {"CapacityReservationId": "cr-0abc"}}),
        (
            "arn:aws:resource-groups:us-east-1:1:group/g",
            {
                "CapacityReservationTarget": {
                    "CapacityReservationResourceGroupArn": "arn:aws:resource-groups:us-east-1:1:group/g"
                }
            },
        ),
    ],
)
def test_a_capacity_reservation_is_for_on_demand_alone(wanted: str, sent: dict[str, Any]) -> None:
    settings = replace(SETTINGS, capacity_reservation=wanted)
    assert run_arguments(make_spec("tw-1", ON_DEMAND), settings, "")["CapacityReservationSpecification"] == sent
    assert "CapacityReservationSpecification" not in run_arguments(make_spec("tw-1", SPOT), settings, "")


def test_the_client_token_tells_launches_and_fleets_apart() -> None:
    tokens = {client_token(fleet, name) for fleet in ("a", "b") for name in ("tw-1", "tw-2")}
    assert len(tokens) == 4
    assert all(len(token) <= 64 for token in tokens)


def test_an_offer_survives_as_a_tag() -> None:
    for offer in (*OFFERS, replace(SPOT, price_uusd_per_h=None, accelerator="", accelerator_count=0.0)):
        again = offer_from_text(offer_text(offer), offer.market)
        assert replace(again, price_source=offer.price_source, price_date=offer.price_date) == offer
    assert offer_from_text("somebody wrote here", SPOT.market).price_uusd_per_h is None


@pytest.mark.parametrize(
    ("spec", "user_data", "error"),
    [
        (make_spec("tw-1", SPOT, fleet="other"), "", InvalidRequest),
        (make_spec("tw-1", replace(SPOT, hosts=4)), "", Unsupported),
        (make_spec("tw-1", SPOT), "x" * (MAX_USER_DATA_BYTES + 1), InvalidRequest),
        (make_spec("tw-1", replace(SPOT, market=replace(SPOT.market, zone="us-east-1f"))), "", InvalidRequest),
        (make_spec("tw-1", replace(SPOT, market=replace(SPOT.market, region="eu-west-1"))), "", InvalidRequest),
    ],
)
def test_what_is_refused_before_it_is_sent(spec: Any, user_data: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        run_arguments(spec, SETTINGS, user_data)


def test_settings_tell_all_mistakes_at_once() -> None:
    region = AwsRegion("us-east-1", "not-an-image", {"eu-west-1a": "subnet-1"})
    with pytest.raises(ConfigError) as caught:
        AwsSettings(
            "no good/name", (region, region), disk_gib=0, capacity_reservation="maybe", tags={"tradewind:x": "y"}
        )
    fields = {problem.field for problem in caught.value.problems}
    assert {"fleet", "regions", "disk_gib", "capacity_reservation", "tags"} <= fields
    assert {"regions.us-east-1.image", "regions.us-east-1.subnets"} <= fields


@pytest.mark.parametrize(
    ("kind", "capacity", "code"),
    [
        ("g5.xlarge", Capacity.SPOT, "L-3819A6DF"),
        ("g5.xlarge", Capacity.ON_DEMAND, "L-DB2E81BA"),
        ("p4d.24xlarge", Capacity.SPOT, "L-7212CCBC"),
        ("p5.48xlarge", Capacity.SPOT, "L-C4BD4855"),
        ("m5.large", Capacity.ON_DEMAND, "L-1216C47A"),
        ("dl1.24xlarge", Capacity.ON_DEMAND, "L-6E869C2A"),
        ("trn1.2xlarge", Capacity.SPOT, "L-6B0D517C"),
    ],
)
def test_quota_codes(kind: str, capacity: Capacity, code: str) -> None:
    assert quota_code(kind, capacity) == code


# --- what the answers mean ---


def described(state: str, reason: str = "", transition: str = "") -> dict[str, Any]:
    return {
        "InstanceId": "i-1",
        "State": {"Name": state},
        "LaunchTime": datetime(2026, 11, 1, 12, 0, tzinfo=UTC),
        "Placement": {"AvailabilityZone": "us-east-1a"},
        "InstanceType": "g5.xlarge",
        "InstanceLifecycle": "spot",
        "StateReason": {"Code": reason, "Message": reason},
        "StateTransitionReason": transition,
        "Tags": [{"Key": "tradewind:launch-id", "Value": "tw-1"}],
    }


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("Client.UserInitiatedShutdown", EndReason.TERMINATED),
        ("Client.InstanceInitiatedShutdown", EndReason.CRASHED),
        ("Server.SpotInstanceTermination", EndReason.PREEMPTED),
        ("Server.SpotInstanceShutdown", EndReason.PREEMPTED),
        ("Server.ScheduledStop", EndReason.PREEMPTED),
        ("Server.InternalError", EndReason.CRASHED),
        ("Server.InsufficientInstanceCapacity", EndReason.CRASHED),
        ("Client.VolumeLimitExceeded", EndReason.CRASHED),
        ("Server.SomethingNew", EndReason.CRASHED),
    ],
)
def test_why_it_ended(reason: str, end: EndReason) -> None:
    node = node_of(described("terminated", reason, "User initiated (2026-11-01 13:00:00 GMT)"), "us-east-1")
    assert (node.state, node.end) == (CloudState.GONE, end)
    assert reason in node.detail


def test_an_instance_that_never_ran_is_not_billed() -> None:
    node = node_of(described("terminated", "Server.InsufficientInstanceCapacity"), "us-east-1")
    assert (node.billed_from_s, node.billed_until_s) == (None, None)


def test_the_end_of_the_bill_is_read_from_the_transition_or_the_spot_request() -> None:
    ended_s = datetime(2026, 11, 1, 13, 0, tzinfo=UTC).timestamp()
    by_user = described("terminated", "Client.UserInitiatedShutdown", "User initiated (2026-11-01 13:00:00 GMT)")
    assert node_of(by_user, "us-east-1").billed_until_s == ended_s
    taken = described("terminated", "Server.SpotInstanceTermination")
    assert (
        node_of(taken, "us-east-1", SpotStatus("instance-terminated-by-price", "", ended_s)).billed_until_s == ended_s
    )
    assert node_of(taken, "us-east-1").billed_until_s is None  # nobody says: it is not guessed


def test_an_instance_without_its_launch_id_is_listed_by_its_own(world: AwsWorld) -> None:
    """Somebody took the tag off: it is still ours to end."""
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    [machine] = world.emulator.machines()
    del machine.tags["tradewind:launch-id"]
    assert [node.launch_id for node in provider.list_nodes()] == [machine.id]
    provider.terminate([machine.id])
    world.advance(BOOTED_S)
    assert world.emulator.machines() == []


# --- calls ---


def test_a_launch_is_sent_once_although_a_stock_out_is_a_server_error(world: AwsWorld) -> None:
    """The SDK would repeat an HTTP 500 in silence."""
    world.stock_out(SPOT)
    with pytest.raises(Exception, match="InsufficientInstanceCapacity"):
        world.provider().launch(make_spec("tw-1", SPOT))
    assert world.emulator.log.count("RunInstances") == 1


def test_a_changed_setting_does_not_hide_the_node(world: AwsWorld) -> None:
    """Another disk size makes another request, which EC2 refuses under the same token: the node is looked up."""
    first = world.provider().launch(make_spec("tw-1", SPOT))
    changed = world._provider(replace(settings_at(world.emulator.url, FLEET), disk_gib=200))
    assert changed.launch(make_spec("tw-1", SPOT)).instance_id == first.instance_id
    world.lag_listing(60)
    with pytest.raises(AmbiguousOutcome):
        changed.launch(make_spec("tw-1", SPOT))
    assert len(world.emulator.machines()) == 1


def test_a_launch_id_seen_in_another_region_is_refused_without_a_call(world: AwsWorld) -> None:
    world.provider().launch(make_spec("tw-1", SPOT))
    provider = world.provider()
    provider.list_nodes()
    calls = len(world.emulator.log)
    with pytest.raises(Conflict):
        provider.launch(make_spec("tw-1", OTHER_REGION))
    assert len(world.emulator.log) == calls


def test_a_dead_region_leaves_the_others_listed(world: AwsWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    provider.launch(make_spec("tw-2", OTHER_REGION))
    world.blackout("us-west-2")
    with pytest.raises(PartialListing) as caught:
        provider.list_nodes()
    assert [node.launch_id for node in caught.value.nodes] == ["tw-1"]
    assert caught.value.blind == {"us-west-2"}
    assert caught.value.retryable


def test_one_unknown_instance_does_not_keep_the_others_alive(world: AwsWorld) -> None:
    """EC2 ends none of a list with an unknown id in it."""
    provider = world.provider()
    for name in ("tw-1", "tw-2", "tw-3"):
        provider.launch(make_spec(name, SPOT))
    world.advance(BOOTED_S)
    provider.list_nodes()
    world.vanish("tw-2")
    provider.terminate(["tw-1", "tw-2", "tw-3"])
    world.advance(BOOTED_S)
    assert world.emulator.machines() == []


def test_a_new_instance_that_ec2_does_not_know_yet_is_asked_for_again(world: AwsWorld) -> None:
    provider = world.provider()
    provider.launch(make_spec("tw-1", SPOT))
    world.emulator.faults.refusals.append(("TerminateInstances", "InvalidInstanceID.NotFound", 400))
    with pytest.raises(Transient):
        provider.terminate(["tw-1"])
    provider.terminate(["tw-1"])
    world.advance(BOOTED_S)
    assert world.emulator.machines() == []


def test_spot_prices_are_asked_for_every_five_minutes(world: AwsWorld) -> None:
    source = AwsPrices(OFFERS, _clients(world.emulator.url))
    for later_s in (0.0, 100.0, 299.0):
        source.offers(world.now + later_s)
    assert world.emulator.log.count("DescribeSpotPriceHistory") == 2  # one a region
    source.offers(world.now + 300.0)
    assert world.emulator.log.count("DescribeSpotPriceHistory") == 4


def test_old_prices_are_kept_while_a_region_does_not_answer(world: AwsWorld, caplog: pytest.LogCaptureFixture) -> None:
    source = AwsPrices(OFFERS, _clients(world.emulator.url))
    before = source.offers(world.now)
    world.fail_server(2)
    assert source.offers(world.now + 300.0) == before
    assert "spot prices are old" in caplog.text
    world.price_above(SPOT)
    assert source.offers(world.now + 361.0) != before


# --- the emulator refuses what EC2 refuses ---


def tagged(kind: str, key: str, value: str) -> dict[str, Any]:
    return {"TagSpecifications": [{"ResourceType": kind, "Tags": [{"Key": key, "Value": value}]}]}


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"ImageId": "ami-xyz"}, "InvalidAMIID.Malformed"),
        ({"ImageId": "ami-00000000"}, "InvalidAMIID.NotFound"),
        ({"InstanceType": "g99.huge"}, "InvalidParameterValue"),
        ({"KeyName": "mine"}, "UnknownParameter"),
        ({"Placement": {"AvailabilityZone": "us-east-1b"}}, "InvalidParameterValue"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue"),
        ({"ClientToken": "x" * 65}, "InvalidParameterValue"),
        ({"UserData": "x" * 16385}, "InvalidParameterValue"),
        ({"TagSpecifications": [{"ResourceType": "moon", "Tags": []}]}, "InvalidParameterValue"),
        (
            {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:x", "Value": "y"}]}]},
            "InvalidParameterValue",
        ),
        (
            {"TagSpecifications": [{"ResourceType": "volume", "Tags": [{"Key": "x", "Value": "{}"}]}]},
            "InvalidParameterValue",
        ),
        ({"DryRun": True}, "DryRunOperation"),
    ],
)
def test_the_emulator_refuses(world: AwsWorld, wrong: dict[str, Any], code: str) -> None:
    from botocore.exceptions import ClientError

    right = run_arguments(make_spec("tw-1", SPOT), settings_at(world.emulator.url, FLEET), "#!/bin/sh\n")
    with pytest.raises(ClientError) as caught:
        ec2(world).run_instances(**{**right, **wrong})
    assert caught.value.response["Error"]["Code"] == code
    assert world.emulator.machines() == []


def test_the_emulator_wants_credentials(world: AwsWorld) -> None:
    import boto3
    from botocore.exceptions import ClientError

    stranger = boto3.Session(aws_access_key_id="AKIASTRANGER", aws_secret_access_key="x")
    client = stranger.client("sts", region_name="us-east-1", endpoint_url=world.emulator.url)
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        client.get_caller_identity()
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(world.emulator.url, data=b"Action=DescribeInstances")


def test_the_metadata_service_gives_notice_to_those_with_a_token(world: AwsWorld) -> None:
    world.provider().launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    [machine] = world.emulator.machines()
    base = f"{world.emulator.url}/imds/{machine.id}/latest"

    def ask(path: str, headers: dict[str, str], method: str = "GET") -> str:
        request = urllib.request.Request(f"{base}/{path}", headers=headers, method=method)
        with urllib.request.urlopen(request) as answer:
            text: str = answer.read().decode()
            return text

    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("meta-data/instance-id", {})
    token = ask("api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, "PUT")
    with_token = {"X-aws-ec2-metadata-token": token}
    assert ask("meta-data/instance-id", with_token) == machine.id
    assert "tw-1" in ask("user-data", with_token)
    assert ask("meta-data/iam/security-credentials/", with_token) == "tradewind-node"
    assert json.loads(ask("meta-data/iam/security-credentials/tradewind-node", with_token))["Code"] == "Success"
    assert ask("meta-data/tags/instance/tradewind:launch-id", with_token) == "tw-1"
    document = json.loads(ask("dynamic/instance-identity/document", with_token))
    assert (document["region"], document["privateIp"]) == ("us-east-1", machine.private_address)
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    with pytest.raises(urllib.error.HTTPError, match="403"):
        ask("api/token", {**ttl, "X-Forwarded-For": "10.0.0.9"}, "PUT")
    with pytest.raises(http.client.RemoteDisconnected):  # as from a container: the answer does not come that far
        ask("api/token", {**ttl, "x-emulated-hops": "2"}, "PUT")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        ask("meta-data/spot/instance-action", with_token)
    world.preempt("tw-1", 120)
    action = json.loads(ask("meta-data/spot/instance-action", with_token))
    assert action["action"] == "terminate"
    assert datetime.fromisoformat(action["time"]).timestamp() == int(world.now + 120)
    world.advance(30)
    world.now += 61
    with pytest.raises(urllib.error.HTTPError, match="401"):
        ask("meta-data/instance-id", with_token)


def test_boot_and_end_are_told(world: AwsWorld) -> None:
    told: list[str] = []
    world.emulator.books.on_boot = lambda machine: told.append(f"boot {machine.id}")
    world.emulator.books.on_end = lambda machine: told.append(f"end {machine.id}")
    provider = world.provider()
    node = provider.launch(make_spec("tw-1", SPOT))
    world.advance(BOOTED_S)
    provider.terminate(["tw-1"])
    assert told == [f"boot {node.instance_id}", f"end {node.instance_id}"]


def test_a_pool_follows_a_trace(world: AwsWorld) -> None:
    """Two can be had for ten minutes, then one, then none: what is too much is taken back, with notice."""
    pool = (SPOT.market.zone, SPOT.market.instance_type, True)
    world.emulator.shop.capacity[pool] = from_trace([2, 1, 0], 600.0, world.now)
    provider = world.provider()
    for name in ("tw-1", "tw-2"):
        provider.launch(make_spec(name, SPOT))
    with pytest.raises(Stockout):
        provider.launch(make_spec("tw-3", SPOT))
    world.advance(601)
    noticed = {node.launch_id for node in provider.list_nodes() if node.notice_deadline_s is not None}
    assert noticed == {"tw-2"}
    world.advance(599)
    alive = {node.launch_id for node in provider.list_nodes() if node.state is CloudState.RUNNING}
    assert alive == {"tw-1"}
    world.advance(600)
    assert world.emulator.machines() == []
    with pytest.raises(Stockout):
        provider.launch(make_spec("tw-4", SPOT))


# --- the preflight ---


def wrong(world: AwsWorld) -> list[Check]:
    return [check for check in world.provider().preflight() if not check.ok]


def test_a_group_that_lets_everybody_in_is_told_with_what_takes_it_away(world: AwsWorld) -> None:
    group = next(iter(world.emulator.books.regions["us-east-1"].groups))
    assert wrong(world) == []
    world.emulator.books.regions["us-east-1"].open_groups.add(group)
    [check] = wrong(world)
    assert (check.name, check.found) == ("us-east-1 security groups", "tradewind lets the whole internet in")
    assert f"revoke-security-group-ingress --region us-east-1 --group-id {group}" in check.fix


def test_a_group_whose_members_cannot_talk_is_told_with_the_rule_that_it_lacks(world: AwsWorld) -> None:
    group = next(iter(world.emulator.books.regions["us-west-2"].groups))
    world.emulator.books.regions["us-west-2"].closed_groups.add(group)
    [check] = wrong(world)
    assert check.found == "their members cannot talk to each other"
    assert check.fix.endswith(f"--group-id {group} --protocol -1 --source-group {group}`")


def test_a_setting_that_ec2_does_not_know_is_not_told_as_a_missing_right(world: AwsWorld) -> None:
    world.emulator.shop.profiles.clear()
    assert {check.name for check in wrong(world)} == {
        "us-east-1 permission to launch",
        "us-west-2 permission to launch",
    }
    assert all("fleet file" in check.fix and "policy" not in check.fix for check in wrong(world))
    world.emulator.faults.denied.add("RunInstances")
    assert all("cluster-configs/iam" in check.fix for check in wrong(world))


def test_a_cloud_that_does_not_answer_is_not_told_as_a_missing_login(world: AwsWorld) -> None:
    world.emulator.faults.dead_regions.add("us-east-1")
    checks = wrong(world)
    assert checks
    assert all("check the network" in check.fix for check in checks)
