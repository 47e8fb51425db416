"""A cell on each emulated cloud, by the provider's own launches: machines read their secret by their identity, join,
and the cloud's notice becomes a drain of the node in Ray."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from node_boxes import AGENT_TOKEN, RAY_TOKEN

from tradewind.autoscaler.providers.base import LaunchSpec, Provider
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.autoscaler.ray_snapshot import RayNode
from tradewind.cells.door import Lodging, create_door
from tradewind.cells.line import Line
from tradewind.cells.remote import RemoteRay
from tradewind.certificates import Authority
from tradewind.errors import TradewindError
from tradewind.model import LABEL_LAUNCH_ID, Capacity, Market, Offer, Role
from tradewind.node.boot_plan import user_data
from tradewind.node.plans import CellBoot, head_plan, secret_name, worker_plan
from tradewind.server import Tls, serve

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

CELL = "cell-1"
NOTICE_S = 120.0
AWS_HEAD = Offer(Market("aws", "us-east-1", "us-east-1a", "m7i.large", Capacity.ON_DEMAND), 2, 8, price_uusd_per_h=9)
AWS_SPOT = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1, 1, 400_000)
_IDENTITY = "/subscriptions/s/resourceGroups/g/providers/Microsoft.ManagedIdentity/userAssignedIdentities/tradewind-"


@dataclass
class Cloud:
    """What differs between the clouds."""

    provider: Callable[[Callable[[LaunchSpec], str]], Provider]
    store: SecretStore
    head: Offer
    worker: Offer
    machines: Any
    preempt: Callable[[str], None]  # by launch id
    texts: Callable[[], Sequence[str]]  # the user-data that the cloud was given
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.worker.market.cloud


@contextmanager
def aws() -> Iterator[Cloud]:
    import boto3

    from tradewind.autoscaler.providers.aws import AwsProvider
    from tradewind.autoscaler.providers.aws_clients import SdkClients
    from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
    from tradewind.autoscaler.providers.secrets_aws import AwsSecrets
    from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
    from tradewind.emulators.aws_machines import run_on_aws
    from tradewind.emulators.machines import Machines

    with AwsEmulator(tick_s=0.1) as cloud, Machines() as machines:
        run_on_aws(cloud, machines)
        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        region = AwsRegion("us-east-1", "ami-0123456789abcdef0", {"us-east-1a": f"subnet-{1:017x}"})
        profiles = {"instance_profile": "tradewind-node", "head_instance_profile": "tradewind-head"}
        settings = AwsSettings("f", (region,), endpoint_url=cloud.url, **profiles)

        def preempt(launch_id: str) -> None:
            found = next(each for each in cloud.machines() if launch_id in each.tags.values())
            cloud.preempt(found, NOTICE_S)

        yield Cloud(
            lambda text: AwsProvider(settings, text, clients=SdkClients(cloud.url, session)),
            AwsSecrets("us-east-1", cloud.url, session=session),
            AWS_HEAD,
            AWS_SPOT,
            machines,
            preempt,
            lambda: [each.user_data for each in cloud.machines()],
        )


@contextmanager
def gcp(worker: Offer | None = None) -> Iterator[Cloud]:
    from worlds.gcp_world import SPOT

    from tradewind.autoscaler.providers.gcp_cloud import GcpProvider
    from tradewind.autoscaler.providers.gcp_settings import GcpSettings
    from tradewind.autoscaler.providers.secrets_gcp import GcpSecrets
    from tradewind.emulators.gcp import GcpEmulator
    from tradewind.emulators.gcp_machines import run_on_gcp
    from tradewind.emulators.machines import Machines

    bought = worker or SPOT
    head = replace(SPOT, market=replace(SPOT.market, capacity=Capacity.ON_DEMAND))
    accounts = {"service_account": "nodes@emulated", "head_service_account": "heads@emulated"}
    cloud = GcpEmulator().start(tick_s=0.1)
    try:
        with Machines() as machines:
            run_on_gcp(cloud, machines)
            regions = ("us-central1",)
            settings = GcpSettings("f", cloud.project, regions, endpoint_url=cloud.url, **accounts)

            def preempt(launch_id: str) -> None:
                with cloud.time.lock:
                    if worker is None:
                        vm = next(vm for vm in cloud.compute.vms.values() if launch_id in vm.name)
                        cloud.compute.preempt(vm, NOTICE_S)
                    else:
                        cloud.tpu.preempt(next(iter(cloud.tpu.nodes.values())), NOTICE_S)

            yield Cloud(
                lambda text: GcpProvider(settings, text, offers=[head, bought], credentials=cloud.credentials()),
                GcpSecrets(cloud.project, cloud.url, credentials=cloud.credentials()),
                head,
                bought,
                machines,
                preempt,
                lambda: [vm.metadata("startup-script") for vm in cloud.compute.vms.values()],
                {"secrets": cloud.url},
            )
    finally:
        cloud.close()


@contextmanager
def tpu() -> Iterator[Cloud]:
    from worlds.tpu_world import SPOT

    with gcp(SPOT) as found:
        yield found


@contextmanager
def azure() -> Iterator[Cloud]:
    from worlds.azure_world import OFFERS, ON_DEMAND, SPOT, settings_at

    from tradewind.autoscaler.providers.azure import AzureProvider
    from tradewind.autoscaler.providers.azure_settings import Names
    from tradewind.autoscaler.providers.secrets_azure import AzureSecrets
    from tradewind.emulators.azure import AzureEmulator
    from tradewind.emulators.azure_machines import run_on_azure
    from tradewind.emulators.machines import Machines

    cloud = AzureEmulator().start(tick_s=0.1)
    try:
        with Machines() as machines:
            run_on_azure(cloud, machines)
            plain = settings_at(cloud.subscription, {"eastus": cloud.subnet("eastus")}, cloud.url, cloud.ca_file, "f")
            settings = replace(plain, identity=f"{_IDENTITY}node", head_identity=f"{_IDENTITY}head")

            def preempt(launch_id: str) -> None:
                with cloud.time.lock:
                    vm = next(vm for vm in cloud.compute.vms.values() if vm.name == Names("f").vm(launch_id))
                    cloud.compute.evict(vm, NOTICE_S)

            yield Cloud(
                lambda text: AzureProvider(settings, text, offers=OFFERS, credential=cloud.credential()),
                AzureSecrets(cloud.url, credential=cloud.credential(), ca_file=cloud.ca_file),
                ON_DEMAND,
                SPOT,
                machines,
                preempt,
                lambda: [vm.user_data for vm in cloud.compute.vms.values()],
                {"vault": cloud.url, "ca_file": cloud.ca_file},
            )
    finally:
        cloud.close()


@dataclass
class Site:
    """A controller's end: its door, its secrets, its provider."""

    cloud: Cloud
    line: Line
    provider: Provider

    def launch(self, launch_id: str, role: Role) -> None:
        offer = self.cloud.head if role is Role.HEAD else self.cloud.worker
        words = self.line.present
        labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
        address = words.gcs_address if words else ""
        self.provider.launch(LaunchSpec(launch_id, "f", CELL, offer, address, labels, role=role))

    def nodes(self, launch_id: str) -> list[RayNode]:
        return [node for node in RemoteRay(self.line).snapshot().nodes if node.launch_id == launch_id and node.is_alive]

    def consoles(self, names: Sequence[str] = ()) -> str:
        return "\n\n".join(self.cloud.machines.console(name) for name in names or self.cloud.machines.names())

    def until(self, what: Callable[[], object], names: Sequence[str] = (), timeout_s: float = 300.0) -> None:
        end_s = time.monotonic() + timeout_s
        while not _holds(what):
            assert time.monotonic() < end_s, f"not in time; the consoles:\n{self.consoles(names)}"
            time.sleep(0.2)


def _holds(what: Callable[[], object]) -> bool:
    try:
        return bool(what())
    except TradewindError:
        return False


@contextmanager
def open_site(cloud: Cloud, folder: Path) -> Iterator[Site]:
    door_ca, authority = Authority.make("door", time.time()), Authority.make(CELL, time.time())
    door = door_ca.identity(["127.0.0.1"], time.time())
    tls = Tls(folder / "door.crt", folder / "door.key")
    tls.certificate.write_text(door.cert_pem)
    tls.key.write_text(door.key_pem)
    secret = {"ray_token": RAY_TOKEN, "agent_token": AGENT_TOKEN, "ca_key_pem": authority.key_pem}
    cloud.store.put(secret_name("f", CELL, "head"), json.dumps(secret))
    cloud.store.put(secret_name("f", CELL, "worker"), json.dumps({"ray_token": RAY_TOKEN}))
    line = Line(CELL)
    with serve(create_door({CELL: Lodging(line, AGENT_TOKEN)}), tls=tls) as server:
        region = cloud.worker.market.region
        cell = CellBoot("f", CELL, cloud.name, region, authority.cert_pem, server.url, door_ca.cert_pem)
        cell = replace(cell, endpoints=cloud.endpoints)

        def text(spec: LaunchSpec) -> str:
            if spec.role is Role.HEAD:
                return user_data(head_plan(cell, spec))
            assert line.present is not None
            return user_data(worker_plan(cell, spec, line.present.join_url))

        yield Site(cloud, line, cloud.provider(text))


@pytest.mark.parametrize("kind", [aws, gcp, tpu, azure], ids=lambda kind: kind.__name__)
def test_a_cell_boots_joins_and_drains_by_the_clouds_notice(kind: Any, tmp_path: Path) -> None:
    with ExitStack() as stack:
        cloud: Cloud = stack.enter_context(kind())
        site = stack.enter_context(open_site(cloud, tmp_path))
        site.launch("f-head", Role.HEAD)
        site.until(lambda: site.line.present)
        heads = cloud.machines.names()
        site.launch("f-1", Role.WORKER)
        hosts = cloud.worker.hosts
        site.until(lambda: len(site.nodes("f-1")) == hosts)
        names = [name for name in cloud.machines.names() if name not in heads]
        nodes = site.nodes("f-1")
        accelerator = "TPU" if kind is tpu else "GPU"
        assert {node.total[accelerator] for node in nodes} == {cloud.worker.accelerator_count}
        if kind is tpu:
            assert {node.labels["ray.io/tpu-worker-id"] for node in nodes} == {str(each) for each in range(hosts)}
            assert {node.labels["ray.io/tpu-slice-name"] for node in nodes} == {"f-1"}
        assert not any(RAY_TOKEN in text or AGENT_TOKEN in text for text in cloud.texts())

        # An idle node that drains leaves Ray at once; then its machine ends itself, long before the cloud takes it.
        cloud.preempt("f-1")
        site.until(lambda: not set(names) & set(cloud.machines.names()), names, NOTICE_S - 10)
        for name in names:
            console = cloud.machines.console(name)
            assert "this node drains: preempt at" in console, console
            # Azure waits for no deadline once it is told that the machine is ready.
            told = "acknowledged: preempt" if kind is azure else "TRADEWIND NODE ENDS: its node has left Ray"
            assert told in console, console
        site.provider.terminate(["f-1", "f-head"])
        assert cloud.machines.wait_ended(heads, 120.0) == []
        site.until(lambda: not site.provider.wait_terminated(["f-1", "f-head"], 1.0))
