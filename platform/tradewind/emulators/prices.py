"""What the emulated price services share: bad days, and a server on loopback."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tradewind.emulators.gcp_http import Answer, Cut, Request, serve


@dataclass
class BadDays:
    """Of the next calls; each counts down. `after` lets so many calls through before."""

    after: int = 0
    throttled: int = 0
    failing: int = 0
    cut: int = 0
    denied: bool = False

    def next(self) -> str:
        """What is wrong with this call: "" for nothing."""
        if self.after > 0:
            self.after -= 1
            return ""
        for name in ("throttled", "failing", "cut"):
            if getattr(self, name) > 0:
                setattr(self, name, getattr(self, name) - 1)
                return name
        return "denied" if self.denied else ""


class PriceDesk:
    """A price service behind one port. What a test looks at: `calls`; what it changes: `bad`, and the desk's data."""

    def __init__(self, answer: Callable[[Request], Answer], refuse: Callable[[Request, str], Answer]) -> None:
        self.bad, self.calls = BadDays(), 0
        self._answer, self._refuse = answer, refuse
        self._server = serve(self._carry_out)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def _carry_out(self, request: Request) -> Answer:
        self.calls += 1
        wrong = self.bad.next()
        if wrong == "cut":
            raise Cut
        return self._refuse(request, wrong) if wrong else self._answer(request)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
