"""A fleet on the emulated AWS from its file to nothing left: real Ray nodes boot by their user-data, a job trains, the
cloud takes its node with notice, the job goes on in another market, and everything is taken down."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fleet_home import until

from tradewind.client import Fleet, connect
from tradewind.errors import ControllerError
from tradewind.home import FleetHome
from tradewind.jobs.sample_ledger import audit
from tradewind.model import Capacity, Role
from tradewind.states import JobState, NodeState

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

FLEET = """\
name: clouded
cloud: aws
offers: [{{instance_type: g4dn.xlarge}}]
limits: {{max_nodes: 2}}
timing: {{tick: 500ms, idle_timeout: 30s, boot_timeout: 4m, min_node_life: 1s}}
storage: {storage}
head: {{instance_type: m7i.large}}
market: {{move_cell_after: 10s}}
boot: {{python: {python}}}
controller: {{listen: "127.0.0.1:0"}}
aws:
  endpoint_url: {url}
  instance_profile: tradewind-node
  head_instance_profile: tradewind-head
  regions:
    - {{name: us-east-1, image: ami-0123456789abcdef0, subnets: {{us-east-1a: subnet-00000000000000001}}}}
{more}"""
WEST = """\
    - {name: us-west-2, image: ami-0123456789abcdef0, subnets: {us-west-2a: subnet-00000000000000001}}
"""
# In a folder that the head does not have: it is packed, fetched by its digest, and unpacked by Ray.
TRAIN = "import runpy\nrunpy.run_module('tradewind.jobs.examples.digits', run_name='__main__')\n"


@dataclass
class Site:
    cloud: Any
    machines: Any
    place: FleetHome

    def up(self, more: str = "") -> Fleet:
        folder = self.place.root.parent
        text = FLEET.format(url=self.cloud.url, python=sys.executable, storage=folder / "runs", more=more)
        (folder / "fleet.yaml").write_text(text)
        return connect(self.place.root, "clouded", start=True, config=folder / "fleet.yaml")

    def consoles(self) -> str:
        return "\n".join(f"--- {name}\n{self.machines.console(name)[-3000:]}" for name in self.machines.names())

    def until(self, holds: Any, what: str, timeout_s: float = 300.0) -> Any:
        try:
            return until(holds, what, self.place, timeout_s)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}\n{self.consoles()}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
    from tradewind.emulators.aws_machines import run_on_aws
    from tradewind.emulators.machines import Machines

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "train.py").write_text(TRAIN)
    place = FleetHome(tmp_path / "home", "clouded")
    with AwsEmulator(tick_s=0.2) as cloud, Machines() as machines:
        run_on_aws(cloud, machines)
        cloud.shop.profiles.add("tradewind-head")
        yield Site(cloud, machines, place)
        with suppress(ControllerError):  # a test that failed has left one; the others have none
            connect(place.root, place.fleet, start=False).down()


def node_of(fleet: Fleet, job_id: str, capacity: Capacity) -> Any:
    ready = [node for node in fleet.nodes() if node.state is NodeState.READY and node.capacity is capacity]
    return next((node for node in ready if job_id in node.jobs), None)


def test_from_a_fleet_file_to_nothing_left(site: Site, tmp_path: Path) -> None:
    fleet = site.up()
    site.until(lambda: fleet.status().cells[0].head == "ready", "the head's agent calls")
    [head] = [node for node in fleet.nodes() if node.role is Role.HEAD]
    assert (head.cell, head.instance_type, head.capacity) == ("aws-us-east-1", "m7i.large", Capacity.ON_DEMAND)

    options = "--steps 100000 --step-s 0.1"
    job = fleet.submit(
        f"python train.py {options}",
        name="digits",
        workers=1,
        resources={"CPU": 1, "GPU": 1},
        working_dir=tmp_path / "work",
    )
    first = site.until(lambda: node_of(fleet, job.job_id, Capacity.SPOT), "it begins on spot")
    site.until(lambda: fleet.job(job.job_id).info.step > 20, "it trains")

    # The cloud takes the node, and has no more like it.
    cloud = site.cloud
    cloud.shop.sold_out.add(("us-east-1a", "g4dn.xlarge", True))
    taken = next(each for each in cloud.machines() if first.launch_id in str(each.tags))
    cloud.preempt(taken, 90.0)
    second = site.until(lambda: node_of(fleet, job.job_id, Capacity.ON_DEMAND), "it goes on, on demand")
    assert second.launch_id != first.launch_id
    moved = fleet.job(job.job_id).info.step
    site.until(lambda: fleet.job(job.job_id).info.step > moved + 10, "it trains there")
    assert "notice" in str(fleet.why("node", first.launch_id))

    fleet.job(job.job_id).stop()
    site.until(lambda: fleet.job(job.job_id).info.state is JobState.STOPPED, "it stops")
    assert fleet.bill_json()["labels_uusd"]["platform"] > 0
    assert fleet.down().left == ()
    assert cloud.machines() == []
    assert site.machines.wait_ended(site.machines.names(), 60.0) == []
    assert all(secret.deleted_at_s for secret in cloud.vault.secrets.values())


def test_a_job_whose_region_runs_dry_goes_on_in_the_other_from_its_checkpoint(site: Site, tmp_path: Path) -> None:
    fleet = site.up(WEST)
    for number in (0, 1):
        site.until(lambda number=number: fleet.status().cells[number].head == "ready", "both heads call")
    options = f"--steps 100000 --step-s 0.1 --checkpoint-every 5 --ledger {tmp_path / 'ledger'}"
    job = fleet.submit(
        f"python train.py {options}",
        name="digits",
        workers=1,
        resources={"CPU": 1, "GPU": 1},
        working_dir=tmp_path / "work",
    )
    site.until(lambda: fleet.job(job.job_id).info.step > 20, "it trains")
    first = fleet.job(job.job_id).info.cell
    other = next(cell.cell for cell in fleet.status().cells if cell.cell != first)
    region = first.removeprefix("aws-")
    for spot in (True, False):
        site.cloud.shop.sold_out.add((f"{region}a", "g4dn.xlarge", spot))
    for machine in site.cloud.machines():
        if machine.is_spot:
            site.cloud.preempt(machine, 20.0)
    site.until(lambda: fleet.job(job.job_id).info.cell == other, "it is placed elsewhere")
    left_at = fleet.job(job.job_id).info.step
    site.until(lambda: fleet.job(job.job_id).info.step > left_at + 10, "it trains there")
    told = str(fleet.why("job", job.job_id))
    assert f"{first} has run dry" in told
    assert f"placed in {other}" in told
    fleet.job(job.job_id).stop()
    site.until(lambda: fleet.job(job.job_id).info.state is JobState.STOPPED, "it stops")
    assert audit(tmp_path / "ledger").skipped == 0
    steps = [line.event for line in fleet.events(limit=10_000) if line.event["kind"] == "step_committed"]
    assert min(event["first_step"] for event in steps if event["attempt"] > 1) > 5, "it did not begin anew"
    assert fleet.down().left == ()
    assert site.cloud.machines() == []
