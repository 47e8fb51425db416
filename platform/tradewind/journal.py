"""The one writer: what happened goes into the event log and into the folds that live in memory, in one step."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.roll import Roll
from tradewind.cost.ledger import Ledger
from tradewind.errors import LogError
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
        """On return the events are durable. All of them or none: what the log refuses must not be believed in memory,
        and what the state tables refuse must not enter the log, which could then never be read again."""
        if not events:
            return
        with self._changed:
            self._rehearse(events)
            self.log.append(*events)
            for event in events:
                self._fold(event)
            self._changed.notify_all()

    def _rehearse(self, events: Sequence[AnyEvent]) -> None:
        """Raises what the folds would raise, on a copy of just the records that these events change."""
        nodes, jobs = ({getattr(event, name, "") for event in events} for name in ("launch_id", "job_id"))
        stage = FleetState(
            nodes=Roll({key: self.fleet.nodes[key] for key in nodes if key in self.fleet.nodes}),
            jobs={key: self.fleet.jobs[key] for key in jobs if key in self.fleet.jobs},
        )
        for event in events:
            if not all(math.isfinite(getattr(event, name, 0.0)) for name in ("at_s", "began_s")):
                raise LogError(f"this event has no time: {event!r}", "this is a defect: report it")
            stage.apply(event)

    def _fold(self, event: AnyEvent) -> None:
        self.fleet.apply(event)
        self.ledger.apply(event)
        if isinstance(event, DecisionRecorded):
            self.decisions.append(event)

    @contextmanager
    def reading(self) -> Iterator[tuple[FleetState, Ledger]]:
        with self._changed:
            yield self.fleet, self.ledger

    @contextmanager
    def reading_now(self) -> Iterator[tuple[Ledger, float]]:
        """The ledger and the present moment, taken when nothing changes any more: moments come in order."""
        with self._changed:
            yield self.ledger, time.time()

    def wait_beyond(self, sequence: int, timeout_s: float) -> bool:
        """Wait until the log holds more than `sequence` events; False when the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: self.log.last_sequence > sequence, timeout=timeout_s)
