"""The command line against the shipped fake: every command, its JSON, and what it says when things go wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tradewind import __version__, errors
from tradewind.api import EventLine, JobInfo
from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.client import connect
from tradewind.controller_process import find_controller, run_controller
from tradewind.events import DecisionRecorded, JobSubmitted, decode
from tradewind.home import FleetHome
from tradewind.model import JobSpec
from tradewind.states import JobState
from tradewind.store import EventLog
from tradewind.testing import FakeController, served

FAKE = (sys.executable, "-m", "tradewind.testing")
Run = Callable[..., Result]
SPEC = JobSpec(name="train", entrypoint="python train.py", min_workers=2, max_workers=4)

# Every command that asks a controller, with arguments that work on the fleet of the fixture.
ASKING = {
    "status": ["status"],
    "jobs": ["jobs"],
    "nodes": ["nodes"],
    "logs": ["logs", "train-1"],
    "stop": ["stop", "train-1"],
    "forecast": ["forecast"],
    "why now": ["why", "now"],
    "why job": ["why", "job", "train-1"],
    "why node": ["why", "node", "n1"],
    "cost": ["cost"],
    "cost job": ["cost", "train-1"],
    "cost by tenant": ["cost", "tenant"],
    "cost focus": ["cost", "--focus"],
    "resume": ["resume", "train-1", "--budget", "5"],
    "watch": ["watch", "--for", "0.3s"],
    "preempt": ["preempt", "n1"],
    "down": ["down", "--yes"],
}
ABOUT_A_JOB = [["logs"], ["logs", "-f"], ["stop"], ["cost"], ["cost", "--json"], ["watch"]]


@pytest.fixture
def place(tmp_path: Path) -> FleetHome:
    return FleetHome(tmp_path, "fake")


@pytest.fixture
def run(place: FleetHome) -> Run:
    """The command line in this process."""

    def invoke(*args: str, given: str | None = None) -> Result:
        flags = ["--home", str(place.root), "--fleet", place.fleet]
        return CliRunner().invoke(cli, [*flags, *args], obj=Options(command=FAKE), input=given)

    return invoke


@pytest.fixture
def fake(place: FleetHome) -> Iterator[FakeController]:
    """One job that trains on one node."""
    with served(place) as controller:
        controller.submit(SPEC)
        controller.add_node("n1", job_id="train-1")
        controller.run("train-1")
        controller.step("train-1", 5, total_steps=10, loss=0.25)
        controller.print("train-1", "epoch 1\n")
        controller.record(
            DecisionRecorded(at_s=controller.now_s, action="launch", subject="n1", reason="cheapest of 9 that fit")
        )
        yield controller


# --- what is printed -------------------------------------------------------------------------------------------


def test_status_is_one_screen(run: Run, fake: FakeController) -> None:
    done = run("status")
    assert done.exit_code == 0, done.stderr
    for word in ("Fleet fake", "(simulated)", "train-1", "2 of 2..4", "5/10", "p4d.24xlarge", "cheapest of 9"):
        assert word in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
    assert len(done.stdout.splitlines()) <= 24


def test_tables_that_are_piped_are_cut_only_where_columns_asks_for_it(
    run: Run, fake: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.move("train-1", JobState.FAILED, "a long reason " * 20)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "…" not in run("jobs").stdout
    monkeypatch.setenv("COLUMNS", "60")
    assert "…" in run("jobs").stdout
    assert max(map(len, run("jobs").stdout.splitlines())) <= 60


def test_jobs_nodes_logs(run: Run, fake: FakeController) -> None:
    assert "train-1" in run("jobs").stdout
    assert "n1" in run("nodes").stdout
    assert run("logs", "train-1").stdout == "epoch 1\n"
    assert run("logs", "-n", "0", "train-1").stdout == ""
    fake.preempt("n1", None)
    assert "n1" not in run("nodes").stdout
    assert "preempted" in run("nodes", "--all").stdout
    fake.move("train-1", JobState.SUCCEEDED)
    assert "train-1" not in run("jobs", "--open").stdout
    assert run("logs", "-f", "train-1").stdout == "epoch 1\n"


def test_an_empty_fleet_says_what_to_do(run: Run, place: FleetHome) -> None:
    with served(place):
        assert "tradewind submit" in run("jobs").stdout
        assert "No nodes" in run("nodes").stdout
        assert run("status").exit_code == 0


def test_stop(run: Run, fake: FakeController) -> None:
    assert "stopped" in run("stop", "--wait", "train-1").stdout
    assert fake.job("train-1").state is JobState.STOPPED


def test_cost_is_a_receipt_or_the_bill(run: Run, fake: FakeController) -> None:
    receipt, bill = run("cost", "train-1"), run("cost")
    assert (receipt.exit_code, bill.exit_code) == (0, 0), receipt.stderr + bill.stderr
    assert "train-1" in receipt.stdout
    assert "simulated" in receipt.stdout
    assert "simulated" in bill.stdout


def test_preempt(run: Run, fake: FakeController) -> None:
    assert "in 5s: n1" in run("preempt", "n1", "--notice", "5s").stdout
    assert "at once: n1" in run("preempt", "aws/*/spot").stdout
    assert run("preempt", "n1").exit_code == 1


class Eventful(FakeController):
    """Things happen when they are waited for: the job ends after three looks, a long poll sees a preemption."""

    looks = 0

    def job(self, job_id: str) -> JobInfo:
        self.looks += 1
        if self.looks == 3:
            self.move(job_id, JobState.SUCCEEDED)
        return super().job(job_id)

    def events(self, *, after: int = 0, limit: int = 1000, wait_s: float = 0.0) -> Sequence[EventLine]:
        if wait_s and self._is_alive("n1"):
            self.preempt("n1", None)
        return super().events(after=after, limit=limit, wait_s=wait_s)


def test_watching_a_job_prints_lines_until_it_is_over(run: Run, place: FleetHome) -> None:
    with served(place, Eventful()) as fake:
        fake.record(JobSubmitted(at_s=0.0, job_id="train-1", spec=SPEC))
        fake.run("train-1")
        fake.step("train-1", 5, total_steps=10, loss=0.25)
        done = run("watch", "train-1")
    assert done.exit_code == 0, done.stderr
    running, over = done.stdout.splitlines()
    assert running.startswith("train-1 running  training  workers 2 of 2..4  step 5/10  loss 0.25")
    assert over.startswith("train-1 succeeded")


def test_watching_the_fleet_prints_events(run: Run, place: FleetHome) -> None:
    with served(place, Eventful()) as fake:
        fake.add_node("n1")
        done = run("watch", "--for", "0.5s")
    assert "node_gone n1: preempted" in done.stdout


@pytest.mark.parametrize(
    "args",
    [args for name, args in ASKING.items() if name not in ("logs", "watch") and "--focus" not in args],
    ids=" ".join,
)
def test_json_is_json(run: Run, fake: FakeController, args: list[str]) -> None:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout) is not None


def test_watch_gives_json_lines(run: Run, fake: FakeController) -> None:
    fake.move("train-1", JobState.SUCCEEDED)
    lines = run("watch", "--json", "train-1").stdout.splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["succeeded"]


def test_submit_gives_json_lines_too_while_it_watches(run: Run, fake: FakeController) -> None:
    def end() -> None:
        while "train-2" not in {job.job_id for job in fake.jobs()}:
            time.sleep(0.01)
        fake.move("train-2", JobState.FAILED, "it broke")

    ending = threading.Thread(target=end)
    ending.start()
    done = run("submit", "--json", "--watch", "--", "python", "train.py")
    ending.join()
    assert done.exit_code == 1
    states = [json.loads(line)["state"] for line in done.stdout.splitlines()]
    assert states[-1] == "failed"
    assert "it broke" in done.stderr


def test_what_a_job_prints_is_no_json(run: Run, fake: FakeController) -> None:
    done = run("submit", "--json", "--follow", "--", "python", "train.py")
    assert done.exit_code == 2
    assert "leave out --json" in done.stderr
    assert len(fake.jobs()) == 1


def test_the_version_is_an_option_as_well(run: Run) -> None:
    assert run("--version").stdout == run("version").stdout == f"tradewind {__version__}\n"


# --- submit ----------------------------------------------------------------------------------------------------


def test_submit_a_command(run: Run, fake: FakeController, tmp_path: Path) -> None:
    flags = ["--workers", "2..4", "--gpus", "1", "--accelerator", "A100", "--env", "A=b=c", "--budget", "2.5"]
    more = ["--working-dir", str(tmp_path), "--tenant", "ann", "--retries", "1"]
    done = run("submit", *flags, *more, "--", "python", "train.py", "--lr", "1")
    assert done.exit_code == 0, done.stderr
    assert "Submitted train-2" in done.stdout
    assert "tradewind logs -f train-2" in done.stdout
    spec = next(line.event["spec"] for line in reversed(fake.events()) if line.event["kind"] == "job_submitted")
    assert spec["entrypoint"] == "python train.py --lr 1"
    assert (spec["min_workers"], spec["max_workers"], spec["worker_resources"]) == (2, 4, {"GPU": 1.0})
    assert (spec["env"], spec["tenant"], spec["max_retries"]) == ({"A": "b=c"}, "ann", 1)
    assert spec["worker_labels"] == {"ray.io/accelerator-type": "A100"}
    assert spec["contract"]["budget_uusd"] == 2_500_000


def test_submit_warns_of_what_can_never_start(run: Run, fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "its workers can never start: no offer has the accelerator H100: this fleet's have L4"
    submit = fake.submit
    monkeypatch.setattr(fake, "submit", lambda spec: replace(submit(spec), warning=told))
    assert f"  warning: {told}; they wait" in run("submit", "--", "python", "train.py").stdout
    assert json.loads(run("submit", "--json", "--", "python", "train.py").stdout)["warning"] == told


def test_submit_a_file(run: Run, fake: FakeController, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: lab\nentrypoint: python train.py\nworkers: 2..4\n")
    assert json.loads(run("submit", str(file), "--json").stdout)["name"] == "lab"
    file.write_text("name: lab\nentrypint: python train.py\n")
    bad = run("submit", str(file))
    assert bad.exit_code == 1
    assert "job.yaml:2" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_submit_and_follow_ends_with_the_job_and_tells_that_it_failed(run: Run, fake: FakeController) -> None:
    def fail() -> None:
        fake.print("echo-2", "out of memory\n")
        fake.move("echo-2", JobState.FAILED, "exit status 1")

    watching = threading.Thread(target=lambda: (_await_job(fake, "echo-2"), fail()))
    watching.start()
    done = run("submit", "--follow", "--", "echo", "hi")
    watching.join()
    assert done.exit_code == 1
    assert "out of memory" in done.stdout
    assert "exit status 1" in done.stderr
    assert "tradewind logs echo-2" in done.stderr


def _await_job(fake: FakeController, job_id: str) -> None:
    after = 0
    while job_id not in [job.job_id for job in fake.jobs()]:
        lines = fake.events(after=after, wait_s=10)
        assert lines, "the job did not come"
        after = lines[-1].sequence


@pytest.mark.parametrize(
    "args",
    [
        ["submit"],
        ["submit", "--env", "novalue", "--", "x"],
        ["submit", "--gpus", "-1", "--", "x"],
        ["submit", "--nothing", "x"],
        ["logs"],
        ["preempt"],
        ["schema", "nothing"],
        ["up", "/no/such/file.yaml"],
        ["statsu"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(run: Run, fake: FakeController, args: list[str]) -> None:
    done = run(*args)
    assert done.exit_code == 2
    assert "Usage" in done.stderr
    assert "Traceback" not in done.stderr


# --- when things go wrong --------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", ABOUT_A_JOB, ids=" ".join)
def test_an_unknown_job(run: Run, fake: FakeController, args: list[str]) -> None:
    done = run(*args, "trian-1")
    assert done.exit_code == 1
    assert "Error: there is no job trian-1" in done.stderr
    assert "did you mean train-1?" in done.stderr


@pytest.mark.parametrize("args", ASKING.values(), ids=ASKING)
def test_no_controller(run: Run, args: list[str]) -> None:
    done = run(*args)
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0].startswith("Error: no controller runs for fleet fake")
    hint = done.stderr.splitlines()[1:]
    if args[0] == "down":  # who wants to end it does not want to start it
        assert "`tradewind cost` and `tradewind jobs`" in hint[0]
    else:
        assert hint == ["Hint: start one with `tradewind up`"]


@pytest.mark.parametrize("args", ASKING.values(), ids=ASKING)
def test_a_wrong_token(run: Run, fake: FakeController, place: FleetHome, args: list[str]) -> None:
    place.token_file.write_text("wrong")
    done = run(*args)
    assert done.exit_code == 1
    assert "Error: the controller refuses this token" in done.stderr


@pytest.mark.parametrize("args", ASKING.values(), ids=ASKING)
def test_a_controller_that_fails(run: Run, fake: FakeController, args: list[str]) -> None:
    fake.break_with(errors.RayError("the Ray head does not answer"))
    done = run(*args)
    assert done.exit_code == 1
    assert "Error: the Ray head does not answer\nHint: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_traceback_only_with_debug(run: Run, fake: FakeController, place: FleetHome) -> None:
    fake.break_with(KeyError("nodes"))
    assert "Traceback" not in run("status").stderr
    debug = CliRunner().invoke(cli, ["--debug", "--home", str(place.root), "--fleet", place.fleet, "status"])
    assert "Traceback" in debug.stderr
    assert debug.exit_code == 1


# --- up, down, doctor, schema, version -------------------------------------------------------------------------


def test_up_submit_down_with_a_real_process(run: Run, place: FleetHome) -> None:
    started = run("up")
    assert started.exit_code == 0, started.stderr
    assert "Started fleet fake" in started.stdout
    assert f"tradewind --home {place.root} status" in started.stdout
    again = run("up", "--json")
    assert json.loads(again.stdout)["started"] is False
    assert "running already" in run("up").stdout
    assert run("submit", "--", "python", "train.py").exit_code == 0
    refused = run("down", given="n\n")
    assert "Without a terminal, -y says yes" in refused.stderr
    assert (refused.exit_code, "train-1" in refused.stderr) == (1, True)
    assert place.announced() is not None
    ended = run("down", given="y\n")
    assert ended.exit_code == 0, ended.stderr
    assert "Stopped 1 job" in ended.stdout
    assert "Nothing is left" in ended.stdout
    again = run("down")
    assert again.exit_code == 1
    assert "there is nothing to end" in again.stderr
    assert "tradewind up" not in again.stderr


def test_watching_a_job_that_failed_fails(run: Run, fake: FakeController) -> None:
    fake.move("train-1", JobState.FAILED, "out of memory")
    done = run("watch", "train-1")
    assert done.exit_code == 1
    assert "out of memory" in done.stderr


def test_what_is_asked_of_a_fleet_that_is_down_comes_from_its_log(
    run: Run, fake: FakeController, place: FleetHome
) -> None:
    fake.move("train-1", JobState.SUCCEEDED)
    asked = ("cost", "job", "--json"), ("jobs", "--json"), ("cost", "train", "--json"), ("forecast", "--json")
    alive = [json.loads(run(*words).stdout) for words in asked]
    place.withdraw()
    assert "no controller runs" in run("jobs").stderr, "there is no log yet"
    with EventLog.open(place.folder / "events.db") as log:
        log.append(*(decode(json.dumps(line.event)) for line in fake.events()))
    for words, before in zip(asked, alive, strict=True):
        done = run(*words)
        assert done.exit_code == 0, done.stderr
        assert "does not run: this is from its log" in done.stderr
        found = json.loads(done.stdout)
        assert [job["job_id"] for job in found] == ["train-1"] if words[0] == "jobs" else found.keys() == before.keys()
    assert "Receipt: " in run("cost", "train-1").stdout
    node, *_ = fake.nodes()
    for about, name in (("job", "train-1"), ("node", node.launch_id)):
        told = json.loads(run("why", about, name, "--json").stdout)
        assert (told["subject"], bool(told["lines"])) == (name, True)
    assert {each["launch_id"] for each in json.loads(run("nodes", "--all", "--json").stdout)} == {
        each.launch_id for each in fake.nodes()
    }
    assert "wanted now" in run("forecast").stdout
    assert "the fleet does not run" in run("forecast").stdout
    assert "no node" in run("why", "node", "nope").stderr
    assert "start one with" in run("why", "now").stderr
    assert "--fleet fake" in run("--fleet", "other", "jobs").stderr
    assert "start one with" in run("status").stderr


def test_of_a_fleet_that_ended_before_its_first_event_there_is_nothing_to_forecast(run: Run, place: FleetHome) -> None:
    place.withdraw()
    EventLog.open(place.folder / "events.db").close()
    done = run("forecast")
    assert done.exit_code == 0, done.stderr
    assert "No demand is on record" in done.stdout


def test_up_checks_the_file_first_and_takes_the_name_from_it(place: FleetHome, tmp_path: Path) -> None:
    home = ["--home", str(place.root)]
    file = tmp_path / "fleet.yaml"
    file.write_text("nmae: lab\n")
    bad = CliRunner().invoke(cli, [*home, "up", str(file)], obj=Options(command=FAKE))
    assert (bad.exit_code, "fleet.yaml:1" in bad.stderr) == (1, True)
    file.write_text("name: lab\n")
    done = CliRunner().invoke(cli, [*home, "up", str(file)], obj=Options(command=FAKE))
    assert "Started fleet lab" in done.stdout, done.stderr
    again = CliRunner().invoke(cli, [*home, "up", str(file)], obj=Options(command=FAKE))
    assert "was not read again" in again.stderr
    assert f"tradewind --home {place.root} down " in done.stdout
    # The only fleet that runs needs no --fleet.
    assert "Nothing is left" in CliRunner().invoke(cli, [*home, "down"]).stdout


@pytest.mark.parametrize(
    ("offer", "told"),
    [
        ("{cloud: aws, accelerator: H1000}", ("offers[1].accelerator: there is no 'H1000'", "H100", "known: A10")),
        (
            "{cloud: aws, accelerator: L4, region: us-west-1}",
            ("the catalogue has nothing", "with another region: "),
        ),
    ],
)
def test_up_tells_of_what_is_not_sold_before_it_starts_anything(
    place: FleetHome, tmp_path: Path, offer: str, told: tuple[str, ...]
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(f"name: lab\noffers:\n  - {{cloud: gcp}}\n  - {offer}\n")
    done = CliRunner().invoke(cli, ["--home", str(place.root), "up", str(file)], obj=Options(command=FAKE))
    assert done.exit_code == 1
    assert f"{file}:4: " in done.stderr
    assert all(text in done.stderr for text in told), done.stderr
    assert not FleetHome(place.root, "lab").folder.exists(), "no controller was started"


def test_beside_another_fleet_the_tips_of_up_name_the_one_that_was_started(place: FleetHome, tmp_path: Path) -> None:
    home = ["--home", str(place.root)]
    file = tmp_path / "fleet.yaml"
    file.write_text("name: lab\n")
    with served(FleetHome(place.root, "default")):
        done = CliRunner().invoke(cli, [*home, "up", str(file)], obj=Options(command=FAKE))
        try:
            assert f"tradewind --home {place.root} --fleet lab down " in done.stdout, done.stderr
        finally:
            CliRunner().invoke(cli, [*home, "--fleet", "lab", "down"])


def test_where_several_fleets_run_down_asks_for_a_name_and_status_says_which_one_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def call(*args: str) -> Result:
        return CliRunner().invoke(cli, ["--home", str(tmp_path), *args], obj=Options(command=FAKE))

    with served(FleetHome(tmp_path, "default")) as default, served(FleetHome(tmp_path, "lab")) as lab:
        refused = call("down", "-y")
        assert refused.exit_code == 1
        assert "several fleets run: default, lab" in refused.stderr
        assert "--fleet" in refused.stderr
        assert not default.ended.is_set()
        assert not lab.ended.is_set()
        shown = call("status", "--json")
        assert json.loads(shown.stdout)["fleet"] == "default"
        assert "This is fleet default; lab runs, too" in shown.stderr
        assert "too" not in call("--fleet", "lab", "status").stderr
        monkeypatch.setenv("TRADEWIND_FLEET", "lab")
        named = call("status", "--json")
        assert (json.loads(named.stdout)["fleet"], named.stderr) == ("lab", "")


@pytest.mark.parametrize("args", [["status"], ["jobs"], ["down"]])
def test_a_fleet_whose_name_is_nearly_right(place: FleetHome, fake: FakeController, args: list[str]) -> None:
    done = CliRunner().invoke(cli, ["--home", str(place.root), "--fleet", "faek", *args], obj=Options(command=FAKE))
    assert done.exit_code == 1
    assert "no controller runs for fleet faek" in done.stderr
    assert "did you mean `" in done.stderr
    assert "--fleet fake" in done.stderr
    assert not fake.ended.is_set()


@pytest.mark.parametrize(
    ("span", "warned"), [("48", True), ("1.5", True), ("48s", False), ("48h", False), ("2030-05-01", False)]
)
def test_a_number_alone_is_seconds_and_said_to_be(run: Run, fake: FakeController, span: str, warned: bool) -> None:
    done = run("submit", "--json", "--workers", "1", "--deadline", span, "--", "python", "train.py")
    assert done.exit_code == 0, done.stderr
    json.loads(done.stdout)
    assert (f"--deadline {span} is taken as {span} seconds; did you mean {span}h?" in done.stderr) is warned


def test_down_says_which_fleet_it_has_ended(run: Run, fake: FakeController, place: FleetHome) -> None:
    assert "Stop and end fleet fake?" in run("down", given="n\n").stderr
    assert "Stopped 1 job, ended 1 node of fleet fake. Nothing is left." in run("down", "-y").stdout


def test_a_dry_run_is_handed_to_the_controller_and_said_in_the_status(run: Run) -> None:
    started = run("up", "--dry-run")
    assert started.exit_code == 0
    assert "Dry run: nothing is launched or ended" in started.stdout
    try:
        assert "Dry run: nothing is launched or ended" in run("status").stdout
        assert json.loads(run("status", "--json").stdout)["dry_run"] is True
        assert run("up", "--dry-run").stderr == ""
    finally:
        run("down", "--yes")
    run("up")
    try:
        assert "Dry run" not in run("status").stdout
        assert "not dry" in run("up", "--dry-run").stderr
    finally:
        run("down", "--yes")


def test_a_fleet_that_leaves_something_behind_fails(run: Run, fake: FakeController) -> None:
    fake.left_behind = ("n7",)
    done = run("down", "--yes")
    assert (done.exit_code, "n7" in done.stderr) == (1, True)


def test_doctor_tells_what_to_do(run: Run, fake: FakeController, place: FleetHome) -> None:
    checks = {check["name"]: check for check in json.loads(run("doctor", "--json").stdout)}
    assert {"python", "ray", "torch", "memory", "disk", "addresses", "home", "token", "controller"} <= set(checks)
    assert all(checks[name]["ok"] for name in ("python", "ray", "torch", "home", "token", "controller"))
    place.token_file.chmod(0o644)
    sick = run("doctor")
    assert sick.exit_code == 1
    line = next(line for line in sick.stdout.splitlines() if "token" in line)
    assert line.startswith("FAIL")
    assert "chmod 600" in line


def test_doctor_sees_a_dead_controller(run: Run, place: FleetHome) -> None:
    place.announce("http://127.0.0.1:1", 999_999, "0")
    done = run("doctor")
    assert done.exit_code == 1
    assert "999999" in done.stdout


@pytest.mark.parametrize("kind", ["fleet", "job"])
def test_schema(run: Run, kind: str) -> None:
    assert json.loads(run("schema", kind).stdout)["properties"]["name"]


def test_version(run: Run) -> None:
    assert run("version").stdout == f"tradewind {__version__}\n"
    assert json.loads(run("version", "--json").stdout) == {"version": __version__}


def test_every_command_has_help(run: Run) -> None:
    names = cli.list_commands(click.Context(cli))
    wanted = "demo up down status submit jobs nodes logs stop cost doctor schema watch preempt version"
    assert set(wanted.split()) <= set(names)
    for name in names:
        done = run(name, "--help")
        assert done.exit_code == 0
        assert len(done.stdout.splitlines()) > 3


# --- as a real program -----------------------------------------------------------------------------------------


def program(place: FleetHome, *args: str) -> list[str]:
    return [sys.executable, "-m", "tradewind.cli", "--home", str(place.root), "--fleet", place.fleet, *args]


def test_help_loads_nothing_heavy() -> None:
    heavy = ["ray", "torch", "numpy", "pydantic", "rich", "fastapi", "uvicorn", "httpx", "yaml", "psutil", "asyncio"]
    code = (
        "import sys\n"
        "from tradewind.cli import cli\n"
        "try: cli(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        f"sys.stderr.write(' '.join(name for name in {heavy} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "Commands:" in done.stdout
    assert done.stderr == ""


def test_ctrl_c_is_130(place: FleetHome, fake: FakeController) -> None:
    following = subprocess.Popen(
        program(place, "logs", "-f", "train-1"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert following.stdout
    assert following.stdout.readline() == "epoch 1\n"
    following.send_signal(signal.SIGINT)
    _, said = following.communicate(timeout=30)
    assert following.returncode == 130
    assert "Traceback" not in said


def test_ctrl_c_says_that_a_submitted_job_goes_on(place: FleetHome, fake: FakeController) -> None:
    command = program(place, "submit", "--watch", "--", "python", "train.py")
    watching = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert watching.stdout
    while "train-2 queued" not in watching.stdout.readline():
        pass
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=30)
    assert watching.returncode == 130
    assert said.strip() == "train-2 goes on: `tradewind stop train-2` ends it."


@pytest.mark.parametrize(("wish", "is_red"), [("", True), ("1", False)])
def test_errors_are_red_on_a_terminal_unless_nobody_wants_colours(
    place: FleetHome, fake: FakeController, wish: str, is_red: bool
) -> None:
    screen, terminal = os.openpty()
    with os.fdopen(screen, "rb", buffering=0) as shown, os.fdopen(terminal, "wb") as out:
        env = {**os.environ, "NO_COLOR": wish}
        subprocess.run(program(place, "stop", "nope"), stderr=out, env=env, check=False, timeout=60)
        text = shown.read(4096).decode()
    assert "there is no job nope" in text
    assert ("\x1b[" in text) is is_red


def test_a_closed_pipe_is_not_an_error_on_the_screen(place: FleetHome, fake: FakeController) -> None:
    fake.print("train-1", "x" * 1_000_000)
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            program(place, "logs", "train-1"), stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert "Traceback" not in done.stderr


def test_watch_draws_on_a_terminal(place: FleetHome, fake: FakeController) -> None:
    fake.move("train-1", JobState.SUCCEEDED)
    screen, terminal = os.openpty()
    with os.fdopen(screen, "rb", buffering=0) as shown, os.fdopen(terminal, "wb") as out:
        subprocess.run(program(place, "watch", "train-1"), stdout=out, check=True, timeout=60)
        text = shown.read(4096).decode()
    assert "[###############---------------]" in text
    assert "train-1 succeeded" in text


def test_up_in_the_foreground_ends_with_its_controller(place: FleetHome) -> None:
    codes: list[int] = []
    running = threading.Thread(target=lambda: codes.append(run_controller(place, None, FAKE)))
    running.start()
    until_s = time.monotonic() + 60
    while find_controller(place) is None:
        assert time.monotonic() < until_s
        time.sleep(0.05)
    with connect(place.root, place.fleet, start=False) as fleet:
        fleet.down()
    running.join(30)
    assert codes == [0]


def test_a_bad_duration_is_a_mistake_of_the_user_not_a_defect(run: Run) -> None:
    result = run("preempt", "n-1", "--notice", "abc")
    assert result.exit_code == 2
    assert "'abc' is not a duration" in result.output


def test_a_mistake_in_a_job_starts_no_controller(run: Run, place: FleetHome) -> None:
    result = run("submit", "--workers", "4..2", "--", "true")
    assert result.exit_code == 1
    assert not place.folder.exists()


# --- cost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["job", "tenant", "team", "market", "cloud", "day", "label"])
def test_cost_by_a_word_as_table_csv_and_json(run: Run, fake: FakeController, word: str) -> None:
    table, rows, values = run("cost", word), run("cost", word, "--csv"), run("cost", word, "--json")
    assert (table.exit_code, rows.exit_code, values.exit_code) == (0, 0, 0), table.stderr + rows.stderr + values.stderr
    assert table.stdout.startswith(f"Cost by {word} (simulated)")
    assert rows.stdout.startswith(f"{word},cost_usd,")
    found = json.loads(values.stdout)
    assert sum(line["cost_uusd"] for line in found["lines"]) == found["total"]["cost_uusd"]


def test_cost_as_focus_and_as_a_page(run: Run, fake: FakeController, tmp_path: Path) -> None:
    focus, page = run("cost", "--focus"), run("cost", "--html", str(tmp_path / "cost.html"), "--since", "7d")
    assert (focus.exit_code, page.exit_code) == (0, 0), focus.stderr + page.stderr
    assert focus.stdout.startswith("AvailabilityZone,BilledCost,")
    assert "Cost of" in (tmp_path / "cost.html").read_text()
    assert run("cost", "--focus", "--json").exit_code == 2
    assert run("cost", "train-1", "--csv").exit_code == 2


def test_cost_reconcile_compares_with_a_bill(run: Run, fake: FakeController, tmp_path: Path) -> None:
    bill = tmp_path / "bill.csv"
    bill.write_text(run("cost", "--focus").stdout)
    same = run("cost", "reconcile", str(bill), "--tolerance", "50")  # the node goes on being billed meanwhile
    assert same.exit_code == 0, same.stdout + same.stderr
    head, *rows = bill.read_text().splitlines()
    bill.write_text("\n".join([head, *(row.replace("i-n1", "i-other") for row in rows)]))
    found = json.loads(run("cost", "reconcile", str(bill), "--json").stdout)
    told = sum(line["billed_uusd"] for line in found["differences"]) + sum(
        each["cost_uusd"] for each in found["others"]
    )
    assert told + found["agreeing_billed_uusd"] == found["billed_uusd"]
    bill.write_text("a,b\n1,2\n")
    assert run("cost", "reconcile", str(bill)).exit_code == 1


def test_resume_raises_a_budget_or_goes_on(run: Run, fake: FakeController) -> None:
    assert run("resume", "train-1", "--budget", "+5").exit_code == 1, "it has none that could be raised"
    for given, limit_uusd in (("5", 5_000_000), ("+5", 10_000_000)):
        assert run("resume", "train-1", "--budget", given).exit_code == 0
        with fake.ledger() as (ledger, _):
            assert ledger.jobs["train-1"].budget_uusd == limit_uusd
    fake.stop("train-1")
    done = run("resume", "train-1", "--budget", "+20", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["job_id"] == "train-2"
    assert run("resume", "train-1", "--budget", "much").exit_code == 1
    fake.run("train-2")
    fake.move("train-2", JobState.SUCCEEDED)
    done = run("resume", "train-2")
    assert done.exit_code == 1
    assert "train-2 has succeeded: nothing is left to do" in done.stderr
