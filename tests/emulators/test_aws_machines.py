"""Machines of the emulated AWS that run: their user-data, their address, their metadata, their end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tradewind.autoscaler.providers.aws import AwsProvider
from tradewind.autoscaler.providers.aws_clients import SdkClients
from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.local_processes import MARK_ENV
from tradewind.autoscaler.providers.secrets_aws import AwsSecrets
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.emulators.aws_machines import run_on_aws
from tradewind.emulators.machines import Machines
from tradewind.model import Capacity, EndReason, Market, Offer

SPOT = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1, 1, 400_000)
FOREVER = "#!/bin/bash\necho up\nsleep 600 &\nsleep 600\n"


def until(holds: Callable[[], object], timeout_s: float = 60.0, seen: Callable[[], str] = lambda: "") -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not in time {seen()}"
        time.sleep(0.05)


class Site:
    """The emulated cloud with its machines, and a provider whose nodes run what the test says."""

    def __init__(self, cloud: AwsEmulator, machines: Machines) -> None:
        self.cloud, self.machines, self.user_data = cloud, machines, FOREVER
        region = AwsRegion("us-east-1", "ami-0123456789abcdef0", {"us-east-1a": f"subnet-{1:017x}"})
        settings = AwsSettings("f", (region,), instance_profile="tradewind-node", endpoint_url=cloud.url)
        import boto3

        self.session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        self.clients = SdkClients(cloud.url, self.session)
        self.provider = AwsProvider(settings, lambda _: self.user_data, clients=self.clients)

    def launch(self, launch_id: str, user_data: str = FOREVER) -> str:
        self.user_data = user_data
        return self.provider.launch(LaunchSpec(launch_id, "f", "c", SPOT, "10.0.0.4:6379")).instance_id

    def node(self, launch_id: str) -> CloudNode:
        return next(node for node in self.provider.list_nodes() if node.launch_id == launch_id)

    def says(self, name: str, text: str) -> None:
        until(lambda: text in self.machines.console(name), seen=lambda: self.machines.console(name))


@pytest.fixture
def site() -> Iterator[Site]:
    with AwsEmulator(tick_s=0.05) as cloud, Machines(grace_s=0.2) as machines:
        run_on_aws(cloud, machines, boots_in_s=0.05, ends_in_s=0.05)
        yield Site(cloud, machines)


def test_a_machine_runs_its_user_data_and_ends_without_a_trace(site: Site) -> None:
    name = site.launch("tw-1", "#!/bin/bash\nsetsid sleep 600 &\nsleep 600 &\necho up\nsleep 600\n")
    site.says(name, "up")
    pids = [stat.pid for stat in site.machines.processes(name)]
    assert len(pids) >= 3
    assert site.node("tw-1").state is CloudState.RUNNING
    site.provider.terminate(["tw-1"])
    assert site.machines.wait_ended([name], 30) == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and _mark_of(pid)]
    until(lambda: site.node("tw-1").state is CloudState.GONE)
    assert site.node("tw-1").end is EndReason.TERMINATED
    assert "up" in site.machines.console(name)


def _mark_of(pid: int) -> bool:
    try:
        return MARK_ENV.encode() in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False


def test_shutdown_inside_ends_the_instance_and_nothing_else(site: Site) -> None:
    neighbour = site.launch("tw-2")
    name = site.launch("tw-1", "#!/bin/bash\necho 'TRADEWIND BOOT FAILED: no luck'\nshutdown -h now\nsleep 600\n")
    until(lambda: site.node("tw-1").state is CloudState.GONE)
    node = site.node("tw-1")
    assert node.end is EndReason.CRASHED
    assert "InstanceInitiatedShutdown" in node.detail
    assert "no luck" in site.machines.console(name)
    assert "[emulator]" not in site.machines.console(name)
    assert site.machines.names() == [neighbour]


def test_user_data_that_ends_without_shutdown_is_told_of(site: Site) -> None:
    name = site.launch("tw-1", "#!/bin/bash\nsleep 600 & \nexit 3\n")
    until(lambda: site.node("tw-1").state is CloudState.GONE)
    assert "a real machine would stay up" in site.machines.console(name)


def test_a_machine_has_its_own_address_folders_and_environment(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the controller's")
    name = site.launch("tw-1", "#!/bin/bash\nenv\necho at-$TMPDIR\nsleep 600\n")
    site.says(name, "at-")
    console = site.machines.console(name)
    assert "the controller's" not in console
    assert f"HOME={site.machines.folder(name)}/home" in console
    [told] = site.clients.get("ec2", "us-east-1").describe_instances()["Reservations"]
    address = told["Instances"][0]["PrivateIpAddress"]
    assert address.startswith("127.")
    assert f"AWS_EC2_METADATA_SERVICE_ENDPOINT=http://{address}:" in console
    with socket.create_server((address, 0)):
        pass  # it is an address of this machine


READ = """#!/bin/bash
python - <<END
from tradewind.autoscaler.providers.secrets import open_secrets
store = open_secrets("aws", "us-east-1")
print("read:", store.get("tradewind/f/c/node"))
try:
    store.get("tradewind/f/c/head")
except Exception as error:
    print("refused:", type(error).__name__, error)
END
sleep 600
"""


def test_a_machine_reads_its_secret_by_its_own_identity(site: Site) -> None:
    for kind in ("node", "head"):
        AwsSecrets("us-east-1", site.cloud.url, session=site.session).put(f"tradewind/f/c/{kind}", f"text of {kind}")
    names = [site.launch(f"tw-{n}", READ) for n in (1, 2)]
    for name in names:
        site.says(name, "refused: AuthError")
        assert "read: text of node" in site.machines.console(name)
        assert f"assumed-role/tradewind-node/{name}" in site.machines.console(name)


def test_ray_stop_reaches_this_machines_ray_alone(site: Site, tmp_path: Path) -> None:
    """A process that looks like a raylet, here and on the machine; only the machine's is ended."""
    (tmp_path / "raylet").symlink_to("/bin/sleep")
    bystander = subprocess.Popen([str(tmp_path / "raylet"), "600"])
    try:
        name = site.launch(
            "tw-1", f"#!/bin/bash\n{tmp_path}/raylet 600 &\necho up\nray stop --force\nwait\necho over\nsleep 600\n"
        )
        site.says(name, "over")
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_machine_of_a_killed_emulator_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    code = f"""
import os, signal, sys, time
from tradewind.emulators.machines import Instance, Machines
from tradewind.emulators.metadata_server import Told
machines = Machines()
text = "#!/bin/bash\\nsetsid sleep 600 &\\necho $$ > {tmp_path}/pid\\nsleep 600\\n"
machines.boot(Instance("i", machines.new_address(), text, lambda asked: Told(), lambda url: {{}}, lambda: None))
while not os.path.exists("{tmp_path}/pid"): time.sleep(0.02)
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    pid = int((tmp_path / "pid").read_text())
    assert Path(f"/proc/{pid}").exists()
    with Machines():
        until(lambda: not Path(f"/proc/{pid}").exists() or not _mark_of(pid))


@pytest.mark.slow
def test_two_hundred_machines_exhaust_nothing(site: Site) -> None:
    before = len(os.listdir("/proc/self/fd"))
    script = "#!/bin/sh\necho up\nexec sleep 600\n"
    names = [site.launch(f"tw-{n}", script) for n in range(200)]
    until(lambda: all("up" in site.machines.console(name) for name in names), 120)
    assert len({machine.private_address for machine in site.cloud.machines()}) == 200
    assert len(os.listdir("/proc/self/fd")) - before < 250  # a socket that listens for each
    site.provider.terminate([f"tw-{n}" for n in range(200)])
    assert site.machines.wait_ended(names, 120) == []
    assert len(os.listdir("/proc/self/fd")) - before < 20


STORE = """#!/bin/bash
python - <<END
import os
from tradewind.jobs.storage import open_store
store = open_store("s3://{bucket}/run-1")
content = os.urandom(20_000_000)  # several parts
store.write("step-1/weights", memoryview(content))
store.put("step-1/mark", b"done")
assert store.read("step-1/weights") == content
assert store.read("step-1/weights", 7, 100) == content[7:107]
assert store.listing() == {{"step-1": None}}, store.listing()
assert store.listing("step-1") == {{"weights": 20_000_000, "mark": 4}}, store.listing("step-1")
store.remove("step-1/weights")
store.remove("step-1")
assert store.listing("step-1") == {{}}, store.listing("step-1")
store.put("last", b"kept")
print("stored by", [name for name in os.environ if "KEY" in name or "TOKEN" in name] or "identity alone")
END
sleep 600
"""


def test_checkpoints_go_to_object_storage_by_the_machines_own_identity(site: Site) -> None:
    pytest.importorskip("pyarrow.fs")
    site.session.client("s3", "us-east-1", endpoint_url=site.cloud.url).create_bucket(Bucket="checkpoints")
    name = site.launch("tw-1", STORE.format(bucket="checkpoints"))
    site.says(name, "stored by identity alone")
    assert site.cloud.storage.buckets["checkpoints"]["run-1/last"].content == b"kept"
    site.cloud.identities.roles["tradewind-node"] = ()  # a role without any right
    denied = site.launch("tw-2", STORE.format(bucket="checkpoints"))
    site.says(denied, "ACCESS_DENIED")


def test_an_emulator_of_its_own_process_takes_its_machines_with_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tradewind.emulators.aws", "--run-machines"]
    emulator = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert emulator.stdout is not None
        url = emulator.stdout.readline().split()[0]
        site = Site(SimpleNamespace(url=url), None)  # type: ignore[arg-type]
        site.launch("tw-1", f"#!/bin/bash\necho $$ > {tmp_path}/pid\nsleep 600\n")
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        pid = int((tmp_path / "pid").read_text())
        assert _mark_of(pid)
    finally:
        emulator.terminate()
        assert emulator.wait(60) == 0
    assert not _mark_of(pid)
