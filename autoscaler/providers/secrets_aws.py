"""Secrets in AWS Secrets Manager, by boto3. A deleted secret is deleted at once: a fleet must be able to use its name
again, and what lies in a recovery window can still be read by whoever restores it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from tradewind.autoscaler.providers.aws_clients import SdkClients
from tradewind.autoscaler.providers.aws_errors import translated
from tradewind.autoscaler.providers.aws_settings import CLOUD
from tradewind.autoscaler.providers.secrets import check_name, check_text
from tradewind.errors import Conflict, NotFound

ATTEMPTS = 4  # all of these calls may be repeated
_BLOCKED_TRIES, _BLOCKED_WAIT_S = 15, 1.0
_EXISTS = "ResourceExistsException"


class AwsSecrets:
    def __init__(
        self, region: str, endpoint_url: str = "", *, session: Any = None, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._region, self._sleep = region, sleep
        self._clients = SdkClients(endpoint_url, session, attempts=ATTEMPTS)

    def put(self, name: str, text: str) -> None:
        check_text(check_name(name, CLOUD), text, CLOUD)
        for _ in range(_BLOCKED_TRIES):
            try:
                return self._make_or_replace(name, text)
            except (Conflict, NotFound) as error:  # its name is blocked for a moment after a deletion
                blocked = error
                self._sleep(_BLOCKED_WAIT_S)
        raise blocked

    def _make_or_replace(self, name: str, text: str) -> None:
        try:
            self._call("CreateSecret", Name=name, SecretString=text)
        except Conflict as error:
            if error.code != _EXISTS:
                self._call("RestoreSecret", SecretId=name)  # somebody deleted it with a recovery window
            self._replace(name, text)

    def _replace(self, name: str, text: str) -> None:
        if self.get(name) != text:
            self._call("PutSecretValue", SecretId=name, SecretString=text)

    def get(self, name: str) -> str:
        found: str = self._call("GetSecretValue", SecretId=check_name(name, CLOUD))["SecretString"]
        return found

    def delete(self, name: str) -> None:
        try:
            self._call("DeleteSecret", SecretId=check_name(name, CLOUD), ForceDeleteWithoutRecovery=True)
        except NotFound:
            return

    def list(self, prefix: str) -> Sequence[str]:
        with translated("ListSecrets", self._region):
            pages = self._client.get_paginator("list_secrets").paginate(Filters=[{"Key": "name", "Values": [prefix]}])
            names = [each["Name"] for page in pages for each in page["SecretList"]]
        return sorted(name for name in names if name.startswith(prefix))  # AWS compares without case

    def _call(self, action: str, **asked: Any) -> Any:
        client = self._client
        method = next(name for name, api in client.meta.method_to_api_mapping.items() if api == action)
        with translated(action, self._region):
            return getattr(client, method)(**asked)

    @property
    def _client(self) -> Any:
        return self._clients.get("secretsmanager", self._region)
