"""The join desk on a cell's head: nodes show the Ray token and their versions, and get a certificate; nodes that fail
tell why. What it decides stands here; desk_server.py puts it on HTTPS, desk_client.py is the other side.

It vouches for the address that a node speaks from, and for no other: with a node's token nobody gets a certificate in
the name of the head. (127.0.0.1 is on every certificate: Ray's own processes of a node meet there.)
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import isfinite
from typing import TypeVar

from tradewind.certificates import Authority
from tradewind.errors import Conflict, InvalidRequest
from tradewind.node.versions import Versions, mismatches

V = TypeVar("V")

LOCAL_NAMES = ("127.0.0.1", "localhost")  # without them, Ray's first worker of a node takes 30 s longer to start
MAX_NODES = 20_000  # that are remembered
MAX_LOG_CHARS = 32_000


@dataclass(frozen=True, slots=True)
class JoinRequest:
    launch_id: str
    versions: Versions
    csr_pem: str
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JoinReply:
    certificate_pem: str


@dataclass(frozen=True, slots=True)
class BootReport:
    """What a node says of its boot; `why` is empty where it is up."""

    launch_id: str
    why: str = ""
    log: str = ""  # the end of it


@dataclass(frozen=True, slots=True)
class EnergyReport:
    """What a host of a node has taken since it came up (cost/energy_meter.py)."""

    launch_id: str
    host: str
    seconds: float
    card_joules: float | None
    processor_joules: float | None


@dataclass(slots=True)
class JoinDesk:
    """Thread-safe. `is_alive` says whether Ray has a living node of a launch id (drivers of the dead do not count)."""

    authority: Authority
    versions: Versions
    clock: Callable[[], float]
    is_alive: Callable[[str], bool] = lambda _: True
    _drivers: OrderedDict[str, str] = field(default_factory=OrderedDict)
    _reports: OrderedDict[str, BootReport] = field(default_factory=OrderedDict)
    _energy: OrderedDict[str, EnergyReport] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def join(self, request: JoinRequest, peer: str) -> JoinReply:
        """Raises Conflict where the node does not fit, InvalidRequest where it asks for what is not its own."""
        wrong = mismatches(self.versions, request.versions, self._drivers_now(request.launch_id))
        if wrong:
            why = f"refused by the head: {'; '.join(wrong)}"
            self.report(BootReport(request.launch_id, why))
            raise Conflict(why, "boot head and nodes from images with the same versions")
        if strange := sorted(set(request.addresses) - {peer}):
            raise InvalidRequest(f"{', '.join(strange)} is not the address that the node speaks from ({peer})")
        certificate = self.authority.sign(request.csr_pem, (peer, *LOCAL_NAMES), self.clock())
        with self._lock:
            _remember(self._drivers, request.launch_id, request.versions.driver)
        return JoinReply(certificate)

    def _drivers_now(self, launch_id: str) -> Collection[str]:
        with self._lock:
            known = dict(self._drivers)
        return {driver for key, driver in known.items() if driver and key != launch_id and self.is_alive(key)}

    def report(self, report: BootReport) -> None:
        kept = BootReport(report.launch_id, report.why[:2000], report.log[-MAX_LOG_CHARS:])
        with self._lock:
            _remember(self._reports, kept.launch_id, kept)

    def measured(self, report: EnergyReport) -> None:
        """The last one of each host is kept."""
        amounts = (report.seconds, report.card_joules or 0.0, report.processor_joules or 0.0)
        if not all(isfinite(amount) and amount >= 0.0 for amount in amounts):
            raise InvalidRequest(f"no meter reads {amounts}", "seconds and joules are numbers from 0 on")
        with self._lock:
            _remember(self._energy, f"{report.launch_id}/{report.host}", report)

    # --- for the cell's agent ------------------------------------------------------------------------------------

    def reports(self) -> tuple[tuple[str, str], ...]:
        """(launch id, why it did not come up), the oldest first."""
        with self._lock:
            return tuple((each.launch_id, each.why) for each in self._reports.values() if each.why)

    def energy(self) -> tuple[EnergyReport, ...]:
        with self._lock:
            return tuple(self._energy.values())

    def log(self, launch_id: str) -> str:
        """What the node said of its boot; empty: nothing yet."""
        with self._lock:
            found = self._reports.get(launch_id)
        if found is None:
            return ""
        return f"{found.log.rstrip()}\n{found.why}".strip()


def _remember(books: OrderedDict[str, V], key: str, value: V) -> None:
    books[key] = value
    books.move_to_end(key)
    while len(books) > MAX_NODES:
        books.popitem(last=False)
