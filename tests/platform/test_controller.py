"""The controller: the real journal, agent and loop, on a Ray and a cloud in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tradewind.agent import Agent
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.ray_snapshot import RayJob
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.cells.cell import Cell
from tradewind.controller import Controller
from tradewind.errors import ConfigError, ControllerError, JobError, JobNotFound
from tradewind.events import AnyEvent, JobSubmitted
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.journal import Journal
from tradewind.model import JobSpec
from tradewind.states import JobState, NodeState
from tradewind.store import EventLog

OFFER = make_offer("gcp/us-central1-a/g2", usd_per_h=0.36, cpus=4, gpus=1)
GPU = {"CPU": 1, "GPU": 1}
SPEC = JobSpec(name="Train it: now!", entrypoint="python train.py")


@dataclass
class Head:
    gcs_address: str = "127.0.0.2:20379"
    dashboard_url: str = "http://127.0.0.1:8265"
    env: dict[str, str] = field(default_factory=lambda: {"RAY_ADDRESS": "127.0.0.2:20379"})
    alive: bool = True


class Cloud(FakeCloud):
    """As the local cloud, it tells what it takes."""

    def preempt(self, launch_id: str, notice_s: float | None = None) -> Sequence[str]:  # type: ignore[override]
        super().preempt(launch_id, notice_s)
        return [launch_id]


class World:
    def __init__(self, folder: Path, *, dry_run: bool = False) -> None:
        self.folder, self.settings = folder, LoopSettings(fleet="test", dry_run=dry_run)
        self.clock = FakeClock(time.time() - 3600)  # what happens there lies in the past of the bill
        self.cloud, self.head, self.jobs = Cloud(self.clock, [OFFER]), Head(), FakeJobs()
        self.ray = FakeRay(self.clock, [self.cloud])
        self.open()

    def open(self) -> None:
        """A controller starts; again after a crash."""
        self.journal = Journal.load(EventLog.open(self.folder / "events.db"))
        fleet = self.journal.fleet.cell("local")
        agent = Agent("g", "d", self.folder, self.journal.record, fleet)
        agent.jobs, agent.coordinators = self.jobs, FakeCoordinators()
        loop = Loop(
            clock=self.clock,
            record=self.journal.record,
            fleet=fleet,
            ray=self.ray,
            providers={"gcp": self.cloud},
            prices=self.cloud,
            settings=self.settings,
            wishes=agent.wishes,
        )
        self.cell = Cell("local", "local", "here", self.head, agent, loop, {"gcp": self.cloud})
        self.controller = Controller("test", self.journal, {"local": self.cell}, self.folder / "job-logs", 0.02)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.controller._tick(self.cell)
            self.clock.sleep(1.0)

    def submit(self) -> str:
        return self.controller.submit(SPEC).job_id

    def run(self) -> str:
        """A job of ours that runs."""
        job_id = self.submit()
        self.tick()
        self.jobs.move(job_id, "RUNNING")
        self.tick()
        return job_id

    def buy(self) -> str:
        """A node that has joined."""
        self.ray.submit(GPU)
        self.tick(20)
        [node] = self.journal.fleet.alive_nodes
        assert node.state is NodeState.READY
        return node.launch_id

    def foreign(self) -> str:
        spec = JobSpec(name="driver", entrypoint="")
        self.journal.record(JobSubmitted(at_s=self.clock.now_s(), job_id="01000000", spec=spec, foreign=True))
        return "01000000"

    @property
    def written(self) -> list[AnyEvent]:
        return [event for _, event in self.journal.log.read()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.controller._closing.set()
    made.journal.log.close()


# --- jobs -----------------------------------------------------------------------------------------------------------


def test_a_submission_is_on_record_before_anything_is_started(world: World) -> None:
    info = world.controller.submit(SPEC)
    assert (info.state, info.name) == (JobState.QUEUED, SPEC.name)
    assert info.job_id.startswith("train-it-now-")
    assert [event.kind for event in world.written] == ["job_submitted"]
    assert world.jobs.rows == {}
    world.tick()
    assert list(world.jobs.rows) == [info.job_id]


def test_what_can_never_start_is_taken_on_with_a_warning(world: World) -> None:
    asked = replace(SPEC, min_workers=1, max_workers=1, worker_resources=GPU)
    large = replace(asked, worker_resources={"GPU": 2})
    assert world.controller.submit(large).warning == "", "nothing has been looked at yet"
    world.tick()
    assert world.controller.submit(asked).warning == ""
    info = world.controller.submit(large)
    assert info.warning == "its workers can never start: no offer has GPU: 2 (the largest has 1)"
    assert info.state is JobState.QUEUED


@pytest.mark.parametrize("name", ["Ünïcode", "///", "x" * 200, "-"])
def test_every_name_gives_an_id_that_can_be_a_file_and_a_submission(world: World, name: str) -> None:
    job_id = world.controller.submit(JobSpec(name=name, entrypoint="true")).job_id
    assert len(job_id) <= 40
    assert set(job_id) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not job_id.startswith("-")


def test_a_folder_that_is_not_there_is_refused_and_nothing_is_recorded(world: World, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no folder"):
        world.controller.submit(JobSpec(name="n", entrypoint="true", working_dir=str(tmp_path / "none")))
    assert world.written == []


def test_an_unknown_job_is_told_with_the_nearest_one(world: World) -> None:
    job_id = world.submit()
    for ask in (world.controller.job, world.controller.stop, world.controller.logs, world.controller.receipt):
        with pytest.raises(JobNotFound) as caught:
            ask(job_id[:-1] + "?")
        assert f"did you mean {job_id}?" in caught.value.hint
    with pytest.raises(JobNotFound) as caught:
        world.controller.job("qqqq")
    assert "did you mean" not in caught.value.hint


def test_stop_asks_ray_and_is_on_record(world: World) -> None:
    job_id = world.run()
    assert world.controller.stop(job_id).state is JobState.STOPPING
    world.tick()
    assert world.jobs.stops == [job_id]
    assert world.controller.stop(job_id).state is JobState.STOPPING  # once more: the same, without a second record
    assert [getattr(event, "state", None) for event in world.written].count(JobState.STOPPING) == 1


def test_stop_of_a_job_that_ended_leaves_it_as_it_is(world: World) -> None:
    job_id = world.run()
    world.jobs.move(job_id, "SUCCEEDED")
    world.tick()
    before = len(world.written)
    assert world.controller.stop(job_id).state is JobState.SUCCEEDED
    assert world.jobs.stops == []
    assert len(world.written) == before


def test_a_job_that_is_stopped_before_its_start_never_runs(world: World) -> None:
    job_id = world.submit()
    world.controller.stop(job_id)
    world.tick()
    assert world.jobs.rows == {}
    assert world.controller.job(job_id).state is JobState.STOPPED


def test_a_stop_survives_the_controller(world: World) -> None:
    job_id = world.run()
    world.controller.stop(job_id)
    world.jobs.stops.clear()  # the call was lost
    world.journal.log.close()
    world.open()
    world.tick()
    assert world.jobs.stops == [job_id]


def test_a_driver_that_cannot_be_stopped_is_not_said_to_be_stopping(world: World) -> None:
    job_id = world.foreign()
    with pytest.raises(JobError, match="not started by Ray's Jobs API"):
        world.controller.stop(job_id)
    assert world.controller.job(job_id).state is JobState.QUEUED


# --- logs -----------------------------------------------------------------------------------------------------------


def test_logs_come_from_ray_while_the_job_runs_and_stay_when_it_has_ended(world: World) -> None:
    job_id = world.run()
    world.jobs.print(job_id, "one\ntwo ü\n")
    chunk = world.controller.logs(job_id)
    assert (chunk.text, chunk.over) == ("one\ntwo ü\n", False)
    world.jobs.print(job_id, "three\n")
    assert world.controller.logs(job_id, offset=chunk.next_offset).text == "three\n"
    world.jobs.move(job_id, "SUCCEEDED")
    world.tick()
    world.jobs.rows.clear()  # the Ray cluster has gone
    world.jobs.fault = ConnectionError("gone")
    kept = world.controller.logs(job_id)
    assert (kept.text, kept.over) == ("one\ntwo ü\nthree\n", True)
    assert world.controller.logs(job_id, tail=1).text == "three\n"


def test_a_log_that_cannot_be_read_now_is_kept_later_and_does_not_hold_up_others(world: World) -> None:
    first, second = world.run(), world.run()
    world.jobs.print(second, "done\n")
    get = world.jobs.get_job_logs

    def fails_for_the_first(job_id: str) -> str:
        if job_id == first:
            raise RuntimeError("Request failed with status code 500")
        return get(job_id)

    world.jobs.get_job_logs = fails_for_the_first  # type: ignore[method-assign]
    for job_id in (first, second):
        world.jobs.move(job_id, "SUCCEEDED")
    world.tick()
    kept = world.folder / "job-logs"
    assert [path.name for path in kept.iterdir()] == [f"{second}.log"]
    world.jobs.get_job_logs = get  # type: ignore[method-assign]
    world.tick()
    assert len(list(kept.iterdir())) == 2


def test_a_log_with_broken_characters_is_kept(world: World) -> None:
    job_id = world.run()
    world.jobs.print(job_id, "half \ud83d\n")
    assert world.controller.logs(job_id).text == "half ?\n"
    world.jobs.move(job_id, "SUCCEEDED")
    world.tick()
    assert world.controller.logs(job_id).text == "half ?\n"


def test_a_long_poll_for_a_log_ends_when_its_time_is_over(world: World) -> None:
    assert world.controller.logs(world.run(), wait_s=0.01).text == ""


# --- views ----------------------------------------------------------------------------------------------------------


def test_status_tells_nodes_jobs_dollars_and_decisions(world: World) -> None:
    job_id, launch_id = world.run(), world.buy()
    status = world.controller.status()
    assert (status.fleet, status.ray_address, status.dashboard_url) == (
        "test",
        world.head.gcs_address,
        world.head.dashboard_url,
    )
    assert dict(status.ray_env) == world.head.env
    assert [node.launch_id for node in status.nodes] == [launch_id]
    assert [job.job_id for job in status.jobs] == [job_id]
    assert status.price_uusd_per_h == OFFER.price_uusd_per_h
    assert [line.action for line in status.decisions] == ["launch"]
    assert status.demand == ()
    world.ray.submit({"GPU": 99})
    world.tick()
    [line] = world.controller.status().demand
    assert "99" in line.what
    assert line.hold


def test_the_forecast_is_told_from_the_log_before_and_after_a_start(world: World) -> None:
    assert world.controller.forecast().series == ()
    spec = replace(SPEC, min_workers=1, max_workers=3, worker_resources=GPU, tenant="alice")
    job_id = world.controller.submit(spec).job_id
    [series] = world.controller.forecast().series
    assert (series.tenant, series.now, series.is_used) == ("alice", 3.0, False)
    world.controller.stop(job_id)
    world.tick()
    assert world.controller.job(job_id).state is JobState.STOPPED
    assert world.controller.forecast("alice").series[0].now == 0.0
    world.journal.log.close()
    world.open()
    assert world.controller.forecast("alice").series[0].now == 0.0


def test_status_shows_open_jobs_and_the_last_that_ended(world: World) -> None:
    ended = [world.submit() for _ in range(7)]
    for job_id in ended:
        world.controller.stop(job_id)
    world.tick()
    still_open = world.submit()
    assert [job.job_id for job in world.controller.status().jobs] == [*ended[-5:], still_open]
    assert [job.job_id for job in world.controller.jobs()] == [*ended, still_open]


def test_the_bill_adds_up_to_what_status_says(world: World) -> None:
    world.buy()
    world.tick(100)
    world.controller.shutdown()
    bill, status = world.controller.bill(), world.controller.status()
    assert bill["total_uusd"] == status.cost_uusd > 0
    assert status.nodes == ()
    assert [node.state for node in world.controller.nodes()] == [NodeState.GONE]


def test_events_are_numbered_and_come_in_pages(world: World) -> None:
    for _ in range(3):
        world.submit()
    assert [line.sequence for line in world.controller.events(limit=2)] == [1, 2]
    assert [line.sequence for line in world.controller.events(after=2)] == [3]
    assert world.controller.events(after=3, wait_s=0.01) == []


def test_a_preemption_is_passed_on_to_the_cloud(world: World) -> None:
    launch_id = world.buy()
    assert world.controller.preempt(launch_id, None) == [launch_id]
    world.tick()
    assert world.journal.fleet.nodes[launch_id].state is NodeState.GONE


# --- the loop's thread ----------------------------------------------------------------------------------------------


def test_the_fleet_is_scaled_while_rays_jobs_api_is_away(world: World) -> None:
    world.jobs.fault = ConnectionError("refused")
    world.buy()


def test_a_tick_survives_anything_and_the_next_one_works(world: World) -> None:
    world.jobs.fault = ZeroDivisionError("a defect")
    world.cloud.list_faults.append(ZeroDivisionError("another"))
    world.tick()
    world.jobs.fault = None
    job_id = world.submit()
    world.tick()
    assert list(world.jobs.rows) == [job_id]


def test_the_thread_ticks_at_once_and_a_submission_wakes_it(world: World) -> None:
    world.controller.tick_s = 600.0
    world.controller.start()
    until_s = time.monotonic() + 20
    job_id = world.submit()
    while job_id not in world.jobs.rows and time.monotonic() < until_s:
        time.sleep(0.01)
    assert job_id in world.jobs.rows
    assert world.controller.status().simulated


# --- the end --------------------------------------------------------------------------------------------------------


def test_shutdown_stops_jobs_ends_nodes_and_says_so(world: World) -> None:
    job_id, launch_id = world.run(), world.buy()
    world.jobs.obeys = True
    world.controller.start()
    report = world.controller.shutdown()
    assert (report.jobs_stopped, report.nodes_ended, report.left) == ((job_id,), (launch_id,), ())
    assert report.simulated
    assert report.cost_uusd == world.controller.status().cost_uusd
    assert world.controller.job(job_id).state is JobState.STOPPED
    assert world.cloud.alive() == []
    assert world.written[-1].kind == "controller_stopped"
    assert world.controller.ended.is_set()
    assert len(world.controller._ticks) == 1
    assert not world.controller._ticks[0].is_alive()


def test_two_shutdowns_at_once_are_one(world: World) -> None:
    world.buy()
    world.controller.start()
    reports = []
    threads = [threading.Thread(target=lambda: reports.append(world.controller.shutdown())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(reports) == 3
    assert len(set(reports)) == 1
    kinds = [event.kind for event in world.written]
    assert kinds.count("controller_stopped") == kinds.count("node_gone") == 1


def test_a_fleet_that_goes_down_takes_no_more_jobs(world: World) -> None:
    world.controller.shutdown()
    with pytest.raises(ControllerError, match="taken down"):
        world.submit()
    assert world.journal.fleet.jobs == {}


def test_a_fleet_without_a_head_goes_down_at_once_and_its_jobs_with_it(world: World) -> None:
    job_id, launch_id = world.run(), world.buy()
    world.head.alive = False
    world.jobs.fault = ConnectionError("refused")
    world.controller.start()
    report = world.controller.shutdown()
    assert (report.jobs_stopped, report.nodes_ended, report.left) == ((), (launch_id,), ())
    world.journal.log.close()
    world.head.alive, world.jobs.fault = True, None
    world.jobs.rows.clear()  # a new head
    world.open()
    world.tick()
    assert world.jobs.rows == {}, "what was taken down does not come back by itself"
    assert world.journal.fleet.jobs[job_id].state is JobState.STOPPED


def test_a_driver_that_cannot_be_stopped_does_not_keep_the_fleet_up(world: World) -> None:
    world.foreign()
    report = world.controller.shutdown()
    assert report.jobs_stopped == ()
    assert world.controller.ended.is_set()


def test_a_job_sent_past_us_can_be_stopped(world: World) -> None:
    world.ray.jobs.append(RayJob("01000000", "theirs", is_dead=False, status="RUNNING"))
    world.jobs.submit_job(entrypoint="python x.py", submission_id="theirs", runtime_env=None, metadata={})
    world.tick()
    assert world.controller.job("theirs").foreign
    assert world.controller.stop("theirs").state is JobState.STOPPING
    assert world.jobs.stops == ["theirs"]


def test_a_dry_run_is_said_and_buys_nothing(tmp_path: Path) -> None:
    made = World(tmp_path, dry_run=True)
    made.ray.submit(GPU)
    made.tick(3)
    status = made.controller.status()
    assert status.dry_run
    assert [line.what for line in status.demand] == [f"would launch 1 x {OFFER.market.key}"]
    story = made.controller.why("now")
    assert any("would launch" in line.what for line in story.lines)
    assert made.cloud.launch_calls == []
    made.journal.log.close()
