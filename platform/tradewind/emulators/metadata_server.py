"""The link-local address of emulated machines: one metadata service a machine, at that machine's own address.

A real one sits at 169.254.169.254 and knows who asks. Here each machine has a loopback address of its own; what comes
in there comes from that machine. One thread listens for all of them, since there may be hundreds.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT = 8169
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    method: str
    target: str  # path and query
    headers: Mapping[str, str]  # names in lower case
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Told:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Answer = Callable[[Asked], Told | None]  # None: the connection ends without an answer


class MetadataServer:
    """`add` and `remove` addresses at any time."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._answers: dict[str, Answer] = {}
        self._listening: dict[str, socket.socket] = {}
        self._closing = threading.Event()
        self._connections = _Connections(self._answers)
        threading.Thread(target=self._accept, name="emulated-metadata", daemon=True).start()

    def add(self, address: str, answer: Answer) -> str:
        """Listen there; returns the service's URL."""
        listening = socket.create_server((address, PORT), backlog=64)
        listening.setblocking(False)
        self._answers[address], self._listening[address] = answer, listening
        self._selector.register(listening, selectors.EVENT_READ)
        return f"http://{address}:{PORT}"

    def remove(self, address: str) -> None:
        listening = self._listening.pop(address, None)
        if listening is not None:
            self._selector.unregister(listening)
            listening.close()
            del self._answers[address]

    def close(self) -> None:
        self._closing.set()
        for address in list(self._listening):
            self.remove(address)

    def _accept(self) -> None:
        while not self._closing.is_set():
            if not self._listening:
                self._closing.wait(0.05)
                continue
            for key, _ in self._selector.select(0.2):
                listening = key.fileobj
                assert isinstance(listening, socket.socket)
                try:
                    connection, caller = listening.accept()
                except OSError:  # removed meanwhile, or the caller is gone
                    continue
                connection.setblocking(True)
                self._connections.process_request(connection, caller)
        self._selector.close()


class _Connections(ThreadingHTTPServer):
    """Only what the standard library does once a connection is there; it listens nowhere itself."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.answers = answers


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 120
    server: _Connections

    def _handle(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        answer = self.server.answers.get(self.connection.getsockname()[0])
        told = answer(Asked(self.command, self.path, headers, body)) if answer else None
        if told is None:
            self.close_connection = True
            return
        self.send_response(told.status)
        for name, value in told.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(told.body)))
        self.end_headers()
        self.wfile.write(told.body)

    do_GET = do_POST = do_PUT = _handle

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)
