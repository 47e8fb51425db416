"""Shared by all tests: one real Ray cell for the whole session, started when the first test asks for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_fleets import clean_up
from tradewind.autoscaler.providers.raylets import LocalHead, LocalNode, NodeShape, default_base, start_node
from tradewind.model import LABEL_LAUNCH_ID, RAY_NAMESPACE, Capacity, Market, Offer

# A shell that starts tests in the background has them ignore Ctrl-C, and all their children would, too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# One CPU and one accelerator each: small enough for many on two cores.
OFFERS = (
    Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 1, 2, "A10G", 1, 1, 420_000, 1_006_000),
    Offer(Market("gcp", "us-central1", "us-central1-a", "g2-standard-4", Capacity.SPOT), 1, 2, "L4", 1, 1, 280_000),
    Offer(Market("azure", "eastus", "eastus-1", "Standard_NC4as_T4_v3", Capacity.SPOT), 1, 2, "T4", 1, 1, 190_000),
    Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.ON_DEMAND), 1, 2, "A10G", 1, 1, 1_006_000),
)

settings.register_profile("tradewind", deadline=None)  # machines are shared: a slow example is no failure
settings.load_profile("tradewind")


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until `holds()`, or fail with `what`."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)


@dataclass
class Cell:
    """A Ray head without CPUs, a local cloud, and what a test needs to add nodes, run drivers and take nodes away."""

    root: Path
    head: LocalHead
    cloud: LocalCloud
    offers: tuple[Offer, ...] = OFFERS
    _nodes: list[LocalNode] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    @property
    def env(self) -> dict[str, str]:
        """For subprocesses that are drivers or job clients of this cell."""
        return {**os.environ, **self.head.env}

    def launch(self, offer: Offer | None = None, launch_id: str = "") -> str:
        """Buy a node in the local cloud; returns its launch id. `cloud.terminate([launch_id])` gives it back."""
        chosen = offer or self.offers[0]
        name = launch_id or f"c-{secrets.token_hex(3)}"
        self.cloud.launch(LaunchSpec(name, self.cloud.fleet, "local", chosen, self.head.gcs_address))
        return name

    def node(self, launch_id: str) -> CloudNode:
        return next(node for node in self.cloud.list_nodes() if node.launch_id == launch_id)

    def wait_gone(self, launch_id: str, timeout_s: float = 60.0) -> CloudNode:
        wait_until(lambda: self.node(launch_id).state is CloudState.GONE, f"{launch_id} gone", timeout_s)
        return self.node(launch_id)

    def wait_joined(self, launch_id: str, timeout_s: float = 180.0) -> dict[str, Any]:
        """What Ray says of a launched node once it has joined. Needs `driver()` around it."""
        wait_until(lambda: launch_id in self.ray_nodes(), f"{launch_id} joined Ray", timeout_s)
        return self.ray_nodes()[launch_id]

    def ray_nodes(self) -> dict[str, dict[str, Any]]:
        """By launch id: the nodes that Ray holds alive. Needs `driver()` around it."""
        import ray

        return {node["Labels"].get(LABEL_LAUNCH_ID, "head"): node for node in ray.nodes() if node["Alive"]}

    def add_node(
        self,
        *,
        cpus: int = 1,
        gpus: int = 0,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> LocalNode:
        """A Ray node of any shape past the cloud, joined when this returns. The test that adds it removes it."""
        number = next(self._numbers)
        launch_id = f"t-{number}"
        shape = NodeShape(cpus, gpus, resources=resources or {}, labels={LABEL_LAUNCH_ID: launch_id, **(labels or {})})
        node = start_node(
            self.root,
            launch_id,
            head_address=self.head.gcs_address,
            token_path=self.head.token_path,
            address_ip=f"127.0.200.{number}",
            shape=shape,
        )
        self._nodes.append(node)
        return node

    def remove_node(self, node: LocalNode) -> None:
        """At once, as a preemption without notice."""
        node.end()
        self._nodes = [other for other in self._nodes if other != node]

    @contextlib.contextmanager
    def nodes(self, count: int, *, cpus: int = 1, gpus: int = 0) -> Iterator[list[LocalNode]]:
        added = [self.add_node(cpus=cpus, gpus=gpus) for _ in range(count)]
        try:
            yield added
        finally:
            for node in added:
                self.remove_node(node)

    def run(self, source: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run Python source as a driver of this cell (`ray.init()` finds it), in a process of its own."""
        command = [sys.executable, "-c", source]
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=timeout_s)

    @contextlib.contextmanager
    def driver(self) -> Iterator[None]:
        """This process as a driver. Ray's token is read once in a process, so no other cell can be entered later."""
        import ray

        ray.init(
            address=self.head.gcs_address,
            namespace=RAY_NAMESPACE,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address=self.head.gcs_address.split(":")[0],
        )
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture(scope="session")
def cell() -> Iterator[Cell]:
    clean_up()  # after test sessions that were killed
    root = default_base() / f"t{secrets.token_hex(3)}"
    cloud = LocalCloud(root, "test", OFFERS, ephemeral=True)
    try:
        head = LocalHead.start(root)
        # The token counts for this process too, and must be there before Ray is first used in it.
        auth = {key: value for key, value in head.env.items() if key.startswith("RAY_AUTH_")}
        with pytest.MonkeyPatch.context() as patch:
            for key, value in auth.items():
                patch.setenv(key, value)
            yield Cell(root, head, cloud)
    finally:
        cloud.close()
    assert not root.exists()
