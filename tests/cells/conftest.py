from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from door_world import DoorWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[DoorWorld]:
    made = DoorWorld(tmp_path)
    yield made
    for caller in made.callers:
        caller.stop.set()
    made.close()
    for caller in made.callers:
        caller.end()
