"""What the benchmarks conclude from the workers' stamps, on stories whose figures are known."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def log() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import training.step_log

        yield training.step_log
        for name in [name for name in sys.modules if name.partition(".")[0] == "training"]:
            del sys.modules[name]


def steps(log: Any, process: str, times: dict[int, float], workers: int, attempt: int) -> list[Any]:
    return [log.Stamp(step, at_s, 0, workers, attempt, "node", process) for step, at_s in times.items()]


def in_order(log: Any, *stories: list[Any]) -> list[Any]:
    return sorted((stamp for story in stories for stamp in story), key=lambda stamp: stamp.at_s)


def test_a_change_is_the_gap_less_a_step_and_counts_what_was_taken_again(log: Any) -> None:
    stamps = in_order(
        log,
        steps(log, "a", {1: 1.0, 2: 2.0, 3: 3.0}, 3, 1),
        steps(log, "b", {1: 1.0, 2: 2.0}, 3, 1),
        steps(log, "dead", {1: 1.0, 2: 2.0}, 3, 1),
        steps(log, "a", {4: 7.5, 5: 8.0, 6: 8.5}, 2, 2),
        steps(log, "b", {3: 7.0, 4: 7.6, 5: 8.1, 6: 8.6}, 2, 2),  # 3 came with the state of a
    )
    found = log.change(stamps, after_s=2.5, workers=2)
    assert found.resumed_s == 7.6
    assert found.gap_s == pytest.approx(5.6)  # of b, from 2.0 to 7.6
    assert found.pause_s == pytest.approx(5.1)
    assert found.lost_steps == 0  # a had completed step 3, and b takes it over


def test_a_step_that_a_survivor_had_completed_and_takes_again_is_lost(log: Any) -> None:
    stamps = in_order(
        log,
        steps(log, "a", {8: 1.0, 9: 2.0}, 2, 1),
        steps(log, "a", {8: 5.0, 9: 6.0, 10: 7.0}, 1, 2),
    )
    assert log.change(stamps, after_s=2.5, workers=1).lost_steps == 2


def test_a_step_that_one_of_two_had_completed_and_both_take_again_is_lost(log: Any) -> None:
    stamps = in_order(
        log,
        steps(log, "a", {8: 1.0, 9: 2.0}, 3, 1),
        steps(log, "b", {8: 1.0}, 3, 1),
        steps(log, "a", {9: 5.0, 10: 6.0}, 2, 2),
        steps(log, "b", {9: 5.0, 10: 6.0}, 2, 2),
    )
    assert log.change(stamps, after_s=2.5, workers=2).lost_steps == 1


def test_a_group_on_the_way_is_passed_over(log: Any) -> None:
    stamps = in_order(
        log,
        steps(log, "a", {1: 1.0, 2: 2.0}, 2, 1),
        steps(log, "a", {3: 3.0}, 1, 2),
        steps(log, "a", {4: 6.0, 5: 7.0}, 3, 3),
    )
    assert log.change(stamps, after_s=2.0, workers=3).gap_s == 3.0


def test_a_restart_is_timed_to_the_next_step_and_to_the_next_new_one(log: Any) -> None:
    stamps = in_order(
        log,
        steps(log, "a", {7: 1.0, 8: 2.0, 9: 3.1}, 3, 0),  # step 9 was under way when the node was killed
        steps(log, "c", {6: 40.0, 7: 40.5, 8: 41.0, 9: 41.5, 10: 42.0}, 2, 0),
    )
    found = log.restart(stamps, killed_s=3.0)
    assert (found.next_step_s, found.next_new_step_s, found.repeated_steps) == (37.0, 39.0, 4)


def test_a_group_stands_when_it_has_the_size_and_has_taken_steps(log: Any) -> None:
    before = steps(log, "a", {1: 1.0, 2: 2.0, 3: 3.0}, 3, 1)
    after = steps(log, "a", {4: 4.0, 5: 5.0}, 2, 2)
    assert log.standing(before, 3, more_steps=2)
    assert not log.standing(before, 3, more_steps=3)
    assert not log.standing(before + after, 3, more_steps=0)
    assert log.standing(before + after, 2, more_steps=1)
    assert not log.standing([], 2, more_steps=0)


def test_stamps_are_read_on_and_a_torn_line_is_left_for_later(log: Any, tmp_path: Path) -> None:
    writer, reader = log.StepLog(tmp_path, "n1"), log.StepReader(tmp_path)
    writer.completed(1, 0, 2, 1)
    assert [stamp.step for stamp in reader.read()] == [1]
    writer.completed(2, 0, 2, 1)
    (path,) = tmp_path.glob("steps-*")
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    assert [stamp.step for stamp in reader.read()] == [1]
    path.write_bytes(whole)
    assert [(stamp.step, stamp.workers, stamp.node) for stamp in reader.read()] == [(1, 2, "n1"), (2, 2, "n1")]
