"""The one place where the parts of a checkpoint come together: commits it, or gives it up.

    Savers of all ranks ── Part ──> Committer.add -> Checkpoints.commit, prune -> Outcome (for events, interval, people)

It lives in one process of the job, and is used by one thread at a time. A part that never comes blocks nothing: the
checkpoint is given up when its rank is told as lost, or when a later one begins to arrive.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
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
        self._closed = Outcome(0, 0, None)  # the last one that was committed or given up
        self._lost: tuple[int, frozenset[int]] = (0, frozenset())  # attempt, ranks

    @property
    def pending(self) -> bool:
        """Whether some parts are there, and others are not yet."""
        return bool(self._parts)

    def add(
        self, part: Part, *, layout: Mapping[str, Any] | None = None, order: Mapping[str, int] | None = None
    ) -> Outcome | None:
        """Take a part in. None: others are to come. Otherwise what became of the checkpoint, also to who comes late."""
        at = (part.attempt, part.step)
        if at <= (self._closed.attempt, self._closed.step) or at < self._at:
            return self._turn_away(part)
        if at > self._at:
            self.give_up("a later one was begun")
        self._at = at
        self._parts[part.rank] = part
        if len(self._parts) < part.world:
            return self._give_up_if_lost()
        parts = [self._parts[rank] for rank in sorted(self._parts)]
        self._parts = {}
        return self._settle(parts, layout, order)

    def lose(self, attempt: int, ranks: Iterable[int]) -> Outcome | None:
        """These ranks of an attempt are lost: what they have not brought, now or for a save that others have begun,
        will not come. Returns the end of the checkpoint whose parts were arriving, if this is its end."""
        before = self._lost[1] if self._lost[0] == attempt else frozenset()
        self._lost = (attempt, before | frozenset(ranks))
        return self._give_up_if_lost()

    def give_up(self, why: str = "parts of it are missing") -> Outcome | None:
        """The missing parts will not come: remove what is there."""
        if not self._parts:
            return None
        parts, self._parts = list(self._parts.values()), {}
        self._closed = Outcome(parts[0].step, parts[0].attempt, None, f"it was given up: {why}")
        logger.warning("checkpoint %s is given up: %s; the one before it stays", parts[0].name, why)
        self._withdraw(parts)
        return self._closed

    def _give_up_if_lost(self) -> Outcome | None:
        """A rank of a later attempt may be one of those that are missing here, by another number: no use to wait."""
        attempt, ranks = self._lost
        if attempt < self._at[0] or (attempt == self._at[0] and ranks <= self._parts.keys()):
            return None
        return self.give_up("a worker was lost while it was written")

    def _turn_away(self, part: Part) -> Outcome:
        """A part of one that is there already, or that was given up."""
        self._withdraw([part])
        if (part.step, part.attempt) == (self._closed.step, self._closed.attempt):
            return self._closed
        return Outcome(part.step, part.attempt, None, "it was given up: a later one was begun")

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
            return Outcome(step, attempt, None, why, stall_s, write_s)
        self._prune()
        self._closed = Outcome(step, attempt, meta, "", stall_s, write_s)
        return self._closed

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
