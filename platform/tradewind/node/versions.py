"""The versions that must fit between the nodes of a cell, and what does not fit. Thinks; `versions_here` looks."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

_DRIVER_TIMEOUT_S = 60.0  # the first call after a boot loads the driver


@dataclass(frozen=True, slots=True)
class Versions:
    """Empty: not there."""

    tradewind: str
    ray: str
    python: str
    torch: str = ""
    driver: str = ""  # NVIDIA's


def mismatches(head: Versions, node: Versions, drivers: Collection[str] = ()) -> tuple[str, ...]:
    """Why the node may not join; empty: it may. `drivers` are those of the nodes that are in the cell.

    Ray refuses another Ray or Python itself, but late and in few words. Of torch, the public version counts: a head
    without a GPU has another build of it than the nodes. A node without torch trains by something else. Drivers are
    compared between nodes, by branch (the first number): NCCL talks across them.
    """
    found = [
        f"{name} {theirs} on the node, {ours} on the head"
        for name, theirs, ours in (
            ("tradewind", node.tradewind, head.tradewind),
            ("ray", node.ray, head.ray),
            ("python", _minor(node.python), _minor(head.python)),
            ("torch", _public(node.torch), _public(head.torch)),
        )
        if theirs != ours and (name != "torch" or (theirs and ours))
    ]
    others = sorted({driver for driver in drivers if driver and _branch(driver) != _branch(node.driver)})
    if node.driver and others:
        found.append(f"NVIDIA driver {node.driver} on the node, {', '.join(others)} on the cell's other nodes")
    return tuple(found)


def versions_here() -> Versions:
    return Versions(
        tradewind=_installed("tradewind"),
        ray=_installed("ray"),
        python=platform.python_version(),
        torch=_installed("torch"),
        driver=_driver(),
    )


def _installed(name: str) -> str:
    """From the package's own record: importing torch would cost seconds."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _driver() -> str:
    command = shutil.which("nvidia-smi")
    if command is None:
        return ""
    asked = [command, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=_DRIVER_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return "unknown: nvidia-smi hangs"
    lines = done.stdout.split()
    return lines[0] if done.returncode == 0 and lines else ""


def _minor(text: str) -> str:
    return ".".join(text.split(".")[:2])


def _public(text: str) -> str:
    return text.partition("+")[0]


def _branch(driver: str) -> str:
    return driver.partition(".")[0]
