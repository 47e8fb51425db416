"""The SDK against the shipped fake, through a real server; and the start of a controller as a real process."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

import tradewind as tw
from tradewind import errors
from tradewind.client import connect, locate
from tradewind.controller_process import find_controller
from tradewind.home import FleetHome, pick_fleet
from tradewind.model import Contract, JobSpec
from tradewind.states import JobState
from tradewind.submission import build_spec, name_of, parse_deadline_s, parse_workers
from tradewind.testing import FakeController, served
from tradewind.wire import Wire

FAKE = (sys.executable, "-m", "tradewind.testing")


@pytest.fixture
def place(tmp_path: Path) -> FleetHome:
    return FleetHome(tmp_path, "fake")


@pytest.fixture
def fake(place: FleetHome) -> Iterator[FakeController]:
    with served(place) as controller:
        yield controller


@pytest.fixture
def fleet(place: FleetHome, fake: FakeController) -> Iterator[tw.Fleet]:
    with connect(place.root, place.fleet, start=False) as found:
        yield found


# --- jobs ------------------------------------------------------------------------------------------------------


def test_a_job_from_submit_to_receipt(fleet: tw.Fleet, fake: FakeController) -> None:
    job = fleet.submit("python train.py", workers=(2, 4), resources={"GPU": 1}, env={"A": "b"}, budget="$3")
    assert job.info.state is JobState.QUEUED
    assert (job.info.min_workers, job.info.max_workers) == (2, 4)
    fake.add_node("n1", job_id=job.job_id)
    fake.run(job.job_id)
    fake.step(job.job_id, 5, total_steps=10, loss=0.5)
    assert (job.status().step, job.info.loss, job.info.nodes) == (5, 0.5, ("n1",))
    fake.print(job.job_id, "hello\n")
    assert job.logs() == "hello\n"
    fake.move(job.job_id, JobState.SUCCEEDED)
    assert job.wait(timeout_s=20).state is JobState.SUCCEEDED
    assert job.receipt().job_id == job.job_id
    assert job.receipt_json()["simulated"] is True
    assert fleet.bill().simulated
    assert fleet.bill_json()["jobs"][0]["job_id"] == job.job_id


def test_fleet_queries(fleet: tw.Fleet, fake: FakeController) -> None:
    job = fleet.submit("python train.py")
    fake.add_node("n1")
    assert [found.job_id for found in fleet.jobs()] == [job.job_id]
    assert fleet.job(job.job_id).info == job.info
    assert [node.launch_id for node in fleet.nodes()] == ["n1"]
    status = fleet.status()
    assert (status.fleet, status.simulated, len(status.nodes)) == ("fake", True, 1)
    assert status.price_uusd_per_h == 9_830_000


def test_following_logs_ends_with_the_job(fleet: tw.Fleet, fake: FakeController) -> None:
    job = fleet.submit("python train.py")
    fake.print(job.job_id, "one\n")
    pieces = job.logs(follow=True)
    assert next(pieces) == "one\n"
    fake.print(job.job_id, "two\nthree\n")
    assert next(pieces) == "two\nthree\n"
    fake.move(job.job_id, JobState.STOPPED)
    assert list(pieces) == []
    assert job.logs(tail=1) == "three\n"


def test_stop(fleet: tw.Fleet) -> None:
    job = fleet.submit("python train.py")
    assert job.stop().state is JobState.STOPPED
    assert job.stop().state is JobState.STOPPED  # once more changes nothing


def test_wait_raises_where_the_job_failed_or_goes_on(fleet: tw.Fleet, fake: FakeController) -> None:
    job = fleet.submit("python train.py")
    with pytest.raises(errors.JobTimeout, match="still queued"):
        job.wait(timeout_s=0)
    fake.move(job.job_id, JobState.FAILED, "exit status 3")
    with pytest.raises(errors.JobFailed, match="exit status 3"):
        job.wait(timeout_s=20)


def test_events_and_preemption(fleet: tw.Fleet, fake: FakeController) -> None:
    fake.add_node("n1")
    last = fleet.events()[-1].sequence
    assert fleet.preempt("aws/*", notice="5s") == ["n1"]
    assert [line.event["kind"] for line in fleet.events(after=last, wait_s=5)] == ["notice_received"]
    assert fleet.preempt("n1") == ["n1"]
    with pytest.raises(errors.NotFound):
        fleet.preempt("n1")


def test_reprs_say_what_it_is_and_escape_html(fleet: tw.Fleet, fake: FakeController) -> None:
    job = fleet.submit("python train.py", name="<b>")
    assert repr(job) == "Job('<b>-1', '<b>', queued)"
    assert "&lt;b&gt;" in job._repr_html_()
    assert "<b>-1" not in job._repr_html_()
    assert "fake" in repr(fleet)
    assert "&lt;b&gt;" in fleet._repr_html_()


# --- errors ----------------------------------------------------------------------------------------------------


def test_an_unknown_job_is_told_with_the_nearest(fleet: tw.Fleet) -> None:
    job = fleet.submit("python train.py")
    with pytest.raises(errors.JobNotFound) as caught:
        fleet.job("trian-1")
    assert job.job_id in caught.value.hint


def test_odd_job_ids_stay_one_part_of_the_path(fleet: tw.Fleet) -> None:
    for odd in ("a/b", "../jobs", "a?b", "%2e"):
        with pytest.raises((errors.JobNotFound, errors.ControllerError)):
            fleet.job(odd)


def test_errors_come_back_as_their_class(fleet: tw.Fleet, fake: FakeController) -> None:
    fake.break_with(errors.RayError("the head is gone"))
    with pytest.raises(errors.RayError, match="the head is gone"):
        fleet.status()
    fake.break_with(ValueError("a defect"))
    with pytest.raises(errors.ControllerError, match="ValueError: a defect"):
        fleet.status()


def test_no_controller(place: FleetHome) -> None:
    with pytest.raises(errors.ControllerError, match="no controller runs") as caught:
        connect(place.root, place.fleet, start=False)
    assert "tradewind up" in caught.value.hint


def test_a_start_that_fails_shows_its_own_words_and_not_those_of_the_start_before(place: FleetHome) -> None:
    for word in ("first", "second"):
        command = [sys.executable, "-c", f"print({word!r}); raise SystemExit(3)"]
        with pytest.raises(errors.ControllerError, match=f"status 3 while starting:\n{word} [(]all of"):
            connect(place.root, place.fleet, command=command)
    assert place.log_tail() == "first\nsecond"
    assert place.log_tail(after=1_000_000) == "first\nsecond", "begun anew"


def test_a_file_left_by_a_dead_controller_counts_as_none(place: FleetHome) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place.announce(f"http://127.0.0.1:{port}", 999_999, "0")
    assert find_controller(place) is None
    with pytest.raises(errors.ControllerError, match="process 999999 has died; its nodes may still run") as caught:
        connect(place.root, place.fleet, start=False)
    assert "`tradewind down` ends them" in caught.value.hint


def test_another_controller_on_the_same_port_is_not_taken_for_ours(place: FleetHome, fake: FakeController) -> None:
    said = place.announced()
    assert said
    place.announce(said.url, said.pid + 1, said.version)
    assert find_controller(place) is None


def test_a_token_that_others_may_read_is_refused(place: FleetHome, fake: FakeController) -> None:
    place.token_file.chmod(0o640)
    with pytest.raises(errors.Unauthorized, match="others may read") as caught:
        connect(place.root, place.fleet, start=False)
    assert "chmod 600" in caught.value.hint


def test_a_wrong_token_is_refused(place: FleetHome, fake: FakeController) -> None:
    place.token_file.write_text("wrong")
    with connect(place.root, place.fleet, start=False) as fleet, pytest.raises(errors.Unauthorized):
        fleet.status()


def test_a_new_token_is_for_its_owner_only(place: FleetHome) -> None:
    token = place.make_token()
    assert len(token) >= 32
    assert place.token_file.stat().st_mode & 0o777 == 0o600
    assert place.make_token() == token


def test_a_controller_that_goes_away_is_told(place: FleetHome) -> None:
    with served(place):
        fleet = connect(place.root, place.fleet, start=False)
    with pytest.raises(errors.ControllerError, match="no controller answers"):
        fleet.status()


def answer_on_loopback(replies: list[bytes]) -> tuple[str, threading.Thread]:
    """One connection for each reply; an empty one hangs up without an answer."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listener:
            for reply in replies:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(reply)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}", thread


HEALTH = b'{"service":"tradewind","version":"0","pid":7}'
GOOD = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(HEALTH), HEALTH)


def test_a_get_is_tried_again_when_the_connection_breaks() -> None:
    url, thread = answer_on_loopback([b"", b"", GOOD])
    assert Wire(url, "t").health().pid == 7
    thread.join(10)


def test_a_post_is_not_tried_again() -> None:
    url, _ = answer_on_loopback([b"", GOOD])
    with pytest.raises(errors.ControllerError, match="broke"):
        Wire(url, "t").post("/v1/shutdown", dict)


def test_another_program_on_the_port_is_told() -> None:
    url, _ = answer_on_loopback([b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi"])
    with pytest.raises(errors.ControllerError, match="not Tradewind's"):
        Wire(url, "t").health()


# --- starting and ending ---------------------------------------------------------------------------------------


def test_connect_starts_one_controller_and_down_ends_it(place: FleetHome) -> None:
    with connect(place.root, place.fleet, command=FAKE) as first:
        assert first.started
        assert first.pid is not None
        assert os.getsid(first.pid) == first.pid  # Ctrl-C in this terminal does not reach it
        with connect(place.root, place.fleet, command=FAKE) as second:
            assert (second.pid, second.started) == (first.pid, False)
            second.submit("python train.py")
        report = first.down()
    assert len(report.jobs_stopped) == 1
    assert place.announced() is None
    with pytest.raises(ProcessLookupError):
        os.kill(first.pid, 0)


def test_two_that_connect_at_once_get_one_controller(place: FleetHome) -> None:
    found: list[tw.Fleet] = []
    threads = [
        threading.Thread(target=lambda: found.append(connect(place.root, place.fleet, command=FAKE))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len({fleet.pid for fleet in found}) == 1
    assert [fleet.started for fleet in found].count(True) == 1
    next(fleet for fleet in found if fleet.started).down()


def test_a_controller_that_dies_at_the_start_shows_its_log(place: FleetHome) -> None:
    command = (sys.executable, "-c", "import sys; sys.exit('boom: no memory')")
    with pytest.raises(errors.ControllerError, match="boom: no memory") as caught:
        connect(place.root, place.fleet, command=command)
    assert str(place.log_file) in caught.value.hint


def test_a_controller_that_never_answers_is_given_up_and_ended(place: FleetHome) -> None:
    before = set(psutil.Process().children())
    with pytest.raises(errors.ControllerError, match="did not answer"):
        connect(place.root, place.fleet, command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=0.5)
    assert set(psutil.Process().children()) <= before


def test_what_is_left_after_the_end_is_an_error(fleet: tw.Fleet, fake: FakeController) -> None:
    fake.left_behind = ("n7",)
    with pytest.raises(errors.ControllerError, match="n7"):
        fleet.down()


# --- places ----------------------------------------------------------------------------------------------------


def test_the_only_fleet_that_runs_is_meant(tmp_path: Path) -> None:
    assert pick_fleet(tmp_path, None, "default") == "default"
    FleetHome(tmp_path, "one").announce("http://x", 1, "0")
    assert pick_fleet(tmp_path, None, "default") == "one"
    assert pick_fleet(tmp_path, "two", "default") == "two"
    FleetHome(tmp_path, "two").announce("http://x", 1, "0")
    with pytest.raises(errors.ControllerError, match="one, two"):
        pick_fleet(tmp_path, None, "default")


def test_what_cannot_be_undone_goes_to_no_fleet_by_default_where_several_run(tmp_path: Path) -> None:
    FleetHome(tmp_path, "default").announce("http://x", 1, "0")
    assert pick_fleet(tmp_path, None, "default", is_sure=True) == "default"
    FleetHome(tmp_path, "lab").announce("http://x", 1, "0")
    assert pick_fleet(tmp_path, None, "default") == "default"
    assert pick_fleet(tmp_path, "lab", "default", is_sure=True) == "lab"
    with pytest.raises(errors.ControllerError, match="default, lab"):
        pick_fleet(tmp_path, None, "default", is_sure=True)


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", ".hidden"])
def test_a_fleet_name_cannot_leave_the_home(tmp_path: Path, name: str) -> None:
    with pytest.raises(errors.ConfigError):
        FleetHome(tmp_path, name)


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRADEWIND_HOME", str(tmp_path))
    monkeypatch.setenv("TRADEWIND_FLEET", "lab")
    assert locate() == FleetHome(tmp_path, "lab")
    assert locate(fleet="other") == FleetHome(tmp_path, "other")


def test_the_environment_names_a_controller_elsewhere(
    monkeypatch: pytest.MonkeyPatch, place: FleetHome, fake: FakeController
) -> None:
    said = place.announced()
    assert said
    monkeypatch.setenv("TRADEWIND_URL", said.url)
    monkeypatch.setenv("TRADEWIND_TOKEN", place.read_token())
    with connect() as fleet:
        assert fleet.status().fleet == "fake"


# --- what is submitted -----------------------------------------------------------------------------------------


def test_a_command_runs_in_the_present_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    spec = build_spec(["python", "my train.py"], now_s=100.0, workers="2..4", deadline="1m", budget=0.5)
    assert spec == JobSpec(
        name="my-train",
        entrypoint="python 'my train.py'",
        working_dir=str(tmp_path),
        min_workers=2,
        max_workers=4,
        contract=Contract(160.0, 500_000),
    )


def test_a_spec_is_kept_but_for_what_is_given() -> None:
    spec = JobSpec(name="a", entrypoint="x", min_workers=1, max_workers=2, env={"A": "1"}, tenant="t")
    assert build_spec(spec, now_s=0.0) == spec
    changed = build_spec(spec, now_s=0.0, env={"B": "2"}, tenant="u")
    assert (changed.env, changed.tenant, changed.max_workers) == ({"A": "1", "B": "2"}, "u", 2)


def test_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: lab\nentrypoint: python train.py\nworkers: 2..4\ntenant: ann\n")
    spec = build_spec(str(file), now_s=0.0, tenant="bob")
    assert (spec.name, spec.min_workers, spec.max_workers, spec.tenant) == ("lab", 2, 4, "bob")
    assert spec.working_dir == str(tmp_path), "it runs where its file is"


def test_what_is_given_of_resources_is_put_beside_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("entrypoint: python train.py\nworkers: 2\nresources: {cpu: 2, gpu: 1}\n")
    assert build_spec(str(file), now_s=0.0, resources={"GPU": 0.0}).worker_resources == {"CPU": 2.0}
    with pytest.raises(errors.ConfigError, match="needs nothing"):
        build_spec("true", now_s=0.0, workers=1, resources={"GPU": 0.0})
    with pytest.raises(errors.ConfigError, match="write 'CPU'"):
        build_spec("true", now_s=0.0, workers=1, resources={"cpus": 1.0})
    with pytest.raises(errors.ConfigError, match="there are none"):
        build_spec("true", now_s=0.0, resources={"GPU": 1.0})


@pytest.mark.parametrize(
    ("name", "known"), [("A100", "A100"), ("H1000", ""), ("a100", "A100"), ("in(A100,L4)", "in(A100,L4)")]
)
def test_an_accelerator_that_nobody_sells_is_refused(name: str, known: str) -> None:
    def build() -> JobSpec:
        return build_spec("true", now_s=0.0, workers=1, labels={"ray.io/accelerator-type": name})

    if known:
        assert build().worker_labels == {"ray.io/accelerator-type": known}
    else:
        with pytest.raises(errors.ConfigError, match=r"did you mean .*A?H?100"):
            build()


@pytest.mark.parametrize(
    ("given", "found"),
    [(3, (3, 3)), ("3", (3, 3)), ("2..4", (2, 4)), ((1, 8), (1, 8)), ("2-4", (2, 4)), ("0", (0, 0))],
)
def test_workers(given: int | str | tuple[int, int], found: tuple[int, int]) -> None:
    assert parse_workers(given) == found


@pytest.mark.parametrize("given", ["4..2", "many", "", -1, (3, 1), "2..4..6"])
def test_workers_that_are_none(given: int | str | tuple[int, int]) -> None:
    with pytest.raises(errors.ConfigError, match="workers"):
        parse_workers(given)


def test_deadlines() -> None:
    moment = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    assert parse_deadline_s(moment, 0.0) == moment.timestamp()
    assert parse_deadline_s("2026-01-02T03:04+00:00", 0.0) == moment.timestamp()
    day = datetime(2030, 5, 1).astimezone()  # the zone of this machine
    assert parse_deadline_s("2030-05-01", 0.0) == day.timestamp()
    assert parse_deadline_s("2h", 100.0) == 7300.0
    assert parse_deadline_s(60, 100.0) == 160.0
    with pytest.raises(errors.ConfigError, match="deadline"):
        parse_deadline_s("soon", 0.0)
    with pytest.raises(errors.ConfigError, match="in the past"):
        build_spec("true", now_s=1.9e9, deadline="2020-01-01")


@pytest.mark.parametrize(
    ("entrypoint", "name"),
    [
        ("python train.py --lr 1", "train"),
        ("python -u -m lab.models.gpt2 --x", "gpt2"),
        ("CUDA=1 bash run.sh", "run"),
        ("/usr/bin/python3 a/b.c.py", "c"),
        ("env", "job"),
        ("echo 'hi'", "echo"),
        ("python -c 'print(1, 2)'", "python"),
        ("python 'a b/train it.py'", "train-it"),
        ("echo 'open", "echo"),
    ],
)
def test_a_name_from_a_command(entrypoint: str, name: str) -> None:
    assert name_of(entrypoint) == name


def test_a_working_folder_that_is_none_is_told() -> None:
    with pytest.raises(errors.ConfigError, match="not a folder"):
        build_spec("x", now_s=0.0, working_dir="/no/such/folder")


def test_what_a_nodes_machine_wrote_is_asked_for_by_the_beginning_of_its_id(
    fleet: tw.Fleet, fake: FakeController
) -> None:
    fake.add_node("tw-abc")
    assert fleet.node_log("tw-a") == "console of tw-abc\n"
    with pytest.raises(errors.NotFound):
        fleet.node_log("tw-unknown")
