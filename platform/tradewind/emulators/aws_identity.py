"""Who calls the emulated AWS, and what they may do: the owner's key, and the roles behind instance profiles.

A machine's metadata service hands out temporary keys of its role. The rights are as in a policy: actions and resources
with wildcards; what is not allowed is denied. The roles that are there from the start read the secret of their kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from tradewind.emulators.aws_books import Machine
from tradewind.emulators.aws_wire import iso

ACCESS_KEY, SECRET_KEY = "AKIAEMULATED00000000", "emulated-secret-never-in-logs"
VALID_S = 6 * 3600.0
Right = tuple[str, str]  # action, resource
_SECRET = "arn:aws:secretsmanager:*:*:secret:tradewind/*"
_STORAGE = (("s3:*", "*"),)


@dataclass(frozen=True, slots=True)
class Caller:
    arn: str
    rights: tuple[Right, ...]
    until_s: float = float("inf")

    def may(self, action: str, resource: str) -> bool:
        return any(fnmatchcase(action, what) and fnmatchcase(resource, which) for what, which in self.rights)


@dataclass(frozen=True, slots=True)
class _Key:
    secret: str
    token: str
    caller: Caller


@dataclass
class Identities:
    account: str
    roles: dict[str, tuple[Right, ...]] = field(
        default_factory=lambda: {
            "tradewind-node": (("secretsmanager:GetSecretValue", f"{_SECRET}/node-*"), *_STORAGE),
            "tradewind-head": (("secretsmanager:GetSecretValue", f"{_SECRET}/head-*"), *_STORAGE),
        }
    )
    _keys: dict[str, _Key] = field(default_factory=dict)

    def __post_init__(self) -> None:
        owner = Caller(f"arn:aws:iam::{self.account}:user/emulated", (("*", "*"),))
        self._keys[ACCESS_KEY] = _Key(SECRET_KEY, "", owner)

    def caller(self, access_key: str, token: str) -> Caller | None:
        """None: an unknown key, or a temporary one without its token."""
        key = self._keys.get(access_key)
        return key.caller if key is not None and key.token == token else None

    def secret_texts(self) -> tuple[str, ...]:
        """What nobody may ever see."""
        return tuple(text for key in self._keys.values() for text in (key.secret, key.token) if text)

    def credentials(self, machine: Machine, now_s: float) -> Mapping[str, str]:
        """As the metadata service tells them. New ones shortly before the old ones expire."""
        number = int(now_s // (VALID_S / 2))
        name = f"ASIA{machine.id[-10:]}{number % 10**6:06d}".upper()
        if name not in self._keys:
            arn = f"arn:aws:sts::{self.account}:assumed-role/{machine.profile}/{machine.id}"
            caller = Caller(arn, self.roles.get(machine.profile, ()), (number + 2) * VALID_S / 2)
            self._keys[name] = _Key(f"emulated-secret-of-{name}", f"emulated-token-of-{name}", caller)
        key = self._keys[name]
        return {
            "Code": "Success",
            "LastUpdated": _second(now_s),
            "Type": "AWS-HMAC",
            "AccessKeyId": name,
            "SecretAccessKey": key.secret,
            "Token": key.token,
            "Expiration": _second(key.caller.until_s),
        }


def identity_document(machine: Machine, account: str) -> str:
    told = {
        "accountId": account,
        "architecture": "x86_64",
        "availabilityZone": machine.zone,
        "imageId": machine.image,
        "instanceId": machine.id,
        "instanceType": machine.type,
        "pendingTime": _second(machine.launched_at_s),
        "privateIp": machine.private_address,
        "region": machine.region,
        "version": "2017-09-30",
    }
    return json.dumps(told, indent=2)


def _second(at_s: float) -> str:
    return iso(at_s).replace(".000Z", "Z")
