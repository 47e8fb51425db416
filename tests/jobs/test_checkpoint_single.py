"""A checkpoint in one file is whole, or it is not there."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from tradewind.jobs import checkpoint_single as checkpoint

torch = pytest.importorskip("torch")


def save(folder: Path, step: int, attempt: int = 1) -> Path:
    state: dict[str, Any] = {"kept": {"model": {"weight": torch.full((8,), float(step))}}}
    return checkpoint.save(folder, state, step=step, attempt=attempt, workers=2, order=None)


def test_what_was_saved_comes_back(tmp_path: Path) -> None:
    path = save(tmp_path, 20)
    found, meta = checkpoint.newest(tmp_path) or pytest.fail("nothing found")
    assert (found, meta.step, meta.workers) == (path, 20, 2)
    assert checkpoint.load(found)["kept"]["model"]["weight"].tolist() == [20.0] * 8


@pytest.mark.parametrize("damage", ["truncate", "flip", "no meta", "torn meta", "no state"])
def test_a_damaged_checkpoint_is_passed_over_with_a_message(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    before, newest = save(tmp_path, 20), save(tmp_path, 40)
    state, meta = newest / checkpoint.STATE_FILE, newest / checkpoint.META_FILE
    content = bytearray(state.read_bytes())
    if damage == "truncate":
        state.write_bytes(content[:-7])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        state.write_bytes(content)
    elif damage == "no meta":
        meta.unlink()
    elif damage == "torn meta":
        meta.write_text(meta.read_text()[:20])
    else:
        state.unlink()
    with caplog.at_level(logging.WARNING):
        found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found[0] == before
    assert "step-00000040" in caplog.text
    assert "the checkpoint before it is used" in caplog.text


def test_a_writer_killed_before_the_commit_leaves_nothing_that_counts(tmp_path: Path) -> None:
    save(tmp_path, 20)
    aside = tmp_path / ".step-00000040-attempt-001.tmp"
    aside.mkdir()
    (aside / checkpoint.STATE_FILE).write_bytes(b"half")
    assert [path.name for path in checkpoint.listing(tmp_path)] == ["step-00000020-attempt-001"]
    checkpoint.prune(tmp_path, keep=1)
    assert not aside.exists()


def test_a_later_attempt_at_the_same_step_is_newer_and_replaces_a_damaged_one(tmp_path: Path) -> None:
    damaged = save(tmp_path, 20)
    (damaged / checkpoint.META_FILE).write_text("{}")
    assert checkpoint.newest(tmp_path) is None
    assert save(tmp_path, 20) == damaged  # written again in its place
    later = save(tmp_path, 20, attempt=2)
    assert [path for path, _ in [checkpoint.newest(tmp_path) or pytest.fail("none")]] == [later]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (10, 20, 100, 30):
        save(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2)
    assert [checkpoint.check(path).step for path in checkpoint.listing(tmp_path)] == [30, 100]


def test_meta_is_readable_without_torch(tmp_path: Path) -> None:
    meta = json.loads((save(tmp_path, 20) / checkpoint.META_FILE).read_text())
    assert meta["step"] == 20


def test_attempts_are_counted_over_drivers(tmp_path: Path) -> None:
    assert [checkpoint.next_attempt(tmp_path / "run") for _ in range(3)] == [1, 2, 3]
