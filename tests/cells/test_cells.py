"""A fleet of two cells in clouds: heads that are nodes, jobs that are placed, lost heads, cells that run dry."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_world import GPU, TRAINING, FleetWorld
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.ray_snapshot import RayJob
from tradewind.autoscaler.view import HeadSettings
from tradewind.events import ClockJumped, JobPlaced, JobStateChanged, LaunchRequested, MoveRequested, TerminateRequested
from tradewind.model import Capacity, EndReason, Role
from tradewind.states import JobState, NodeState

AWS, GCP = "aws-us-east-1", "gcp-us-central1"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[FleetWorld]:
    made = FleetWorld(tmp_path)
    yield made
    made.controller._closing.set()
    made.journal.log.close()


# --- heads ----------------------------------------------------------------------------------------------------------


def test_each_cell_buys_its_head_on_demand_and_knows_it_by_its_role(fleet: FleetWorld) -> None:
    fleet.settle()
    launches = [event for event in fleet.events if isinstance(event, LaunchRequested)]
    assert [(event.cell, event.role) for event in launches] == [(AWS, Role.HEAD), (GCP, Role.HEAD)]
    assert {event.offer.market.capacity for event in launches} == {Capacity.ON_DEMAND}
    assert {spec.role for place in fleet.places.values() for spec in place.cloud.launch_calls} == {Role.HEAD}
    heads = fleet.alive(Role.HEAD)
    assert {fleet.journal.fleet.nodes[name].state for name in heads} == {NodeState.READY}
    status = fleet.controller.status()
    assert [(cell.cell, cell.head, cell.nodes, cell.jobs) for cell in status.cells] == [
        (AWS, "ready", 0, 0),
        (GCP, "ready", 0, 0),
    ]
    assert {(node.cell, node.role) for node in status.nodes} == {(AWS, Role.HEAD), (GCP, Role.HEAD)}


def test_an_idle_head_stays_and_is_paid_for_by_the_platform(fleet: FleetWorld) -> None:
    fleet.settle()
    before = fleet.alive(Role.HEAD)
    for _ in range(10):
        fleet.later(100)
    assert fleet.alive(Role.HEAD) == before
    bill = fleet.controller.bill()
    assert bill["labels_uusd"]["platform"] == bill["total_uusd"] > 0


def test_workers_join_the_head_that_spoke(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    assert fleet.run(job_id) == AWS
    workers = [spec for spec in fleet.places[AWS].cloud.launch_calls if spec.role is Role.WORKER]
    assert {spec.head_address for spec in workers} == {"10.0.0.1:6379"}
    assert fleet.places[GCP].workers == []


def test_a_head_that_never_calls_is_replaced(fleet: FleetWorld) -> None:
    place = fleet.places[AWS]
    place.silent = True
    fleet.tick(5)
    [first] = place.heads
    fleet.later(320)
    assert first not in place.heads
    ends = {event.launch_id: event.reason for event in fleet.events if isinstance(event, TerminateRequested)}
    assert "did not call within" in ends[first]
    place.silent = False
    fleet.later(400)  # the only type that a head may be is not trusted for a while
    fleet.settle()


def test_a_cell_without_jobs_needs_no_head_where_that_is_asked_for(tmp_path: Path) -> None:
    fleet = FleetWorld(tmp_path, head=HeadSettings(keep=False, idle_timeout_s=60.0))
    fleet.tick(5)
    assert fleet.alive(Role.HEAD) == []
    job_id = fleet.controller.submit(TRAINING).job_id
    assert fleet.run(job_id) == AWS
    assert len(fleet.alive(Role.HEAD)) == 1, "only where the job is"
    fleet.places[AWS].jobs.move(job_id, "SUCCEEDED")
    fleet.places[AWS].ray.finish()
    fleet.later(100)
    fleet.later(100)
    fleet.later(30)
    assert fleet.alive(Role.HEAD) == fleet.alive() == []
    fleet.journal.log.close()


def test_a_controller_that_starts_again_keeps_heads_and_jobs(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    before = sorted([*fleet.alive(), *fleet.alive(Role.HEAD)])
    fleet.journal.log.close()
    fleet.open()
    fleet.tick(60)
    assert sorted([*fleet.alive(), *fleet.alive(Role.HEAD)]) == before
    assert fleet.journal.fleet.jobs[job_id].state is JobState.RUNNING
    assert [event.cell for event in fleet.events if isinstance(event, JobPlaced)] == [AWS]


# --- placing and moving ---------------------------------------------------------------------------------------------


def test_a_job_goes_to_the_cheapest_cell_and_the_reason_names_the_others(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.tick()
    [placed] = [event for event in fleet.events if isinstance(event, JobPlaced)]
    assert (placed.job_id, placed.cell) == (job_id, AWS)
    assert GCP in placed.reason
    told = fleet.controller.why("job", job_id)
    assert any(line.what == f"placed in {AWS}" for line in told.lines)
    assert fleet.controller.job(job_id).cell == AWS


def test_a_job_whose_cell_runs_dry_moves_by_its_checkpoint_and_may_come_back(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    assert fleet.run(job_id) == AWS
    aws, gcp = fleet.places[AWS], fleet.places[GCP]
    aws.jobs.obeys = gcp.jobs.obeys = True
    aws.jobs.print(job_id, "in aws\n")
    _take_all(fleet, AWS)
    fleet.tick(3)
    fleet.later(70)
    moves = [event for event in fleet.events if isinstance(event, MoveRequested)]
    assert len(moves) == 1
    assert f"{AWS} has run dry" in moves[0].reason
    assert aws.jobs.rows[job_id].status == "STOPPED"
    assert fleet.run(job_id) == GCP
    assert list(gcp.jobs.rows) == [f"{job_id}.tw2"]
    row = gcp.jobs.rows[f"{job_id}.tw2"]
    assert f"TRADEWIND_JOB_ID={job_id}" in row.entrypoint
    assert "s3://bucket/run" in row.entrypoint
    gcp.jobs.print(f"{job_id}.tw2", "in gcp\n")
    assert fleet.controller.logs(job_id).text == "in aws\nin gcp\n"
    aws.cloud.sold_out.clear()
    fleet.later(700)  # what was refused in aws is forgotten
    _take_all(fleet, GCP)
    fleet.tick(3)
    fleet.later(70)
    assert fleet.run(job_id) == AWS
    assert list(aws.jobs.rows) == [job_id, f"{job_id}.tw3"]
    aws.jobs.move(f"{job_id}.tw3", "SUCCEEDED")
    fleet.tick(2)
    assert fleet.controller.job(job_id).state is JobState.SUCCEEDED
    assert not any(job.foreign for job in fleet.journal.fleet.jobs.values())


def _take_all(fleet: FleetWorld, cell: str) -> None:
    """The cloud takes the workers, and has no more."""
    place = fleet.places[cell]
    place.cloud.sold_out |= {key for key in place.cloud.stock if key.endswith("spot")}
    for launch_id in place.workers:
        place.cloud.preempt(launch_id)


def test_a_job_that_ends_while_it_is_to_move_stays_ended(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    fleet.journal.record(MoveRequested(at_s=fleet.clock.now_s(), job_id=job_id, reason="test"))
    fleet.places[AWS].jobs.move(job_id, "SUCCEEDED")
    fleet.tick(3)
    assert fleet.controller.job(job_id).state is JobState.SUCCEEDED
    assert [event.cell for event in fleet.events if isinstance(event, JobPlaced)] == [AWS]


def test_a_job_that_is_stopped_while_it_moves_is_stopped(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    fleet.journal.record(MoveRequested(at_s=fleet.clock.now_s(), job_id=job_id, reason="test"))
    fleet.controller.stop(job_id)
    fleet.places[AWS].jobs.move(job_id, "STOPPED")
    fleet.tick(3)
    assert fleet.controller.job(job_id).state is JobState.STOPPED


def test_a_job_stays_where_it_is_when_no_other_cell_can_serve_it(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    _take_all(fleet, GCP)
    fleet.places[GCP].ray.submit(GPU)  # somebody finds out that there is nothing
    fleet.tick(2)
    _take_all(fleet, AWS)
    for _ in range(3):
        fleet.later(70)
    assert not any(isinstance(event, MoveRequested) for event in fleet.events)
    fleet.places[AWS].cloud.sold_out.clear()
    fleet.later(1300)
    assert fleet.places[AWS].workers


def test_a_lost_head_takes_its_workers_with_it_and_the_job_goes_on_elsewhere(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    aws = fleet.places[AWS]
    aws.ray.jobs.append(RayJob("02000000", "theirs", is_dead=False, status="RUNNING"))
    fleet.tick()
    [head], workers = aws.heads, aws.workers
    aws.cloud._end(head, EndReason.CRASHED)
    aws.ray.finish()  # a new head knows nothing of it
    aws.jobs.fault = ConnectionError("its dashboard is gone")
    fleet.tick(3)
    assert fleet.journal.fleet.nodes[head].state is NodeState.GONE
    assert all(fleet.journal.fleet.nodes[name].state is not NodeState.READY for name in workers)
    queued = [event for event in fleet.events if isinstance(event, JobStateChanged) and event.job_id == job_id]
    assert (queued[-1].state, queued[-1].reason) == (JobState.QUEUED, f"the head of cell {AWS} was lost")
    assert fleet.journal.fleet.jobs["theirs"].state is JobState.FAILED
    assert fleet.run(job_id) == GCP
    aws.jobs.fault = None
    aws.ray.jobs.clear()
    fleet.settle()
    assert aws.heads != [head]
    assert aws.workers == []


def test_a_head_that_is_not_heard_is_ended_before_its_jobs_go_elsewhere(fleet: FleetWorld) -> None:
    """Two of one job would write into one storage."""
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    aws = fleet.places[AWS]
    [head] = aws.heads
    aws.silent = True
    fleet.tick(3)
    ends = {event.launch_id: event.reason for event in fleet.events if isinstance(event, TerminateRequested)}
    assert "was not heard" in ends[head]
    gone = next(
        i for i, event in enumerate(fleet.events) if getattr(event, "launch_id", "") == head and "gone" in event.kind
    )
    placed = [i for i, event in enumerate(fleet.events) if isinstance(event, JobPlaced) and event.cell == GCP]
    assert all(i > gone for i in placed)
    assert fleet.run(job_id) == GCP


def test_a_cloud_that_cannot_be_listed_is_no_reason_to_give_up_its_head(fleet: FleetWorld) -> None:
    fleet.settle()
    aws = fleet.places[AWS]
    before = aws.heads
    aws.silent = True
    aws.cloud.list_faults.extend(ConnectionError("no network") for _ in range(50))
    fleet.tick(40)
    assert aws.heads == before
    aws.silent = False


def test_down_ends_every_cell_and_its_head(fleet: FleetWorld) -> None:
    fleet.settle()
    fleet.run(fleet.controller.submit(TRAINING).job_id)
    for place in fleet.places.values():
        place.jobs.obeys = True
    fleet.controller.start()
    report = fleet.controller.shutdown()
    assert report.left == ()
    assert len(report.nodes_ended) >= 3
    assert [node for place in fleet.places.values() for node in place.cloud.alive()] == []


# --- the record, and limits over all cells ---------------------------------------------------------------------------


def test_the_parts_of_the_cells_are_the_fold_of_the_log(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(TRAINING).job_id
    fleet.run(job_id)
    _take_all(fleet, AWS)
    for place in fleet.places.values():
        place.jobs.obeys = True
    fleet.tick(3)
    fleet.later(70)
    again = FleetState.fold(fleet.events)
    for name in fleet.places:
        part, fresh = fleet.journal.fleet.cell(name), again.cell(name)
        assert (part.nodes, part.jobs, part.never_joined) == (fresh.nodes, fresh.jobs, fresh.never_joined)
        assert part.refusals == fresh.refusals
    parts = [fleet.journal.fleet.cell(name).nodes for name in fleet.places]
    assert sum(map(len, parts)) == len(fleet.journal.fleet.nodes)


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    wanted=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=3),
    most=st.integers(0, 6),
    cents=st.integers(0, 300),
)
def test_limits_hold_over_all_cells(
    tmp_path_factory: pytest.TempPathFactory, wanted: list[tuple[int, int, int]], most: int, cents: int
) -> None:
    limits = Limits(max_nodes=most, max_uusd_per_h=cents * 10_000, launches_per_minute=5)
    prices = (("aws", "us-east-1a", 0.30), ("gcp", "us-central1-a", 0.31), ("azure", "eastus-a", 0.32))
    fleet = FleetWorld(tmp_path_factory.mktemp("limits"), prices, limits)
    for counts in wanted:
        for place, count in zip(fleet.places.values(), counts, strict=True):
            place.ray.submit(GPU, count=count)
        for _ in range(15):
            fleet.tick()
            nodes = fleet.journal.fleet.alive_nodes
            assert sum(node.role is Role.WORKER for node in nodes) <= most
            assert sum(node.offer.price_uusd_per_h or 0 for node in nodes) <= cents * 10_000
    fleet.journal.log.close()


def test_limits_hold_while_all_loops_launch_at_once(tmp_path: Path) -> None:
    prices = tuple(("aws", f"us-east-{number}a", 0.30) for number in range(1, 5))
    fleet = FleetWorld(tmp_path, prices, Limits(max_nodes=7, launches_per_minute=None))
    fleet.settle()
    for place in fleet.places.values():
        place.ray.submit(GPU, count=6)
    barrier = threading.Barrier(len(fleet.places))

    def tick(place: object) -> None:
        barrier.wait(timeout=30)
        place.cell.loop.tick()  # type: ignore[attr-defined]

    for _ in range(5):
        threads = [threading.Thread(target=tick, args=(place,)) for place in fleet.places.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert len(fleet.alive()) <= 7
        fleet.clock.sleep(1.0)
    assert len(fleet.alive()) == 7
    fleet.journal.log.close()


def test_a_job_with_workers_that_fit_nowhere_is_placed_where_it_is_told_why(fleet: FleetWorld) -> None:
    fleet.settle()
    job_id = fleet.controller.submit(replace(TRAINING, worker_resources={"GPU": 64})).job_id
    fleet.tick(3)
    placed = [event for event in fleet.events if isinstance(event, JobPlaced)]
    assert "no cell sells what fits" in placed[0].reason
    assert fleet.controller.job(job_id).cell
    assert any("64" in line.what for line in fleet.controller.status().demand)


def test_what_a_machine_wrote_is_shown_and_what_cannot_be_had_is_said(fleet: FleetWorld) -> None:
    fleet.settle()
    [head] = fleet.places[AWS].heads
    fleet.places[AWS].line._doubt()  # nobody takes calls in this world
    told = fleet.controller.node_log(head[:8])
    assert f"console of {head}" in told
    assert "its agent does not answer" in told
    assert "why it did not come up" not in told
    fleet.places[AWS].cloud.consoles[head] = "TRADEWIND BOOT FAILED: set-up command ended with status 1: false\n"
    told = fleet.controller.node_log(head)
    assert told.endswith("--- why it did not come up\nset-up command ended with status 1: false\n")
    fleet.places[AWS].cloud.forget(head)
    assert "no node" in fleet.controller.node_log(head)


@pytest.mark.parametrize("jump_s", [5000.0, -5000.0])
def test_a_clock_that_was_set_shifts_the_record_once_for_all_cells(fleet: FleetWorld, jump_s: float) -> None:
    fleet.settle()
    before = {name: node.requested_at_s for name, node in fleet.journal.fleet.nodes.items()}
    fleet.clock.set_by(jump_s)
    fleet.tick(3)
    jumps = [event.jump_s for event in fleet.events if isinstance(event, ClockJumped)]
    assert jumps == [pytest.approx(jump_s)]
    after = {name: fleet.journal.fleet.nodes[name].requested_at_s for name in before}
    assert after == {name: pytest.approx(at_s + jump_s) for name, at_s in before.items()}
