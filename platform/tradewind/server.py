"""The HTTP API of a controller: routes in, ControllerPort calls out. Holds no state of its own.

Everything under /v1 wants the bearer token; the web page at / holds no data, and asks there. Errors are JSON
(api.ErrorBody) with a fitting status.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import anyio.to_thread
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import TypeAdapter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from tradewind import __version__, errors
from tradewind.api import (
    FORECAST_HOURS,
    FORECAST_SERIES,
    MAX_WAIT_S,
    SERVICE,
    ControllerPort,
    ErrorBody,
    EventLine,
    FleetStatus,
    ForecastReport,
    Health,
    JobInfo,
    LogChunk,
    NodeInfo,
    PreemptReply,
    ShutdownReport,
    Story,
    job_not_found,
    pick,
)
from tradewind.api_requests import PreemptRequest, ResumeRequest, SubmitRequest
from tradewind.cost_routes import cost_routes, metrics_routes
from tradewind.dashboard_routes import dashboard_routes

T = TypeVar("T")
logger = logging.getLogger(__name__)

# The nearest class in an error's line of descent decides.
STATUS_OF: dict[type[errors.TradewindError], int] = {
    errors.TradewindError: 500,
    errors.ConfigError: 422,
    errors.InvalidRequest: 422,
    errors.IllegalTransition: 409,
    errors.Conflict: 409,
    errors.Unsupported: 409,
    errors.JobError: 409,
    errors.JobNotFound: 404,
    errors.NotFound: 404,
    errors.Unauthorized: 401,
    errors.Throttled: 429,
    errors.ProviderError: 502,
    errors.RayError: 503,
    errors.ControllerError: 503,
}

THREADS = 128  # long polls hold one each; Starlette's 40 would let them starve the rest
SLICE_S = 1.0  # a long poll looks this often whether the server is closing
_SCHEME = HTTPBearer(auto_error=False, description="the text of the file `token` in the fleet's home")
_ERROR_BODY: TypeAdapter[ErrorBody] = TypeAdapter(ErrorBody)

WaitS = Annotated[float, Query(ge=0, le=MAX_WAIT_S, description="hold the answer so long until there is something")]
Offset = Annotated[int, Query(ge=0, description="in bytes")]
Last = Annotated[int | None, Query(ge=1, le=10_000, description="so many lines at the most, the newest")]
Tail = Annotated[int | None, Query(ge=0, description="the last so many lines, instead of an offset")]


def create_app(port: ControllerPort, token: str) -> FastAPI:
    """The API over one controller. `app.state.closing` ends long polls and followers."""
    if not token:
        raise errors.ControllerError("the API cannot be opened without a token", "write one with FleetHome.make_token")
    app = FastAPI(title="Tradewind", version=__version__, docs_url=None, redoc_url=None, lifespan=_lifespan)
    app.state.closing = threading.Event()
    app.add_api_route("/healthz", _health, summary="Is it there, and is it Tradewind?")
    guard = [Depends(_bearer(token))]
    known_errors: dict[int | str, dict[str, Any]] = {
        "4XX": {"model": ErrorBody, "description": "what was wrong with the request, and what to do"},
        "5XX": {"model": ErrorBody, "description": "what failed in the controller, and what to do"},
    }
    closing = app.state.closing
    money = cost_routes(port, _Route)
    for routes in (_fleet_routes(port, closing), _job_routes(port, closing), _why_routes(port), money):
        app.include_router(routes, prefix="/v1", dependencies=guard, responses=known_errors)
    app.include_router(metrics_routes(port, _Route), dependencies=guard, responses=known_errors)
    app.include_router(dashboard_routes(_Route))
    _answer_errors(app)
    return app


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


def _health() -> Health:
    return Health(service=SERVICE, version=__version__, pid=os.getpid())


def _bearer(token: str) -> Callable[..., None]:
    expected = token.encode()

    def check(given: Annotated[HTTPAuthorizationCredentials | None, Depends(_SCHEME)]) -> None:
        if given is None:
            raise errors.Unauthorized("no token was given", "send the header `Authorization: Bearer TOKEN`")
        if not secrets.compare_digest(given.credentials.encode(), expected):
            raise errors.Unauthorized("the controller refuses this token")

    return check


def _fleet_routes(port: ControllerPort, closing: threading.Event) -> APIRouter:
    routes = APIRouter(tags=["fleet"], route_class=_Route)

    @routes.get("/status", summary="One screen about the fleet")
    def status() -> FleetStatus:
        return port.status()

    @routes.get("/nodes", summary="All nodes, ended ones too")
    def nodes() -> list[NodeInfo]:
        return list(port.nodes())

    @routes.get("/nodes/{launch_id}/log", summary="What its machine wrote while it booted")
    def node_log(launch_id: str) -> str:
        return port.node_log(launch_id)

    @routes.get("/bill", summary="What the fleet cost, by label, job, market and node")
    def bill() -> dict[str, Any]:
        return port.bill()

    @routes.get("/events", summary="The event log, from a sequence number on")
    def events(
        after: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=10_000)] = 1000,
        wait_s: WaitS = 0.0,
    ) -> list[EventLine]:
        return _poll(lambda slice_s: list(port.events(after=after, limit=limit, wait_s=slice_s)), bool, wait_s, closing)

    @routes.get("/forecast", summary="What was wanted, what will be, and how good forecasts have been, by series")
    def forecast(
        what: Annotated[str, Query(description="a tenant, or a part of a shape; empty: all")] = "",
        hours: Annotated[float, Query(ge=0.1, le=168.0, description="of history")] = FORECAST_HOURS,
        most: Annotated[int, Query(ge=1, le=12, description="series, the most wanted first")] = FORECAST_SERIES,
    ) -> ForecastReport:
        return port.forecast(what, hours, most)

    @routes.post("/preempt", summary="Take a node away, as its cloud would (local cloud only)")
    def preempt(request: PreemptRequest) -> PreemptReply:
        return PreemptReply(launch_ids=tuple(port.preempt(request.target, request.notice_s)))

    @routes.post("/shutdown", summary="Stop all jobs, end all nodes, then end the controller")
    def shutdown() -> ShutdownReport:
        return port.shutdown()

    return routes


def _job_routes(port: ControllerPort, closing: threading.Event) -> APIRouter:
    routes = APIRouter(prefix="/jobs", tags=["jobs"], route_class=_Route)

    @routes.get("", summary="All jobs, oldest first")
    def jobs() -> list[JobInfo]:
        return list(port.jobs())

    @routes.post("", status_code=201, summary="Submit a job")
    def submit(request: SubmitRequest) -> JobInfo:
        return port.submit(request.to_spec())

    @routes.get("/{job_id}", summary="One job")
    def job(job_id: str) -> JobInfo:
        with _nearest(port, job_id):
            return port.job(job_id)

    @routes.post("/{job_id}/stop", summary="Ask a job to save and stop")
    def stop(job_id: str) -> JobInfo:
        with _nearest(port, job_id):
            return port.stop(job_id)

    @routes.post("/{job_id}/resume", summary="Raise its budget; if it is over, go on from its checkpoints")
    def resume(job_id: str, request: ResumeRequest) -> JobInfo:
        with _nearest(port, job_id):
            return port.resume(job_id, request)

    @routes.get("/{job_id}/receipt", summary="What the job cost, by label and market")
    def receipt(job_id: str) -> dict[str, Any]:
        with _nearest(port, job_id):
            return port.receipt(job_id)

    @routes.get("/{job_id}/logs", response_class=StreamingResponse, summary="What it printed, as text")
    def logs(job_id: str, offset: Offset = 0, tail: Tail = None, follow: bool = False) -> StreamingResponse:
        with _nearest(port, job_id):
            first = port.logs(job_id, offset=offset, tail=tail)  # here, so that an unknown job is a 404
        pieces = _pieces(port, job_id, first, follow, closing)
        return StreamingResponse(pieces, media_type="text/plain; charset=utf-8")

    @routes.get("/{job_id}/logs/chunk", summary="A piece of what it printed, with the offset of the next")
    def chunk(job_id: str, offset: Offset = 0, tail: Tail = None, wait_s: WaitS = 0.0) -> LogChunk:
        with _nearest(port, job_id):
            if tail is not None:
                return port.logs(job_id, tail=tail)
            return _poll(
                lambda slice_s: port.logs(job_id, offset=offset, wait_s=slice_s),
                lambda found: bool(found.text) or found.over,
                wait_s,
                closing,
            )

    return routes


def _why_routes(port: ControllerPort) -> APIRouter:
    routes = APIRouter(prefix="/why", tags=["why"], route_class=_Route)

    @routes.get("/node/{launch_id}", summary="Why a node is or was there; a beginning of its id is enough")
    def node(launch_id: str, last: Last = None) -> Story:
        return port.why("node", launch_id, last)

    @routes.get("/job/{job_id}", summary="What a job waits for or holds, and why; a beginning of its id is enough")
    def job(job_id: str, last: Last = None) -> Story:
        return port.why("job", job_id, last)

    @routes.get("/now", summary="What is held back, what is on the way, and what was decided last")
    def now(last: Last = None) -> Story:
        return port.why("now", "", last)

    return routes


@contextmanager
def _nearest(port: ControllerPort, job_id: str) -> Iterator[None]:
    """An unknown job is told with the nearest id that there is, a beginning that several have with these."""
    try:
        yield
    except errors.JobNotFound as error:
        names = [job.job_id for job in port.jobs()]
        pick(job_id, names, job_not_found)
        raise job_not_found(job_id, names) from error


def _poll(ask: Callable[[float], T], enough: Callable[[T], bool], wait_s: float, closing: threading.Event) -> T:
    """A long poll in slices, so that a closing server does not wait for it."""
    until_s = time.monotonic() + wait_s
    while True:
        left_s = until_s - time.monotonic()
        found = ask(max(0.0, min(left_s, SLICE_S)))
        if enough(found) or left_s <= SLICE_S or closing.is_set():
            return found


def _pieces(
    port: ControllerPort, job_id: str, first: LogChunk, follow: bool, closing: threading.Event
) -> Iterator[bytes]:
    chunk = first
    while not closing.is_set():
        if chunk.text:
            yield chunk.text.encode()
        if not chunk.more and (chunk.over or not follow):
            return
        chunk = port.logs(job_id, offset=chunk.next_offset, wait_s=0.0 if chunk.more else SLICE_S)


def _answer_errors(app: FastAPI) -> None:
    """Every error leaves as ErrorBody."""

    @app.exception_handler(errors.TradewindError)
    def known(_: Request, error: errors.TradewindError) -> JSONResponse:
        return _answer(error)

    @app.exception_handler(RequestValidationError)
    def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        problems = [
            errors.Problem("request", ".".join(str(part) for part in found["loc"][1:]), found["msg"])
            for found in error.errors()
        ]
        return _answer(errors.ConfigError(problems, "/openapi.json says what is allowed"))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        message = f"{error.detail}: {request.method} {request.url.path}"
        found = errors.ControllerError(message, "client and controller may be of different versions")
        return _answer(found, error.status_code)


class _Route(APIRoute):
    """A defect becomes an answer here: Starlette's own last resort would also break the connection."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        ask = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await ask(request)
            except (errors.TradewindError, RequestValidationError, HTTPException):
                raise
            except Exception as error:
                logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
                message = f"the controller failed: {type(error).__name__}: {error}"
                hint = "its log, controller.log in the fleet's home, says more"
                return _answer(errors.ControllerError(message, hint), 500)

        return handle


def _answer(error: errors.TradewindError, status: int | None = None) -> JSONResponse:
    found = status or next(STATUS_OF[cls] for cls in type(error).__mro__ if cls in STATUS_OF)
    headers = {"WWW-Authenticate": "Bearer"} if found == 401 else None
    return JSONResponse(_ERROR_BODY.dump_python(ErrorBody.of(error), mode="json"), found, headers)


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: a certificate (with its chain) and its key."""

    certificate: Path
    key: Path


class RunningServer:
    """An API that is being served from a thread. `stop` ends it, also in the middle of a long poll."""

    def __init__(self, app: Starlette, listener: socket.socket, tls: Tls | None = None) -> None:
        import uvicorn

        self._app = app
        self._listener = listener
        self.host, self.port = listener.getsockname()[:2]
        self._scheme, self._tls = "https" if tls else "http", tls
        config = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=3,
            timeout_keep_alive=30,
            ssl_certfile=tls.certificate if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="tradewind-api", daemon=True
        )

    @property
    def url(self) -> str:
        return f"{self._scheme}://{self.host}:{self.port}"

    def start(self, timeout_s: float = 20.0) -> None:
        self._thread.start()
        until_s = time.monotonic() + timeout_s
        while not self._server.started:
            if not self._thread.is_alive() or time.monotonic() > until_s:
                self.stop()
                raise errors.ControllerError("the HTTP server did not start", "its log says why")
            time.sleep(0.01)

    def renew(self) -> None:
        """Connections from now on are shown the certificate that the files hold now."""
        if self._tls is not None and self._server.config.ssl is not None:
            self._server.config.ssl.load_cert_chain(self._tls.certificate, self._tls.key)

    def stop(self, timeout_s: float = 10.0) -> None:
        self._app.state.closing.set()
        self._server.should_exit = True
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)
        self._listener.close()

    def __enter__(self) -> RunningServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve(app: Starlette, port: int = 0, host: str = "127.0.0.1", tls: Tls | None = None) -> RunningServer:
    """Serves from a thread; port 0 takes a free one. Returns when it answers."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise errors.ControllerError(
            f"cannot listen on {host}:{port}: {error.strerror}", "give another port"
        ) from error
    running = RunningServer(app, listener, tls)
    running.start()
    return running
