"""Stories on made-up logs: what is told of a node, a job and the present, and what is said not to be known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tradewind.api import Story, StoryLine, job_not_found, node_not_found, pick
from tradewind.autoscaler.actions import Hold, Plan
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.testing import make_offer
from tradewind.errors import JobNotFound, NotFound
from tradewind.events import (
    AnyEvent,
    ControllerStarted,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    MoveRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    TerminateRequested,
)
from tradewind.model import EndReason, JobSpec, Phase, Target
from tradewind.render import brings_text, clock, story_text
from tradewind.states import JobState
from tradewind.views import Costs
from tradewind.why import Scene, job_story, node_story
from tradewind.why_now import now_story

CHEAP = make_offer("azure/eastus2-a/nc64", usd_per_h=0.48, gpus=2)
MIDDLE = make_offer("aws/use2-a/g4dn", usd_per_h=1.16, gpus=2)
DEAR = make_offer("gcp/us-west4-a/n1", usd_per_h=1.29, gpus=2)
SPEC = JobSpec(name="train", entrypoint="python train.py", min_workers=2, max_workers=8, worker_resources={"GPU": 1})
FOR = "cheapest for 2 x {GPU: 1} (job train-1): $0.48/h"
BEAT = (
    "aws/use2-a/g4dn/spot at $1.16/h for 2",
    "gcp/us-west4-a/n1/spot at $1.29/h for 2",
    "dear/spot at $9.00/h for 2",
)


def asked(launch_id: str, offer: object, at_s: float = 10.0, **more: object) -> list[AnyEvent]:
    """A launch on record, with its decision."""
    decision = {"reason": FOR, "alternatives": BEAT, **more}
    return [
        LaunchRequested(at_s=at_s, launch_id=launch_id, offer=offer, reason=str(decision["reason"])),  # type: ignore[arg-type]
        DecisionRecorded(at_s=at_s, action="launch", subject=launch_id, **decision),  # type: ignore[arg-type]
    ]


def refused(launch_id: str, at_s: float = 10.0) -> LaunchRefused:
    return LaunchRefused(
        at_s=at_s, launch_id=launch_id, error="Stockout", message="sold out", scope="zone", block_s=600.0
    )


# Two offers refuse, the third is taken; a job uses the node; a notice; the cloud takes it.
LOG: list[AnyEvent] = [
    ControllerStarted(at_s=1.0, fleet="test", pid=1, version="0", simulated=True),
    JobSubmitted(at_s=2.0, job_id="train-1", spec=SPEC),
    *asked("tw-a", CHEAP),
    refused("tw-a"),
    *asked("tw-b", MIDDLE, refused=("tw-a",)),
    refused("tw-b"),
    *asked("tw-c", DEAR, refused=("tw-a", "tw-b"), ruled_out=("dear/spot: would pass the limit of 3 nodes",)),
    NodeLaunched(at_s=12.0, launch_id="tw-c", instance_id="i-c"),
    NodeJoined(at_s=25.0, launch_id="tw-c", ray_node_id="aa"),
    HoldingChanged(at_s=26.0, job_id="train-1", launch_id="tw-c", resources={"GPU": 2.0}),
    NoticeReceived(at_s=60.0, launch_id="tw-c", deadline_s=90.0),
    DrainRequested(at_s=60.0, launch_id="tw-c", reason="the cloud takes it in 30s", deadline_s=90.0),
    DecisionRecorded(at_s=60.0, action="drain", subject="tw-c", reason="the cloud takes it in 30s"),
    NodeGone(at_s=90.0, launch_id="tw-c", end=EndReason.PREEMPTED),
    HoldingChanged(at_s=91.0, job_id="train-1", launch_id="tw-c"),
]


def scene(log: Sequence[AnyEvent], about: str = "", **more: object) -> Scene:
    """As the controller makes it: the folds of all, and the events that name the subject."""
    events = [event for event in log if about in str(event)]
    return Scene(FleetState.fold(log), now_s=1000.0, events=events, **more)  # type: ignore[arg-type]


def told(story: Story) -> list[str]:
    return [line.what for line in story.lines]


def fact(story: Story, name: str) -> str:
    return dict(story.facts).get(name, "")


# --- a node --------------------------------------------------------------------------------------------------------


def test_a_node_tells_its_whole_life_in_order() -> None:
    story = node_story(scene(LOG, "tw-c"), "tw-c")
    assert told(story) == [
        "asked for gcp/us-west4-a/n1/spot at $1.29/h",
        "the cloud has it, as i-c, and bills it",
        "joined Ray, 15s after it was asked for",
        "job train-1 holds {GPU: 2}",
        "notice: the cloud takes it in 30s",
        "drained",
        "gone, preempted",
        "job train-1 has left it",
    ]
    assert story.title == "Node tw-c: preempted (simulated)"
    assert (fact(story, "bought for"), fact(story, "used by")) == ("train-1", "train-1")
    assert story.notes == ()


def test_a_node_tells_who_refused_before_it_whom_it_beat_and_who_was_not_asked() -> None:
    first = node_story(scene(LOG, "tw-c"), "tw-c").lines[0]
    assert first.reason == FOR
    assert first.refused == (
        "azure/eastus2-a/nc64/spot at $0.48/h: Stockout: sold out",
        "aws/use2-a/g4dn/spot at $1.16/h: Stockout: sold out",
    )
    assert first.ruled_out == ("dear/spot: would pass the limit of 3 nodes",)
    assert first.beat == ()  # of the alternatives one refused, one is itself, one was not asked


def test_what_costs_the_same_is_told_as_such_and_not_as_beaten() -> None:
    both = ("aws/use2-b/g4dn/spot at $0.48/h for 2, as cheap", "dear/spot at $9.00/h for 2")
    story = node_story(scene(asked("tw-a", CHEAP, alternatives=both), "tw-a"), "tw-a")
    assert (story.lines[0].tied, story.lines[0].beat) == ((both[0].removesuffix(", as cheap"),), both[1:])
    text = story_text(story, 120)
    assert "as cheap: aws/use2-b/g4dn/spot at $0.48/h for 2\n" in text
    assert "beat: dear/spot at $9.00/h for 2" in text


def test_a_refused_node_tells_what_was_bought_instead() -> None:
    story = node_story(scene(LOG, "tw-a"), "tw-a")
    assert told(story) == [
        "asked for azure/eastus2-a/nc64/spot at $0.48/h",
        "refused, Stockout",
        "instead, asked for tw-c, gcp/us-west4-a/n1/spot at $1.29/h",
    ]
    assert story.lines[0].beat == BEAT
    assert story.lines[1].reason == "sold out (zone ruled out for 10m00s)"
    assert fact(story, "used by") == ""


@pytest.mark.parametrize(("end", "says_so"), [(EndReason.CRASHED, True), (EndReason.PREEMPTED, False)])
def test_a_node_that_never_joined_says_where_its_reason_is(end: EndReason, says_so: bool) -> None:
    log = [
        *asked("tw-c", DEAR),
        NodeLaunched(at_s=12.0, launch_id="tw-c", instance_id="i-c"),
        NodeGone(at_s=20.0, launch_id="tw-c", end=end, detail="Client.InstanceInitiatedShutdown"),
    ]
    notes = node_story(scene(log, "tw-c"), "tw-c").notes
    assert any("tradewind logs node tw-c" in note for note in notes) is says_so


def test_an_idle_node_tells_the_refused_drain_and_the_end() -> None:
    idle = "idle for 60s"
    log = [
        *asked("tw-c", DEAR),
        NodeLaunched(at_s=12.0, launch_id="tw-c", instance_id="i-c"),
        NodeJoined(at_s=25.0, launch_id="tw-c", ray_node_id="aa"),
        DrainRequested(at_s=90.0, launch_id="tw-c", reason=idle),
        DecisionRecorded(
            at_s=90.0, action="drain", subject="tw-c", reason=idle, alternatives=("tw-d, which is cheaper",)
        ),
        DrainRefused(at_s=91.0, launch_id="tw-c", message="it has work"),
        TerminateRequested(at_s=200.0, launch_id="tw-c", reason="the fleet is taken down"),
        NodeGone(at_s=201.0, launch_id="tw-c", end=EndReason.TERMINATED),
    ]
    story = node_story(scene(log, "tw-c"), "tw-c")
    assert told(story)[3:] == ["drained", "Ray refused the drain: it stays", "given back", "gone, terminated"]
    assert story.lines[3].beat == ("tw-d, which is cheaper",)
    assert story.lines[5].reason == "the fleet is taken down"
    assert fact(story, "used by") == "nobody"


def test_a_node_says_what_it_cost_and_how_its_price_moved() -> None:
    log = [
        *asked("tw-c", replace(DEAR, on_demand_uusd_per_h=3_190_000)),
        NodeLaunched(at_s=12.0, launch_id="tw-c", instance_id="i"),
    ]
    costs = Costs(5_000_000, 0, {}, {"tw-c": 500_000}, {"tw-c": 1_500_000})
    story = node_story(scene(log, "tw-c", costs=costs), "tw-c")
    assert fact(story, "price") == "$1.29/h when it was bought, $1.50/h now (on-demand $3.19/h)"
    assert fact(story, "cost so far") == "$0.50 in 16m28s"


def test_what_the_record_does_not_hold_is_said() -> None:
    bare = [LaunchRequested(at_s=10.0, launch_id="tw-c", offer=DEAR, reason="cheapest")]
    story = node_story(scene(bare, "tw-c"), "tw-c")
    assert story.lines[0].reason == "cheapest"
    assert "not in the log" in story.notes[0]
    adopted = [*bare, DecisionRecorded(at_s=11.0, action="adopt", subject="tw-c", reason="adopted")]
    assert "before it was taken in" in node_story(scene(adopted, "tw-c"), "tw-c").notes[0]
    old = asked("tw-c", DEAR, reason=f"{FOR}; first choice refused")
    assert "Who refused" in node_story(scene(old, "tw-c"), "tw-c").notes[0]
    cut = node_story(scene(LOG, "tw-c", is_cut=True), "tw-c")
    assert "were not read" in cut.notes[0]


def test_why_it_was_bought_stays_when_lines_are_left_out() -> None:
    story = node_story(scene(LOG, "tw-c"), "tw-c", last=3)
    assert told(story) == ["asked for gcp/us-west4-a/n1/spot at $1.29/h", "gone, preempted", "job train-1 has left it"]
    assert "--last" in story.notes[0]


# --- a job ---------------------------------------------------------------------------------------------------------


def phase(at_s: float, sequence: int, found: Phase, workers: int, attempt: int = 1) -> PhaseChanged:
    return PhaseChanged(
        at_s=at_s, job_id="train-1", attempt=attempt, sequence=sequence, phase=found, workers=workers, reason="r"
    )


def test_a_job_tells_purchases_holdings_losses_and_phases() -> None:
    log = [
        *LOG,
        JobStateChanged(at_s=20.0, job_id="train-1", state=JobState.RUNNING),
        phase(30.0, 1, Phase.TRAINING, 2),
        phase(40.0, 2, Phase.CHECKPOINTING, 2),
        phase(41.0, 3, Phase.TRAINING, 2),
        phase(41.0, 3, Phase.TRAINING, 2),
        phase(92.0, 4, Phase.RESTARTING, 0, attempt=2),
    ]
    story = job_story(scene(log, "train-1"), "train-1")
    assert told(story) == [
        "submitted by default",
        "asked for tw-c, gcp/us-west4-a/n1/spot at $1.29/h",
        "running",
        "holds {GPU: 2} on tw-c",
        "training with 2 workers, attempt 1",
        "lost node tw-c: preempted, with notice",
        "has left tw-c",
        "restarting with 0 workers, attempt 2",
    ]
    assert len(story.lines[1].refused) == 2
    assert story.title == "Job train-1: running, restarting"


def test_a_node_that_the_job_had_left_is_no_loss() -> None:
    left = HoldingChanged(at_s=70.0, job_id="train-1", launch_id="tw-c")
    story = job_story(scene([*LOG[:-2], left, *LOG[-2:-1]], "train-1"), "train-1")
    assert not any("lost" in what for what in told(story))


def test_nodes_bought_alike_are_one_line() -> None:
    log = [
        LOG[1],
        *(event for i in range(9) for event in asked(f"tw-{i}", DEAR, at_s=10.0 + i)),
        *asked("tw-x", MIDDLE),
    ]
    story = job_story(scene(log, "train-1"), "train-1")
    assert told(story)[1:] == [
        "asked for tw-0, tw-1, tw-2 and 6 more, gcp/us-west4-a/n1/spot at $1.29/h",
        "asked for tw-x, aws/use2-a/g4dn/spot at $1.16/h",
    ]


def test_a_job_is_found_in_the_words_of_a_decision_and_not_in_those_about_another() -> None:
    other = asked("tw-y", DEAR, reason="cheapest for 2 x {GPU: 1} (job train-11)")
    by_field = asked("tw-z", MIDDLE, reason="prewarmed", jobs=("train-1",))
    story = job_story(scene([LOG[1], *other, *by_field], "train-1"), "train-1")
    assert told(story)[1:] == ["asked for tw-z, aws/use2-a/g4dn/spot at $1.16/h"]


GRANT = DecisionRecorded(
    at_s=5.0, action="grant", subject="train-1", reason="6 of 2..8 workers: one more would pass the limit of 3 nodes"
)
HOLD = Hold("4 x {GPU: 1} (job train-1)", "the limit of 3 nodes is reached", ("aws/x: Stockout, tried again in 9m",))


@pytest.mark.parametrize(
    ("workers", "plan", "expected"),
    [
        (8, Plan(1.0), "it has all the workers"),
        (6, Plan(1.0, (HOLD,), {"train-1": Target(1, 6)}), "it is allowed 6 of 2..8"),
        (4, Plan(1.0, (HOLD,), {"train-1": Target(1, 6)}), "the limit of 3 nodes is reached"),
        (4, Plan(1.0, (), {"train-1": Target(1, 6)}), "nodes for it are on the way: tw-c"),
    ],
)
def test_why_a_job_is_not_larger(workers: int, plan: Plan, expected: str) -> None:
    log = [LOG[1], GRANT, *asked("tw-c", DEAR), phase(30.0, 1, Phase.TRAINING, workers)]
    story = job_story(scene(log, "train-1", plan=plan), "train-1")
    assert fact(story, "not larger").startswith(expected)
    assert ("the limit of 3 nodes is reached" in fact(story, "waits for")) is bool(plan.holds)


def test_a_job_of_which_nothing_is_known_says_so_and_one_that_ended_waits_for_nothing() -> None:
    waiting = job_story(scene([LOG[1]], "train-1"), "train-1")
    assert fact(waiting, "not larger").startswith("nothing on record")
    assert fact(waiting, "holds") == "nothing"
    over = JobStateChanged(at_s=9.0, job_id="train-1", state=JobState.STOPPED, reason="asked to")
    ended = job_story(scene([LOG[1], over], "train-1", plan=Plan(1.0, (HOLD,))), "train-1")
    assert (fact(ended, "not larger"), fact(ended, "waits for"), fact(ended, "reason")) == ("", "", "asked to")


def test_a_job_that_could_not_save_tells_so() -> None:
    log = [
        LOG[1],
        MoveRequested(at_s=5.0, job_id="train-1", reason="its cell has run dry"),
        DecisionRecorded(at_s=95.0, action="unsaved", subject="train-1", reason="not moved yet: it could not save"),
        MoveRequested(at_s=95.0, job_id="train-1", reason="its cell has run dry", called_off=True),
    ]
    story = job_story(scene(log, "train-1"), "train-1")
    stays = "stays in its cell for now, where it was to leave it"
    assert told(story)[1:] == ["is to leave its cell", "not saved", stays]
    assert story.lines[2].reason == "not moved yet: it could not save"


def test_a_job_that_asks_ray_itself_is_told_of_waits_that_bear_no_name() -> None:
    foreign = JobSubmitted(at_s=2.0, job_id="train-1", spec=JobSpec(name="d", entrypoint="python d.py"), foreign=True)
    hold = Hold("1 x {GPU: 16} (tasks and actors)", "no offer has GPU: 16")
    story = job_story(scene([foreign], "train-1", plan=Plan(1.0, (hold, Hold("ray", "is away")))), "train-1")
    assert "(1)" in story.notes[0]
    named = job_story(scene([LOG[1]], "train-1", plan=Plan(1.0, (hold,))), "train-1")
    assert named.notes == ()


def test_what_a_dry_run_would_do_is_told_with_its_reason_and_what_it_beat() -> None:
    hold = Hold("would launch 2 x gcp/z/g2/spot", "dry run", ("cheapest for 2 x {GPU: 1}", "aws/z/g6/spot at $0.35/h"))
    [line] = now_story(scene([], plan=Plan(1.0, (hold,))), "f").lines
    assert (line.what, line.reason) == (hold.subject, "dry run; cheapest for 2 x {GPU: 1}")
    assert (line.beat, line.ruled_out) == (("aws/z/g6/spot at $0.35/h",), ())


# --- now -----------------------------------------------------------------------------------------------------------


def test_now_tells_what_is_held_back_since_when_what_comes_and_what_was_decided() -> None:
    said = DecisionRecorded(
        at_s=500.0, action="hold", subject=HOLD.subject, reason=HOLD.reason, alternatives=HOLD.alternatives
    )
    log = [*LOG, *asked("tw-d", DEAR, at_s=400.0), said]
    decided = [event for event in log if isinstance(event, DecisionRecorded)]
    asked_for = ("4 x {GPU: 1} (job train-1)",)
    given = replace(scene(log), events=decided, plan=Plan(999.0, (HOLD,)), asked=asked_for)
    story = now_story(given, "test")
    groups = {name: [line for line in story.lines if line.group == name] for name in ("Held back", "On the way")}
    [held], [coming] = groups["Held back"], groups["On the way"]
    assert (held.at_s, held.reason, held.ruled_out) == (500.0, HOLD.reason, HOLD.alternatives)
    assert coming.what == "tw-d, gcp/us-west4-a/n1/spot at $1.29/h, requested, asked for 10m00s ago"
    assert [line.what for line in story.lines if line.group == "Decided last"] == [
        "asked for tw-c, gcp/us-west4-a/n1/spot at $1.29/h",
        "drain tw-c",
        "asked for tw-d, gcp/us-west4-a/n1/spot at $1.29/h",
    ]  # what is still held back is not told twice
    assert fact(story, "asked for") == asked_for[0]
    assert fact(story, "nodes") == "1 requested"
    assert len(now_story(given, "test", last=1).lines) == 3
    over = now_story(replace(given, plan=Plan(999.0)), "test")
    assert over.lines[-1].what == "held back 4 x {GPU: 1} (job train-1)"  # until a moment ago


def decided(at_s: float, action: str, subject: str, reason: str) -> DecisionRecorded:
    return DecisionRecorded(at_s=at_s, action=action, subject=subject, reason=reason)


def test_what_was_decided_alike_again_and_again_is_one_line() -> None:
    log: list[AnyEvent] = [
        decided(100.0, "hold", "ray", "is away"),
        decided(200.0, "drain", "tw-a", "idle for 1m02s, and not needed"),
        decided(300.0, "hold", "ray", "is away"),
        decided(400.0, "drain", "tw-b", "idle for 6h05m, and not needed"),
        decided(500.0, "hold", "cloud aws", "is away"),
        decided(600.0, "hold", "ray", "is away"),
    ]
    story = now_story(scene(log, plan=Plan(999.0, (HOLD, HOLD))), "test")
    lines = [line for line in story.lines if line.group == "Decided last"]
    assert [(line.what, line.count, line.since_s, line.at_s) for line in lines] == [
        ("drain tw-a, tw-b", 2, 200.0, 400.0),
        ("held back cloud aws", 1, 500.0, 500.0),
        ("held back ray", 3, 100.0, 600.0),
    ]
    assert lines[0].reason == "idle for 1m02s to 6h05m, and not needed"
    assert len([line for line in story.lines if line.group == "Held back"]) == 1
    text = " ".join(str(story).split())
    assert f"held back ray: is away (3 times since {clock(100.0)})" in text
    assert "held back cloud aws: is away (" not in text


def test_of_one_thing_that_was_decided_again_the_last_duration_counts() -> None:
    log = [decided(at_s, "drain", "tw-a", f"idle for {at_s:.0f}s, and not needed") for at_s in (11.0, 59.0, 30.0)]
    [line] = now_story(scene(log), "test").lines
    assert (line.reason, line.count) == ("idle for 30s, and not needed", 3)


def test_durations_that_are_alike_are_told_once() -> None:
    words = ("idle for 1m, rests 2h", "idle for 9.5s, rests 2h", "idle for 3m20s, rests 2h")
    log = [decided(float(at), "drain", f"tw-{at}", reason) for at, reason in enumerate(words)]
    [line] = now_story(scene(log), "test").lines
    assert line.reason == "idle for 9.5s to 3m20s, rests 2h"


def test_the_end_of_a_name_is_no_duration() -> None:
    words = ("takes over from us-east-1d for sweep-10m", "takes over from us-east-2d for sweep-20m")
    log = [decided(float(at), "drain", f"tw-{at}", reason) for at, reason in enumerate(words)]
    assert [line.reason for line in now_story(scene(log), "test").lines] == list(words)


def test_launches_for_one_reason_are_one_line_and_those_of_another_market_are_not() -> None:
    log = [*asked("tw-a", DEAR, at_s=10.0), *asked("tw-b", CHEAP, at_s=300.0), *asked("tw-c", DEAR, at_s=600.0)]
    lines = [line for line in now_story(scene(log), "test").lines if line.group == "Decided last"]
    assert [(line.what.partition(", gcp")[0].partition(", azure")[0], line.count) for line in lines] == [
        ("asked for tw-b", 1),
        ("asked for tw-a, tw-c", 2),
    ]


def test_before_the_first_tick_nothing_is_claimed() -> None:
    story = now_story(scene([]), "test")
    assert story.lines == ()
    assert "has not looked yet" in story.notes[0]


# --- names, and the text -------------------------------------------------------------------------------------------


def test_a_beginning_that_only_one_has_is_enough() -> None:
    known = ["tw-12ab", "tw-12cd", "tw-1"]
    assert pick("tw-12a", known, node_not_found) == "tw-12ab"
    assert pick("tw-1", known, node_not_found) == "tw-1"  # whole, though it begins others
    with pytest.raises(NotFound, match="tw-12 is the beginning of 2 ids: tw-12ab, tw-12cd"):
        pick("tw-12", known, node_not_found)
    with pytest.raises(NotFound, match=r"no node tw-13ab .*did you mean tw-12ab"):
        pick("tw-13ab", known, node_not_found)
    with pytest.raises(JobNotFound, match="no job"):
        pick("", ["train-1"], job_not_found)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_text_fits_and_holds_everything(width: int) -> None:
    story = node_story(scene(LOG, "tw-c"), "tw-c")
    text = story_text(story, width)
    assert max(len(line) for line in text.splitlines()) <= width
    flat = " ".join(text.split())
    for line in story.lines:
        assert all(
            " ".join(words.split()) in flat for words in (line.what, line.reason, *line.refused, *line.ruled_out)
        )
    assert str(story) == story_text(story)


def test_the_text_has_a_heading_for_each_group_and_a_date_for_each_day() -> None:
    day_s = 86_400.0
    lines = (
        StoryLine(what="one", at_s=day_s, group="First"),
        StoryLine(what="two", at_s=2 * day_s, group="First"),
        StoryLine(what="three", group="Second"),
    )
    text = story_text(Story(about="now", subject="f", title="T", lines=lines, notes=("note",)))
    assert [text.count(word) for word in ("First:", "Second:", "1970-01-0", "note")] == [1, 1, 2, 1]


def test_a_slice_tells_what_each_of_its_hosts_brings() -> None:
    host = make_offer("gcp/us-central2-b/v4", cpus=240, memory_gib=400, gpus=4, accelerator="TPU-V4")
    assert brings_text(host) == "4 x TPU-V4, 240 CPUs, 400 GiB"
    assert brings_text(replace(host, hosts=2)) == "2 hosts, each 4 x TPU-V4, 240 CPUs, 400 GiB"
