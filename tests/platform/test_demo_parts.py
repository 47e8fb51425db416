"""What the demo decides and what it shows; the demo as a whole is in tests/e2e."""

from __future__ import annotations

import io
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tradewind import demo, demo_screen
from tradewind.api import EventLine, FleetStatus, JobInfo, NodeInfo
from tradewind.config import load_fleet
from tradewind.demo import ACTS, FLEET_YAML, Show, next_act, victim, waits_for, warning_of, what_is_next
from tradewind.demo_screen import LINE_EVERY_S, SPARKS, PlainScreen, Scene, nodes_by_market, sparkline, story
from tradewind.errors import Scope
from tradewind.events import (
    KINDS,
    AnyEvent,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NoticeReceived,
    PhaseChanged,
    TerminateRequested,
)
from tradewind.model import Capacity, EndReason, JobSpec, Phase
from tradewind.service import offers_of, script_of
from tradewind.states import JobState, NodeState
from tradewind.testing import SPOT_A100, FakeController
from tradewind.views import event_line

JOB = JobInfo(
    job_id="d-1",
    name="digits",
    tenant="default",
    state=JobState.RUNNING,
    submitted_at_s=0.0,
    phase=Phase.TRAINING,
    workers=4,
    min_workers=2,
    max_workers=4,
    step=100,
    total_steps=170,
    loss=0.25,
    nodes=("n1", "n2"),
)


def node(launch_id: str = "n1", price: int | None = 1_000_000, **changes: object) -> NodeInfo:
    given = NodeInfo(
        launch_id=launch_id,
        cloud="aws",
        zone="use2-az1",
        instance_type="g4dn.12xlarge",
        capacity=Capacity.SPOT,
        state=NodeState.READY,
        since_s=0.0,
        price_uusd_per_h=price,
    )
    return replace(given, **changes)  # type: ignore[arg-type]


# --- the stage ------------------------------------------------------------------------------------------------------


def test_the_fleet_of_the_demo_has_a_spot_and_an_on_demand_market_in_each_of_three_clouds(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET_YAML)
    fleet = load_fleet(tmp_path / "fleet.yaml")
    found = [(offer.market.cloud, offer.market.capacity) for offer in offers_of(fleet)]
    assert set(found) == {(cloud, capacity) for cloud in ("aws", "gcp", "azure") for capacity in Capacity}
    assert all(offer.resources["GPU"] == 4 for offer in offers_of(fleet))
    assert script_of(fleet).stock == 1


def test_the_job_of_the_demo_runs_in_any_folder(tmp_path: Path) -> None:
    folder = tmp_path / "it's a demo"
    spec = demo._job(folder)
    words = shlex.split(spec.entrypoint)
    assert words[words.index("--storage") + 1] == str(folder / "runs")
    assert spec.worker_resources == {"CPU": 1, "GPU": 2}
    assert (spec.min_workers, spec.max_workers) == (2, 4)
    assert spec.worker_resources == {"CPU": 1, "GPU": 2}


def test_a_stage_of_its_own_is_gone_afterwards_and_a_named_one_stays(tmp_path: Path) -> None:
    folders = []

    def interrupted() -> None:
        with demo._stage(None) as folder:
            (folder / "x").write_text("")
            folders.append(folder)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not folders[0].exists()
    with demo._stage(str(tmp_path / "mine")) as folder:
        assert folder == tmp_path / "mine"
    assert folder.is_dir()


# --- acts -----------------------------------------------------------------------------------------------------------


def test_acts_come_one_after_the_other_each_when_the_job_is_far_enough() -> None:
    assert next_act(0, replace(JOB, step=25), [node()]) is None  # 0.15 of 170 is 25.5
    assert next_act(0, replace(JOB, step=26), [node()]) is ACTS[0]
    assert next_act(1, replace(JOB, step=84), [node()]) is None
    assert next_act(1, replace(JOB, step=85), [node()]) is ACTS[1]
    assert next_act(2, replace(JOB, step=170), [node()]) is None
    assert (ACTS[0].notice_s, ACTS[1].notice_s) == (demo.NOTICE_S, None)


@pytest.mark.parametrize("phase", [None, *(phase for phase in Phase if phase is not Phase.TRAINING)])
def test_no_act_while_the_job_does_not_train(phase: Phase | None) -> None:
    assert next_act(0, replace(JOB, phase=phase), [node()]) is None


def test_no_act_before_the_last_one_is_over() -> None:
    assert next_act(0, replace(JOB, workers=3, step=30), [node()]) is None
    assert next_act(0, replace(JOB, workers=3, step=100), [node()]) is ACTS[0], "a slow machine must not miss it"
    for state in (NodeState.DRAINING, NodeState.TERMINATING):
        assert next_act(0, JOB, [node(), node("n2", state=state)]) is None
    assert next_act(0, JOB, [node(), node("n2", state=NodeState.BOOTING)]) is ACTS[0]


def test_the_act_without_a_word_waits_for_a_worker_that_survives_it_and_says_so() -> None:
    late = replace(JOB, workers=2, step=140)  # 0.82 of all: the patience for the full size is over
    assert next_act(1, late, [node()]) is None
    assert "one must be left" in waits_for(1, late)
    assert next_act(1, replace(late, workers=3), [node()]) is ACTS[1]
    assert "4 workers" in waits_for(1, replace(late, step=90))
    assert waits_for(1, replace(late, step=80)) == "", "it is not its time"
    last = replace(late, step=157)
    assert next_act(1, last, [node()]) is ACTS[1], "with a deadline"
    assert "never got a second node" in warning_of(ACTS[1], last)
    assert warning_of(ACTS[1], JOB) == warning_of(ACTS[0], last) == ""


def test_a_job_that_does_not_say_its_length_has_that_of_the_demo() -> None:
    assert next_act(1, replace(JOB, total_steps=None, step=demo.STEPS // 2), [node()]) is ACTS[1]


def test_the_victim_is_the_dearest_spot_node_that_the_job_trains_on() -> None:
    nodes = [
        node("n1", 1_000_000),
        node("n2", 2_000_000),
        node("n3", 9_000_000),  # not of this job
    ]
    assert victim(JOB, nodes) == nodes[1]
    assert victim(JOB, [nodes[0], replace(nodes[1], capacity=Capacity.ON_DEMAND)]) == nodes[0]
    assert victim(JOB, [nodes[0], replace(nodes[1], state=NodeState.DRAINING)]) == nodes[0]
    assert victim(JOB, [nodes[0], replace(nodes[1], price_uusd_per_h=None)]) == nodes[0]
    assert victim(JOB, [nodes[2]]) is None


# --- the show -------------------------------------------------------------------------------------------------------


@dataclass
class FakeJob:
    """`client.Job`, as far as the show uses it, in one process with its controller."""

    controller: FakeController
    job_id: str

    def status(self) -> JobInfo:
        return self.controller.job(self.job_id)

    def stop(self) -> JobInfo:
        return self.controller.stop(self.job_id)


@dataclass
class FakeFleet:
    controller: FakeController

    def status(self) -> FleetStatus:
        return self.controller.status()

    def events(self, after: int) -> list[EventLine]:
        return list(self.controller.events(after=after))

    def preempt(self, target: str, notice_s: float | None) -> list[str]:
        return list(self.controller.preempt(target, notice_s))


@dataclass
class Pages:
    """A screen that plays the next bit of the story at every drawing."""

    moves: Iterator[object]
    said: list[str] = field(default_factory=list)
    news: list[int] = field(default_factory=list)

    def say(self, text: str) -> None:
        self.said.append(text)

    def draw(self, scene: Scene) -> None:
        self.news += [line.sequence for line in scene.news]
        next(self.moves)


def test_the_show_plays_both_acts_tells_every_event_once_and_ends_with_the_job() -> None:
    controller = FakeController()
    job_id = controller.submit(JobSpec(name="d", entrypoint="x", min_workers=2, max_workers=4)).job_id

    def moves() -> Iterator[object]:
        controller.run(job_id, workers=4)
        controller.add_node("n1", job_id=job_id)
        controller.add_node("n2", job_id=job_id)
        yield
        yield controller.step(job_id, 40, 170)
        yield controller.step(job_id, 90, 170)
        yield
        yield controller.move(job_id, JobState.SUCCEEDED)
        yield  # the last page is drawn with the end in view

    screen = Pages(moves())
    show = Show(FakeFleet(controller), FakeJob(controller, job_id), screen, refresh_s=0.0)  # type: ignore[arg-type]
    assert show.play().state is JobState.SUCCEEDED
    assert [line[:6] for line in screen.said] == ["Act 1:", "Act 2:"]
    assert screen.news == list(range(1, len(screen.news) + 1))
    kinds = [line.event["kind"] for line in controller.events()]
    assert kinds.count("notice_received") == kinds.count("node_gone") == 1


def test_a_show_that_takes_too_long_is_stopped() -> None:
    controller = FakeController()
    job_id = controller.submit(JobSpec(name="d", entrypoint="x")).job_id
    screen = Pages(iter([None]))
    show = Show(FakeFleet(controller), FakeJob(controller, job_id), screen, limit_s=-1.0)  # type: ignore[arg-type]
    assert show.play().state is JobState.STOPPED
    assert "too slow" in screen.said[0]


# --- words ----------------------------------------------------------------------------------------------------------


def phase(phase: Phase, reason: str = "a node was lost") -> PhaseChanged:
    return PhaseChanged(at_s=1.0, job_id="a", attempt=1, sequence=1, phase=phase, workers=2, reason=reason)


def gone(end: EndReason) -> NodeGone:
    return NodeGone(at_s=1.0, launch_id="n1", end=end, detail="its boot failed")


TOLD: list[tuple[AnyEvent, str | None]] = [
    (
        LaunchRequested(at_s=1.0, launch_id="n1", offer=SPOT_A100, reason="cheapest"),
        "asks for aws/us-east-1a/p4d.24xlarge/spot at $9.83/h",
    ),
    (
        LaunchRequested(at_s=1.0, launch_id="n1", offer=replace(SPOT_A100, price_uusd_per_h=None), reason="r"),
        "asks for aws/us-east-1a/p4d.24xlarge/spot at an unknown price",
    ),
    (
        LaunchRefused(at_s=1.0, launch_id="n1", error="Stockout", message="sold out", scope=Scope.ZONE, block_s=1),
        "refused: sold out; tries the next best offer",
    ),
    (NodeJoined(at_s=1.0, launch_id="n1", ray_node_id="aa"), "node n1 joined Ray"),
    (NoticeReceived(at_s=1.0, launch_id="n1", deadline_s=9.0), "notice: node n1 goes soon; it is drained"),
    (TerminateRequested(at_s=1.0, launch_id="n1", reason="did not join"), "node n1 is given up: did not join"),
    (TerminateRequested(at_s=1.0, launch_id="n1", reason="drained"), None),
    (gone(EndReason.PREEMPTED), "node n1 was taken by the cloud"),
    (gone(EndReason.TERMINATED), "node n1 was given back"),
    (gone(EndReason.CRASHED), "node n1 crashed: its boot failed"),
    (gone(EndReason.LOST), "node n1 lost: its boot failed"),
    (phase(Phase.RESTARTING), "job recovers: a node was lost"),
    (phase(Phase.RESIZING), "job changes its size: a node was lost"),
    (phase(Phase.TRAINING, "from step 31"), "job trains with 2 workers: from step 31"),
    (phase(Phase.TRAINING, ""), None),
    (phase(Phase.STARTING), None),
    (phase(Phase.CHECKPOINTING), None),
    (phase(Phase.DONE), None),
    (JobSubmitted(at_s=1.0, job_id="a", spec=JobSpec(name="n", entrypoint="true")), None),
]


@pytest.mark.parametrize(("event", "words"), TOLD, ids=[f"{i}-{event.kind}" for i, (event, _) in enumerate(TOLD)])
def test_the_story_of_an_event(event: AnyEvent, words: str | None) -> None:
    assert story(event_line(1, event)) == words


def test_every_kind_that_has_a_story_exists_and_is_tried_above() -> None:
    known = set(demo_screen._STORIES)
    assert known <= KINDS
    assert known <= {event.kind for event, _ in TOLD}


# --- figures --------------------------------------------------------------------------------------------------------


def test_a_sparkline_goes_from_low_to_high() -> None:
    assert sparkline([], 10) == ""
    assert sparkline([1.0], 10) == SPARKS[0]
    assert sparkline([2.0, 2.0], 10) == SPARKS[0] * 2
    assert sparkline([float(n) for n in range(8)], 8) == SPARKS


@example([0.0, 5e-324], 2)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(1, 50))
def test_a_sparkline_fits_and_ends_with_the_newest_value(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert 1 <= len(line) <= width
    assert sparkline([*values[:-1], 1e9], width)[-1] == (SPARKS[-1] if len(line) > 1 else SPARKS[0])


def test_nodes_are_counted_by_market_and_price() -> None:
    nodes = [
        node("n1"),
        node("n2", state=NodeState.BOOTING),
        node("n3"),
        node("n4", cloud="azure"),
        node("n5", None, cloud="gcp"),
    ]
    assert nodes_by_market(nodes) == [
        ("aws/use2-az1/g4dn.12xlarge/spot", "$1.00/h", "■■■", "2 ready, 1 booting"),
        ("azure/use2-az1/g4dn.12xlarge/spot", "$1.00/h", "■", "1 ready"),
        ("gcp/use2-az1/g4dn.12xlarge/spot", "unknown", "■", "1 ready"),
    ]


def test_one_market_at_an_old_a_new_and_an_unknown_price_is_three_lines() -> None:
    assert len(nodes_by_market([node("n1", 1), node("n2", 2), node("n3", None)])) == 3


def test_workers_are_dots() -> None:
    assert demo_screen.workers_line(replace(JOB, workers=2)) == "●●○○  2 of 2..4"
    assert demo_screen.workers_line(replace(JOB, workers=5)) == "●●●●●  5 of 2..4"


def scene(elapsed_s: float, *events: AnyEvent, **changes: object) -> Scene:
    status = FleetStatus(fleet="demo", version="0", simulated=True, uptime_s=1.0, nodes=(node(),), cost_uusd=123_456)
    news = tuple(event_line(i, event) for i, event in enumerate(events, start=1))
    return Scene(job=replace(JOB, **changes), status=status, news=news, elapsed_s=elapsed_s)  # type: ignore[arg-type]


def test_the_plain_screen_tells_every_story_and_sums_up_now_and_then() -> None:
    lines: list[str] = []
    screen = PlainScreen(lines.append)
    screen.say("hello")
    joined = NodeJoined(at_s=1.0, launch_id="n1", ray_node_id="aa")
    screen.draw(scene(0.0, joined))
    screen.draw(scene(LINE_EVERY_S - 0.1, joined, phase(Phase.DONE)))
    screen.draw(scene(LINE_EVERY_S, loss=None, total_steps=None))
    assert lines == [
        "hello",
        "[  0.0s]   node n1 joined Ray",
        "[  0.0s] step 100/170  loss 0.250  workers 4  nodes 1  $0.12 (simulated)",
        "[  4.9s]   node n1 joined Ray",
        "[  5.0s] step 100/?  loss -  workers 4  nodes 1  $0.12 (simulated)",
    ]


def test_the_live_screen_draws_figures_markets_and_what_happened() -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console(record=True, width=100, file=io.StringIO())
    screen = demo_screen.LiveScreen(Live(console=console, auto_refresh=False))
    screen.draw(scene(1.0, NodeJoined(at_s=1.0, launch_id="n1", ray_node_id="aa")))
    screen.draw(scene(2.0, step=101, loss=0.2, phase=None))
    console.print(screen._page(scene(3.0, step=101, loss=0.2, phase=None)))
    text = console.export_text()
    assert screen.losses == [0.25, 0.2]
    for part in ("digits: running", "g4dn.12xlarge/spot", "node n1 joined Ray", "waiting for nodes", "$0.12 so far"):
        assert part in text


def test_without_a_terminal_the_screen_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    with demo_screen.open_screen() as screen:
        assert isinstance(screen, PlainScreen)
        screen.say("hello")
    assert capsys.readouterr().out == "hello\n"


def test_the_commands_at_the_end_can_be_copied() -> None:
    assert "Next:  tradewind up" in what_is_next("/usr/bin/tradewind")
    first, then = what_is_next(None).partition("Next:  ")[2].splitlines()[:2]
    assert first == f". {sys.prefix}/bin/activate"
    assert then.startswith("       tradewind up ")
