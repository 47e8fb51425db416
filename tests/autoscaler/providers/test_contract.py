"""The contract (contract.py) on every world beside it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cloud_world import World, find_worlds, marked
from contract import CASES, Case

WORLDS = find_worlds()


@pytest.mark.parametrize("open_world", marked(WORLDS))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_contract(case: Case, open_world: Callable[[Path], World], tmp_path: Path) -> None:
    world = open_world(tmp_path)
    try:
        if why := case.why_not(world):
            pytest.skip(f"n/a: {why}")
        case.run(world)
    finally:
        world.close()


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 40
    assert len({case.name for case in CASES}) == len(CASES)
