"""The watcher at each cloud's emulated metadata service: a notice there is a drain here, with that cloud's deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tradewind.emulators.metadata_server import Answer, Asked, MetadataServer, Told
from tradewind.errors import Transient
from tradewind.node.watch import Notice, Watcher, source_of
from tradewind.node.watch_sources import GCP_GPU_MAINTENANCE_S, AwsNotices

NOTICE_S = 2.0  # within so long of the cloud's notice the node drains; tests wait longer, since machines are shared


def until(holds: Callable[[], object], timeout_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, "not in time"
        time.sleep(0.01)


@contextmanager
def metadata_at(address: str, answer: Answer) -> Iterator[str]:
    server = MetadataServer()
    try:
        yield server.add(address, answer)
    finally:
        server.close()


class Drains:
    def __init__(self) -> None:
        self.deadlines_s: list[float | None] = []
        self.warnings: list[str] = []

    def __call__(self, message: str, deadline_s: float | None) -> tuple[bool, str]:
        self.deadlines_s.append(deadline_s)
        return True, ""

    def warn(self, notice: Notice) -> None:
        self.warnings.append(notice.kind)


@contextmanager
def watching(cloud: str, url: str, **more: Any) -> Iterator[Drains]:
    drains, stop = Drains(), threading.Event()
    watcher = Watcher(source_of(cloud, {"metadata": url}), drains, warn=drains.warn, **more)
    thread = threading.Thread(target=watcher.run, args=(stop,), daemon=True)
    thread.start()
    try:
        yield drains
    finally:
        stop.set()


# --- AWS ---


class Aws:
    def __init__(self) -> None:
        from tradewind.emulators.aws_books import Books, Machine
        from tradewind.emulators.aws_identity import Identities
        from tradewind.emulators.aws_metadata import Metadata

        self.books = Books(time.time, ("us-east-1",))
        self.machine = Machine("i-1", "us-east-1", "us-east-1a", "g5.xlarge", True, "ami", "s", {}, "", "", 0.0, 0.0)
        self.machine.state = "running"
        self.books.regions["us-east-1"].machines["i-1"] = self.machine
        self.metadata = Metadata(self.books, Identities("1"))
        self.asked: list[str] = []

    def answer(self, asked: Asked) -> Told | None:
        self.asked.append(f"{asked.method} {asked.target}")
        told = self.metadata.answer(asked.method, f"/imds/i-1{asked.target}", asked.headers)
        return told and Told(told.status, told.body)


def test_aws_tells_two_minutes_before() -> None:
    cloud = Aws()
    with metadata_at("127.9.9.2", cloud.answer) as url, watching("aws", url) as drains:
        until(lambda: len(cloud.asked) >= 3)
        assert drains.deadlines_s == []
        cloud.metadata.rebalance["i-1"] = time.time()
        until(lambda: drains.warnings == ["rebalance"])
        cloud.machine.taken_at_s = float(int(time.time() + 120))
        until(lambda: drains.deadlines_s)
        assert drains.deadlines_s == [cloud.machine.taken_at_s]


def test_aws_tokens_are_kept_and_renewed_when_refused() -> None:
    cloud = Aws()
    with metadata_at("127.9.9.3", cloud.answer) as url:
        source = AwsNotices(url)
        assert [*source.wait(1), *source.wait(1)] == []
        assert sum(call.startswith("PUT") for call in cloud.asked) == 1
        cloud.metadata._tokens.clear()  # as after a restart of the service
        assert source.wait(1) == []
        assert sum(call.startswith("PUT") for call in cloud.asked) == 2


def test_a_metadata_service_that_is_not_there_is_transient() -> None:
    for cloud in ("aws", "gcp", "azure"):
        with pytest.raises(Transient):
            source_of(cloud, {"metadata": "http://127.9.9.9:9"}).wait(1)


@pytest.mark.parametrize(
    "nonsense", [b"", b"<html>", b"[]", b'{"Events": [{"EventType": "Preempt", "Resources": ["x"]}]}', b"x"]
)
def test_an_answer_that_makes_no_sense_is_a_bad_moment(nonsense: bytes) -> None:
    """And must not end the thread that watches: its node would end itself."""

    def answer(asked: Asked) -> Told:
        is_name = asked.target.startswith("/metadata/instance/compute/name")
        return Told(200, b"x" if is_name else nonsense, {"Content-Type": "application/json"})

    with metadata_at("127.9.9.10", answer) as url:
        for cloud in ("aws", "gcp", "azure"):
            try:
                found = source_of(cloud, {"metadata": url}).wait(1)
            except Transient:
                continue
            assert found == [], cloud


def test_the_watcher_finds_the_service_where_the_sdk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = Aws()
    with metadata_at("127.9.9.4", cloud.answer) as url:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        assert source_of("aws", {}).wait(1) == []


# --- Google ---


class Gcp:
    def __init__(self, of: Any) -> None:
        from tradewind.emulators.gcp_metadata import GcpMetadata, Host

        self.of = of
        self.metadata = GcpMetadata("p", lambda name: Host(name, self.of), lambda _: "token")

    def answer(self, asked: Asked) -> Told | None:
        return self.metadata.told("vm-1", asked)


def vm() -> Any:
    from tradewind.emulators.gcp_compute import Vm

    return Vm(
        "us-central1-a",
        {"name": "vm-1", "machineType": "zones/z/machineTypes/g2-standard-4", "networkInterfaces": [{}]},
    )


def slice_host() -> Any:
    from tradewind.emulators.gcp_tpu import TpuNode

    return TpuNode("us-central1-a", {"name": "p/nodes/t-1", "acceleratorType": "v5litepod-16", "state": "READY"})


@pytest.mark.parametrize("made", [vm, slice_host])
def test_google_tells_thirty_seconds_before(made: Callable[[], Any]) -> None:
    cloud = Gcp(made())
    with metadata_at("127.9.9.5", cloud.answer) as url, watching("gcp", url) as drains:
        time.sleep(0.2)  # into its long poll
        said_s = time.time()
        cloud.of.preempted = True
        until(lambda: drains.deadlines_s)
        [deadline_s] = drains.deadlines_s
        assert said_s + 30 <= (deadline_s or 0) <= time.time() + 30


def test_google_tells_of_maintenance_an_hour_before_where_there_are_gpus() -> None:
    cloud = Gcp(vm())
    with metadata_at("127.9.9.6", cloud.answer) as url:
        source = source_of("gcp", {"metadata": url})
        assert source.wait(1) == []
        cloud.of.maintenance = "MIGRATE_ON_HOST_MAINTENANCE"  # goes on running
        assert source.wait(1) == []
        cloud.of.maintenance = "TERMINATE_ON_HOST_MAINTENANCE"
        [notice] = source.wait(1)
        [again] = source.wait(1)
        assert notice == again
        assert notice.kind == "maintenance"
        assert abs((notice.deadline_s or 0) - time.time() - GCP_GPU_MAINTENANCE_S) < 60


# --- Azure ---


class Azure:
    def __init__(self) -> None:
        from tradewind.emulators.azure_compute import Compute, Vm
        from tradewind.emulators.azure_metadata import AzureMetadata
        from tradewind.emulators.azure_state import Faults
        from tradewind.emulators.gcp_state import Timeline

        self.compute = Compute("s", Timeline(time.time), Faults())
        path = "/subscriptions/s/resourceGroups/tradewind/providers/Microsoft.Compute/virtualMachines/vm-1"
        nic = path.replace("Compute/virtualMachines", "Network/networkInterfaces")
        body: dict[str, Any] = {
            "id": path,
            "name": "vm-1",
            "location": "eastus",
            "properties": {
                "vmId": "1",
                "provisioningState": "Succeeded",
                "hardwareProfile": {"vmSize": "x"},
                "evictionPolicy": "Delete",
                "storageProfile": {"osDisk": {"name": "d", "deleteOption": "Delete"}},
                "networkProfile": {"networkInterfaces": [{"id": nic}]},
            },
        }
        self.vm = Vm(body, power="running")
        self.compute.vms[self.vm.place] = self.vm
        self.metadata = AzureMetadata(self.compute, lambda _: "token", self.compute.time.settle)

    def answer(self, asked: Asked) -> Told | None:
        return self.metadata.told("vm-1", asked)


def test_azure_tells_when_not_before_and_waits_for_no_longer_than_needed() -> None:
    cloud, idle = Azure(), threading.Event()
    with metadata_at("127.9.9.7", cloud.answer) as url, watching("azure", url, is_idle=idle.is_set) as drains:
        cloud.compute.evict(cloud.vm, 30)
        until(lambda: drains.deadlines_s)
        assert drains.deadlines_s == [float(int(cloud.vm.evicted_at_s or 0))]
        assert cloud.compute.vms
        idle.set()
        until(lambda: not cloud.compute.vms)  # acknowledged: gone at once
        assert cloud.metadata.acknowledged == [cloud.vm.event_id]


@pytest.mark.parametrize("kind", ["Redeploy", "Reboot", "Terminate", "Freeze"])
def test_azure_events_of_this_machine_alone(kind: str) -> None:
    cloud, at_s = Azure(), float(int(time.time()) + 600)
    cloud.metadata.announce("another", kind, at_s)
    with metadata_at("127.9.9.8", cloud.answer) as url:
        source = source_of("azure", {"metadata": url})
        assert source.wait(1) == []
        event_id = cloud.metadata.announce("vm-1", kind, at_s)
        found = source.wait(1)
        assert [(each.kind, each.deadline_s) for each in found] == ([(kind.lower(), at_s)] if kind != "Freeze" else [])
        for notice in found:
            source.acknowledge(notice)
            assert cloud.metadata.acknowledged == [event_id]
