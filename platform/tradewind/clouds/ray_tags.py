"""Ray's tags of the nodes that `ray up` made, kept in a file beside the fleet's log.

The clouds keep our own tags, which tell whose a node is; what Ray writes on it (hashes of its settings, a status) is of
use to the next `ray up` on this machine alone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.autoscaler.providers.local_processes import write_atomically


@dataclass
class TagBook:
    """By launch id. Shared between threads."""

    path: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def read(self) -> dict[str, dict[str, str]]:
        try:
            found: dict[str, dict[str, str]] = json.loads(self.path.read_text())
        except FileNotFoundError:
            return {}
        return found

    def set(self, launch_id: str, tags: Mapping[str, str]) -> None:
        with self._lock:
            book = self.read()
            book[launch_id] = {**book.get(launch_id, {}), **tags}
            self._write(book)

    def forget(self, launch_id: str) -> None:
        with self._lock:
            book = self.read()
            book.pop(launch_id, None)
            self._write(book)

    def _write(self, book: Mapping[str, Mapping[str, str]]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(self.path, json.dumps(book, indent=1, sort_keys=True))
