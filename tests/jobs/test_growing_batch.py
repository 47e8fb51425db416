"""A batch that follows the gradient noise scale, on real workers: it grows, and does the same at any number of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_run import NOISE, training

from tradewind.jobs.checkpoint import Checkpoints
from tradewind.jobs.sample_ledger import audit

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


def test_the_batch_grows_in_the_same_way_with_one_worker_and_with_two(cell: Any, tmp_path: Path) -> None:
    curves, stages = [], []
    with cell.nodes(1, cpus=2, gpus=2):
        for workers in (1, 2):
            folder = tmp_path / f"with-{workers}"
            folder.mkdir()
            options = {"workers": [workers, workers], "steps": 300, "max_batch": 80, "checkpoint_every": 1000}
            with training(folder, cell.env, 0.0, **options) as run:
                run.end()
                curves.append([entry["loss"] for entry in run.curve()])
            found = Checkpoints.at(folder / "run").newest()
            assert found is not None
            assert found.order is not None
            stages.append(found.order["stages"])
            assert audit(folder / "ledger").exact
    assert stages[0] == stages[1] != []
    assert curves[1] == pytest.approx(curves[0], rel=NOISE)
