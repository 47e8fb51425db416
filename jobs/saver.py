"""Saves one rank's part of a checkpoint while training goes on.

    begin: copy into the staging buffer (training stands still) -> background: write, checksum, fsync -> told(Part)

One save at a time: one that is due while another is being written (a slow disk) is left out and counted. What goes
wrong in the background is told, never raised into training; the half-written file is removed, and the next save is
tried.
"""

from __future__ import annotations

import errno
import io
import logging
import mmap
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch

from tradewind.errors import JobError
from tradewind.jobs.checkpoint import Part, sums_of
from tradewind.jobs.shards import Entry, Item, Layout, items, mine
from tradewind.jobs.storage import PAGE_BYTES, Store

logger = logging.getLogger(__name__)

ALIGN_BYTES = 64  # of every item, for any dtype
SPARE_BYTES = 1 << 20  # objects may be larger next time


class Staging:
    """The buffer into which state is copied: one piece of memory, laid out like the file, made once and reused.

    Memory that is used for the first time costs far more than the copy (the kernel must find it and fill it with
    zeros), so it is touched ahead, in the background.
    """

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)
        self._warming: Future[torch.Tensor] | None = None
        self._asked = 0

    def warm(self, num_bytes: int, pinned: bool, pool: ThreadPoolExecutor) -> None:
        if num_bytes > max(self._asked, self._buffer.nbytes):
            self._asked = num_bytes
            self._warming = pool.submit(_allocate, num_bytes, pinned)

    def take(self, num_bytes: int, pinned: bool) -> torch.Tensor:
        """At least so many bytes. MemoryError or OSError where there is no room."""
        warming, self._warming = self._warming, None
        if warming and not warming.cancel() and not warming.exception():
            self._buffer = warming.result()
        if self._buffer.nbytes < num_bytes:
            self._buffer = torch.empty(0, dtype=torch.uint8)  # not both at a time
            self._buffer = _allocate(num_bytes, pinned)
        return self._buffer


def _allocate(num_bytes: int, pinned: bool) -> torch.Tensor:
    """Whole pages, so that they can go to the disk directly."""
    size = _round_up(num_bytes + SPARE_BYTES, PAGE_BYTES)
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8).zero_()


@dataclass(frozen=True, slots=True, eq=False)
class Staged:
    """What is to be written, copied out of training's reach."""

    content: memoryview
    items: Sequence[Item]
    positions: Sequence[int]


class Saver:
    """One per worker process; used by its training thread alone."""

    def __init__(self, store: Store, told: Callable[[Part], None] | None = None) -> None:
        self.skipped = 0  # saves that were due while another one was being written
        self._store, self._told = store, told
        self._staging = Staging()
        self._pool = ThreadPoolExecutor(2, thread_name_prefix="checkpoint")
        self._running: Future[Part] | None = None

    @property
    def busy(self) -> bool:
        return self._running is not None and not self._running.done()

    def prepare(self, state: Mapping[str, Any], layout: Layout) -> None:
        """Make the buffer ready in the background: at the start, and when the group has changed."""
        chosen = mine(items(state, layout), layout.rank)
        num_bytes = sum(_round_up(item.num_bytes, ALIGN_BYTES) for item in chosen)
        self._staging.warm(num_bytes, _on_gpu(chosen), self._pool)

    def begin(self, state: Mapping[str, Any], *, step: int, attempt: int, layout: Layout) -> bool:
        """Copy this rank's part and write it in the background. False: one is still being written, this one is left
        out. Blocks for one copy of what this rank writes."""
        if self.busy:
            self.skipped += 1
            logger.warning("no checkpoint at step %d: the one before is still being written (slow storage)", step)
            return False
        began_s = time.perf_counter()
        file = f"rank-{layout.rank:05d}-{secrets.token_hex(4)}.bin"
        part = Part(step, attempt, layout.rank, layout.world, file, tuple(state))
        try:
            staged = self._stage(mine(items(state, layout), layout.rank))
        except (MemoryError, OSError) as error:
            part = replace(part, error=f"no memory to copy the state into: {error}")
            self._running = self._pool.submit(self._tell, part)
            return True
        part = replace(part, file_bytes=staged.content.nbytes, stall_s=time.perf_counter() - began_s)
        self._running = self._pool.submit(self._write, part, staged)
        return True

    def poll(self) -> Part | None:
        """What became of the last save: once, when it is known."""
        if self._running is None or self.busy:
            return None
        done, self._running = self._running, None
        return done.result()

    def wait(self, timeout_s: float | None = None) -> Part | None:
        """Like `poll`, for a while. TimeoutError if it is still being written."""
        if self._running is not None:
            self._running.exception(timeout_s)
        return self.poll()

    def close(self) -> None:
        """Let the last save come to its end. It starts tasks of its own: the pool must be open until then."""
        if self._running is not None:
            self._running.exception()
        self._pool.shutdown(wait=True)

    # --- training stands still

    def _stage(self, chosen: Sequence[Item]) -> Staged:
        ready = [item if item.shape is not None else _pickled(item) for item in chosen]
        positions, end = [], 0
        for item in ready:
            positions.append(end)
            end += _round_up(item.num_bytes, ALIGN_BYTES)
        buffer = self._staging.take(end, _on_gpu(ready))
        for item, position in zip(ready, positions, strict=True):
            target = buffer[position : position + item.num_bytes]
            target.view(item.value.dtype).view(item.value.shape).copy_(item.value, non_blocking=True)
        if _on_gpu(ready):
            torch.cuda.synchronize()
        return Staged(memoryview(buffer.numpy())[: _round_up(end, PAGE_BYTES)], ready, positions)

    # --- background

    def _write(self, part: Part, staged: Staged) -> Part:
        began_s = time.perf_counter()
        hashing = self._pool.submit(_entries, part.file, staged)
        try:
            if part.file_bytes:
                self._store.write(f"{part.name}/{part.file}", staged.content)
            part = replace(part, entries=hashing.result())
        except Exception as error:  # whatever a store may raise: training does not end because of it
            hashing.exception()  # it reads the buffer: wait for it
            part = replace(part, error=_words(error, self._store.where), file_bytes=0)
        return self._tell(replace(part, write_s=time.perf_counter() - began_s))

    def _tell(self, part: Part) -> Part:
        if part.error:
            logger.warning("checkpoint %s was not written: %s; training goes on", part.name, part.error)
        if self._told is None:
            return part
        try:
            self._told(part)
        except Exception as error:
            logger.warning("checkpoint %s was written, but not committed: %s", part.name, error)
            return replace(part, error=f"not committed: {error}")
        return part


def _entries(file: str, staged: Staged) -> tuple[Entry, ...]:
    found = []
    for item, position in zip(staged.items, staged.positions, strict=True):
        sums = sums_of(staged.content[position : position + item.num_bytes])
        where = (item.key, file, position, item.num_bytes, sums)
        if item.shape is None:
            found.append(Entry(*where))
        else:
            dtype = str(item.value.dtype).removeprefix("torch.")
            found.append(Entry(*where, dtype, item.shape, item.offsets, item.sizes))
    return tuple(found)


def _pickled(item: Item) -> Item:
    content = io.BytesIO()
    try:
        torch.save(item.value, content)
    except Exception as error:
        hint = "keep only what pickle can save"
        raise JobError(f"{item.key!r} cannot be saved: {error}", hint) from error
    value = torch.frombuffer(content.getbuffer(), dtype=torch.uint8)
    return replace(item, value=value, num_bytes=value.nbytes)


def _on_gpu(chosen: Sequence[Item]) -> bool:
    return any(isinstance(item.value, torch.Tensor) and item.value.is_cuda for item in chosen)


def _words(error: Exception, where: str) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{where} is full ({error.strerror}): make room, or keep fewer checkpoints"
    return f"{where}: {type(error).__name__}: {error}"


def _round_up(number: int, to: int) -> int:
    return -(-number // to) * to
