"""Where checkpoints lie: a local folder, or S3, GCS and Azure Blob through pyarrow. Here bytes become durable.

    Saver ── write ──> Store <── put, listing, remove ── Checkpoints        Reader ── read ──> Store

Paths are relative to the folder of a run. What `write` and `put` return from is durable; what `put` writes is there as
a whole or not at all (a rename on a disk; object stores show an object only when it is complete).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from tradewind.errors import JobError

GIB = 1 << 30
WRITE_BYTES = 16 << 20  # in one call: large enough for any disk, small enough to notice a full one early
PAGE_BYTES = 4096  # addresses and lengths of direct writes are multiples of it
SCHEMES = ("s3://", "gs://", "abfs://", "abfss://")


class Store(Protocol):
    """Files below one folder. Errors are OSErrors, with an errno where there is one."""

    where: str  # for people
    parallel_reads: int  # how many pay off at a time

    def write(self, path: str, content: memoryview) -> None:
        """Large files. A failed one leaves nothing behind."""

    def put(self, path: str, content: bytes) -> None:
        """Small files, atomic; replaces what is there."""

    def read(self, path: str, start: int = 0, num_bytes: int | None = None) -> bytearray:
        """FileNotFoundError where there is none; fewer bytes where the file ends before."""

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        """As `read`, into memory that is there. How many bytes there were."""

    def listing(self, path: str = "") -> Mapping[str, int | None]:
        """Names in a folder with their sizes, None for folders; empty where there is no such folder."""

    def remove(self, path: str) -> None:
        """A file or a folder with all that is in it; fine if it is gone already."""


def open_store(where: str | Path) -> Store:
    """The store of a path or URI; pyarrow finds credentials, regions and emulators in the environment as usual."""
    text = str(where)
    if text.startswith(SCHEMES):
        return ObjectStore.at(text)
    if "://" in text and not text.startswith("file://"):
        raise JobError(f"{text}: no storage of this kind", f"use a folder, or one of {', '.join(SCHEMES)}")
    return LocalStore(Path(text.removeprefix("file://")))


class LocalStore:
    """A folder. It must be the same one on every machine of the job (NFS, Lustre, FSx, or a single machine)."""

    parallel_reads = 1

    def __init__(self, root: Path) -> None:
        self.root, self.where = root, str(root)

    def write(self, path: str, content: memoryview) -> None:
        target = self.root / path
        self._make_folder(target.parent)
        _check_space(target.parent, content.nbytes)
        try:
            if not _write_direct(target, content):
                _write_file(target, content, 0)
        except BaseException:
            target.unlink(missing_ok=True)  # frees the space, so that the rest of the machine can go on
            raise
        _flush(target.parent)

    def put(self, path: str, content: bytes) -> None:
        target = self.root / path
        self._make_folder(target.parent)
        aside = target.with_name(f".{target.name}.tmp")
        try:
            _write_file(aside, memoryview(content), 0)
            aside.rename(target)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        _flush(target.parent)

    def read(self, path: str, start: int = 0, num_bytes: int | None = None) -> bytearray:
        with (self.root / path).open("rb", buffering=0) as file:
            return _read_up_to(file, os.fstat(file.fileno()).st_size, start, num_bytes)

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        with (self.root / path).open("rb", buffering=0) as file:
            file.seek(start)
            return _fill(file, target)

    def listing(self, path: str = "") -> Mapping[str, int | None]:
        found: dict[str, int | None] = {}
        with contextlib.suppress(FileNotFoundError), os.scandir(self.root / path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                    found[entry.name] = None if entry.is_dir() else entry.stat().st_size
        return found

    def remove(self, path: str) -> None:
        target = self.root / path
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            folder.mkdir(parents=True, exist_ok=True)
            _flush(folder.parent)


class ObjectStore:
    """A bucket, by one of pyarrow's filesystems."""

    parallel_reads = 8  # each waits for the network

    def __init__(self, filesystem: Any, base: str, where: str) -> None:
        self._fs, self._base, self.where = filesystem, base.rstrip("/"), where

    @classmethod
    def at(cls, uri: str) -> ObjectStore:
        import pyarrow.fs

        try:
            filesystem, base = pyarrow.fs.FileSystem.from_uri(uri)
        except (OSError, ValueError) as error:
            raise JobError(f"{uri} cannot be opened: {error}", "check the address and the credentials") from error
        return cls(filesystem, base, uri)

    def write(self, path: str, content: memoryview) -> None:
        try:
            with self._fs.open_output_stream(self._path(path)) as stream:
                for block in _blocks(content):
                    stream.write(block)
        except BaseException:
            with contextlib.suppress(OSError):  # the error that counts is the first one
                self.remove(path)
            raise

    def put(self, path: str, content: bytes) -> None:
        with self._fs.open_output_stream(self._path(path)) as stream:
            stream.write(content)

    def read(self, path: str, start: int = 0, num_bytes: int | None = None) -> bytearray:
        with self._fs.open_input_file(self._path(path)) as file:
            return _read_up_to(file, file.size(), start, num_bytes)

    def read_into(self, path: str, start: int, target: memoryview) -> int:
        with self._fs.open_input_file(self._path(path)) as file:
            if start:
                file.seek(min(start, file.size()))  # Google's client asks once more for it
            return _fill(file, target)

    def listing(self, path: str = "") -> Mapping[str, int | None]:
        import pyarrow.fs

        folder = self._path(path)
        # Of Google's folders pyarrow lists only those that somebody made: one is known by what lies in it.
        is_flat = self._fs.type_name == "gcs"
        infos = self._fs.get_file_info(pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=is_flat))
        found: dict[str, int | None] = {}
        for info in infos:
            name, inside, _ = info.path.removeprefix(f"{folder}/").partition("/")
            found[name] = info.size if info.is_file and not inside else None
        return found

    def remove(self, path: str) -> None:
        info = self._fs.get_file_info(self._path(path))
        with contextlib.suppress(FileNotFoundError):
            if info.is_file:
                self._fs.delete_file(self._path(path))
            else:
                self._fs.delete_dir(self._path(path))

    def _path(self, path: str) -> str:
        return f"{self._base}/{path}".rstrip("/")


def _blocks(content: memoryview) -> Iterator[memoryview]:
    return (content[at : at + WRITE_BYTES] for at in range(0, content.nbytes, WRITE_BYTES))


def _read_up_to(file: Any, size: int, start: int, num_bytes: int | None) -> bytearray:
    start = min(start, size)
    if start:
        file.seek(start)
    found = bytearray(size - start if num_bytes is None else min(size - start, num_bytes))
    return found[: _fill(file, memoryview(found))]


def _fill(file: Any, target: memoryview) -> int:
    at = 0
    while at < target.nbytes and (got := file.readinto(target[at:])):
        at += got
    return at


def _check_space(folder: Path, num_bytes: int) -> None:
    """A disk that is too full is found before it is filled up: others write there, too."""
    free = shutil.disk_usage(folder).free
    if free < num_bytes:
        words = f"No space left: {num_bytes / GIB:.3f} GiB to write, {free / GIB:.3f} GiB are free"
        raise OSError(errno.ENOSPC, words, str(folder))


def _write_direct(target: Path, content: memoryview) -> bool:
    """Past the page cache, which saves a copy and leaves the cache to the data loader; False where that cannot be."""
    import torch

    direct = getattr(os, "O_DIRECT", 0)
    if not direct or not content.nbytes or content.nbytes % PAGE_BYTES:
        return False
    if torch.frombuffer(content, dtype=torch.uint8).data_ptr() % PAGE_BYTES:
        return False
    try:
        _write_file(target, content, direct)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.EOPNOTSUPP):  # this filesystem does not have it
            return False
        raise
    return True


def _write_file(target: Path, content: memoryview, flags: int) -> None:
    handle = os.open(target, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | flags, 0o644)
    try:
        for block in _blocks(content):
            while block.nbytes:
                block = block[os.write(handle, block) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
