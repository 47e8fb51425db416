"""ray_state.py against a real Ray of the pinned version: what GCS says is what the snapshot shows."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tradewind.autoscaler.ray_snapshot import DrainReason, RayReport, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.ray_state import RayState
from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.errors import RayError
from tradewind.model import LABEL_MARKET_TYPE, RAY_NAMESPACE, driver_job_id

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.ray

# A driver that sets the scene, says so, and ends when its input is closed.
DRIVER = """
import sys, time, ray
ray.init(namespace="{namespace}", log_to_driver=False, logging_level="ERROR")
@ray.remote
def task(seconds): time.sleep(seconds)
@ray.remote
class Actor:
    def ready(self): return True
{scene}
print("ready", flush=True)
sys.stdin.readline()
"""


@contextmanager
def driver(cell: Any, scene: str, namespace: str = "somebody") -> Iterator[None]:
    source = DRIVER.format(scene=scene, namespace=namespace)
    process = subprocess.Popen(
        [sys.executable, "-c", source], env=cell.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line == "ready\n", f"the driver said {line!r}"
        yield
    finally:
        process.stdin.close()
        process.wait(timeout=30)


def await_snapshot(ray: RayState, holds: Callable[[RaySnapshot], bool], what: str) -> RaySnapshot:
    deadline_s = time.monotonic() + 30
    while True:
        snapshot = ray.snapshot()
        if holds(snapshot):
            return snapshot
        if time.monotonic() > deadline_s:
            pytest.fail(f"not within 30 s: {what}; last: {snapshot}")
        time.sleep(0.2)


@pytest.fixture(scope="module")
def ray_state(cell: Any) -> Iterator[RayState]:
    state = RayState(cell.head.gcs_address)
    yield state
    state.close()


@pytest.fixture(scope="module")
def node(cell: Any, ray_state: RayState) -> Iterator[Any]:
    """One node with 4 CPUs and 2 GPUs, for the tests that only look."""
    added = cell.add_node(cpus=4, gpus=2, labels={LABEL_MARKET_TYPE: "spot"})
    yield added
    cell.remove_node(added)


def test_nodes_show_launch_id_labels_totals_and_idleness(node: Any, ray_state: RayState) -> None:
    snapshot = await_snapshot(
        ray_state, lambda s: any(n.launch_id == node.launch_id and n.idle_s > 0 for n in s.nodes), "an idle node"
    )
    [mine] = [n for n in snapshot.nodes if n.launch_id == node.launch_id]
    assert mine.status is RayStatus.IDLE
    assert (mine.total["CPU"], mine.total["GPU"]) == (4.0, 2.0)
    assert mine.labels[LABEL_MARKET_TYPE] == "spot"
    assert not any(name.startswith("node:") for name in mine.total)
    assert [n.launch_id for n in snapshot.nodes if n.is_alive and not n.launch_id] == [""]  # the head, no node of ours


def test_pending_tasks_actors_gangs_and_constraints(cell: Any, node: Any, ray_state: RayState) -> None:
    ray_state.snapshot()  # tells drivers that requests go to GCS
    scene = """
from ray.autoscaler.sdk import request_resources
pinned = [task.options(num_cpus=3, label_selector={"ray.io/market-type": "on-demand"}).remote(1) for _ in range(3)]
either = task.options(num_cpus=2, label_selector={"ray.io/market-type": "!in(spot,reserved)"}).remote(1)
waiting = Actor.options(num_cpus=1, num_gpus=9).remote()
bundles = [{"CPU": 2, "GPU": 2}] * 3
groups = [ray.util.placement_group(bundles, strategy=s) for s in ("PACK", "SPREAD", "STRICT_PACK")]
groups.append(ray.util.placement_group(
    bundles, strategy="STRICT_SPREAD", bundle_label_selector=[{"ray.io/market-type": "spot"}] * 3))
request_resources(bundles=[{"CPU": 7}, {"CPU": 7}])
"""
    with driver(cell, scene):
        snapshot = await_snapshot(
            ray_state, lambda s: len(s.gangs) == 4 and len(s.pending) == 3 and bool(s.constraints), "all that waits"
        )
    on_demand = LabelRule(LABEL_MARKET_TYPE, ("on-demand",))
    neither = LabelRule(LABEL_MARKET_TYPE, ("reserved", "spot"), negated=True)
    assert dict(snapshot.pending) == {
        Shape.of({"CPU": 3}, selectors=[(on_demand,)]): 3,
        Shape.of({"CPU": 2}, selectors=[(neither,)]): 1,
        Shape.of({"CPU": 1, "GPU": 9}): 1,
    }
    assert {gang.strategy for gang in snapshot.gangs} == set(Strategy)
    assert all(len(gang.bundles) == 3 for gang in snapshot.gangs)
    [strict] = [gang for gang in snapshot.gangs if gang.strategy is Strategy.STRICT_SPREAD]
    assert strict.bundles[0] == Shape.of({"CPU": 2, "GPU": 2}, {LABEL_MARKET_TYPE: "spot"})
    [job] = [job for job in snapshot.jobs if job.namespace == "somebody" and not job.is_dead]
    assert {gang.job_id for gang in snapshot.gangs} == {job.job_id} == {driver_job_id(job.ray_job_id, job.head_node_id)}
    assert snapshot.pending_actors[job.job_id] == ((Shape.of({"CPU": 1, "GPU": 9}), 1),)
    assert snapshot.constraints == ((Shape.of({"CPU": 7}), 2),)


def test_constraints_end_when_they_are_taken_back(cell: Any, ray_state: RayState) -> None:
    with driver(cell, "from ray.autoscaler.sdk import request_resources; request_resources(bundles=[])"):
        await_snapshot(ray_state, lambda s: not s.constraints, "no constraints any more")


def test_holdings_of_actors_bundles_and_tasks_by_job(cell: Any, node: Any, ray_state: RayState) -> None:
    first = """
group = ray.util.placement_group([{"CPU": 1, "GPU": 1}]); assert group.wait(60)
actor = Actor.options(num_cpus=1, num_gpus=0.5).remote(); ray.get(actor.ready.remote())
"""
    second = "running = task.options(num_cpus=2).remote(60)"
    with driver(cell, first, "first"), driver(cell, second, "second"):
        snapshot = await_snapshot(ray_state, lambda s: len(s.holdings) == 2, "two jobs that hold")
        names = {job.namespace: job.job_id for job in snapshot.jobs if not job.is_dead}
        [mine] = [n for n in snapshot.nodes if n.launch_id == node.launch_id]
        assert mine.status is RayStatus.RUNNING
        assert snapshot.holdings == {
            (names["first"], mine.ray_node_id): {"CPU": 2.0, "GPU": 1.5},
            (names["second"], mine.ray_node_id): {"CPU": 2.0},
        }
    await_snapshot(ray_state, lambda s: not s.holdings, "nothing is held after the drivers ended")


def test_actors_that_hold_nothing_are_seen_where_they_live(cell: Any, node: Any, ray_state: RayState) -> None:
    """Ray's default for actors: a CPU to be placed, nothing once they run."""
    plain = (
        'there = Actor.options(label_selector={"ray.io/market-type": "spot"}).remote(); ray.get(there.ready.remote())'
    )
    holding = """
here = Actor.options(num_gpus=1).remote(); ray.get(here.ready.remote())
"""
    with driver(cell, plain, "plain"), driver(cell, holding, "holding"), driver(cell, plain, RAY_NAMESPACE):
        snapshot = await_snapshot(
            ray_state, lambda s: bool(s.guests) and bool(s.holdings), "an actor without resources"
        )
        names = {job.namespace: job.job_id for job in snapshot.jobs if not job.is_dead}
        [mine] = [n for n in snapshot.nodes if n.launch_id == node.launch_id]
        assert mine.status is RayStatus.RUNNING
        assert snapshot.guests == {mine.ray_node_id: frozenset({names["plain"]})}
        assert set(snapshot.holdings) == {(names["holding"], mine.ray_node_id)}
    await_snapshot(ray_state, lambda s: not s.guests, "nobody is left after the drivers ended")


def test_tasks_of_the_only_job_are_held_by_it(cell: Any, node: Any, ray_state: RayState) -> None:
    with driver(cell, "running = task.options(num_cpus=3).remote(60)"):
        snapshot = await_snapshot(
            ray_state, lambda s: any(held.get("CPU") == 3.0 for held in s.holdings.values()), "3 CPUs in use"
        )
    [(job_id, _)] = snapshot.holdings
    assert job_id.startswith("ray-")


def test_internal_drivers_are_told_apart(cell: Any, ray_state: RayState) -> None:
    with driver(cell, "", namespace="tradewind"):
        snapshot = await_snapshot(
            ray_state, lambda s: any(j.namespace == "tradewind" and not j.is_dead for j in s.jobs), "our driver"
        )
    assert all(job.is_internal for job in snapshot.jobs if job.namespace == "tradewind" and not job.is_dead)


def test_a_submission_shows_its_id_metadata_and_end(cell: Any, ray_state: RayState, tmp_path: Path) -> None:
    source = f"""
from ray.job_submission import JobSubmissionClient
client = JobSubmissionClient({cell.head.dashboard_url!r})
client.submit_job(entrypoint="{sys.executable} -c 'import ray; ray.init(); print(1)'",
                  submission_id="sent-1", metadata={{"tenant": "vision"}})
"""
    done = cell.run(source)
    assert done.returncode == 0, done.stderr
    snapshot = await_snapshot(
        ray_state, lambda s: any(j.job_id == "sent-1" and j.status == "SUCCEEDED" for j in s.jobs), "its end"
    )
    found = [job for job in snapshot.jobs if job.job_id == "sent-1"]
    assert found[0].metadata["tenant"] == "vision"
    assert not any(job.is_internal for job in found)


def test_a_busy_node_refuses_an_idle_drain_and_takes_one_for_preemption(cell: Any, ray_state: RayState) -> None:
    added = cell.add_node(cpus=1, resources={"mine": 1})
    scene = "group = ray.util.placement_group([{'mine': 1}]); assert group.wait(60)"  # busy without a process
    try:
        with driver(cell, scene):
            snapshot = await_snapshot(
                ray_state, lambda s: any(n.launch_id == added.launch_id for n in s.nodes), "the node"
            )
            [ray_id] = [n.ray_node_id for n in snapshot.nodes if n.launch_id == added.launch_id]
            assert ray_state.drain(ray_id, DrainReason.IDLE, "idle") == (
                False,
                "The node to be idle terminated is no longer idle.",
            )
            accepted, _ = ray_state.drain(ray_id, DrainReason.PREEMPTION, "the cloud takes it", time.time() + 60)
            assert accepted
            draining = (ray_id, RayStatus.DRAINING)
            await_snapshot(
                ray_state, lambda s: draining in [(n.ray_node_id, n.status) for n in s.nodes], "the drain is shown"
            )
        # Without work it ends by itself.
        dead = (ray_id, RayStatus.DEAD)
        await_snapshot(ray_state, lambda s: dead in [(n.ray_node_id, n.status) for n in s.nodes], "its end")
    finally:
        cell.remove_node(added)


def test_a_wrong_node_id_is_refused_before_it_reaches_the_head(cell: Any, ray_state: RayState) -> None:
    for wrong in ("", "zz", "ab" * 27, "AB" * 28, "t-3"):
        with pytest.raises(RayError, match="not a Ray node id"):
            ray_state.drain(wrong, DrainReason.IDLE, "x")
    assert ray_state.drain("ab" * 28, DrainReason.IDLE, "x") == (False, "Ray has no living node of this id")
    assert ray_state.snapshot().nodes  # the head lives


def test_ray_status_shows_what_was_reported(cell: Any, ray_state: RayState) -> None:
    version = ray_state.snapshot().version
    before = RayState(cell.head.gcs_address)  # of a controller before this one, which told more often
    for _ in range(3):
        before.report(RayReport(pending=(("g2-standard-4", "tw-0", "booting"),), version=version))
    before.close()
    ray_state = RayState(cell.head.gcs_address)
    pending = (("g2-standard-4", "tw-1", "booting"),)
    ray_state.report(RayReport(pending=pending, failed=(("p4d", "sold out", time.time()),), version=version))
    # `ray status`, minus the start of another interpreter
    done = cell.run(
        "from ray.autoscaler.v2.sdk import get_cluster_status as status; import ray\n"
        f"found = status({cell.head.gcs_address!r})\n"
        "print([n.instance_id for n in found.pending_nodes], [f.details for f in found.failed_nodes])"
    )
    ray_state.close()
    assert "tw-1" in done.stdout, done.stderr


def test_a_head_that_is_not_there_is_a_ray_error() -> None:
    gone = RayState("127.0.0.2:1", timeout_s=1.0)
    with pytest.raises(RayError, match="does not answer"):
        gone.snapshot()
    with pytest.raises(RayError, match="does not answer"):
        gone.report(RayReport())
    gone.close()
