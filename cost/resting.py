"""For how long a job rested: without nodes, by plan. By the phases that it told, in whatever order they came."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Turn(NamedTuple):
    """When a phase began. Reports of one moment are told apart by the rest."""

    at_ms: int
    attempt: int
    sequence: int


@dataclass(slots=True)
class Rests:
    turns: dict[Turn, bool] = field(default_factory=dict)  # whether the phase that begins is a rest
    stops_ms: list[int] = field(default_factory=list)  # when the job was told to stop: who ends does not rest
    called_off_ms: list[int] = field(default_factory=list)  # ... and when that was taken back

    def by_ms(self, now_ms: int, ended_ms: int | None) -> int:
        until_ms = now_ms if ended_ms is None else min(now_ms, ended_ms)
        total_ms, worked_ms, since_ms = 0, 0, None
        for turn, rests in sorted(self.turns.items()):
            if turn.at_ms > until_ms:
                break
            if rests:
                since_ms = turn.at_ms if since_ms is None else since_ms
                continue
            total_ms += self._rest_ms(worked_ms, since_ms, turn.at_ms)
            worked_ms, since_ms = turn.at_ms, None
        return total_ms + self._rest_ms(worked_ms, since_ms, until_ms)

    def _rest_ms(self, worked_ms: int, since_ms: int | None, until_ms: int) -> int:
        """Of one rest, which ends when the job is told to stop; none where it was told so before."""
        if since_ms is None:
            return 0
        stops_ms = (at for at in self.stops_ms if worked_ms <= at <= until_ms and not self._is_taken_back(at, until_ms))
        stop_ms = next(stops_ms, until_ms)
        return max(0, stop_ms - since_ms)

    def _is_taken_back(self, stop_ms: int, until_ms: int) -> bool:
        return any(stop_ms <= at <= until_ms for at in self.called_off_ms)
