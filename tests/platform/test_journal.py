"""The one writer: log and memory never say different things."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tradewind.errors import IllegalTransition, LogError, TradewindError
from tradewind.events import (
    AnyEvent,
    ControllerStarted,
    DecisionRecorded,
    HoldingChanged,
    JobStateChanged,
    JobSubmitted,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    PhaseChanged,
    StepCommitted,
)
from tradewind.journal import RECENT_DECISIONS, Journal
from tradewind.model import EndReason, JobSpec, Phase
from tradewind.states import JobState
from tradewind.store import EventLog
from tradewind.testing import SPOT_A100

SPEC = JobSpec(name="n", entrypoint="true")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with EventLog.open(tmp_path / "events.db") as log:
        yield Journal.load(log)


def written(journal: Journal) -> list[AnyEvent]:
    return [event for _, event in journal.log.read()]


def moved(state: JobState, at_s: float = 2.0) -> JobStateChanged:
    return JobStateChanged(at_s=at_s, job_id="a", state=state)


def submitted(job_id: str = "a") -> JobSubmitted:
    return JobSubmitted(at_s=1.0, job_id=job_id, spec=SPEC)


STORY: tuple[AnyEvent, ...] = (
    ControllerStarted(at_s=0.0, fleet="f", pid=1, version="0", simulated=True),
    submitted(),
    LaunchRequested(at_s=1.0, launch_id="n1", offer=SPOT_A100, reason="cheapest"),
    DecisionRecorded(at_s=1.0, action="launch", subject="n1", reason="cheapest"),
    NodeLaunched(at_s=2.0, launch_id="n1", instance_id="i-1"),
    NodeJoined(at_s=3.0, launch_id="n1", ray_node_id="aa"),
    moved(JobState.RUNNING, 3.0),
    HoldingChanged(at_s=4.0, job_id="a", launch_id="n1", resources={"GPU": 8.0}),
    PhaseChanged(at_s=5.0, job_id="a", attempt=1, sequence=1, phase=Phase.TRAINING, workers=8),
    StepCommitted(
        at_s=65.0,
        job_id="a",
        attempt=1,
        sequence=2,
        began_s=5.0,
        first_step=1,
        last_step=60,
        workers=8,
        samples=480,
        loss=0.5,
    ),
    NodeGone(at_s=70.0, launch_id="n1", end=EndReason.PREEMPTED),
)


def test_a_reload_gives_the_same_folds(tmp_path: Path) -> None:
    with EventLog.open(tmp_path / "events.db") as log:
        first = Journal.load(log)
        first.record(*STORY[:4])
        for event in STORY[4:]:
            first.record(event)
    with EventLog.open(tmp_path / "events.db") as log:
        second = Journal.load(log)
        assert written(second) == list(STORY)
        assert second.fleet == first.fleet
        assert second.ledger.accounts(100.0) == first.ledger.accounts(100.0) != ()
        assert list(second.decisions) == list(first.decisions) == [STORY[3]]


def test_only_the_latest_decisions_are_kept(journal: Journal) -> None:
    for number in range(RECENT_DECISIONS + 3):
        journal.record(DecisionRecorded(at_s=float(number), action="hold", subject=str(number), reason="r"))
    assert [d.subject for d in journal.decisions] == [str(n) for n in range(3, RECENT_DECISIONS + 3)]
    assert journal.log.last_sequence == RECENT_DECISIONS + 3


def test_recording_nothing_writes_nothing(journal: Journal) -> None:
    journal.record()
    assert journal.log.last_sequence == 0


def test_an_illegal_transition_is_neither_written_nor_believed(journal: Journal) -> None:
    journal.record(submitted(), moved(JobState.SUCCEEDED))
    with pytest.raises(IllegalTransition):
        journal.record(moved(JobState.RUNNING))
    assert len(written(journal)) == 2
    assert journal.fleet.jobs["a"].state is JobState.SUCCEEDED


def test_what_stands_before_an_illegal_event_in_the_same_record_is_undone_with_it(journal: Journal) -> None:
    """Otherwise memory would know what the log does not, and a restart would lose it."""
    journal.record(submitted())
    step = STORY[-2]
    with pytest.raises(IllegalTransition):
        journal.record(step, moved(JobState.STOPPING), moved(JobState.RUNNING))
    assert len(written(journal)) == 1
    assert journal.fleet.jobs["a"].state is JobState.QUEUED
    assert journal.fleet.jobs["a"].reported_sequence == 0
    assert journal.ledger.jobs["a"].state is JobState.QUEUED


def test_events_of_one_record_may_build_on_each_other(journal: Journal) -> None:
    journal.record(submitted(), moved(JobState.RUNNING), moved(JobState.RECOVERING), moved(JobState.RUNNING))
    assert journal.fleet.jobs["a"].state is JobState.RUNNING


def test_what_cannot_be_written_is_not_believed(journal: Journal) -> None:
    """A launch that is on no record must not be made: the next tick would make it from memory."""
    journal.log.close()
    with pytest.raises(LogError):
        journal.record(STORY[2])
    assert journal.fleet.nodes == {}
    assert journal.ledger.nodes == {}


@pytest.mark.parametrize("at_s", [float("nan"), float("inf")])
def test_an_event_without_a_time_is_refused_since_no_ledger_could_read_it_again(journal: Journal, at_s: float) -> None:
    journal.record(submitted())
    with pytest.raises(LogError, match="no time"):
        journal.record(moved(JobState.RUNNING, at_s))
    assert journal.fleet.jobs["a"].state is JobState.QUEUED
    assert len(written(journal)) == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.sampled_from([*STORY, *map(moved, JobState)]), max_size=4), max_size=8))
def test_whatever_is_recorded_log_and_memory_agree(tmp_path_factory: pytest.TempPathFactory, records) -> None:  # type: ignore[no-untyped-def]
    with EventLog.open(tmp_path_factory.mktemp("log") / "events.db") as log:
        journal = Journal.load(log)
        for events in records:
            before = log.last_sequence
            try:
                journal.record(*events)
            except (TradewindError, KeyError):
                assert log.last_sequence == before
        again = Journal.load(log)
        assert again.fleet == journal.fleet
        assert again.ledger.accounts(100.0) == journal.ledger.accounts(100.0)


def test_wait_beyond_returns_at_once_when_there_is_more_and_says_when_the_time_is_over(journal: Journal) -> None:
    assert not journal.wait_beyond(0, 0.0)
    journal.record(submitted())
    assert journal.wait_beyond(0, 30.0)
    assert not journal.wait_beyond(1, 0.0)


def test_wait_beyond_is_woken_by_a_record_of_another_thread(journal: Journal) -> None:
    answers: list[bool] = []
    waiter = threading.Thread(target=lambda: answers.append(journal.wait_beyond(0, 60.0)))
    waiter.start()
    journal.record(submitted())
    waiter.join(timeout=20)
    assert answers == [True]


def test_while_one_reads_nobody_writes_but_the_reader_itself(journal: Journal) -> None:
    with journal.reading() as (fleet, ledger):
        writer = threading.Thread(target=lambda: journal.record(submitted("b")))
        writer.start()
        journal.record(submitted("a"))
        assert list(fleet.jobs) == list(ledger.jobs) == ["a"]
    writer.join(timeout=20)
    assert list(journal.fleet.jobs) == ["a", "b"]


def test_jobs_can_be_submitted_while_the_loop_looks_at_them(journal: Journal) -> None:
    """The loop's thread reads the fleet without a lock: a new job must not break its walk."""
    journal.record(*(submitted(f"old-{n}") for n in range(300)))
    over, broken = threading.Event(), []

    def look() -> None:
        while not over.is_set():
            try:
                journal.fleet.open_jobs  # noqa: B018
            except RuntimeError as error:
                broken.append(error)

    looker = threading.Thread(target=look)
    looker.start()
    for n in range(100):
        journal.record(submitted(f"new-{n}"))
    over.set()
    looker.join(timeout=20)
    assert broken == []
