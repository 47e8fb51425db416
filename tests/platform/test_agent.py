"""The agent against a pretend Jobs API: what is started, stopped and settled. Coordinators are not heard here."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from tradewind.agent import Agent, entrypoint_of, first_line
from tradewind.autoscaler.fleet import FleetState, JobRecord
from tradewind.errors import JobError
from tradewind.events import JobStateChanged, JobSubmitted
from tradewind.model import JobSpec
from tradewind.states import JobState


@dataclass
class JobsApi:
    status: dict[str, str] = field(default_factory=dict)
    reachable: bool = True

    def list_jobs(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(submission_id=key, status=status, message="") for key, status in self.status.items()]

    def submit_job(self, *, submission_id: str, **_: object) -> None:
        self.status[submission_id] = "RUNNING"

    def stop_job(self, job_id: str) -> None:
        if not self.reachable:
            raise OSError("connection refused")  # as `requests` does
        if job_id not in self.status:
            raise RuntimeError(f"Job {job_id} does not exist")
        self.status[job_id] = "STOPPED"


class DeafAgent(Agent):
    def _hear(self, job: JobRecord, now_s: float) -> None:
        pass


def agent_with_job(state: JobState | None = None) -> tuple[DeafAgent, JobsApi]:
    fleet, api = FleetState(), JobsApi()

    def record(*events: object) -> None:
        for event in events:
            fleet.apply(event)  # type: ignore[arg-type]

    record(JobSubmitted(at_s=0.0, job_id="j", spec=JobSpec(name="j", entrypoint="true")))
    if state:
        record(JobStateChanged(at_s=1.0, job_id="j", state=state))
    agent = DeafAgent("", "", Path("/storage"), record, fleet)
    agent._jobs = api
    return agent, api


def test_a_job_that_is_stopped_before_it_started_is_never_started() -> None:
    agent, api = agent_with_job(JobState.STOPPING)
    agent.sync(2.0)
    assert api.status == {}
    assert agent.fleet.jobs["j"].state is JobState.STOPPED


def test_a_stop_that_came_before_ray_knew_the_job_is_said_again() -> None:
    agent, api = agent_with_job(JobState.STOPPING)
    api.status["j"] = "RUNNING"  # it was being submitted while it was stopped
    agent.sync(2.0)
    assert api.status["j"] == "STOPPED"
    agent.sync(3.0)
    assert agent.fleet.jobs["j"].state is JobState.STOPPED


def test_a_job_that_ray_does_not_know_is_started() -> None:
    agent, api = agent_with_job()
    agent.sync(2.0)
    assert api.status == {"j": "RUNNING"}


def test_an_api_that_is_gone_is_told_as_an_error_of_ours() -> None:
    agent, api = agent_with_job()
    assert agent.stop_job("j") is False
    api.reachable = False
    with pytest.raises(JobError, match="connection refused"):
        agent.stop_job("j")


def run_entrypoint(tmp_path: Path, entrypoint: str, max_retries: int = 0) -> subprocess.CompletedProcess[str]:
    folder = tmp_path / "with space"
    folder.mkdir()
    spec = JobSpec(name="j", entrypoint=entrypoint, working_dir=str(folder), max_retries=max_retries)
    record = JobSubmitted(at_s=0.0, job_id="j", spec=spec)
    fleet = FleetState()
    fleet.apply(record)
    command = entrypoint_of(fleet.jobs["j"], tmp_path)
    return subprocess.run(command, shell=True, capture_output=True, text=True, check=False)


def test_a_command_is_a_whole_shell_line(tmp_path: Path) -> None:
    done = run_entrypoint(tmp_path, "true & echo $TRADEWIND_JOB_ID in ${PWD##*/}; false || exit 3")
    assert (done.returncode, done.stdout) == (3, "j in with space\n")


@pytest.mark.parametrize(("retries", "status", "tries"), [(0, 5, 1), (1, 5, 2), (2, 0, 3), (9, 0, 3)])
def test_a_command_is_tried_again(tmp_path: Path, retries: int, status: int, tries: int) -> None:
    done = run_entrypoint(tmp_path, "echo x >> tries; [ $(wc -l < tries) -ge 3 ] || exit 5", retries)
    assert done.returncode == status
    assert (tmp_path / "with space" / "tries").read_text() == "x\n" * tries


def test_why_a_job_failed_is_one_line() -> None:
    said = "Job entrypoint command failed with exit code 3, last available logs (truncated to 20,000 chars):\nhi"
    assert first_line(said) == "command failed with exit code 3"
