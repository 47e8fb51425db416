"""A login of the emulated Google Cloud, as the SDK of any process finds it: the key file of a service account.

`GOOGLE_APPLICATION_CREDENTIALS` names the file. The SDK signs with its key: either an assertion, for which `/token`
gives an access token, or (most calls) a token of its own, which is sent as it is. Both are checked by the public key.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import Any

# Not Google's own: for that, the SDK asks a server of Google's in which places the account may be used.
UNIVERSE = "emulated.invalid"
JWT_GRANT = "urn:ietf:params:oauth:grant-type:jwt-bearer"


class ServiceAccountLogin:
    """One key, made when it is first asked for: most tests log in otherwise."""

    def __init__(self, project: str) -> None:
        self.email = f"owner@{project}.iam.gserviceaccount.com"
        self._project, self._key_id = project, uuid.uuid4().hex
        self._key: Any = None

    def write(self, path: Path, token_url: str) -> Path:
        key = {"private_key": self._private_pem(), "private_key_id": self._key_id}
        who = {"client_email": self.email, "client_id": "1", "project_id": self._project}
        where = {"universe_domain": UNIVERSE}
        path.touch(mode=0o600)
        path.write_text(json.dumps({"type": "service_account", **who, **key, "token_uri": token_url, **where}))
        return path

    def signed(self, token: str) -> bool:
        """Ours, and not over."""
        from google.auth import exceptions, jwt

        if self._key is None or token.count(".") != 2:
            return False
        try:
            told = jwt.decode(token, certs=self._public_pem())
        except (exceptions.GoogleAuthError, ValueError):
            return False
        return bool(told.get("iss") == self.email and told["exp"] > time.time())

    @property
    def secrets(self) -> tuple[str, ...]:
        """A line of the key: nothing else has it."""
        return (self._private_pem().splitlines()[1],) if self._key is not None else ()

    def _private_pem(self) -> str:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import rsa

        if self._key is None:
            self._key = rsa.generate_private_key(65537, 2048)
        plain = serialization.NoEncryption()
        pem: bytes = self._key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        return pem.decode()

    def _public_pem(self) -> str:
        from cryptography.hazmat.primitives import serialization

        public, kind = self._key.public_key(), serialization.PublicFormat.SubjectPublicKeyInfo
        pem: bytes = public.public_bytes(serialization.Encoding.PEM, kind)
        return pem.decode()
