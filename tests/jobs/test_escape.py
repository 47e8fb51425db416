"""Sums that gloo ends, fails, or never ends: what whoever waits for them sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.futures import Future

from tradewind.jobs.escape import Escape
from tradewind.jobs.losses import is_communication

SUM = torch.tensor([3.0])


class Work:
    """A sum that ends when the test says so."""

    def __init__(self) -> None:
        self.end: Future[Any] = Future()

    def get_future(self) -> Future[Any]:
        return self.end

    def is_completed(self) -> bool:
        return self.end.done()


def failing(kind: type[Exception]) -> Work:
    """As gloo ends it when a connection was closed: with an error of C++."""
    work = Work()
    before: Future[Any] = Future()

    def close(_: Future[Any]) -> None:
        raise kind("Connection closed by peer")

    work.end = before.then(close)
    before.set_result(None)
    return work


def test_a_sum_that_ends_is_handed_on() -> None:
    way_out, work = Escape(), Work()
    found = way_out.watch(work, SUM)
    assert not found.done()
    work.end.set_result([SUM])
    assert found.wait() is SUM
    assert way_out.stuck() == []


@pytest.mark.parametrize("kind", [RuntimeError, MemoryError])
def test_an_error_of_gloo_is_handed_on(kind: type[Exception]) -> None:
    way_out = Escape()
    with pytest.raises(RuntimeError, match="Connection closed by peer") as caught:
        way_out.watch(failing(kind), SUM).wait()
    assert is_communication(caught.value)
    assert way_out.stuck() == []


def test_who_waits_for_a_sum_that_never_ends_is_let_go_and_the_work_is_known() -> None:
    way_out, work = Escape(), Work()
    found = way_out.watch(work, SUM)
    way_out.open()
    with pytest.raises(RuntimeError) as caught:
        found.wait()
    assert is_communication(caught.value)
    assert way_out.stuck() == [work]
    work.end.set_result([SUM])  # gloo's own time-out, minutes later, changes nothing
    assert way_out.stuck() == []


@pytest.mark.parametrize("given_up", ["before it begins", "while it is under way"])
def test_a_group_that_is_given_up_opens_by_itself(given_up: str) -> None:
    way_out = Escape(patience_s=0.01)
    if given_up == "before it begins":
        way_out.open_soon()
    found = way_out.watch(Work(), SUM)
    way_out.open_soon()
    with pytest.raises(RuntimeError, match="given up"):
        found.wait()


def test_what_ended_stays_as_it_was() -> None:
    way_out, work = Escape(), Work()
    found = way_out.watch(work, SUM)
    work.end.set_result([SUM])
    way_out.open()
    assert found.wait() is SUM
