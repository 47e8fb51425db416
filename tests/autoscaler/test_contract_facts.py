"""What contracts are kept by: the pace of a job, the spells of a market, the work that is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.autoscaler.contract.progress import USUAL_START_S, boot_s, law, start_s, unsaved_s, warming_s, work_of
from tradewind.autoscaler.contract.watching import watch_of
from tradewind.autoscaler.fleet import JobRecord
from tradewind.autoscaler.knowledge import Experience, Knowledge
from tradewind.autoscaler.pace import Pace
from tradewind.autoscaler.sightings import Spells
from tradewind.autoscaler.testing import make_offer
from tradewind.events import CheckpointCommitted, PhaseChanged, StepCommitted
from tradewind.model import Contract, JobSpec, Phase, Wish
from tradewind.states import JobState

H = 3600.0
WISH = Wish("a", 1, 4, {"GPU": 1})


def steps(sequence: int, began_s: float, at_s: float, first: int, last: int, workers: int = 1, attempt: int = 1):  # type: ignore[no-untyped-def]
    return StepCommitted(
        at_s=at_s,
        job_id="a",
        attempt=attempt,
        sequence=sequence,
        began_s=began_s,
        first_step=first,
        last_step=last,
        workers=workers,
        samples=1,
        total_steps=100,
    )


def phase(sequence: int, at_s: float, which: Phase) -> PhaseChanged:
    return PhaseChanged(at_s=at_s, job_id="a", attempt=1, sequence=sequence, phase=which, workers=1)


def job(step: int = 0, work_s: float | None = None, **changes: object) -> JobRecord:
    spec = JobSpec("a", "x", contract=Contract(deadline_at_s=9e9, work_s=work_s))
    return replace(JobRecord("a", spec, JobState.RUNNING, 0.0, step=step, total_steps=100), **changes)  # type: ignore[arg-type]


# --- pace -----------------------------------------------------------------------------------------------------------


def test_steps_are_measured_by_size_and_repetitions_do_not_count() -> None:
    pace = Pace()
    for event in (steps(1, 0, 100, 1, 10), steps(1, 0, 100, 1, 10), steps(2, 100, 150, 11, 20, workers=2)):
        pace.stepped(event, "L4")
    assert pace.step_s(1) == pytest.approx(10.0)
    assert pace.step_s(2) == pytest.approx(5.0)
    assert pace.step_s(3) is None
    assert pace.accelerator == "L4"


def test_saves_between_reports_are_part_of_the_speed_and_long_stops_are_not() -> None:
    saving, stopped = Pace(), Pace()
    for pace, later_s in ((saving, 104.0), (stopped, 9000.0)):
        pace.stepped(steps(1, 0, 100, 1, 10), "")
        pace.stepped(steps(2, later_s, later_s + 20, 11, 12), "")
    assert saving.measured_s == pytest.approx(124.0)
    assert stopped.measured_s == pytest.approx(140.0)


def test_old_steps_fade() -> None:
    pace = Pace()
    for number in range(50):
        pace.stepped(steps(number + 1, number * 900, number * 900 + 900, 1, 90, attempt=number), "")
    pace.stepped(steps(99, 1e6, 1e6 + 900, 1, 45, attempt=99), "")
    assert 13.0 < (pace.step_s(1) or 0) < 20.0


def test_waiting_for_machines_is_no_start() -> None:
    pace = Pace()
    pace.changed(phase(1, 0.0, Phase.STARTING))
    pace.held(5000.0)
    pace.changed(phase(2, 5025.0, Phase.TRAINING))
    assert list(pace.starts_s) == [25.0]
    assert start_s(pace) == 25.0
    assert start_s(None) == USUAL_START_S
    pace.shift(100.0)
    assert pace.phase_since_s == 5125.0


# --- work -----------------------------------------------------------------------------------------------------------


def test_work_is_told_by_steps_else_stated_else_not_known() -> None:
    pace = Pace()
    assert work_of(job(), pace, WISH, 4) is None
    stated = work_of(job(work_s=7200.0), pace, WISH, 4)
    assert stated is not None
    assert stated.left_s == pytest.approx(7200 * 1.05)
    pace.stepped(steps(1, 0, 100, 1, 10), "")
    told = work_of(job(step=10), pace, WISH, 4)
    assert told is not None
    assert told.left_s == pytest.approx(90 * 10 * 1.05)
    assert told.speeds == pytest.approx([law(n) for n in range(1, 5)])


def test_a_first_quick_step_does_not_make_the_work_small() -> None:
    pace = Pace()
    pace.stepped(steps(1, 0, 1, 1, 10), "")
    found = work_of(job(step=10, work_s=7200.0), pace, WISH, 4)
    assert found is not None
    assert found.left_s > 7000


def test_work_that_was_stated_is_used_up() -> None:
    pace = Pace()
    pace.stepped(steps(1, 0, 5000, 1, 10), "")
    assert work_of(replace(job(work_s=4000.0), total_steps=None), pace, WISH, 4) is None


def test_measured_sizes_are_believed_more_than_the_law() -> None:
    pace = Pace()
    pace.stepped(steps(1, 0, 1000, 1, 100), "")
    pace.stepped(steps(2, 0, 50, 1, 10, workers=4), "")
    found = work_of(job(), pace, WISH, 4)
    assert found is not None
    assert found.speeds[3] == pytest.approx(2.0)
    assert found.speeds[1] == pytest.approx(law(2))
    assert work_of(job(), pace, replace(WISH, min_workers=2), 4).speeds[0] < 1e-6  # type: ignore[union-attr]


def test_unsaved_work_is_what_lies_between_saves() -> None:
    pace = Pace()
    pace.stepped(steps(1, 0, 100, 1, 10), "")
    for sequence, step in ((2, 4), (3, 10)):
        event = CheckpointCommitted(
            at_s=0.0, job_id="a", attempt=1, sequence=sequence, step=step, path="", duration_s=0.0
        )
        pace.saved(event, 0 if step == 4 else 4)
    work = work_of(job(step=10), pace, WISH, 4)
    assert work is not None
    assert unsaved_s(job(step=10, checkpoint_step=10), pace, work, 1) == pytest.approx(60.0)
    assert unsaved_s(job(step=30, checkpoint_step=10), pace, work, 1) == pytest.approx(200.0)


def test_boots_are_taken_for_long_rather_than_short() -> None:
    market, seen = make_offer(gpus=1).market, Experience()
    for number, took_s in enumerate((20.0, 20.0, 20.0, 90.0)):
        seen.joined(market, number * 1000 + took_s, number * 1000)
    known = Knowledge.of(seen, 9000.0, 0.1, 30.0)
    assert boot_s(known, market, 30.0) == 90.0
    assert boot_s(None, market, 30.0) == 30.0


def test_what_takes_longer_than_thought_is_not_ready_at_once() -> None:
    assert warming_s(None, 100.0, 0.0, 30.0) == 70.0
    assert warming_s(None, 100.0, 0.0, 500.0) == 20.0
    working = Pace(phase=Phase.TRAINING)
    assert warming_s(working, 100.0, None, 500.0) == 0.0


# --- markets --------------------------------------------------------------------------------------------------------


def test_spells_follow_launches_refusals_and_losses() -> None:
    spells = Spells()
    spells.sold(0.0)
    assert spells.state
    spells.ended(H, taken=False)
    assert spells.state is None
    spells.none_left(2 * H)
    spells.none_left(3 * H)
    assert list(spells.changes) == [(0.0, True), (H, None), (2 * H, False)]
    assert spells.seen_s == 3 * H


def test_markets_together_have_none_only_where_all_are_known_to_have_none() -> None:
    a, b = Spells(), Spells()
    a.sold(0.0)
    a.ended(H, taken=True)
    assert watch_of(["a", "b"], {"a": a, "b": b}, {}, 2 * H).any.is_up is None
    b.none_left(1.5 * H)
    watch = watch_of(["a", "b"], {"a": a, "b": b}, {}, 2 * H)
    assert watch.any.is_up is False
    assert watch.markets["a"].tally.ends == (0.0, 0.0, 0.0, 1.0)
    b.sold(3 * H)
    a.sold(3 * H)
    b.ended(4 * H, taken=True)
    watch = watch_of(["a", "b"], {"a": a, "b": b}, {}, 5 * H)
    assert watch.any.is_up is True, "the other one still runs"
    assert watch.markets["a"].tally.hours[2] == pytest.approx(0.75, rel=0.03)  # it fades
    assert watch.markets["a"].tally.hours[3] > 1.0, "a node of ours is there: so it is open until now"
