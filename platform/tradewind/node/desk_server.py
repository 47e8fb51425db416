"""The join desk on HTTPS: who may speak, how often and how much. Routes in, JoinDesk calls out."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from tradewind import errors
from tradewind.node.join_desk import BootReport, EnergyReport, JoinDesk, JoinReply, JoinRequest
from tradewind.server import RunningServer, Tls, serve

PORT = 8441
MAX_BODY_BYTES = 64 * 1024
RATE_PER_S, BURST = 1.0, 20.0  # of one address; a node asks twice in its life
_MAX_ADDRESSES = 10_000
_STATUS = {errors.Unauthorized: 401, errors.Conflict: 409, errors.InvalidRequest: 422}


@dataclass(slots=True)
class Allowance:
    """So many requests of one address, refilled with time."""

    rate_per_s: float = RATE_PER_S
    burst: float = BURST
    _left: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # address -> (tokens, when)

    def take(self, address: str, now_s: float) -> bool:
        tokens, at_s = self._left.pop(address, (self.burst, now_s))
        tokens = min(self.burst, tokens + (now_s - at_s) * self.rate_per_s)
        allowed = tokens >= 1.0
        self._left[address] = (tokens - 1.0 if allowed else tokens, now_s)
        while len(self._left) > _MAX_ADDRESSES:
            self._left.popitem(last=False)
        return allowed


class Gate:
    """Before anything is read: too many requests, or too long ones, end here. (ASGI)"""

    def __init__(self, app: Any, allowance: Allowance, max_bytes: int = MAX_BODY_BYTES) -> None:
        self._app, self._allowance, self._max_bytes = app, allowance, max_bytes

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        peer = (scope.get("client") or ("",))[0]
        length = dict(scope["headers"]).get(b"content-length", b"")
        refusal = None
        if not self._allowance.take(peer, time.monotonic()):
            refusal = (429, "too many requests: wait some seconds")
        elif scope["method"] == "POST" and not length.isdigit():
            refusal = (411, "a length is wanted")  # without one, its end would have to be waited for
        elif length.isdigit() and int(length) > self._max_bytes:
            refusal = (413, f"at most {self._max_bytes} bytes")
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            await JSONResponse({"message": refusal[1]}, refusal[0])(scope, receive, send)


def desk_app(desk: JoinDesk, token: str, allowance: Allowance | None = None) -> FastAPI:
    app = FastAPI(title="Tradewind join desk", docs_url=None, redoc_url=None, openapi_url=None)
    guard = [Depends(_bearer(token))]

    @app.post("/join", dependencies=guard)
    def join(request: JoinRequest, http: Request) -> JoinReply:
        return desk.join(request, http.client.host if http.client else "")

    @app.post("/report", dependencies=guard, status_code=204)
    def report(request: BootReport) -> None:
        desk.report(request)

    @app.post("/energy", dependencies=guard, status_code=204)
    def energy(request: EnergyReport) -> None:
        desk.measured(request)

    @app.exception_handler(errors.TradewindError)
    def refused(_: Request, error: errors.TradewindError) -> JSONResponse:
        return JSONResponse({"message": error.message, "hint": error.hint}, _STATUS.get(type(error), 500))

    app.add_middleware(Gate, allowance=allowance or Allowance())
    app.state.closing = threading.Event()  # `serve` sets it at the end
    return app


def _bearer(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    def check(authorization: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(authorization.encode(), expected):
            raise errors.Unauthorized("the head refuses this token", "the secret of the cell may have changed")

    return check


def open_desk(app: FastAPI, address: str, tls: Tls) -> RunningServer:
    """On this address alone; on another port where its own is taken."""
    try:
        return serve(app, PORT, address, tls)
    except errors.ControllerError:
        return serve(app, 0, address, tls)
