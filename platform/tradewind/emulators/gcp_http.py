"""HTTP for the emulated Google Cloud: requests in, JSON out, connections that break on purpose. Knows no cloud."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

JSON = dict[str, Any]
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    raw: bytes = b""

    @property
    def body(self) -> JSON:
        try:
            found = json.loads(self.raw) if self.raw else {}
        except ValueError as error:
            raise Refused(400, "parseError", f"Parse Error: {error}", "INVALID_ARGUMENT") from error
        if not isinstance(found, dict):
            raise Refused(400, "parseError", "the body must be an object", "INVALID_ARGUMENT")
        return found


class Refused(Exception):
    """An answer with an error in it. `reason` is Compute Engine's, `status` is gRPC's."""

    def __init__(
        self, code: int, reason: str, message: str, status: str = "", details: list[JSON] | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.status, self.details = code, reason, message, status, details

    @property
    def body(self) -> JSON:
        error: JSON = {"code": self.code, "message": self.message}
        if self.reason:
            error["errors"] = [{"message": self.message, "domain": "global", "reason": self.reason}]
        if self.status:
            error["status"] = self.status
        if self.details:
            error["details"] = self.details
        return {"error": error}


class Cut(Exception):
    """The connection breaks instead of an answer."""


Body = JSON | str | bytes  # JSON as such, a text or bytes as they are
Answer = tuple[int, Body] | tuple[int, Body, Mapping[str, str]]  # with headers, where there are some


def serve(answer: Callable[[Request], Answer], port: int = 0) -> ThreadingHTTPServer:
    """A server on loopback, in threads of its own. `server_address` tells the port."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise every answer waits 40 ms for an acknowledgement

        def log_message(self, *_: object) -> None:
            return

        def answer(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            request = Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, raw)
            more: Mapping[str, str] = {}
            body: Body
            try:
                code, body, *rest = answer(request)
                more = rest[0] if rest else {}
            except Refused as refused:
                code, body = refused.code, refused.body
            except Cut:
                self.close_connection = True
                return
            except Exception:  # a defect of the emulator: loud, and not taken for the cloud's bad day
                _log.exception("the emulator failed at %s %s", self.command, self.path)
                code, body = 501, {"error": {"code": 501, "message": "defect in the emulator"}}
            data = body if isinstance(body, bytes) else (body if isinstance(body, str) else json.dumps(body)).encode()
            kind = "application/json; charset=UTF-8" if isinstance(body, dict) else "application/text"
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Metadata-Flavor", "Google")
            for name, value in more.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = answer

    server = _Server(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), name="gcp-emulator", daemon=True).start()
    return server


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is no news; anything else went to the log."""
        del request
        _log.debug("the connection of %s broke", client_address, exc_info=True)
