"""Whose turn it is to launch: the loops of a fleet's cells share the fleet's limits. An edge: a lock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turn:
    """From looking at what the limits leave until the launch is on record, only one loop at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: object = None

    @contextmanager
    def of(self, who: object) -> Iterator[bool]:
        """Whether nobody else has launched since the last time: then what was counted before still holds."""
        with self._lock:
            is_mine, self._last = self._last is who, who
            yield is_mine
