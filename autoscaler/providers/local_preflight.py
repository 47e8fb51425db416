"""Can this machine carry local Ray nodes? One check per thing that has gone wrong on small machines."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from tradewind.autoscaler.providers.base import Check
from tradewind.autoscaler.providers.raylets import (
    HEAD_IP,
    OBJECT_STORE_BYTES,
    free_ports,
    make_node_folder,
)
from tradewind.errors import RayError

_GIB = 2**30
MIN_FREE_MEMORY_BYTES = 2 * _GIB  # a head and two nodes with one torch worker each
MIN_SHM_BYTES = 3 * OBJECT_STORE_BYTES
MIN_DISK_BYTES = _GIB


def check_machine(root: Path) -> Sequence[Check]:
    return [_ray(), _memory(), _shared_memory(), _disk(root), _loopback(), _ports(), _path_length(root)]


def _ray() -> Check:
    try:
        return Check("ray", True, importlib.metadata.version("ray"))
    except importlib.metadata.PackageNotFoundError:
        return Check("ray", False, "not installed", "pip install 'ray[default,train,tune]'")


def _memory() -> Check:
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free_bytes = int(lines["MemAvailable"].split()[0]) * 1024
    fix = "close other programs, or use a machine with more memory"
    return _enough("free memory", free_bytes, MIN_FREE_MEMORY_BYTES, fix)


def _shared_memory() -> Check:
    free_bytes = shutil.disk_usage("/dev/shm").free
    return _enough("/dev/shm", free_bytes, MIN_SHM_BYTES, "in a container, start it with --shm-size=1g")


def _disk(root: Path) -> Check:
    existing = next(path for path in (root, *root.parents) if path.exists())
    return _enough(f"disk at {existing}", shutil.disk_usage(existing).free, MIN_DISK_BYTES, "free some disk space")


def _loopback() -> Check:
    """Every node has a loopback address of its own."""
    fix = "on macOS: sudo ifconfig lo0 alias 127.0.0.2 up (and .3, .4, ...)"
    try:
        with socket.socket() as probe:
            probe.bind((HEAD_IP, 0))
    except OSError as error:
        return Check("loopback addresses", False, f"{HEAD_IP}: {error}", fix)
    return Check("loopback addresses", True, f"{HEAD_IP} and up")


def _ports() -> Check:
    return Check("free ports", True, f"such as {free_ports(1)[0]}")


def _path_length(root: Path) -> Check:
    """As for the longest folder that a node may get."""
    try:
        make_node_folder(root / "n99999", "r", create=False)
    except RayError as error:
        return Check("temp folder", False, error.message, "set TMPDIR to a shorter folder")
    return Check("temp folder", True, f"{root} ({len(os.fsencode(root))} bytes)")


def _enough(name: str, found_bytes: int, needed_bytes: int, fix: str) -> Check:
    ok = found_bytes >= needed_bytes
    found = f"{found_bytes / _GIB:.1f} GiB" + ("" if ok else f", needs {needed_bytes / _GIB:.1f} GiB")
    return Check(name, ok, found, "" if ok else fix)
