"""The provider against moto, an EC2 that somebody else wrote: what the emulator understands, others understand too."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cloud_world import FLEET, make_spec
from worlds.aws_world import ON_DEMAND, user_data

from tradewind.autoscaler.providers.aws import AwsProvider
from tradewind.autoscaler.providers.aws_clients import SdkClients
from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import CloudState
from tradewind.model import EndReason


@pytest.fixture
def clients() -> Iterator[SdkClients]:
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield SdkClients(f"http://{host}:{port}", boto3.Session(aws_access_key_id="AKIA", aws_secret_access_key="x"))
    server.stop()


def settings_in(ec2: Any) -> AwsSettings:
    """On-demand alone: moto knows no status of spot requests."""
    image = ec2.describe_images(Owners=["amazon"])["Images"][0]
    filters = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    subnet = ec2.describe_subnets(Filters=filters)["Subnets"][0]["SubnetId"]
    region = AwsRegion("us-east-1", image["ImageId"], {"us-east-1a": subnet})
    return AwsSettings(FLEET, (region,), root_device=image["RootDeviceName"], disk_gib=100)


def no_groups(**_: Any) -> tuple[Any, dict[str, Any]]:
    return SimpleNamespace(status_code=200, headers={}), {"PlacementGroups": []}


@pytest.mark.slow
def test_a_life_on_moto(clients: SdkClients) -> None:
    ec2 = clients.get("ec2", "us-east-1")
    ec2.meta.events.register("before-call.ec2.DescribePlacementGroups", no_groups)  # moto knows no placement groups
    settings = settings_in(ec2)
    provider = AwsProvider(settings, user_data, offers=[ON_DEMAND], clients=clients)
    launched = provider.launch(make_spec("tw-1", ON_DEMAND))
    [node] = provider.list_nodes()
    assert (node.launch_id, node.instance_id) == ("tw-1", launched.instance_id)
    assert node.offer.market == ON_DEMAND.market
    assert node.offer.resources == ON_DEMAND.resources
    provider.terminate(["tw-1"])
    assert list(provider.wait_terminated(["tw-1"], 30)) == []
    [gone] = provider.list_nodes()
    assert (gone.state, gone.end) == (CloudState.GONE, EndReason.TERMINATED)
    assert abs((gone.billed_until_s or 0) - time.time()) < 600
    assert list(provider.list_debris()) == []
