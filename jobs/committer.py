"""The one place where the parts of a checkpoint come together: commits it, or gives it up.

    Savers of all ranks ── Part ──> Committer.add -> Checkpoints.commit, prune -> Outcome (for events, interval, people)

It lives in one process of the job. A part that never comes (its rank is lost) blocks nothing: the checkpoint is given
up when a later one begins to arrive, or at `give_up`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tradewind.errors import JobError
from tradewind.jobs.checkpoint import Checkpoints, Meta, Part

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a checkpoint. Times are those of the slowest rank."""

    step: int
    attempt: int
    meta: Meta | None  # None: there is no such checkpoint
    why: str = ""  # there is none
    stall_s: float = 0.0
    write_s: float = 0.0


class Committer:
    def __init__(self, checkpoints: Checkpoints, keep: int = 3) -> None:
        self._checkpoints, self._keep = checkpoints, keep
        self._parts: dict[int, Part] = {}
        self._at = (0, 0)  # attempt and step of the checkpoint whose parts are arriving
        self._closed = (0, 0)  # the last one that was committed or given up

    @property
    def pending(self) -> bool:
        """Whether some parts are there, and others are not yet."""
        return bool(self._parts)

    def add(
        self, part: Part, *, layout: Mapping[str, Any] | None = None, order: Mapping[str, int] | None = None
    ) -> Outcome | None:
        """Take a part in. With the last one, the outcome; before, None."""
        at = (part.attempt, part.step)
        if at <= self._closed or at < self._at:
            self._withdraw([part])  # of one that was given up, or is there already
            return None
        if at > self._at:
            self.give_up()
        self._at = at
        self._parts[part.rank] = part
        if len(self._parts) < part.world:
            return None
        parts = [self._parts[rank] for rank in sorted(self._parts)]
        self._parts = {}
        return self._settle(parts, layout, order)

    def give_up(self) -> None:
        """The missing parts will not come: remove what is there."""
        if self._parts:
            parts, self._parts, self._closed = list(self._parts.values()), {}, self._at
            logger.warning("checkpoint %s is given up: not all ranks have written their part", parts[0].name)
            self._withdraw(parts)

    def _settle(self, parts: list[Part], layout: Mapping[str, Any] | None, order: Mapping[str, int] | None) -> Outcome:
        step, attempt = parts[0].step, parts[0].attempt
        stall_s, write_s = max(part.stall_s for part in parts), max(part.write_s for part in parts)
        failed = next((part for part in parts if part.error), None)
        why = f"rank {failed.rank}: {failed.error}" if failed else ""
        meta = None
        if not why:
            try:
                meta = self._checkpoints.commit(parts, layout=layout, order=order)
            except (OSError, JobError) as error:
                why = str(error)
        if meta is None:
            logger.warning("checkpoint %s is not there: %s; the one before it stays", parts[0].name, why)
            self._withdraw(parts)
        else:
            self._closed = self._at
            self._prune()
        return Outcome(step, attempt, meta, why, stall_s, write_s)

    def _prune(self) -> None:
        try:
            self._checkpoints.prune(self._keep)
        except OSError as error:
            logger.warning("old checkpoints cannot be removed now: %s", error)

    def _withdraw(self, parts: Sequence[Part]) -> None:
        try:
            self._checkpoints.withdraw(parts[0].name, [part.file for part in parts])
        except OSError as error:
            logger.warning("what is left of checkpoint %s cannot be removed now: %s", parts[0].name, error)
