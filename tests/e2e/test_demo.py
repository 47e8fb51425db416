"""`tradewind demo` as a newcomer runs it, in a pipe; the figures on its receipt must be those of a good run."""

from __future__ import annotations

import re
import subprocess
import sys

import psutil
import pytest

from tradewind.autoscaler.providers.raylets import default_base

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]


def test_the_demo_comes_through_two_preemptions_and_leaves_nothing() -> None:
    before = {path for path in default_base().iterdir() if path.is_dir()}
    command = [sys.executable, "-m", "tradewind.cli", "demo"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=480, stdin=subprocess.DEVNULL)
    text = done.stdout
    assert done.returncode == 0, f"{text}\n{done.stderr}"
    assert re.search(r"samples: .*skipped 0, repeated 0", text), text
    assert "Act 1" in text
    assert "Act 2" in text
    assert "was taken by the cloud" in text
    assert "(simulated)" in text
    assert re.search(r"useful +\$", text), text
    assert {path for path in default_base().iterdir() if path.is_dir()} <= before
    assert not [p for p in psutil.process_iter(["cmdline"]) if "tradewind-demo-" in " ".join(p.info["cmdline"] or [])]
