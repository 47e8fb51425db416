"""HTTPS for the emulated Azure: requests in, JSON out, connections that break on purpose. Knows no cloud.

Azure's SDK sends no token over plain HTTP, so there is a certificate, made at the start, for 127.0.0.1 alone.
"""

from __future__ import annotations

import json
import logging
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path
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
            raise Refused(400, "InvalidRequestContent", f"The request content was invalid: {error}") from error
        if not isinstance(found, dict):
            raise Refused(400, "InvalidRequestContent", "The request content must be an object.")
        return found


@dataclass(frozen=True)
class Answer:
    status: int = 200
    body: JSON | list[JSON] | str | None = None  # a text is sent as it is
    headers: Mapping[str, str] = field(default_factory=dict)


class Refused(Exception):
    """An answer with an error in it."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.answer = Answer(status, {"error": {"code": code, "message": message}}, headers or {})


class Cut(Exception):
    """The connection breaks instead of an answer."""


def make_certificate(folder: Path) -> Path:
    """cert.pem and key.pem in the folder; returns the first, which a client checks by."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "tradewind emulated azure")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").touch(mode=0o600)
    (folder / "key.pem").write_bytes(secret)
    (folder / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return folder / "cert.pem"


def serve(answer: Callable[[Request], Answer], folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """A server on loopback, in threads of its own, with the certificate in the folder."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise every answer waits 40 ms for an acknowledgement

        def setup(self) -> None:
            self.request = context.wrap_socket(self.request, server_side=True)  # here, in the connection's own thread
            super().setup()

        def log_message(self, *_: object) -> None:
            return

        def answer(self) -> None:
            parts = urlsplit(self.path)
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {key.lower(): value for key, value in self.headers.items()}
            try:
                told = answer(Request(self.command, parts.path, dict(parse_qsl(parts.query)), headers, raw))
            except Refused as refused:
                told = refused.answer
            except Cut:
                self.close_connection = True
                return
            except Exception:  # a defect of the emulator: loud, and not taken for the cloud's bad day
                _log.exception("the emulator failed at %s %s", self.command, self.path)
                told = Answer(501, {"error": {"code": "EmulatorDefect", "message": "defect in the emulator"}})
            data = _bytes(told.body)
            self.send_response(told.status)
            for name, value in {"Content-Type": "application/json; charset=utf-8", **told.headers}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PATCH = do_PUT = answer

    server = _Server(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.02,), name="azure-emulator", daemon=True).start()
    return server


def _bytes(body: JSON | list[JSON] | str | None) -> bytes:
    if body is None:
        return b""
    return (body if isinstance(body, str) else json.dumps(body)).encode()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away, or does not trust the certificate, is no news; anything else went to the log."""
        del request
        _log.debug("the connection of %s broke", client_address, exc_info=True)
