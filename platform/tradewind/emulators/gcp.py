"""An emulated Google Cloud project on loopback: Compute Engine v1, TPU v2, Secret Manager and Cloud Storage over REST,
as the vendor's own SDKs speak it, and the metadata server.

Simulated: machines, disks, TPU nodes and queued resources with their states and operations; request ids; labels and
filters; paging (small pages, so that it is always exercised); late listings; stock-outs, pools that follow a trace,
quota; throttling, server errors, lost answers; access tokens that expire, missing permissions; preemption with notice
at the metadata service; compact placement policies; regions that do not answer. Unknown fields, bad names and missing
parameters are refused as Google refuses them.

Not simulated: networks and firewalls, what runs inside of a machine (gcp_machines.py starts that), disks' contents,
prices, most of IAM (`accounts`: which secrets a node's service account may read), and Google's true timing.

    emulator = GcpEmulator().start()
    GcpSettings(..., endpoint_url=emulator.url), credentials=emulator.credentials()

Or on its own: `python -m tradewind.emulators.gcp --credentials login.json`, which says what to export.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode

from tradewind.emulators.alone import wait_for_the_end, write_fleet
from tradewind.emulators.fleet_file import gcp_section
from tradewind.emulators.gcp_compute import Compute
from tradewind.emulators.gcp_http import JSON, Answer, Cut, Refused, Request, serve
from tradewind.emulators.gcp_login import JWT_GRANT, UNIVERSE, ServiceAccountLogin
from tradewind.emulators.gcp_metadata import GcpMetadata, Host
from tradewind.emulators.gcp_secrets import SecretManager
from tradewind.emulators.gcp_state import Faults, Timeline
from tradewind.emulators.gcp_storage import CloudStorage
from tradewind.emulators.gcp_tpu import Tpu
from tradewind.emulators.metadata_server import Asked

_REFRESH, _CLIENT_SECRET, _TOKEN_PREFIX = "1//emulated-refresh-token", "GOCSPX-emulated", "ya29."
DEFAULT_IMAGE = "deeplearning-platform-release/global/images/family/common-cu128-ubuntu-2204-py310"
NOTICE_S = 30.0
_STORAGE = re.compile(r"(/upload|/download)?/storage/v1/")
_OWNER, _SECRETS = "owner", r"/v1/projects/([^/]+)/secrets"
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
        self.storage = CloudStorage(self.time, page_size)
        self.vault = SecretManager(project, self.time, page_size)
        self.metadata = GcpMetadata(project, self._host, self._account_token)
        # Service accounts of nodes, and the secrets that each may read; anything else is denied to them.
        domain = f"{project}.iam.gserviceaccount.com"
        self.accounts = {f"tradewind-node@{domain}": "*_node", f"tradewind-head@{domain}": "*_head"}
        self.accounts |= {"nodes@emulated": "*_node", "heads@emulated": "*_head"}
        self._login = ServiceAccountLogin(project)
        self._tokens: dict[str, str] = {}  # access token -> the owner, or the email of a service account
        self._server: Any = None
        self._ticking = threading.Event()
        self._table = self._routes()

    # --- life --------------------------------------------------------------------------------------------------

    def start(self, port: int = 0, *, tick_s: float = 0.0) -> Self:
        """`tick_s`: look at the clock by itself that often, so that machines boot and end without being asked for."""
        self._server = serve(self._answer, port)
        self.storage.url = self.url
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

        login = {"token_uri": f"{self.url}/token", "client_id": "tradewind", "client_secret": _CLIENT_SECRET}
        return Credentials(None, refresh_token=_REFRESH, **login)

    def credentials_file(self, path: Path) -> Path:
        """The same for another process, whose SDK finds it by `environment`; here, `load_credentials` reads it."""
        return self._login.write(path, f"{self.url}/token")

    def environment(self, credentials_file: Path) -> Mapping[str, str]:
        """What leads any process's SDK to this login; the addresses stand in the fleet file."""
        file = str(self.credentials_file(credentials_file))
        return {"GOOGLE_APPLICATION_CREDENTIALS": file, "GOOGLE_CLOUD_UNIVERSE_DOMAIN": UNIVERSE}

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nobody may ever see."""
        return (_REFRESH, _CLIENT_SECRET, _TOKEN_PREFIX, *self._tokens, *self._login.secrets)

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
            return self._metadata(request)
        with self.time.lock:
            self.settle()
            self.calls.append(f"{request.method} {request.path}")
            self._check_caller(request)
            self._check_weather(request)
            self._check_right(request)
            if _STORAGE.match(request.path):
                return self.storage.answer(request)
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
        c, t, v = self.compute, self.tpu, self.vault
        return [
            ("POST", _SECRETS, lambda r, _: v.create(r)),
            ("GET", _SECRETS, lambda r, _: v.list_all(r)),
            ("DELETE", rf"{_SECRETS}/([^/:]+)", lambda _r, _, secret: v.delete(secret)),
            ("POST", rf"{_SECRETS}/([^/:]+):addVersion", lambda r, _, secret: v.add_version(r, secret)),
            ("GET", rf"{_SECRETS}/([^/]+)/versions", lambda r, _, secret: v.versions(r, secret)),
            ("GET", rf"{_SECRETS}/([^/]+)/versions/([^/:]+):access", lambda _r, _, *which: v.access(*which)),
            ("POST", rf"{_SECRETS}/([^/]+)/versions/([^/:]+):destroy", lambda _r, _, *which: v.destroy(*which)),
            (
                "GET",
                rf"{_COMPUTE}/zones/([^/]+)/instances/([^/]+)/serialPort",
                lambda r, _, *place: c.serial(r, *place),
            ),
            ("POST", rf"{_COMPUTE}/zones/([^/]+)/instances", self._permitted("compute.instances.create", c.insert)),
            (
                "POST",
                rf"{_COMPUTE}/regions/([^/]+)/resourcePolicies",
                self._permitted("compute.resourcePolicies.create", c.placement.insert),
            ),
            (
                "DELETE",
                rf"{_COMPUTE}/regions/([^/]+)/resourcePolicies/([^/]+)",
                lambda _r, _, *place: c.placement.delete(*place),
            ),
            ("GET", rf"{_COMPUTE}/aggregated/resourcePolicies", lambda _r, _: c.placement.aggregated()),
            ("GET", rf"{_COMPUTE}/regions/([^/]+)/operations/([^/]+)", lambda _r, _, *o: c.placement.operation(*o)),
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
        if token not in self._tokens and self._login.signed(token):
            self._tokens[token] = _OWNER
        if self.faults.credentials_expired or token not in self._tokens:
            message = "Request had invalid authentication credentials. Expected OAuth 2 access token."
            raise Refused(401, "authError", message, "UNAUTHENTICATED")

    def _check_right(self, request: Request) -> None:
        """The owner may everything, but for `faults.denied`; a service account in `accounts` may read the
        secrets of its kind, and use storage."""
        owner = self._tokens[request.headers["authorization"].removeprefix("Bearer ")]
        read = re.fullmatch(rf"{_SECRETS}/([^/]+)/versions/[^/]+:access", request.path)
        if read and "secretmanager.versions.access" in self.faults.denied:
            owner = "nobody"
        if owner in self.accounts and _STORAGE.match(request.path):
            return
        if owner != _OWNER and not (read and fnmatchcase(read[2], self.accounts.get(owner, ""))):
            what = "secretmanager.versions.access" if read else f"{request.method} {request.path}"
            message = f"Permission '{what}' denied for {owner} (or the resource may not exist)."
            raise Refused(403, "", message, "PERMISSION_DENIED")

    def _issue_token(self, request: Request) -> JSON:
        asked = dict(parse_qsl(request.raw.decode()))
        is_signed = asked.get("grant_type") == JWT_GRANT and self._login.signed(asked.get("assertion", ""))
        if self.faults.credentials_expired or not (is_signed or asked.get("refresh_token") == _REFRESH):
            raise Refused(400, "invalid_grant", "Token has been expired or revoked.")
        return {"access_token": self._new_token(_OWNER), "expires_in": 3600, "token_type": "Bearer"}

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

    def _metadata(self, request: Request) -> Answer:
        name, _, rest = request.path.removeprefix("/metadata/").partition("/")
        query = f"?{urlencode(request.query)}" if request.query else ""
        told = self.metadata.told(name, Asked(request.method, f"/{rest}{query}", request.headers, request.raw))
        if told is None:
            raise Cut  # a machine that is gone asks nothing
        return told.status, told.body.decode()

    def _host(self, name: str) -> Host | None:
        """A machine by its name, a host of a slice as NODE-w-NUMBER; the slice's own name means its first."""
        with self.time.lock:
            self.settle()
            node_name, _, number = name.rpartition("-w-")
            for vm in self.compute.vms.values():
                if vm.name == name:
                    return Host(name, vm)
            for node in self.tpu.nodes.values():
                if node.name in (name, node_name):
                    return Host(name, node, int(number) if node.name == node_name else 0)
            return None

    def _account_token(self, email: str) -> str:
        with self.time.lock:
            mine = next((token for token, owner in self._tokens.items() if owner == email), "")
            return mine or self._new_token(email)

    def _new_token(self, owner: str) -> str:
        token = f"{_TOKEN_PREFIX}{uuid.uuid4().hex}"
        self._tokens[token] = owner
        return token


def load_credentials(path: Path) -> Any:
    """From a file that `credentials_file` wrote."""
    from google.oauth2.service_account import Credentials

    scopes = ["https://www.googleapis.com/auth/cloud-platform"]
    return Credentials.from_service_account_file(str(path), scopes=scopes).with_universe_domain("googleapis.com")


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="An emulated Google Cloud project on loopback.")
    parser.add_argument("--project", default="emulated")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--credentials", type=Path, required=True, help="where to write the key file of an account")
    parser.add_argument("--run-machines", action="store_true", help="run what is launched as processes")
    parser.add_argument("--fleet", type=Path, help="write a fleet file that leads here")
    arguments = parser.parse_args()
    emulator = GcpEmulator(arguments.project).start(arguments.port, tick_s=0.2)
    login = emulator.environment(arguments.credentials.absolute())
    with contextlib.ExitStack() as stack:
        if arguments.run_machines:
            from tradewind.emulators.gcp_machines import run_on_gcp
            from tradewind.emulators.machines import Machines

            run_on_gcp(emulator, stack.enter_context(Machines()))
        write_fleet(arguments.fleet, {"gcp": gcp_section(emulator)})
        wait_for_the_end(emulator.url, login)


if __name__ == "__main__":
    main()
