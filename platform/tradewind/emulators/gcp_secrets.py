"""The emulated Secret Manager of a Google Cloud project: secrets, their versions and states, pages, bad names."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field

from tradewind.emulators.gcp_http import JSON, Refused, Request
from tradewind.emulators.gcp_state import Timeline

_ID = re.compile(r"[A-Za-z0-9_-]{1,255}")


@dataclass
class Secret:
    name: str
    body: JSON
    versions: list[str | None] = field(default_factory=list)  # texts in base64, oldest first; None: destroyed


@dataclass
class SecretManager:
    project: str
    time: Timeline
    page_size: int
    secrets: dict[str, Secret] = field(default_factory=dict)  # by id

    def create(self, request: Request) -> JSON:
        secret_id, body = request.query.get("secretId", ""), request.body
        if not _ID.fullmatch(secret_id):
            raise _invalid("secret_id", "it must match [A-Za-z0-9_-]{1,255}")
        if unknown := set(body) - {"replication", "labels", "annotations"}:
            raise _invalid("secret", f"Unknown fields: {sorted(unknown)}")
        if not body.get("replication"):
            raise _invalid("secret.replication", "it is required")
        if secret_id in self.secrets:
            message = f"Secret [projects/1/secrets/{secret_id}] already exists."
            raise Refused(409, "", message, "ALREADY_EXISTS")
        name = f"projects/1/secrets/{secret_id}"
        self.secrets[secret_id] = Secret(name, {**body, "name": name, "createTime": self.time.stamp()})
        return self.secrets[secret_id].body

    def add_version(self, request: Request, secret_id: str) -> JSON:
        secret = self._secret(secret_id)
        data = request.body.get("payload", {}).get("data", "")
        try:
            size = len(base64.b64decode(data, validate=True))
        except binascii.Error as error:
            raise _invalid("payload.data", "it is not base64") from error
        if not 0 < size <= 65536:
            raise _invalid("payload.data", "1 to 65536 bytes")
        secret.versions.append(data)
        return self._version(secret, len(secret.versions))

    def access(self, secret_id: str, number: str) -> JSON:
        secret = self._secret(secret_id)
        at = len(secret.versions) if number == "latest" else int(number)
        if not 1 <= at <= len(secret.versions):
            raise _missing(f"{secret.name}/versions/{number}")
        data = secret.versions[at - 1]
        if data is None:
            message = f"Secret Version [{secret.name}/versions/{at}] is in DESTROYED state."
            raise Refused(400, "", message, "FAILED_PRECONDITION")
        return {"name": f"{secret.name}/versions/{at}", "payload": {"data": data}}

    def versions(self, request: Request, secret_id: str) -> JSON:
        """Newest first, as Google lists them."""
        secret = self._secret(secret_id)
        found = [self._version(secret, at) for at in range(len(secret.versions), 0, -1)]
        if request.query.get("filter") == "state:ENABLED":
            found = [each for each in found if each["state"] == "ENABLED"]
        return self._page(found, request, "versions")

    def destroy(self, secret_id: str, number: str) -> JSON:
        secret = self._secret(secret_id)
        if not number.isdigit() or not 1 <= int(number) <= len(secret.versions):
            raise _missing(f"{secret.name}/versions/{number}")
        secret.versions[int(number) - 1] = None
        return self._version(secret, int(number))

    def list_all(self, request: Request) -> JSON:
        """The filter `name:x` means: x stands somewhere in the name."""
        part = request.query.get("filter", "name:").removeprefix("name:")
        return self._page([each.body for key, each in self.secrets.items() if part in key], request, "secrets")

    def delete(self, secret_id: str) -> JSON:
        self._secret(secret_id)
        del self.secrets[secret_id]
        return {}

    def _version(self, secret: Secret, at: int) -> JSON:
        state = "DESTROYED" if secret.versions[at - 1] is None else "ENABLED"
        return {"name": f"{secret.name}/versions/{at}", "state": state}

    def _secret(self, secret_id: str) -> Secret:
        if secret_id not in self.secrets:
            raise _missing(f"projects/1/secrets/{secret_id}")
        return self.secrets[secret_id]

    def _page(self, items: list[JSON], request: Request, key: str) -> JSON:
        start = int(request.query.get("pageToken") or 0)
        end = start + min(self.page_size, int(request.query.get("pageSize") or self.page_size))
        return {key: items[start:end], "nextPageToken": str(end) if end < len(items) else ""}


def _missing(name: str) -> Refused:
    return Refused(404, "", f"Secret [{name}] not found or has no versions.", "NOT_FOUND")


def _invalid(what: str, why: str) -> Refused:
    return Refused(400, "", f"The provided {what} is invalid: {why}.", "INVALID_ARGUMENT")
