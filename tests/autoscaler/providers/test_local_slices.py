"""Slices of the local cloud: all hosts or none; and, with real Ray nodes, what Ray's own slice reservation gets."""

from __future__ import annotations

import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.autoscaler.clock import SystemClock
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.providers.base import CloudState, LaunchSpec
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_machines import PretendMachines, RayMachines
from tradewind.autoscaler.providers.raylets import default_base
from tradewind.autoscaler.ray_state import RayState
from tradewind.autoscaler.slices import tpu_hosts
from tradewind.autoscaler.view import LoopSettings
from tradewind.events import AnyEvent, HoldingChanged, LaunchRequested, NodeJoined
from tradewind.model import Capacity, EndReason, Market, Offer
from tradewind.states import NodeState

PLACE = Market("gcp", "us-central2", "us-central2-b", "tpu-v4-16", Capacity.SPOT)
SLICE = Offer(PLACE, 1, 2, "TPU-V4", 4, 2, 7_372_000)
LARGER = Offer(replace(PLACE, instance_type="tpu-v4-32"), 1, 2, "TPU-V4", 4, 4, 9_000_000)
SINGLE = Offer(replace(PLACE, instance_type="g2-standard-4"), 4, 16, "L4", 1, 1, 300_000)


# --- without processes ----------------------------------------------------------------------------------------------


@pytest.fixture
def machines() -> PretendMachines:
    return PretendMachines()


@pytest.fixture
def cloud(tmp_path: Path, machines: PretendMachines) -> Iterator[LocalCloud]:
    opened = LocalCloud(tmp_path / "fleet", "test", (SLICE, SINGLE), machines=machines, watch=False)
    yield opened
    opened.close()


def launch(cloud: LocalCloud, launch_id: str = "n-1", offer: Offer = SLICE) -> None:
    cloud.launch(LaunchSpec(launch_id, "test", "local", offer, "127.0.0.2:20000"))


def test_a_slice_is_one_node_of_the_list_with_a_machine_for_each_host(
    cloud: LocalCloud, machines: PretendMachines
) -> None:
    launch(cloud)
    launch(cloud, "n-2", SINGLE)
    cloud.step()
    assert [node.state for node in cloud.list_nodes()] == [CloudState.RUNNING] * 2
    assert machines.running == {"n1/r", "n1/r1", "n3/r"}  # the numbers, and so the addresses, of hosts differ
    cloud.terminate(["n-1"])
    assert machines.running == {"n3/r"}
    assert machines.ended == ["n1"]


def test_a_host_that_does_not_boot_fails_the_slice(cloud: LocalCloud, machines: PretendMachines) -> None:
    machines.failing_boots = 1  # is tried again
    launch(cloud)
    cloud.step()
    assert cloud.list_nodes()[0].state is CloudState.RUNNING
    machines.failing_boots = 2
    launch(cloud, "n-2")
    cloud.step()
    assert (cloud.list_nodes()[1].state, cloud.list_nodes()[1].end) == (CloudState.GONE, EndReason.CRASHED)
    assert machines.running == {"n1/r", "n1/r1"}


@pytest.mark.parametrize("host", [0, 1])
def test_a_slice_ends_with_any_of_its_hosts(cloud: LocalCloud, machines: PretendMachines, host: int) -> None:
    launch(cloud)
    cloud.step()
    machines.crash(1, host)
    cloud.step()
    [node] = cloud.list_nodes()
    assert (node.end, machines.running) == (EndReason.CRASHED, set())


def test_a_slice_is_taken_back_as_a_whole(cloud: LocalCloud, machines: PretendMachines) -> None:
    launch(cloud)
    cloud.step()
    assert cloud.preempt("gcp/*/tpu-v4-16/spot") == ["n-1"]
    assert (cloud.list_nodes()[0].end, machines.running) == (EndReason.PREEMPTED, set())


# --- with real Ray nodes --------------------------------------------------------------------------------------------

# Reserves a slice by Ray's own means, uses every host of it, says where it was, and gives it back when told.
DRIVER = """
import os, sys, ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from ray.util.tpu import slice_placement_group
ray.init(namespace="somebody", log_to_driver=False, logging_level="ERROR")
@ray.remote(num_cpus=0, resources={"TPU": 4})
def where(): return os.environ["TPU_NAME"] + ":" + os.environ["TPU_WORKER_ID"]
held = slice_placement_group(topology="2x2x2", accelerator_version="v4")
group = held.placement_group
ray.get(group.ready(), timeout=120)
on = [PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i) for i in range(held.num_bundles)]
print(*sorted(ray.get([where.options(scheduling_strategy=each).remote() for each in on])), flush=True)
sys.stdin.readline()
held.shutdown()
"""


class Fleet:
    """A loop over the cell of the test session and a local cloud of its own."""

    def __init__(self, cell: Any, cloud: LocalCloud) -> None:
        self.events: list[AnyEvent] = []
        self.state, self.ray = FleetState(), RayState(cell.head.gcs_address)
        settings = LoopSettings("slices", head_address=cell.head.gcs_address, idle_timeout_s=1, min_node_life_s=1)
        self.loop = Loop(
            clock=SystemClock(),
            record=self.record,
            fleet=self.state,
            ray=self.ray,
            providers={"gcp": cloud},
            prices=cloud,
            settings=settings,
        )

    def record(self, *events: AnyEvent) -> None:
        for event in events:
            self.events.append(event)
            self.state.apply(event)

    def of_kind(self, kind: type[AnyEvent]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def tick_until(self, holds: Any, what: str, timeout_s: float = 150.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < deadline_s, f"not within {timeout_s:.0f} s: {what}"
            self.loop.tick()
            time.sleep(0.3)


@pytest.fixture
def fleet(cell: Any) -> Iterator[Fleet]:
    root, machines = default_base() / f"s{secrets.token_hex(3)}", RayMachines(cell.head.token_path)
    cloud = LocalCloud(root, "slices", (SLICE, LARGER), machines=machines, ephemeral=True)
    made = Fleet(cell, cloud)
    yield made
    made.ray.close()
    cloud.close()
    assert not root.exists()


@pytest.mark.ray
@pytest.mark.slow
def test_a_slice_reserved_by_rays_own_means_is_bought_used_and_gone(cell: Any, fleet: Fleet) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER], env=cell.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        fleet.tick_until(lambda: fleet.of_kind(NodeJoined), "the slice joined")
        [launched] = fleet.of_kind(LaunchRequested)
        name = launched.launch_id
        assert launched.offer.market.instance_type == "tpu-v4-16"
        fleet.tick_until(
            lambda: any(event.resources.get("TPU") == 8 for event in fleet.of_kind(HoldingChanged)), "both hosts held"
        )
        hosts = [node for node in fleet.ray.snapshot().nodes if node.launch_id == name and node.is_alive]
        for host, tpu in zip(
            sorted(hosts, key=lambda each: each.labels["ray.io/tpu-worker-id"]), tpu_hosts(SLICE, name), strict=True
        ):
            assert host.labels.items() >= {**SLICE.labels, **tpu.labels}.items()
            assert host.total.items() >= {**SLICE.resources, **tpu.resources}.items()
            assert ("TPU-v4-16-head" in host.total) is (tpu.number == 0)
        assert process.stdout.readline().split() == [f"{name}:0", f"{name}:1"]
        process.communicate("give it back\n", timeout=60)
    finally:
        process.kill()
        process.wait()
    fleet.tick_until(lambda: fleet.state.nodes[name].state is NodeState.GONE, "the slice gone")
    assert len(fleet.of_kind(LaunchRequested)) == 1
    assert fleet.state.nodes[name].end is EndReason.TERMINATED
