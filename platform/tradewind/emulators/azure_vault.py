"""The emulated Azure Key Vault: secrets with versions, soft delete, purge and recovery, pages, bad names.

A deleted secret can be recovered for 90 days and blocks its name so long, unless it is purged; `purge_protection`
forbids that. Deleting and recovering take a moment.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tradewind.emulators.azure_http import JSON, Answer, Refused, Request
from tradewind.emulators.gcp_state import Timeline

_NAME = re.compile(r"[0-9a-zA-Z-]{1,127}")
_FIELDS = {"value", "tags", "contentType", "attributes"}


@dataclass
class Secret:
    name: str
    versions: dict[str, str] = field(default_factory=dict)  # id -> text, oldest first
    state: str = "there"  # "there", "deleting", "deleted", "recovering"


@dataclass
class KeyVault:
    time: Timeline
    url: Callable[[], str]
    page_size: int
    moment_s: float = 0.0  # how long a deletion or a recovery takes
    purge_protection: bool = False
    secrets: dict[str, Secret] = field(default_factory=dict)  # by name in lower case

    def put(self, request: Request, name: str) -> Answer:
        if not _NAME.fullmatch(name):
            raise Refused(400, "BadParameter", f"The request URI contains an invalid name: {name}")
        if unknown := set(request.body) - _FIELDS:
            raise Refused(400, "BadParameter", f"Property {sorted(unknown)} has an invalid value")
        text = request.body.get("value", "")
        if not isinstance(text, str) or not 0 < len(text.encode()) <= 25_600:
            raise Refused(400, "BadParameter", "The secret's value must have 1 to 25600 bytes.")
        secret = self.secrets.setdefault(name.lower(), Secret(name))
        if secret.state != "there":
            raise _conflict(secret)
        version = uuid.uuid4().hex
        secret.versions[version] = text
        return Answer(200, self._shown(secret, version, text))

    def get(self, _: Request, name: str) -> Answer:
        secret = self._living(name)
        version, text = next(reversed(secret.versions.items()))
        return Answer(200, self._shown(secret, version, text))

    def list(self, request: Request) -> Answer:
        found = [each for each in self.secrets.values() if each.state == "there"]
        start = int(request.query.get("$skiptoken") or 0)
        end = start + min(self.page_size, int(request.query.get("maxresults") or self.page_size))
        more = f"{self.url()}/secrets?api-version={request.query['api-version']}&$skiptoken={end}"
        items = [{"id": f"{self.url()}/secrets/{each.name}", "attributes": _ON} for each in found[start:end]]
        return Answer(200, {"value": items, "nextLink": more if end < len(found) else None})

    def delete(self, _: Request, name: str) -> Answer:
        secret = self._living(name)
        secret.state = "deleting"
        self._soon(secret, "deleted")
        return Answer(200, self._deleted(secret))

    def get_deleted(self, _: Request, name: str) -> Answer:
        return Answer(200, self._deleted(self._gone(name)))

    def purge(self, _: Request, name: str) -> Answer:
        secret = self._gone(name)
        if self.purge_protection:
            raise Refused(403, "Forbidden", "Operation 'purge' is not enabled for this vault.")
        del self.secrets[secret.name.lower()]
        return Answer(204)

    def recover(self, _: Request, name: str) -> Answer:
        secret = self._gone(name)
        secret.state = "recovering"
        self._soon(secret, "there")
        return Answer(200, {"id": f"{self.url()}/secrets/{secret.name}", "attributes": _ON})

    def _soon(self, secret: Secret, state: str) -> None:
        def happens() -> None:
            secret.state = state

        if self.moment_s:
            self.time.after(self.moment_s, happens)
        else:
            happens()

    def _living(self, name: str) -> Secret:
        secret = self.secrets.get(name.lower())
        if secret is None or secret.state != "there":
            message = f"A secret with (name/id) {name} was not found in this key vault."
            raise Refused(404, "SecretNotFound", message)
        return secret

    def _gone(self, name: str) -> Secret:
        secret = self.secrets.get(name.lower())
        if secret is None or secret.state != "deleted":
            raise Refused(404, "SecretNotFound", f"Deleted Secret not found: {name}")
        return secret

    def _shown(self, secret: Secret, version: str, text: str) -> JSON:
        return {"id": f"{self.url()}/secrets/{secret.name}/{version}", "value": text, "attributes": _ON}

    def _deleted(self, secret: Secret) -> JSON:
        folder = f"{self.url()}/deletedsecrets/{secret.name}"
        return {"recoveryId": folder, "id": f"{self.url()}/secrets/{secret.name}", "attributes": _ON}


_ON: dict[str, Any] = {"enabled": True, "recoveryLevel": "Recoverable+Purgeable"}


def _conflict(secret: Secret) -> Refused:
    code = {"deleted": "ObjectIsDeletedButRecoverable", "deleting": "ObjectIsBeingDeleted"}
    why = code.get(secret.state, "ObjectIsBeingRecovered")
    message = f"Secret {secret.name} is currently in a {secret.state} state, and its name cannot be reused ({why})."
    return Refused(409, "Conflict", message)
