"""The instance metadata service, version 2 only: /imds/<instance id>/latest/... as that instance would see it.

A token's answer travels `hop limit` hops: a container on the machine is one further away, and a proxy says so itself.
Nobody routes here, so that a caller says how far away it is: `x-emulated-hops`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.emulators.aws_books import Books, Machine
from tradewind.emulators.aws_identity import Identities, identity_document
from tradewind.emulators.aws_wire import iso

_TOKEN_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "x-aws-ec2-metadata-token"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "text/xml"
    is_launch: bool = False  # a launch that was carried out
    headers: Mapping[str, str] = field(default_factory=dict)


class Metadata:
    def __init__(self, books: Books, identities: Identities) -> None:
        self._books, self._identities = books, identities
        self._tokens: dict[str, tuple[str, float]] = {}  # token -> (instance, valid until)
        self.rebalance: dict[str, float] = {}  # instance -> when it was recommended

    def answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer | None:
        """None: nobody is there, or the answer does not come that far."""
        _, _, machine_id, _, *rest = path.split("/")
        machine = next((each for each in self._books.machines if each.id == machine_id and each.is_alive), None)
        if machine is None:
            return None
        if rest == ["api", "token"]:
            return self._new_token(method, machine, headers)
        of, until_s = self._tokens.get(headers.get(_TOKEN, ""), ("", 0.0))
        if of != machine_id or until_s < self._books.clock():
            return _plain(401, "Unauthorized")
        text = self._top(rest, machine) if rest[0] != "meta-data" else self._value("/".join(rest[1:]), machine)
        return _plain(404, "Not Found") if text is None else _plain(200, text)

    def _new_token(self, method: str, machine: Machine, headers: Mapping[str, str]) -> Answer | None:
        if int(headers.get("x-emulated-hops", "1")) > machine.hop_limit:
            return None
        if "x-forwarded-for" in headers:
            return _plain(403, "Forbidden")
        ttl_s = headers.get(_TOKEN_TTL, "")
        if method != "PUT" or not ttl_s.isdigit() or not 1 <= int(ttl_s) <= 21600:
            return _plain(400, "Bad Request")
        token = f"token-{machine.id}-{len(self._tokens)}"
        self._tokens[token] = (machine.id, self._books.clock() + int(ttl_s))
        return _plain(200, token)

    def _top(self, rest: list[str], machine: Machine) -> str | None:
        if rest == ["dynamic", "instance-identity", "document"]:
            return identity_document(machine, self._identities.account)
        return machine.user_data if rest == ["user-data"] else None

    def _identity(self, name: str, machine: Machine) -> str | None:
        """`iam/...`: a role has the name of its instance profile here."""
        keys = "iam/security-credentials"
        if not machine.profile:
            return None
        if name.rstrip("/") == keys:
            return machine.profile
        if name == f"{keys}/{machine.profile}":
            return json.dumps(self._identities.credentials(machine, self._books.clock()))
        return None

    def _value(self, name: str, machine: Machine) -> str | None:
        if name.startswith("iam/"):
            return self._identity(name, machine)
        if name.startswith("tags/instance"):
            tag = name.removeprefix("tags/instance").strip("/")
            return machine.tags.get(tag) if tag else "\n".join(machine.tags)
        values: dict[str, str | None] = {
            "instance-id": machine.id,
            "instance-type": machine.type,
            "ami-id": machine.image,
            "local-ipv4": machine.private_address,
            "instance-life-cycle": "spot" if machine.is_spot else "on-demand",
            "placement/availability-zone": machine.zone,
            "placement/region": machine.region,
            "spot/instance-action": None,
            "spot/termination-time": None,
            "events/recommendations/rebalance": None,
        }
        if machine.taken_at_s is not None:
            at = iso(machine.taken_at_s).replace(".000Z", "Z")
            values["spot/instance-action"] = json.dumps({"action": "terminate", "time": at})
            values["spot/termination-time"] = at
        if machine.id in self.rebalance:
            at = iso(self.rebalance[machine.id]).replace(".000Z", "Z")
            values["events/recommendations/rebalance"] = json.dumps({"noticeTime": at})
        return values.get(name)


def _plain(status: int, text: str) -> Answer:
    return Answer(status, text.encode(), "text/plain")
