"""The emulated AWS runs dry in mid-training: the job goes on in the emulated Google Cloud's cell, from its checkpoint,
at its place in the data. Real Ray nodes in both; the controller runs in the test's process."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tradewind.cells.cloud_cells import open_cloud_cells
from tradewind.cells.folders import DIGEST_SCHEME, pack_folder
from tradewind.cells.route import Router
from tradewind.config_models import FleetConfig
from tradewind.config_yaml import parse
from tradewind.controller import Controller
from tradewind.jobs.sample_ledger import audit
from tradewind.journal import Journal
from tradewind.model import JobSpec
from tradewind.service import settings_of
from tradewind.states import JobState
from tradewind.store import EventLog

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

AWS, GCP = "aws-us-east-1", "gcp-us-central1"
FLEET = """\
name: across
clouds: [aws, gcp]
offers:
  - {{cloud: aws, instance_type: g4dn.xlarge, capacity: spot}}
  - {{cloud: gcp, instance_type: g2-standard-4, capacity: on-demand}}
limits: {{max_nodes: 2}}
timing: {{tick: 500ms, idle_timeout: 2m, boot_timeout: 5m, min_node_life: 1s}}
market: {{move_cell_after: 5s}}
storage: {storage}
boot: {{python: {python}}}
controller: {{listen: "127.0.0.1:0"}}
aws:
  endpoint_url: {aws}
  instance_profile: tradewind-node
  head_instance_profile: tradewind-head
  regions:
    - {{name: us-east-1, image: ami-0123456789abcdef0, subnets: {{us-east-1a: subnet-00000000000000001}}}}
gcp:
  endpoint_url: {gcp}
  project: {project}
  service_account: nodes@emulated
  head_service_account: heads@emulated
  regions: [us-central1]
"""
TRAIN = "import runpy\nrunpy.run_module('tradewind.jobs.examples.digits', run_name='__main__')\n"


@dataclass
class TwoClouds:
    aws: Any
    gcp: Any
    machines: Any
    controller: Controller

    def until(self, holds: Callable[[], Any], what: str, timeout_s: float = 500.0) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not holds():
            if time.monotonic() > deadline_s:
                consoles = "\n".join(f"--- {n}\n{self.machines.console(n)[-2500:]}" for n in self.machines.names())
                pytest.fail(f"not within {timeout_s:.0f} s: {what}\n{self.controller.status()}\n{consoles}")
            time.sleep(0.3)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[TwoClouds]:
    import boto3

    from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
    from tradewind.emulators.aws_machines import run_on_aws
    from tradewind.emulators.gcp import GcpEmulator
    from tradewind.emulators.gcp_machines import run_on_gcp
    from tradewind.emulators.machines import Machines

    with ExitStack() as stack:
        aws = stack.enter_context(AwsEmulator(tick_s=0.2))
        gcp = GcpEmulator().start(tick_s=0.2)
        stack.callback(gcp.close)
        machines = stack.enter_context(Machines())
        run_on_aws(aws, machines)
        run_on_gcp(gcp, machines)
        places = {"aws": aws.url, "gcp": gcp.url, "project": gcp.project}
        text = FLEET.format(**places, python=sys.executable, storage=tmp_path / "runs")
        config = parse(text, "fleet.yaml", FleetConfig)
        session = boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY)
        credentials = {"aws": session, "gcp": gcp.credentials()}
        journal = Journal.load(stack.enter_context(EventLog.open(tmp_path / "events.db")))
        found = open_cloud_cells(config, tmp_path, journal, settings_of(config, ""), credentials)
        opened = stack.enter_context(found)
        controller = Controller(
            "across",
            journal,
            opened.cells,
            tmp_path / "logs",
            config.timing.tick_s,
            Router(config.market.move_cell_after_s),
            simulated=False,
            pack=lambda folder: f"{DIGEST_SCHEME}{pack_folder(folder, tmp_path / 'folders')}",
            end_timeout_s=120.0,
            clean_up=opened.forget,
        )
        controller.start()
        yield TwoClouds(aws, gcp, machines, controller)
        controller.shutdown()


def test_a_job_goes_on_in_another_cloud_when_its_own_runs_dry(world: TwoClouds, tmp_path: Path) -> None:
    controller = world.controller
    world.until(lambda: all(cell.head == "ready" for cell in controller.status().cells), "both heads call")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    spec = JobSpec(
        name="digits",
        entrypoint=f"python train.py --steps 100000 --step-s 0.1 --checkpoint-every 5 --ledger {tmp_path / 'ledger'}",
        working_dir=str(tmp_path / "work"),
        min_workers=1,
        max_workers=1,
        worker_resources={"CPU": 1, "GPU": 1},
    )
    job_id = controller.submit(spec).job_id
    world.until(lambda: controller.job(job_id).step > 20, "it trains")
    assert controller.job(job_id).cell == AWS

    world.aws.shop.sold_out.add(("us-east-1a", "g4dn.xlarge", True))
    for machine in world.aws.machines():
        if machine.is_spot:
            world.aws.preempt(machine, 20.0)
    world.until(lambda: controller.job(job_id).cell == GCP, "it is placed in the other cloud")
    left_at = controller.job(job_id).step
    world.until(lambda: controller.job(job_id).step > left_at + 10, "it trains there")
    told = str(controller.why("job", job_id))
    assert f"{AWS} has run dry" in told
    assert f"placed in {GCP}" in told

    controller.stop(job_id)
    world.until(lambda: controller.job(job_id).state is JobState.STOPPED, "it stops")
    assert audit(tmp_path / "ledger").skipped == 0
    events = [line.event for line in controller.events(limit=10_000)]
    later = [e["first_step"] for e in events if e["kind"] == "step_committed" and e["attempt"] > 1]
    assert min(later) > 5, "it did not begin anew"
    assert controller.shutdown().left == ()
    assert world.aws.machines() == []
    assert world.gcp.compute.vms == {}
