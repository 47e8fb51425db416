"""A cell on the emulated AWS, by the provider's own launches: machines read their secret by their identity, join, and a
spot notice becomes a drain of the node in Ray with the cloud's deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

import pytest
from node_boxes import AGENT_TOKEN, RAY_TOKEN

from tradewind.autoscaler.providers.base import CloudState, LaunchSpec
from tradewind.autoscaler.ray_snapshot import RayStatus
from tradewind.cells.door import Lodging, create_door
from tradewind.cells.line import Line
from tradewind.cells.remote import RemoteRay
from tradewind.certificates import Authority
from tradewind.errors import TradewindError
from tradewind.model import LABEL_LAUNCH_ID, Capacity, Market, Offer
from tradewind.node.boot_plan import user_data
from tradewind.node.plans import CellBoot, head_plan, secret_name, worker_plan
from tradewind.server import Tls, serve

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

CELL = "aws-us-east-1"
HEAD = Offer(Market("aws", "us-east-1", "us-east-1a", "m7i.large", Capacity.ON_DEMAND), 2, 8, price_uusd_per_h=100_000)
SPOT = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1, 1, 400_000)


def until(what: Callable[[], object], console: Callable[[], str], timeout_s: float = 240.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not _holds(what):
        assert time.monotonic() < end_s, f"not in time; the console:\n{console()}"
        time.sleep(0.2)


def _holds(what: Callable[[], object]) -> bool:
    try:
        return bool(what())
    except TradewindError:
        return False


class Site:
    """The emulated cloud, a controller's door, and one provider for each role: the roles differ in their rights."""

    def __init__(self, folder, cloud, machines, door_url: str, door_ca: str, line: Line) -> None:
        import boto3

        from tradewind.autoscaler.providers.aws import AwsProvider
        from tradewind.autoscaler.providers.aws_clients import SdkClients
        from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
        from tradewind.autoscaler.providers.secrets_aws import AwsSecrets
        from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY

        self.cloud, self.machines, self.line = cloud, machines, line
        authority = Authority.make(CELL, time.time())
        self.cell = CellBoot("f", CELL, "aws", "us-east-1", authority.cert_pem, door_url, door_ca)
        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        store = AwsSecrets("us-east-1", cloud.url, session=session)
        head = {"ray_token": RAY_TOKEN, "agent_token": AGENT_TOKEN, "ca_key_pem": authority.key_pem}
        store.put(secret_name("f", CELL, "head"), json.dumps(head))
        store.put(secret_name("f", CELL, "worker"), json.dumps({"ray_token": RAY_TOKEN}))
        region = AwsRegion("us-east-1", "ami-0123456789abcdef0", {"us-east-1a": f"subnet-{1:017x}"})
        clients = SdkClients(cloud.url, session)

        def provider(profile: str, text: Callable[[LaunchSpec], str]) -> AwsProvider:
            settings = AwsSettings("f", (region,), instance_profile=profile, endpoint_url=cloud.url)
            return AwsProvider(settings, text, clients=clients)

        self.heads = provider("tradewind-head", lambda spec: user_data(head_plan(self.cell, spec)))
        self.workers = provider("tradewind-node", lambda spec: user_data(worker_plan(self.cell, spec, self.join_url)))

    @property
    def join_url(self) -> str:
        assert self.line.present is not None
        return self.line.present.join_url

    def launch(self, provider, launch_id: str, offer: Offer, head_address: str = "") -> str:
        labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
        return provider.launch(LaunchSpec(launch_id, "f", CELL, offer, head_address, labels)).instance_id

    def status(self, launch_id: str) -> RayStatus | None:
        nodes = RemoteRay(self.line).snapshot().nodes
        return next((node.status for node in nodes if node.launch_id == launch_id and node.is_alive), None)


@pytest.fixture
def site(tmp_path) -> Iterator[Site]:
    from tradewind.emulators.aws import AwsEmulator
    from tradewind.emulators.aws_machines import run_on_aws
    from tradewind.emulators.machines import Machines

    door_ca = Authority.make("door", time.time())
    door = door_ca.identity(["127.0.0.1"], time.time())
    tls = Tls(tmp_path / "door.crt", tmp_path / "door.key")
    tls.certificate.write_text(door.cert_pem)
    tls.key.write_text(door.key_pem)
    line = Line(CELL)
    with (
        serve(create_door({CELL: Lodging(line, AGENT_TOKEN)}), tls=tls) as server,
        AwsEmulator(tick_s=0.1) as cloud,
        Machines() as machines,
    ):
        run_on_aws(cloud, machines)
        yield Site(tmp_path, cloud, machines, server.url, door_ca.cert_pem, line)


def test_a_cell_boots_works_and_drains_by_the_clouds_notice(site: Site) -> None:
    head = site.launch(site.heads, "f-head", HEAD)
    until(lambda: site.line.present, lambda: site.machines.console(head))
    worker = site.launch(site.workers, "f-1", SPOT, site.line.present.gcs_address)

    def console() -> str:
        return site.machines.console(worker)

    until(lambda: site.status("f-1") is RayStatus.IDLE, console)
    [node] = [node for node in RemoteRay(site.line).snapshot().nodes if node.launch_id == "f-1"]
    assert node.total["GPU"] == 1
    assert node.labels["tradewind.io/instance-type"] == "g5.xlarge"
    machine = next(each for each in site.cloud.machines() if each.id == worker)
    assert RAY_TOKEN not in machine.user_data
    told_s = time.time()
    site.cloud.preempt(machine, 120.0)
    # An idle node that drains leaves Ray at once; then its machine ends itself, long before the cloud takes it.
    until(lambda: worker not in site.machines.names(), console, 100.0)
    assert time.time() < _deadline_s(site, worker)
    deadline = time.strftime("%H:%M:%S", time.gmtime(_deadline_s(site, worker)))
    assert f"this node drains: preempt at {deadline} UTC" in console()
    assert "TRADEWIND NODE ENDS: its node has left Ray" in console()
    assert 100 < _deadline_s(site, worker) - told_s < 140
    site.heads.terminate(["f-head"])
    assert site.machines.wait_ended([head], 60.0) == []
    until(lambda: {each.state for each in site.workers.list_nodes()} == {CloudState.GONE}, console)


def _deadline_s(site: Site, worker: str) -> float:
    machine = next(each for each in site.cloud.machines() if each.id == worker)
    assert machine.taken_at_s is not None
    return machine.taken_at_s
