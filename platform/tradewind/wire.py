"""HTTP calls to a controller: values in, values or the error tree out. Used by client.py only."""

from __future__ import annotations

import time
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from tradewind.api import SERVICE, ErrorBody, Health
from tradewind.errors import ControllerError

T = TypeVar("T")

GET_ATTEMPTS = 4  # a GET changes nothing: a broken connection is tried again
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError, httpx.CloseError)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}  # building one takes milliseconds


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


class Wire:
    """One controller's API. Safe to use from several threads."""

    def __init__(self, url: str, token: str, timeout_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        # A proxy of the environment must never see loopback calls.
        parts = urlsplit(self.url)
        remote = parts.hostname not in ("127.0.0.1", "localhost", "::1")
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(timeout_s, connect=5.0),
            trust_env=remote,
            verify=parts.scheme == "https",  # loading the certificates takes longer than a whole call over http
        )

    def close(self) -> None:
        self._http.close()

    def get(self, path: str, kind: type[T], *, wait_s: float = 0.0, **params: Any) -> T:
        """`wait_s` is the length of a long poll, beside the ordinary time-out."""
        given = {key: value for key, value in params.items() if value is not None}
        if wait_s:
            given["wait_s"] = wait_s
        for attempt in range(GET_ATTEMPTS):
            try:
                return self._send(kind, "GET", path, self._timeout_s + wait_s, params=given)
            except _ConnectionBroken:
                if attempt == GET_ATTEMPTS - 1:
                    raise
                time.sleep(0.1 * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def get_text(self, path: str, *, timeout_s: float = 120.0) -> str:
        """What is not JSON: a file to be kept."""
        response = self._ask("GET", path, timeout_s)
        return response.text if response.is_success else self._read(str, response)

    def post(self, path: str, kind: type[T], body: Any = None, *, timeout_s: float | None = None) -> T:
        content = None if body is None else _adapter(type(body)).dump_python(body, mode="json")
        return self._send(kind, "POST", path, timeout_s or self._timeout_s, json=content)

    def health(self) -> Health:
        return self.get("/healthz", Health)

    def _send(self, kind: type[T], method: str, path: str, timeout_s: float, **request: Any) -> T:
        return self._read(kind, self._ask(method, path, timeout_s, **request))

    def _ask(self, method: str, path: str, timeout_s: float, **request: Any) -> httpx.Response:
        timeout = httpx.Timeout(timeout_s, connect=5.0)
        try:
            return self._http.request(method, path, timeout=timeout, **request)
        except httpx.ConnectError as error:
            raise NotListening(f"no controller answers at {self.url}") from error
        except httpx.TimeoutException as error:
            raise ControllerError(
                f"the controller at {self.url} did not answer {method} {path} within {timeout_s:.0f} s",
                "it may be busy: try again, or look into its log, controller.log",
            ) from error
        except _BROKEN as error:
            raise _ConnectionBroken(f"the connection to {self.url} broke: {error}", "try again") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ControllerError(f"cannot talk to {self.url}: {error}", "check the address") from error

    def _read(self, kind: type[T], response: httpx.Response) -> T:
        try:
            if response.is_success:
                value: T = _adapter(kind).validate_json(response.content)
                return value
            body: ErrorBody = _adapter(ErrorBody).validate_json(response.content)
        except ValidationError as error:
            raise ControllerError(
                f"{self.url} gave an answer that is not Tradewind's (status {response.status_code})",
                "client and controller may be of different versions, or another program listens there",
            ) from error
        raise body.to_exception()


class NotListening(ControllerError):
    """Nobody accepts connections there."""


class _ConnectionBroken(ControllerError):
    """It was there, and hung up in the middle."""


def is_healthy(url: str, pid: int, timeout_s: float = 10.0) -> bool:
    """Whether the controller that announced itself so is there. A hung one raises ControllerError."""
    wire = Wire(url, "", timeout_s)
    try:
        found = wire.health()
    except (NotListening, _ConnectionBroken):
        return False
    finally:
        wire.close()
    return found.service == SERVICE and found.pid == pid
