"""The emulated AWS Secrets Manager: secrets with versions, scheduled deletion and restoring, pages, bad names.

A secret that was deleted at once still blocks its name for a moment, as at AWS.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tradewind.emulators.aws_wire import Refused

_NAME = re.compile(r"[A-Za-z0-9/_+=.@-]{1,512}")
_DAY_S = 86400.0
JSON = dict[str, Any]
_FIELDS = {
    "CreateSecret": {"Name", "ClientRequestToken", "Description", "KmsKeyId", "SecretString", "Tags"},
    "PutSecretValue": {"SecretId", "ClientRequestToken", "SecretString"},
    "GetSecretValue": {"SecretId", "VersionId", "VersionStage"},
    "DeleteSecret": {"SecretId", "RecoveryWindowInDays", "ForceDeleteWithoutRecovery"},
    "RestoreSecret": {"SecretId"},
    "ListSecrets": {"Filters", "MaxResults", "NextToken", "IncludePlannedDeletion", "SortOrder"},
}


@dataclass
class Secret:
    arn: str
    name: str
    created_at_s: float
    versions: dict[str, str] = field(default_factory=dict)  # by request token, oldest first
    deleted_at_s: float | None = None
    gone_at_s: float = 0.0
    can_be_restored: bool = True

    @property
    def text(self) -> str:
        return next(reversed(self.versions.values()))


class Vault:
    """Of one account; secrets are kept by region and name."""

    def __init__(self, clock: Callable[[], float], account: str, page_size: int = 10) -> None:
        self.clock, self.account, self.page_size = clock, account, page_size
        self.blocked_s = 2.0  # how long the name of a secret stays taken that was deleted at once
        self.secrets: dict[tuple[str, str], Secret] = {}

    def resource(self, action: str, asked: Mapping[str, Any], region: str) -> str:
        """The ARN that rights are checked by."""
        if action == "ListSecrets":
            return "*"
        name = str(asked.get("SecretId") or asked.get("Name") or "")
        found = self._find(region, name)
        return found.arn if found else f"{self._arn(region)}:{name}-??????"

    def answer(self, action: str, asked: JSON, region: str) -> JSON:
        if action not in _FIELDS:
            raise Refused("InvalidAction", f"{action} is not emulated")
        if unknown := set(asked) - _FIELDS[action]:
            raise Refused("ValidationException", f"Unknown fields: {sorted(unknown)}")
        self.secrets = {
            key: each
            for key, each in self.secrets.items()
            if each.deleted_at_s is None or each.gone_at_s > self.clock()
        }
        handle: Callable[[JSON, str], JSON] = getattr(self, f"_{re.sub('(?<!^)(?=[A-Z])', '_', action).lower()}")
        return handle(asked, region)

    def _create_secret(self, asked: JSON, region: str) -> JSON:
        name, text, token = asked.get("Name", ""), asked.get("SecretString", ""), asked.get("ClientRequestToken", "")
        if not _NAME.fullmatch(name):
            message = "Invalid name. Must be a valid name containing alphanumeric characters, or any of: -/_+=.@!"
            raise Refused("ValidationException", message)
        _check_text(text)
        there = self._find(region, name)
        if there is not None and there.deleted_at_s is not None:
            message = "You can't create this secret because a secret with this name is already scheduled for deletion."
            raise Refused("InvalidRequestException", message)
        if there is not None and there.versions.get(token) != text:
            raise Refused("ResourceExistsException", f"The operation failed because the secret {name} already exists.")
        if there is None:
            arn = f"{self._arn(region)}:{name}-{uuid.uuid4().hex[:6]}"
            there = self.secrets[region, name] = Secret(arn, name, self.clock(), {token: text})
        return {"ARN": there.arn, "Name": name, "VersionId": token}

    def _put_secret_value(self, asked: JSON, region: str) -> JSON:
        secret, token, text = self._living(asked, region), asked["ClientRequestToken"], asked.get("SecretString", "")
        _check_text(text)
        if secret.versions.get(token, text) != text:
            raise Refused("ResourceExistsException", "A version of this id has another value.")
        secret.versions[token] = text
        return {"ARN": secret.arn, "Name": secret.name, "VersionId": token, "VersionStages": ["AWSCURRENT"]}

    def _get_secret_value(self, asked: JSON, region: str) -> JSON:
        secret = self._living(asked, region)
        told = {"ARN": secret.arn, "Name": secret.name, "VersionId": next(reversed(secret.versions))}
        return {**told, "SecretString": secret.text, "VersionStages": ["AWSCURRENT"]}

    def _delete_secret(self, asked: JSON, region: str) -> JSON:
        secret, forced = self._there(asked, region), bool(asked.get("ForceDeleteWithoutRecovery"))
        days = asked.get("RecoveryWindowInDays", 30)
        if forced and "RecoveryWindowInDays" in asked:
            raise Refused("InvalidParameterException", "You can't use ForceDeleteWithoutRecovery with a window.")
        if not 7 <= days <= 30:
            raise Refused("InvalidParameterException", "The RecoveryWindowInDays value must be between 7 and 30 days.")
        now_s = self.clock()
        secret.deleted_at_s, secret.can_be_restored = now_s, not forced
        secret.gone_at_s = now_s + (self.blocked_s if forced else days * _DAY_S)
        return {"ARN": secret.arn, "Name": secret.name, "DeletionDate": secret.gone_at_s}

    def _restore_secret(self, asked: JSON, region: str) -> JSON:
        secret = self._there(asked, region)
        if not secret.can_be_restored:
            raise _not_found()
        secret.deleted_at_s = None
        return {"ARN": secret.arn, "Name": secret.name}

    def _list_secrets(self, asked: JSON, region: str) -> JSON:
        filters = {each["Key"]: each["Values"] for each in asked.get("Filters", ())}
        if set(filters) - {"name"}:
            raise Refused("InvalidParameterException", f"the emulator filters by name, not by {sorted(filters)}")
        prefixes = tuple(filters.get("name", [""]))
        found = [
            secret
            for (place, name), secret in self.secrets.items()
            if place == region and name.startswith(prefixes) and secret.deleted_at_s is None
        ]
        start = int(asked.get("NextToken") or 0)
        end = start + min(self.page_size, asked.get("MaxResults", 100))
        items = [{"ARN": each.arn, "Name": each.name, "CreatedDate": each.created_at_s} for each in found[start:end]]
        return {"SecretList": items, **({"NextToken": str(end)} if end < len(found) else {})}

    # --- words ---

    def _arn(self, region: str) -> str:
        return f"arn:aws:secretsmanager:{region}:{self.account}:secret"

    def _find(self, region: str, name: str) -> Secret | None:
        by_arn = (each for (place, _), each in self.secrets.items() if place == region and each.arn == name)
        return self.secrets.get((region, name)) or next(by_arn, None)

    def _there(self, asked: JSON, region: str) -> Secret:
        secret = self._find(region, asked.get("SecretId", ""))
        if secret is None or (secret.deleted_at_s is not None and not secret.can_be_restored):
            raise _not_found()
        return secret

    def _living(self, asked: JSON, region: str) -> Secret:
        secret = self._there(asked, region)
        if secret.deleted_at_s is not None:
            message = "You can't perform this operation on the secret because it was marked for deletion."
            raise Refused("InvalidRequestException", message)
        return secret


def _not_found() -> Refused:
    return Refused("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")


def _check_text(text: str) -> None:
    if not 1 <= len(text.encode()) <= 65536:
        raise Refused("InvalidParameterException", "SecretString must have 1 to 65536 bytes.")
