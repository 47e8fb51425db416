"""Nodes and jobs as a fold: lives by hand, and invariants over histories of any order that the tables allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.fleet import FleetState, JobRecord, NodeRecord
from tradewind.errors import IllegalTransition
from tradewind.events import (
    AnyEvent,
    CheckpointCommitted,
    ControllerStarted,
    DecisionRecorded,
    DrainRefused,
    DrainRequested,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
    PhaseChanged,
    StepCommitted,
    TerminateRequested,
)
from tradewind.model import Capacity, EndReason, JobSpec, Market, Offer, Phase
from tradewind.states import JOB_TRANSITIONS, NODE_TRANSITIONS, JobState, NodeState, is_alive, is_over

OFFER = Offer(Market("aws", "r", "z", "t", Capacity.SPOT), vcpus=4, memory_gib=16, price_uusd_per_h=1)
SPEC = JobSpec(name="j", entrypoint="python train.py", min_workers=1, max_workers=2)
REQUEST = LaunchRequested(at_s=1.0, launch_id="a", offer=OFFER, reason="4 CPUs are asked for")
SUBMIT = JobSubmitted(at_s=1.0, job_id="j", spec=SPEC)


def step(sequence: int, last_step: int, at_s: float = 9.0) -> StepCommitted:
    return StepCommitted(
        at_s=at_s, job_id="j", attempt=1, sequence=sequence, began_s=at_s - 1, first_step=last_step,
        last_step=last_step, workers=2, samples=8, total_steps=100, loss=1.0 / last_step,
    )  # fmt: skip


# --- by hand ---------------------------------------------------------------------------------------------------


def test_the_life_of_a_node_with_notice() -> None:
    state = FleetState.fold(
        [
            REQUEST,
            NodeLaunched(at_s=2.0, launch_id="a", instance_id="i-1"),
            NodeJoined(at_s=5.0, launch_id="a", ray_node_id="ff"),
            NoticeReceived(at_s=8.0, launch_id="a", deadline_s=38.0),
            DrainRequested(at_s=8.5, launch_id="a", reason="notice", deadline_s=38.0),
            NodeGone(at_s=38.0, launch_id="a", end=EndReason.PREEMPTED, detail="taken"),
        ]
    )
    assert state.nodes["a"] == NodeRecord(
        launch_id="a", offer=OFFER, cell="local", reason="4 CPUs are asked for", state=NodeState.GONE,
        requested_at_s=1.0, state_since_s=38.0, instance_id="i-1", ray_node_id="ff", launched_at_s=2.0, joined_at_s=5.0,
        ended_at_s=38.0, notice_deadline_s=38.0, drain_deadline_s=38.0, end=EndReason.PREEMPTED, detail="taken",
    )  # fmt: skip
    assert state.alive_nodes == []


def test_a_refused_launch() -> None:
    refused = LaunchRefused(at_s=2.0, launch_id="a", error="Stockout", message="none left", scope="zone", block_s=600)
    state = FleetState.fold([REQUEST, refused])
    node = state.nodes["a"]
    assert (node.state, node.ended_at_s, node.detail) == (NodeState.FAILED, 2.0, "Stockout: none left")
    assert (state.refusals, state.alive_nodes) == ([refused], [])


def test_a_drain_that_ray_refuses() -> None:
    up = [
        REQUEST,
        NodeLaunched(at_s=2.0, launch_id="a", instance_id="i"),
        NodeJoined(at_s=3.0, launch_id="a", ray_node_id="f"),
    ]
    drain = DrainRequested(at_s=4.0, launch_id="a", reason="idle", deadline_s=9.0)
    state = FleetState.fold([*up, drain, DrainRefused(at_s=5.0, launch_id="a", message="busy")])
    node = state.nodes["a"]
    assert (node.state, node.state_since_s, node.drain_deadline_s) == (NodeState.READY, 5.0, None)
    assert node.joined_at_s == 3.0


def test_the_life_of_a_job() -> None:
    state = FleetState.fold(
        [
            ControllerStarted(at_s=0.0, fleet="f", pid=1, version="0", simulated=True),
            SUBMIT,
            JobStateChanged(at_s=2.0, job_id="j", state=JobState.RUNNING),
            PhaseChanged(at_s=3.0, job_id="j", attempt=1, sequence=1, phase=Phase.TRAINING, workers=2, reason="up"),
            step(2, 1),
            CheckpointCommitted(at_s=9.5, job_id="j", attempt=1, sequence=3, step=1, path="/c", duration_s=0.1),
            DecisionRecorded(at_s=9.6, action="hold", subject="x", reason="y"),
            JobStateChanged(at_s=10.0, job_id="j", state=JobState.RECOVERING, reason="lost a node"),
            JobStateChanged(at_s=11.0, job_id="j", state=JobState.RUNNING),
            step(4, 2),
            JobStateChanged(at_s=12.0, job_id="j", state=JobState.SUCCEEDED, reason="done"),
        ]
    )
    assert state.simulated
    assert state.open_jobs == []
    assert state.jobs["j"] == JobRecord(
        job_id="j", spec=SPEC, state=JobState.SUCCEEDED, submitted_at_s=1.0, reason="done", started_at_s=2.0,
        ended_at_s=12.0, phase=Phase.TRAINING, phase_reason="up", attempt=1, workers=2, step=2, total_steps=100,
        loss=0.5, checkpoint_step=1, reported_sequence=4,
    )  # fmt: skip


def test_a_job_that_starts_at_time_zero_keeps_its_start() -> None:
    """Simulated clocks begin there."""
    submit = replace(SUBMIT, at_s=0.0)
    moves = [(0.0, JobState.RUNNING), (5.0, JobState.RECOVERING), (6.0, JobState.RUNNING)]
    events = [JobStateChanged(at_s=at_s, job_id="j", state=state) for at_s, state in moves]
    assert FleetState.fold([submit, *events]).jobs["j"].started_at_s == 0.0


def test_holdings_come_and_go() -> None:
    gpu = HoldingChanged(at_s=2.0, job_id="j", launch_id="a", resources={"GPU": 1.0})
    state = FleetState.fold([SUBMIT, gpu, replace(gpu, launch_id="b")])
    before = state.jobs["j"]
    assert before.holdings == {"a": {"GPU": 1.0}, "b": {"GPU": 1.0}}
    state.apply(replace(gpu, resources={}))
    assert state.jobs["j"].holdings == {"b": {"GPU": 1.0}}
    assert before.holdings == {"a": {"GPU": 1.0}, "b": {"GPU": 1.0}}  # a record that was handed out does not change


def test_reports_come_at_least_once_and_count_once() -> None:
    state = FleetState.fold([SUBMIT, step(1, 1), step(2, 2)])
    once = state.jobs["j"]
    for repeated in (step(1, 1, at_s=50.0), step(2, 2)):
        state.apply(repeated)
    assert state.jobs["j"] == once


def test_records_are_frozen() -> None:
    state = FleetState.fold([REQUEST, NodeLaunched(at_s=2.0, launch_id="a", instance_id="i-1")])
    with pytest.raises(FrozenInstanceError):
        state.nodes["a"].detail = "x"  # type: ignore[misc]


@pytest.mark.parametrize(
    "event",
    [
        NodeJoined(at_s=2.0, launch_id="a", ray_node_id="f"),
        DrainRequested(at_s=2.0, launch_id="a", reason="idle"),
        TerminateRequested(at_s=2.0, launch_id="a", reason="idle"),
    ],
)
def test_what_the_table_does_not_have_raises_and_changes_nothing(event: AnyEvent) -> None:
    state = FleetState.fold([REQUEST])
    before = state.nodes["a"]
    with pytest.raises(IllegalTransition, match="node a"):
        state.apply(event)
    assert state.nodes["a"] is before


# --- any history -----------------------------------------------------------------------------------------------

NODE_EVENTS: dict[NodeState, Callable[[str, float], AnyEvent]] = {
    NodeState.BOOTING: lambda name, at_s: NodeLaunched(at_s=at_s, launch_id=name, instance_id=f"i-{name}"),
    NodeState.READY: lambda name, at_s: NodeJoined(at_s=at_s, launch_id=name, ray_node_id="ff"),
    NodeState.DRAINING: lambda name, at_s: DrainRequested(at_s=at_s, launch_id=name, reason="r", deadline_s=at_s + 9),
    NodeState.TERMINATING: lambda name, at_s: TerminateRequested(at_s=at_s, launch_id=name, reason="r"),
    NodeState.GONE: lambda name, at_s: NodeGone(at_s=at_s, launch_id=name, end=EndReason.LOST),
    NodeState.FAILED: lambda name, at_s: LaunchRefused(
        at_s=at_s, launch_id=name, error="Stockout", message="m", scope="zone", block_s=1.0
    ),
}


NUMBERS = st.integers(1, 9)
REPORTS = st.one_of(
    st.builds(step, NUMBERS, NUMBERS),
    st.builds(
        PhaseChanged, at_s=st.just(9.0), job_id=st.just("j"), attempt=NUMBERS, sequence=NUMBERS,
        phase=st.sampled_from(Phase), workers=NUMBERS, reason=st.just("r"),
    ),
    st.builds(
        CheckpointCommitted, at_s=st.just(9.0), job_id=st.just("j"), attempt=NUMBERS, sequence=NUMBERS, step=NUMBERS,
        path=st.just("/c"), duration_s=st.just(0.1),
    ),
)  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[AnyEvent], dict[str, NodeState], dict[str, JobState]]:
    """Some nodes and jobs, each moved along its table in an order of hypothesis' choosing; and where they end up."""
    events: list[AnyEvent] = []
    nodes: dict[str, NodeState] = {}
    jobs: dict[str, JobState] = {}
    for at in range(draw(st.integers(1, 25))):
        name = draw(st.sampled_from("abc"))
        if draw(st.booleans()):
            if name not in nodes:
                nodes[name] = NodeState.REQUESTED
                events.append(replace(REQUEST, at_s=float(at), launch_id=name))
            elif ways := sorted(NODE_TRANSITIONS[nodes[name]]):
                nodes[name] = draw(st.sampled_from(ways))
                events.append(NODE_EVENTS[nodes[name]](name, float(at)))
        elif name not in jobs:
            jobs[name] = JobState.QUEUED
            events.append(replace(SUBMIT, at_s=float(at), job_id=name))
        elif draw(st.booleans()):  # reports come late and twice, and do not care for the state
            events.append(replace(draw(REPORTS), job_id=name))
        elif paths := sorted(JOB_TRANSITIONS[jobs[name]]):
            jobs[name] = draw(st.sampled_from(paths))
            events.append(JobStateChanged(at_s=float(at), job_id=name, state=jobs[name]))
    return events, nodes, jobs


@settings(deadline=None)
@given(histories())
def test_the_fold_ends_where_the_history_ends(
    history: tuple[list[AnyEvent], dict[str, NodeState], dict[str, JobState]],
) -> None:
    events, nodes, jobs = history
    state = FleetState.fold(events)
    assert {name: record.state for name, record in state.nodes.items()} == nodes
    assert {name: record.state for name, record in state.jobs.items()} == jobs
    assert {node.launch_id for node in state.alive_nodes} == {name for name, at in nodes.items() if is_alive(at)}
    assert {job.job_id for job in state.open_jobs} == {name for name, at in jobs.items() if not is_over(at)}
    for node in state.nodes.values():
        assert (node.ended_at_s is not None) == (not is_alive(node.state))
        assert node.requested_at_s <= node.state_since_s
    for job in state.jobs.values():
        assert (job.ended_at_s is not None) == is_over(job.state)


def test_a_step_of_an_unknown_job_raises() -> None:
    with pytest.raises(KeyError):
        FleetState.fold([step(1, 1)])


@settings(deadline=None, max_examples=200)
@given(histories(), st.integers(0, 25))
def test_going_on_from_the_middle_gives_the_same(
    history: tuple[list[AnyEvent], dict[str, NodeState], dict[str, JobState]], cut: int
) -> None:
    events, _, _ = history
    state = FleetState.fold(events[:cut])
    for event in events[cut:]:
        state.apply(event)
    assert state == FleetState.fold(events)
