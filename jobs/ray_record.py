"""Ray Train's own record of a run's checkpoints, kept true to what is there.

Ray Train writes down every checkpoint that was reported, and refuses to start a run whose record names one that is
gone. Ours are removed by our own retention, and a record may be torn when its writer is killed. So before Ray Train
reads it, what is gone is struck out; a record that cannot be read is removed (checkpoints are found without it).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from ray.train.v2._internal.execution.storage import StorageContext, _exists_at_fs_path

logger = logging.getLogger(__name__)

Record = dict[str, Any]


def mend_record(storage: StorageContext) -> None:
    files, path = storage.storage_filesystem, storage.checkpoint_manager_snapshot_path
    if not _exists_at_fs_path(files, path):
        return
    with files.open_input_stream(path) as stream:
        text = stream.read()

    def is_there(name: str) -> bool:
        return bool(_exists_at_fs_path(files, storage.build_checkpoint_path_from_name(name)))

    try:
        record = json.loads(text)
        mended = strike_out(record, is_there)
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("Ray Train's record of checkpoints cannot be read and is begun anew: %s", error)
        files.delete_file(path)
        return
    if mended != record:
        with files.open_output_stream(path) as stream:
            stream.write(json.dumps(mended).encode())


def strike_out(record: Record, is_there: Callable[[str], bool]) -> Record:
    """The record without checkpoints that are gone; the latest is the last one that is left. Pure."""
    pairs = zip(record["checkpoint_results"], record["checkpoint_report_indices"], strict=True)
    left = [(result, index) for result, index in pairs if is_there(result["checkpoint_dir_name"])]
    results, names = [result for result, _ in left], {result["checkpoint_dir_name"] for result, _ in left}
    latest, waiting = record.get("latest_checkpoint_result"), record["pending_training_results"]
    if latest is not None and latest["checkpoint_dir_name"] not in names:
        latest = results[-1] if results else None
    pending = [
        (result, spec)
        for result, spec in zip(waiting, record["pending_validation_specs"], strict=True)
        if result["checkpoint_dir_name"] in names
    ]
    return record | {
        "checkpoint_results": results,
        "checkpoint_report_indices": [index for _, index in left],
        "latest_checkpoint_result": latest,
        "pending_training_results": [result for result, _ in pending],
        "pending_validation_specs": [spec for _, spec in pending],
    }
