"""The controller's end of the line to one cell: calls wait here until the agent on the cell's head takes them.

A call is handed out once. Without an answer in time it has failed, like a call to a head that does not answer: it may
have happened, and everything that is called this way may be asked again.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
from collections import deque
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from tradewind.cells.calls import Answer, Call, Hello, error_of, read_result, refusal_of, write_arguments
from tradewind.errors import Conflict, RayError
from tradewind.units import format_duration

log = logging.getLogger(__name__)

MAX_POLL_S = 30.0
SILENT_S = 45.0  # longer than a poll and a reconnection
CALL_TIMEOUT_S = 10.0


class UnknownSession(Exception):
    """The controller does not know this agent (it has started again): it shall say hello once more."""


class Dismissed(Exception):
    """Another agent speaks for this cell: this one shall go."""


class Line:
    """`call` from any thread of the controller; `hello`, `poll` and `answer` come through the door."""

    def __init__(self, cell: str, *, silent_s: float = SILENT_S) -> None:
        self.cell, self.silent_s = cell, silent_s
        self.hello_words: Hello | None = None
        self.head = ""  # launch id of the cell's head; empty: any
        self._session = ""
        self._past: deque[str] = deque(maxlen=64)  # sessions that were told to go
        self._heard_s: float | None = None  # steady
        self._polling = 0
        self._doubtful = False  # a call was not answered, and nothing was heard since
        self._queue: deque[Call] = deque()
        self._waiting: dict[str, tuple[str, Future[Any]]] = {}
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()

    # --- the controller's side -----------------------------------------------------------------------------------

    @property
    def present(self) -> Hello | None:
        """The words of the agent that speaks for the cell, while it is heard."""
        with self._changed:
            return None if self._silence() else self.hello_words

    def silent_for_s(self) -> float | None:
        """None: it never spoke (to this controller)."""
        with self._changed:
            if self._heard_s is None:
                return None
            return 0.0 if self._polling else time.monotonic() - self._heard_s

    def expect(self, launch_id: str) -> None:
        """From now on the agent on this head speaks for the cell; what another one said is void."""
        with self._changed:
            self.head = launch_id
            if self.hello_words is not None and launch_id and self.hello_words.launch_id != launch_id:
                self._dismiss()
            self._changed.notify_all()

    def call(self, name: str, *arguments: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The answer, or what the agent's own call raised; RayError where no answer came."""
        call = Call(f"{next(self._numbers)}-{secrets.token_hex(4)}", name, write_arguments(name, arguments))
        with self._changed:
            if silence := self._silence():
                raise RayError(f"cell {self.cell}: {silence}", "the controller goes on by itself when it is back")
            future: Future[Any] = Future()
            self._waiting[call.call_id] = (name, future)
            self._queue.append(call)
            self._changed.notify_all()
        try:
            return read_result(name, future.result(timeout=timeout_s))
        except FutureTimeout as error:
            if future.done() and isinstance(future.exception(), TimeoutError):
                raise  # what was called did not answer its agent
            self._doubt()
            waited = format_duration(timeout_s)
            raise RayError(f"cell {self.cell}: no answer to {name} within {waited}", "it is asked again") from error
        finally:
            self._forget(call)

    def _silence(self) -> str:
        if self._heard_s is None or not self._session:
            return "its agent has not called yet"
        if self._doubtful:
            return "its agent does not answer"
        silent_s = time.monotonic() - self._heard_s
        if not self._polling and silent_s > self.silent_s:
            return f"its agent was not heard for {format_duration(silent_s)}"
        return ""

    def _doubt(self) -> None:
        with self._changed:
            self._doubtful = True

    def _forget(self, call: Call) -> None:
        """What nobody waits for any more is not handed out."""
        with self._changed:
            self._waiting.pop(call.call_id, None)
            if call in self._queue:
                self._queue.remove(call)

    # --- the agent's side ----------------------------------------------------------------------------------------

    def hello(self, words: Hello) -> str:
        """A session for this agent. Raises Conflict for one that cannot be used, Dismissed for one of the past."""
        if refusal := refusal_of(words):
            raise Conflict(f"cell {self.cell}: {refusal}", "boot the head with the controller's version")
        with self._changed:
            last = self.hello_words
            if self.head and words.launch_id != self.head:
                raise Dismissed(f"the head of cell {self.cell} is {self.head}, not {words.launch_id}")
            same_head = last is not None and last.launch_id == words.launch_id
            if last is not None and same_head and words.started_at_s < last.started_at_s:
                raise Dismissed(f"a later agent speaks for cell {self.cell}")
            self._dismiss()
            self._session, self.hello_words = secrets.token_hex(8), words
            self._note()
            log.info("cell %s: agent on %s, Ray at %s", self.cell, words.launch_id, words.gcs_address)
            return self._session

    def poll(self, session: str, wait_s: float, closing: threading.Event) -> tuple[Call, ...]:
        """What is to be done; nothing after the time is over. A closing door does not wait."""
        until_s = time.monotonic() + min(wait_s, MAX_POLL_S)
        with self._changed:
            self._check(session)
            self._note()
            self._polling += 1
            try:
                while not self._queue and not closing.is_set() and time.monotonic() < until_s:
                    self._changed.wait(min(0.5, max(0.0, until_s - time.monotonic())))
                    self._check(session)
            finally:
                self._polling -= 1
                self._heard_s = time.monotonic()
            found = tuple(self._queue)
            self._queue.clear()
            return found

    def answer(self, call_id: str, answer: Answer) -> None:
        """One that nobody waits for any more is dropped; a second one, too."""
        with self._changed:
            self._check(answer.session)
            self._note()
            _, future = self._waiting.get(call_id, ("", None))
        if future is not None and not future.done():
            if answer.error:
                future.set_exception(error_of(answer))
            else:
                future.set_result(answer.value)

    def _check(self, session: str) -> None:
        if session in self._past:
            raise Dismissed(f"another agent speaks for cell {self.cell}")
        if session != self._session or not session:
            raise UnknownSession

    def _dismiss(self) -> None:
        """Whoever spoke until now goes; calls that it has taken stay without an answer."""
        if self._session:
            self._past.append(self._session)
        self._session, self.hello_words, self._heard_s = "", None, None
        self._changed.notify_all()

    def _note(self) -> None:
        self._heard_s, self._doubtful = time.monotonic(), False
