"""The emulated TPU API v2: nodes (one resource for a whole slice, with an endpoint for each host), queued resources,
operations (part of gcp.py). A slice comes whole or not at all, but for `half_launches`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tradewind.emulators import gcp_rules as rules
from tradewind.emulators.gcp_http import JSON, Cut, Refused, Request
from tradewind.emulators.gcp_state import ZONES, Faults, Pool, Timeline

_TYPE = re.compile(r"(v2|v3|v4|v5p|v5litepod|v6e)-(\d+)")
RUNTIMES = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv5", "v2-alpha-tpuv6e")
_OPERATION = "type.googleapis.com/google.cloud.tpu.v2.OperationMetadata"


def hosts_of(accelerator_type: str) -> int:
    """v2 to v4 and v5p are counted in cores, eight a host; v5e and v6e in chips, four a host in slices of several."""
    matched = _TYPE.fullmatch(accelerator_type)
    if matched is None:
        raise ValueError(accelerator_type)
    size = int(matched[2])
    if matched[1] in ("v5litepod", "v6e"):
        return 1 if size <= 8 else size // 4
    return max(1, size // 8)


@dataclass
class TpuNode:
    zone: str
    body: JSON  # the resource as it is shown
    listed_from_s: float = 0.0
    preempted: bool = False  # its metadata service says so
    maintenance: str = "NONE"  # likewise: "TERMINATE_ON_HOST_MAINTENANCE"

    @property
    def name(self) -> str:
        return str(self.body["name"]).rpartition("/")[2]

    @property
    def type(self) -> str:
        return str(self.body["acceleratorType"])

    @property
    def is_spot(self) -> bool:
        return bool(self.body.get("schedulingConfig", {}).get("spot"))

    @property
    def pool(self) -> Pool:
        return self.zone, self.type, self.is_spot

    @property
    def is_up(self) -> bool:
        return self.body["state"] in ("CREATING", "READY")

    def metadata(self, key: str) -> str:
        return str(self.body.get("metadata", {}).get(key, ""))


@dataclass
class Tpu:
    project: str
    time: Timeline
    faults: Faults
    page_size: int
    answer_s: float = 2.0
    boot_s: float = 30.0
    delete_s: float = 15.0
    on_boot: Callable[[TpuNode], None] = lambda _: None
    on_end: Callable[[TpuNode], None] = lambda _: None
    new_address: Callable[[], str] | None = None  # of a host; None: some of 10.130.0.0/16
    nodes: dict[str, TpuNode] = field(default_factory=dict)  # by full name
    queued: dict[str, JSON] = field(default_factory=dict)
    operations: dict[str, JSON] = field(default_factory=dict)
    _requests: dict[str, tuple[str, JSON]] = field(default_factory=dict)

    # --- nodes -------------------------------------------------------------------------------------------------

    def create_node(self, request: Request, zone: str) -> JSON:
        body, name = request.body, self._full(zone, "nodes", request.query.get("nodeId", ""))
        self._check_node(body, zone, name)
        if name in self.nodes:
            raise Refused(409, "", f"Resource '{name}' already exists", "ALREADY_EXISTS")
        if self.faults.take("cut_before"):
            raise Cut
        operation = self._begin("create", zone, name)
        node = TpuNode(zone, {**body, "name": name})
        error = self._refusal(node)
        if error:
            self.time.after(self.answer_s, lambda: self._finish(operation, error))
        else:
            self.add(node)
            half, never = self.faults.take("half_launches"), self.faults.take("failed_boots")
            self.time.after(self.boot_s, lambda: self._boot(node, half, never, operation))
        if self.faults.take("cut_after"):
            raise Cut
        return operation

    def add(self, node: TpuNode) -> TpuNode:
        node.listed_from_s = self.time.now_s() + self.faults.listing_lag_s
        node.body.update(state="CREATING", createTime=self._stamp(), id=str(uuid.uuid4().int % 10**18))
        self.nodes[node.body["name"]] = node
        return node

    def _check_node(self, body: JSON, zone: str, name: str) -> None:
        from google.cloud import tpu_v2

        rules.check_schema(body, tpu_v2.Node)
        for wanted in ("acceleratorType", "runtimeVersion"):
            if not body.get(wanted):
                raise rules.required(f"node.{wanted}")
        if zone not in ZONES:
            message = f"Location {zone} is not found or access is unauthorized."
            raise Refused(403, "", message, "PERMISSION_DENIED")
        if not rules.TPU_ID.fullmatch(name.rpartition("/")[2]):
            raise rules.invalid("node_id", name.rpartition("/")[2], "Bad TPU name")
        if not _TYPE.fullmatch(body["acceleratorType"]):
            message = f"Accelerator type {body['acceleratorType']} not found in zone {zone}"
            raise Refused(400, "", message, "INVALID_ARGUMENT")
        if body["runtimeVersion"] not in RUNTIMES:
            raise rules.invalid("node.runtime_version", body["runtimeVersion"], "not found")
        rules.check_labels(body.get("labels", {}), "node.labels")

    def held_in(self, pool: Pool) -> list[TpuNode]:
        """Oldest first; those that are being taken back are no longer held."""
        return [node for node in self.nodes.values() if node.is_up and node.pool == pool and not node.preempted]

    def _refusal(self, node: TpuNode) -> tuple[int, str] | None:
        region = node.zone.rpartition("-")[0]
        there = [each for each in self.nodes.values() if each.is_up and each.zone.rpartition("-")[0] == region]
        if self.faults.quota is not None and len(there) >= self.faults.quota:
            limit = f"Limit {self.faults.quota} in zone {node.zone}"
            return 8, f"Quota 'TPUV5sPreemptibleLitepodPerProjectPerZoneForTPUAPI' exhausted. {limit}"
        if self.faults.is_dry(node.pool, len(self.held_in(node.pool)), self.time.clock()):
            return 8, f'There is no more capacity in the zone "{node.zone}"; you can try in another zone. [EID: 0x1]'
        return None

    def _boot(self, node: TpuNode, half: bool, never: bool, operation: JSON | None = None) -> None:
        if operation is not None:
            self._finish(operation, made=("Node", node.body))
        if self.nodes.get(node.body["name"]) is not node or not node.is_up:
            return
        if half or never:
            node.body.update(state="TERMINATED", healthDescription="Some hosts of the slice did not come up.")
            return
        hosts = range(hosts_of(node.type))
        addresses = [self.new_address() if self.new_address else f"10.130.0.{host + 2}" for host in hosts]
        endpoints = [{"ipAddress": address, "port": 8470} for address in addresses]
        node.body.update(state="READY", health="HEALTHY", networkEndpoints=endpoints)
        self.on_boot(node)

    def delete_node(self, zone: str, node_id: str) -> JSON:
        name = self._full(zone, "nodes", node_id)
        node = self.nodes.get(name)
        if node is None:
            raise self._not_found(name)
        if node.body.get("queuedResource"):
            message = f"Node {name} is owned by a queued resource; delete that with force."
            raise Refused(400, "", message, "FAILED_PRECONDITION")
        operation = self._begin("delete", zone, name)
        self._leave(node, operation)
        return operation

    def _leave(self, node: TpuNode, operation: JSON | None = None) -> None:
        delay_s = self.delete_s if node.is_up else 0.0  # of one that has ended, only the record is left
        node.body["state"] = "DELETING"

        def gone() -> None:
            self.remove(node)
            if operation is not None:
                self._finish(operation)

        self.time.after(delay_s, gone)

    def remove(self, node: TpuNode) -> None:
        if self.nodes.get(node.body["name"]) is node:
            del self.nodes[node.body["name"]]
            self.on_end(node)

    def stopped(self, node: TpuNode) -> None:
        """One of its hosts went down by itself: the slice is of no use any more, and is billed until it is deleted."""
        if self.nodes.get(node.body["name"]) is node and node.is_up:
            node.body.update(health="UNHEALTHY_MAINTENANCE", healthDescription="A host of the slice went down.")

    def preempt(self, node: TpuNode, notice_s: float) -> None:
        """A preempted node stays there, unbilled, until somebody deletes it."""
        node.preempted = True

        def taken() -> None:
            node.body["state"] = "PREEMPTED"
            owner = self.queued.get(node.body.get("queuedResource", ""))
            if owner is not None:
                owner["state"] = {"state": "SUSPENDED", "stateInitiator": "SERVICE"}
                self.remove(node)
            else:
                self.on_end(node)

        if notice_s > 0:
            self.time.after(notice_s, taken)
        else:
            taken()

    # --- queued resources --------------------------------------------------------------------------------------

    def create_queued(self, request: Request, zone: str) -> JSON:
        from google.cloud import tpu_v2

        body, name = request.body, self._full(zone, "queuedResources", request.query.get("queuedResourceId", ""))
        rules.check_schema(body, tpu_v2.QueuedResource)
        specs = body.get("tpu", {}).get("nodeSpec", [])
        if len(specs) != 1:
            raise rules.invalid("queued_resource.tpu.node_spec", len(specs), "this emulator takes one")
        self._check_node(specs[0]["node"], zone, specs[0].get("nodeId", ""))
        asked, answer = self._requests.get(request.query.get("requestId", ""), ("", None))
        if answer is not None and asked == request.path + request.raw.decode():
            return answer
        if name in self.queued:
            raise Refused(409, "", f"Resource '{name}' already exists", "ALREADY_EXISTS")
        if self.faults.take("cut_before"):
            raise Cut
        operation = self._queue(body, zone, name, specs[0])
        if number := request.query.get("requestId", ""):
            self._requests[number] = (request.path + request.raw.decode(), operation)
        if self.faults.take("cut_after"):
            raise Cut
        return operation

    def _queue(self, body: JSON, zone: str, name: str, spec: JSON) -> JSON:
        operation = self._begin("create", zone, name)
        listed_from_s = self.time.now_s() + self.faults.listing_lag_s
        self.queued[name] = {
            **body,
            "name": name,
            "createTime": self._stamp(),
            "state": {"state": "ACCEPTED"},
            "_listed_from_s": listed_from_s,
        }
        made = ("QueuedResource", self.queued[name])
        self.time.after(self.answer_s, lambda: self._finish(operation, made=made))
        self.time.after(self.answer_s, lambda: self._serve(name, zone, spec, self.time.now_s()))
        return operation

    def _serve(self, name: str, zone: str, spec: JSON, since_s: float) -> None:
        """Look whether the queue's turn has come; if not, look again later, until the request is no longer valid."""
        queued = self.queued.get(name)
        if queued is None or queued["state"]["state"] not in ("ACCEPTED", "WAITING_FOR_RESOURCES"):
            return
        full = self._full(zone, "nodes", spec["nodeId"])
        node = TpuNode(zone, {**spec["node"], "name": full, "queuedResource": name})
        if "spot" in queued:
            node.body["schedulingConfig"] = {"spot": True}
        error = self._refusal(node)
        if error and "Quota" in error[1]:
            self._fail(queued, error)
        elif error:
            self._wait(queued, name, zone, spec, since_s, error)
        else:
            queued["state"] = {"state": "PROVISIONING"}
            self.add(node)
            half, never = self.faults.take("half_launches"), self.faults.take("failed_boots")
            self.time.after(self.boot_s, lambda: self._activate(queued, node, half or never))

    def _wait(self, queued: JSON, name: str, zone: str, spec: JSON, since_s: float, error: tuple[int, str]) -> None:
        valid_s = float(queued.get("queueingPolicy", {}).get("validUntilDuration", "1e9s").rstrip("s"))
        if self.time.now_s() - since_s >= valid_s:
            self._fail(queued, error)
            return
        queued["state"] = {"state": "WAITING_FOR_RESOURCES"}
        self.time.after(5.0, lambda: self._serve(name, zone, spec, since_s))

    def _fail(self, queued: JSON, error: tuple[int, str]) -> None:
        queued["state"] = {"state": "FAILED", "failedData": {"error": {"code": error[0], "message": error[1]}}}

    def _activate(self, queued: JSON, node: TpuNode, broken: bool) -> None:
        self._boot(node, broken, broken)
        if queued["state"]["state"] != "PROVISIONING":
            return
        if broken:
            self._fail(queued, (13, "Some hosts of the slice did not come up."))
        else:
            queued["state"] = {"state": "ACTIVE"}

    def delete_queued(self, request: Request, zone: str, queued_id: str) -> JSON:
        name = self._full(zone, "queuedResources", queued_id)
        queued = self.queued.get(name)
        if queued is None:
            raise self._not_found(name)
        owned = [node for node in self.nodes.values() if node.body.get("queuedResource") == name]
        forced = request.query.get("force", "false") == "true"
        if owned and not forced:
            raise Refused(400, "", f"{name} has nodes; use force to delete them, too", "FAILED_PRECONDITION")
        operation = self._begin("delete", zone, name)
        delay_s = 0.0 if queued["state"]["state"] in ("FAILED", "SUSPENDED") else self.delete_s
        queued["state"] = {"state": "DELETING"}
        for node in owned:
            self._leave(node)

        def gone() -> None:
            self.queued.pop(name, None)
            self._finish(operation)

        self.time.after(delay_s, gone)
        return operation

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, zone: str, kind: str, name: str) -> JSON:
        full = self._full(zone, kind, name)
        found: JSON | None
        if kind == "nodes":
            found = self.nodes[full].body if full in self.nodes else None
        else:
            found = (self.queued if kind == "queuedResources" else self.operations).get(full)
        if found is None:
            raise self._not_found(full)
        return _shown(found)

    def list(self, request: Request, zone: str, kind: str) -> JSON:
        inside = f"projects/{self.project}/locations/{zone}/"
        if kind == "nodes":
            found = [
                node.body
                for name, node in self.nodes.items()
                if name.startswith(inside) and node.listed_from_s <= self.time.now_s()
            ]
        else:
            store = self.queued if kind == "queuedResources" else self.operations
            now_s = self.time.now_s()
            found = [
                item
                for name, item in store.items()
                if name.startswith(inside) and item.get("_listed_from_s", 0) <= now_s
            ]
        start = int(request.query.get("pageToken") or 0)
        end = start + min(self.page_size, int(request.query.get("pageSize") or self.page_size))
        page = [_shown(item) for item in found[start:end]]
        return {kind: page, "nextPageToken": str(end) if end < len(found) else ""}

    def accelerator_type(self, zone: str, name: str) -> JSON:
        if zone not in ZONES or not _TYPE.fullmatch(name):
            raise self._not_found(self._full(zone, "acceleratorTypes", name))
        return {"name": self._full(zone, "acceleratorTypes", name), "type": name}

    def runtime_version(self, zone: str, name: str) -> JSON:
        if name not in RUNTIMES:
            raise self._not_found(self._full(zone, "runtimeVersions", name))
        return {"name": self._full(zone, "runtimeVersions", name), "version": name}

    # --- operations --------------------------------------------------------------------------------------------

    def _begin(self, verb: str, zone: str, target: str) -> JSON:
        name = self._full(zone, "operations", f"operation-{uuid.uuid4().hex[:12]}")
        metadata = {
            "@type": _OPERATION,
            "createTime": self._stamp(),
            "target": target,
            "verb": verb,
            "apiVersion": "v2",
        }
        self.operations[name] = {"name": name, "metadata": metadata, "done": False}
        if self.faults.unknown_code and verb == "create":
            code, self.faults.unknown_code = self.faults.unknown_code, ""
            del self.operations[name]
            details = [
                {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": code, "domain": "tpu.googleapis.com"}
            ]
            raise Refused(400, "", "Something happened that has never happened before.", "", details)
        return self.operations[name]

    def _finish(
        self, operation: JSON, error: tuple[int, str] | None = None, made: tuple[str, JSON] | None = None
    ) -> None:
        operation["done"] = True
        operation["metadata"]["endTime"] = self._stamp()
        if error:
            operation["error"] = {"code": error[0], "message": error[1]}
        elif made:
            operation["response"] = {"@type": f"type.googleapis.com/google.cloud.tpu.v2.{made[0]}", **_shown(made[1])}
        else:
            operation["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}

    def _stamp(self) -> str:
        return datetime.fromtimestamp(self.time.now_s(), UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")

    def _full(self, zone: str, kind: str, name: str) -> str:
        if not name:
            raise rules.required(f"{kind} id")
        return f"projects/{self.project}/locations/{zone}/{kind}/{name}"

    def _not_found(self, name: str) -> Refused:
        return Refused(404, "", f"Resource '{name}' was not found", "NOT_FOUND")


def _shown(item: JSON) -> JSON:
    return {key: value for key, value in item.items() if not key.startswith("_")}
