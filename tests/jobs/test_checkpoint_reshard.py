"""A checkpoint outlives the layout that wrote it, and the writers that were killed over it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("reshard_script.py")


@pytest.mark.e2e
@pytest.mark.parametrize("what", ["reshard", "kill"])
def test_it_is_read_by_any_layout_and_after_any_kill(tmp_path: Path, what: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what, str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-5000:]
