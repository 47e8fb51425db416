"""Whose fault was it, and is it tried again?"""

from __future__ import annotations

import pytest

from tradewind.jobs import spares
from tradewind.jobs.losses import MAX_WITHOUT_PROGRESS, Cause, PeerLost, Tally, cause, charge, is_communication


def test_a_lost_node_explains_the_errors_of_the_survivors() -> None:
    failures: dict[int, Exception] = {0: ValueError("collateral"), 1: PeerLost("gone")}
    assert cause(failures, dead_ranks=1, nodes_lost=1) is Cause.NODE_LOST
    assert cause(failures, dead_ranks=1, nodes_lost=0) is Cause.WORKER_CRASHED
    assert cause(failures, dead_ranks=0, nodes_lost=0) is Cause.USER_ERROR
    assert cause({1: PeerLost("gone")}, dead_ranks=0, nodes_lost=0) is Cause.COMMUNICATION


def test_communication_is_seen_through_wrapping() -> None:
    outer = ValueError("my step failed")
    outer.__cause__ = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer")
    assert is_communication(outer)
    assert not is_communication(ValueError("gloo is a word in my data"))
    assert not is_communication(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_lost_nodes_are_never_too_many() -> None:
    tally = Tally()
    for _ in range(100):
        tally, again = charge(tally, Cause.NODE_LOST, step=7, max_failures=0)
        assert again
    assert tally.user_errors == 0


@pytest.mark.parametrize("limit", [0, 2])
def test_user_errors_have_the_limit_of_the_user(limit: int) -> None:
    tally, tries = Tally(), []
    for step in range(1, 5):
        tally, again = charge(tally, Cause.USER_ERROR, step=step, max_failures=limit)
        tries.append(again)
    assert tries == [at < limit for at in range(4)]


@pytest.mark.parametrize("why", [Cause.WORKER_CRASHED, Cause.COMMUNICATION])
def test_unexplained_failures_go_on_while_the_job_moves(why: Cause) -> None:
    tally = Tally()
    for step in range(10, 100, 10):
        tally, again = charge(tally, why, step=step, max_failures=0)
        assert again
    stuck = []
    for _ in range(MAX_WITHOUT_PROGRESS):
        tally, again = charge(tally, why, step=90, max_failures=0)
        stuck.append(again)
    assert stuck == [True] * (MAX_WITHOUT_PROGRESS - 1) + [False]


def test_spares_for_a_settled_group_and_for_nodes_to_come() -> None:
    held, rooms = {"a": 2, "b": 1}, {"a": 2, "b": 1, "new": 3}
    assert spares.wanted(held, rooms, have={}, settled=False, limit=2) == {"new": 2}
    assert spares.wanted(held, rooms, have={"a": 1, "new": 2}, settled=True, limit=2) == {"a": 1, "b": 1}


def test_a_setup_hook_of_the_user_stays() -> None:
    assert spares.environment("j", {"env_vars": {spares.HOOK_ENV: "mine.hook"}}) == {}
    assert spares.environment("j", {})["env_vars"][spares.HOOK_ENV] == "tradewind.jobs.spares.warm_up"
