"""Asking why: the routes, the SDK and the command line, over a fake that tells from the events it was given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from tradewind.cli import cli
from tradewind.cli_base import Options
from tradewind.client import Fleet, connect
from tradewind.errors import JobNotFound, NotFound
from tradewind.events import DecisionRecorded
from tradewind.home import FleetHome
from tradewind.model import JobSpec
from tradewind.testing import FakeController, served

SPEC = JobSpec(name="train", entrypoint="python train.py", min_workers=2, max_workers=4)
Run = Callable[..., Result]


@pytest.fixture
def place(tmp_path: Path) -> FleetHome:
    return FleetHome(tmp_path, "fake")


@pytest.fixture
def fake(place: FleetHome) -> Iterator[FakeController]:
    """One job that trains on one node."""
    controller = FakeController(place.fleet)
    with served(place, controller):
        controller.submit(SPEC)
        controller.add_node("tw-12ab", job_id="train-1")
        controller.run("train-1")
        controller.record(
            DecisionRecorded(at_s=controller.now_s, action="launch", subject="tw-12ab", reason="cheapest (job train-1)")
        )
        yield controller


@pytest.fixture
def fleet(place: FleetHome, fake: FakeController) -> Iterator[Fleet]:
    with connect(place.root, place.fleet, start=False) as found:
        yield found


@pytest.fixture
def run(place: FleetHome) -> Run:
    def invoke(*args: str) -> Result:
        return CliRunner().invoke(cli, ["--home", str(place.root), "--fleet", place.fleet, *args], obj=Options())

    return invoke


def test_the_story_reaches_the_sdk_whole(fleet: Fleet, fake: FakeController) -> None:
    story = fleet.why("node", "tw-12")
    assert (story.about, story.subject) == ("node", "tw-12ab")
    assert story.lines == fake.why("node", "tw-12ab").lines
    assert "asked for aws/us-east-1a/p4d.24xlarge/spot" in str(story)
    assert fleet.job("train-1").why().subject == "train-1"
    assert fleet.why().about == "now"
    assert len(fleet.why("job", "train-1", last=1).lines) == 1


def test_an_unknown_id_is_told_with_the_nearest(fleet: Fleet) -> None:
    with pytest.raises(NotFound, match=r"no node tw-13ab .*did you mean tw-12ab"):
        fleet.why("node", "tw-13ab")
    with pytest.raises(JobNotFound, match=r"no job trian-1 .*did you mean train-1"):
        fleet.why("job", "trian-1")


@pytest.mark.parametrize("args", [["node", "tw-12"], ["job", "train"], ["now"]], ids=" ".join)
def test_the_command_prints_text_that_fits_or_json(run: Run, fake: FakeController, args: list[str]) -> None:
    text, found = run("why", *args), run("why", *args, "--json")
    assert (text.exit_code, found.exit_code) == (0, 0), text.stderr + found.stderr
    story = json.loads(found.stdout)
    assert story["about"] == args[0]
    assert story["title"] in " ".join(text.stdout.split())
    assert all(line["what"] in " ".join(text.stdout.split()) for line in story["lines"])
    assert max(len(line) for line in text.stdout.splitlines()) <= 80


@pytest.mark.parametrize("args", [["node"], ["job"], ["now", "x"], ["weather"], ["now", "--last", "0"]], ids=" ".join)
def test_wrong_usage_is_exit_code_2(run: Run, fake: FakeController, args: list[str]) -> None:
    assert run("why", *args).exit_code == 2


def test_an_unknown_id_on_the_command_line(run: Run, fake: FakeController) -> None:
    done = run("why", "node", "tw-13ab")
    assert done.exit_code == 1
    assert "did you mean tw-12ab" in done.stderr


def test_a_wrong_number_of_lines_is_422(place: FleetHome, fleet: Fleet) -> None:
    headers = {"Authorization": f"Bearer {place.read_token()}"}
    with httpx.Client(base_url=fleet.url, headers=headers, trust_env=False) as http:
        assert http.get("/v1/why/now", params={"last": 0}).status_code == 422
        assert http.get("/v1/why/node/nope").status_code == 404
