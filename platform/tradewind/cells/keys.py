"""What a cell's machines and its controller know each other by: made once, kept beside the event log, handed to the
cloud's secret store. An edge: private files (mode 0600).

A head's secret and a node's are two, since a node must not be able to speak for its head (or to sign for others).
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.certificates import AUTHORITY_LIFE_S, DAY_S, Authority, bundle, expires_at_s, rotated
from tradewind.node.plans import secret_name
from tradewind.server import Tls

DOOR_LEFT_S = 60 * DAY_S  # what an authority must be good for at least when the door opens


@dataclass(frozen=True, slots=True)
class CellKeys:
    ca_pem: str
    ca_key_pem: str = field(repr=False)
    ray_token: str = field(repr=False)
    agent_token: str = field(repr=False)

    @classmethod
    def keep(cls, folder: Path, cell: str, now_s: float) -> CellKeys:
        """Those of an earlier controller, since the cell's machines know them; or new ones."""
        path = folder / f"{cell}.json"
        if path.exists():
            return cls(**json.loads(path.read_text()))
        authority = Authority.make(cell, now_s)
        made = cls(authority.cert_pem, authority.key_pem, secrets.token_hex(32), secrets.token_hex(32))
        _write(path, json.dumps(asdict(made)))
        return made

    def hand_over(self, store: SecretStore, fleet: str, cell: str) -> None:
        """Before the first machine of the cell is launched."""
        head = {"ray_token": self.ray_token, "agent_token": self.agent_token, "ca_key_pem": self.ca_key_pem}
        store.put(secret_name(fleet, cell, "head"), json.dumps(head))
        store.put(secret_name(fleet, cell, "worker"), json.dumps({"ray_token": self.ray_token}))


def forget(folder: Path, store: SecretStore, fleet: str, cell: str) -> None:
    """The cell has no machines any more."""
    for role in ("head", "worker"):
        store.delete(secret_name(fleet, cell, role))
    (folder / f"{cell}.json").unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class DoorKeys:
    """A new certificate at each start. Its authority has a successor long before it ends: heads are told of both from
    then on, and the older one signs as long as it can, since earlier heads trust no other."""

    ca_pem: str
    tls: Tls

    @classmethod
    def keep(cls, folder: Path, addresses: tuple[str, ...], now_s: float) -> DoorKeys:
        kept = folder / "door.json"
        known = tuple(Authority(**each) for each in json.loads(kept.read_text())) if kept.exists() else ()
        authorities = rotated(known, "tradewind controller", now_s)
        if authorities != known:
            _write(kept, json.dumps([asdict(each) for each in authorities]))
        lasting = [each for each in authorities if expires_at_s(each.cert_pem) > now_s + DOOR_LEFT_S]
        identity = (lasting or authorities)[0].identity(addresses, now_s, AUTHORITY_LIFE_S)
        tls = Tls(folder / "door.crt", folder / "door.key")
        _write(tls.certificate, identity.cert_pem)
        _write(tls.key, identity.key_pem)
        return cls(bundle(authorities), tls)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.chmod(path.parent, 0o700)  # whatever it was before
    write_atomically(path, text)
    path.chmod(0o600)
