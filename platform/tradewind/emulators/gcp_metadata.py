"""The metadata server of the emulated Google Cloud, as one machine or one host of a TPU slice sees it.

Simulated: single values, whole folders (`recursive=true`), waiting for a change (`wait_for_change`, `last_etag`), the
access tokens of its service account, refusal without the header and through a proxy. Keys are those that we read.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tradewind.emulators.gcp_compute import Vm
from tradewind.emulators.gcp_tpu import TpuNode
from tradewind.emulators.metadata_server import Asked, Told

_ROOT = "/computeMetadata/v1/"
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_FLAVOR = {"Metadata-Flavor": "Google"}
_POLL_S = 0.02


@dataclass(frozen=True)
class Host:
    """Where it runs: a machine, or one host of a slice."""

    name: str
    of: Vm | TpuNode
    number: int = 0

    @property
    def address(self) -> str:
        if isinstance(self.of, Vm):
            return str(self.of.body["networkInterfaces"][0].get("networkIP", ""))
        ends = self.of.body.get("networkEndpoints", [])
        return str(ends[self.number]["ipAddress"]) if self.number < len(ends) else ""

    @property
    def account(self) -> str:
        """The email of its service account; "": it has none."""
        if isinstance(self.of, Vm):
            return next((str(each["email"]) for each in self.of.body.get("serviceAccounts", ())), "")
        return str(self.of.body.get("serviceAccount", {}).get("email", ""))


class GcpMetadata:
    """`find` gives the host as it is now (None: gone), `token` an access token of a service account."""

    def __init__(self, project: str, find: Callable[[str], Host | None], token: Callable[[str], str]) -> None:
        self.project, self._find, self._token = project, find, token

    def told(self, name: str, asked: Asked) -> Told | None:
        parts = urlsplit(asked.target)
        query = dict(parse_qsl(parts.query))
        if asked.headers.get("metadata-flavor") != "Google" or "x-forwarded-for" in asked.headers:
            return Told(403, b"Missing Metadata-Flavor:Google header.", _FLAVOR)
        path = parts.path.removeprefix(_ROOT).strip("/")
        text = self._text(name, path, "recursive" in query)
        known = query.get("last_etag") or _etag(text)
        deadline_s = time.monotonic() + float(query.get("timeout_sec", "60"))
        while "wait_for_change" in query and _etag(text) == known and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
            text = self._text(name, path, "recursive" in query)
        if text is None:
            return None if self._find(name) is None else Told(404, b"Not Found", _FLAVOR)
        kind = "application/json" if text.startswith(("{", "[")) else "application/text"
        return Told(200, text.encode(), {**_FLAVOR, "ETag": _etag(text), "Content-Type": kind})

    def _text(self, name: str, path: str, recursive: bool) -> str | None:
        host = self._find(name)
        if host is None:
            return None
        if re.fullmatch(rf"instance/service-accounts/(default|{re.escape(host.account)})/token", path):
            if not host.account:
                return None
            return json.dumps({"access_token": self._token(host.account), "expires_in": 3599, "token_type": "Bearer"})
        found = _walk(self._tree(host), path.split("/") if path else [])
        if isinstance(found, dict) and not recursive:
            return "\n".join(found)
        if isinstance(found, list) and not recursive:
            return "\n".join(map(str, found))
        return found if found is None or isinstance(found, str) else json.dumps(found)

    def _tree(self, host: Host) -> dict[str, Any]:
        of = host.of
        account = {"email": host.account, "scopes": [_SCOPE], "aliases": ["default"]}
        instance = {
            "attributes": _attributes(host),
            "id": str(of.body.get("id", "")),
            "machineType": f"projects/1/machineTypes/{of.machine if isinstance(of, Vm) else of.type}",
            "maintenanceEvent": of.maintenance,
            "name": host.name,
            "networkInterfaces": [{"ip": host.address}],
            "preempted": "TRUE" if of.preempted else "FALSE",
            "serviceAccounts": dict.fromkeys(["default", host.account], account) if host.account else {},
            "zone": f"projects/1/zones/{of.zone}",
        }
        return {"instance": instance, "project": {"projectId": self.project, "numericProjectId": "1"}}


def _attributes(host: Host) -> dict[str, str]:
    if isinstance(host.of, Vm):
        items = host.of.body.get("metadata", {}).get("items", ())
        return {str(item["key"]): str(item["value"]) for item in items}
    own = {"agent-worker-number": str(host.number), "accelerator-type": host.of.type}
    return {**{key: str(value) for key, value in host.of.body.get("metadata", {}).items()}, **own}


def _walk(tree: Any, path: list[str]) -> Any:
    """Paths have hyphens where JSON has capitals, but for attributes, whose names are their owner's."""
    for depth, part in enumerate(path):
        name = part if path[depth - 1 : depth] == ["attributes"] else re.sub(r"-(.)", lambda m: m[1].upper(), part)
        if isinstance(tree, list):
            tree = tree[int(part)] if part.isdigit() and int(part) < len(tree) else None
        else:
            tree = tree.get(name) if isinstance(tree, dict) else None
    return tree


def _etag(text: str | None) -> str:
    return hashlib.sha256((text or "").encode()).hexdigest()[:16]
