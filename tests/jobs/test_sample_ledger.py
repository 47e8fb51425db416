"""The audit must find what is wrong, not only confirm what is right."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.errors import JobError
from tradewind.jobs.data import Order, share, shares
from tradewind.jobs.sample_ledger import Page, SampleLedger, add_up, audit

ORDER = Order(num_samples=23, global_batch=5, epochs=2, seed=3, micro_batches=4)


def pages(attempt: int, world: int, after_step: int, last_step: int) -> list[Page]:
    """What a group of `world` writes when it takes the steps after `after_step` up to `last_step`."""
    return [
        Page(
            attempt,
            rank,
            world,
            after_step,
            ORDER,
            {
                part.step: part.indices.tolist()
                for part in shares(ORDER, after_step, rank, world)
                if part.step <= last_step
            },
        )
        for rank in range(world)
    ]


def test_rolled_back_steps_count_as_recomputed_and_not_as_repeated() -> None:
    found = add_up(pages(1, 4, 0, 6) + pages(2, 3, 4, 10))
    assert found.exact
    assert (found.last_step, found.samples) == (10, 46)
    assert (found.recomputed_steps, found.recomputed_samples) == (2, 8)  # steps 5 (3 samples: the epoch's end) and 6
    assert found.worlds == (4, 3)


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=8))
def test_any_history_of_losses_and_resizes_is_exact(history: list[tuple[int, int, int]]) -> None:
    written, done, attempt = [], 0, 0
    for world, steps, lost in history:
        attempt += 1
        last = min(ORDER.total_steps, done + steps)
        written += pages(attempt, world, done, last)
        done = max(done, last - lost)
    written += pages(attempt + 1, 2, done, ORDER.total_steps)
    found = add_up(written)
    assert found.exact
    assert found.samples == 46


def test_a_skipped_step_is_found() -> None:
    found = add_up(pages(1, 2, 0, 4) + pages(2, 2, 5, 10))
    assert (found.skipped, found.repeated, found.misplaced_steps) == (3, 0, 1)


def test_a_repeated_sample_is_found() -> None:
    first, *rest = pages(1, 2, 0, 10)
    steps = first.steps | {2: first.steps[1]}
    found = add_up([replace(first, steps=steps), *rest])
    assert found.repeated == 2
    assert not found.exact


def test_a_lost_rank_is_found() -> None:
    found = add_up(pages(1, 3, 0, 5)[:2])
    assert found.skipped > 0


def test_pages_on_disk_survive_a_torn_last_line(tmp_path: Path) -> None:
    for rank in range(2):
        page = SampleLedger(tmp_path, ORDER, attempt=1, rank=rank, world=2, after_step=0)
        for step in (1, 2):
            page.record(step, share(ORDER, step, rank, 2).indices)
        page.close()
    with (tmp_path / "attempt-00001-rank-00001.jsonl").open("a") as file:
        file.write('{"step": 3, "indi')
    (tmp_path / "attempt-00002-rank-00000.jsonl").touch()  # ended before its first line
    assert audit(tmp_path).last_step == 2
    assert audit(tmp_path).exact


def test_no_ledger_says_so(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="no sample ledger"):
        audit(tmp_path)
