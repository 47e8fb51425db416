"""The autoscaler on real Ray nodes, in one run: plain tasks, a task that is pinned by labels, a STRICT_SPREAD gang,
nodes that never boot, a market that is sold out, and a node that is taken while it works. All is served, and all nodes
go."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fleet_home import home_of, until

from tradewind.client import Fleet, connect
from tradewind.home import FleetHome
from tradewind.model import EndReason
from tradewind.states import JobState, NodeState

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

# Cheapest first: azure (sold out for the whole run), aws (its first two nodes never boot), gcp, aws on demand.
FLEET = """\
name: scaling
offers:
  - {cloud: azure, region: eastus2, instance_type: Standard_NC4as_T4_v3, capacity: spot}
  - {cloud: gcp, zone: us-central1-a, instance_type: n1-standard-4+t4x1, capacity: spot}
  - {cloud: aws, zone: usw2-az1, instance_type: g4dn.xlarge}
limits: {max_nodes: 7}
timing: {tick: 500ms, idle_timeout: 5s, boot_timeout: 3m, min_node_life: 1s}
local:
  launch_delay: 100ms
  cpus_per_node: 1
  script:
    - {at: 0s, do: stockout, market: "azure/*", for: 1h}
    - {at: 0s, do: boot_failure, market: "aws/*", count: 2}
"""
DRIVER = """\
import json, time
from pathlib import Path
import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as In

ray.init(log_to_driver=False)
folder = Path(__file__).parent

@ray.remote(num_cpus=1, num_gpus=1, max_retries=-1)
def where(until=""):
    (folder / f"began-{until}").touch()
    while until and not (folder / until).exists():
        time.sleep(0.1)
    return ray.get_runtime_context().get_node_id()

tasks = [where.remote() for _ in range(3)]
pinned = where.options(label_selector={"tradewind.io/cloud": "gcp", "ray.io/market-type": "spot"}).remote("go-on")
group = placement_group([{"CPU": 1, "GPU": 1}] * 3, strategy="STRICT_SPREAD")
gang = [where.options(scheduling_strategy=In(group, i)).remote() for i in range(3)]
found = {"tasks": ray.get(tasks), "gang": ray.get(gang)}
ray.util.remove_placement_group(group)
(folder / "gang-served").touch()
found["pinned"] = [ray.get(pinned)]
clouds = {node["NodeID"]: node["Labels"].get("tradewind.io/cloud") for node in ray.nodes()}
found["pinned-cloud"] = clouds[found["pinned"][0]]
(folder / "found.json").write_text(json.dumps(found))
"""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[FleetHome]:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    (tmp_path / "driver.py").write_text(DRIVER)
    with home_of(tmp_path, "scaling") as where:
        yield where


def pinned_node(fleet: Fleet, job_id: str) -> str:
    """The only node where the job still holds something, once all but the pinned task is served."""
    nodes = [node for node in fleet.nodes() if node.state is NodeState.READY and job_id in node.jobs]
    return nodes[0].launch_id if len(nodes) == 1 else ""


def test_everything_is_served_and_everything_goes(place: FleetHome) -> None:
    folder = place.root.parent
    fleet = connect(place.root, place.fleet, start=True, config=folder / "fleet.yaml")
    job = fleet.submit([sys.executable, str(folder / "driver.py")], name="mixed", working_dir=folder)

    until(lambda: (folder / "gang-served").exists() and (folder / "began-go-on").exists(), "tasks and gang", place)
    (folder / "began-go-on").unlink()
    (taken,) = fleet.preempt(until(lambda: pinned_node(fleet, job.job_id), "its node", place), notice="5s")
    until(lambda: (folder / "began-go-on").exists(), "the pinned task begins again elsewhere", place)
    (folder / "go-on").touch()
    until(lambda: fleet.job(job.job_id).info.state is JobState.SUCCEEDED, "the job succeeds", place)

    found = json.loads((folder / "found.json").read_text())
    assert len(found["tasks"]) == 3
    assert len(set(found["gang"])) == 3, "a STRICT_SPREAD gang lies on three nodes"
    assert found["pinned-cloud"] == "gcp"

    until(lambda: all(n.state in (NodeState.GONE, NodeState.FAILED) for n in fleet.nodes()), "all nodes go", place)
    events = [line.event for line in fleet.events(limit=10_000)]
    refused = [event for event in events if event["kind"] == "launch_refused"]
    assert {event["error"] for event in refused} == {"Stockout"}
    gone = Counter(event["end"] for event in events if event["kind"] == "node_gone")
    assert gone[EndReason.CRASHED] == 2, "two nodes never booted"
    assert gone[EndReason.PREEMPTED] == 1
    asked = [event for event in events if event["kind"] == "launch_requested"]
    assert len(asked) - len(refused) <= 10, "nothing is bought twice"
    groups = {event["placement_group"] for event in asked} - {""}
    assert groups, "the gang is asked for in a placement group, inside of a sold-out market and elsewhere"

    assert "tasks and actors" in str(fleet.why("node", taken))
    stories = [str(fleet.why("node", node.launch_id)) for node in fleet.nodes() if node.cloud == "aws"]
    assert any("azure/eastus2" in story and "Stockout" in story for story in stories), "\n\n".join(stories)
    report = subprocess.run(
        [
            sys.executable,
            "-m",
            "tradewind.cli",
            "--home",
            str(place.root),
            "--fleet",
            "scaling",
            "down",
            "-y",
            "--json",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert json.loads(report.stdout)["left"] == [], report.stderr
