"""Shared by all tests: one real Ray cell for the whole session, started when the first test asks for it."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tradewind.autoscaler.providers.raylets import LocalHead, LocalNode, NodeShape, default_base, start_node
from tradewind.model import LABEL_LAUNCH_ID, RAY_NAMESPACE


def wait_until(holds: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
    """Poll until `holds()`, or fail with `what`."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.1)


@dataclass
class Cell:
    """A Ray head without CPUs, and what a test needs to add nodes, run drivers and take nodes away."""

    root: Path
    head: LocalHead
    _nodes: list[LocalNode] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(3))

    @property
    def env(self) -> dict[str, str]:
        """For subprocesses that are drivers or job clients of this cell."""
        return {**os.environ, **self.head.env}

    def add_node(
        self,
        *,
        cpus: int = 1,
        gpus: int = 0,
        resources: Mapping[str, float] | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> LocalNode:
        """One more Ray node, joined when this returns. The test that adds it removes it."""
        number = next(self._numbers)
        launch_id = f"t-{number}"
        shape = NodeShape(cpus, gpus, resources or {}, {LABEL_LAUNCH_ID: launch_id, **(labels or {})})
        node = start_node(
            self.root,
            launch_id,
            head_address=self.head.gcs_address,
            token_path=self.head.token_path,
            address_ip=f"127.0.0.{number}",
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

    def close(self) -> None:
        for node in self._nodes:
            node.end()
        self.head.stop()
        shutil.rmtree(self.root)


@pytest.fixture(scope="session")
def cell() -> Iterator[Cell]:
    root = default_base() / f"t{secrets.token_hex(3)}"
    root.mkdir()
    head = LocalHead.start(root)
    # The token counts for this process too, and must be there before Ray is first used in it.
    auth = {key: value for key, value in head.env.items() if key.startswith("RAY_AUTH_")}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in auth.items():
            patch.setenv(key, value)
        shared = Cell(root, head)
        yield shared
        shared.close()
