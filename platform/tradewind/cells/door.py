"""The agents' door: HTTPS, for the agents of cells alone. People's API (server.py) is another server.

An agent shows the token of its cell, and reaches that cell's line and nothing else. Nothing is read of a body before
the token has been checked, and of none more than it may have.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import zlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import anyio.to_thread
from pydantic import TypeAdapter, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from tradewind.cells.calls import ANSWER, HELLO, POLL, POLLED, WELCOME, Welcome
from tradewind.cells.line import Dismissed, Line, UnknownSession
from tradewind.errors import Conflict

log = logging.getLogger(__name__)

T = TypeVar("T")

SMALL_BYTES = 64 * 2**10  # hello and polls
WIRE_BYTES = 32 * 2**20  # an answer as it comes: a snapshot of ten thousand nodes is below 1 MiB, a long log below 32
BODY_BYTES = 256 * 2**20  # ... and unpacked
THREADS = 128  # each poll holds one


@dataclass(frozen=True, slots=True)
class Lodging:
    """What the door keeps for one cell."""

    line: Line
    token: str
    folders: Path | None = None  # packed working folders, DIGEST.zip


class _Refused(Exception):
    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


def create_door(cells: Mapping[str, Lodging]) -> Starlette:
    """`cells` is read at each request: cells may be added later. `app.state.closing` ends polls."""
    app = Starlette(
        routes=[
            Route("/v1/cells/{cell}/hello", _guarded(cells, _hello), methods=["POST"]),
            Route("/v1/cells/{cell}/calls", _guarded(cells, _poll), methods=["POST"]),
            Route("/v1/cells/{cell}/calls/{call_id}", _guarded(cells, _answer), methods=["POST"]),
            Route("/v1/cells/{cell}/folders/{digest}", _guarded(cells, _folder), methods=["GET"]),
        ],
        lifespan=_lifespan,
    )
    app.state.closing = threading.Event()
    return app


@asynccontextmanager
async def _lifespan(_: Starlette) -> AsyncIterator[None]:
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


Handler = Callable[[Request, Lodging], Any]  # an async function


def _guarded(cells: Mapping[str, Lodging], handle: Handler) -> Any:
    async def endpoint(request: Request) -> Response:
        try:
            found: Response = await handle(request, _let_in(request, cells))
            return found
        except _Refused as refused:
            return _no(refused.status, refused.kind, str(refused))
        except UnknownSession:
            return _no(404, "hello", "say hello first: this controller does not know the session")
        except Dismissed as error:
            return _no(410, "go", str(error))
        except Conflict as error:
            log.error("%s", error)
            return _no(409, "conflict", str(error))

    return endpoint


def _no(status: int, kind: str, message: str) -> JSONResponse:
    return JSONResponse({"kind": kind, "message": message}, status)


def _let_in(request: Request, cells: Mapping[str, Lodging]) -> Lodging:
    """Of an unknown cell and of a wrong token the same is said."""
    lodging = cells.get(request.path_params["cell"])
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    expected = lodging.token if lodging else secrets.token_hex(16)
    right = secrets.compare_digest(given.encode(), expected.encode())
    if lodging is None or not lodging.token or scheme.lower() != "bearer" or not right:
        raise _Refused(401, "token", "this cell and this token do not belong together")
    return lodging


async def _body(request: Request, kind: TypeAdapter[T], most_bytes: int, most_unpacked: int) -> T:
    found = bytearray()
    async for piece in request.stream():
        found += piece
        if len(found) > most_bytes:
            raise _Refused(413, "size", f"at most {most_bytes} bytes are taken here")
    try:
        packed = request.headers.get("content-encoding") == "gzip"
        text = await anyio.to_thread.run_sync(_unpack, bytes(found), most_unpacked) if packed else bytes(found)
        return await anyio.to_thread.run_sync(kind.validate_json, text)
    except (ValidationError, zlib.error, EOFError) as error:
        raise _Refused(422, "body", f"this is not what is said here: {type(error).__name__}") from error


def _unpack(packed: bytes, most_bytes: int) -> bytes:
    """Never more than it may be: a few kilobytes can unpack to gigabytes."""
    unpacker = zlib.decompressobj(wbits=31)
    text = unpacker.decompress(packed, most_bytes)
    if unpacker.unconsumed_tail:
        raise _Refused(413, "size", f"at most {most_bytes} bytes unpacked are taken here")
    if not unpacker.eof:
        raise EOFError("it is cut off")
    return text


async def _hello(request: Request, lodging: Lodging) -> Response:
    words = await _body(request, HELLO, SMALL_BYTES, SMALL_BYTES)
    return _json(WELCOME.dump_json(Welcome(lodging.line.hello(words))))


async def _poll(request: Request, lodging: Lodging) -> Response:
    asked = await _body(request, POLL, SMALL_BYTES, SMALL_BYTES)
    closing = request.app.state.closing
    found = await anyio.to_thread.run_sync(lodging.line.poll, asked.session, asked.wait_s, closing)
    return _json(POLLED.dump_json(found))


async def _answer(request: Request, lodging: Lodging) -> Response:
    given = await _body(request, ANSWER, WIRE_BYTES, BODY_BYTES)
    await asyncio.to_thread(lodging.line.answer, request.path_params["call_id"], given)
    return Response(status_code=204)


async def _folder(request: Request, lodging: Lodging) -> Response:
    digest = request.path_params["digest"]
    path = lodging.folders / f"{digest}.zip" if lodging.folders and digest.isalnum() else None
    if path is None or not path.is_file():
        raise _Refused(404, "folder", "there is no such folder")
    return FileResponse(path, media_type="application/zip")


def _json(text: bytes) -> Response:
    return Response(text, media_type="application/json")
