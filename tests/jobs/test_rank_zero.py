"""What rank 0 tells of its steps."""

from __future__ import annotations

import time
from typing import Any

from tradewind.jobs.rank_zero import Scribe, Told


class Heard:
    """A coordinator that keeps what it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []

    @property
    def committed(self) -> Heard:
        return self

    def remote(self, *told: Any) -> None:
        self.steps.append(told)


def test_steps_that_another_rank_zero_did_not_tell_begin_at_no_earlier_time_than_this_one() -> None:
    heard, before_s = Heard(), time.time()
    scribe = Scribe(heard, attempt=3, world=1, curve=None)
    for step in (302, 303, 304):
        scribe.step(Told(step, 60, 1.0))
    scribe.flush()
    [(attempt, world, began_s, at_s, first, last, samples, _)] = heard.steps
    assert (attempt, world, first, last, samples) == (3, 1, 302, 304, 180)
    assert before_s <= began_s <= at_s
