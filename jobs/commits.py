"""The coordinator's half of saving: parts of all ranks come in, and each rank waits for what becomes of the whole.

Storage is slow, and the coordinator must never be: everything that touches it runs in one thread, in order.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tradewind.jobs.checkpoint import Checkpoints, Part
from tradewind.jobs.committer import Committer, Outcome

logger = logging.getLogger(__name__)

PATIENCE_S = 900.0  # for the last part, once the first is there

Key = tuple[int, int]  # attempt, step


class Commits:
    """Lives on the coordinator's event loop. `told` hears of each checkpoint that is there."""

    def __init__(self, where: str, keep: int, layout: str, told: Callable[[dict[str, Any]], None]) -> None:
        self._where, self._layout, self._told = where.rstrip("/"), {"parallel": layout}, told
        self._checkpoints = Checkpoints.at(where)
        self._committer = Committer(self._checkpoints, keep)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="commits")
        self._waiting: dict[Key, asyncio.Future[dict[str, Any]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # What killed writers have left behind: nobody writes yet.
        self._thread.submit(self._checkpoints.prune, max(1, keep), idle=True).add_done_callback(_complain)

    async def add(self, part: Part, order: Mapping[str, Any] | None) -> dict[str, Any]:
        """A rank's part. Returns when it is known what became of the whole."""
        key = (part.attempt, part.step)
        whole = self._waiting.setdefault(key, asyncio.get_running_loop().create_future())
        outcome = await self._in_thread(lambda: self._committer.add(part, layout=self._layout, order=order))
        for older in [other for other in self._waiting if other < key]:
            self._end(Outcome(older[1], older[0], None, "it was given up: a later one was begun"))
        if outcome is not None:
            self._end(outcome)
        try:
            return await asyncio.wait_for(asyncio.shield(whole), PATIENCE_S)
        except TimeoutError:  # a worker that has left without bringing its part
            given_up = await self._in_thread(self._committer.give_up)
            self._end(given_up or Outcome(part.step, part.attempt, None, "parts of it never came"))
            return await whole

    def lose(self, attempt: int, ranks: Sequence[int]) -> None:
        """What lost ranks have not brought will not come."""
        task = asyncio.get_running_loop().create_task(self._lose(attempt, ranks))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _lose(self, attempt: int, ranks: Sequence[int]) -> None:
        outcome = await self._in_thread(lambda: self._committer.lose(attempt, ranks))
        if outcome is not None:
            self._end(outcome)

    def _end(self, outcome: Outcome) -> None:
        found = {
            "step": outcome.step,
            "attempt": outcome.attempt,
            "path": f"{self._where}/{outcome.meta.name}" if outcome.meta else "",
            "why": outcome.why,
            "stall_s": outcome.stall_s,
            "write_s": outcome.write_s,
            "size_bytes": sum(outcome.meta.files.values()) if outcome.meta else 0,
        }
        whole = self._waiting.pop((outcome.attempt, outcome.step), None)
        if whole is not None and not whole.done():
            whole.set_result(found)
            if outcome.meta:
                self._told(found)

    def count_attempt(self, epoch: int) -> None:
        """Written down, so that a driver that is started again goes on counting above it."""
        found = self._thread.submit(self._checkpoints.next_attempt, epoch - 1)
        found.add_done_callback(_complain)

    async def _in_thread(self, call: Any) -> Outcome | None:
        found: Outcome | None = await asyncio.get_running_loop().run_in_executor(self._thread, call)
        return found


def _complain(found: Any) -> None:
    if found.exception() is not None:
        logger.warning("the storage of checkpoints gives trouble: %s", found.exception())
