"""An emulated Google Cloud project on loopback: Compute Engine v1 and TPU v2 over REST, as the vendor's own SDKs
speak it.

Simulated: machines, disks, TPU nodes and queued resources with their states and operations; request ids; labels and
filters; paging (small pages, so that it is always exercised); late listings; stock-outs, pools that follow a trace,
quota; throttling, server errors, lost answers; access tokens that expire, missing permissions; preemption with notice
at the metadata service; regions that do not answer. Unknown fields, bad names and missing parameters are refused as
Google refuses them.

Not simulated: networks and firewalls, what runs inside of a machine (`on_boot` and `on_end` are
the place to start that), disks' contents, prices, most of IAM, and Google's true timing.

    emulator = GcpEmulator().start()
    GcpSettings(..., endpoint_url=emulator.url), credentials=emulator.credentials()

Or on its own: `python -m tradewind.emulators.gcp --credentials login.json`; `load_credentials` reads that file.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl

from tradewind.emulators.gcp_compute import Compute, Vm
from tradewind.emulators.gcp_http import JSON, Answer, Cut, Refused, Request, serve
from tradewind.emulators.gcp_state import Faults, Timeline
from tradewind.emulators.gcp_tpu import Tpu, TpuNode

_REFRESH, _CLIENT_SECRET, _TOKEN_PREFIX = "1//emulated-refresh-token", "GOCSPX-emulated", "ya29."
DEFAULT_IMAGE = "deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-py310"
NOTICE_S = 30.0
_COMPUTE, _TPU = r"/compute/v1/projects/([^/]+)", r"/v2/projects/([^/]+)/locations/([^/]+)"


class GcpEmulator:
    """One project. Everything that it holds can be looked at and changed: `compute`, `tpu`, `faults`, `time`."""

    def __init__(
        self,
        project: str = "emulated",
        *,
        clock: Callable[[], float] = time.time,
        page_size: int = 25,
    ) -> None:
        self.project = project
        self.faults = Faults()
        self.time = Timeline(clock)
        self.compute = Compute(project, self.time, self.faults, page_size)
        self.compute.images[DEFAULT_IMAGE] = {"name": "common-cu128-v20261101", "diskSizeGb": "50"}
        self.tpu = Tpu(project, self.time, self.faults, page_size)
        self.calls: list[str] = []  # "POST /compute/v1/..." of every call that came in
        self._tokens: set[str] = set()
        self._server: Any = None
        self._ticking = threading.Event()
        self._table = self._routes()

    # --- life --------------------------------------------------------------------------------------------------

    def start(self, port: int = 0, *, tick_s: float = 0.0) -> Self:
        """`tick_s`: look at the clock by itself that often, so that machines boot and end without being asked for."""
        self._server = serve(self._answer, port)
        if tick_s > 0:
            threading.Thread(target=self._tick, args=(tick_s,), name="gcp-emulator-tick", daemon=True).start()
        return self

    def close(self) -> None:
        self._ticking.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def credentials(self) -> Any:
        """Of google.auth, for the SDK's clients: a refresh token, for which this emulator gives access tokens."""
        from google.oauth2.credentials import Credentials

        return Credentials(None, **self._login())

    def credentials_file(self, path: Path) -> Path:
        """The same for another process, see `load_credentials`."""
        path.touch(mode=0o600)
        path.write_text(json.dumps(self._login()))
        return path

    def _login(self) -> dict[str, str]:
        return {
            "refresh_token": _REFRESH,
            "token_uri": f"{self.url}/token",
            "client_id": "tradewind",
            "client_secret": _CLIENT_SECRET,
        }

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody may ever see."""
        return (_REFRESH, _CLIENT_SECRET, _TOKEN_PREFIX, *self._tokens)

    def settle(self) -> None:
        """Let everything happen that is due by the clock. Spot capacity beyond what its pool has left is taken back,
        the youngest first, with notice."""
        with self.time.lock:
            self.time.settle()
            for pool, capacity in self.faults.capacity.items():
                left = max(0, capacity(self.time.clock()))
                for vm in self.compute.held_in(pool)[left:] if pool[2] else ():
                    self.compute.preempt(vm, NOTICE_S)
                for node in self.tpu.held_in(pool)[left:] if pool[2] else ():
                    self.tpu.preempt(node, NOTICE_S)

    def _tick(self, tick_s: float) -> None:
        while not self._ticking.wait(tick_s):
            self.settle()

    # --- requests ----------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Answer:
        if request.path == "/token":
            return 200, self._issue_token(request)
        if "/computeMetadata/v1/" in request.path:
            return 200, self._metadata(request)
        with self.time.lock:
            self.settle()
            self.calls.append(f"{request.method} {request.path}")
            self._check_caller(request)
            self._check_weather(request)
            launched = request.method == "POST" and not request.path.endswith(":testIamPermissions")
            answer = self._route(request)
        if launched and self.faults.hang_after_s:
            time.sleep(self.faults.hang_after_s)
        return 200, answer

    def _route(self, request: Request) -> JSON:
        for method, pattern, handle in self._table:
            matched = re.fullmatch(pattern, request.path)
            if matched and method == request.method:
                return handle(request, *matched.groups())
        raise Refused(404, "notFound", f"{request.method} {request.path} is not emulated", "UNIMPLEMENTED")

    def _routes(self) -> list[tuple[str, str, Callable[..., JSON]]]:
        c, t = self.compute, self.tpu
        return [
            ("POST", rf"{_COMPUTE}/zones/([^/]+)/instances", self._permitted("compute.instances.create", c.insert)),
            ("GET", rf"{_COMPUTE}/aggregated/(instances|disks|operations)", lambda r, _, kind: c.aggregated(r, kind)),
            ("GET", rf"{_COMPUTE}/zones/([^/]+)/instances/([^/]+)", lambda _r, _, *place: c.get(*place)),
            ("DELETE", rf"{_COMPUTE}/zones/([^/]+)/instances/([^/]+)", lambda _r, _, *place: c.delete(*place)),
            ("GET", rf"{_COMPUTE}/zones/([^/]+)/operations/([^/]+)", lambda _r, _, *place: c.operation(*place)),
            ("DELETE", rf"{_COMPUTE}/zones/([^/]+)/disks/([^/]+)", lambda _r, _, *place: c.delete_disk(*place)),
            ("GET", rf"{_COMPUTE}", lambda _r, _: c.about()),
            ("GET", rf"{_COMPUTE}/regions/([^/]+)", lambda _r, _, region: c.region(region)),
            ("GET", rf"{_COMPUTE}/regions/([^/]+)/subnetworks/([^/]+)", lambda _r, _, *place: c.subnetwork(*place)),
            ("GET", r"/compute/v1/projects/([^/]+/global/images/.+)", lambda _r, path: c.image(path)),
            ("POST", r"/v1/projects/([^/]+):testIamPermissions", lambda r, _: self._granted(r)),
            ("POST", rf"{_TPU}/nodes", self._permitted("tpu.nodes.create", t.create_node)),
            ("POST", rf"{_TPU}/queuedResources", self._permitted("tpu.nodes.create", t.create_queued)),
            ("GET", rf"{_TPU}/(nodes|queuedResources|operations)", lambda r, _, *which: t.list(r, *which)),
            ("GET", rf"{_TPU}/(nodes|queuedResources|operations)/([^/]+)", lambda _r, _, *which: t.get(*which)),
            ("DELETE", rf"{_TPU}/nodes/([^/]+)", lambda _r, _, *place: t.delete_node(*place)),
            ("DELETE", rf"{_TPU}/queuedResources/([^/]+)", lambda r, _, *place: t.delete_queued(r, *place)),
            ("GET", rf"{_TPU}/acceleratorTypes/([^/]+)", lambda _r, _, *which: t.accelerator_type(*which)),
            ("GET", rf"{_TPU}/runtimeVersions/([^/]+)", lambda _r, _, *which: t.runtime_version(*which)),
        ]

    def _permitted(self, permission: str, handle: Callable[..., JSON]) -> Callable[..., JSON]:
        def checked(request: Request, project: str, zone: str) -> JSON:
            if permission in self.faults.denied:
                resource = f"projects/{project}/zones/{zone}"
                message = f"Required '{permission}' permission for '{resource}'"
                raise Refused(403, "forbidden", message, "PERMISSION_DENIED")
            return handle(request, zone)

        return checked

    def _check_caller(self, request: Request) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if self.faults.credentials_expired or token not in self._tokens:
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token."
            raise Refused(401, "authError", message, "UNAUTHENTICATED")

    def _issue_token(self, request: Request) -> JSON:
        asked = dict(parse_qsl(request.raw.decode()))
        if self.faults.credentials_expired or asked.get("refresh_token") != _REFRESH:
            raise Refused(400, "invalid_grant", "Token has been expired or revoked.")
        token = f"{_TOKEN_PREFIX}{uuid.uuid4().hex}"
        self._tokens.add(token)
        return {"access_token": token, "expires_in": 3600, "token_type": "Bearer"}

    def _check_weather(self, request: Request) -> None:
        is_tpu = request.path.startswith("/v2/")
        if self.faults.take("throttled"):
            message = "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute' of service."
            if is_tpu:
                raise Refused(429, "", message, "RESOURCE_EXHAUSTED")
            raise Refused(403, "rateLimitExceeded", message)
        if self.faults.take("broken"):
            raise Refused(503, "backendError", "The service is currently unavailable.", "UNAVAILABLE")
        place = re.search(r"/(?:zones|locations|regions)/([^/]+)", request.path)
        region = place[1] if place else ""
        if {region, region.rpartition("-")[0]} & self.faults.dead_regions:
            raise Refused(503, "backendError", f"{region} is currently unavailable.", "UNAVAILABLE")

    def _granted(self, request: Request) -> JSON:
        return {"permissions": [each for each in request.body["permissions"] if each not in self.faults.denied]}

    # --- the metadata service: /metadata/INSTANCE/computeMetadata/v1/... -----------------------------------------

    def metadata_url(self, name: str) -> str:
        """What is http://metadata.google.internal inside of this machine, or of a TPU's hosts."""
        return f"{self.url}/metadata/{name}"

    def _metadata(self, request: Request) -> str:
        if request.headers.get("metadata-flavor") != "Google":
            raise Refused(403, "", "Missing Metadata-Flavor:Google header.")
        name, _, key = request.path.removeprefix("/metadata/").partition("/computeMetadata/v1/")
        before = self._metadatum(name, key)
        deadline_s = time.monotonic() + float(request.query.get("timeout_sec", "60"))
        while request.query.get("wait_for_change") == "true" and time.monotonic() < deadline_s:
            if self._metadatum(name, key) != before:
                break
            time.sleep(0.02)
        return self._metadatum(name, key)

    def _metadatum(self, name: str, key: str) -> str:
        with self.time.lock:
            self.settle()
            machines: list[Vm | TpuNode] = [*self.compute.vms.values(), *self.tpu.nodes.values()]
            vm = next((each for each in machines if each.name == name), None)
            if vm is None:
                raise Cut  # a machine that is gone asks nothing
            if key.startswith("instance/attributes/"):
                return vm.metadata(key.removeprefix("instance/attributes/"))
            told = {
                "instance/preempted": "TRUE" if vm.preempted else "FALSE",
                "instance/maintenance-event": vm.maintenance,
                "instance/name": vm.name,
                "instance/zone": f"projects/1/zones/{vm.zone}",
                "project/project-id": self.project,
            }
            if key not in told:
                raise Refused(404, "", f"{key} is not emulated")
            return told[key]


def load_credentials(path: Path) -> Any:
    """From a file that `credentials_file` wrote."""
    from google.oauth2.credentials import Credentials

    return Credentials(None, **json.loads(path.read_text()))


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="An emulated Google Cloud project on loopback.")
    parser.add_argument("--project", default="emulated")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--credentials", type=Path, required=True, help="where to write a login that it accepts")
    arguments = parser.parse_args()
    emulator = GcpEmulator(arguments.project).start(arguments.port, tick_s=0.2)
    emulator.credentials_file(arguments.credentials)
    sys.stdout.write(f"{emulator.url}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
