"""The controller's keys: of each cell (in its cloud's secret store), and of the agents' door (in the fleet's home).

A controller that starts again must find the keys that its running heads were told of. So they are kept where nodes read
them anyway, and made only where there are none. A new head may have new keys: all its nodes are new, too.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.certificates import DAY_S, Authority, addresses_of, bundle, expires_at_s, renew_at_s, rotated
from tradewind.errors import ConfigError, NotFound, Problem
from tradewind.node.plans import secret_name
from tradewind.node.ray_node import write_private
from tradewind.server import Tls

DOOR_LIFE_S = 30 * DAY_S


@dataclass(frozen=True, slots=True)
class CellKeys:
    ca_pem: str  # public: stands in user-data
    ca_key_pem: str = field(repr=False)
    ray_token: str = field(repr=False)
    agent_token: str = field(repr=False)

    @classmethod
    def make(cls, cell: str, now_s: float) -> CellKeys:
        authority = Authority.make(f"tradewind cell {cell}", now_s)
        return cls(authority.cert_pem, authority.key_pem, secrets.token_hex(32), secrets.token_hex(32))


def cell_keys(store: SecretStore, fleet: str, cell: str, now_s: float, *, new: bool = False) -> CellKeys:
    """Those in the store; where there are none, or `new` ones are wanted for a new head, they are made and put there.
    The head's secret holds everything; workers get the Ray token alone."""
    found = None if new else _read(store, secret_name(fleet, cell, "head"))
    keys = found or CellKeys.make(cell, now_s)
    if found is None:
        store.put(secret_name(fleet, cell, "head"), json.dumps(asdict(keys)))
    # Also where the head's was there: whoever died in between left a cell without it.
    store.put(secret_name(fleet, cell, "worker"), json.dumps({"ray_token": keys.ray_token}))
    return keys


def forget_cell(store: SecretStore, fleet: str, cell: str) -> None:
    store.delete(secret_name(fleet, cell, "worker"))
    store.delete(secret_name(fleet, cell, "head"))


def _read(store: SecretStore, name: str) -> CellKeys | None:
    try:
        text = store.get(name)
    except NotFound:
        return None
    try:
        return CellKeys(**json.loads(text))
    except (ValueError, TypeError):
        problem = Problem(f"secret {name}", "", "is not what a controller puts there")
        raise ConfigError([problem], "delete it, if no other fleet has this name") from None


@dataclass(frozen=True, slots=True)
class DoorKeys:
    """What the agents' door is served with, and whom agents trust there."""

    tls: Tls
    ca_pem: str

    @classmethod
    def keep(cls, folder: Path, hosts: Sequence[str], now_s: float) -> DoorKeys:
        """From the folder, renewed where it is due: called at each start, and now and then. The oldest authority that
        is good for another certificate signs: heads that were told of it before there was another trust no other."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, tls = folder / "door-ca.json", Tls(folder / "door.crt", folder / "door.key")
        known = tuple(Authority(**each) for each in json.loads(path.read_text())) if path.exists() else ()
        authorities = rotated(known, "tradewind agents' door", now_s)
        if authorities != known:
            write_private(path, json.dumps([asdict(each) for each in authorities]))
        lasting = [each for each in authorities if expires_at_s(each.cert_pem) > now_s + DOOR_LIFE_S]
        signer = (lasting or authorities)[0]
        if not _serves(tls, hosts, signer, now_s):
            identity = signer.identity(hosts, now_s, DOOR_LIFE_S)
            write_private(tls.key, identity.key_pem)
            write_private(tls.certificate, identity.cert_pem)
        return cls(tls, bundle(authorities))


def _serves(tls: Tls, hosts: Sequence[str], signer: Authority, now_s: float) -> bool:
    if not (tls.certificate.exists() and tls.key.exists()):
        return False
    cert_pem = tls.certificate.read_text()
    return signer.has_signed(cert_pem) and set(addresses_of(cert_pem)) == set(hosts) and now_s < renew_at_s(cert_pem)
