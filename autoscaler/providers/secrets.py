"""The seam to a cloud's secret store. The controller puts there what a cell's nodes must know; nodes read it at boot.

The same classes serve both: the controller comes with a person's credentials, a node with its instance identity, which
the vendor's SDK finds in the metadata service. Names are paths, "tradewind/FLEET/CELL/node"; each cloud spells them as
it may. Texts are never logged, and stand in no error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from tradewind.errors import InvalidRequest, Unsupported

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?:/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)*")
MAX_NAME, MAX_BYTES = 120, 24_000  # what every store takes (Azure: 127 signs, 25 kB)


class SecretStore(Protocol):
    """`put` and `delete` may be repeated, and are done when they return. Errors are those of the tree."""

    def put(self, name: str, text: str) -> None:
        """Makes it, or replaces its text; also where one of this name was deleted and could still be recovered."""
        ...

    def get(self, name: str) -> str:
        """NotFound where there is none; AuthError where the caller may not read it."""
        ...

    def delete(self, name: str) -> None:
        """For good, as far as the store allows; a name that is not there counts as done."""
        ...

    def list(self, prefix: str) -> Sequence[str]:
        """Names that begin with `prefix`, deleted ones not among them."""
        ...


def open_secrets(
    cloud: str,
    region: str = "",
    *,
    project: str = "",  # gcp
    vault_url: str = "",  # azure: "https://NAME.vault.azure.net"
    endpoint_url: str = "",  # of an emulator, or a private one
    ca_file: str = "",  # by which that endpoint's certificate is checked
    credentials: Any = None,  # of the vendor's SDK; None: as the SDK finds them (environment, login, instance identity)
) -> SecretStore:
    """The store of a cloud. The SDK is loaded by the first call."""
    if cloud == "aws":
        from tradewind.autoscaler.providers.secrets_aws import AwsSecrets

        return AwsSecrets(region, endpoint_url, session=credentials)
    if cloud == "gcp":
        from tradewind.autoscaler.providers.secrets_gcp import GcpSecrets

        return GcpSecrets(project, endpoint_url, credentials=credentials)
    if cloud == "azure":
        from tradewind.autoscaler.providers.secrets_azure import AzureSecrets

        return AzureSecrets(vault_url or endpoint_url, credential=credentials, ca_file=ca_file)
    raise Unsupported(f"there is no secret store for {cloud}", "use aws, gcp or azure", cloud=cloud)


def check_name(name: str, cloud: str) -> str:
    """The name, if every cloud can hold it."""
    if not _NAME.fullmatch(name) or len(name) > MAX_NAME:
        hint = f"letters, digits, '.', '_' and '-', in parts with '/' between them; {MAX_NAME} signs at the most"
        raise InvalidRequest(f"{name[:MAX_NAME]!r} is not a name for a secret", hint, cloud=cloud)
    return name


def check_text(name: str, text: str, cloud: str) -> str:
    if not 0 < len(text.encode()) <= MAX_BYTES:
        raise InvalidRequest(f"the secret {name} must have 1 to {MAX_BYTES} bytes", cloud=cloud)
    return text
