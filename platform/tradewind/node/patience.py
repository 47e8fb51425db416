"""Asking again while a machine boots: others may not be ready yet. An edge: it waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0


def keep_trying(
    call: Callable[[], T],
    what: str,
    errors: tuple[type[Exception], ...],
    patience_s: float,
    stop: threading.Event,
    first_pause_s: float = FIRST_PAUSE_S,
) -> T:
    """Its answer; the last error when the time is over or `stop` is set. Other errors are final."""
    until_s, pause_s = time.monotonic() + patience_s, first_pause_s
    while True:
        try:
            return call()
        except errors as error:
            if time.monotonic() + pause_s > until_s or stop.wait(pause_s):
                raise
            log.info("%s: %s; trying again", what, error)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
