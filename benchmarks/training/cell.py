"""A private Ray cell of real nodes on this machine, for the benchmarks of training: add, kill and drain nodes.

Every node is a session of processes with an address and a folder of its own (`autoscaler/providers/raylets.py`).
Only processes that were started here are ever ended.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.autoscaler.providers.raylets import LocalHead, LocalNode, NodeShape, default_base, start_node
from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.ray_state import RayState
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID

BENCHMARKS = Path(__file__).parents[1]
TAIL_CHARS = 3000
STARTS = 3


class BenchmarkFailed(Exception):
    """Something that is measured did not happen in time; the message shows what the training said last."""


@dataclass
class Cell:
    """A head without CPUs, and nodes with one CPU each, so that each holds one worker."""

    root: Path
    head: LocalHead
    state: RayState
    nodes: list[LocalNode] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def add(self) -> LocalNode:
        """A further node, joined when this returns (2 to 3 s). Ray gives a node 30 s to start, which is short on a
        machine that is busy with other things: so there are further tries."""
        for _ in range(STARTS - 1):
            try:
                return self._add()
            except RayError as error:
                print(f"starting a node once more: {error.message}", file=sys.stderr)
        return self._add()

    def _add(self) -> LocalNode:
        number = next(self._numbers)
        node = start_node(
            self.root,
            f"n{number}",
            head_address=self.head.gcs_address,
            token_path=self.head.token_path,
            address_ip=f"127.0.{100 + number // 250}.{1 + number % 250}",
            shape=NodeShape(1, labels={LABEL_LAUNCH_ID: f"n{number}"}),
            env=_import_path(),
        )
        self.nodes.append(node)
        return node

    def kill(self, node: LocalNode) -> float:
        """Without notice: every process of the node at once. Returns when that began, in epoch seconds."""
        began_s = time.time()
        self.nodes.remove(node)
        node.end()
        return began_s

    def drain(self, node: LocalNode, notice_s: float) -> float:
        """The notice of a preemption. Returns the deadline, in epoch seconds; killing it then is left to the caller."""
        deadline_s = time.time() + notice_s
        (found,) = [row for row in self.state.snapshot().nodes if row.launch_id == node.launch_id and row.is_alive]
        accepted, why = self.state.drain(found.ray_node_id, DrainReason.PREEMPTION, "spot notice", deadline_s)
        if not accepted:
            raise BenchmarkFailed(f"Ray refused the drain of {node.launch_id}: {why}")
        return deadline_s

    def start(
        self, module: str, arguments: Sequence[str], folder: Path, env: Mapping[str, str] | None = None
    ) -> Driver:
        """Run `python -m module arguments` as a driver of this cell, in a process of its own."""
        command = [sys.executable, "-m", module, *arguments]
        merged = {**os.environ, **_import_path(), **self.head.env, **(env or {})}
        return Driver(command, merged, folder / f"{module}.log")


class Driver:
    """A process that trains. `with` ends it."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(command, env=dict(env), stdout=out, stderr=subprocess.STDOUT)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def wait_for(self, holds: Callable[[], bool], what: str, timeout_s: float) -> None:
        """Poll until `holds()`. An end of the process before that is a failure, too."""
        end_s = time.monotonic() + timeout_s
        while not holds():
            if self.process.poll() is not None:
                status = f"exit status {self.process.returncode}"
                raise BenchmarkFailed(f"the training ended ({status}) before this came: {what}\n{self.tail()}")
            if time.monotonic() > end_s:
                raise BenchmarkFailed(f"not within {timeout_s:.0f} s: {what}\n{self.tail()}")
            time.sleep(0.2)

    def wait(self, timeout_s: float) -> None:
        try:
            code = self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise BenchmarkFailed(f"the training did not end within {timeout_s:.0f} s\n{self.tail()}") from None
        if code != 0:
            raise BenchmarkFailed(f"the training ended with status {code}\n{self.tail()}")

    def tail(self) -> str:
        return f"--- end of {self.log}:\n{self.log.read_text(errors='replace')[-TAIL_CHARS:]}"


@contextlib.contextmanager
def open_cell(num_nodes: int) -> Iterator[Cell]:
    """A cell with `num_nodes` nodes. All of it is ended and removed at the end, whatever happens."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # `timeout` sends it: the nodes must not stay behind
    root = default_base() / f"b{secrets.token_hex(3)}"
    root.mkdir()
    head = LocalHead.start(root, env=_import_path())
    try:
        os.environ.update(head.env)  # the token counts for this process too, before Ray is first used in it
        cell = Cell(root, head, RayState(head.gcs_address))
        try:
            for _ in range(num_nodes):
                cell.add()
            yield cell
        finally:
            cell.state.close()
            for node in cell.nodes:
                node.end()
    finally:
        head.stop(grace_s=0.0)
        shutil.rmtree(root, ignore_errors=True)  # nodes that did not start leave their logs


def _import_path() -> dict[str, str]:
    """Workers import `training.*` by its name, wherever the benchmark was started."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return {"PYTHONPATH": os.pathsep.join([str(BENCHMARKS), *(path for path in given if path)])}
