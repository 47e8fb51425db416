"""The agent against Ray's Jobs API and real coordinators in memory: what goes on record, and what is asked of Ray."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from tradewind.agent import HEARD_S, Agent, first_line, time_to_save_s
from tradewind.autoscaler.fleet import JobRecord
from tradewind.cost.budget import RESERVE_S
from tradewind.entrypoint import entrypoint_of, spec_wish
from tradewind.errors import JobError, RayError
from tradewind.events import (
    AnyEvent,
    CheckpointCommitted,
    DecisionRecorded,
    JobStateChanged,
    JobSubmitted,
    MoveRequested,
)
from tradewind.fake_cell import FakeCoordinators, FakeJobs, FakeRow
from tradewind.jobs.coordinator import Coordinator
from tradewind.journal import Journal
from tradewind.model import GRANT_ENV, JOB_ID_ENV, STORAGE_ENV, JobSpec, Phase, Target, Wish
from tradewind.states import JobState
from tradewind.store import EventLog

GPU = {"CPU": 1.0, "GPU": 1.0}
WISH = Wish("a", 2, 4, GPU)


class Cell:
    """An agent, what it speaks to, and the log that it writes."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal.load(EventLog.open(folder / "events.db"))
        self.jobs, self.coordinators = FakeJobs(), FakeCoordinators()
        self.agent = Agent(
            "127.0.0.2:20379",
            "http://127.0.0.1:8265",
            folder / "storage",
            self.journal.record,
            self.journal.fleet,
            jobs=self.jobs,
            coordinators=self.coordinators,
            steady_s=lambda: self.now_s,
        )
        self.now_s = 100.0

    def submit(self, job_id: str = "a", *, foreign: bool = False, **spec: object) -> None:
        given = JobSpec(**{"name": "train", "entrypoint": "python train.py", **spec})  # type: ignore[arg-type]
        self.journal.record(JobSubmitted(at_s=self.now_s, job_id=job_id, spec=given, foreign=foreign))

    def sync(self) -> None:
        self.now_s += 1
        self.agent.sync(self.now_s)

    def move(self, state: JobState, job_id: str = "a") -> None:
        self.journal.record(JobStateChanged(at_s=self.now_s, job_id=job_id, state=state))

    def run(self, job_id: str = "a") -> Coordinator:
        """Submitted, started by Ray, and training."""
        self.submit(job_id)
        self.sync()
        self.jobs.move(job_id, "RUNNING")
        self.sync()
        return self.coordinators.start(job_id)

    def job(self, job_id: str = "a") -> JobRecord:
        return self.journal.fleet.jobs[job_id]

    @property
    def written(self) -> list[AnyEvent]:
        return [event for _, event in self.journal.log.read()]


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    made = Cell(tmp_path)
    yield made
    made.journal.log.close()


def tell(coordinator: Coordinator, phase: Phase, reason: str = "", workers: int = 2) -> None:
    asyncio.run(coordinator.phase(phase, reason, workers))


def commit(coordinator: Coordinator, step: int) -> None:
    asyncio.run(coordinator.committed(0, 2, 100.0 + step, 101.0 + step, step, step, 8, 0.5))


# --- the command ----------------------------------------------------------------------------------------------------


def record_of(**spec: object) -> JobRecord:
    given = JobSpec(**{"name": "n", "entrypoint": "true", **spec})  # type: ignore[arg-type]
    return JobRecord(job_id="n-1", spec=given, state=JobState.QUEUED, submitted_at_s=0.0)


def shell(command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, shell=True, capture_output=True, text=True, timeout=20)


def test_the_command_sees_its_job_and_its_storage_in_its_folder_whatever_they_are_called(tmp_path: Path) -> None:
    folder, storage = tmp_path / "it's $HOME; here", tmp_path / 'a "b" c'
    folder.mkdir()
    job = record_of(entrypoint=f'echo "${JOB_ID_ENV}|${STORAGE_ENV}|$PWD"', working_dir=str(folder))
    assert shell(entrypoint_of(job, storage)).stdout == f"n-1|{storage}|{folder}\n"


@pytest.mark.parametrize("entrypoint", ["false || echo ran", "true; echo ran", "echo ran  # in the end"])
def test_no_part_of_the_command_runs_outside_of_its_folder(entrypoint: str, tmp_path: Path) -> None:
    inside = shell(entrypoint_of(record_of(entrypoint=entrypoint, working_dir=str(tmp_path)), tmp_path))
    assert (inside.returncode, inside.stdout) == (0, "ran\n")
    outside = shell(entrypoint_of(record_of(entrypoint=entrypoint, working_dir=str(tmp_path / "none")), tmp_path))
    assert (outside.returncode, outside.stdout) == (1, "")


def test_a_command_that_fails_fails_the_job(tmp_path: Path) -> None:
    assert shell(entrypoint_of(record_of(entrypoint="exit 7"), tmp_path)).returncode == 7


# --- starting and ending --------------------------------------------------------------------------------------------


def test_a_queued_job_is_started_once_under_its_own_id(cell: Cell) -> None:
    cell.submit(env={"LR": "0.1"}, tenant="vision")
    for _ in range(3):
        cell.sync()
    [row] = cell.jobs.rows.values()
    assert row.submission_id == "a"
    assert row.entrypoint.endswith("\npython train.py")
    assert row.runtime_env == {"env_vars": {"LR": "0.1"}}
    assert row.metadata == {"tenant": "vision", "name": "train"}
    assert cell.job().state is JobState.QUEUED


def test_without_variables_of_its_own_a_job_has_no_runtime_environment(cell: Cell) -> None:
    cell.submit()
    cell.sync()
    assert cell.jobs.rows["a"].runtime_env is None


def test_a_listing_that_lags_behind_starts_nothing_twice_and_fails_nothing(cell: Cell) -> None:
    cell.submit()
    cell.sync()
    cell.jobs.unlisted.add("a")
    cell.sync()
    assert cell.job().state is JobState.QUEUED


def test_what_ray_refuses_has_failed_for_rays_reason(cell: Cell) -> None:
    cell.submit()
    cell.jobs.refusal = "TypeError: the runtime environment is not valid"
    cell.sync()
    assert cell.job().state is JobState.FAILED
    assert cell.job().reason == "Ray refused the job: TypeError: the runtime environment is not valid"


def test_a_head_that_does_not_answer_fails_no_job(cell: Cell) -> None:
    cell.submit()
    for fault in (ConnectionError("refused"), OSError("reset"), RuntimeError("Request failed with status code 503")):
        cell.jobs.fault = fault
        with pytest.raises(RayError, match="does not answer"):
            cell.sync()
    assert cell.job().state is JobState.QUEUED
    cell.jobs.fault = None
    cell.sync()
    assert list(cell.jobs.rows) == ["a"]


def test_a_connection_that_breaks_in_the_middle_of_a_start_fails_no_job(cell: Cell) -> None:
    class Breaking(FakeJobs):
        def submit_job(self, **_: object) -> str:  # type: ignore[override]
            raise ConnectionError("reset by peer")

    cell.agent.jobs = Breaking()
    cell.submit("a")
    cell.submit("b")
    cell.sync()
    assert {job.state for job in cell.journal.fleet.jobs.values()} == {JobState.QUEUED}


@pytest.mark.parametrize(
    ("status", "state", "reason"),
    [
        ("SUCCEEDED", JobState.SUCCEEDED, ""),
        ("FAILED", JobState.FAILED, "exit code 1"),
        ("STOPPED", JobState.STOPPED, ""),
    ],
)
def test_rays_word_on_the_end_is_ours(cell: Cell, status: str, state: JobState, reason: str) -> None:
    cell.run()
    assert cell.job().state is JobState.RUNNING
    cell.jobs.move("a", status, "exit code 1 ")
    cell.sync()
    assert (cell.job().state, cell.job().reason, cell.job().ended_at_s) == (state, reason, cell.now_s)
    before = len(cell.written)
    cell.sync()
    assert len(cell.written) == before  # told once


def test_foreign_jobs_are_neither_started_nor_settled_here(cell: Cell) -> None:
    cell.submit("theirs", foreign=True)
    cell.sync()
    assert cell.jobs.rows == {}
    cell.jobs.rows["theirs"] = FakeRow("theirs", status="SUCCEEDED")
    cell.sync()
    assert cell.job("theirs").state is JobState.QUEUED


def test_a_driver_without_a_submission_is_no_job_of_ours(cell: Cell) -> None:
    cell.jobs.rows["01000000"] = FakeRow(None, status="RUNNING")
    cell.sync()
    assert cell.written == []


# --- stopping -------------------------------------------------------------------------------------------------------


def test_a_job_that_is_stopped_before_it_was_started_is_never_started(cell: Cell) -> None:
    cell.submit()
    cell.move(JobState.STOPPING)
    cell.sync()
    assert cell.jobs.rows == {}
    assert cell.job().state is JobState.STOPPED


def test_a_stop_that_was_lost_on_the_way_is_asked_for_again(cell: Cell) -> None:
    cell.run()
    cell.move(JobState.STOPPING)
    cell.sync()
    assert cell.jobs.stops == ["a"]
    assert cell.job().state is JobState.STOPPING
    cell.jobs.move("a", "STOPPED")
    cell.sync()
    assert cell.job().state is JobState.STOPPED
    assert cell.jobs.stops == ["a"]


def test_a_job_that_trains_saves_before_it_is_stopped(cell: Cell) -> None:
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING)
    cell.sync()
    cell.move(JobState.STOPPING)
    for _ in range(3):
        cell.sync()
    assert cell.jobs.stops == []
    assert [target.replicas for _, target in cell.coordinators.targets] == [0]
    tell(coordinator, Phase.RESTING, workers=0)
    cell.sync()
    cell.sync()
    assert cell.jobs.stops == ["a"]


def test_one_that_cannot_save_in_time_is_stopped_all_the_same(cell: Cell) -> None:
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING)
    commit(coordinator, 7)
    cell.sync()
    cell.move(JobState.STOPPING)
    cell.sync()
    cell.now_s += cell.agent.save_s - 2
    cell.sync()
    assert cell.jobs.stops == []
    cell.sync()
    assert cell.jobs.stops == ["a"]
    assert cell.agent.save_s < RESERVE_S, "a budget pays for it"
    cell.sync()
    assert [event.reason for event in unsaved(cell)] == [
        "ended without its last save: it could not save within 1m30s; nothing of it is saved, it has come to step 7"
    ]


def unsaved(cell: Cell) -> list[DecisionRecorded]:
    return [event for event in cell.written if isinstance(event, DecisionRecorded) and event.action == "unsaved"]


def test_a_clock_that_is_set_does_not_cut_off_a_save(cell: Cell) -> None:
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING)
    cell.sync()
    cell.move(JobState.STOPPING)
    cell.sync()
    for calendar_s in (cell.now_s + 1e6, cell.now_s - 1e6):
        cell.agent.sync(calendar_s)
    assert cell.jobs.stops == []


def test_who_cannot_save_stays_in_its_cell_until_it_was_asked_three_times(cell: Cell) -> None:
    """Where its storage does not take a save, another cell could not load one, either."""
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING, "the disk is full")
    cell.sync()
    for times in (1, 2):
        cell.journal.record(MoveRequested(at_s=cell.now_s, job_id="a", reason="its cell has run dry"))
        cell.sync()
        cell.agent.grant({"a": Target(1, 3)})  # planned before it was told to leave
        assert replicas_of(coordinator) == 0
        cell.now_s += cell.agent.save_s
        cell.sync()
        assert (cell.job().moving, cell.job().moves_put_off, cell.jobs.stops) == ("", times, [])
        cell.sync()
        cell.agent.grant({"a": Target(1, 3)})
        assert replicas_of(coordinator) == 3, "it is woken"
    assert "not moved yet: it could not save within 1m30s (the disk is full)" in unsaved(cell)[0].reason
    cell.journal.record(MoveRequested(at_s=cell.now_s, job_id="a", reason="its cell has run dry"))
    cell.sync()
    cell.now_s += cell.agent.save_s
    cell.sync()
    assert cell.jobs.stops == ["a"]
    assert "moves without its last save" in unsaved(cell)[-1].reason


def test_a_stop_right_after_a_move_was_put_off_has_its_own_time_to_save_and_is_told(cell: Cell) -> None:
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING, "the disk is full")
    cell.sync()
    cell.journal.record(MoveRequested(at_s=cell.now_s, job_id="a", reason="its cell has run dry"))
    cell.sync()
    cell.now_s += cell.agent.save_s
    cell.sync()
    cell.move(JobState.STOPPING)  # before the next tick
    cell.sync()
    assert cell.jobs.stops == []
    cell.now_s += cell.agent.save_s
    cell.sync()
    assert cell.jobs.stops == ["a"]
    assert [event.reason.split(":")[0] for event in unsaved(cell)] == ["not moved yet", "ended without its last save"]


def test_a_job_knows_of_a_rest_when_its_coordinator_says_so_and_for_as_long_as_it_is_heard(cell: Cell) -> None:
    coordinator = cell.run()
    cell.sync()
    cell.agent.grant({"a": Target(1, 0)})
    assert not cell.agent.knows_of_rest("a"), "an order may be lost on the way"
    cell.sync()
    assert cell.agent.knows_of_rest("a")
    cell.coordinators.faults["a"] = TimeoutError()
    cell.sync()
    assert cell.agent.knows_of_rest("a"), "busy for a moment"
    cell.now_s += HEARD_S
    cell.sync()
    assert not cell.agent.knows_of_rest("a"), "whether it has saved cannot be known"
    del cell.coordinators.faults["a"]
    cell.sync()
    assert cell.agent.knows_of_rest("a")
    asyncio.run(coordinator.set_target(2**40, 2))
    cell.sync()
    assert not cell.agent.knows_of_rest("a")


def test_a_save_that_succeeds_forgives_the_moves_that_were_put_off(cell: Cell) -> None:
    cell.run()
    cell.journal.record(MoveRequested(at_s=1.0, job_id="a", reason="dry"))
    cell.journal.record(MoveRequested(at_s=2.0, job_id="a", reason="dry", called_off=True))
    assert cell.job().moves_put_off == 1
    cell.journal.record(
        CheckpointCommitted(at_s=3.0, job_id="a", attempt=1, sequence=9, step=5, path="p", duration_s=1.0)
    )
    assert cell.job().moves_put_off == 0


def replicas_of(coordinator: Coordinator) -> int | None:
    target = asyncio.run(coordinator.look())["target"]
    return target["replicas"] if target else None


def test_who_recovers_from_a_loss_saves_before_it_is_stopped(cell: Cell) -> None:
    """The workers that are left hold what is not saved."""
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING)
    tell(coordinator, Phase.RESTARTING, "a node was lost", workers=1)
    cell.sync()
    cell.move(JobState.STOPPING)
    cell.sync()
    assert cell.jobs.stops == []
    tell(coordinator, Phase.RESTARTING, "none is left", workers=0)
    cell.sync()
    cell.sync()
    assert cell.jobs.stops == ["a"]


def test_a_controller_that_starts_during_a_stop_lets_the_job_save(cell: Cell) -> None:
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    tell(coordinator, Phase.TRAINING)
    cell.sync()
    cell.move(JobState.STOPPING)
    cell.agent.heard.clear()  # as a new controller has it
    cell.sync()
    assert cell.jobs.stops == []
    assert [target.replicas for _, target in cell.coordinators.targets] == [0]


def test_a_stop_while_the_listing_lags_waits_for_rays_word(cell: Cell) -> None:
    cell.run()
    cell.jobs.unlisted.add("a")
    cell.move(JobState.STOPPING)
    cell.sync()
    assert cell.job().state is JobState.STOPPING


def test_a_program_that_fails_while_it_is_stopped_was_stopped(cell: Cell) -> None:
    cell.run()
    cell.move(JobState.STOPPING)
    cell.jobs.move("a", "FAILED", "killed")
    cell.sync()
    assert cell.job().state is JobState.STOPPED


def test_stop_and_logs_of_a_job_that_ray_does_not_have(cell: Cell) -> None:
    assert cell.agent.stop_job("none") is False
    assert cell.agent.logs("none") == ""


@pytest.mark.parametrize("fault", [RuntimeError("Request failed with status code 500: x"), ConnectionError("refused")])
def test_stop_and_logs_say_so_when_ray_does_not_answer(cell: Cell, fault: Exception) -> None:
    cell.run()
    cell.jobs.fault = fault
    with pytest.raises(JobError, match="cannot stop a"):
        cell.agent.stop_job("a")
    with pytest.raises(JobError, match="cannot read the log of a"):
        cell.agent.logs("a")


def test_an_agent_that_has_not_joined_says_so(tmp_path: Path, cell: Cell) -> None:
    with pytest.raises(RayError, match="not joined"):
        Agent("g", "d", tmp_path, cell.journal.record, cell.journal.fleet).sync(1.0)


# --- training reports -----------------------------------------------------------------------------------------------


def test_reports_reach_the_log_once_and_in_order(cell: Cell) -> None:
    coordinator = cell.run()
    tell(coordinator, Phase.TRAINING)
    commit(coordinator, 1)
    cell.sync()
    commit(coordinator, 2)
    cell.sync()
    cell.sync()
    reports = [event for event in cell.written if hasattr(event, "sequence")]
    assert [event.sequence for event in reports] == [1, 2, 3]
    assert (cell.job().step, cell.job().phase, cell.job().reported_sequence) == (2, Phase.TRAINING, 3)


def test_the_last_words_of_a_job_stand_before_its_end(cell: Cell) -> None:
    coordinator = cell.run()
    commit(coordinator, 1)
    cell.jobs.move("a", "SUCCEEDED")
    cell.sync()
    assert [event.kind for event in cell.written[-2:]] == ["step_committed", "job_state_changed"]


def test_a_loss_makes_a_job_recovering_until_it_trains_again(cell: Cell) -> None:
    coordinator = cell.run()
    tell(coordinator, Phase.RESTARTING, "a node was lost")
    cell.sync()
    assert (cell.job().state, cell.job().reason) == (JobState.RECOVERING, "a node was lost")
    cell.sync()  # Ray says RUNNING all the time, which is no news
    assert cell.job().state is JobState.RECOVERING
    tell(coordinator, Phase.STARTING)
    cell.sync()
    assert cell.job().state is JobState.RECOVERING
    tell(coordinator, Phase.TRAINING)
    cell.sync()
    assert cell.job().state is JobState.RUNNING


def test_two_losses_between_two_looks_are_both_told(cell: Cell) -> None:
    coordinator = cell.run()
    before = len(cell.written)
    for phase in (Phase.RESTARTING, Phase.TRAINING, Phase.RESTARTING, Phase.TRAINING):
        tell(coordinator, phase)
    cell.sync()
    told = [event.state for event in cell.written[before:] if isinstance(event, JobStateChanged)]
    assert told == [JobState.RECOVERING, JobState.RUNNING] * 2


def test_a_loss_while_the_job_is_being_stopped_is_no_recovery(cell: Cell) -> None:
    coordinator = cell.run()
    cell.move(JobState.STOPPING)
    tell(coordinator, Phase.RESTARTING, "a node was lost")
    cell.sync()
    assert (cell.job().state, cell.job().phase) == (JobState.STOPPING, Phase.RESTARTING)


def test_a_stop_that_comes_between_look_and_record_loses_no_report(cell: Cell) -> None:
    """The HTTP thread stops the job after the agent has asked its coordinator, and before it records the answer."""
    coordinator = cell.run()
    tell(coordinator, Phase.RESTARTING, "a node was lost")
    poll = cell.coordinators.poll

    def stopped_meanwhile(job_id: str, after_sequence: int) -> object:
        answer = poll(job_id, after_sequence)
        if cell.job().state is JobState.RUNNING:
            cell.move(JobState.STOPPING)
        return answer

    cell.coordinators.poll = stopped_meanwhile  # type: ignore[method-assign, assignment]
    cell.sync()
    assert cell.job().reported_sequence == 0  # nothing was believed that is not written
    cell.sync()
    assert cell.job().phase is Phase.RESTARTING
    assert [event.kind for event in cell.written].count("phase_changed") == 1


@pytest.mark.parametrize("fault", [ValueError("not an event"), KeyError("wish"), RuntimeError("ray.get failed")])
def test_trouble_with_one_job_leaves_the_others_alone(cell: Cell, fault: Exception) -> None:
    cell.run("a")
    healthy = cell.run("b")
    cell.coordinators.faults["a"] = fault
    commit(healthy, 1)
    cell.submit("c")
    cell.sync()
    assert cell.job("b").step == 1
    assert "c" in cell.jobs.rows


# --- wishes and grants ----------------------------------------------------------------------------------------------


def test_a_job_that_was_told_to_rest_is_woken_whatever_the_clock_says_since(cell: Cell) -> None:
    """A controller told it so, ended, and the clock was set back: the next one's numbers begin below."""
    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    asyncio.run(coordinator.set_target(int(time.time()) + 86_400, 0))
    cell.agent.grant({"a": Target(1, 3)})  # before it has been heard: refused as out of date
    assert replicas_of(coordinator) == 0
    cell.sync()
    cell.agent.grant({"a": Target(1, 3)})
    assert replicas_of(coordinator) == 3
    before = len(cell.coordinators.targets)
    cell.sync()
    cell.agent.grant({"a": Target(1, 3)})
    assert len(cell.coordinators.targets) == before, "it has it"


def test_an_order_that_was_lost_on_the_way_is_given_again(cell: Cell) -> None:
    class Losing(FakeCoordinators):
        def set_target(self, job_id: str, target: Target) -> bool:
            return job_id in self.by_job  # it is told without waiting for an answer

    coordinator = cell.run()
    asyncio.run(coordinator.declare(asdict(WISH)))
    cell.agent.coordinators = losing = Losing()
    losing.by_job = cell.coordinators.by_job
    cell.sync()
    cell.agent.grant({"a": Target(1, 0)})
    assert replicas_of(coordinator) is None
    cell.agent.coordinators = cell.coordinators
    cell.sync()
    cell.agent.grant({"a": Target(1, 0)})
    assert replicas_of(coordinator) == 0


def test_a_spec_wishes_only_when_it_says_how_many_and_of_what() -> None:
    assert spec_wish(record_of()) is None
    assert spec_wish(record_of(max_workers=4)) is None
    assert spec_wish(record_of(worker_resources=GPU)) is None
    labels = {"ray.io/market-type": "spot"}
    full = record_of(min_workers=2, max_workers=4, worker_resources=GPU, worker_labels=labels)
    assert spec_wish(full) == Wish("n-1", 2, 4, GPU, labels)


def test_the_spec_speaks_until_the_coordinator_does(cell: Cell) -> None:
    cell.submit(min_workers=1, max_workers=2, worker_resources=GPU)
    cell.sync()
    assert cell.agent.wishes() == [Wish("a", 1, 2, GPU)]
    coordinator = cell.coordinators.start("a")
    asyncio.run(coordinator.declare(asdict(WISH)))
    cell.sync()
    assert cell.agent.wishes() == [WISH]
    asyncio.run(coordinator.declare(None))
    cell.sync()
    assert cell.agent.wishes() == []


def test_a_job_that_no_longer_trains_wishes_nothing_but_a_busy_one_still_does(cell: Cell) -> None:
    asyncio.run(cell.run().declare(asdict(WISH)))
    cell.sync()
    cell.coordinators.faults["a"] = TimeoutError()
    cell.sync()
    assert cell.agent.wishes() == [WISH]
    cell.coordinators.faults.clear()
    del cell.coordinators.by_job["a"]
    cell.sync()
    assert cell.agent.wishes() == []


def test_nothing_is_bought_for_a_job_that_is_being_stopped(cell: Cell) -> None:
    asyncio.run(cell.run().declare(asdict(WISH)))
    cell.sync()
    cell.move(JobState.STOPPING)
    assert cell.agent.wishes() == []


def test_a_grant_is_sent_when_it_changes_and_each_is_newer_than_the_last(cell: Cell) -> None:
    cell.run()
    for replicas in (4, 4, 2, 2, 4):
        cell.agent.grant({"a": Target(1, replicas)})
    sent = [target for _, target in cell.coordinators.targets]
    assert [target.replicas for target in sent] == [4, 2, 4]
    assert sent[0].epoch < sent[1].epoch < sent[2].epoch


def test_a_grant_waits_for_its_coordinator(cell: Cell) -> None:
    cell.submit()
    cell.agent.grant({"a": Target(1, 4)})
    cell.coordinators.start("a")
    cell.agent.grant({"a": Target(1, 4)})
    assert [job_id for job_id, _ in cell.coordinators.targets] == ["a"]


def test_a_program_that_trains_twice_is_granted_twice(cell: Cell) -> None:
    cell.run()
    cell.agent.grant({"a": Target(1, 4)})
    del cell.coordinators.by_job["a"]
    cell.sync()
    second = cell.coordinators.start("a")
    cell.agent.grant({"a": Target(1, 4)})
    assert asyncio.run(second.look())["target"] is not None
    assert len(cell.coordinators.targets) == 2


@pytest.mark.parametrize(("retries", "status", "tries"), [(0, 5, 1), (1, 5, 2), (2, 0, 3), (9, 0, 3)])
def test_a_command_is_tried_again(tmp_path: Path, retries: int, status: int, tries: int) -> None:
    command = "echo x >> tries; [ $(wc -l < tries) -ge 3 ] || exit 5"
    done = shell(entrypoint_of(record_of(entrypoint=command, working_dir=str(tmp_path), max_retries=retries), tmp_path))
    assert done.returncode == status
    assert (tmp_path / "tries").read_text() == "x\n" * tries


def test_why_a_job_failed_is_one_line() -> None:
    said = "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\nhi"
    assert first_line(said) == "command failed with exit code 3"


def test_the_submission_tells_the_program_its_workers(tmp_path: Path) -> None:
    job = record_of(min_workers=2, max_workers=4, worker_resources=GPU, entrypoint=f'echo "${GRANT_ENV}"')
    assert json.loads(shell(entrypoint_of(job, tmp_path)).stdout)["max_workers"] == 4


def test_saving_and_idle_nodes_are_paid_by_the_reserve() -> None:
    assert time_to_save_s(120.0, 60.0, fleet_pays=False) == 90.0
    assert time_to_save_s(120.0, 60.0, fleet_pays=True) == 60.0
    assert time_to_save_s(120.0, 300.0, fleet_pays=True) == 30.0  # the guide says what is wrong with that
