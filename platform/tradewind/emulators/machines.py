"""Emulated clouds that really boot what they launch: an instance's user-data runs as processes on this machine.

    emulator --on_boot--> Machines.boot(Instance) --> a session of processes, a loopback address, a metadata service
             --on_end---> Machines.end(name)      --> every process of it is gone
             <--stopped-- it went down by itself: `shutdown`, or its user-data came to an end

Each machine has an address 127.a.b.c, its own HOME and TMPDIR, none of this process's environment, and a PATH whose
first folder has `shutdown`, `poweroff`, `halt` and `ray`, which reach this machine's processes alone. What it writes is
its console. Not isolated: the user, the network namespace, the disk; it is for code that means well.

A real machine stays up when its user-data ends. Here it stops then, since nothing is left of it; its console says so.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import tradewind
from tradewind.autoscaler.providers.local_fleets import claim, clean_up
from tradewind.autoscaler.providers.local_processes import (
    ProcessStat,
    SessionRecord,
    end_sessions,
    is_running,
    members,
    start_session,
)
from tradewind.autoscaler.providers.raylets import default_base
from tradewind.emulators.metadata_server import PORT, Answer, MetadataServer

CONSOLE_BYTES = 65536  # as much as EC2 keeps
_POLL_S = 0.1
_FOLDER_ENV = "TRADEWIND_MACHINE"
_PASSED_ON = ("LANG", "TZ", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
_STOP_SHIM = f'#!/bin/sh\ntouch "${_FOLDER_ENV}/stop"\n'
_RAY_SHIM = """#!/bin/sh
# `ray stop` ends every Ray of a machine, and this machine has others.
if [ "$1" = stop ]; then exec "{python}" -m tradewind.emulators.ray_stop; fi
exec "{ray}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Instance:
    """One that boots, as its cloud tells it."""

    name: str
    address: str  # from `Machines.new_address`
    user_data: str
    metadata: Answer
    env: Callable[[str], Mapping[str, str]]  # the metadata service's URL -> what leads the vendor's SDKs to it
    stopped: Callable[[], None]  # called when it went down by itself


@dataclass(frozen=True, slots=True)
class _Running:
    instance: Instance
    folder: Path
    session: SessionRecord

    @property
    def has_stopped(self) -> bool:
        return (self.folder / "stop").exists() or not is_running(self.session)


class Machines:
    """All machines of one or several emulated clouds. `boot` and `end` return at once; a thread does the rest."""

    def __init__(self, *, python: str = sys.executable, grace_s: float = 1.0) -> None:
        clean_up()  # after emulators that were killed
        self.python, self.grace_s = python, grace_s
        self.root = default_base() / f"m{secrets.token_hex(3)}"
        claim(self.root, "emulated-machines", ephemeral=True)
        self._shims = _write_shims(self.root / "bin", python)
        self._metadata = MetadataServer()
        self._network, self._gate = _reserve_network()
        self._hosts, self._numbers = itertools.count(2), itertools.count(1)
        self._lock = threading.RLock()
        self._running: dict[str, _Running] = {}
        self._consoles: dict[str, Path] = {}
        self._ending: set[str] = set()
        self._closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="emulated-machines", daemon=True)
        self._keeper.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Ends all of them; their consoles go, too."""
        with self._lock:
            self._ending.update(self._running)
        self._closing.set()
        self._keeper.join()
        self._metadata.close()
        self._gate.close()
        shutil.rmtree(self.root, ignore_errors=True)

    # --- what clouds call ---

    def new_address(self) -> str:
        number = next(self._hosts)
        return f"127.{self._network}.{number // 250}.{number % 250 + 1}"

    def boot(self, instance: Instance) -> None:
        with self._lock:
            folder = self.root / str(next(self._numbers))
            for name in ("home", "tmp"):
                (folder / name).mkdir(mode=0o700, parents=True)
            url = self._metadata.add(instance.address, instance.metadata)
            session = start_session(
                [*_command(folder, instance.user_data)],
                self._environment(folder, instance.env(url)),
                folder / "console.log",
                folder / "session.json",
            )
            self._running[instance.name] = _Running(instance, folder, session)
            self._consoles[instance.name] = folder / "console.log"

    def end(self, name: str) -> None:
        """An unknown one is no error: it may have gone down by itself."""
        with self._lock:
            self._ending.add(name)

    def console(self, name: str) -> str:
        """What it has written, from boot on; also after its end."""
        path = self._consoles.get(name)
        if path is None:
            return ""
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - CONSOLE_BYTES))
            return file.read().decode(errors="replace")

    # --- what tests look at ---

    def names(self) -> list[str]:
        with self._lock:
            return list(self._running)

    def processes(self, name: str) -> list[ProcessStat]:
        with self._lock:
            running = self._running.get(name)
        return members(running.session) if running else []

    def folder(self, name: str) -> Path:
        return self._consoles[name].parent

    def wait_ended(self, names: Iterable[str], timeout_s: float) -> list[str]:
        """Those of which something still runs when the time is over."""
        wanted, deadline_s = set(names), time.monotonic() + timeout_s
        while (left := wanted & set(self.names())) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S / 2)
        return sorted(left)

    # --- the thread ---

    def _keep(self) -> None:
        while not self._closing.wait(_POLL_S):
            self._end_due()
        self._end_due()

    def _end_due(self) -> None:
        with self._lock:
            due = {name: each for name, each in self._running.items() if name in self._ending or each.has_stopped}
            by_themselves = [each for name, each in due.items() if name not in self._ending]
            self._ending.clear()
        if not due:
            return
        for each in by_themselves:
            _note_end(each)
        survivors = end_sessions([each.session for each in due.values()], self.grace_s)
        assert not survivors, f"processes that cannot be killed: {survivors}"
        for name, each in due.items():
            self._metadata.remove(each.instance.address)
            for part in ("home", "tmp"):
                shutil.rmtree(each.folder / part, ignore_errors=True)
            with self._lock:
                del self._running[name]
        for each in by_themselves:
            each.instance.stopped()

    def _environment(self, folder: Path, cloud: Mapping[str, str]) -> dict[str, str]:
        """Nothing of this process but what is harmless: its credentials are not the machine's."""
        return {
            **{key: os.environ[key] for key in _PASSED_ON if key in os.environ},
            "PATH": f"{self._shims}:{Path(self.python).parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(Path(tradewind.__file__).parents[1]),  # "installed" in its image
            "HOME": str(folder / "home"),
            "TMPDIR": str(folder / "tmp"),
            _FOLDER_ENV: str(folder),
            "TRADEWIND_START_LOCK": str(default_base() / "start.lock"),  # Ray's nodes must not start at the same time
            # No workers in advance, one for each CPU that the machine claims to have: this one has few.
            "RAY_enable_worker_prestart": "0",
            "RAY_prestart_worker_first_driver": "0",
            **cloud,
        }


def _command(folder: Path, user_data: str) -> list[str]:
    """As cloud-init does it: a script is run by its first line; anything else starts nothing here."""
    script = folder / "user-data"
    script.touch(mode=0o700)
    script.write_text(user_data)
    return [str(script)] if user_data.startswith("#!") else ["sleep", "infinity"]


def _note_end(running: _Running) -> None:
    """A real machine would stay there, and be paid for: whoever reads the console should know."""
    if not (running.folder / "stop").exists():
        with (running.folder / "console.log").open("a") as console:
            console.write("\n[emulator] the user-data has ended without `shutdown`: a real machine would stay up\n")


def _write_shims(folder: Path, python: str) -> Path:
    ray = Path(python).with_name("ray")
    texts = dict.fromkeys(("shutdown", "poweroff", "halt"), _STOP_SHIM)
    folder.mkdir()
    for name, text in {**texts, "ray": _RAY_SHIM.format(python=python, ray=ray)}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return folder


def _reserve_network() -> tuple[int, socket.socket]:
    """A number a, so that 127.a.0.0/16 is nobody else's. The local cloud has 127.0."""
    for number in secrets.SystemRandom().sample(range(16, 240), 100):
        with contextlib.suppress(OSError):  # taken by another emulator
            return number, socket.create_server((f"127.{number}.255.254", PORT))
    raise OSError("no free loopback network for emulated machines")
