"""Reads checkpoints through torch.distributed.checkpoint, into any number of workers and any parallel layout.

    restore -> newest whole one -> Reader (index -> DCP's metadata) -> dcp.load plans what this rank needs -> read_data

DCP's planner finds out which saved pieces overlap with what this rank holds (plain tensors or DTensors); only the
blocks with these bytes are read and checked. No collectives: each rank loads alone; `agree` tells whether all could.
"""

from __future__ import annotations

import logging
import math
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from io import BytesIO
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from tradewind.errors import JobError
from tradewind.jobs.checkpoint import BLOCK_BYTES, CheckpointDamaged, Checkpoints, Meta, check_blocks, reading
from tradewind.jobs.shards import Entry

logger = logging.getLogger(__name__)

GAP_BYTES = 256 << 10  # closer pieces are read in one go: a request to an object store costs as much as this
SPAN_BYTES = 8 << 20  # and no more at a time; what is larger is read alone, right to where it belongs


@dataclass(frozen=True, slots=True)
class Want:
    """Bytes of an entry that one read of the plan needs, rounded to blocks."""

    item: ReadItem
    entry: Entry
    first_block: int
    start: int  # in the file
    end: int


class Reader(StorageReader):  # type: ignore[misc]
    """DCP's StorageReader of one checkpoint: `dcp.load(state, storage_reader=Reader(checkpoints, meta))`."""

    def __init__(self, checkpoints: Checkpoints, meta: Meta) -> None:
        self.meta = meta
        self._checkpoints = checkpoints
        self._entries = checkpoints.entries(meta)

    def contents(self) -> dict[str, torch.Tensor | None]:
        """What is inside: a tensor of shape and dtype without memory (device "meta") for each key, None for objects."""
        return {
            entry.key: torch.empty(entry.shape, dtype=getattr(torch, entry.dtype), device="meta")
            if entry.dtype
            else None
            for entry in self._entries
        }

    def fill(self, state: dict[str, Any]) -> None:
        """Load into the tensors of `state`, in place; objects are replaced, whatever stands there. Keys that are only
        in the checkpoint are left alone. Raises CheckpointDamaged, and JobError for what does not fit."""
        missing = sorted(state.keys() - {entry.key for entry in self._entries})
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            hint = "prepare the same objects in the same order, or start a run with another name"
            raise JobError(f"checkpoint {self.meta.name} has no {missing[0]!r}{more}", hint)
        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                dcp.load(state, storage_reader=self, planner=planner, no_dist=True)
        except CheckpointException as failed:
            raise self._unwrapped(failed) from failed

    def _unwrapped(self, failed: CheckpointException) -> BaseException:
        error: BaseException = next(iter(failed.failures.values()))[0]
        if isinstance(error, ValueError | RuntimeError):  # DCP's own checks
            hint = "use the same model and optimizer, or start a run with another name"
            return JobError(f"checkpoint {self.meta.name} does not fit: {error}", hint)
        return error

    # --- StorageReader

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            raise JobError("a Reader reads one checkpoint", "make another Reader")

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        found: dict[str, Any] = {}
        for entry in self._entries:
            if entry.dtype is None:
                found[entry.key] = BytesStorageMetadata()
                continue
            properties = TensorProperties(dtype=getattr(torch, entry.dtype))
            known = found.setdefault(entry.key, TensorStorageMetadata(properties, torch.Size(entry.shape), []))
            known.chunks.append(ChunkStorageMetadata(torch.Size(entry.offsets), torch.Size(entry.sizes)))
        return Metadata(state_dict_metadata=found)

    def set_up_storage_reader(self, *_: Any, **__: Any) -> None:
        self._places = {
            MetadataIndex(entry.key, entry.offsets if entry.dtype else None): entry for entry in self._entries
        }

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        wants = [_want(item, self._places[item.storage_index]) for item in plan.items]
        spans = list(_spans(wants))
        with ThreadPoolExecutor(self._checkpoints.store.parallel_reads) as pool:
            for _ in pool.map(lambda span: self._read(span, planner), spans):
                pass
        done: torch.futures.Future[None] = torch.futures.Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, _: str | os.PathLike[str]) -> bool:
        return False  # never chosen by DCP itself

    # --- bytes

    def _read(self, span: Sequence[Want], planner: LoadPlanner) -> None:
        start, end = span[0].start, max(want.end for want in span)
        place = _place(span[0], planner) if len(span) == 1 else None
        content = memoryview(bytearray(end - start)) if place is None else place
        self._read_into(content, span[0].entry.file, start)
        for want in span:
            part = content[want.start - start : want.end - start]
            check_blocks(self.meta.name, want.entry, want.first_block, part)
            if place is None:
                _deliver(want, part, planner)

    def _read_into(self, content: memoryview, file: str, start: int) -> None:
        with reading(self.meta.name, file):
            got = self._checkpoints.store.read_into(f"{self.meta.name}/{file}", start, content)
        if got < content.nbytes:
            raise CheckpointDamaged(f"checkpoint {self.meta.name} is damaged: {file} ends too early")


def _want(item: ReadItem, entry: Entry) -> Want:
    if entry.dtype is None:
        first, last = 0, entry.num_bytes
    else:
        first, last = _extent(item, entry)
    block = first // BLOCK_BYTES
    end = min(entry.num_bytes, -(-last // BLOCK_BYTES) * BLOCK_BYTES)
    return Want(item, entry, block, entry.position + block * BLOCK_BYTES, entry.position + end)


def _extent(item: ReadItem, entry: Entry) -> tuple[int, int]:
    """From the first to behind the last byte of a slice: rows lie one after another."""
    if not math.prod(item.lengths):
        return 0, 0
    strides, size = _strides(entry.sizes), _dtype(entry).itemsize
    corners = list(zip(item.storage_offsets, item.lengths, strides, strict=True))
    first = sum(offset * stride for offset, _, stride in corners)
    last = sum((offset + length - 1) * stride for offset, length, stride in corners)
    return first * size, (last + 1) * size


def _dtype(entry: Entry) -> torch.dtype:
    found: torch.dtype = getattr(torch, entry.dtype or "")
    return found


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[at + 1 :]) for at in range(len(sizes))]


def _spans(wants: Sequence[Want]) -> Iterator[list[Want]]:
    """Wants of one file that lie close together."""
    files: dict[str, list[Want]] = defaultdict(list)
    for want in wants:
        files[want.entry.file].append(want)
    for group in files.values():
        group.sort(key=lambda want: want.start)
        span, end = group[:1], group[0].end
        for want in group[1:]:
            if want.start - end > GAP_BYTES or want.end - span[0].start > SPAN_BYTES:
                yield span
                span, end = [], want.end
            span.append(want)
            end = max(end, want.end)
        yield span


def _place(want: Want, planner: LoadPlanner) -> memoryview | None:
    """The memory of the target, if the bytes can be read right into it; None if they must be cut or converted."""
    if want.item.type == LoadItemType.BYTE_IO:
        return None
    target = planner.resolve_tensor(want.item).detach()
    same = target.device.type == "cpu" and target.is_contiguous() and target.dtype == _dtype(want.entry)
    if not same or not target.numel() or target.nbytes != want.end - want.start:
        return None
    planner.commit_tensor(want.item, target)
    return memoryview(target.view(-1).view(torch.uint8).numpy())


def _deliver(want: Want, content: memoryview, planner: LoadPlanner) -> None:
    item, entry = want.item, want.entry
    if item.type == LoadItemType.BYTE_IO:
        planner.load_bytes(item, BytesIO(content))
        return
    target = planner.resolve_tensor(item).detach()
    if target.numel():
        flat = torch.frombuffer(content, dtype=_dtype(entry))
        skipped = _extent(item, entry)[0] - want.first_block * BLOCK_BYTES
        target.copy_(flat.as_strided(tuple(item.lengths), _strides(entry.sizes), skipped // flat.itemsize))
    planner.commit_tensor(item, target)


def restore(
    checkpoints: Checkpoints,
    state_for: Callable[[Mapping[str, torch.Tensor | None]], dict[str, Any]],
    *,
    is_first: bool = True,
    share: Callable[[Any], Any] = lambda value: value,
    agree: Callable[[bool], bool] = bool,
) -> tuple[Meta, dict[str, Any]] | None:
    """Load the newest whole checkpoint; if any rank finds it damaged, all ranks load the one before it.

    `state_for(contents)` gives what to load into, on this rank (optimizer state is allocated there); `share` gives all
    ranks what the first one has (a broadcast), `agree` whether all say yes (an all-reduce). None: there is none.
    """
    found: list[Meta] = share(list(checkpoints.whole()) if is_first else None)
    for meta in found:
        state, why = _attempt(checkpoints, meta, state_for)
        if agree(not why):
            return meta, state
        if is_first:
            logger.warning(
                "%s", why or f"checkpoint {meta.name} is damaged (another rank says where): using the one before"
            )
            checkpoints.reject(meta.name, why or "found by another rank")
    if found:
        hint = "to begin anew, start a run with another name or remove them"
        raise JobError(f"none of {len(found)} checkpoints in {checkpoints.store.where} is whole", hint)
    return None


def _attempt(
    checkpoints: Checkpoints, meta: Meta, state_for: Callable[[Mapping[str, torch.Tensor | None]], dict[str, Any]]
) -> tuple[dict[str, Any], str]:
    try:
        reader = Reader(checkpoints, meta)
        state = state_for(reader.contents())
        reader.fill(state)
    except CheckpointDamaged as error:
        logger.warning("%s", error)
        return {}, str(error)
    return state, ""
