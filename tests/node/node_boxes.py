"""Machines for tests of the boot: processes with own loopback addresses, folders and `shutdown`, that run user-data."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import tradewind
from tradewind.autoscaler.providers.local_processes import SessionRecord, end_session, is_running, start_session
from tradewind.certificates import Authority
from tradewind.node.boot_plan import BootPlan, user_data
from tradewind.node.folder_secrets import FolderSecrets

RAY_TOKEN, AGENT_TOKEN = "5ec4e7" * 10, "a6e27" * 12
TREE = Path(tradewind.__file__).parents[1]
SHUTDOWN = """#!/bin/bash
echo "$@" >> "$TRADEWIND_NODE_DIR/shut-down"
"""


@dataclass
class Box:
    """One machine."""

    plan: BootPlan
    folder: Path
    session: SessionRecord

    @property
    def console(self) -> str:
        return (self.folder / "console").read_text(errors="replace")

    @property
    def is_up(self) -> bool:
        return (self.folder / "n" / "up").exists()

    @property
    def was_shut_down(self) -> bool:
        return (self.folder / "n" / "shut-down").exists()

    @property
    def is_running(self) -> bool:
        return is_running(self.session)

    def end(self) -> None:
        assert end_session(self.session) == []


@dataclass
class Boxes:
    """A cell's machines on this one. `root` must be short: Ray's sockets lie below."""

    root: Path
    network: str  # "127.7.1."
    authority: Authority = field(default_factory=lambda: Authority.make("cell", time.time()))
    boxes: list[Box] = field(default_factory=list)

    def __post_init__(self) -> None:
        secrets = FolderSecrets(self.root / "secrets")
        head = {"ray_token": RAY_TOKEN, "agent_token": AGENT_TOKEN, "ca_key_pem": self.authority.key_pem}
        secrets.put("tradewind/f/c/head", json.dumps(head))
        secrets.put("tradewind/f/c/node", json.dumps({"ray_token": RAY_TOKEN}))

    def plan(self, role: str, launch_id: str, **more: object) -> BootPlan:
        number = len(self.boxes) + 2
        found = BootPlan(
            fleet="f",
            cell="c",
            launch_id=launch_id,
            cloud="local",
            region="here",
            role="head" if role == "head" else "worker",
            secret=f"tradewind/f/c/{'head' if role == 'head' else 'node'}",
            ca_pem=self.authority.cert_pem,
            head_address="" if role == "head" else "127.0.0.1:1",
            join_url="" if role == "head" else "https://127.0.0.1:1",
            python=sys.executable,
            num_cpus=1,
            endpoints={
                "address": f"{self.network}{number}",
                "secrets": f"file://{self.root / 'secrets'}",
            },
        )
        return replace(found, **more)  # type: ignore[arg-type]

    def boot(self, plan: BootPlan, env: Mapping[str, str] | None = None) -> Box:
        folder = self.root / plan.launch_id
        (folder / "bin").mkdir(parents=True)
        (folder / "t").mkdir()
        shim = folder / "bin" / "shutdown"
        shim.write_text(SHUTDOWN)
        shim.chmod(0o755)
        script = folder / "user-data"
        script.write_text(user_data(plan))
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        own = {"HOME": str(folder), "TMPDIR": str(folder / "t"), "TRADEWIND_NODE_DIR": str(folder / "n"), "PATH": path}
        own["TRADEWIND_START_LOCK"] = str(self.root / "start.lock")
        own["RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES"] = "80000000"
        given = {**os.environ, "PYTHONPATH": str(TREE), "OMP_NUM_THREADS": "1", **own, **(env or {})}
        session = start_session(["bash", str(script)], given, folder / "console", folder / "session.json")
        self.boxes.append(Box(plan, folder, session))
        return self.boxes[-1]


@contextmanager
def boxes_in(root: Path, network: str) -> Iterator[Boxes]:
    found = Boxes(root, network)
    try:
        yield found
    finally:
        for box in found.boxes:
            box.end()


def wait_for(what: Callable[[], bool], box: Box, timeout_s: float = 120.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < until_s, f"not in time; its console:\n{box.console}"
        time.sleep(0.1)
