"""Machines of the emulated Google Cloud and Azure that run: scripts, identities, consoles, ends, slices."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from worlds.azure_world import OFFERS as AZURE_OFFERS
from worlds.azure_world import SPOT as AZURE_SPOT
from worlds.azure_world import settings_at
from worlds.gcp_world import SPOT as GCP_SPOT
from worlds.tpu_world import SPOT as TPU_SPOT

from tradewind.autoscaler.providers.azure import AzureProvider
from tradewind.autoscaler.providers.azure_settings import Names
from tradewind.autoscaler.providers.base import CloudState, LaunchSpec, Provider
from tradewind.autoscaler.providers.gcp_cloud import GcpProvider
from tradewind.autoscaler.providers.gcp_settings import GcpSettings
from tradewind.autoscaler.providers.secrets_azure import AzureSecrets
from tradewind.autoscaler.providers.secrets_gcp import GcpSecrets
from tradewind.emulators.azure import AzureEmulator
from tradewind.emulators.azure_machines import run_on_azure
from tradewind.emulators.gcp import GcpEmulator
from tradewind.emulators.gcp_machines import run_on_gcp
from tradewind.emulators.machines import Machines
from tradewind.model import EndReason, Offer
from tradewind.node.boot_plan import user_data
from tradewind.node.plans import CellBoot, worker_plan

READ = """#!/bin/bash
echo address $({address})
python - <<END
from tradewind.autoscaler.providers.secrets import open_secrets
store = open_secrets("{cloud}", endpoint_url="{url}")
print("read:", store.get("tradewind/f/c/node"))
try:
    store.get("tradewind/f/c/head")
except Exception as error:
    print("refused:", type(error).__name__)
END
sleep 600
"""
STORE = """#!/bin/bash
python - <<END
import os
from tradewind.jobs.storage import open_store
store = open_store("{uri}")
content = os.urandom(20_000_000)
store.write("step-1/weights", memoryview(content))
store.put("step-1/mark", b"done")
assert store.read("step-1/weights") == content
assert store.read("step-1/weights", 7, 100) == content[7:107]
assert store.listing() == {{"step-1": None}}, store.listing()
assert store.listing("step-1") == {{"weights": 20_000_000, "mark": 4}}, store.listing("step-1")
store.remove("step-1")
assert store.listing("step-1") == {{}}, store.listing("step-1")
store.put("last", b"kept")
print("stored by identity")
END
sleep 600
"""
STOPS = "#!/bin/bash\necho 'TRADEWIND BOOT FAILED: no luck'\nshutdown -h now\nsleep 600\n"
GCP_ADDRESS = (
    "curl -s -H Metadata-Flavor:Google http://$GCE_METADATA_HOST/computeMetadata/v1/instance/network-interfaces/0/ip"
)
_PLACE = "metadata/instance/network/interface/0/ipv4/ipAddress/0/privateIpAddress"
AZURE_ADDRESS = (
    "curl -s -H Metadata:true "
    f"'http://'${{AZURE_POD_IDENTITY_AUTHORITY_HOST#http://}}'/{_PLACE}?api-version=2021-02-01&format=text'"
)
_IDENTITY = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/tradewind-node"
)


def until(holds: Callable[[], object], seen: Callable[[], object] = lambda: "", timeout_s: float = 120.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline_s, f"not in time: {seen()}"
        time.sleep(0.05)


@pytest.fixture
def machines() -> Iterator[Machines]:
    with Machines(grace_s=0.2) as made:
        yield made


def launch(provider: Provider, name: str, offer: Offer) -> str:
    return provider.launch(LaunchSpec(name, "f", "c", offer, "10.0.0.4:6379")).instance_id


def state(provider: Provider, name: str) -> CloudState:
    return next(node.state for node in provider.list_nodes() if node.launch_id == name)


def says(machines: Machines, name: str, text: str) -> None:
    until(lambda: text in machines.console(name), lambda: machines.console(name))


class Script:
    text = STOPS
    made: Callable[[LaunchSpec], str] | None = None

    def __call__(self, spec: LaunchSpec) -> str:
        return self.made(spec) if self.made else self.text


def booting(cloud: str, endpoints: dict[str, str]) -> Callable[[LaunchSpec], str]:
    """The user-data of a node. Its secret is not what it should be, so that the boot ends there."""
    cell = CellBoot("f", "c", cloud, "r", "no certificate", endpoints=endpoints)
    return lambda spec: user_data(worker_plan(cell, spec, "https://127.0.0.1:9"))


FAILED = "TRADEWIND BOOT FAILED: secret tradewind/f/c/node: is not JSON with ray_token"


@pytest.fixture
def gcp() -> Iterator[GcpEmulator]:
    emulator = GcpEmulator().start(tick_s=0.05)
    yield emulator
    emulator.close()


def google(emulator: GcpEmulator, script: Script) -> GcpProvider:
    settings = GcpSettings(
        "f", emulator.project, ("us-central1",), endpoint_url=emulator.url, service_account="nodes@emulated"
    )
    return GcpProvider(settings, script, offers=[GCP_SPOT, TPU_SPOT], credentials=emulator.credentials())


@pytest.mark.slow
def test_google(gcp: GcpEmulator, machines: Machines) -> None:
    run_on_gcp(gcp, machines, boots_in_s=0.1, ends_in_s=0.1)
    script = Script()
    provider = google(gcp, script)
    vault = GcpSecrets(gcp.project, gcp.url, credentials=gcp.credentials())
    for kind in ("node", "head"):
        vault.put(f"tradewind/f/c/{kind}", f"text of {kind}")

    stopping = launch(provider, "tw-1", GCP_SPOT)
    says(machines, stopping, "no luck")
    until(lambda: state(provider, "tw-1") is not CloudState.RUNNING)
    assert machines.wait_ended([stopping], 60) == []
    assert "no luck" in provider.console("tw-1")

    script.text = READ.format(cloud="gcp", url=gcp.url, address=GCP_ADDRESS)
    reading = launch(provider, "tw-2", GCP_SPOT)
    says(machines, reading, "refused: AuthError")
    assert "read: text of node" in provider.console("tw-2")
    assert "address 127." in provider.console("tw-2")
    provider.terminate(["tw-2"])
    assert machines.wait_ended([reading], 60) == []

    gcp.storage.buckets["checkpoints"] = {}
    script.text = STORE.format(uri="gs://checkpoints/run-1")
    says(machines, launch(provider, "tw-3", GCP_SPOT), "stored by identity")
    assert gcp.storage.buckets["checkpoints"]["run-1/last"][0] == b"kept"

    script.made = booting("gcp", {"secrets": gcp.url})
    failing = launch(provider, "tw-4", GCP_SPOT)
    says(machines, failing, FAILED)
    assert machines.wait_ended([failing], 60) == []
    assert "[emulator]" not in machines.console(failing)  # it called `shutdown`


@pytest.mark.slow
def test_a_slice_is_one_machine_for_each_host(gcp: GcpEmulator, machines: Machines) -> None:
    run_on_gcp(gcp, machines, boots_in_s=0.1, ends_in_s=0.1)
    script = Script()
    ask = "curl -s -H Metadata-Flavor:Google http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes"
    script.text = f"#!/bin/bash\necho host $({ask}/agent-worker-number)\nsleep 600\n"
    provider = google(gcp, script)
    launch(provider, "tw-1", TPU_SPOT)
    until(lambda: len(machines.names()) == 4, machines.names)
    for number, name in enumerate(sorted(machines.names())):
        says(machines, name, f"host {number}")
    names = machines.names()
    provider.terminate(["tw-1"])
    assert machines.wait_ended(names, 60) == []


@pytest.mark.slow
def test_azure(machines: Machines) -> None:
    cloud = AzureEmulator().start(tick_s=0.05)
    try:
        run_on_azure(cloud, machines, boots_in_s=0.1, ends_in_s=0.1)
        script = Script()
        subnets = {"eastus": cloud.subnet("eastus")}
        settings = settings_at(cloud.subscription, subnets, cloud.url, cloud.ca_file, "f")
        provider = AzureProvider(
            replace(settings, identity=_IDENTITY), script, offers=AZURE_OFFERS, credential=cloud.credential()
        )
        vault = AzureSecrets(cloud.url, credential=cloud.credential(), ca_file=cloud.ca_file)
        for kind in ("node", "head"):
            vault.put(f"tradewind/f/c/{kind}", f"text of {kind}")

        launch(provider, "tw-1", AZURE_SPOT)
        stopping = Names("f").vm("tw-1")
        says(machines, stopping, "no luck")
        until(lambda: state(provider, "tw-1") is not CloudState.RUNNING)
        assert "no luck" in provider.console("tw-1")

        script.text = READ.format(cloud="azure", url=cloud.url, address=AZURE_ADDRESS)
        launch(provider, "tw-2", AZURE_SPOT)
        reading = Names("f").vm("tw-2")
        says(machines, reading, "refused: AuthError")
        assert "read: text of node" in provider.console("tw-2")
        assert "address 127." in provider.console("tw-2")
        script.text = STORE.format(uri="abfs://checkpoints@account.dfs.core.windows.net/run-1")
        launch(provider, "tw-3", AZURE_SPOT)  # storage itself is not emulated: the client gets as far as its token
        storing = Names("f").vm("tw-3")
        until(
            lambda: (storing, "https://storage.azure.com") in cloud.metadata.asked_for,
            lambda: machines.console(storing),
        )
        script.made = booting("azure", {"vault": cloud.url})
        launch(provider, "tw-4", AZURE_SPOT)
        failing = Names("f").vm("tw-4")
        says(machines, failing, FAILED)
        assert machines.wait_ended([failing], 60) == []
        assert "[emulator]" not in machines.console(failing)  # it called `shutdown`
        cloud.compute.evict(next(vm for vm in cloud.compute.vms.values() if vm.name == reading), 0.5)
        assert machines.wait_ended([reading], 60) == []
        until(lambda: state(provider, "tw-2") is CloudState.GONE)
        assert next(node.end for node in provider.list_nodes() if node.launch_id == "tw-2") is EndReason.PREEMPTED
    finally:
        cloud.close()
