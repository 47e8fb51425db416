"""Plain `ray up` and `ray down` with each single-cloud file of cluster-configs, on machines that really boot: twice up
is one head, and after `down` the emulated cloud holds nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from cloud_sites import Cloud, on_aws, on_azure, on_gcp

from tradewind.client import connect
from tradewind.errors import ControllerError
from tradewind.home import FleetHome

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = Path(__file__).parents[2] / "cluster-configs"
FILES = {
    "aws-gpu-spot": on_aws,
    "gcp-gpu-spot": on_gcp,
    "gcp-tpu-slice": lambda: on_gcp(region="us-west4"),
    "azure-gpu-spot": on_azure,
}


def cluster_of(name: str, cloud: Cloud, storage: Path) -> dict[str, Any]:
    """The shipped file, with what the emulated account has in the places that are marked."""
    cluster: dict[str, Any] = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    fleet = cluster["provider"]["tradewind"]
    [(kind, text)] = cloud.sections.items()
    section = yaml.safe_load(text)[kind]
    regions = [each if isinstance(each, str) else each["name"] for each in fleet[kind]["regions"]]
    assert [f"{kind}-{region}" for region in regions] == [cloud.cell], "the emulated account is elsewhere"
    fleet[kind] = {**without_networks(fleet[kind]), **section}
    fleet["controller"] = {"listen": "127.0.0.1:0"}
    fleet["boot"] = {"python": sys.executable, "endpoints": {"ca_file": cloud.ca_file} if cloud.ca_file else {}}
    fleet["storage"] = str(storage)
    return cluster


def without_networks(section: dict[str, Any]) -> dict[str, Any]:
    """The emulated project has the default network alone."""
    return {key: value for key, value in section.items() if key not in ("network", "subnetwork")}


@pytest.mark.parametrize("name", FILES)
def test_ray_up_and_ray_down(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path / "home"))
    file = tmp_path / "cluster.yaml"
    with FILES[name]() as cloud:
        for key, value in cloud.environment.items():
            monkeypatch.setenv(key, value)
        cluster = cluster_of(name, cloud, tmp_path / "runs")
        file.write_text(yaml.safe_dump(cluster))
        place = FleetHome(tmp_path / "home", cluster["cluster_name"])
        try:
            assert "up-to-date" in ray("up", file, place, cloud)
            [head] = cloud.machines.names()
            ray("up", file, place, cloud)
            assert cloud.machines.names() == [head]
            assert "No nodes remaining" in ray("down", file, place, cloud)
        finally:
            end_what_a_failed_test_left(place)
        assert cloud.left() == []
        assert cloud.machines.wait_ended(cloud.machines.names(), 60.0) == []
    assert place.announced() is None


def ray(what: str, file: Path, place: FleetHome, cloud: Cloud) -> str:
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_UP_enable_autoscaler_v2": "1"}
    command = [sys.executable, "-m", "ray.scripts.scripts", what, str(file), "-y"]
    done = subprocess.run(command, env=env, text=True, capture_output=True, timeout=400, check=False)
    consoles = "".join(cloud.machines.console(name)[-3000:] for name in cloud.machines.names())
    assert done.returncode == 0, done.stdout + done.stderr + place.log_tail(40) + consoles
    return done.stdout + done.stderr


def end_what_a_failed_test_left(place: FleetHome) -> None:
    try:
        connect(place.root, place.fleet, start=False).down()
    except ControllerError:
        return
