"""Looks at this machine and this fleet's home, for `tradewind doctor`. Changes nothing."""

from __future__ import annotations

import resource
import shutil
import socket
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from tradewind.autoscaler.providers.base import Check
from tradewind.controller_process import find_controller
from tradewind.errors import TradewindError
from tradewind.home import FleetHome

MIN_MEMORY_GIB = 2.0  # head, controller, and a few nodes of 250 MB
MIN_SHM_GIB = 0.25
MIN_DISK_GIB = 2.0
MIN_OPEN_FILES = 1024
_GIB = 2**30


def run_checks(place: FleetHome) -> list[Check]:
    checks: list[Callable[[], Check]] = [
        check_python,
        lambda: check_package("ray"),
        lambda: check_package("torch"),
        check_memory,
        check_shm,
        lambda: check_disk(place.root),
        check_open_files,
        check_addresses,
        lambda: check_home(place),
        lambda: check_token(place),
        lambda: check_controller(place),
    ]
    return [check() for check in checks]


def check_python() -> Check:
    found = ".".join(str(part) for part in sys.version_info[:3])
    return Check("python", sys.version_info >= (3, 11), f"{found} ({sys.executable})", "install Python 3.11 or newer")


def check_package(name: str) -> Check:
    """The installed version against the one that Tradewind was built for."""
    from packaging.requirements import Requirement

    wanted = [Requirement(text) for text in metadata.requires("tradewind") or ()]
    needed = next((need.specifier for need in wanted if need.name == name), None)
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Check(name, False, "not installed", f"pip install '{name}{needed or ''}'")
    ok = needed is None or needed.contains(found, prereleases=True)
    return Check(name, ok, f"{found} (wanted: {needed or 'any'})", f"pip install '{name}{needed}'")


def check_memory() -> Check:
    import psutil

    free_gib = psutil.virtual_memory().available / _GIB
    return Check("memory", free_gib >= MIN_MEMORY_GIB, f"{free_gib:.1f} GiB free", f"free {MIN_MEMORY_GIB:.0f} GiB")


def check_shm() -> Check:
    """Ray's object store lives there; where it is too small, Ray falls back to slow files."""
    path = Path("/dev/shm")
    if not path.is_dir():
        return Check("shared memory", True, "no /dev/shm on this system")
    free_gib = shutil.disk_usage(path).free / _GIB
    fix = "make /dev/shm larger (in Docker: --shm-size=1g)"
    return Check("shared memory", free_gib >= MIN_SHM_GIB, f"{free_gib:.1f} GiB free in /dev/shm", fix)


def check_disk(root: Path) -> Check:
    there = next(path for path in (root, *root.resolve().parents) if path.is_dir())
    free_gib = shutil.disk_usage(there).free / _GIB
    fix = "free some space, or give another --home"
    return Check("disk", free_gib >= MIN_DISK_GIB, f"{free_gib:.1f} GiB free in {there}", fix)


def check_open_files() -> Check:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return Check("open files", soft >= MIN_OPEN_FILES, f"limit {soft} (hard: {hard})", f"ulimit -n {MIN_OPEN_FILES}")


def check_addresses() -> Check:
    """The local cloud gives each node an address of its own, 127.0.0.2 and so on."""
    for address in ("127.0.0.1", "127.0.0.2"):
        with socket.socket() as probe:
            try:
                probe.bind((address, 0))
            except OSError as error:
                fix = f"make {address} usable (macOS: sudo ifconfig lo0 alias {address})"
                return Check("addresses", False, f"cannot listen on {address}: {error.strerror}", fix)
    return Check("addresses", True, "127.0.0.1 and 127.0.0.2 can be listened on")


def check_home(place: FleetHome) -> Check:
    try:
        place.make()
        probe = place.folder / ".probe"
        probe.write_text("")
        probe.unlink()
    except (TradewindError, OSError) as error:
        return Check("home", False, str(error), "give a folder that you may write to with --home")
    return Check("home", True, str(place.folder))


def check_token(place: FleetHome) -> Check:
    if not place.token_file.exists():
        return Check("token", True, "none yet: the controller writes it")
    try:
        place.read_token()
    except TradewindError as error:
        return Check("token", False, error.message, error.hint)
    return Check("token", True, f"{place.token_file}, for your eyes only")


def check_controller(place: FleetHome) -> Check:
    try:
        said, found = place.announced(), find_controller(place)
    except TradewindError as error:
        return Check("controller", False, error.message, error.hint)
    if found:
        return Check("controller", True, f"answers at {found.url}, process {found.pid}")
    if said:
        fix = "`tradewind up` starts it again and cleans up"
        return Check("controller", False, f"process {said.pid} died or does not listen at {said.url}", fix)
    return Check("controller", True, "none runs: `tradewind up` starts one")
