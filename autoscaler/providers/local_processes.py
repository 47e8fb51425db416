"""Sessions of processes on this machine: start one, find everything that belongs to it, end all of it. Linux (/proc).

The lowest floor of the local cloud (raylets.py stands on it). A Ray node is many processes in several process
groups, and the driver of a job even moves to a session of its own. So a session is named twice: by pid and start
time of its leader (a reused pid is never mistaken for it), and by a random mark in the environment, which every
descendant inherits. Only processes that carry one of the two names are ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

MARK_ENV = "TRADEWIND_SESSION_MARK"
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The name of a session for good; kept in a small file, so that a later process can end it."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat: clock ticks since boot
    mark: str
    boot_id: str  # pids and ticks mean nothing after a reboot

    def save(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)))

    @classmethod
    def load(cls, path: Path) -> SessionRecord:
        return cls(**json.loads(path.read_text()))


@dataclass(frozen=True, slots=True)
class ProcessStat:
    pid: int
    ppid: int
    sid: int
    start_ticks: int
    is_zombie: bool  # ended, with all its threads, and waits for its parent to learn it


def start_session(command: Sequence[str], env: Mapping[str, str], log: Path, record_path: Path) -> SessionRecord:
    """Start `command` as leader of a new session (Ctrl-C in a shell does not reach it), and put it on record."""
    mark = secrets.token_hex(16)
    # The mark is on record first: were we killed right after the start, the session could still be found by it.
    SessionRecord(0, 0, mark, boot_id()).save(record_path)
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command),
            env={
                **env,
                MARK_ENV: mark,
                "SPT_NOENV": "1",
            },  # SPT_NOENV: Ray's process titles must not overwrite the mark
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    _CHILDREN[process.pid] = process
    stat = read_stat(process.pid)
    assert stat is not None  # even if it has ended: nobody but us can reap it
    record = SessionRecord(process.pid, stat.start_ticks, mark, boot_id())
    record.save(record_path)
    return record


_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}  # kept only to reap them, otherwise they stay as zombies


def is_running(record: SessionRecord) -> bool:
    """The leader lives: neither gone, nor a zombie, nor another process under its pid."""
    return is_same_process(record.pid, record.start_ticks, record.boot_id)


def is_same_process(pid: int, start_ticks: int, boot: str) -> bool:
    _reap(pid)
    stat = read_stat(pid)
    return stat is not None and not stat.is_zombie and stat.start_ticks == start_ticks and boot == boot_id()


def members(record: SessionRecord) -> list[ProcessStat]:
    """Every living process of the session, those that left it included."""
    return _members_of_all([record])


def _members_of_all(records: Sequence[SessionRecord]) -> list[ProcessStat]:
    present = [record for record in records if record.boot_id == boot_id()]
    found = members_of(present) if present else {}
    return [stat for each in present for stat in found[each.mark] if stat.start_ticks >= each.start_ticks]


def members_of(records: Iterable[SessionRecord]) -> dict[str, list[ProcessStat]]:
    """By mark: the living processes of several sessions, with one scan of /proc."""
    stats = {stat.pid: stat for stat in _scan() if not stat.is_zombie}
    marks = {pid: mark for pid in stats if (mark := read_mark(pid))}
    return {record.mark: _belonging(record, stats, marks) for record in records}


def _belonging(record: SessionRecord, stats: Mapping[int, ProcessStat], marks: Mapping[int, str]) -> list[ProcessStat]:
    found = {pid for pid, mark in marks.items() if mark == record.mark}
    leader = stats.get(record.pid)
    if leader is not None and leader.start_ticks == record.start_ticks:
        found.add(record.pid)
    # A marked process can only be in a session that the leader or one of its descendants made.
    sessions = {stats[pid].sid for pid in found}
    found |= {pid for pid, stat in stats.items() if stat.sid in sessions}
    while children := {pid for pid, stat in stats.items() if stat.ppid in found} - found:
        found |= children
    return [stats[pid] for pid in sorted(found)]


def end_session(record: SessionRecord, grace_s: float = 0.0, timeout_s: float = 15.0) -> list[int]:
    """End all of it: SIGTERM to the leader and `grace_s` to obey, then SIGKILL to every process. Returns survivors."""
    return end_sessions([record], grace_s, timeout_s)


def end_sessions(records: Sequence[SessionRecord], grace_s: float = 0.0, timeout_s: float = 15.0) -> list[int]:
    """As `end_session`, several at the same time: the process table is read once for all of them."""
    obeying = [record for record in records if grace_s > 0 and is_running(record)]
    for record in obeying:
        _signal(record.pid, record.start_ticks, signal.SIGTERM)
    _wait_until_empty(obeying, grace_s)
    deadline_s = time.monotonic() + timeout_s
    while alive := _members_of_all(records):  # again and again: a process may have forked between scan and signal
        if time.monotonic() > deadline_s:
            return [stat.pid for stat in alive]
        # Frozen first, like a machine that loses its power: no process lives to report the death of another.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for stat in alive:
                _signal(stat.pid, stat.start_ticks, number)
        _wait_until_empty(records, _POLL_S)
    for record in records:
        _reap(record.pid)
    return []


def read_stat(pid: int) -> ProcessStat | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command stands in parentheses and may hold blanks and parentheses itself.
    fields = text[text.rindex(")") + 2 :].split()
    # Of a killed process the first thread may be a zombie while others still hold its files and ports.
    is_zombie = fields[0] in "ZX" and int(fields[17]) <= 1
    return ProcessStat(pid, int(fields[1]), int(fields[3]), int(fields[19]), is_zombie)


def read_mark(pid: int) -> str:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # gone meanwhile, or of another user: not ours
        return ""
    prefix = MARK_ENV.encode() + b"="
    return next((item[len(prefix) :].decode() for item in environ.split(b"\0") if item.startswith(prefix)), "")


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def write_atomically(path: Path, text: str) -> None:
    """Either the old or the new text is there, whenever it is read and whatever is killed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    aside.write_text(text)
    aside.replace(path)


def _scan() -> list[ProcessStat]:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [stat for pid in pids if (stat := read_stat(pid))]


def _signal(pid: int, start_ticks: int, number: signal.Signals) -> None:
    """Signal exactly this process: the pidfd holds it, so that the pid cannot be given to another in between."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        stat = read_stat(pid)
        if stat is not None and stat.start_ticks == start_ticks:
            with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def _wait_until_empty(records: Sequence[SessionRecord], timeout_s: float) -> None:
    deadline_s = time.monotonic() + timeout_s
    while _members_of_all(records) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _reap(pid: int) -> None:
    child = _CHILDREN.get(pid)
    if child is not None and child.poll() is not None:
        _CHILDREN.pop(pid, None)
