"""The node provider behind `ray up`, by itself, on the AWS emulator. e2e/test_ray_up.py runs Ray's own commands."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.clouds import cells_of, open_cell
from tradewind.config import load_fleet
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.errors import Unsupported
from tradewind.events import LaunchRequested, NodeJoined, NodeLaunched
from tradewind.home import FleetHome
from tradewind.model import LABEL_LAUNCH_ID, Role
from tradewind.testing import FakeController, served

pytestmark = pytest.mark.slow  # SDKs of all clouds, over HTTP

FILE = Path(__file__).parents[2] / "cluster-configs/aws-gpu-spot.yaml"
HEAD_TAGS = {"ray-node-type": "head"}


@pytest.fixture
def aws() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        emulator.shop.profiles.add("tradewind-head")
        yield emulator


def cluster_at(url: str, storage: Path) -> dict[str, Any]:
    """The shipped file, with what the emulated account has in the places that are marked."""
    cluster: dict[str, Any] = yaml.safe_load(FILE.read_text())
    fleet = cluster["provider"]["tradewind"]
    fleet["aws"]["endpoint_url"] = url
    fleet["controller"] = {"listen": "127.0.0.1:0"}
    fleet["boot"] = {"python": sys.executable}
    fleet["storage"] = str(storage)
    fleet["aws"]["regions"][0].update(
        image="ami-0123456789abcdef0",
        subnets={"us-east-1a": f"subnet-{1:017x}"},
        security_groups=["sg-0123456789abcdef0"],
    )
    return cluster


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FleetHome:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path / "home"))
    return FleetHome(tmp_path / "home", "aws-gpu")


def provider_at(aws: AwsEmulator, tmp_path: Path) -> Any:
    from tradewind.clouds.ray_provider import TradewindNodeProvider

    cluster = cluster_at(aws.url, tmp_path)
    return TradewindNodeProvider(cluster["provider"], cluster["cluster_name"])


def buy_head(controller: FakeController, aws: AwsEmulator, tmp_path: Path) -> str:
    """What a controller does: on record, and launched."""
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(cluster_at(aws.url, tmp_path)))
    (plan,) = cells_of(load_fleet(file))
    offer, at_s = plan.heads[0], controller.now_s
    spec = LaunchSpec("tw-1", "aws-gpu", plan.name, offer, "", {LABEL_LAUNCH_ID: "tw-1"}, role=Role.HEAD)
    open_cell(plan, lambda spec: "#!/bin/bash\n").provider.launch(spec)
    controller.record(
        LaunchRequested(at_s=at_s, launch_id="tw-1", offer=offer, reason="the head", cell=plan.name, role=Role.HEAD),
        NodeLaunched(at_s=at_s, launch_id="tw-1", instance_id="i-1"),
    )
    return "tw-1"


def test_the_head_is_the_controllers_and_seen_tagged_and_ended(
    aws: AwsEmulator, place: FleetHome, tmp_path: Path
) -> None:
    with served(place) as controller:
        head = buy_head(controller, aws, tmp_path)
        provider = provider_at(aws, tmp_path)
        provider.create_node({}, {**HEAD_TAGS, "ray-launch-config": "h1"}, 1)
        assert provider.non_terminated_nodes({**HEAD_TAGS, "ray-launch-config": "h1"}) == [head]
        assert provider.non_terminated_nodes({"ray-launch-config": "other"}) == []
        provider.set_node_tags(head, {"ray-node-status": "up-to-date"})
        again = provider_at(aws, tmp_path)  # another `ray` on this machine
        assert again.node_tags(head) == {**HEAD_TAGS, "ray-launch-config": "h1", "ray-node-status": "up-to-date"}
        assert not again.is_terminated(head)
        assert again.internal_ip(head) == again.external_ip(head) == aws.machines()[0].private_address != ""

        shell = again.get_command_runner("", head, {}, "x", None, True)
        with pytest.raises(Exception, match=f"{head} is booting"):
            shell.run("uptime")
        controller.record(NodeJoined(at_s=controller.now_s, launch_id=head, ray_node_id="ab"))
        assert shell.run("uptime", timeout=10, run_env="host") == ""

        again.terminate_nodes([head])
        assert controller.ended.is_set()
    assert again.non_terminated_nodes({}) == []
    assert again.is_terminated(head)
    again.cleanup_cluster_resources()
    assert again.tags.read() == {}


def test_without_a_controller_nodes_are_ended_by_the_cloud(aws: AwsEmulator, place: FleetHome, tmp_path: Path) -> None:
    """From another machine, or after the controller died: whatever carries the cluster's name."""
    with served(place) as controller:
        head = buy_head(controller, aws, tmp_path)
    provider = provider_at(aws, tmp_path)
    assert provider.non_terminated_nodes({"ray-node-type": "worker"}) == [head]
    provider.terminate_node(head)
    assert provider.non_terminated_nodes({}) == []


def test_workers_and_commands_are_refused_with_what_to_do(aws: AwsEmulator, place: FleetHome, tmp_path: Path) -> None:
    provider = provider_at(aws, tmp_path)
    with pytest.raises(Unsupported, match="workers are bought by Tradewind"):
        provider.create_node({}, {"ray-node-type": "worker"}, 1)
    shell = provider.get_command_runner("", "tw-1", {}, "x", None, True)
    with pytest.raises(Unsupported, match=r"has no SSH, so 'nvidia-smi'"):
        shell.run("nvidia-smi")
    assert shell.run("ray stop", timeout=3, run_env="auto") == ""
    with pytest.raises(Exception, match="the cloud does not list it"):
        shell.run("uptime")
