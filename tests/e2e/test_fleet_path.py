"""The whole path on real Ray nodes, through the commands that people use: up, submit, a job sent past us, a controller
that is killed, cost, down."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from fleet_home import home_of, until

from tradewind.client import Fleet, connect
from tradewind.home import FleetHome
from tradewind.service import local_root
from tradewind.states import JobState, NodeState

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(420)]

FLEET = """\
name: path
offers:
  - {cloud: azure, region: eastus2, instance_type: Standard_NC4as_T4_v3}
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
limits: {max_nodes: 3}
timing: {tick: 500ms, idle_timeout: 5s, boot_timeout: 2m, min_node_life: 1s}
local: {stock: 2, launch_delay: 100ms, cpus_per_node: 1}
"""
# Sent by plain `ray job submit`: knows nothing of Tradewind, asks Ray for a GPU.
FOREIGN = """\
import ray, time
ray.init(log_to_driver=False)
@ray.remote(num_gpus=1, num_cpus=1)
def work():
    time.sleep(15)  # longer than the controller is away: what is held meanwhile is seen by nobody
    return ray.get_runtime_context().get_node_id()
print("worked on", ray.get(work.remote()))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "foreign.py").write_text(FOREIGN)
    with home_of(tmp_path, "path") as where:
        yield where


def tradewind(place: FleetHome, *arguments: str) -> Any:
    """A command in a process of its own; its --json output."""
    command = [sys.executable, "-m", "tradewind.cli", "--home", str(place.root), "--fleet", place.fleet, *arguments]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=300, cwd=place.root.parent)
    assert done.returncode == 0, f"{arguments}: {done.stdout}\n{done.stderr}\n{place.log_tail(40)}"
    return json.loads(done.stdout)


def ray_env(fleet: Fleet) -> dict[str, str]:
    found = fleet.ray_env()
    return {**os.environ, **found}


def submit_past_us(fleet: Fleet, folder: Path) -> str:
    """Plain `ray job submit`, as anybody would."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait", "--submission-id", "past-us"]
    command += ["--metadata-json", '{"tenant": "vision"}', "--", sys.executable, str(folder / "foreign.py")]
    done = subprocess.run(command, env=ray_env(fleet), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return "past-us"


def test_from_up_to_down(place: FleetHome) -> None:
    folder = place.root.parent
    started = tradewind(place, "up", str(folder / "fleet.yaml"))
    root = local_root(place)
    fleet = connect(place.root, place.fleet, start=False)

    # A job of ours and one that was sent past us, both served by bought nodes.
    ours = fleet.submit([sys.executable, str(folder / "foreign.py")], name="ours", working_dir=folder)
    past_us = submit_past_us(fleet, folder)
    until(lambda: any(n.state is NodeState.READY for n in fleet.nodes()), "a node joins", place)

    # The controller is killed at once and started again: it adopts head, nodes and jobs, and launches nothing twice.
    os.kill(started["pid"], signal.SIGKILL)
    until(lambda: not psutil.pid_exists(started["pid"]), "the controller is dead", place)
    before = set(root.glob("*/*/session.json"))
    again = tradewind(place, "up", str(folder / "fleet.yaml"))
    assert again["pid"] != started["pid"]
    assert before <= set(root.glob("*/*/session.json")), "nodes survive their controller"
    fleet = connect(place.root, place.fleet, start=False)

    for job_id in (ours.job_id, past_us):
        until(lambda job_id=job_id: fleet.job(job_id).info.state is JobState.SUCCEEDED, f"{job_id} succeeds", place)
    assert "worked on" in fleet.job(ours.job_id).logs()
    assert fleet.job(past_us).info.foreign

    launches = [line.event for line in fleet.events(limit=10_000) if line.event["kind"] == "launch_requested"]
    assert len({event["launch_id"] for event in launches}) == len(launches) <= 3
    until(lambda: all(n.state is NodeState.GONE for n in fleet.nodes()), "idle nodes go", place)

    bill = tradewind(place, "cost")
    assert bill["simulated"] is True
    assert bill["total_uusd"] == sum(node["cost_uusd"] for node in bill["nodes"]) > 0
    assert bill["total_uusd"] == sum(bill["labels_uusd"].values())
    paid = {job["job_id"]: job["cost_uusd"] for job in bill["jobs"]}
    assert paid[past_us] > 0
    assert {job["tenant"] for job in bill["jobs"]} == {"default", "vision"}

    report = tradewind(place, "down", "--yes")
    assert report["left"] == []
    until(lambda: not psutil.pid_exists(again["pid"]), "the controller ends", place)
    until(lambda: not root.exists(), "its folder is gone", place)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(root) in " ".join(p.info["cmdline"] or [])]


def test_a_second_controller_is_refused(place: FleetHome) -> None:
    tradewind(place, "up", str(place.root.parent / "fleet.yaml"))
    command = [sys.executable, "-m", "tradewind.service", "--home", str(place.root), "--fleet", place.fleet]
    second = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert second.returncode == 1
    assert "tradewind down" in second.stderr
    assert tradewind(place, "status")["fleet"] == "path", "the first one goes on"
    tradewind(place, "down", "--yes")
