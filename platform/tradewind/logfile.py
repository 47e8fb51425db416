"""Reading a growing log in pieces, for the controller's log endpoint. Works on any binary file, also in memory."""

from __future__ import annotations

import os
from typing import BinaryIO

from tradewind.api import LogChunk

CHUNK_BYTES = 256 * 1024


def read_chunk(file: BinaryIO, offset: int, *, over: bool, limit_bytes: int = CHUNK_BYTES) -> LogChunk:
    """From `offset` on. A character that is not wholly written yet stays for the next chunk."""
    size = file.seek(0, os.SEEK_END)
    start = min(max(offset, 0), size)
    file.seek(start)
    raw = file.read(limit_bytes)
    at_end = start + len(raw) >= size
    # An ended job writes nothing more: a broken character at the very end is shown as it is.
    whole = raw if at_end and over else raw[: len(raw) - _unfinished(raw)]
    return LogChunk(
        text=whole.decode(errors="replace"), next_offset=start + len(whole), more=not at_end, over=over and at_end
    )


def tail_offset(file: BinaryIO, lines: int, *, block_bytes: int = CHUNK_BYTES) -> int:
    """Where the last so many lines begin; reads backwards, so that a large log costs no more than its end."""
    size = file.seek(0, os.SEEK_END)
    if lines <= 0 or not size:
        return size
    file.seek(size - 1)
    wanted = lines + (file.read(1) == b"\n")  # the newline at the very end opens no further line
    start = size
    while start > 0:
        begin = max(0, start - block_bytes)
        file.seek(begin)
        block = file.read(start - begin)
        while (found := block.rfind(b"\n")) >= 0:
            wanted -= 1
            if not wanted:
                return begin + found + 1
            block = block[:found]
        start = begin
    return 0


def _unfinished(raw: bytes) -> int:
    """How many bytes at the end begin a UTF-8 character without ending it."""
    for back in range(1, min(4, len(raw)) + 1):
        byte = raw[-back]
        if byte & 0b1100_0000 != 0b1000_0000:  # not a continuation: the character starts here
            needed = 2 if byte >> 5 == 0b110 else 3 if byte >> 4 == 0b1110 else 4 if byte >> 3 == 0b11110 else 1
            return back if needed > back else 0
    return 0
