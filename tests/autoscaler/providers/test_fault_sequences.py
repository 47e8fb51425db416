"""Random fault sequences (fault_machine.py) on every world: a few at every run, 500 of each with `make test-faults`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_world import World, find_worlds, marked
from fault_machine import machine_for
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

WORLDS = find_worlds()
FEW, MANY, STEPS = 5, 500, 25


def run(open_world: Callable[[Path], World], sequences: int) -> None:
    run_state_machine_as_test(
        machine_for(open_world),
        settings=settings(
            max_examples=sequences,
            stateful_step_count=STEPS,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("open_world", marked(WORLDS))
def test_nothing_leaks_and_nothing_is_bought_twice(open_world: Callable[[Path], World]) -> None:
    run(open_world, FEW)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("open_world", WORLDS.values(), ids=WORLDS)
def test_nothing_leaks_in_500_sequences(open_world: Callable[[Path], World]) -> None:
    run(open_world, MANY)
