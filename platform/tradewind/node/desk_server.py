"""The join desk on HTTPS: who may speak, how often and how much. Routes in, JoinDesk calls out."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse

from tradewind import errors
from tradewind.node.join_desk import BootReport, JoinDesk, JoinReply, JoinRequest

PORT = 8441
MAX_BODY_BYTES = 64 * 1024
RATE_PER_S, BURST = 1.0, 20.0  # of one address; a node asks twice in its life
_MAX_ADDRESSES = 10_000
_START_TIMEOUT_S = 20.0
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


def desk_app(desk: JoinDesk, token: str, allowance: Allowance | None = None) -> Any:
    app = FastAPI(title="Tradewind join desk", docs_url=None, redoc_url=None, openapi_url=None)
    guard = [Depends(_bearer(token))]

    @app.post("/join", dependencies=guard)
    def join(request: JoinRequest, http: Request) -> JoinReply:
        return desk.join(request, http.client.host if http.client else "")

    @app.post("/report", dependencies=guard, status_code=204)
    def report(request: BootReport) -> None:
        desk.report(request)

    @app.exception_handler(errors.TradewindError)
    def refused(_: Request, error: errors.TradewindError) -> JSONResponse:
        return JSONResponse({"message": error.message, "hint": error.hint}, _STATUS.get(type(error), 500))

    return Gate(app, allowance or Allowance())


def _bearer(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    def check(authorization: Annotated[str, Header()] = "") -> None:
        if not secrets.compare_digest(authorization.encode(), expected):
            raise errors.Unauthorized("the head refuses this token", "the secret of the cell may have changed")

    return check


class DeskServer:
    """Served from a thread. The certificate is read again at a renewal (`renew`)."""

    def __init__(self, app: Any, address: str, cert: Path, key: Path, port: int = PORT) -> None:
        import uvicorn

        self._cert, self._key = cert, key
        self._listener = _listen(address, port)
        config = uvicorn.Config(
            app,
            ssl_certfile=cert,
            ssl_keyfile=key,
            log_config=None,
            access_log=False,
            timeout_keep_alive=10,
            limit_concurrency=512,
        )
        self._config = config
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listener]}, name="join-desk", daemon=True
        )

    @property
    def url(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"https://{host}:{port}"

    def start(self) -> None:
        self._thread.start()
        until_s = time.monotonic() + _START_TIMEOUT_S
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until_s:
                raise errors.RayError(f"the join desk at {self.url} does not start", "see the lines before this one")
            time.sleep(0.02)

    def renew(self) -> None:
        """Connections from now on get the certificate that the files hold now."""
        if self._config.ssl is not None:
            self._config.ssl.load_cert_chain(self._cert, self._key)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10.0)
        self._listener.close()


def _listen(address: str, port: int) -> socket.socket:
    """On this address alone; on another port where this one is taken."""
    found = socket.socket()
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((address, port))
    except OSError:
        found.bind((address, 0))
    return found
