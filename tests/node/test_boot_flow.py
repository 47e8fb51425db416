"""A boot without Ray: the address by the cloud's metadata, secrets, refusals, and that each failure is told and ends
the machine. With Ray: test_boot_on_ray.py."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tradewind.certificates import Authority
from tradewind.errors import NotFound, RayError, Transient
from tradewind.node.boot import Boot
from tradewind.node.boot_plan import TOLD, BootPlan
from tradewind.node.desk_server import desk_app, open_desk
from tradewind.node.folder_secrets import FolderSecrets
from tradewind.node.join_desk import JoinDesk
from tradewind.node.machine import Machine
from tradewind.node.patience import keep_trying
from tradewind.node.ray_node import alone, pick_ports, start_ray
from tradewind.node.versions import versions_here
from tradewind.server import Tls

TOKEN = "5ec4e7" * 8
CA = Authority.make("cell", time.time())


@dataclass(frozen=True)
class StayingMachine(Machine):
    """Counts how often it was shut down."""

    ends: list[float] = field(default_factory=list)

    def shut_down(self) -> None:
        self.ends.append(time.time())


@pytest.fixture
def machine(tmp_path: Path) -> StayingMachine:
    (tmp_path / "n").mkdir()
    return StayingMachine(tmp_path / "n", {"TMPDIR": "/tmp"})


@pytest.fixture
def plan(tmp_path: Path) -> BootPlan:
    FolderSecrets(tmp_path / "s").put("tradewind/f/c/node", json.dumps({"ray_token": TOKEN}))
    return BootPlan(
        fleet="f",
        cell="c",
        launch_id="n1",
        cloud="local",
        region="here",
        role="worker",
        secret="tradewind/f/c/node",
        ca_pem=CA.cert_pem,
        head_address="127.0.0.8:1",
        join_url="https://127.0.0.8:1",
        endpoints={"secrets": f"file://{tmp_path / 's'}", "address": "127.0.0.9"},
    )


def test_a_secret_that_cannot_be_read_is_told_on_the_console(
    machine: StayingMachine, plan: BootPlan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    FolderSecrets(tmp_path / "s").put("tradewind/f/c/node", "not JSON")
    assert Boot(plan, machine).run() == TOLD
    assert "TRADEWIND BOOT FAILED: secret tradewind/f/c/node: is not JSON with ray_token" in caplog.text
    assert len(machine.ends) == 1
    assert not (machine.folder / "up").exists()


def test_a_refused_node_says_so_on_its_console_and_at_the_desk(
    machine: StayingMachine, plan: BootPlan, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    identity = CA.identity(["127.0.0.8"], time.time())
    (tmp_path / "c").write_text(identity.cert_pem)
    (tmp_path / "k").write_text(identity.key_pem)
    desk = JoinDesk(CA, replace(versions_here(), ray="2.61.0"), time.time)
    (machine.folder / "boot.log").write_text("the log so far\n")
    with open_desk(desk_app(desk, TOKEN), "127.0.0.8", Tls(tmp_path / "c", tmp_path / "k")) as server:
        assert Boot(replace(plan, join_url=server.url), machine).run() == TOLD
    wrong = f"ray {versions_here().ray} on the node, 2.61.0 on the head"
    assert f"TRADEWIND BOOT FAILED: refused by the head: {wrong}" in caplog.text
    [(launch_id, why)] = desk.reports()
    assert (launch_id, wrong in why) == ("n1", True)
    assert "the log so far" in desk.log("n1")
    assert len(machine.ends) == 1
    assert TOKEN not in caplog.text


def test_what_nobody_thought_of_ends_the_machine_too(
    machine: StayingMachine, plan: BootPlan, caplog: pytest.LogCaptureFixture
) -> None:
    strange = replace(plan, endpoints={"address": "127.0.0.9", "secrets": "file:///dev/null/x"})
    assert Boot(strange, machine).run() == TOLD
    assert "TRADEWIND BOOT FAILED: [Errno 20] Not a directory" in caplog.text
    assert len(machine.ends) == 1


# --- the address ------------------------------------------------------------------------------------------------

WANTED = {
    "aws": ("/latest/meta-data/local-ipv4", "x-aws-ec2-metadata-token", "tok"),
    "gcp": ("/computeMetadata/v1/instance/network-interfaces/0/ip", "metadata-flavor", "Google"),
    "azure": (
        "/metadata/instance/network/interface/0/ipv4/ipAddress/0/privateIpAddress?api-version=2021-02-01&format=text",
        "metadata",
        "true",
    ),
}


@pytest.fixture
def metadata() -> Iterator[str]:
    """A metadata service for all three: refuses what the real ones refuse."""

    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            ok = self.path == "/latest/api/token" and "x-aws-ec2-metadata-token-ttl-seconds" in self.headers
            self._answer(200 if ok else 400, "tok")

        def do_GET(self) -> None:
            if self.path == "/computeMetadata/v1/instance/attributes/agent-worker-number":
                self._answer(200, "3")
                return
            header = next((rest for path, *rest in WANTED.values() if path == self.path), None)
            if header is None:
                self._answer(404, "")
            else:
                self._answer(200 if self.headers.get(header[0]) == header[1] else 401, "10.1.2.3\n")

        def _answer(self, status: int, text: str) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_the_address_comes_from_the_clouds_metadata(
    cloud: str, metadata: str, machine: StayingMachine, plan: BootPlan
) -> None:
    """By the plan, and by where the vendors' SDKs are led on an emulated machine."""
    assert machine.address(replace(plan, cloud=cloud, endpoints={"metadata": metadata})) == "10.1.2.3"
    env: Mapping[str, str] = {
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{metadata}/",
        "GCE_METADATA_HOST": metadata.removeprefix("http://"),
        "AZURE_POD_IDENTITY_AUTHORITY_HOST": metadata,
    }
    assert replace(machine, env=env).address(replace(plan, cloud=cloud, endpoints={})) == "10.1.2.3"


def test_a_metadata_service_that_is_not_there_is_asked_again_later(machine: StayingMachine, plan: BootPlan) -> None:
    with pytest.raises(Transient, match="metadata service does not answer"):
        machine.address(replace(plan, cloud="aws", endpoints={"metadata": "http://127.0.0.1:1"}))


def test_a_machine_of_no_cloud_takes_the_way_to_its_head(machine: StayingMachine, plan: BootPlan) -> None:
    assert machine.address(replace(plan, endpoints={})).startswith("127.")


def test_a_host_of_a_slice_learns_its_number(metadata: str, machine: StayingMachine, plan: BootPlan) -> None:
    tpu = {"TPU_ACCELERATOR_TYPE": "v4-16", "TPU_WORKER_ID": "0"}
    found = machine.tpu_env(replace(plan, cloud="gcp", tpu=tpu, endpoints={"metadata": metadata}))
    assert found == {"TPU_ACCELERATOR_TYPE": "v4-16", "TPU_WORKER_ID": "3", "TPU_NAME": "n1"}
    assert machine.tpu_env(plan) == {}


# --- the small parts --------------------------------------------------------------------------------------------


def test_secrets_in_a_folder(tmp_path: Path) -> None:
    store = FolderSecrets(tmp_path / "s")
    store.put("tradewind/f/../c/head", "one")
    store.put("tradewind/f/../c/head", "two")
    store.put("tradewind/g/c/node", "three")
    assert store.get("tradewind/f/../c/head") == "two"
    assert store.list("tradewind/f") == ["tradewind/f/../c/head"]
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "s").iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == [tmp_path / "s"]
    store.delete("tradewind/g/c/node")
    store.delete("tradewind/g/c/node")
    with pytest.raises(NotFound):
        store.get("tradewind/g/c/node")


def test_patience_ends_and_other_errors_are_final() -> None:
    calls: list[int] = []

    def third_time() -> str:
        calls.append(1)
        if len(calls) < 3:
            raise RayError("not yet")
        return "here"

    stop = threading.Event()
    assert keep_trying(third_time, "x", (RayError,), 60.0, stop, first_pause_s=0.001) == "here"
    with pytest.raises(RayError, match="never"):
        keep_trying(_raise, "x", (RayError,), 0.01, stop, first_pause_s=0.001)
    with pytest.raises(RayError, match="never"):
        keep_trying(_raise, "x", (OSError,), 60.0, stop)
    stop.set()
    with pytest.raises(RayError, match="never"):
        keep_trying(_raise, "x", (RayError,), 60.0, stop)


def _raise() -> None:
    raise RayError("never")


def test_a_ray_that_ends_at_its_start_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = ["bash", "-c", "echo first; echo 'cannot bind port 1'; exit 3"]
    with pytest.raises(RayError, match=r"Ray ended with status 3: first \| cannot bind port 1"):
        start_ray(command, {"PATH": "/usr/bin:/bin"}, tmp_path / "log")


def test_a_ray_that_hangs_at_its_start_is_ended(tmp_path: Path) -> None:
    with pytest.raises(RayError, match="did not start within"):
        start_ray(["sleep", "600"], {"PATH": "/usr/bin:/bin"}, tmp_path / "log", timeout_s=0.2)


def test_ports_differ_and_starts_take_turns(tmp_path: Path) -> None:
    ports = pick_ports()
    assert len({ports.gcs, ports.client, ports.dashboard}) == 3
    order: list[str] = []
    lock = str(tmp_path / "lock")

    def second() -> None:
        with alone(lock):
            order.append("second")

    with alone(lock):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.05)
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]


@pytest.fixture(autouse=True)
def _hear_everything(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
