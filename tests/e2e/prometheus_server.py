"""A real Prometheus on loopback, with the project's own configuration: for tests."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

CONFIG = Path(__file__).parents[2] / "cluster-configs" / "prometheus"
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="the Debian package `prometheus` is absent: `make system` installs it",
)


@dataclass(frozen=True)
class Prometheus:
    port: int
    log: Path

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as reply:
            return json.load(reply)["data"]

    def query(self, expression: str) -> list[Any]:
        found: list[Any] = self.ask(f"/api/v1/query?query={urllib.parse.quote(expression)}")["result"]
        return found

    def health(self) -> list[str]:
        """Of its targets; empty while it starts."""
        try:
            return [target["health"] for target in self.ask("/api/v1/targets")["activeTargets"]]
        except OSError:
            return []

    def wait_up(self, timeout_s: float = 120.0) -> None:
        until_s = time.monotonic() + timeout_s
        while self.health() != ["up"]:
            assert time.monotonic() < until_s, self.log.read_text()[-2000:]
            time.sleep(0.5)


@contextmanager
def scraping(folder: Path, target_port: int, token: str) -> Iterator[Prometheus]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = (CONFIG / "prometheus.yml").read_text()
    (folder / "prometheus.yml").write_text(
        config.replace("15s", "1s").replace("127.0.0.1:8430", f"127.0.0.1:{target_port}")
    )
    (folder / "token").write_text(token)
    shutil.copy(CONFIG / "alerts.yml", folder)
    flags = [f"--web.listen-address=127.0.0.1:{port}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "log").open("wb") as log:
        command = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", *flags]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield Prometheus(port, folder / "log")
    finally:
        process.terminate()
        process.wait(30)
