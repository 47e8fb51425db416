"""The event log: durable, ordered, one writer, versions, and clear words when something is wrong."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tradewind.errors import LogCorrupt, LogError, LogLocked, LogTooNew
from tradewind.events import (
    SCHEMA_VERSION,
    ControllerStopped,
    LaunchRefused,
    NodeJoined,
    Payload,
    PriceChanged,
    Schema,
    StepCommitted,
)
from tradewind.store import EventLog


def price(number: int) -> PriceChanged:
    return PriceChanged(at_s=float(number), market="aws/z/t/spot", price_uusd_per_h=number)


def numbers(path: Path) -> list[int]:
    """The numbers of the price events in a log; the sequences are checked on the way."""
    with EventLog.read_only(path) as log:
        found = list(log.read())
    assert [sequence for sequence, _ in found] == list(range(1, len(found) + 1))
    return [event.price_uusd_per_h for _, event in found if isinstance(event, PriceChanged)]


def raw(path: Path, statement: str, *values: object) -> None:
    """Change a closed log behind our back, as another program would."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement, values)


def insert(path: Path, payload: str, version: int = SCHEMA_VERSION, kind: str = "node_joined") -> None:
    raw(path, "INSERT INTO events (version, kind, at_s, payload) VALUES (?, ?, 1, ?)", version, kind, payload)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "fleet" / "events.db"


# --- what it is for --------------------------------------------------------------------------------------------


def test_events_come_back_in_order_after_reopening(path: Path) -> None:
    with EventLog.open(path) as log:
        assert log.last_sequence == 0
        assert log.append(price(1), price(2)) == 2
        assert log.append() == 2
    with EventLog.open(path) as log:
        assert log.append(price(3)) == 3
        assert [event for _, event in log.read()] == [price(1), price(2), price(3)]


def test_reading_from_the_middle_and_with_a_limit(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(*map(price, range(10_000)))
        assert [sequence for sequence, _ in log.read(after=9_997)] == [9_998, 9_999, 10_000]
        assert [sequence for sequence, _ in log.read(after=4_000, limit=5_000)] == list(range(4_001, 9_001))
        assert list(log.read(after=10_000)) == []
        assert list(log.read(after=77_777)) == []
        assert list(log.read(limit=0)) == []


def test_a_read_ends_at_what_was_there_when_it_began(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(price(1), price(2))
        seen = 0
        for _ in log.read():
            seen += 1
            log.append(price(9))
        assert seen == 2
        assert log.last_sequence == 4


def test_a_reader_sees_what_a_living_writer_appends(path: Path) -> None:
    with EventLog.open(path) as log, EventLog.read_only(path) as first, EventLog.read_only(path) as second:
        log.append(price(1))
        assert first.last_sequence == second.last_sequence == 1
        log.append(price(2))
        assert [event for _, event in first.read(after=1)] == [price(2)]


def test_a_reader_cannot_append(path: Path) -> None:
    EventLog.open(path).close()
    with EventLog.read_only(path) as log, pytest.raises(LogError, match="reading only"):
        log.append(price(1))


def test_threads_share_one_writer(path: Path) -> None:
    with EventLog.open(path) as log:
        acknowledged: list[int] = []
        threads = [
            threading.Thread(target=lambda: acknowledged.extend(log.append(price(i)) for i in range(40)))
            for _ in "abcd"
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(acknowledged) == list(range(1, 161))
    assert sorted(numbers(path)) == sorted(list(range(40)) * 4)


def test_a_closed_log_says_so(path: Path) -> None:
    log = EventLog.open(path)
    log.close()
    log.close()
    with pytest.raises(LogError, match="closed"):
        log.append(price(1))
    with EventLog.read_only(path) as reader:
        assert reader.last_sequence == 0


def test_only_the_owner_may_read_the_file(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(price(1))
        modes = {file.name: file.stat().st_mode & 0o077 for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(modes, 0)
    assert "events.db-wal" in modes


def test_rows_can_be_neither_changed_nor_deleted(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(price(1))
    for statement in ("UPDATE events SET at_s = 2", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            raw(path, statement)


# --- one writer ------------------------------------------------------------------------------------------------

_HOLD = """
import sys
from pathlib import Path
from tradewind.store import EventLog
log = EventLog.open(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def test_a_second_writer_is_refused_with_the_pid_of_the_first(path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(LogLocked, match=rf"pid {holder.pid}\b.*tradewind down"):
            EventLog.open(path)
    finally:
        holder.kill()
        holder.communicate()
    EventLog.open(path).close()  # the lock has died with the process


def test_two_writers_in_one_process_are_refused_too(path: Path) -> None:
    with EventLog.open(path), pytest.raises(LogLocked, match=f"pid {os.getpid()}"):
        EventLog.open(path)
    EventLog.open(path).close()


def test_a_failed_opening_holds_no_lock(path: Path) -> None:
    EventLog.open(path).close()
    raw(path, "PRAGMA user_version = 99")
    for _ in range(2):
        with pytest.raises(LogTooNew):
            EventLog.open(path)


_FORK = """
import os, signal, sys, time
from pathlib import Path
from tradewind.store import EventLog
log = EventLog.open(Path(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(60)
    os._exit(0)
print(child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def can_open(path: Path) -> bool:
    try:
        EventLog.open(path).close()
    except LogLocked:
        return False
    return True


def test_a_forked_child_does_not_keep_the_lock(path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", _FORK, str(path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        assert parent.wait() == -signal.SIGKILL
        deadline_s = time.monotonic() + 30
        while not can_open(path):  # the child lets go of it when it first runs
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


# --- versions --------------------------------------------------------------------------------------------------


def _rename(payload: Payload) -> Payload:
    return {**payload, "ray_node_id": payload["node"]}


OLD_ROW = '{"at_s": 1.0, "launch_id": "a", "node": "ff", "kind": "node_joined"}'
NEXT = Schema(version=SCHEMA_VERSION + 1, upgrades={("node_joined", SCHEMA_VERSION): _rename})


def test_an_older_log_is_read_and_continued(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(price(1))
    insert(path, OLD_ROW)
    with EventLog.read_only(path, schema=NEXT) as log:
        assert [event for _, event in log.read()] == [price(1), NodeJoined(at_s=1.0, launch_id="a", ray_node_id="ff")]
    with EventLog.open(path, schema=NEXT) as log:
        log.append(price(3))
        assert len(list(log.read())) == 3
    with pytest.raises(LogTooNew, match=f"version {NEXT.version}.*up to {SCHEMA_VERSION}"):
        EventLog.open(path)


def test_upgrades_run_one_version_after_the_other(path: Path) -> None:
    EventLog.open(path).close()
    insert(path, OLD_ROW.replace('"node"', '"knot"'))
    steps: dict[tuple[str, int], Callable[[Payload], Payload]] = {
        ("node_joined", SCHEMA_VERSION): lambda old: {**old, "node": old["knot"]},
        ("node_joined", SCHEMA_VERSION + 1): _rename,
    }
    with EventLog.read_only(path, schema=Schema(SCHEMA_VERSION + 2, steps)) as log:
        assert [event.ray_node_id for _, event in log.read() if isinstance(event, NodeJoined)] == ["ff"]


def test_an_upgrade_that_does_not_fit_is_told(path: Path) -> None:
    EventLog.open(path).close()
    insert(path, '{"kind": "node_joined"}')
    with EventLog.read_only(path, schema=NEXT) as log, pytest.raises(LogCorrupt, match="event 1"):
        list(log.read())


@pytest.mark.parametrize("opening", [EventLog.open, EventLog.read_only])
def test_a_newer_file_is_refused(path: Path, opening: Callable[[Path], EventLog]) -> None:
    EventLog.open(path).close()
    raw(path, f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    with pytest.raises(LogTooNew, match="upgrade Tradewind"):
        opening(path)


def test_a_newer_row_is_refused(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(price(1))
    insert(path, OLD_ROW, version=SCHEMA_VERSION + 1)
    with EventLog.read_only(path) as log, pytest.raises(LogTooNew, match="event 2"):
        list(log.read())


def test_an_unknown_kind_is_named(path: Path) -> None:
    EventLog.open(path).close()
    insert(path, '{"kind": "moon_landed", "at_s": 1.0}', kind="moon_landed")
    with EventLog.read_only(path) as log, pytest.raises(LogCorrupt, match=r"event 1 .*'moon_landed'.*another build"):
        list(log.read())


def test_a_field_that_a_newer_build_has_added_is_ignored(path: Path) -> None:
    EventLog.open(path).close()
    insert(path, '{"at_s": 1.0, "launch_id": "a", "ray_node_id": "ff", "colour": "red", "kind": "node_joined"}')
    with EventLog.read_only(path) as log:
        assert [event for _, event in log.read()] == [NodeJoined(at_s=1.0, launch_id="a", ray_node_id="ff")]


# --- what can be wrong -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("opening", [EventLog.open, EventLog.read_only])
def test_a_file_that_is_no_database_is_left_alone(path: Path, opening: Callable[[Path], EventLog]) -> None:
    path.parent.mkdir()
    path.write_bytes(b"these are my holiday notes\n" * 200)
    with pytest.raises(LogCorrupt, match="--home"):
        opening(path)
    assert path.read_bytes().startswith(b"these are my holiday notes")


def test_another_programs_database_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    raw(path, "CREATE TABLE recipes (name TEXT)")
    before = path.read_bytes()
    for opening in (EventLog.open, EventLog.read_only):
        with pytest.raises(LogCorrupt, match="another program"):
            opening(path)
    assert path.read_bytes() == before


def test_a_damaged_page_is_told(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(*map(price, range(3_000)))
    content = bytearray(path.read_bytes())
    middle = len(content) // 8192 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    with EventLog.read_only(path) as log, pytest.raises(LogCorrupt, match="damaged"):
        list(log.read())


def test_a_missing_row_is_told(path: Path) -> None:
    with EventLog.open(path) as log:
        log.append(*map(price, range(5)))
    raw(path, "DROP TRIGGER no_delete")
    raw(path, "DELETE FROM events WHERE sequence = 3")
    with EventLog.read_only(path) as log, pytest.raises(LogCorrupt, match="event 3 is missing"):
        list(log.read())


def test_a_payload_that_is_not_json_is_told(path: Path) -> None:
    EventLog.open(path).close()
    insert(path, "{")
    with EventLog.read_only(path) as log, pytest.raises(LogCorrupt, match=r"event 1 \(node_joined\)"):
        list(log.read())


def test_an_event_that_could_not_be_read_back_is_not_written(path: Path) -> None:
    wrong = PriceChanged(at_s=1.0, market="m", price_uusd_per_h="dear")  # type: ignore[arg-type]
    with EventLog.open(path) as log:
        with pytest.warns(UserWarning, match="Pydantic"), pytest.raises(LogError, match="cannot be stored"):
            log.append(price(1), wrong)
        assert log.append(price(2)) == 1
    assert numbers(path) == [2]


def test_infinite_and_undefined_numbers_survive(path: Path) -> None:
    step = StepCommitted(
        at_s=1.0, job_id="j", attempt=1, sequence=1, began_s=0.0, first_step=1, last_step=1, workers=1, samples=1,
        loss=float("nan"),
    )  # fmt: skip
    refused = LaunchRefused(at_s=1.0, launch_id="a", error="E", message="m", scope="zone", block_s=float("inf"))
    with EventLog.open(path) as log:
        log.append(step, refused)
        found = [event for _, event in log.read()]
    assert repr(found) == repr([step, refused])


def test_there_is_no_log_yet(path: Path) -> None:
    with pytest.raises(LogError, match="no event log"):
        EventLog.read_only(path)
    path.parent.mkdir()
    path.touch()
    with pytest.raises(LogError, match="no event log"):
        EventLog.read_only(path)
    EventLog.open(path).close()
    assert numbers(path) == []


@pytest.mark.parametrize("name", ["file/events.db", "folder"])
def test_a_place_where_no_file_can_be(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(LogError, match=r"cannot open .*--home"):
        EventLog.open(tmp_path / name)


_AS_NOBODY = """
import os, sys
from pathlib import Path
from tradewind.store import EventLog
from tradewind.errors import LogError
if os.getuid() == 0:
    os.setuid(65534)
path = Path(sys.argv[1])
with EventLog.read_only(path) as log:
    assert log.last_sequence == 1
try:
    EventLog.open(path)
except LogError as error:
    print(error)
"""


def test_a_folder_without_write_permission() -> None:
    with tempfile.TemporaryDirectory() as root:  # pytest's own folders are closed to others, and root obeys no mode
        path = Path(root) / "events.db"
        with EventLog.open(path) as log:
            log.append(ControllerStopped(at_s=1.0, reason="done"))
        for file in path.parent.iterdir():
            file.chmod(0o444)
        path.parent.chmod(0o555)
        command = [sys.executable, "-c", _AS_NOBODY, str(path)]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        path.parent.chmod(0o700)
    assert "Permission denied (give a folder that you may write to" in ended.stdout, ended.stderr


_FILL_THE_DISK = """
import sys
from pathlib import Path
from tradewind.errors import LogError
from tradewind.events import PriceChanged
from tradewind.store import EventLog
with EventLog.open(Path(sys.argv[1])) as log:
    try:
        while True:
            log.append(PriceChanged(at_s=1.0, market="m" * 3000, price_uusd_per_h=log.last_sequence + 1))
    except LogError as error:
        print(log.last_sequence, error, flush=True)
"""


def test_a_full_disk_is_told_and_loses_nothing(path: Path) -> None:
    def small_files_only() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))  # a write beyond fails, like on a full disk

    ended = subprocess.run(
        [sys.executable, "-c", _FILL_THE_DISK, str(path)],
        capture_output=True, text=True, check=False, preexec_fn=small_files_only,
    )  # fmt: skip
    acknowledged, message = ended.stdout.split(" ", 1)
    assert "what was acknowledged is safe" in message
    found = numbers(path)
    assert int(acknowledged) > 10
    assert found == list(range(1, int(acknowledged) + 1))
