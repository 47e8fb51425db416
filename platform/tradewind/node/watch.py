"""The notice watcher: what the cloud tells this machine about its end becomes a drain of this node in Ray.

    metadata service --> InterruptionSource.wait() --> Watcher --> drain(message, deadline_s) --> GCS --> trainers

Runs in a thread of the node's own process (worker.py), beside Ray. Sources of the three clouds: watch_sources.py.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from tradewind.errors import RayError, Transient, Unsupported

POLL_S = 1.0  # between two looks at the least
MAX_PAUSE_S = 5.0  # a metadata service that fails is asked again after so long at the most
WAIT_S = 10.0  # how long a source may wait for news
_LINK_LOCAL = "http://169.254.169.254"
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Notice:
    """What the cloud has announced for this machine."""

    kind: str  # "preempt", "terminate", "maintenance", "redeploy", "reboot", "rebalance"
    deadline_s: float | None  # when it happens; None: an early warning, nothing is decided
    detail: str
    id: str = ""  # by which the cloud wants it acknowledged

    @property
    def message(self) -> str:
        if self.deadline_s is None:
            return f"{self.kind}: {self.detail}"
        return f"{self.kind} at {datetime.fromtimestamp(self.deadline_s, UTC):%H:%M:%S} UTC: {self.detail}"


class InterruptionSource(Protocol):
    """One machine's metadata service."""

    def wait(self, timeout_s: float) -> Sequence[Notice]:
        """All that is announced now. May wait for a change, at most `timeout_s`. Transient where nobody answers."""
        ...

    def acknowledge(self, notice: Notice) -> None:
        """The machine is ready: the cloud need not wait any longer. Does nothing where a cloud has no such thing."""
        ...


Drain = Callable[[str, float | None], tuple[bool, str]]  # (message, deadline as a time) -> (accepted, Ray's words)


class Watcher:
    """Each notice is drained once, and once more where its deadline moves earlier. What Ray does not accept is tried
    again with the next look. `is_idle`: nothing runs here any more, so that a drained notice may be acknowledged."""

    def __init__(
        self,
        source: InterruptionSource,
        drain: Drain,
        *,
        is_idle: Callable[[], bool] = lambda: False,
        warn: Callable[[Notice], None] = lambda notice: log.warning("early warning: %s", notice.message),
        poll_s: float = POLL_S,
    ) -> None:
        self._source, self._drain, self._is_idle, self._warn = source, drain, is_idle, warn
        self._poll_s = poll_s
        self._drained: dict[tuple[str, str], float | None] = {}  # by kind and id: the deadline that Ray knows
        self._acknowledged: set[tuple[str, str]] = set()
        self._failures = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            for notice in self._look():
                self._handle(notice)
            pause_s = min(MAX_PAUSE_S, self._poll_s * 2 ** min(self._failures, 8))
            stop.wait(max(0.0, pause_s - (time.monotonic() - began_s)))

    def _look(self) -> Sequence[Notice]:
        try:
            found = self._source.wait(WAIT_S)
        except Transient as error:
            if self._failures == 0:
                log.warning("notices cannot be seen for now, it is tried again: %s", error)
            self._failures += 1
            return ()
        if self._failures:
            log.warning("notices are seen again, after %d failed looks", self._failures)
            self._failures = 0
        return found

    def _handle(self, notice: Notice) -> None:
        key = (notice.kind, notice.id)
        if notice.deadline_s is None:
            if key not in self._drained:
                self._drained[key] = None
                self._warn(notice)
        elif self._is_news(key, notice.deadline_s):
            self._tell(key, notice)
        elif key not in self._acknowledged and self._is_idle():
            self._acknowledge(key, notice)

    def _is_news(self, key: tuple[str, str], deadline_s: float) -> bool:
        known_s = self._drained.get(key)
        return known_s is None or deadline_s < known_s

    def _tell(self, key: tuple[str, str], notice: Notice) -> None:
        try:
            accepted, words = self._drain(notice.message, notice.deadline_s)
        except RayError as error:
            log.warning("the drain has not reached Ray, it is tried again: %s", error)
            return
        if accepted:
            log.warning("this node drains: %s", notice.message)
            self._drained[key] = notice.deadline_s
        else:
            log.warning("Ray does not drain this node, it is tried again: %s", words)

    def _acknowledge(self, key: tuple[str, str], notice: Notice) -> None:
        try:
            self._source.acknowledge(notice)
        except Transient as error:
            log.warning("the notice cannot be acknowledged for now, it is tried again: %s", error)
            return
        self._acknowledged.add(key)
        log.warning("acknowledged: %s", notice.message)


def source_of(cloud: str, endpoints: Mapping[str, str]) -> InterruptionSource:
    """The metadata service of this machine: as the boot plan says, or where the vendor's own SDK looks for it."""
    from tradewind.node import watch_sources as sources

    given = endpoints.get("metadata", "")
    if cloud == "aws":
        return sources.AwsNotices(given or os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", _LINK_LOCAL))
    if cloud == "gcp":
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        return sources.GcpNotices(given or f"http://{host}")
    if cloud == "azure":
        return sources.AzureNotices(given or os.environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST", _LINK_LOCAL))
    raise Unsupported(f"there is no metadata service to watch on {cloud}", "use aws, gcp or azure", cloud=cloud)
