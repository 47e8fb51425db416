"""The instance metadata service, version 2 only: /imds/<instance id>/latest/... as that instance would see it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tradewind.emulators.aws_books import Books, Machine
from tradewind.emulators.aws_wire import iso

_TOKEN_TTL = "x-aws-ec2-metadata-token-ttl-seconds"
_TOKEN = "x-aws-ec2-metadata-token"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    content_type: str = "text/xml"
    is_launch: bool = False  # a launch that was carried out


class Metadata:
    def __init__(self, books: Books) -> None:
        self._books = books
        self._tokens: dict[str, tuple[str, float]] = {}  # token -> (instance, valid until)
        self.rebalance: dict[str, float] = {}  # instance -> when it was recommended

    def answer(self, method: str, path: str, headers: dict[str, str]) -> Answer:
        _, _, machine_id, _, *rest = path.split("/")
        machine = next((each for each in self._books.machines if each.id == machine_id and each.is_alive), None)
        if machine is None:
            return _plain(404, "")
        if rest == ["api", "token"]:
            return self._new_token(method, machine, headers)
        of, until_s = self._tokens.get(headers.get(_TOKEN, ""), ("", 0.0))
        if of != machine_id or until_s < self._books.clock():
            return _plain(401, "Unauthorized")
        text = machine.user_data if rest == ["user-data"] else self._value("/".join(rest[1:]), machine)
        return _plain(404, "Not Found") if text is None else _plain(200, text)

    def _new_token(self, method: str, machine: Machine, headers: dict[str, str]) -> Answer:
        ttl_s = headers.get(_TOKEN_TTL, "")
        if method != "PUT" or not ttl_s.isdigit() or not 1 <= int(ttl_s) <= 21600:
            return _plain(400, "Bad Request")
        token = f"token-{machine.id}-{len(self._tokens)}"
        self._tokens[token] = (machine.id, self._books.clock() + int(ttl_s))
        return _plain(200, token)

    def _value(self, name: str, machine: Machine) -> str | None:
        values: dict[str, str | None] = {
            "instance-id": machine.id,
            "instance-type": machine.type,
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
