"""What a coordinator has to tell, until it is told."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from tradewind.events import CheckpointCommitted, PhaseChanged, StepCommitted, encode

Report = PhaseChanged | StepCommitted | CheckpointCommitted
MAX_UNREAD = 20_000  # reports kept for an agent that does not come


class Outbox:
    """Reports with increasing sequence numbers, kept until they are acknowledged.

    The first reader says after which sequence it wants to go on: a coordinator of a driver that was started again goes
    on counting there, so that the log does not take its reports for repetitions.
    """

    def __init__(self, limit: int = MAX_UNREAD) -> None:
        self._waiting: deque[Report] = deque(maxlen=limit)
        self._base = 0  # sequence of the last report that has left
        self.ever_read = False

    def put(self, report: Report) -> None:
        if len(self._waiting) == self._waiting.maxlen and self.ever_read:
            self._base += 1  # the oldest falls out, its number is not used again
        self._waiting.append(report)

    def read(self, after_sequence: int) -> list[bytes]:
        if not self.ever_read:
            self.ever_read, self._base = True, max(0, after_sequence)
        while self._waiting and self._base < after_sequence:
            self._waiting.popleft()
            self._base += 1
        first = self._base + 1
        return [encode(replace(report, sequence=first + at)) for at, report in enumerate(self._waiting)]

    @property
    def empty(self) -> bool:
        return not self._waiting
