"""The two state tables: every way in them can be gone, no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from tradewind.errors import IllegalTransition
from tradewind.states import (
    JOB_TRANSITIONS,
    NODE_TRANSITIONS,
    JobState,
    NodeState,
    is_alive,
    is_over,
    move_job,
    move_node,
)

Table = Mapping[Any, frozenset[Any]]
Move = Callable[[Any, Any, str], Any]
TABLES: list[tuple[Table, Move, StrEnum]] = [
    (NODE_TRANSITIONS, move_node, NodeState.REQUESTED),
    (JOB_TRANSITIONS, move_job, JobState.QUEUED),
]


@pytest.mark.parametrize(("table", "move", "first"), TABLES)
def test_legal_moves_pass_and_all_others_raise(table: Table, move: Move, first: StrEnum) -> None:
    for current, to in product(type(first), type(first)):
        if to in table[current]:
            assert move(current, to, "x") is to
        else:
            with pytest.raises(IllegalTransition, match=f"x cannot go from {current} to {to}"):
                move(current, to, "x")


@pytest.mark.parametrize(("table", "move", "first"), TABLES)
def test_every_state_can_be_reached(table: Table, move: Move, first: StrEnum) -> None:
    reached, frontier = {first}, [first]
    while frontier:
        found = table[frontier.pop()] - reached
        reached |= found
        frontier += found
    assert reached == set(type(first)) == set(table)


def test_the_ends_are_the_states_without_a_way_out() -> None:
    assert {state for state in NodeState if not is_alive(state)} == {s for s, to in NODE_TRANSITIONS.items() if not to}
    assert {state for state in JobState if is_over(state)} == {s for s, to in JOB_TRANSITIONS.items() if not to}


def test_every_living_state_can_end() -> None:
    assert all(NodeState.GONE in NODE_TRANSITIONS[state] for state in NodeState if is_alive(state))
    for state in JobState:
        if not is_over(state):
            assert {JobState.FAILED, JobState.STOPPED, JobState.SUCCEEDED} <= JOB_TRANSITIONS[state]
