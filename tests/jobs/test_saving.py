"""Which order of the data a run goes on with, when its checkpoint was made by other workers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tradewind.errors import JobError
from tradewind.jobs.data import Order
from tradewind.jobs.saving import Saves
from tradewind.jobs.settings import RunSettings

WAS = Order(num_samples=64, global_batch=16, epochs=2, micro_batches=2, stages=((5, 2),))


@pytest.fixture
def saves(tmp_path: Path) -> Any:
    found = Saves(RunSettings("job", str(tmp_path)), None, lambda *_: None)
    found._order = asdict(WAS)
    yield found
    found.close()


def test_more_workers_go_on_with_the_micro_batches_of_the_checkpoint(saves: Any) -> None:
    now = Order(num_samples=64, global_batch=16, epochs=4, micro_batches=8)
    found = saves.go_on(now, free=True)
    assert (found.micro_batches, found.epochs, found.stages) == (2, 4, WAS.stages)


def test_what_the_user_has_said_must_be_the_same(saves: Any) -> None:
    for other in (Order(64, 16, 4, micro_batches=8), Order(64, 32, 4, micro_batches=2)):
        with pytest.raises(JobError, match="was made with"):
            saves.go_on(other)
