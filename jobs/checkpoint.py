"""The checkpoints of a run: committed as a whole, found again, checked, kept and removed.

    all ranks: Saver -> Part ──> Committer (one process): Checkpoints.commit -> prune      restore: whole -> dcp.Reader

One folder each, `step-00000120-attempt-003`: a data file of raw bytes from every rank, an index (what lies where,
with a checksum for every block), and, written last, `meta.json` (step, data order, files and their sizes, checksum of
the index). The chain of checksums begins there; a folder without a valid one is torn, and counts for nothing.
"""

from __future__ import annotations

import errno
import json
import logging
import re
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tradewind.errors import JobError
from tradewind.jobs.shards import Entry, merge
from tradewind.jobs.storage import Store, open_store

logger = logging.getLogger(__name__)

NAME = re.compile(r"step-(\d+)-attempt-(\d+)")
META_FILE, ATTEMPT_FILE, DAMAGED_FILE = "meta.json", "last-attempt", "damaged.json"
FORMAT = 2
BLOCK_BYTES = 4 << 20  # each has a checksum: who loads a slice of a tensor reads and checks only the blocks it needs


class CheckpointDamaged(JobError):
    default_hint = "the checkpoint before it is used by itself"


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank has to say of its part of a checkpoint, when its bytes are durable or have failed to be."""

    step: int
    attempt: int
    rank: int
    world: int
    file: str  # a name of its own each time: what is committed is never written over
    held: tuple[str, ...] = ()  # all keys of its state, whoever writes them
    entries: tuple[Entry, ...] = ()
    file_bytes: int = 0
    stall_s: float = 0.0  # for which training stood still
    write_s: float = 0.0
    error: str = ""  # why there is nothing

    @property
    def name(self) -> str:
        return name_of(self.step, self.attempt)


@dataclass(frozen=True, slots=True)
class Meta:
    """What a checkpoint says of itself."""

    step: int  # optimizer steps that are in it
    attempt: int
    world: int
    files: Mapping[str, int]  # sizes
    index: str  # the file that says what lies where, and its checksum
    index_crc32: int
    layout: Mapping[str, Any] = field(default_factory=dict)  # of the run that wrote it, for people
    order: Mapping[str, int] | None = None  # the order of the data; a run with another order does not continue it
    written_at_s: float = 0.0
    format: int = FORMAT

    @property
    def name(self) -> str:
        return name_of(self.step, self.attempt)

    @property
    def num_bytes(self) -> int:
        return sum(self.files.values())


class Checkpoints:
    """The folder of a run, in any store. Whoever commits, prunes or counts attempts is alone in doing so."""

    def __init__(self, store: Store) -> None:
        self.store = store

    @classmethod
    def at(cls, where: str | Path) -> Checkpoints:
        return cls(open_store(where))

    # --- writing

    def commit(
        self, parts: Sequence[Part], *, layout: Mapping[str, Any] | None = None, order: Mapping[str, int] | None = None
    ) -> Meta:
        """Make a checkpoint of the parts of all ranks. Raises JobError, and then there is none."""
        first = parts[0]
        if {(part.name, part.rank) for part in parts} != {(first.name, rank) for rank in range(first.world)}:
            hint = "all ranks must save at the same step"
            raise JobError(f"{first.name}: these are not the parts of {first.world} ranks", hint)
        entries = merge((part.entries for part in parts), (key for part in parts for key in part.held))
        index = json.dumps([_to_json(entry) for entry in entries]).encode()
        crc32 = zlib.crc32(index)
        file = f"index-{crc32:08x}.json"
        self.store.put(f"{first.name}/{file}", index)
        files = {part.file: part.file_bytes for part in parts if part.file_bytes} | {file: len(index)}
        at_s = round(time.time(), 3)
        meta = Meta(first.step, first.attempt, first.world, files, file, crc32, layout or {}, order, at_s)
        if wrong := self._wrong_size(meta):
            hint = "all machines must see the same folder: use shared storage or a bucket"
            raise JobError(f"{meta.name}: {wrong}", hint)
        self.store.put(f"{meta.name}/{META_FILE}", _signed(meta))
        return meta

    def withdraw(self, name: str, files: Iterable[str]) -> None:
        """Remove parts that will not be committed; all of the folder, unless an earlier commit stands there."""
        if META_FILE not in self.store.listing(name):
            self.store.remove(name)
            return
        for file in files:
            self.store.remove(f"{name}/{file}")

    def discard(self, name: str) -> None:
        """Remove a checkpoint, its commit first: what is left of it if this is killed half-way counts for nothing."""
        self.store.remove(f"{name}/{META_FILE}")
        self.store.remove(name)

    def reject(self, name: str, why: str) -> None:
        """Take back the commit of a damaged one, so that it is not counted as the newest to keep; prune removes it."""
        self.store.put(f"{name}/{DAMAGED_FILE}", json.dumps({"why": why}).encode())
        self.store.remove(f"{name}/{META_FILE}")

    def prune(self, keep: int, *, idle: bool = False) -> list[str]:
        """Remove all but the newest `keep` whole ones (at least one), and what killed writers left behind.

        A torn one that is newer than the newest whole one may be in the making, unless nobody writes (`idle`).
        """
        names = self.names()
        kept = [meta.name for meta in self.whole(quiet=True)][: max(1, keep)]
        if kept:
            gone = [name for name in names if name not in kept and (idle or names.index(name) < names.index(kept[0]))]
        else:  # damaged ones are left for people to look at
            gone = [name for name in names if idle and META_FILE not in self.store.listing(name)]
        for name in gone:
            self._try_discard(name)
        return gone

    def next_attempt(self, above: int = 0) -> int:
        """Count up the worker groups of a run, over restarts of its driver as well; in any case above `above`. The
        counter may be behind, if storage refused it for a while: so checkpoints count, too."""
        try:
            last = int(self.store.read(ATTEMPT_FILE) or b"0")
        except FileNotFoundError:
            last = 0
        saved = (NAME.fullmatch(name) for name in self.names())
        last = max(last, above, *(int(match[2]) for match in saved if match)) + 1
        try:
            self.store.put(ATTEMPT_FILE, str(last).encode())
        except OSError as error:  # a full disk ends no training
            logger.warning("attempt %d cannot be recorded in %s: %s", last, self.store.where, error)
        return last

    # --- reading

    def names(self) -> list[str]:
        """All folders of checkpoints, torn ones as well, oldest first. Later attempts at a step are newer."""
        found = ((NAME.fullmatch(name), name) for name, size in self.store.listing().items() if size is None)
        return [name for _, _, name in sorted((int(match[1]), int(match[2]), name) for match, name in found if match)]

    def whole(self, quiet: bool = False) -> Iterator[Meta]:
        """Newest first. What is torn or damaged is passed over with a warning that says what is wrong."""
        for name in reversed(self.names()):
            try:
                yield self.check(name)
            except CheckpointDamaged as error:
                if not quiet:
                    logger.warning("%s", error)

    def newest(self) -> Meta | None:
        return next(self.whole(), None)

    def check(self, name: str) -> Meta:
        """Whether it is committed and all its files have their sizes. Checksums of the data are compared when it is
        loaded, or by `verify`. Raises CheckpointDamaged."""
        meta = _read_meta(name, self._read(name, META_FILE))
        if wrong := self._wrong_size(meta):
            raise CheckpointDamaged(f"checkpoint {name} is damaged: {wrong}")
        return meta

    def entries(self, meta: Meta) -> list[Entry]:
        """The index. Raises CheckpointDamaged."""
        content = self._read(meta.name, meta.index)
        if zlib.crc32(content) != meta.index_crc32:
            raise CheckpointDamaged(f"checkpoint {meta.name} is damaged: {meta.index} has another checksum")
        return [_from_json(fields) for fields in json.loads(content)]

    def verify(self, name: str) -> Meta:
        """Read every byte and compare all checksums. Raises CheckpointDamaged."""
        meta = self.check(name)
        for entry in self.entries(meta):
            for number in range(len(entry.sums)):
                start = entry.position + number * BLOCK_BYTES
                size = min(BLOCK_BYTES, entry.num_bytes - number * BLOCK_BYTES)
                check_blocks(name, entry, number, memoryview(self._read(name, entry.file, start, size)))
        return meta

    def _read(self, name: str, file: str, start: int = 0, num_bytes: int | None = None) -> bytearray:
        with reading(name, file):
            return self.store.read(f"{name}/{file}", start, num_bytes)

    def _wrong_size(self, meta: Meta) -> str:
        found = self.store.listing(meta.name)
        for file, size in meta.files.items():
            if found.get(file) != size:
                return f"{file} has {found[file]} bytes of {size}" if file in found else f"{file} is missing"
        return ""

    def _try_discard(self, name: str) -> None:
        try:
            self.discard(name)
        except OSError as error:
            logger.warning("checkpoint %s cannot be removed now: %s; it is tried again after the next one", name, error)


def name_of(step: int, attempt: int) -> str:
    return f"step-{step:08d}-attempt-{attempt:03d}"


@contextmanager
def reading(name: str, file: str) -> Iterator[None]:
    """A file that is gone, or that the disk cannot read, is damage. A store that cannot be reached is not."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        if file == META_FILE:
            raise CheckpointDamaged(f"checkpoint {name} was never finished: it has no {file}") from error
        raise CheckpointDamaged(f"checkpoint {name} is damaged: {file} is missing") from error
    except OSError as error:
        if error.errno == errno.EIO:
            raise CheckpointDamaged(f"checkpoint {name} is damaged: {file}: {error}") from error
        raise


def check_blocks(name: str, entry: Entry, first: int, content: memoryview) -> None:
    """Compare the checksums of the blocks from number `first` on. Raises CheckpointDamaged."""
    for number, wanted in enumerate(entry.sums[first : first + -(-content.nbytes // BLOCK_BYTES)]):
        if zlib.crc32(content[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES]) != wanted:
            where = f"{entry.file}, {entry.key!r}, block {first + number}"
            raise CheckpointDamaged(f"checkpoint {name} is damaged: {where} has another checksum")


def sums_of(content: memoryview) -> tuple[int, ...]:
    """The checksums of an entry, one for each block."""
    starts = range(0, content.nbytes, BLOCK_BYTES)
    return tuple(zlib.crc32(content[start : start + BLOCK_BYTES]) for start in starts)


def _signed(meta: Meta) -> bytes:
    fields = asdict(meta)
    return json.dumps({"meta": fields, "crc32": _crc32(fields)}, indent=1).encode()


def _read_meta(name: str, content: bytes | bytearray) -> Meta:
    try:
        found = json.loads(content)
        if found["crc32"] != _crc32(found["meta"]):
            raise ValueError("another checksum")
        return Meta(**found["meta"])
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointDamaged(f"checkpoint {name} is damaged: {META_FILE}: {error}") from error


def _crc32(fields: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(fields, sort_keys=True).encode())


def _to_json(entry: Entry) -> list[Any]:
    return [getattr(entry, name) for name in Entry.__slots__]


def _from_json(fields: Sequence[Any]) -> Entry:
    values: list[Any] = [tuple(value) if isinstance(value, list) else value for value in fields]
    return Entry(*values)
