"""What the log tells of a spot market: when a machine was to be had there, and when not. Pure; folded event by event.

A launch that the cloud accepts says yes, and so does every moment in which a node of ours is there; a refusal for want
of stock says no, and so does a node that is taken. When our last node has gone by our own will nothing is known any
more. Only changes are kept, the newest of each market.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

_KEPT = 256  # changes of a market


@dataclass(slots=True)
class Spells:
    """The fold of one market. `state` is True, False, or None where nothing is known."""

    changes: deque[tuple[float, bool | None]] = field(default_factory=lambda: deque(maxlen=_KEPT))
    running: int = 0  # nodes of ours
    seen_s: float = 0.0  # when it was last told

    @property
    def state(self) -> bool | None:
        return self.changes[-1][1] if self.changes else None

    def sold(self, at_s: float) -> None:
        self.running += 1
        self._see(at_s, True)

    def none_left(self, at_s: float) -> None:
        self._see(at_s, False)

    def ended(self, at_s: float, *, taken: bool) -> None:
        self.running = max(0, self.running - 1)
        if taken:
            self._see(at_s, False)
        elif not self.running and self.state:
            self._see(at_s, None)

    def shift(self, jump_s: float) -> None:
        """The clock was set."""
        self.changes = deque(((at_s + jump_s, state) for at_s, state in self.changes), maxlen=_KEPT)
        self.seen_s += jump_s

    def _see(self, at_s: float, state: bool | None) -> None:
        self.seen_s = max(at_s, self.seen_s)
        if state is not self.state or not self.changes:
            self.changes.append((at_s, state))
