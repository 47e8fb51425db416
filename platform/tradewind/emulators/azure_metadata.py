"""The Instance Metadata Service of the emulated Azure, as one machine sees it: what it is, Scheduled Events with their
acknowledgement, and the access tokens of its identity. Refuses what comes without the header, or through a proxy."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tradewind.emulators.azure_compute import Compute, Vm
from tradewind.emulators.metadata_server import Asked, Told

JSON = dict[str, Any]


@dataclass(frozen=True)
class Announced:
    """Something that is planned for a machine, beside its eviction."""

    id: str
    kind: str  # "Reboot", "Redeploy", "Terminate", "Freeze"
    vm: str
    at_s: float


@dataclass
class AzureMetadata:
    """`token(identity)`: an access token of a user-assigned identity, by its name."""

    compute: Compute
    token: Callable[[str], str]
    settle: Callable[[], None]
    announced: dict[str, Announced] = field(default_factory=dict)  # by event id
    acknowledged: list[str] = field(default_factory=list)  # event ids
    asked_for: list[tuple[str, str]] = field(
        default_factory=list
    )  # machine, and the resource that it wanted a token of

    def announce(self, vm: str, kind: str, at_s: float) -> str:
        event_id = str(uuid.uuid4()).upper()
        self.announced[event_id] = Announced(event_id, kind, vm, at_s)
        return event_id

    def told(self, name: str, asked: Asked) -> Told | None:
        with self.compute.time.lock:
            self.settle()
            vm = next((each for each in self.compute.vms.values() if each.name == name), None)
            if vm is None:
                return None  # a machine that is gone asks nothing
            return self._told(vm, asked)

    def _told(self, vm: Vm, asked: Asked) -> Told:
        parts = urlsplit(asked.target)
        query, path = dict(parse_qsl(parts.query)), parts.path.rstrip("/")
        if asked.headers.get("metadata", "").lower() != "true" or "x-forwarded-for" in asked.headers:
            return _refused("Bad request. Required metadata header not specified")
        if not query.get("api-version"):
            return _refused("Bad request. api-version was not specified in the request")
        if path == "/metadata/scheduledevents":
            return self._events(vm, asked)
        if path == "/metadata/identity/oauth2/token":
            return self._token_of(vm, query)
        found = _walk(self._instance(vm), path.removeprefix("/metadata/instance").strip("/"))
        if found is None or not path.startswith("/metadata/instance"):
            return Told(404, b'{"error":"Not found"}')
        if isinstance(found, str) and query.get("format") == "text":
            return Told(200, found.encode(), {"Content-Type": "text/plain"})
        return _json(found)

    def _instance(self, vm: Vm) -> JSON:
        tags = [{"name": key, "value": value} for key, value in vm.body.get("tags", {}).items()]
        told = {
            "name": vm.name,
            "vmId": vm.properties["vmId"],
            "location": vm.region,
            "vmSize": vm.size,
            "priority": vm.properties.get("priority", ""),
            "zone": vm.body.get("zones", [""])[0],
            "resourceId": vm.body["id"],
            "tagsList": tags,
        }
        address = {"ipAddress": [{"privateIpAddress": self.compute.address_of(vm), "publicIpAddress": ""}]}
        return {"compute": told, "network": {"interface": [{"ipv4": address}]}}

    def _token_of(self, vm: Vm, query: JSON) -> Told:
        names = list(vm.body.get("identity", {}).get("userAssignedIdentities", {}))
        if not names:
            told = {"error": "invalid_request", "error_description": "Identity not found"}
            return Told(400, json.dumps(told).encode(), {"Content-Type": "application/json"})
        self.asked_for.append((vm.name, query.get("resource", "")))
        token, until_s = self.token(names[0].rpartition("/")[2]), int(time.time()) + 86400
        told = {"access_token": token, "expires_in": "86399", "expires_on": str(until_s), "token_type": "Bearer"}
        return _json({**told, "resource": query.get("resource", ""), "client_id": str(uuid.uuid4())})

    def _events(self, vm: Vm, asked: Asked) -> Told:
        if asked.method == "POST":
            for each in json.loads(asked.body).get("StartRequests", ()):
                self._start(vm, str(each.get("EventId", "")))
            return _json({})
        events = [_event(each.id, each.kind, vm, each.at_s) for each in self.announced.values() if each.vm == vm.name]
        if vm.evicted_at_s is not None:
            events.append(_event(vm.event_id, "Preempt", vm, vm.evicted_at_s))
        return _json({"DocumentIncarnation": 1 + len(events), "Events": events})

    def _start(self, vm: Vm, event_id: str) -> None:
        """What is acknowledged happens at once."""
        if event_id and event_id == vm.event_id:
            self.acknowledged.append(event_id)
            self.compute.take_back(vm)
        elif self.announced.pop(event_id, None) is not None:
            self.acknowledged.append(event_id)


def _event(event_id: str, kind: str, vm: Vm, at_s: float) -> JSON:
    return {
        "EventId": event_id,
        "EventType": kind,
        "EventStatus": "Scheduled",
        "NotBefore": datetime.fromtimestamp(at_s, UTC).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "ResourceType": "VirtualMachine",
        "Resources": [vm.name],
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        "Description": "",
    }


def _walk(tree: Any, path: str) -> Any:
    for part in path.split("/") if path else ():
        if isinstance(tree, list):
            tree = tree[int(part)] if part.isdigit() and int(part) < len(tree) else None
        else:
            tree = tree.get(part) if isinstance(tree, dict) else None
    return tree


def _refused(why: str) -> Told:
    return Told(400, json.dumps({"error": why}).encode(), {"Content-Type": "application/json"})


def _json(told: Any) -> Told:
    return Told(200, json.dumps(told).encode(), {"Content-Type": "application/json; charset=utf-8"})
