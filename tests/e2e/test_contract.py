"""A contract is kept on real Ray nodes: spot runs dry half-way, and the job is done on demand before its deadline."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from fleet_home import home_of, until

from tradewind.client import connect
from tradewind.errors import NotFound
from tradewind.home import FleetHome
from tradewind.model import Capacity
from tradewind.states import JobState, is_over

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1200)]

FLEET = """\
name: promised
offers:
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.2xlarge, capacity: [on-demand]}
limits: {max_nodes: 3}
timing: {tick: 500ms, idle_timeout: 5s, boot_timeout: 3m, min_node_life: 1s}
forecast: {usual_boot: 5s}
local: {launch_delay: 100ms, cpus_per_node: 1, stock: 1}  # what is taken has gone to somebody else for a while
"""
STEPS, STEP_S = 150, 0.2
WORK_S = 40  # as it is stated: somewhat more than the steps take. Unsaid, it would start on demand
DEADLINE_S = 260  # the work, two starts, and some slack; more where the machine is slow
QUIET_S = 8.0  # what a controller and a head take to start on a machine that does nothing else
SLOWEST = 3.0


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    with home_of(tmp_path, "promised") as where:
        yield where


def test_spot_runs_dry_and_the_deadline_is_kept(place: FleetHome) -> None:
    folder, began_s = place.root.parent, time.monotonic()
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    options = ["--steps", str(STEPS), "--step-s", str(STEP_S), "--storage", str(folder / "runs")]
    command = [sys.executable, "-m", "tradewind.jobs.examples.digits", *options]
    slow = min(max(1.0, (time.monotonic() - began_s) / QUIET_S), SLOWEST)
    deadline_at_s = time.time() + slow * DEADLINE_S
    words = {"workers": 1, "resources": {"CPU": 1, "GPU": 1}, "deadline": slow * DEADLINE_S, "work": WORK_S}
    job = fleet.submit(command, name="digits", **words)  # type: ignore[arg-type]

    until(lambda: job.status().step > 20, "it trains on spot", place, 600.0)
    assert next(node.capacity for node in fleet.nodes()) is Capacity.SPOT
    standing = until(lambda: (found := job.status().contract) and found.chance is not None and found, "figures", place)
    assert 0.0 <= standing.chance <= 1.0
    assert standing.finish_at_s > time.time()

    with suppress(NotFound):  # on a very busy machine it has seen that it was late, and has left spot already
        fleet.preempt("*/spot")
    until(lambda: is_over(job.status().state), "it is done", place, 900.0)
    info = job.info
    assert info.state is JobState.SUCCEEDED
    assert info.ended_at_s is not None
    assert info.ended_at_s <= deadline_at_s
    assert info.contract is not None
    assert info.contract.kept
    had = [node for node in fleet.nodes() if node.cost_uusd]
    assert {node.capacity for node in had} == {Capacity.SPOT, Capacity.ON_DEMAND}
    story = str(fleet.why("job", job.job_id))
    assert "by its contract" in story
    assert "on demand x 1" in story
    assert fleet.down().left == ()
