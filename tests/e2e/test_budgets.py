"""Budgets are kept on real Ray nodes at high (simulated) prices: a job is warned of, saves, stops below its limit and
goes on with more; one that was sent past us gets nothing once its tenant's budget is used; dollars an hour are
capped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_home import holder, home_of, until

from tradewind.client import Fleet, Job, connect
from tradewind.errors import JobNotFound
from tradewind.home import FleetHome
from tradewind.jobs.sample_ledger import audit
from tradewind.states import JobState, is_over
from tradewind.units import usd_to_uusd

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1500)]

# One node is $55.04 an hour: 200 s of it are $3.06. Two would pass the cap.
FLEET = """\
name: frugal
offers:
  - {cloud: aws, zone: use2-az1, instance_type: p5.48xlarge, capacity: [on-demand]}
limits: {max_nodes: 3, max_usd_per_hour: 100}
budgets: {tenants: {vision: 0.60}, reserve: 9s, horizon: 18s}
timing: {tick: 500ms, idle_timeout: 5s, boot_timeout: 3m, min_node_life: 1s}
local: {launch_delay: 100ms, cpus_per_node: 1}
"""
BUDGET_USD = 3.06
NODE = {"CPU": 1, "GPU": 8}
STEPS = 1400
OPTIONS = ["--steps", str(STEPS), "--step-s", "0.2", "--settle-s", "1", "--checkpoint-every", "10000"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "foreign.py").write_text(holder(gpus=8))
    with home_of(tmp_path, "frugal") as where:
        yield where


def test_budgets_are_kept(place: FleetHome) -> None:
    fleet = connect(place.root, place.fleet, start=True, config=place.root.parent / "fleet.yaml")
    first = _is_warned_saves_and_stops(fleet, place)
    _nobody_passes_by(fleet, place)
    _goes_on_with_more(fleet, first, place)
    assert fleet.down().left == ()


def _is_warned_saves_and_stops(fleet: Fleet, place: FleetHome) -> Job:
    folder = place.root.parent
    command = [sys.executable, "-m", "tradewind.jobs.examples.digits", *OPTIONS]
    command += ["--storage", str(folder / "runs"), "--ledger", str(folder / "l")]
    job = fleet.submit(command, name="digits", workers="1..2", resources=NODE, budget=BUDGET_USD)
    until(lambda: job.status().step > 0, "it trains", place)
    until(lambda: is_over(job.status().state), "its budget ends it", place, 600.0)
    assert job.status().state is JobState.STOPPED
    assert "is used: raise it with" in job.status().reason
    story = _story(fleet, job.job_id)
    for told in (
        "50% is used",
        "80% is used",
        "95% is used",
        "stopped, with a checkpoint",
        "would pass the limit of $100.00 per hour",
    ):
        assert told in story
    receipt = job.receipt()
    assert 0.9 * usd_to_uusd(BUDGET_USD) < receipt.total_uusd <= usd_to_uusd(BUDGET_USD)
    assert job.status().step == receipt.steps < STEPS
    assert dict(fleet.why("job", job.job_id).facts)["last save"] == f"step {receipt.steps}", "it saved where it stopped"
    assert len(fleet.bill().nodes) == 1, "a second one would have passed the cap"
    return job


def _nobody_passes_by(fleet: Fleet, place: FleetHome) -> None:
    """The first job of the tenant gets a node and is ended at the limit; the second one gets none."""
    until(lambda: not fleet.bill().rate_uusd_per_h, "the nodes of the first job are gone", place)
    first = _send_past_us(fleet, place, "past-us-1")
    until(lambda: is_over(_state(fleet, first)), "the budget of its tenant ends it", place, 300.0)
    nodes = len(fleet.bill().nodes)
    second = _send_past_us(fleet, place, "past-us-2")
    until(
        lambda: "the budget of tenant vision" in _story(fleet, second),
        "it is held back",
        place,
    )
    assert _state(fleet, second) is not JobState.SUCCEEDED
    fleet.job(second).stop()
    until(lambda: is_over(_state(fleet, second)), "it ends", place)
    assert len(fleet.bill().nodes) == nodes == 2
    spent = next(line.cost_uusd for line in fleet.cost("tenant").lines if line.name == "vision")
    assert 0 < spent <= usd_to_uusd(0.60)


def _story(fleet: Fleet, job_id: str) -> str:
    """Without line breaks."""
    return " ".join(str(fleet.why("job", job_id)).split())


def _state(fleet: Fleet, job_id: str) -> JobState:
    try:
        return fleet.job(job_id).info.state
    except JobNotFound:  # it has not been seen yet
        return JobState.QUEUED


def _send_past_us(fleet: Fleet, place: FleetHome, job_id: str) -> str:
    """Plain `ray job submit`, as anybody would."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "job", "submit", "--no-wait", "--submission-id", job_id]
    command += ["--metadata-json", '{"tenant": "vision"}', "--", sys.executable, str(place.root.parent / "foreign.py")]
    env = {**os.environ, **fleet.ray_env()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    until(lambda: job_id in [job.job_id for job in fleet.jobs()], f"{job_id} is seen", place)
    return job_id


def _goes_on_with_more(fleet: Fleet, first: Job, place: FleetHome) -> None:
    stopped_at = first.status().step
    more = first.resume(budget="+20")
    until(lambda: is_over(more.status().state), "it is done", place, 600.0)
    assert more.status().state is JobState.SUCCEEDED
    samples = audit(place.root.parent / "l")
    assert (samples.last_step, samples.skipped, samples.repeated, samples.recomputed_steps) == (STEPS, 0, 0, 0)
    parts = first.receipt(), more.receipt()
    assert [part.steps for part in parts] == [stopped_at, STEPS - stopped_at]
    bill = fleet.bill()
    assert sum(line.cost_uusd for line in bill.jobs) + bill.overhead_uusd == bill.total_uusd
    ours = sum(line.cost_uusd for line in bill.jobs if line.tenant != "vision")
    # Asked a moment apart, while a node was still billed: the last micro-dollar of its day is shared out anew.
    assert abs(ours - sum(part.total_uusd for part in parts)) <= len(bill.nodes)
