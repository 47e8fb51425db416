"""The local cloud with real Ray nodes: they join as sold, are taken with and without notice, and leave nothing."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tradewind.autoscaler.providers.base import CloudState
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_fleets import clean_up, read_owner
from tradewind.autoscaler.providers.local_processes import SessionRecord, members
from tradewind.autoscaler.providers.raylets import LocalHead, default_base
from tradewind.model import EndReason


@pytest.mark.ray
def test_nodes_join_as_sold_and_are_taken_with_and_without_notice(cell: Any) -> None:
    spot, other = cell.launch(cell.offers[0]), cell.launch(cell.offers[1])
    with cell.driver():
        found = cell.wait_joined(spot)
        assert found["Labels"].items() >= cell.offers[0].labels.items()
        assert {key: found["Resources"][key] for key in cell.offers[0].resources} == cell.offers[0].resources
        cell.wait_joined(other)
        assert cell.node(other).state is CloudState.RUNNING

        cell.cloud.preempt("aws/*/spot", notice_s=2)
        deadline_s = cell.node(spot).notice_deadline_s
        assert deadline_s is not None
        assert spot in cell.ray_nodes()
        gone = cell.wait_gone(spot)
        assert (gone.end, gone.billed_until_s >= deadline_s) == (EndReason.PREEMPTED, True)

        cell.cloud.preempt(other)
        assert cell.wait_gone(other).notice_deadline_s is None
        cell_nodes_left(cell, spot, other)
    assert cell.cloud.list_debris() == []


@pytest.mark.ray
def test_a_node_can_be_terminated_while_it_boots(cell: Any) -> None:
    name = cell.launch()
    while cell.node(name).state is CloudState.PENDING:
        time.sleep(0.02)
    cell.cloud.terminate([name])
    assert cell.cloud.wait_terminated([name], 30) == []
    assert cell.node(name).end is EndReason.TERMINATED
    assert cell.cloud.list_debris() == []


def cell_nodes_left(cell: Any, *names: str) -> None:
    """Ray notices that they are gone."""
    deadline_s = time.monotonic() + 30
    while set(names) & set(cell.ray_nodes()):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


# A controller in short: a fleet with a head and one node. It tells what it has, and waits to be killed.
CONTROLLER = """
import json, sys, time
from pathlib import Path
from tradewind.autoscaler.providers.base import CloudState, LaunchSpec
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.raylets import LocalHead
from tradewind.model import Capacity, Market, Offer

offer = Offer(Market("gcp", "us-central1", "us-central1-a", "g2-standard-4", Capacity.SPOT), 1, 2, "L4", 1, 1, 280_000)
root = Path(sys.argv[1])
cloud = LocalCloud(root, "doomed", [offer], ephemeral=sys.argv[2] == "ephemeral")
head = LocalHead.start(root)
cloud.launch(LaunchSpec("n-1", "doomed", "local", offer, head.gcs_address))
while not (root / "n1/r/ray.log").exists() or "runtime started" not in (root / "n1/r/ray.log").read_text():
    time.sleep(0.05)
print(json.dumps({"gcs": head.gcs_address, "dashboard": head.dashboard_url}), flush=True)
time.sleep(600)
"""


@pytest.fixture
def base() -> Iterator[Path]:
    folder = default_base() / f"b{secrets.token_hex(2)}"
    folder.mkdir()
    yield folder
    folder.rmdir()  # fails if anything was left


def start_controller(root: Path, kind: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
    command = [sys.executable, "-c", CONTROLLER, str(root), kind]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, process_group=0)
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the controller ended before its fleet was up"
    return process, json.loads(line)


def sessions(root: Path) -> list[SessionRecord]:
    return [SessionRecord.load(root / name / "session.json") for name in ("head", "n1/r")]


def is_listening(address: str) -> bool:
    host, port = address.removeprefix("http://").split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


@pytest.mark.e2e
def test_after_a_killed_owner_nothing_is_left_and_another_ray_is_not_touched(cell: Any, base: Path) -> None:
    root = base / "f"
    process, where = start_controller(root, "ephemeral")
    try:
        records = sessions(root)
        assert all(len(members(record)) > 2 for record in records)
        assert clean_up(base) == []  # its owner is alive
        process.kill()
        process.wait(30)
        assert is_listening(where["gcs"])
        assert all(members(record) for record in records)
        bystanders = {stat.pid for stat in members(cell.head.session)}
        assert clean_up(base) == [str(root)]
        assert not [record for record in records if members(record)]
        assert not is_listening(where["gcs"])
        assert not is_listening(where["dashboard"])
        assert bystanders <= {stat.pid for stat in members(cell.head.session)}
    finally:
        process.kill()
        process.communicate()
        clean_up(base)


@pytest.mark.e2e
def test_a_lasting_fleet_survives_ctrl_c_and_is_adopted(base: Path) -> None:
    root = base / "f"
    process, where = start_controller(root, "lasting")
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C in its shell: the controller ends, its nodes do not
    process.communicate()
    assert clean_up(base) == []  # it is meant to last
    owner = read_owner(root)
    assert owner is not None
    assert not owner.alive
    records = sessions(root)
    cloud = LocalCloud(root, "doomed", [], ephemeral=True)
    try:
        head = LocalHead.adopt(root)
        assert head is not None
        assert (head.gcs_address, head.alive) == (where["gcs"], True)
        (node,) = cloud.list_nodes()
        assert (node.launch_id, node.state) == ("n-1", CloudState.RUNNING)
        os.kill(records[1].pid, signal.SIGKILL)  # the adopted node is watched: it crashes, and is cleared away
        assert cloud.wait_terminated(["n-1"], 30) == []
        assert cloud.list_nodes()[0].end is EndReason.CRASHED
    finally:
        cloud.close()
    assert not [record for record in records if members(record)]
    assert not is_listening(where["gcs"])
