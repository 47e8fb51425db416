"""An emulated AWS on loopback: EC2 as far as Tradewind uses it, STS and Service Quotas for the preflight, Secrets
Manager, S3 and IMDSv2.

    with AwsEmulator() as cloud:
        provider = AwsProvider(replace(settings, endpoint_url=cloud.url), ...)   # boto3, unchanged
        cloud.shop.sold_out.add(("us-east-1a", "g5.xlarge", True))

What it simulates: client tokens, tags on instances, disks and interfaces, pending -> running -> shutting-down ->
terminated on an injected clock, an hour of listing after the end, late listings, pages, filters, spot requests with
notice and interruption, spot prices and price limits, stock-outs by hand or by a trace, quotas in vCPUs, dry runs,
denied and expired credentials, throttling, server errors, lost answers, dead regions, boots that fail, instances that
vanish, cluster placement groups with as much room as a test leaves them, and the refusal of fields, names and values
that EC2 refuses. Roles of instance profiles with their rights and temporary keys (aws_identity.py). `on_boot` and
`on_end` (of `books`) let somebody run the user-data: aws_machines.py.

What it does not: signatures are read, not verified; there is no IAM beyond `denied` and roles; one instance a request;
no fleets, launch templates, stopping or rebooting; no KMS; VPCs are names. Its limits are those that are written here.

Why not moto: it takes 0.1 s for a launch and half a minute to list a thousand instances, and of what counts here
(tokens, capacity, prices, spot requests, lag, time) it has nothing: a layer before it would be all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from tradewind.emulators import aws_s3
from tradewind.emulators.alone import wait_for_the_end, write_fleet
from tradewind.emulators.aws_books import Books, Machine, Region
from tradewind.emulators.aws_calls import ACCOUNT, Calls, caller_identity, instance_item, service_quota
from tradewind.emulators.aws_identity import ACCESS_KEY, SECRET_KEY, Caller, Identities
from tradewind.emulators.aws_launch import Shop, held_in, run_instances
from tradewind.emulators.aws_metadata import Answer, Metadata
from tradewind.emulators.aws_s3 import Call, Storage, unchunked
from tradewind.emulators.aws_secrets import Vault
from tradewind.emulators.aws_wire import Form, Refused, Scope, error_response, response
from tradewind.emulators.fleet_file import aws_section

REGIONS = ("us-east-1", "us-west-2")
NOTICE_S = 120.0
_JSON = "application/x-amz-json-1.1"
_DENIED = {"ec2": ("UnauthorizedOperation", 403), "s3": ("AccessDenied", 403)}
_log = logging.getLogger(__name__)


@dataclass
class Faults:
    """Bad days. The numbers count down: of the next calls, or of the next launches."""

    throttled: int = 0
    failing: int = 0
    cut_before: int = 0  # launches that are not carried out and not answered
    cut_after: int = 0  # launches that are carried out and not answered
    held: int = 0  # launches that are carried out, and answered only when the emulator closes
    refusals: list[tuple[str, str, int]] = field(default_factory=list)  # (action, code, status), each once
    denied: set[str] = field(default_factory=set)  # actions
    expired: bool = False
    dead_regions: set[str] = field(default_factory=set)

    def spend(self, name: str) -> bool:
        left: int = getattr(self, name)
        setattr(self, name, max(0, left - 1))
        return left > 0


class Cut(Exception):
    """The connection ends without an answer."""


class AwsEmulator:
    """All of it, behind one port. What a test looks at and changes: `books`, `shop`, `faults`, `calls`."""

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        regions: tuple[str, ...] = REGIONS,
        *,
        page_size: int = 100,
        port: int = 0,
        tick_s: float = 0.0,
    ) -> None:
        """`tick_s`: look at the clock by itself that often, so that machines boot and end without being asked for."""
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self.page_size, self.region_names = page_size, regions
        self.reset(clock)
        self._server = _Server(self, port)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), name="aws-emulator", daemon=True).start()
        if tick_s > 0:
            threading.Thread(target=self._tick, args=(tick_s,), name="aws-emulator-tick", daemon=True).start()

    def reset(self, clock: Callable[[], float]) -> None:
        """An empty cloud again, at the same address."""
        with self._lock:
            self.books = Books(clock, self.region_names)
            self.shop, self.faults = Shop(), Faults()
            self.calls = Calls(self.books, self.page_size)
            self.identities, self.vault = Identities(ACCOUNT), Vault(clock, ACCOUNT)
            self.storage = Storage(clock)
            self.metadata = Metadata(self.books, self.identities)
            self.log: list[str] = []  # actions, as they came

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> AwsEmulator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def environment(self) -> dict[str, str]:
        """What leads any process's SDK to a login here; the address stands in the fleet file."""
        return {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}

    def _tick(self, tick_s: float) -> None:
        while not self._closing.wait(tick_s):
            self.machines()

    # --- what happens to machines ---

    def machines(self) -> list[Machine]:
        """Of all regions and owners, ended ones left out, as of now."""
        with self._lock:
            self._step()
            return [machine for machine in self.books.machines if machine.is_alive]

    def _step(self) -> None:
        """What is due, and spot machines beyond what their pool has left: the youngest first, with notice."""
        self.books.step()
        now_s = self.books.clock()
        for pool, capacity in self.shop.capacity.items():
            held = [machine for region in self.books.regions.values() for machine in held_in(pool, region)]
            staying = [machine for machine in held if machine.taken_at_s is None]
            for machine in staying[max(0, capacity(now_s)) :] if pool[2] else []:
                self.preempt(machine, NOTICE_S)

    def stopped(self, machine: Machine) -> None:
        """It went down by itself."""
        with self._lock:
            self.books.end_by_itself(machine)

    def preempt(self, machine: Machine, notice_s: float) -> None:
        """Spot interruption: marked now, taken after `notice_s`."""
        with self._lock:
            now_s = self.books.clock()
            machine.spot_status = ("marked-for-termination", "Your Spot Instance is marked for termination.")
            machine.spot_status_at_s, machine.taken_at_s = now_s, now_s + notice_s
            self.books.step()

    # --- requests ---

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request. Raises Cut where no answer is to come."""
        if path.startswith("/imds/"):
            return self.metadata_answer(method, path, headers)
        scope = Scope.of(headers.get("authorization", ""))
        if scope is not None and scope.service == "s3":
            return self._store(scope, method, path, headers, body)
        target = headers.get("x-amz-target", "")
        try:
            with self._lock:
                done = self._carry_out(headers, body, target)
        except Refused as refused:
            return _refusal(refused, as_json=bool(target))
        if done.is_launch and self.faults.spend("held"):
            self._closing.wait(600)
        if done.is_launch and self.faults.spend("cut_after"):
            raise Cut
        return done

    def metadata_answer(self, method: str, path: str, headers: Mapping[str, str]) -> Answer:
        with self._lock:
            self._step()
            told = self.metadata.answer(method, path, headers)
        if told is None:
            raise Cut
        return told

    def _store(self, scope: Scope, method: str, path: str, headers: dict[str, str], body: bytes) -> Answer:
        try:
            call = Call.of(method, path, headers, body)
            with self._lock:
                caller = self._caller(scope, call.headers.get("x-amz-security-token", ""))
                self._check_right(caller, *call.right)
                return self.storage.answer(call)
        except Refused as refused:
            return aws_s3.refusal(refused)

    def _carry_out(self, headers: dict[str, str], body: bytes, target: str) -> Answer:
        scope = Scope.of(headers.get("authorization", ""))
        if scope is None:
            raise Refused("MissingAuthenticationToken", "The request is not signed", 403)
        region = self.books.regions.get(scope.region)
        if region is None or scope.region in self.faults.dead_regions:
            raise Cut
        form = Form(b"" if target else body)
        action = form.action or target.partition(".")[2]
        self.log.append(action)
        self._step()
        caller = self._caller(scope, headers.get("x-amz-security-token", ""))
        self._may_fail(action, scope)
        if scope.service == "secretsmanager":
            return self._secret(action, json.loads(body), scope, caller)
        if action == "GetCallerIdentity":  # everybody may
            return Answer(200, caller_identity(caller.arn))
        self._check_right(caller, f"{scope.service}:{action}", "*")
        if action == "RunInstances":
            return self._launch(form, region)
        if action == "GetServiceQuota":
            return Answer(200, service_quota(body, region), _JSON)
        if action not in self.calls.by_action:
            raise Refused("InvalidAction", f"The action {action} is not valid for this web service.")
        return Answer(200, response(action, self.calls.by_action[action](form, region)))

    def _caller(self, scope: Scope, token: str) -> Caller:
        caller = self.identities.caller(scope.access_key, token)
        if caller is None and scope.service == "ec2":
            raise Refused("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        if caller is None:
            code = "InvalidClientTokenId" if scope.service == "sts" else "UnrecognizedClientException"
            raise Refused(code, "The security token included in the request is invalid.", 403)
        if self.faults.expired or caller.until_s < self.books.clock():
            raise Refused("RequestExpired" if scope.service == "ec2" else "ExpiredToken", "Request has expired.", 400)
        return caller

    def _check_right(self, caller: Caller, action: str, resource: str) -> None:
        if not caller.may(action, resource):
            message = f"User: {caller.arn} is not authorized to perform: {action} on resource: {resource}"
            code, status = _DENIED.get(action.partition(":")[0], ("AccessDeniedException", 400))
            raise Refused(code, message, status)

    def _secret(self, action: str, asked: dict[str, Any], scope: Scope, caller: Caller) -> Answer:
        resource = self.vault.resource(action, asked, scope.region)
        self._check_right(caller, f"{scope.service}:{action}", resource)
        return Answer(200, json.dumps(self.vault.answer(action, asked, scope.region)).encode(), _JSON)

    def _may_fail(self, action: str, scope: Scope) -> None:
        """In the order of a real front end: how often do you come, may you, and only then the call."""
        faults = self.faults
        if faults.spend("throttled"):
            raise Refused("RequestLimitExceeded", "Request limit exceeded.", 503)
        if faults.spend("failing"):
            raise Refused("InternalError", "An internal error has occurred", 500)
        if action in faults.denied:
            told = f"User is not authorized to perform: {scope.service}:{action}"
            message = f"You are not authorized to perform this operation. {told}"
            raise Refused("UnauthorizedOperation" if scope.service == "ec2" else "AccessDeniedException", message, 403)
        for refusal in [each for each in faults.refusals if each[0] == action][:1]:
            faults.refusals.remove(refusal)
            raise Refused(refusal[1], "as the test wants it", refusal[2])

    def _launch(self, form: Form, region: Region) -> Answer:
        if not form.is_true("DryRun") and self.faults.spend("cut_before"):
            raise Cut
        machine = run_instances(form, region, self.books, self.shop)
        body = {"reservationId": f"r-{machine.id[2:]}", "instancesSet": [instance_item(machine)]}
        return Answer(200, response("RunInstances", body), is_launch=True)


def _refusal(refused: Refused, *, as_json: bool) -> Answer:
    if as_json:
        body = json.dumps({"__type": refused.code, "message": refused.message}).encode()
        return Answer(refused.status, body, _JSON)
    return Answer(refused.status, error_response(refused))


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, emulator: AwsEmulator, port: int) -> None:
        self.emulator = emulator
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # otherwise the body waits 40 ms for the client's word on the headers
    server: _Server

    def _handle(self) -> None:
        is_chunked = self.headers.get("Transfer-Encoding", "") == "chunked"
        body = unchunked(self.rfile) if is_chunked else self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {key.lower(): value for key, value in self.headers.items()}
        try:
            answer = self.server.emulator.answer(self.command, self.path, headers, body)
        except Cut:
            self.close_connection = True
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_POST = do_PUT = do_HEAD = do_DELETE = _handle

    def log_message(self, format: str, *args: object) -> None:
        _log.debug(format, *args)


def main() -> None:
    parser = argparse.ArgumentParser(description="Runs an emulated AWS on loopback until it is interrupted.")
    parser.add_argument("--port", type=int, default=0, help="any free one unless given")
    parser.add_argument("--run-machines", action="store_true", help="run what is launched as processes")
    parser.add_argument("--fleet", type=Path, help="write a fleet file that leads here")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        cloud = stack.enter_context(AwsEmulator(port=arguments.port, tick_s=0.2))
        if arguments.run_machines:
            from tradewind.emulators.aws_machines import run_on_aws
            from tradewind.emulators.machines import Machines

            run_on_aws(cloud, stack.enter_context(Machines()))
        write_fleet(arguments.fleet, {"aws": aws_section(cloud)})
        wait_for_the_end(cloud.url, cloud.environment())


if __name__ == "__main__":
    main()
