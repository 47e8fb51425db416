"""Sharded models on real nodes that come and go: replicas, and copies of shards in the memory of peers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from training_run import training

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("layout", ["fsdp=2", "tp=2", "pp=2"])
def test_replicas_come_and_go(cell: Any, tmp_path: Path, layout: str) -> None:
    """Two replicas of two workers each. A lost node takes one of them, a new one brings it back."""
    with (
        cell.nodes(2, cpus=2, gpus=2) as left,
        training(tmp_path, cell.env, 0.2, workers=[2, 4], parallel=layout, checkpoint_every=1000) as run,
    ):
        run.wait_for_group(4)
        cell.remove_node(left.pop())
        run.wait_for_group(2)
        left.append(cell.add_node(cpus=2, gpus=2))
        run.wait_for_group(4)
        run.put("pace", 0.0)
        run.end()
        found = run.check()
        # Workers of a slice or a stage see the same samples, those of a shard do not.
        assert (found.recomputed_steps, found.worlds) == (0, (4, 2, 4) if layout == "fsdp=2" else (2, 1, 2))


def test_a_lost_shard_comes_back_from_the_memory_of_a_peer(cell: Any, tmp_path: Path) -> None:
    """One copy of the model over three nodes, then two, and nothing in storage."""
    with (
        cell.nodes(3, gpus=1) as left,
        training(tmp_path, cell.env, 0.2, workers=[2, 3], parallel="fsdp=all", checkpoint_every=1000) as run,
    ):
        run.wait_for_group(3, more_steps=5)
        cell.remove_node(left.pop())
        run.wait_for_group(2, more_steps=5)
        run.put("pace", 0.0)
        run.end()
        found = run.check()
        assert found.worlds[:2] == (3, 2)
        names = [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith("step-")]
        assert [name[:13] for name in names] == ["step-00000200"]  # only the last state went there
