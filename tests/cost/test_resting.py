"""For how long a job rested, by what it told."""

from __future__ import annotations

import random
from typing import Any

from tradewind.cost.receipt import receipt
from tradewind.cost.resting import Rests, Turn
from tradewind.events import MoveRequested
from tradewind.model import Phase


def rests(*turns: tuple[int, bool], stops: tuple[int, ...] = ()) -> Rests:
    return Rests({Turn(at_ms, 1, number): resting for number, (at_ms, resting) in enumerate(turns)}, list(stops))


def test_from_the_rest_to_the_next_phase_or_until_now() -> None:
    found = rests((0, False), (100, True), (400, False), (900, True))
    assert [found.by_ms(now_ms, None) for now_ms in (50, 100, 250, 400, 800, 1000)] == [0, 0, 150, 300, 300, 400]
    assert found.by_ms(5000, 950) == 350


def test_who_is_told_to_stop_does_not_rest() -> None:
    assert rests((0, False), (500, True), stops=(480,)).by_ms(900, 600) == 0
    assert rests((0, False), (100, True), stops=(480,)).by_ms(900, 600) == 380
    # It was stopped there, went on in another cell, and rests now.
    assert rests((0, False), (100, True), (300, False), (500, True), stops=(90,)).by_ms(900, None) == 400


def test_order_and_number_of_reports_make_no_difference() -> None:
    turns = [(Turn(at_ms, 1, at_ms), at_ms % 200 == 0) for at_ms in range(0, 2000, 100)]
    plain = Rests(dict(turns)).by_ms(5000, None)
    shuffled = random.Random(1).sample(turns + turns[:5], len(turns) + 5)
    assert Rests(dict(shuffled)).by_ms(5000, None) == plain == 1000


def test_a_move_to_another_cell_is_no_rest(history: Any) -> None:
    history.job("j").phase("j", 0.0, Phase.TRAINING)
    history.events.append(MoveRequested(at_s=100.0, job_id="j", reason="its cell runs dry"))
    history.phase("j", 102.0, Phase.RESTING).phase("j", 1300.0, Phase.STARTING)
    assert receipt(history.ledger, "j", 2000.0).rested_s == 0.0


def test_a_move_that_was_called_off_ends_no_rest(history: Any) -> None:
    history.job("j").phase("j", 0.0, Phase.TRAINING)
    history.events.append(MoveRequested(at_s=100.0, job_id="j", reason="its cell runs dry"))
    history.events.append(MoveRequested(at_s=190.0, job_id="j", reason="its cell runs dry", called_off=True))
    history.phase("j", 1000.0, Phase.RESTING).phase("j", 1300.0, Phase.STARTING)
    assert receipt(history.ledger, "j", 2000.0).rested_s == 300.0
