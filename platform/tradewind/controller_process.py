"""Finds the controller of a fleet, and starts one when there is none. All the process handling of the client."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tradewind.errors import ControllerError
from tradewind.home import Announcement, FleetHome
from tradewind.wire import is_healthy

START_TIMEOUT_S = 120.0
CONTROLLER: tuple[str, ...] = (sys.executable, "-m", "tradewind.service")


def find_controller(place: FleetHome) -> Announcement | None:
    """The one that runs, or None. A file that a dead controller left behind counts as none."""
    found = place.announced()
    return found if found and is_healthy(found.url, found.pid) else None


def ensure_controller(
    place: FleetHome,
    config: Path | None = None,
    command: Sequence[str] = CONTROLLER,
    timeout_s: float = START_TIMEOUT_S,
) -> tuple[Announcement, subprocess.Popen[bytes] | None]:
    """The one that runs, or a new one (then with its process)."""
    if found := find_controller(place):
        return found, None
    with place.starting(timeout_s):
        if found := find_controller(place):  # another process was quicker
            return found, None
        old = place.log_size()
        process = start_controller(place, config, command)
        try:
            found = _await_controller(place, process, timeout_s, old)
        except KeyboardInterrupt:  # it does not see Ctrl-C itself, and nobody would know that it runs
            _end(process)
            raise
        if found.pid == process.pid:
            return found, process
        _end(process)  # one that was started by hand was quicker
        return found, None


def start_controller(place: FleetHome, config: Path | None, command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Detached: a session of its own, so that Ctrl-C in the terminal and the end of the notebook do not reach it."""
    place.make()
    with open(place.log_file, "ab") as log:
        return subprocess.Popen(
            controller_command(place, config, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=place.folder,  # `python -m` puts the folder on sys.path: this one holds no modules
            start_new_session=True,
        )


def run_controller(place: FleetHome, config: Path | None, command: Sequence[str] = CONTROLLER) -> int:
    """In the foreground, until it ends. Ctrl-C reaches it too; it is waited for, so that it cleans up."""
    place.make()
    process = subprocess.Popen(controller_command(place, config, command), cwd=place.folder)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue


def controller_command(place: FleetHome, config: Path | None, command: Sequence[str]) -> list[str]:
    given = [*command, "--home", str(place.root.resolve()), "--fleet", place.fleet]
    return [*given, "--config", str(config.resolve())] if config else given


def _await_controller(place: FleetHome, process: subprocess.Popen[bytes], timeout_s: float, old: int) -> Announcement:
    """`old` bytes of the log are of starts before this one."""
    until_s = time.monotonic() + timeout_s
    while time.monotonic() < until_s:
        ended = process.poll() is not None
        if found := find_controller(place):
            return found
        if ended:
            raise ControllerError(
                f"the controller ended with status {process.returncode} while starting:\n{place.log_tail(after=old)}",
                f"all of its log is in {place.log_file}",
            )
        time.sleep(0.1)
    _end(process)
    raise ControllerError(
        f"the controller did not answer within {timeout_s:.0f} s:\n{place.log_tail(after=old)}",
        f"all of its log is in {place.log_file}",
    )


def _end(process: subprocess.Popen[bytes], grace_s: float = 15.0) -> None:
    """With time to clean up: it may have started a Ray head already."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def await_end(pid: int, timeout_s: float, process: subprocess.Popen[bytes] | None = None) -> bool:
    """Whether the process has ended in time."""
    until_s = time.monotonic() + timeout_s
    while _is_running(pid, process):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


def _is_running(pid: int, process: subprocess.Popen[bytes] | None) -> bool:
    if process is not None and process.pid == pid:
        return process.poll() is None
    if pid == os.getpid():
        return False  # served from this very process, as in tests: there is nothing to wait for
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
