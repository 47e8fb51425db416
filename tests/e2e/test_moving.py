"""Work goes back to spot on real Ray nodes: bought on demand while spot is dear, moved when it has been cheap again for
a while, and the training job loses nothing by it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_home import home_of, until

from tradewind.client import connect
from tradewind.home import FleetHome
from tradewind.jobs.sample_ledger import audit
from tradewind.model import Capacity
from tradewind.states import JobState, NodeState

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# A GPU is 0.23 $/h on spot and 0.53 $/h on demand: over the horizon a move is worth it.
FLEET = """\
name: moving
offers:
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
limits: {max_nodes: 3}
timing: {tick: 500ms, idle_timeout: 5s, boot_timeout: 3m, min_node_life: 1s}
market: {steady: 4s, horizon: 12h, lost_per_preemption: 30s}
forecast: {usual_boot: 10s}
local:
  launch_delay: 100ms
  cpus_per_node: 1
  script:
    - {at: 0s, do: price, market: "aws/*/spot", price_factor: 5, for: 90s}
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    with home_of(tmp_path, "moving") as where:
        yield where


def test_a_job_goes_back_to_spot_and_loses_nothing(place: FleetHome) -> None:
    folder = place.root.parent
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    options = ["--steps", "100000", "--step-s", "0.1", "--storage", str(folder / "runs"), "--ledger", str(folder / "l")]
    command = [sys.executable, "-m", "tradewind.jobs.examples.digits", *options]
    job = fleet.submit(command, name="digits", workers=1, resources={"CPU": 1, "GPU": 1})

    def node_of(capacity: Capacity) -> Any:
        ready = [n for n in fleet.nodes() if n.state is NodeState.READY and n.capacity is capacity]
        return next((node for node in ready if job.job_id in node.jobs), None)

    first = until(lambda: node_of(Capacity.ON_DEMAND), "it begins on demand", place)
    second = until(lambda: node_of(Capacity.SPOT), "it moves to spot", place)
    until(
        lambda: all(
            n.launch_id == second.launch_id or n.state is NodeState.GONE or n.state is NodeState.FAILED
            for n in fleet.nodes()
        ),
        "the dear node goes",
        place,
    )
    moved = fleet.job(job.job_id).info.step
    until(lambda: fleet.job(job.job_id).info.step > moved + 10, "it goes on there", place)
    assert first.launch_id in str(fleet.why("node", second.launch_id)), "the story names the node that it replaced"
    receipt = fleet.job(job.job_id).receipt()
    assert receipt.recomputed_steps == 0
    fleet.job(job.job_id).stop()
    until(lambda: fleet.job(job.job_id).info.state is JobState.STOPPED, "it stops", place)
    samples = audit(folder / "l")
    assert (samples.skipped, samples.repeated) == (0, 0)
    assert fleet.down().left == ()
