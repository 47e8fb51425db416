"""Where calls to clouds are made: beside the loop, so that a slow cloud does not hold it up. An edge: starts threads.

A call is work in a lane. `Inline` makes it at once, on the spot: for fakes and simulations, where nothing is slow and
everything must come in the same order again. `Threads` makes it in a thread of its lane. Nothing here knows the loop's
state: a call gives back a value or an error, and the loop takes it in when it looks.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Beside(Protocol):
    """Runs calls. A future that can still be cancelled has not begun."""

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]: ...

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> float:
        """Until one of them has an answer, or the time is over. The seconds that this took."""
        ...

    def abandon(self, lane: str, call: Future[Any]) -> None:
        """It is no longer waited for: its place in the lane goes to the next. Its thread may end when it likes."""
        ...

    def close(self, timeout_s: float) -> None:
        """Begin no more calls, and wait for those under way, but not longer than this."""
        ...


class Inline:
    """At once, in the thread of whoever asks. What is no Exception (Ctrl-C) goes through."""

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:  # noqa: ARG002
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
        return future

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> float:  # noqa: ARG002
        return 0.0

    def abandon(self, lane: str, call: Future[Any]) -> None:
        pass

    def close(self, timeout_s: float) -> None:
        pass


@dataclass(slots=True)
class _Lane:
    busy: int = 0  # threads whose call somebody waits for
    waiting: deque[tuple[Future[Any], Callable[[], Any]]] = field(default_factory=deque)
    abandoned: set[Future[Any]] = field(default_factory=set)


class Threads:
    """At most `width` calls at a time in a lane; the others wait for their turn.

    The threads are daemons, not those of a ThreadPoolExecutor: one that hangs in a cloud's SDK must neither keep the
    process from ending nor take a place for ever. `most_abandoned` is where a lane no longer makes up for them.
    """

    def __init__(self, width: int = 16, most_abandoned: int = 64) -> None:
        self.width, self.most_abandoned = width, most_abandoned
        self._lock = threading.Lock()
        self._lanes: dict[str, _Lane] = {}
        self._threads: set[threading.Thread] = set()
        self._numbers = itertools.count(1)
        self._closed = False

    def submit(self, lane: str, work: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            mine = self._lanes.setdefault(lane, _Lane())
            mine.waiting.append((future, work))
            self._start(lane, mine)
        return future

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> float:
        began_s = time.monotonic()
        if calls and timeout_s > 0:
            wait(calls, timeout_s, FIRST_COMPLETED)
        return time.monotonic() - began_s

    def abandon(self, lane: str, call: Future[Any]) -> None:
        with self._lock:
            mine = self._lanes[lane]
            if not call.done() and len(mine.abandoned) < self.most_abandoned:
                mine.abandoned.add(call)
                mine.busy -= 1
                self._start(lane, mine)

    def close(self, timeout_s: float) -> None:
        with self._lock:
            self._closed = True
            left = [future for lane in self._lanes.values() for future, _ in lane.waiting]
            threads = list(self._threads)
        for future in left:
            future.cancel()
        until_s = time.monotonic() + timeout_s
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _start(self, name: str, lane: _Lane) -> None:
        """With the lock held."""
        for _ in range(min(self.width - lane.busy, len(lane.waiting))):
            lane.busy += 1
            thread = threading.Thread(target=self._run, args=(lane,), name=f"{name}-{next(self._numbers)}", daemon=True)
            self._threads.add(thread)
            thread.start()

    def _run(self, lane: _Lane) -> None:
        call: Future[Any] | None = None
        while (found := self._next(lane, call)) is not None:
            call, work = found
            _make(call, work)

    def _next(self, lane: _Lane, last: Future[Any] | None) -> tuple[Future[Any], Callable[[], Any]] | None:
        """None: this thread is no longer needed, or its place was given to another while it hung."""
        with self._lock:
            has_place = last not in lane.abandoned
            if has_place and lane.waiting:
                return lane.waiting.popleft()
            if has_place:
                lane.busy -= 1
            elif last is not None:
                lane.abandoned.discard(last)
            self._threads.discard(threading.current_thread())
            return None


def _make(future: Future[T], work: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except BaseException as error:  # whoever asked gets it: here it would end a thread and be seen by nobody
            future.set_exception(error)
