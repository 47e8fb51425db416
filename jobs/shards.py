"""Who writes what into a checkpoint: pure, so that every rank finds it out alone.

    state of a rank -> items (what it holds, who else holds it) -> mine (what it writes) -> entries -> merge (commit)

There is no talk between ranks: training's process group may be aborted at any moment, and another one would have to be
kept alive beside it. What several ranks hold is spread over them by size, so that all machines write at the same time.
What the ranks decided is checked at the commit: every key that any rank holds must be there completely.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tradewind.errors import JobError

OBJECT_BYTES = 1024  # an object's size is not known before it is pickled, which only its writer does


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a rank stands. Replicas are consecutive ranks; the same place in each holds the same state."""

    rank: int = 0
    world: int = 1
    replica_size: int = 1  # TP x PP workers, or the shards of an FSDP model without a mesh over replicas
    stage: tuple[int, ...] | None = None  # with pipelines: the ranks of this replica that hold the same keys

    def over_replicas(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The same places in every replica. Ranks of several replicas know of each other already."""
        ranks = tuple(ranks)
        first = self.rank - self.rank % self.replica_size
        if not all(first <= rank < first + self.replica_size for rank in ranks):
            return tuple(sorted(ranks))
        places = sorted(rank - first for rank in ranks)
        return tuple(base + place for base in range(0, self.world, self.replica_size) for place in places)

    def same_keys(self) -> tuple[int, ...]:
        first = self.rank - self.rank % self.replica_size
        return self.over_replicas(self.stage or range(first, first + self.replica_size))


@dataclass(frozen=True, slots=True, eq=False)
class Item:
    """One thing that this rank holds: a tensor, its piece of a sharded one, or an object."""

    key: str
    value: Any
    holders: tuple[int, ...]  # ranks that hold exactly this
    num_bytes: int
    shape: tuple[int, ...] | None = None  # of the whole tensor; None: an object
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Entry:
    """One piece in a checkpoint's index: what it is, and where its bytes are."""

    key: str
    file: str
    position: int
    num_bytes: int
    sums: tuple[int, ...]  # CRC-32 of each block
    dtype: str | None = None  # None: an object
    shape: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()


def items(state: Mapping[str, Any], layout: Layout) -> list[Item]:
    """What this rank holds. Empty pieces of sharded tensors are left out."""
    found = (_item(key, value, layout) for key, value in state.items())
    return [item for item in found if item is not None]


def mine(held: Sequence[Item], rank: int) -> list[Item]:
    """What this rank writes: of each set of holders, the next largest goes to who has least so far."""
    groups: dict[tuple[int, ...], list[Item]] = defaultdict(list)
    for item in held:
        groups[item.holders].append(item)
    chosen = []
    for holders, group in groups.items():
        load = dict.fromkeys(holders, 0)
        for item in sorted(group, key=lambda item: (-item.num_bytes, item.key)):
            owner = min(holders, key=lambda holder: (load[holder], holder))
            load[owner] += max(item.num_bytes, 1)
            if owner == rank:
                chosen.append(item)
    return sorted(chosen, key=lambda item: item.key)


def _item(key: str, value: Any, layout: Layout) -> Item | None:
    import torch
    from torch.distributed.tensor import DTensor

    if isinstance(value, DTensor):
        return _piece(key, value, layout)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        shape = tuple(value.shape)
        return Item(key, value.detach(), layout.same_keys(), value.nbytes, shape, (0,) * len(shape), shape)
    return Item(key, value, layout.same_keys(), OBJECT_BYTES)


def _piece(key: str, value: Any, layout: Layout) -> Item | None:
    if value.device_mesh.get_coordinate() is None:
        return None  # the mesh is on other ranks
    (chunk,) = value.__create_chunk_list__()  # raises where a sum over ranks is pending
    local = value.detach().to_local()
    if not local.numel() and math.prod(value.shape):
        return None
    holders = layout.over_replicas(_same_piece(value))
    shape, offsets, sizes = tuple(value.shape), tuple(chunk.offsets), tuple(chunk.sizes)
    return Item(key, local, holders, local.nbytes, shape, offsets, sizes)


def _same_piece(value: Any) -> tuple[int, ...]:
    """Ranks of the mesh that hold the same piece: all along replicated dimensions, one along sharded ones."""
    mesh = value.device_mesh
    where = mesh.get_coordinate()
    place = tuple(
        slice(None) if placement.is_replicate() else at for placement, at in zip(value.placements, where, strict=True)
    )
    return tuple(int(rank) for rank in mesh.mesh[place].flatten())


def merge(parts: Iterable[Sequence[Entry]], held: Iterable[str]) -> list[Entry]:
    """All pieces of a checkpoint, each once. Raises JobError where one is missing, or where two do not agree."""
    found: dict[tuple[str, tuple[int, ...]], Entry] = {}
    for entry in (entry for part in parts for entry in part):
        first = found.setdefault((entry.key, entry.offsets), entry)
        if entry.dtype is not None and (first.sums, first.sizes) != (entry.sums, entry.sizes):
            raise JobError(
                f"{entry.key}: {first.file} and {entry.file} hold different values of it",
                "replicas must hold the same state: look for code that only some ranks run",
            )
    pieces: dict[str, list[Entry]] = defaultdict(list)
    for entry in found.values():
        pieces[entry.key].append(entry)
    missing = [key for key in sorted(set(held)) if not _is_whole(pieces[key])]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise JobError(
            f"{missing[0]}{more} would not be whole", "every replica must hold the same keys, and save at the same step"
        )
    return sorted(found.values(), key=lambda entry: (entry.key, entry.offsets))


def _is_whole(pieces: Sequence[Entry]) -> bool:
    """Whether the pieces fill the tensor: their volumes add up, and no two overlap."""
    if not pieces or len({(piece.dtype, piece.shape) for piece in pieces}) > 1:
        return False
    if pieces[0].dtype is None:
        return True
    if sum(math.prod(piece.sizes) for piece in pieces) != math.prod(pieces[0].shape):
        return False
    low = np.array([piece.offsets for piece in pieces])
    high = low + np.array([piece.sizes for piece in pieces])
    if (high > np.array(pieces[0].shape)).any():
        return False
    overlap = (low[:, None] < high[None]).all(-1) & (low[None] < high[:, None]).all(-1)
    np.fill_diagonal(overlap, False)
    return len(pieces) == 1 or not overlap.any()
