"""The one writer: what happened goes into the event log and into the folds that live in memory, in one step."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tradewind.autoscaler.fleet import FleetState
from tradewind.cost.ledger import Ledger
from tradewind.events import AnyEvent, DecisionRecorded
from tradewind.store import EventLog

RECENT_DECISIONS = 8


@dataclass(slots=True)
class Journal:
    """`record` from any thread; `reading` gives the folds without a change in between."""

    log: EventLog
    fleet: FleetState = field(default_factory=FleetState)
    ledger: Ledger = field(default_factory=Ledger)
    decisions: deque[DecisionRecorded] = field(default_factory=lambda: deque(maxlen=RECENT_DECISIONS))
    _changed: threading.Condition = field(default_factory=lambda: threading.Condition(threading.RLock()))

    @classmethod
    def load(cls, log: EventLog) -> Journal:
        journal = cls(log)
        for _, event in log.read():
            journal._fold(event)
        return journal

    def record(self, *events: AnyEvent) -> None:
        """On return the events are durable. The fold comes first: an illegal transition must not enter the log."""
        if not events:
            return
        with self._changed:
            for event in events:
                self._fold(event)
            self.log.append(*events)
            self._changed.notify_all()

    def _fold(self, event: AnyEvent) -> None:
        self.fleet.apply(event)
        self.ledger.apply(event)
        if isinstance(event, DecisionRecorded):
            self.decisions.append(event)

    @contextmanager
    def reading(self) -> Iterator[tuple[FleetState, Ledger]]:
        with self._changed:
            yield self.fleet, self.ledger

    def wait_beyond(self, sequence: int, timeout_s: float) -> bool:
        """Wait until the log holds more than `sequence` events; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.log.last_sequence > sequence, timeout=timeout_s)
