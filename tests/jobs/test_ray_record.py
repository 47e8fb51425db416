"""Ray Train's record of checkpoints names those that are there, and Ray Train takes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

# Ray is imported by the tests themselves: the token of the shared cell is read when that is done first.


def mend_record(storage: Any) -> None:
    from tradewind.jobs import ray_record

    ray_record.mend_record(storage)


def make_run(folder: Path, *names: str, there: tuple[str, ...]) -> Any:
    from ray.train.v2._internal.execution.storage import StorageContext

    storage = StorageContext(storage_path=str(folder), experiment_dir_name="run")
    results = [{"version": 0, "checkpoint_dir_name": name, "metrics": {}} for name in names]
    record = {
        "checkpoint_results": results,
        "checkpoint_report_indices": list(range(len(names))),
        "latest_checkpoint_result": results[-1],
        "pending_training_results": [],
        "pending_validation_specs": [],
        "current_report_index": len(names),
        "validated_checkpoint_dir_names": [],
        "timed_out_validation_checkpoint_dir_names": [],
        "failed_validation_checkpoint_dir_names": [],
    }
    for name in there:
        (folder / "run" / name).mkdir(parents=True)
    Path(storage.checkpoint_manager_snapshot_path).write_text(json.dumps(record))
    return storage


def open_record(storage: Any) -> Any:
    """As Ray Train's controller does."""
    from ray.train import CheckpointConfig
    from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager

    return CheckpointManager(checkpoint_config=CheckpointConfig(), storage_context=storage)


def start(storage: Any) -> list[str]:
    return [Path(result.checkpoint.path).name for result in open_record(storage)._checkpoint_results]


def test_a_removed_checkpoint_does_not_stop_a_run(tmp_path: Path) -> None:
    from ray.train.v2._internal.exceptions import CheckpointManagerInitializationError

    storage = make_run(tmp_path, "step-1", "step-2", "step-3", there=("step-2", "step-3"))
    with pytest.raises(CheckpointManagerInitializationError):  # why this is needed
        start(storage)
    mend_record(storage)
    assert start(storage) == ["step-2", "step-3"]


def test_the_latest_may_be_gone(tmp_path: Path) -> None:
    storage = make_run(tmp_path, "step-1", "step-2", there=("step-1",))
    mend_record(storage)
    assert Path(open_record(storage).latest_checkpoint_result.checkpoint.path).name == "step-1"


@pytest.mark.parametrize("text", ["", '{"checkpoint_results": [', "[]", "{}"])
def test_a_torn_record_is_begun_anew(tmp_path: Path, text: str) -> None:
    storage = make_run(tmp_path, "step-1", there=("step-1",))
    Path(storage.checkpoint_manager_snapshot_path).write_text(text)
    mend_record(storage)
    assert start(storage) == []


def test_a_true_record_is_left_alone(tmp_path: Path) -> None:
    storage = make_run(tmp_path, "step-1", there=("step-1",))
    before = Path(storage.checkpoint_manager_snapshot_path).read_bytes()
    mend_record(storage)
    assert Path(storage.checkpoint_manager_snapshot_path).read_bytes() == before
