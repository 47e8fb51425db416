"""An emulated Azure subscription on loopback: Resource Manager and Key Vault over HTTPS, as the vendor's own
SDKs speak it, and the Instance Metadata Service.

Simulated: machines with their interfaces and disks, which end together; asynchronous operations, of which the failed
ones answer HTTP 200 and leave a failed machine; conditional creation; tags; paging (small pages, so that it is always
exercised); late listings; instance views where Azure has them; the activity log, with its lag; stock-outs, pools that
follow a trace, quota, price limits; throttling, server errors, lost answers; tokens that expire, missing permissions;
eviction with notice at the metadata service (Scheduled Events); proximity placement groups; regions that do not
answer; sizes, images, retail prices. Unknown fields, bad names and missing parameters are refused as Azure refuses
them.

Not simulated: networks and firewalls, what runs inside of a machine (azure_machines.py starts that), disks' contents,
Entra ID (one token for the owner, one for each identity, for every resource), most of role-based access (`identities`:
which secrets a node's identity may read), and Azure's true timing.

    emulator = AzureEmulator().start()
    AzureSettings(..., endpoint_url=emulator.url, ca_file=emulator.ca_file), credential=emulator.credential()

Or on its own: `python -m tradewind.emulators.azure`, which says what to export.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

from tradewind.emulators.alone import wait_for_the_end, write_fleet
from tradewind.emulators.azure_compute import Compute
from tradewind.emulators.azure_http import Answer, Cut, Refused, Request, make_certificate, serve
from tradewind.emulators.azure_login import ClientLogin
from tradewind.emulators.azure_metadata import AzureMetadata
from tradewind.emulators.azure_read import Reader
from tradewind.emulators.azure_state import REGIONS, Faults
from tradewind.emulators.azure_vault import KeyVault
from tradewind.emulators.fleet_file import azure_section
from tradewind.emulators.gcp_state import Timeline
from tradewind.emulators.metadata_server import Asked

NOTICE_S = 30.0
_SUBSCRIPTION, _GROUP = r"/subscriptions/([^/]+)", r"/subscriptions/([^/]+)/resourceGroups/([^/]+)"
_COMPUTE, _NETWORK = "/providers/Microsoft.Compute", "/providers/Microsoft.Network"
_LOCATION = rf"{_COMPUTE}/locations/([^/]+)"
_VERSIONS = rf"{_LOCATION}/publishers/([^/]+)/artifacttypes/vmimage/offers/([^/]+)/skus/([^/]+)/versions"
_OWNER = "owner"
_ACTIONS = {"GET": "read", "PUT": "write", "DELETE": "delete"}


class Token:
    """A credential as azure.identity has them, with one token that this emulator gave out."""

    def __init__(self, token: str) -> None:
        self._token = token

    def get_token(self, *scopes: str, **_: Any) -> Any:
        from azure.core.credentials import AccessToken

        del scopes
        return AccessToken(self._token, int(time.time()) + 3600)


class AzureEmulator:
    """One subscription. What it holds can be looked at and changed: `compute`, `reader`, `faults`, `time`."""

    def __init__(
        self,
        subscription: str = "00000000-0000-0000-0000-00000000beef",
        *,
        clock: Callable[[], float] = time.time,
        page_size: int = 25,
    ) -> None:
        self.subscription = subscription
        self.faults = Faults()
        self.time = Timeline(clock)
        self.compute = Compute(subscription, self.time, self.faults)
        self.compute.subnets.update((self.subnet(region).lower(), region) for region in REGIONS)
        self.reader = Reader(self.compute, page_size, lambda: self.url)
        self.calls: list[str] = []  # "PUT /subscriptions/..." of every call that came in
        self._token = f"eyJ0.{uuid.uuid4().hex}"
        self._tokens = {self._token: _OWNER}
        self._login = ClientLogin(lambda: self.url, lambda: self._token)
        # User-assigned identities of nodes by name, and the secrets that each may read; nothing else is allowed.
        self.identities = {"tradewind-node": "*--node", "tradewind-head": "*--head"}
        self.vault = KeyVault(self.time, lambda: self.url, page_size)
        self.metadata = AzureMetadata(self.compute, self._identity_token, self.settle)
        self._server: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="tw-azure-")
        self._ticking = threading.Event()
        self._table, self._vault_table = self._routes(), self._vault_routes()

    # --- life --------------------------------------------------------------------------------------------------

    def start(self, port: int = 0, *, tick_s: float = 0.0) -> Self:
        """`tick_s`: look at the clock by itself that often, so that machines boot and end without being asked for."""
        make_certificate(Path(self._folder.name))
        self._server = serve(self._answer, Path(self._folder.name), port)
        if tick_s > 0:
            threading.Thread(target=self._tick, args=(tick_s,), name="azure-emulator-tick", daemon=True).start()
        return self

    def close(self) -> None:
        self._ticking.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
        self._folder.cleanup()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._server.server_address[1]}"

    @property
    def prices_url(self) -> str:
        return f"{self.url}/api/retail/prices"

    @property
    def ca_file(self) -> str:
        return str(Path(self._folder.name) / "cert.pem")

    def subnet(self, region: str) -> str:
        """The id of a subnet in this region."""
        group = f"/subscriptions/{self.subscription}/resourceGroups/tradewind"
        return f"{group}/providers/Microsoft.Network/virtualNetworks/{region}/subnets/default"

    def credential(self) -> Token:
        return Token(self._token)

    def environment(self) -> Mapping[str, str]:
        """What leads any process's SDK to a login here; the addresses stand in the fleet file."""
        return {**self._login.environment(), "REQUESTS_CA_BUNDLE": self.ca_file}

    def login_file(self, path: Path) -> Path:
        """The same for another process, see `load_credential`."""
        path.touch(mode=0o600)
        path.write_text(json.dumps({"url": self.url, "ca_file": self.ca_file, "token": self._token}))
        return path

    @property
    def secrets(self) -> Sequence[str]:
        """What nobody may ever see."""
        return (*self._tokens, self._login.client_secret)

    def settle(self) -> None:
        """Let everything happen that is due by the clock. Spot capacity beyond what its pool has left is taken back,
        the youngest first, with notice."""
        with self.time.lock:
            self.time.settle()
            for pool, capacity in self.faults.capacity.items():
                left = max(0, capacity(self.time.clock()))
                for vm in self.compute.held_in(pool)[left:] if pool[2] else ():
                    self.compute.evict(vm, NOTICE_S)

    def _tick(self, tick_s: float) -> None:
        while not self._ticking.wait(tick_s):
            self.settle()

    # --- requests ----------------------------------------------------------------------------------------------

    def _answer(self, request: Request) -> Answer:
        with self.time.lock:
            self.settle()
            if request.path.startswith("/metadata/"):
                return self._metadata(request)
            self.calls.append(f"{request.method} {request.path}")
            if self._login.serves(request.path):
                return self._login.answer(request)
            if request.path == "/api/retail/prices":
                return self.reader.prices(request)
            if request.path.startswith(("/secrets", "/deletedsecrets")):
                return self._secret(request)
            if blob := re.fullmatch(r"/bootdiagnostics/([^/]+)/serial.log", request.path):
                return self.compute.serial_log(blob[1])
            self._check_caller(request)
            self._check_weather(request)
            answer = self._route(request)
        if request.method == "PUT" and "/virtualmachines/" in request.path.lower() and self.faults.hang_after_s:
            time.sleep(self.faults.hang_after_s)
        if isinstance(answer.body, dict) and "serialConsoleLogBlobUri" in answer.body:
            return Answer(200, {name: f"{self.url}{link}" for name, link in answer.body.items()})
        links = {name: f"{self.url}{link}" for name, link in answer.headers.items() if link.startswith("/")}
        return Answer(answer.status, answer.body, {**answer.headers, **links})

    def _route(self, request: Request) -> Answer:
        for method, pattern, handle in self._table:
            matched = re.fullmatch(pattern, request.path, re.I)
            if matched and method == request.method:
                return handle(request, *matched.groups()[1:])  # without the subscription
        raise Refused(404, "InvalidResourceType", f"{request.method} {request.path} is not emulated")

    def _routes(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        c, r = self.compute, self.reader
        near = rf"{_GROUP}{_COMPUTE}/proximityPlacementGroups"
        vm, nic = rf"{_GROUP}{_COMPUTE}/virtualMachines/([^/]+)", rf"{_GROUP}{_NETWORK}/networkInterfaces/([^/]+)"
        return [
            ("PUT", vm, c.put_vm),
            ("GET", vm, r.vm),
            ("DELETE", vm, c.delete_vm),
            ("POST", f"{vm}/retrieveBootDiagnosticsData", c.boot_diagnostics),
            ("GET", rf"{_GROUP}{_COMPUTE}/virtualMachines", r.vms),
            ("GET", rf"{_SUBSCRIPTION}{_COMPUTE}/virtualMachines", r.vms),
            ("PUT", f"{near}/([^/]+)", c.placement.put),
            ("DELETE", f"{near}/([^/]+)", c.placement.delete),
            ("GET", near, r.placement_groups),
            ("PUT", nic, c.put_nic),
            ("GET", nic, r.nic),
            ("DELETE", nic, c.delete_nic),
            ("GET", rf"{_GROUP}{_NETWORK}/networkInterfaces", r.nics),
            ("DELETE", rf"{_GROUP}{_COMPUTE}/disks/([^/]+)", c.delete_disk),
            ("GET", rf"{_GROUP}{_COMPUTE}/disks", r.disks),
            ("GET", rf"{_SUBSCRIPTION}{_LOCATION}/operations/[^/]+", lambda request, _: r.operation(request)),
            ("GET", rf"{_SUBSCRIPTION}/providers/Microsoft.Insights/eventtypes/management/values", r.events),
            ("GET", _GROUP, r.group),
            ("GET", rf"{_GROUP}/providers/Microsoft.Authorization/permissions", r.permissions),
            ("GET", rf"{_GROUP}{_NETWORK}/virtualNetworks/.+", lambda request, _: r.network(request)),
            ("GET", rf"{_GROUP}{_COMPUTE}/(?:images|galleries)/.+", lambda request, _: r.image(request)),
            ("GET", rf"{_SUBSCRIPTION}{_VERSIONS}", r.image_versions),
            ("GET", rf"{_SUBSCRIPTION}{_COMPUTE}/skus", r.skus),
            ("GET", rf"{_SUBSCRIPTION}{_LOCATION}/usages", r.usages),
        ]

    def _check_caller(self, request: Request) -> None:
        if not re.fullmatch(r"\d{4}-\d\d-\d\d(-preview)?", request.query.get("api-version", "")):
            message = "The api-version query parameter (?api-version=) is required for all requests."
            raise Refused(400, "MissingApiVersionParameter", message)
        header = request.headers.get("authorization", "")
        if not header:
            raise Refused(401, "AuthenticationFailed", "Authentication failed. The 'Authorization' header is missing.")
        if header != f"Bearer {self._token}":
            raise Refused(401, "InvalidAuthenticationToken", "The access token is invalid.")
        if self.faults.credentials_expired:
            raise Refused(401, "ExpiredAuthenticationToken", "The access token expiry is in the past.")
        if not request.path.lower().startswith(f"/subscriptions/{self.subscription}".lower()):
            raise Refused(404, "SubscriptionNotFound", f"The subscription of '{request.path}' could not be found.")
        kind = re.search(r"/providers/(Microsoft\.\w+/\w+)(?:/[^/]+)?$", request.path, re.I)
        action = f"{kind[1]}/{_ACTIONS.get(request.method, 'action')}" if kind else ""
        if action in self.faults.denied:
            who = "The client 'tradewind' with object id '1' does not have authorization to perform action"
            raise Refused(403, "AuthorizationFailed", f"{who} '{action}' over scope '{request.path}'.")

    def _check_weather(self, request: Request) -> None:
        if self.faults.take("throttled"):
            message = "The request is being throttled as the limit has been reached."
            raise Refused(429, "TooManyRequests", message, {"Retry-After": "17"})
        if self.faults.take("broken"):
            raise Refused(503, "ServiceUnavailable", "The service is currently unavailable.")
        if self._region_of(request) in self.faults.dead_regions:
            raise Refused(503, "ServiceUnavailable", "The region is currently unavailable.")

    def _region_of(self, request: Request) -> str:
        """Of the machine that a call is about, or is to be made."""
        matched = re.fullmatch(rf"{_GROUP}{_COMPUTE}/virtualMachines/([^/]+)", request.path, re.I)
        vm = self.compute.vms.get((matched[2].lower(), matched[3].lower())) if matched else None
        if vm is not None:
            return vm.region
        return str(request.body.get("location", "")) if request.method == "PUT" else ""

    # --- the metadata service: /metadata/VM/scheduledevents -----------------------------------------------------

    def metadata_url(self, name: str) -> str:
        """What is http://169.254.169.254/metadata inside of this machine."""
        return f"{self.url}/metadata/{name}"

    def _metadata(self, request: Request) -> Answer:
        _, _, name, *rest = request.path.split("/")
        query = f"?{urlencode(request.query)}" if request.query else ""
        path = f"/metadata/{'/'.join(rest)}{query}"
        told = self.metadata.told(name, Asked(request.method, path, request.headers, request.raw))
        if told is None:
            raise Cut  # a machine that is gone asks nothing
        return Answer(told.status, told.body.decode(), told.headers)

    def _identity_token(self, identity: str) -> str:
        mine = next((token for token, owner in self._tokens.items() if owner == identity), "")
        if not mine:
            mine = f"eyJ0.{uuid.uuid4().hex}"
            self._tokens[mine] = identity
        return mine

    # --- the key vault: /secrets/NAME -----------------------------------------------------------------------------

    def _secret(self, request: Request) -> Answer:
        """The first answer to every client is a challenge, which names the resource that a token is wanted for."""
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        owner = self._tokens.get(token, "")
        if not owner or self.faults.credentials_expired:
            where = f'authorization="{self.url}/tenant", resource="https://vault.azure.net"'
            message = "AKV10000: Request is missing a Bearer or PoP token."
            raise Refused(401, "Unauthorized", message, {"WWW-Authenticate": f"Bearer {where}"})
        self._check_weather(request)
        for method, pattern, handle in self._vault_table:
            matched = re.fullmatch(pattern, request.path.rstrip("/"), re.I)
            if matched and method == request.method:
                name = "".join(matched.groups())
                may_read = method == "GET" and fnmatchcase(name, self.identities.get(owner, ""))
                if (owner != _OWNER and not may_read) or f"vaults/secrets/{method}" in self.faults.denied:
                    message = f"The user, group or application '{owner}' does not have secrets permission."
                    raise Refused(403, "Forbidden", message)
                return handle(request, *matched.groups())
        raise Refused(404, "NotFound", f"{request.method} {request.path} is not emulated")

    def _vault_routes(self) -> list[tuple[str, str, Callable[..., Answer]]]:
        v, one, deleted = self.vault, r"/secrets/([^/]+)", r"/deletedsecrets/([^/]+)"
        return [
            ("PUT", one, v.put),
            ("GET", one, v.get),
            ("DELETE", one, v.delete),
            ("GET", "/secrets", v.list),
            ("GET", deleted, v.get_deleted),
            ("DELETE", deleted, v.purge),
            ("POST", rf"{deleted}/recover", v.recover),
        ]


def load_credential(path: Path) -> tuple[str, str, Token]:
    """URL, certificate and credential from a file that `login_file` wrote."""
    told = json.loads(path.read_text())
    return told["url"], told["ca_file"], Token(told["token"])


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(description="An emulated Azure subscription on loopback.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--run-machines", action="store_true", help="run what is launched as processes")
    parser.add_argument("--fleet", type=Path, help="write a fleet file that leads here")
    arguments = parser.parse_args()
    emulator = AzureEmulator().start(arguments.port, tick_s=0.2)
    with contextlib.ExitStack() as stack:
        stack.callback(emulator.close)
        if arguments.run_machines:
            from tradewind.emulators.azure_machines import run_on_azure
            from tradewind.emulators.machines import Machines

            run_on_azure(emulator, stack.enter_context(Machines()))
        write_fleet(arguments.fleet, {"azure": azure_section(emulator)}, emulator.ca_file)
        wait_for_the_end(f"{emulator.url}  (subscription {emulator.subscription})", emulator.environment())


if __name__ == "__main__":
    main()
