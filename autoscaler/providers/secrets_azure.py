"""Secrets in an Azure Key Vault, by its SDK. "a/b" is called a--b there. What is deleted is purged, where the vault and
the rights allow it; otherwise it lies there for its time, and `put` recovers it when its name is used again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tradewind.autoscaler.providers import azure_errors
from tradewind.autoscaler.providers.azure_settings import CLOUD
from tradewind.autoscaler.providers.secrets import check_name, check_text
from tradewind.errors import AuthError, Conflict, InvalidRequest, NotFound

POLL_S, TRIES = 1.0, 30  # deleting and recovering take some seconds
_log = logging.getLogger(__name__)
T = TypeVar("T")


class AzureSecrets:
    """`vault_url`: "https://NAME.vault.azure.net". On a machine, its managed identity is used."""

    def __init__(
        self, vault_url: str, *, credential: Any = None, ca_file: str = "", sleep: Callable[[float], None] = time.sleep
    ) -> None:
        if not vault_url.startswith("https://"):
            hint = "give the key vault's address, https://NAME.vault.azure.net"
            raise InvalidRequest(f"{vault_url!r} is not a key vault", hint, cloud=CLOUD)
        self._vault_url, self._credential, self._ca_file, self._sleep = vault_url, credential, ca_file, sleep
        self._made: Any = None
        self._lock = threading.Lock()

    def put(self, name: str, text: str) -> None:
        secret = spelled(name)
        check_text(name, text, CLOUD)
        with suppress(NotFound):
            if self.get(name) == text:
                return
        for _ in range(TRIES):
            try:
                self._call(lambda client: client.set_secret(secret, text))
                return
            except Conflict as error:  # one of this name was deleted, and is still there
                blocked = error
                self._recover(secret)
                self._sleep(POLL_S)
        raise blocked

    def _recover(self, secret: str) -> None:
        with suppress(NotFound, Conflict):  # it is not quite deleted yet, or is there again
            self._call(lambda client: client.begin_recover_deleted_secret(secret))

    def get(self, name: str) -> str:
        return str(self._call(lambda client: client.get_secret(spelled(name))).value)

    def delete(self, name: str) -> None:
        secret = spelled(name)
        with suppress(NotFound):
            self._call(lambda client: client.begin_delete_secret(secret).wait(TRIES * POLL_S))
        try:
            self._call(lambda client: client.purge_deleted_secret(secret))
        except AuthError as error:
            _log.warning("%s is deleted, but may not be purged, and can be recovered: %s", name, error)
        except NotFound:
            return

    def list(self, prefix: str) -> Sequence[str]:
        start = prefix.replace("/", "--")
        names = self._call(lambda client: [str(each.name) for each in client.list_properties_of_secrets()])
        return sorted(name.replace("--", "/") for name in names if name.startswith(start))

    # --- calls ---

    def _call(self, ask: Callable[[Any], T]) -> T:
        try:
            return ask(self._client())
        except Exception as error:
            raise azure_errors.of_exception(error) from error

    def _client(self) -> Any:
        from azure.identity import DefaultAzureCredential
        from azure.keyvault.secrets import SecretClient

        with self._lock:
            if self._made is None:
                more = {"connection_verify": self._ca_file} if self._ca_file else {}
                self._made = SecretClient(
                    self._vault_url,
                    self._credential or DefaultAzureCredential(),
                    # The SDK wants the challenge to name the vault's own domain; an emulator has another.
                    verify_challenge_resource=".vault." in self._vault_url,
                    retry_total=3,
                    **more,
                )
            return self._made


def spelled(name: str) -> str:
    """As Azure takes it. A part may have no ".", "_" or "--", so that the way back is clear."""
    if set(check_name(name, CLOUD)) & set("._") or "--" in name:
        hint = "use letters, digits and single '-' in the names of fleet and cell"
        raise InvalidRequest(f"Azure has no name like {name!r} for a secret", hint, cloud=CLOUD)
    return name.replace("/", "--")
