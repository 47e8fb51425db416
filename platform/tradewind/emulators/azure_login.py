"""A login of the emulated Azure, as the SDK of any process finds it: a client with its secret, from the environment.

The SDK asks Microsoft about every authority but one of AD FS; so this is one. Nothing but the client credentials grant.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from urllib.parse import parse_qsl

from tradewind.emulators.azure_http import Answer, Request

TENANT = "adfs"
_CONFIGURATION, _TOKEN = f"/{TENANT}/.well-known/openid-configuration", f"/{TENANT}/oauth2/token"


class ClientLogin:
    """`token()` is the owner's access token."""

    def __init__(self, url: Callable[[], str], token: Callable[[], str]) -> None:
        self._url, self._token = url, token
        self.client_id, self.client_secret = str(uuid.uuid4()), f"emulated.{uuid.uuid4().hex}"

    def environment(self) -> Mapping[str, str]:
        return {
            "AZURE_AUTHORITY_HOST": self._url(),
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": self.client_id,
            "AZURE_CLIENT_SECRET": self.client_secret,
        }

    def serves(self, path: str) -> bool:
        return path in (_CONFIGURATION, _TOKEN)

    def answer(self, request: Request) -> Answer:
        url = self._url()
        if request.path == _CONFIGURATION:
            ends = {"authorization_endpoint": f"{url}/{TENANT}/oauth2/authorize", "token_endpoint": f"{url}{_TOKEN}"}
            return Answer(200, {"issuer": f"{url}/{TENANT}", **ends})
        asked = dict(parse_qsl(request.raw.decode()))
        if asked.get("grant_type") != "client_credentials":
            return _refused("unsupported_grant_type", "AADSTS70003: only client_credentials is emulated.")
        if (asked.get("client_id"), asked.get("client_secret")) != (self.client_id, self.client_secret):
            return _refused("invalid_client", "AADSTS7000215: Invalid client secret provided.")
        return Answer(200, {"access_token": self._token(), "expires_in": 3600, "token_type": "Bearer"})


def _refused(error: str, why: str) -> Answer:
    return Answer(401 if error == "invalid_client" else 400, {"error": error, "error_description": why})
