"""A job rests in a dirty hour and goes on in a clean one, on real Ray nodes: it loses nothing by it, and nothing is
paid for it while it rests."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fleet_home import home_of, until

from tradewind.api import NodeInfo
from tradewind.client import Fleet, Job, connect
from tradewind.cost.labels import Label
from tradewind.cost.render import render_receipt
from tradewind.home import FleetHome
from tradewind.jobs.sample_ledger import audit
from tradewind.model import Phase
from tradewind.states import JobState, NodeState, is_over
from tradewind.units import format_duration

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

FLEET = """\
name: clean
offers:
  - {{cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}}
limits: {{max_nodes: 3}}
timing: {{tick: 500ms, idle_timeout: 5s, boot_timeout: 3m, min_node_life: 1s}}
forecast: {{usual_boot: 5s}}
carbon: {{grid: {grid}, zone: CAISO, restart: 1m, margin: 10m}}
local: {{launch_delay: 100ms, cpus_per_node: 1}}
"""
STEPS = 700
OPTIONS = ["--steps", str(STEPS), "--step-s", "0.2", "--settle-s", "1"]
HOUR_S = 3600
DIRTY, USUAL, CLEAN = 900, 250, 50  # work and a restart count as five minutes each, so twice as dirty is not enough
STILL_S = 10.0  # it is watched for so long while it rests
# Of the clock hour in which the job begins. In the last minutes of an hour nobody rests for its sake, and a job of two
# minutes would be done before the next one, which is dirty, too, was looked at.
LEAST_S = 15 * 60


def write_grid(path: Path, now: int) -> None:
    """Three days of hours, all alike but the one that is now. The next hour repeats it, as long as nobody tells."""
    hour = int(time.time() // HOUR_S)
    figures = dict.fromkeys(range(hour - 72, hour), USUAL) | {hour: now}
    rows = [f"CAISO,{datetime.fromtimestamp(each * HOUR_S, UTC).isoformat()},{g}" for each, g in figures.items()]
    new = path.with_suffix(".new")
    new.write_text("\n".join(["zone,ts,g_per_kwh", *rows, ""]))
    new.replace(path)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET.format(grid=tmp_path / "grid.csv"))
    with home_of(tmp_path, "clean") as where:
        yield where


def test_a_job_rests_in_a_dirty_hour_and_loses_nothing(place: FleetHome) -> None:
    folder = place.root.parent
    until(lambda: HOUR_S - time.time() % HOUR_S > LEAST_S, "the hour is young enough", place, LEAST_S + 60.0)
    write_grid(folder / "grid.csv", DIRTY)
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    command = [sys.executable, "-m", "tradewind.jobs.examples.digits", *OPTIONS]
    command += ["--storage", str(folder / "runs"), "--ledger", str(folder / "l")]
    job = fleet.submit(command, name="digits", workers="1..2", resources={"CPU": 1, "GPU": 1}, deadline=8 * HOUR_S)

    until(lambda: job.status().step > 0, "it begins at once", place)
    until(lambda: job.status().phase is Phase.RESTING, "it rests", place)
    until(lambda: not alive(fleet), "its nodes go", place)
    _nothing_is_bought(fleet, job)
    facts = dict(fleet.why("job", job.job_id).facts)
    assert "better hours begin at" in facts["rests"]
    assert facts["last save"] == f"step {job.status().step}"

    write_grid(folder / "grid.csv", CLEAN)
    until(lambda: job.status().phase is Phase.TRAINING, "it goes on when the hour is clean", place)
    until(lambda: is_over(job.status().state), "it is done", place)
    assert job.status().state is JobState.SUCCEEDED
    samples = audit(folder / "l")
    assert (samples.last_step, samples.skipped, samples.repeated, samples.recomputed_steps) == (STEPS, 0, 0, 0)
    _receipt_has_the_rest(fleet, job)
    assert fleet.down().left == ()


def alive(fleet: Fleet) -> list[NodeInfo]:
    return [node for node in fleet.nodes() if node.state not in (NodeState.GONE, NodeState.FAILED)]


def _nothing_is_bought(fleet: Fleet, job: Job) -> None:
    """For a while, at least: no node, no step, nothing more on its receipt. (The bill may still grow: a cloud has a
    least time that it bills.)"""
    before, nodes = job.receipt(), len(fleet.bill().nodes)
    assert 0 < before.steps < STEPS
    end_s = time.monotonic() + STILL_S
    while time.monotonic() < end_s:
        assert not alive(fleet)
        time.sleep(0.5)
    after, bill = job.receipt(), fleet.bill()
    # While a node is still billed for its least time, the last micro-dollar of its day is shared out anew.
    assert abs(after.total_uusd - before.total_uusd) <= len(bill.nodes)
    assert after.steps == before.steps
    assert (bill.rate_uusd_per_h, len(bill.nodes)) == (0, nodes)


def _receipt_has_the_rest(fleet: Fleet, job: Job) -> None:
    receipt, bill = job.receipt(), fleet.bill()
    assert receipt.rested_s >= STILL_S
    assert f"rested for {format_duration(receipt.rested_s)}" in render_receipt(receipt)
    assert (receipt.steps, receipt.recomputed_steps) == (STEPS, 0)
    assert sum(receipt.labels_uusd.values()) == receipt.total_uusd
    assert receipt.labels_uusd[Label.RESTARTING] == 0, "it was planned"
    assert receipt.labels_uusd[Label.RESIZING] > 0, "coming back has its price"
    mine = sum(line.cost_uusd for line in bill.jobs)
    assert sum(node.cost_uusd for node in bill.nodes) == bill.total_uusd == mine + bill.overhead_uusd
    # Asked a moment apart, while a node was still billed: the last micro-dollar of its day is shared out anew.
    assert abs(mine - receipt.total_uusd) <= len(bill.nodes)
