"""Plain `ray up` and `ray down` with a file of ours, on the AWS emulator; and the node provider by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.errors import AmbiguousOutcome, Unsupported

FILE = Path(__file__).parents[2] / "cluster-configs/aws-gpu-spot.yaml"
HEAD_TAGS = {"ray-node-type": "head"}


@pytest.fixture
def aws() -> Iterator[AwsEmulator]:
    with AwsEmulator() as emulator:
        emulator.shop.profiles.add("tradewind-head")
        yield emulator


def cluster_at(url: str) -> dict[str, Any]:
    """The shipped file, with what the emulated account has in the places that are marked."""
    cluster: dict[str, Any] = yaml.safe_load(FILE.read_text())
    cluster["provider"]["module"] = "ray_up_boot.PlainBoot"
    fleet = cluster["provider"]["tradewind"]
    fleet["aws"]["endpoint_url"] = url
    region = fleet["aws"]["regions"][0]
    region.update(
        image="ami-0123456789abcdef0",
        subnets={"us-east-1a": f"subnet-{1:017x}", "us-east-1b": f"subnet-{2:017x}"},
        security_groups=["sg-0123456789abcdef0"],
    )
    return cluster


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path / "home"))


def provider_at(aws: AwsEmulator) -> Any:
    from ray_up_boot import PlainBoot

    cluster = cluster_at(aws.url)
    return PlainBoot(cluster["provider"], cluster["cluster_name"])


@pytest.mark.usefixtures("environment")
def test_a_head_is_made_seen_tagged_and_ended(aws: AwsEmulator) -> None:
    provider = provider_at(aws)
    provider.create_node({}, {**HEAD_TAGS, "ray-launch-config": "h1"}, 1)
    (head,) = provider.non_terminated_nodes({**HEAD_TAGS, "ray-launch-config": "h1"})
    assert provider.non_terminated_nodes({"ray-launch-config": "other"}) == []
    provider.set_node_tags(head, {"ray-node-status": "up-to-date"})
    again = provider_at(aws)  # another `ray` on this machine
    assert again.node_tags(head) == {**HEAD_TAGS, **again.node_tags(head), "ray-node-status": "up-to-date"}
    assert not again.is_terminated(head)
    assert again.internal_ip(head) == again.external_ip(head) == aws.machines()[0].private_address
    (machine,) = aws.machines()
    assert (machine.profile, machine.type, machine.is_spot) == ("tradewind-head", "m7i.large", False)
    again.terminate_nodes([head])
    assert again.non_terminated_nodes({}) == []
    assert again.is_terminated(head)


@pytest.mark.usefixtures("environment")
def test_a_killed_ray_up_is_repeated_under_the_same_launch_id(aws: AwsEmulator) -> None:
    """The launch was recorded and carried out, its answer was lost, and the cloud does not list it yet."""
    aws.faults.cut_after = 1
    with pytest.raises(AmbiguousOutcome):
        provider_at(aws).create_node({}, HEAD_TAGS, 1)
    aws.calls.listing_lag_s = 600.0
    second = provider_at(aws)
    assert second.non_terminated_nodes(HEAD_TAGS) == []
    second.create_node({}, HEAD_TAGS, 1)
    assert len(second.non_terminated_nodes(HEAD_TAGS)) == 1
    assert len(aws.machines()) == 1


@pytest.mark.usefixtures("environment")
def test_a_zone_that_is_sold_out_is_left_for_the_next(aws: AwsEmulator) -> None:
    aws.shop.sold_out.add(("us-east-1a", "m7i.large", False))
    provider = provider_at(aws)
    provider.create_node({}, HEAD_TAGS, 1)
    assert [machine.zone for machine in aws.machines()] == ["us-east-1b"]
    assert len(provider.tags.read()) == 1


@pytest.mark.usefixtures("environment")
def test_from_another_machine_nodes_are_known_by_the_clouds_tags(
    aws: AwsEmulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider_at(aws).create_node({}, HEAD_TAGS, 1)
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path / "elsewhere"))
    assert len(provider_at(aws).non_terminated_nodes(HEAD_TAGS)) == 1


@pytest.mark.usefixtures("environment")
def test_workers_and_commands_are_refused_with_what_to_do(aws: AwsEmulator) -> None:
    provider = provider_at(aws)
    with pytest.raises(Unsupported, match="workers are bought by Tradewind"):
        provider.create_node({}, {"ray-node-type": "worker"}, 1)
    shell = provider.get_command_runner("", "tw-head-1", {}, "x", None, True)
    with pytest.raises(Unsupported, match=r"has no SSH, so 'nvidia-smi'"):
        shell.run("nvidia-smi")
    assert shell.run("ray stop", timeout=3, run_env="auto") == ""
    with pytest.raises(Exception, match="the cloud does not list it"):
        shell.run("uptime")


@pytest.mark.usefixtures("environment")
def test_ray_up_and_ray_down(aws: AwsEmulator, tmp_path: Path) -> None:
    """Ray's own command line: twice up is one head, and after `down` the cloud holds nothing."""
    file = tmp_path / "cluster.yaml"
    file.write_text(yaml.safe_dump(cluster_at(aws.url)))
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "PYTHONPATH": path, "TMPDIR": str(tmp_path), "RAY_USAGE_STATS_ENABLED": "0"}

    def ray(*arguments: str) -> str:
        command = [sys.executable, "-m", "ray.scripts.scripts", *arguments, str(file), "-y"]
        done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=200, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    ray("up")
    assert [machine.profile for machine in aws.machines()] == ["tradewind-head"]
    ray("up")
    assert len(aws.machines()) == 1
    said = ray("down")
    assert "No nodes remaining" in said
    assert "no SSH" not in said
    assert [machine.state for machine in aws.machines()] in ([], ["shutting-down"])
