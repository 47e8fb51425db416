"""Sessions of processes: everything that belongs to one is found and ended, nothing else is touched."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tradewind.autoscaler.providers import local_processes as lp

# A leader, a child in the same session, a grandchild that made a session of its own, all deaf to SIGTERM.
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
subprocess.Popen(sleep)
subprocess.Popen(sleep, start_new_session=True)
print("ready", flush=True)
time.sleep(600)
"""


def start(folder: Path, source: str = FAMILY) -> lp.SessionRecord:
    log = folder / "log"
    record = lp.start_session([sys.executable, "-c", source], os.environ, log, folder / "session.json")
    deadline_s = time.monotonic() + 30
    while "ready" not in log.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return record


def test_everything_of_a_session_is_found_and_ended(tmp_path: Path) -> None:
    record = start(tmp_path)
    family = lp.members(record)
    assert len(family) == 3
    assert len({stat.sid for stat in family}) == 2
    assert lp.end_session(record, grace_s=0.2) == []
    assert lp.members(record) == []
    assert not lp.is_running(record)


def test_orphans_are_found_after_their_leader_was_killed(tmp_path: Path) -> None:
    record = start(tmp_path)
    os.kill(record.pid, signal.SIGKILL)
    while lp.is_running(record):
        time.sleep(0.02)
    loaded = lp.SessionRecord.load(tmp_path / "session.json")
    assert len(lp.members(loaded)) == 2
    assert lp.end_session(loaded) == []
    assert lp.members(loaded) == []


def test_a_session_is_found_by_its_mark_alone(tmp_path: Path) -> None:
    record = start(tmp_path)
    early = dataclasses.replace(record, pid=0, start_ticks=0)  # as it is on record before the process is there
    assert len(lp.members(early)) == 3
    assert lp.end_session(early) == []
    assert lp.members(record) == []


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_reused_pid_is_never_ended(tmp_path: Path, change: dict[str, object]) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        stat = lp.read_stat(bystander.pid)
        assert stat is not None
        record = lp.SessionRecord(bystander.pid, stat.start_ticks, "f" * 32, lp.boot_id())
        assert lp.is_running(record)
        stale = dataclasses.replace(record, **change)  # type: ignore[arg-type]
        assert not lp.is_running(stale)
        assert lp.end_session(stale, grace_s=0.1) == []
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_killed_process_counts_until_its_last_thread_is_gone(tmp_path: Path) -> None:
    # The first thread ends, the second goes on: to /proc the process looks like a zombie, but it holds its port.
    source = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    record = start(tmp_path, source)
    stat_path = Path(f"/proc/{record.pid}/stat")
    deadline_s = time.monotonic() + 30
    while ") Z " not in stat_path.read_text() and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert ") Z " in stat_path.read_text()
    assert lp.is_running(record)
    assert lp.end_session(record) == []
    assert not lp.is_running(record)


def test_a_leader_that_obeys_may_end_in_order(tmp_path: Path) -> None:
    source = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (print("in order", flush=True), sys.exit(0)))
print("ready", flush=True)
time.sleep(600)
"""
    record = start(tmp_path, source)
    assert lp.end_session(record, grace_s=10.0) == []
    assert "in order" in (tmp_path / "log").read_text()


def test_a_write_leaves_the_old_or_the_new_text(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    lp.write_atomically(path, "old")
    lp.write_atomically(path, "new")
    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["file.json"]
