"""A door on loopback with a certificate of its own, and agents over fake ports that dial in through real HTTPS."""

from __future__ import annotations

import datetime
import ipaddress
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.cells.calls import Hello
from tradewind.cells.dial import CellAgent
from tradewind.cells.door import Lodging, create_door
from tradewind.cells.line import Line
from tradewind.cells.remote import RemoteCoordinators, RemoteJobs, RemoteRay
from tradewind.certificates import Authority
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.node.join_desk import JoinDesk
from tradewind.node.versions import Versions
from tradewind.server import RunningServer, Tls, serve

TOKEN = "agent-token"
OFFER = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, cpus=4, gpus=1)


def until(holds: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(0.02)


def make_certificate(folder: Path) -> Tls:
    """For 127.0.0.1, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "controller")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    return Tls(folder / "cert.pem", folder / "key.pem")


@dataclass
class Caller:
    """One agent in a thread, over ports in memory."""

    agent: CellAgent
    stop: threading.Event = field(default_factory=threading.Event)
    said: list[str] = field(default_factory=list)  # what `run` returned

    def __post_init__(self) -> None:
        self.thread = threading.Thread(target=lambda: self.said.append(self.agent.run(self.stop)), daemon=True)
        self.thread.start()

    def end(self) -> None:
        self.stop.set()
        self.thread.join(timeout=20)
        assert not self.thread.is_alive()


class DoorWorld:
    """A controller's end (line, door) and a cell's end (fake Ray, jobs, coordinators)."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tls = folder, make_certificate(folder)
        self.clock = FakeClock(1_000_000.0)
        self.cloud = FakeCloud(self.clock, [OFFER])
        self.ray, self.jobs, self.coordinators = FakeRay(self.clock, [self.cloud]), FakeJobs(), FakeCoordinators()
        self.desk = JoinDesk(Authority.make("cell", time.time()), Versions("0", "0", "0", "0"), time.time)
        self.callers: list[Caller] = []
        self.port = 0
        self.open()

    def open(self) -> None:
        """A controller starts; after `close` on the same port."""
        self.line = Line("aws-us-east-1", silent_s=5.0)
        self.cells = {"aws-us-east-1": Lodging(self.line, TOKEN, self.folder / "packed")}
        self.server: RunningServer = serve(create_door(self.cells), self.port, tls=self.tls)
        self.port = self.server.port

    def close(self) -> None:
        self.server.stop()

    def hello(self, launch_id: str = "tw-head", started_at_s: float = 0.0, **changes: str) -> Hello:
        return Hello(
            launch_id, "10.0.0.4:6379", "http://127.0.0.1:8265", "https://10.0.0.4:8441", changes, started_at_s
        )

    def dial(self, hello: Hello | None = None, token: str = TOKEN, cell: str = "aws-us-east-1") -> Caller:
        agent = CellAgent(
            f"https://127.0.0.1:{self.port}",
            self.tls.certificate.read_text(),
            cell,
            token,
            hello or self.hello(),
            self.ray,
            self.jobs,
            self.coordinators,
            desk=self.desk,
            folders=self.folder / "fetched",
            poll_s=0.5,
        )
        self.callers.append(Caller(agent))
        return self.callers[-1]

    def met(self) -> DoorWorld:
        until(lambda: self.line.present, "the agent says hello")
        return self

    @property
    def remote_ray(self) -> RemoteRay:
        return RemoteRay(self.line)

    @property
    def remote_jobs(self) -> RemoteJobs:
        return RemoteJobs(self.line)

    @property
    def remote_coordinators(self) -> RemoteCoordinators:
        return RemoteCoordinators(self.line)
