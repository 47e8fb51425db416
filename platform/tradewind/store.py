"""The event log: append-only, one writer, any number of readers. Everything else is a fold over what stands here.

It acts (files), and decides nothing. SQLite in WAL mode with a sync at every commit: what `append` has
acknowledged is there after `kill -9` and after a power cut, and a transaction is there as a whole or not at all.
The one writer is held by an flock on a side file, which the kernel lets go when the process ends, however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import threading
import weakref
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from tradewind.errors import LogCorrupt, LogError, LogLocked, LogTooNew
from tradewind.events import CURRENT, KINDS, AnyEvent, Schema, decode, encode, upgrade

_APPLICATION_ID = 0x54574C47  # "TWLG": tells our files from other SQLite files
_CHUNK_ROWS = 4096  # read at once: bounds memory, and holds no long read transaction (which would keep the WAL growing)
_BUSY_S = 10.0

_CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE events (
    sequence INTEGER PRIMARY KEY,
    version INTEGER NOT NULL,
    kind TEXT NOT NULL,
    at_s REAL NOT NULL,
    payload TEXT NOT NULL
);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
PRAGMA application_id = {_APPLICATION_ID};
COMMIT;
"""
_INSERT = "INSERT INTO events (sequence, version, kind, at_s, payload) VALUES (?, ?, ?, ?, ?)"
_SELECT = "SELECT sequence, version, kind, payload FROM events WHERE sequence > ? AND sequence <= ? ORDER BY 1 LIMIT ?"

_Row = tuple[int, int, str, str]


class EventLog:
    """Open it with `EventLog.open` (the writer) or `EventLog.read_only`. Safe to use from several threads."""

    def __init__(self, path: Path, connection: sqlite3.Connection, schema: Schema, lock: _WriterLock | None) -> None:
        self.path = path
        self._connection: sqlite3.Connection | None = connection
        self._schema = schema
        self._lock = lock  # None: read only
        self._mutex = threading.RLock()
        self._last = self._max_sequence()

    @classmethod
    def open(cls, path: Path, *, schema: Schema = CURRENT) -> EventLog:
        """The writer. Makes the file (mode 600: job environments stand in it) and its folder where they are missing."""
        path = path.expanduser().resolve()
        with _file_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = _WriterLock(path)
            try:
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
                connection = _connect(path, "rw")
                try:
                    _prepare_for_writing(path, connection, schema)
                    return cls(path, connection, schema, lock)
                except BaseException:
                    connection.close()
                    raise
            except BaseException:
                lock.release()
                raise

    @classmethod
    def read_only(cls, path: Path, *, schema: Schema = CURRENT) -> EventLog:
        """A reader, whether or not a writer is there. Sees what was appended after it was opened, too."""
        path = path.expanduser().resolve()
        with _file_errors(path):
            if not path.exists():
                raise _no_log_yet(path)
            connection = _connect(path, "ro" + _immutable(path))
            try:
                if not _is_ours(path, connection, schema):
                    raise _no_log_yet(path)
                return cls(path, connection, schema, None)
            except BaseException:
                connection.close()
                raise

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest event; 0 when there is none."""
        with self._mutex:
            return self._last if self._lock else self._max_sequence()

    def append(self, *events: AnyEvent) -> int:
        """Write all of these or none, durable on return. The sequence of the last one."""
        rows = [self._row(event) for event in events]
        with self._mutex, _file_errors(self.path):
            if self._lock is None:
                raise LogError(f"{self.path} was opened for reading only", "append through the controller")
            with _transaction(self._open_connection()) as connection:
                numbered = ((self._last + i, *row) for i, row in enumerate(rows, start=1))
                connection.executemany(_INSERT, numbered)
            self._last += len(rows)
            return self._last

    def read(self, after: int = 0, limit: int | None = None) -> Iterator[tuple[int, AnyEvent]]:
        """(sequence, event) in order, from the one that follows `after` up to the newest at the time of the call."""
        newest = self.last_sequence
        return self._walk(after, newest if limit is None else min(newest, after + limit))

    def naming(self, name: str, kinds: Collection[str], newest: int) -> list[AnyEvent]:
        """The newest events of these kinds in which a name stands, in order. SQLite looks through 100,000 rows in a
        tenth of a second, on a connection of its own; only what it finds is decoded, which would take seconds."""
        marks = ", ".join("?" for _ in kinds)
        where = f"kind IN ({marks}) AND instr(payload, ?)"
        quoted = json.dumps(name, ensure_ascii=False)[1:-1]  # as it stands in the payload, which is JSON
        with _file_errors(self.path), closing(_connect(self.path, "ro" + _immutable(self.path))) as reader:
            search = f"SELECT sequence FROM events WHERE {where} ORDER BY sequence DESC LIMIT ?"
            found = reader.execute(search, (*kinds, quoted, newest)).fetchall()
        return [event for (sequence,) in reversed(found) for _, event in self.read(sequence - 1, 1)]

    def close(self) -> None:
        with self._mutex:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._lock is not None:
                self._lock.release()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LogError(f"{self.path} was closed", "open it again")
        return self._connection

    def _max_sequence(self) -> int:
        with _file_errors(self.path):
            found = self._open_connection().execute("SELECT max(sequence) FROM events").fetchone()
        return int(found[0] or 0)

    def _chunk(self, after: int, end: int) -> list[_Row]:
        with self._mutex, _file_errors(self.path):
            return self._open_connection().execute(_SELECT, (after, end, _CHUNK_ROWS)).fetchall()

    def _walk(self, after: int, end: int) -> Iterator[tuple[int, AnyEvent]]:
        while after < end:
            rows = self._chunk(after, end)
            for row in rows or [(0, 0, "", "")]:
                if row[0] != after + 1:
                    raise LogCorrupt(f"{self.path}: event {after + 1} is missing")
                after += 1
                yield after, self._event(row)

    def _row(self, event: AnyEvent) -> tuple[int, str, float, str]:
        """Read back before it is written: an event that cannot be read would lock every later controller out."""
        try:
            payload = encode(event)
            decode(payload)
        except ValueError as error:  # pydantic's errors are ValueErrors
            raise LogError(f"this event cannot be stored: {event!r}: {error}", "this is a defect: report it") from error
        return self._schema.version, event.kind, event.at_s, payload.decode()

    def _event(self, row: _Row) -> AnyEvent:
        sequence, version, kind, payload = row
        if version > self._schema.version:
            raise _too_new(self.path, f"event {sequence}", version, self._schema)
        try:
            if version == self._schema.version:
                return decode(payload)
            return upgrade(json.loads(payload), version, self._schema)
        except (ValueError, KeyError, TypeError) as error:
            raise self._unreadable(sequence, kind, error) from error

    def _unreadable(self, sequence: int, kind: str, error: Exception) -> LogCorrupt:
        if kind not in KINDS:
            return LogCorrupt(
                f"{self.path}: event {sequence} is of the unknown kind {kind!r}",
                "another build of Tradewind wrote it: read it with that one, or give another folder with --home",
            )
        return LogCorrupt(f"{self.path}: event {sequence} ({kind}) cannot be read: {error}")


# --- one writer ------------------------------------------------------------------------------------------------


class _WriterLock:
    """An flock on `<log>.lock`, with the holder's pid inside. The file stays: removing it would let two in."""

    def __init__(self, path: Path) -> None:
        side_file = path.with_name(path.name + ".lock")
        self._descriptor: int | None = os.open(side_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
            self.release()
            raise LogLocked(f"another controller (pid {holder}) writes to {path}") from error
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Close, never LOCK_UN: a forked child that closes its copy must not take the lock from its parent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


_held: weakref.WeakSet[_WriterLock] = weakref.WeakSet()


def _let_go_in_child() -> None:
    for lock in list(_held):
        lock.release()


# A forked child shares the lock, and would hold it on after the controller was killed.
os.register_at_fork(after_in_child=_let_go_in_child)


# --- SQLite ----------------------------------------------------------------------------------------------------


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(path))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def _immutable(path: Path) -> str:
    """A reader of a WAL file makes a shared-memory file beside it, and cannot in a folder that is read-only. Where no
    writer has left a WAL either, nothing can be missed by reading the file alone."""
    alone = not os.access(path.parent, os.W_OK) and not path.with_name(path.name + "-wal").exists()
    return "&immutable=1" if alone else ""


def _prepare_for_writing(path: Path, connection: sqlite3.Connection, schema: Schema) -> None:
    is_old = _is_ours(path, connection, schema)  # first: another program's file is left as it was
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise LogError(f"the file system of {path} has no shared memory", "give a folder on a local disk with --home")
    if not is_old:
        connection.executescript(_CREATE)
    connection.execute(f"PRAGMA user_version = {schema.version}")  # from now on, older programs must refuse it


def _is_ours(path: Path, connection: sqlite3.Connection, schema: Schema) -> bool:
    """Whether it holds a log of ours already; a new file is empty. Raises for anything else."""
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application_id != _APPLICATION_ID:
        if tables or application_id:
            raise LogCorrupt(f"{path} is a SQLite file of another program", "give another folder with --home")
        return False
    if version > schema.version:
        raise _too_new(path, "the log", version, schema)
    return True


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite has rolled back by itself after some errors
            with suppress(sqlite3.Error):  # the first error is the one to tell
                connection.execute("ROLLBACK")
        raise


# --- errors ----------------------------------------------------------------------------------------------------


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    """What SQLite and the file system say, in words of ours."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(path, error) from error
    except OSError as error:
        hint = "give a folder that you may write to with --home"
        raise LogError(f"cannot open the event log {path}: {error.strerror}", hint) from error


def _explain(path: Path, error: sqlite3.Error) -> LogError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # the primary code; the upper bits say more than we need
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return LogCorrupt(f"{path} is damaged, or not an event log: {error}")
    hints = {
        sqlite3.SQLITE_FULL: "free some space; what was acknowledged is safe",
        sqlite3.SQLITE_IOERR: "check the disk and its free space; what was acknowledged is safe",
        sqlite3.SQLITE_READONLY: "make the file and its folder writable, or give another folder with --home",
        sqlite3.SQLITE_CANTOPEN: "make the file and its folder writable, or give another folder with --home",
        sqlite3.SQLITE_BUSY: "another program has locked the file; close it",
    }
    return LogError(f"the event log {path} cannot be used: {error}", hints.get(code, "check the file and its folder"))


def _too_new(path: Path, what: str, version: int, schema: Schema) -> LogTooNew:
    return LogTooNew(f"{path}: {what} has schema version {version}; this Tradewind reads up to {schema.version}")


def _no_log_yet(path: Path) -> LogError:
    return LogError(f"there is no event log at {path}", "`tradewind up` starts one")
