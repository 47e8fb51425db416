"""An emulator as a process of its own: says where it is, and ends in order, so that no machine of it is left behind."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

from tradewind.emulators.fleet_file import fleet_text


def write_fleet(path: Path | None, sections: Mapping[str, str], ca_file: str = "") -> None:
    """Where somebody asked for one. Its jobs keep their checkpoints beside it."""
    if path is not None:
        path.write_text(fleet_text(sections, path.absolute().parent / "runs", ca_file=ca_file))


def wait_for_the_end(greeting: str, login: Mapping[str, str]) -> None:
    """Until Ctrl-C or SIGTERM. `login` is what other processes need in their environment to be let in."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    lines = [greeting, *(f"export {name}={shlex.quote(value)}" for name, value in login.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()
    over.wait()
