"""The coordinator's half of saving: parts of all ranks come in, and each rank waits for what becomes of the whole.

Storage is slow, and the coordinator must never be: everything that touches it runs in one thread, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.committer import Committer, Outcome

logger = logging.getLogger(__name__)

Key = tuple[int, int]  # attempt, step


class Commits:
    """Lives on the coordinator's event loop."""

    def __init__(self, where: str, keep: int, layout: str) -> None:
        self._where, self._layout = where.rstrip("/"), {"parallel": layout}
        self._checkpoints = Checkpoints.at(where)
        self._committer = Committer(self._checkpoints, keep)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commits")
        self._waiting: dict[Key, asyncio.Future[dict[str, Any]]] = {}
        self._here: dict[Key, set[int]] = {}  # ranks whose part has come

    async def add(self, part: Part, order: Mapping[str, Any] | None) -> dict[str, Any]:
        key = (part.attempt, part.step)
        whole = self._waiting.setdefault(key, asyncio.get_running_loop().create_future())
        self._here.setdefault(key, set()).add(part.rank)
        outcome = await self._in_thread(lambda: self._committer.add(part, layout=self._layout, order=order))
        if outcome is not None and not whole.done():
            self._forget(key)
            found = self._told(outcome)
            whole.set_result(found)
            return found | {"is_news": not outcome.why}
        return await asyncio.shield(whole)

    def lose(self, attempt: int, ranks: Sequence[int]) -> None:
        """A rank is lost: what it has not brought will not come."""
        for key in [key for key in self._waiting if key[0] == attempt and not self._here[key].issuperset(ranks)]:
            whole = self._waiting[key]
            self._forget(key)
            if not whole.done():
                whole.set_result({"why": "a worker was lost while it was written"})
            self._thread.submit(self._committer.give_up)

    def count_attempt(self, epoch: int) -> None:
        """Written down, so that a driver that is started again goes on counting above it."""
        found = self._thread.submit(self._checkpoints.next_attempt, epoch - 1)
        found.add_done_callback(_complain)

    def _forget(self, key: Key) -> None:
        self._waiting.pop(key)
        self._here.pop(key)

    async def _in_thread(self, call: Any) -> Outcome | None:
        found: Outcome | None = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return found

    def _told(self, outcome: Outcome) -> dict[str, Any]:
        name = outcome.meta.name if outcome.meta else ""
        return {
            "step": outcome.step,
            "attempt": outcome.attempt,
            "path": f"{self._where}/{name}",
            "why": outcome.why,
            "stall_s": outcome.stall_s,
            "write_s": outcome.write_s,
        }


def _complain(found: Any) -> None:
    if found.exception() is not None:
        logger.warning("the number of the worker group could not be written down: %s", found.exception())
