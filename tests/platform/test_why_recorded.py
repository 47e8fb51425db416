"""Stories from the real log of a real loop and controller, on a Ray and clouds in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tradewind.agent import Agent
from tradewind.api import Story
from tradewind.autoscaler.clock import FakeClock
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.testing import FakeCloud, FakeRay, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.cells.cell import Cell
from tradewind.controller import Controller
from tradewind.errors import JobNotFound, NotFound
from tradewind.events import (
    AnyEvent,
    DecisionRecorded,
    HoldingChanged,
    JobSubmitted,
    LaunchRequested,
    StepCommitted,
    decode,
)
from tradewind.fake_cell import FakeCoordinators, FakeJobs
from tradewind.journal import Journal
from tradewind.model import Capacity, JobSpec, Wish
from tradewind.store import EventLog

GPU = {"CPU": 1.0, "GPU": 1.0}
CHEAP = make_offer("azure/eastus2-a/nc64", usd_per_h=0.48, cpus=8, gpus=2)
MIDDLE = make_offer("aws/use2-a/g4dn", usd_per_h=1.16, cpus=8, gpus=2)
DEAR = make_offer("gcp/us-west4-a/n1", usd_per_h=1.29, cpus=8, gpus=2)
SURE = make_offer("gcp/us-west4-a/n1", usd_per_h=3.19, cpus=8, gpus=2, capacity=Capacity.ON_DEMAND)
JOB = "train-e9e9dd"
SPEC = JobSpec(name="train", entrypoint="python train.py", min_workers=2, max_workers=8, worker_resources=GPU)


class Head:
    alive = True
    gcs_address = dashboard_url = ""
    env: Mapping[str, str] = {}


class Scenery:
    """One training job that wishes for 2 to 8 workers; at most three nodes; the two cheapest offers are sold out."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(time.time() - 3600)
        self.cloud = FakeCloud(self.clock, [CHEAP, MIDDLE, DEAR, SURE])
        self.cloud.sold_out = {CHEAP.market.key, MIDDLE.market.key}
        self.ray = FakeRay(self.clock, [self.cloud])
        self.wishes = [Wish(JOB, 2, 8, GPU)]
        self.journal = Journal.load(EventLog.open(folder / "events.db"))
        fleet = self.journal.fleet.cell("local")
        agent = Agent("g", "d", folder, self.journal.record, fleet)
        agent.jobs, agent.coordinators = FakeJobs(), FakeCoordinators()
        limits = Limits(max_nodes=3)
        self.loop = Loop(
            clock=self.clock,
            record=self.journal.record,
            fleet=fleet,
            ray=self.ray,
            providers={"aws": self.cloud, "azure": self.cloud, "gcp": self.cloud},
            prices=self.cloud,
            settings=LoopSettings(fleet="test", limits=limits, idle_timeout_s=20.0, min_node_life_s=20.0),
            wishes=lambda: self.wishes,
        )
        self.cell = Cell("local", "local", "here", Head(), agent, self.loop, {"aws": self.cloud})
        self.controller = Controller("test", self.journal, {"local": self.cell}, folder / "job-logs", 0.02)
        self.journal.record(JobSubmitted(at_s=self.clock.now_s(), job_id=JOB, spec=SPEC))
        self.controller._route()

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.cell.plan = self.loop.tick()
            self.clock.sleep(1.0)

    @property
    def alive(self) -> list[str]:
        return [node.launch_id for node in self.journal.fleet.alive_nodes]

    @property
    def decisions(self) -> list[DecisionRecorded]:
        return [event for _, event in self.journal.log.read() if isinstance(event, DecisionRecorded)]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Scenery]:
    made = Scenery(tmp_path)
    yield made
    made.journal.log.close()


def told(story: Story) -> str:
    return "\n".join(f"{line.what}: {line.reason}" for line in story.lines)


def test_a_fallback_records_who_refused_and_the_next_launch_who_was_not_asked(world: Scenery) -> None:
    world.tick()
    launches = [event for event in world.decisions if event.action == "launch"]
    first, second, third, *others = launches
    assert (first.refused, second.refused) == ((), (first.subject,))
    assert third.refused == (first.subject, second.subject)
    assert "first choice refused, next best at $1.29/h" in third.reason
    assert [event.refused for event in others] == [(), ()]
    assert all(
        [text.split(":")[0] for text in event.ruled_out] == [CHEAP.market.key, MIDDLE.market.key] for event in others
    )


def test_the_story_of_a_node_that_two_offers_refused_and_that_the_cloud_took(world: Scenery) -> None:
    for _ in range(4):
        world.ray.submit(GPU, job_id=JOB)
    world.tick(20)
    launch_id = world.alive[0]
    world.cloud.preempt(launch_id, 12.0)
    world.tick(20)
    story = world.controller.why("node", launch_id[:9])
    assert [text.split(" ")[0] for text in story.lines[0].refused] == [CHEAP.market.key, MIDDLE.market.key]
    assert [text.split(" ")[0] for text in story.lines[0].beat] == [SURE.market.key]
    for words in ("joined Ray", f"job {JOB} holds", "notice:", "drained: the cloud takes it", "gone, preempted"):
        assert words in told(story)
    assert "lost node" in told(world.controller.why("job", JOB))


def test_the_story_of_an_idle_node(world: Scenery) -> None:
    world.tick(20)
    launch_id, world.wishes = world.alive[0], []
    world.tick(60)
    story = told(world.controller.why("node", launch_id))
    assert "drained: idle for" in story
    assert story.endswith("gone, terminated: ")


def test_a_grant_is_recorded_once_with_the_limit_that_holds_the_job_back(world: Scenery) -> None:
    world.tick(10)
    [grant] = [event for event in world.decisions if event.action == "grant"]
    assert (grant.subject, grant.jobs) == (JOB, (JOB,))
    assert grant.reason == "6 of 2..8 workers: one more would pass the limit of 3 nodes"
    world.wishes = [Wish(JOB, 2, 4, GPU)]
    world.tick(3)
    assert [event.reason for event in world.decisions if event.action == "grant"][1:] == [
        "up to 4 workers, all that it can use"
    ]


def test_jobs_that_share_a_limit_are_told_so(world: Scenery) -> None:
    world.journal.record(JobSubmitted(at_s=world.clock.now_s(), job_id="other", spec=SPEC))
    world.wishes.append(Wish("other", 2, 8, GPU))
    world.tick()
    grants = {event.subject: event.reason for event in world.decisions if event.action == "grant"}
    assert grants[JOB] == "3 of 2..8 workers: one more would pass the limit of 3 nodes, which 2 jobs share"


def test_now_tells_what_is_held_back_and_what_boots(world: Scenery) -> None:
    assert "has not looked yet" in world.controller.why("now").notes[0]
    world.ray.submit({"GPU": 16}, job_id="")
    world.tick()
    story = world.controller.why("now")
    held = [line for line in story.lines if line.group == "Held back"]
    assert [line.reason for line in held] == ["no offer has GPU: 16 (the largest has 2)"]
    [coming] = [line for line in story.lines if line.group == "On the way"]  # alike, so they are one line
    assert coming.what.count("tw-") == 3
    assert "at $1.29/h each, requested" in coming.what
    assert "GPU: 16" in dict(story.facts)["asked for"]


def test_unknown_and_ambiguous_ids(world: Scenery) -> None:
    world.tick()
    with pytest.raises(NotFound, match="beginning of"):
        world.controller.why("node", "tw-")
    with pytest.raises(NotFound, match="no node nope"):
        world.controller.why("node", "nope")
    with pytest.raises(JobNotFound, match="did you mean train-e9e9dd"):
        world.controller.why("job", "train-e9e9de")


def test_a_log_of_steps_is_not_told_and_too_many_events_are_cut_and_said(world: Scenery) -> None:
    at_s = world.clock.now_s()
    world.tick()
    steps: list[AnyEvent] = [
        StepCommitted(
            at_s=at_s, job_id=JOB, attempt=1, sequence=i, began_s=at_s, first_step=i, last_step=i, workers=1, samples=1
        )
        for i in range(1, 4001)
    ]
    world.journal.record(*steps)
    story = world.controller.why("job", JOB)
    assert story.notes == ()
    assert story.lines[0].what == "submitted by default"
    flicker: list[AnyEvent] = [
        HoldingChanged(
            at_s=at_s + i, job_id=JOB, launch_id=world.alive[0], resources={"GPU": float(i % 2)} if i % 2 else {}
        )
        for i in range(2001)
    ]
    world.journal.record(*flicker)
    story = world.controller.why("job", JOB, last=5)
    assert len(story.lines) == 5
    assert [("left out" in note, "not read" in note) for note in story.notes] == [(True, False), (False, True)]


def test_a_job_id_with_signs_that_json_escapes_is_found(world: Scenery) -> None:
    odd = 'say "hi" \\ ü'
    world.journal.record(JobSubmitted(at_s=world.clock.now_s(), job_id=odd, spec=SPEC, foreign=True))
    assert told(world.controller.why("job", odd)).startswith("seen: it was sent past us")


def test_a_decision_of_an_older_log_is_read_and_its_launch_told(world: Scenery) -> None:
    old = b'{"at_s": 1.0, "action": "launch", "subject": "tw-1", "reason": "cheapest", "kind": "decision_recorded"}'
    asked = LaunchRequested(at_s=1.0, launch_id="tw-1", offer=DEAR, reason="cheapest")
    world.journal.record(asked, decode(old))
    [line] = world.controller.why("node", "tw-1").lines
    assert (line.reason, line.refused, line.ruled_out) == ("cheapest", (), ())


def test_a_node_in_a_placement_group_says_so_and_one_outside_says_why(world: Scenery) -> None:
    world.wishes, world.cloud.sold_out, world.cloud.group_room = [], set(), 1
    world.ray.submit_gang([{"CPU": 1.0, "GPU": 2.0}] * 2, Strategy.STRICT_SPREAD)
    world.tick()
    inside, outside = world.cloud.alive()
    assert inside.placement_group
    assert f"in placement group {inside.placement_group}" in told(world.controller.why("node", inside.launch_id))
    story = world.controller.why("node", outside.launch_id)
    assert f"outside of placement group {inside.placement_group} (Stockout, tried again in 10m" in told(story)
    assert [text.split(" ")[0] for text in story.lines[0].refused] == [CHEAP.market.key]
