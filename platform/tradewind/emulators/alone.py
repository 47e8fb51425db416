"""An emulator as a process of its own: says where it is, and ends in order, so that no machine of it is left behind."""

from __future__ import annotations

import signal
import sys
import threading


def wait_for_the_end(greeting: str) -> None:
    """Until Ctrl-C or SIGTERM."""
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    sys.stdout.write(f"{greeting}\n")
    sys.stdout.flush()
    over.wait()
