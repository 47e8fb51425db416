"""Secrets in Google's Secret Manager, over REST with google.auth's own session: the SDK for it brings gRPC stubs and
seconds of import for six calls. "a/b" is called a_b there. Of a secret only its newest version is kept."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

from tradewind.autoscaler.providers import gcp_errors
from tradewind.autoscaler.providers.gcp_settings import SCOPE
from tradewind.autoscaler.providers.secrets import check_name, check_text
from tradewind.errors import Conflict, InvalidRequest, NotFound

CLOUD, TIMEOUT_S = "gcp", 30.0
_ENDPOINT = "https://secretmanager.googleapis.com"


class GcpSecrets:
    def __init__(self, project: str = "", endpoint_url: str = "", *, credentials: Any = None) -> None:
        """Without a project: that of the credentials, which on a machine is the machine's own."""
        self._url = (endpoint_url or _ENDPOINT).rstrip("/")
        self._given, self._credentials = project, credentials
        self._opened: tuple[Any, str] | None = None
        self._lock = threading.Lock()

    def put(self, name: str, text: str) -> None:
        secret = spelled(name)
        check_text(name, text, CLOUD)
        with suppress(Conflict):  # it is there already
            self._call("POST", f"?secretId={secret}", {"replication": {"automatic": {}}})
        with suppress(NotFound, InvalidRequest):  # it has no version, or none that can be read
            if self.get(name) == text:
                return
        data = base64.b64encode(text.encode()).decode()
        made = self._call("POST", f"/{secret}:addVersion", {"payload": {"data": data}})
        self._destroy_others(secret, made["name"].rpartition("/")[2])

    def _destroy_others(self, secret: str, newest: str) -> None:
        for version in list(self._pages(f"/{secret}/versions", "versions", filter="state:ENABLED")):
            number = version["name"].rpartition("/")[2]
            if number != newest:
                self._call("POST", f"/{secret}/versions/{number}:destroy", {})

    def get(self, name: str) -> str:
        told = self._call("GET", f"/{spelled(name)}/versions/latest:access")
        return base64.b64decode(told["payload"]["data"]).decode()

    def delete(self, name: str) -> None:
        with suppress(NotFound):
            self._call("DELETE", f"/{spelled(name)}")

    def list(self, prefix: str) -> Sequence[str]:
        start = prefix.replace("/", "_")
        found = [each["name"].rpartition("/")[2] for each in self._pages("", "secrets", filter=f"name:{start}")]
        return sorted(name.replace("_", "/") for name in found if name.startswith(start))

    # --- calls ---

    def _pages(self, path: str, key: str, **query: str) -> Iterator[Any]:
        token = ""
        while True:
            page = self._call("GET", f"{path}?{urlencode({**query, 'pageToken': token})}")
            yield from page.get(key, ())
            token = page.get("nextPageToken", "")
            if not token:
                return

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        try:
            session, project = self._session()
            url = f"{self._url}/v1/projects/{project}/secrets{path}"
            answer = session.request(method, url, json=body, timeout=TIMEOUT_S)
        except Exception as error:
            raise gcp_errors.of_exception(error) from error
        if answer.status_code == 200:
            return answer.json()
        told = _error_of(answer)
        raise gcp_errors.refusal(told.get("status", ""), told.get("message", ""), answer.status_code)

    def _session(self) -> tuple[Any, str]:
        import google.auth
        from google.auth.transport.requests import AuthorizedSession

        with self._lock:
            if self._opened is None:
                credentials, project = self._credentials, self._given
                if credentials is None:
                    credentials, found = google.auth.default(scopes=[SCOPE])
                    project = project or found or ""
                if not project:
                    hint = "give the project in the fleet file"
                    raise InvalidRequest("Secret Manager needs a project", hint, cloud=CLOUD)
                self._opened = (AuthorizedSession(credentials), project)
            return self._opened


def spelled(name: str) -> str:
    """As Google takes it. A part may have no "." or "_", so that the way back is clear."""
    if set(check_name(name, CLOUD)) & set("._"):
        hint = "use letters, digits and '-' in the names of fleet and cell"
        raise InvalidRequest(f"Google has no name like {name!r} for a secret", hint, cloud=CLOUD)
    return name.replace("/", "_")


def _error_of(answer: Any) -> dict[str, str]:
    try:
        found: dict[str, str] = answer.json()["error"]
    except (ValueError, KeyError, TypeError):  # whatever a proxy has put there instead of JSON
        return {"message": answer.text[:500]}
    return found
