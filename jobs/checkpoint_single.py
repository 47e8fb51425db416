"""Checkpoints on disk: whole or not there. A torn or damaged one is told apart, and the one before it is used.

One folder per checkpoint, `step-00000120-attempt-003`, with `state.pt` (whatever was registered) and `meta.json` (step,
position, size and checksum of the state). It is written aside under a dotted name, flushed to the disk, and renamed:
the rename is the commit. The checksum finds what the rename cannot (a bad disk, a truncated copy).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tradewind.errors import JobError

logger = logging.getLogger(__name__)

NAME = re.compile(r"step-(\d+)-attempt-(\d+)")
STATE_FILE, META_FILE, ATTEMPT_FILE = "state.pt", "meta.json", "last-attempt"
FORMAT = 1


class CheckpointDamaged(JobError):
    default_hint = "the checkpoint before it is used by itself"


@dataclass(frozen=True, slots=True)
class Meta:
    """What a checkpoint says of itself."""

    step: int  # optimizer steps that are in it
    attempt: int
    workers: int
    state_bytes: int
    state_sha256: str
    order: Mapping[str, int] | None = None  # the order of the data; a run with another order does not continue it
    format: int = FORMAT


def save(folder: Path, state: Any, *, step: int, attempt: int, workers: int, order: Mapping[str, int] | None) -> Path:
    """Write a checkpoint; when this returns, it survives a kill and a power cut."""
    import torch

    final = folder / f"step-{step:08d}-attempt-{attempt:03d}"
    aside = folder / f".{final.name}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    torch.save(state, aside / STATE_FILE)
    payload = aside / STATE_FILE
    meta = Meta(step, attempt, workers, payload.stat().st_size, _sha256(payload), order)
    (aside / META_FILE).write_text(json.dumps(asdict(meta)))
    for path in (payload, aside / META_FILE, aside):
        _flush(path)
    shutil.rmtree(final, ignore_errors=True)  # a damaged one of the same step
    aside.rename(final)
    _flush(folder)
    return final


def check(path: Path) -> Meta:
    """The meta data of a whole checkpoint. Raises CheckpointDamaged."""
    try:
        meta = Meta(**json.loads((path / META_FILE).read_text()))
        found = (path / STATE_FILE).stat().st_size, _sha256(path / STATE_FILE)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointDamaged(f"checkpoint {path.name} cannot be read: {error}") from error
    if found != (meta.state_bytes, meta.state_sha256):
        raise CheckpointDamaged(
            f"checkpoint {path.name} is damaged: {found[0]} bytes of {meta.state_bytes}, or another checksum"
        )
    return meta


def load(path: Path, map_location: Any = "cpu") -> Any:
    """The state of a checkpoint that was checked."""
    import torch

    # It is ours, and its checksum was compared; RNG states of numpy and Python are not plain tensors.
    return torch.load(path / STATE_FILE, map_location=map_location, weights_only=False)


def newest(folder: Path) -> tuple[Path, Meta] | None:
    """The newest whole checkpoint; damaged ones are passed over with a warning."""
    for path in reversed(listing(folder)):
        try:
            return path, check(path)
        except CheckpointDamaged as error:
            logger.warning("%s", error)
    return None


def listing(folder: Path) -> list[Path]:
    """All committed checkpoints, oldest first. Later attempts of a step are newer."""
    named = ((NAME.fullmatch(path.name), path) for path in _children(folder))
    return [path for _, _, path in sorted((int(match[1]), int(match[2]), path) for match, path in named if match)]


def prune(folder: Path, keep: int) -> list[Path]:
    """Remove all but the newest `keep`, and what killed writers left aside. Returns what was removed."""
    old = listing(folder)[:-keep]
    debris = [path for path in _children(folder) if path.name.startswith(".step-") and path.name.endswith(".tmp")]
    for path in old + debris:
        shutil.rmtree(path, ignore_errors=True)
    return old


def next_attempt(folder: Path, above: int = 0) -> int:
    """Count up the worker groups of a run, over restarts of its driver as well; in any case above `above`."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ATTEMPT_FILE
    last = 0
    with contextlib.suppress(FileNotFoundError):
        last = int(path.read_text() or 0)
    last = max(last, above)
    aside = path.with_suffix(".tmp")
    aside.write_text(str(last + 1))
    _flush(aside)
    aside.rename(path)
    return last + 1


def _children(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
