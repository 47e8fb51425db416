"""Nodes are bought before the demand comes, on real Ray nodes: the log tells of many sittings in which a second task
followed the first within half a minute. So with the first task a node is bought for the second; it says why, and serves
it. A third task, for which the fleet may buy no node, waits in Ray alone, and is counted as demand, too. After that all
nodes go."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fleet_home import home_of, until

from tradewind.client import Fleet, connect
from tradewind.events import AnyEvent, JobStateChanged, JobSubmitted
from tradewind.home import FleetHome
from tradewind.model import JobSpec
from tradewind.states import JobState, NodeState
from tradewind.store import EventLog

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# So rare that nobody waits for the next one with idle nodes: every 300 s, the forecast kept them, and rightly.
SITTINGS, EVERY_S, FIRST_S, SECOND_S, END_S = 70, 1800.0, 0.0, 20.0, 90.0
ASKED = {"CPU": 1.0, "GPU": 1.0}
FLEET = """\
name: ahead
offers:
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
limits: {max_nodes: 2}
timing: {tick: 500ms, idle_timeout: 60s, boot_timeout: 3m, min_node_life: 1s}
forecast: {buy_ahead: true, step: 30s, usual_boot: 30s, spare_timeout: 30s}
local: {launch_delay: 100ms, cpus_per_node: 1}
"""
DRIVER = """\
import json, time
from pathlib import Path
import ray

ray.init(log_to_driver=False)
folder = Path(__file__).parent

def wait_for(name):
    while not (folder / name).exists():
        time.sleep(0.1)

@ray.remote(num_cpus=1, num_gpus=1)
def work(name):
    (folder / f"began-{name}").touch()
    wait_for("end")
    return ray.get_runtime_context().get_node_id()

first = work.remote("first")
wait_for("second")
second = work.remote("second")
wait_for("third")
third = work.remote("third")
found = ray.get([first, second])
ray.get(third)
launches = {node["NodeID"]: node["Labels"]["tradewind.io/launch-id"] for node in ray.nodes() if node["NodeID"] in found}
(folder / "found.json").write_text(json.dumps([launches[node] for node in found]))
"""


def sitting(number: int, start_s: float) -> list[AnyEvent]:
    """Two jobs of one worker, the second shortly after the first."""
    spec = JobSpec(name="past", entrypoint="true", min_workers=1, max_workers=1, worker_resources=ASKED)
    first, second = f"past-{number}a", f"past-{number}b"
    return [
        JobSubmitted(at_s=start_s + FIRST_S, job_id=first, spec=spec),
        JobSubmitted(at_s=start_s + SECOND_S, job_id=second, spec=spec),
        *(JobStateChanged(at_s=start_s + END_S, job_id=job_id, state=JobState.STOPPED) for job_id in (first, second)),
    ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "driver.py").write_text(DRIVER)
    with home_of(tmp_path, "ahead") as where:
        where.make()
        first_s = time.time() - SITTINGS * EVERY_S
        with EventLog.open(where.folder / "events.db") as log:
            log.append(*(event for n in range(SITTINGS) for event in sitting(n, first_s + n * EVERY_S)))
        yield where


def launches(fleet: Fleet) -> list[dict[str, Any]]:
    return [line.event for line in fleet.events(limit=10_000) if line.event["kind"] == "launch_requested"]


def ready_ahead(fleet: Fleet) -> str:
    """A node that was bought ahead and has joined."""
    ahead = {event["launch_id"] for event in launches(fleet) if event["reason"].startswith("bought ahead")}
    ready = [n.launch_id for n in fleet.nodes() if n.launch_id in ahead and n.state is NodeState.READY]
    return ready[0] if ready else ""


def tradewind(place: FleetHome, *words: str) -> str:
    command = [sys.executable, "-m", "tradewind.cli", "--home", str(place.root), "--fleet", place.fleet, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_node_is_there_before_the_task_that_needs_it(place: FleetHome) -> None:
    folder = place.root.parent
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    job = fleet.submit([sys.executable, str(folder / "driver.py")], name="two", working_dir=folder)

    spare = until(lambda: ready_ahead(fleet), "a node is bought before it is asked for", place)
    until(lambda: (folder / "began-first").exists(), "the first task runs", place)
    before = launches(fleet)
    assert not (folder / "began-second").exists()
    (reason,) = {event["reason"] for event in before if event["launch_id"] == spare}
    assert "waiting for it would cost $" in reason
    assert "idling $" in reason

    (folder / "second").touch()
    until(lambda: (folder / "began-second").exists(), "the second task runs", place)
    (folder / "third").touch()
    until(lambda: fleet.forecast().series[0].now == 3, "what waits in Ray alone is counted", place)
    assert not (folder / "began-third").exists()
    said = tradewind(place, "forecast", "--json")
    why = tradewind(place, "why", "node", spare)
    (folder / "end").touch()
    until(lambda: fleet.job(job.job_id).info.state is JobState.SUCCEEDED, "the job succeeds", place)

    served = json.loads((folder / "found.json").read_text())
    assert len(set(served)) == 2
    assert spare in served, "what was bought ahead serves"
    assert set(served) <= {event["launch_id"] for event in before}, "nothing had to be bought for the second task"
    assert "bought ahead" in why
    assert "waiting for it would cost $" in why
    (series,) = json.loads(said)["series"]
    assert series["is_used"], series["use"]
    assert series["use"].startswith("yes: 3 now")

    until(lambda: all(n.state in (NodeState.GONE, NodeState.FAILED) for n in fleet.nodes()), "all nodes go", place)
    assert json.loads(tradewind(place, "down", "-y", "--json"))["left"] == []
