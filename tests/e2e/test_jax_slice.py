"""JaxTrainer on a TPU slice of two hosts (real Ray nodes, computing on CPUs): the slice is bought whole, taken away
while it trains, bought again, and the run goes on from its checkpoint."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_home import home_of, until

from tradewind.client import Job, connect
from tradewind.home import FleetHome
from tradewind.states import JobState, is_alive

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(900)]

FLEET = """\
name: slices
offers: [{cloud: gcp, instance_type: tpu-v4-16}]
limits: {max_nodes: 1}
timing: {tick: 500ms, idle_timeout: 20s, boot_timeout: 4m, min_node_life: 1s}
local: {launch_delay: 100ms, cpus_per_node: 1}
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    with home_of(tmp_path, "slices") as where:
        yield where


def told(job: Job) -> list[dict[str, Any]]:
    """What the program printed of its saved steps."""
    lines = [line for line in job.logs().splitlines() if '{"step"' in line]
    return [json.JSONDecoder().raw_decode(line, line.index('{"step"'))[0] for line in lines]


def test_a_slice_is_taken_and_the_run_goes_on_from_its_checkpoint(place: FleetHome) -> None:
    folder = place.root.parent
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    options = ["--platform", "cpu", "--steps", "60", "--step-s", "0.2", "--storage", str(folder / "runs")]
    job = fleet.submit([sys.executable, "-m", "tradewind.jobs.examples.jax_slice", *options], name="jax")
    until(lambda: any(line["step"] >= 20 for line in told(job)), "20 steps on the first slice", place, 400)
    [first] = [node for node in fleet.nodes() if is_alive(node.state)]
    fleet.preempt(first.launch_id, notice="1s")
    until(lambda: job.status().state is JobState.SUCCEEDED, "the job to end", place, 400)
    last = told(job)[-1]
    assert last["step"] == 60
    assert last["hosts"] == 2
    assert (
        last["resumed_at"] > 0
    )  # the second slice did not begin anew; Ray Train keeps a save a moment after its report
    assert last["resumed_at"] % 10 == 0
    assert last["loss"] < told(job)[0]["loss"]
    assert [node.hosts for node in fleet.nodes()] == [2, 2]
    assert fleet.down().left == ()
