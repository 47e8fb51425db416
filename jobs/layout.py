"""How a model is spread over workers: `parallel="fsdp=2,tp=2"` -> `Layout`, pure arithmetic without torch.

    rank = replica * R + coordinate,  coordinate = (stage * fsdp + shard) * tp + slice,  R = pp * fsdp * tp

A replica is one data-parallel copy of the model, and the unit of elasticity: replicas come and go, the coordinates
inside of one stay what they are. Only `fsdp=all` is different: one copy, cut into as many shards as there are workers.

Every worker's part of a parameter is a box of the full tensor. So who has to send what to whom, when the layout
changes, follows from intersections of boxes (`overlap`), for any two layouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tradewind.errors import JobError

HINT = 'parallel is "ddp", "fsdp", "fsdp=all", or sizes such as "fsdp=2", "tp=2", "pp=2,tp=2,fsdp=2"'
AXES = ("pp", "fsdp", "tp")

Box = tuple[tuple[int, int], ...]  # of each dimension: from (included), to (not included)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """A worker's place inside of its replica."""

    stage: int = 0  # of the pipeline
    shard: int = 0  # of FSDP
    slice: int = 0  # of tensor parallelism


@dataclass(frozen=True, slots=True)
class Layout:
    """The sizes of a replica. `whole`: one copy over all workers, whose number of shards follows theirs."""

    pp: int = 1
    fsdp: int = 1
    tp: int = 1
    whole: bool = False

    def __post_init__(self) -> None:
        if min(self.pp, self.fsdp, self.tp) < 1:
            raise JobError(f"sizes of a layout must be 1 or more, found {self}", HINT)
        if self.whole and self.replica_size > 1:
            raise JobError("fsdp=all cannot be combined with other kinds", "use fsdp=N with tp and pp")

    @classmethod
    def parse(cls, text: str | Mapping[str, int | str] | Layout | None, min_workers: int) -> Layout:
        """What the user wrote; `fsdp` alone takes the least number of workers as the size of a replica."""
        if isinstance(text, Layout):
            found = text
        else:
            words = _words(text)
            if words == {"fsdp": "all"}:
                return cls(whole=True)
            sizes = _sizes(words, min_workers)
            found = cls(sizes.get("pp", 1), sizes.get("fsdp", 1), sizes.get("tp", 1))
        if min_workers % found.replica_size:
            size = found.replica_size
            hint = f"let the least number of workers be a multiple of {size}, or make the replica smaller"
            raise JobError(f"a replica of {found} has {size} workers, and at least {min_workers} are asked for", hint)
        return found

    def __str__(self) -> str:
        if self.whole:
            return "fsdp=all"
        return ",".join(f"{axis}={getattr(self, axis)}" for axis in AXES if getattr(self, axis) > 1) or "ddp"

    @property
    def is_ddp(self) -> bool:
        return self == Layout()

    @property
    def talks_in_forward(self) -> bool:
        """Whether workers with different data gather each other's shards in every forward pass."""
        return self.whole or self.fsdp > 1

    @property
    def replica_size(self) -> int:
        return self.pp * self.fsdp * self.tp

    def mesh_shape(self, world: int) -> tuple[int, int, int, int]:
        """(replicas, pp, fsdp, tp) of a group of `world` workers."""
        if self.whole:
            return (1, 1, world, 1)
        if world < 1 or world % self.replica_size:
            hint = f"the number of workers must be a multiple of {self.replica_size}"
            raise JobError(f"{world} workers are no whole number of replicas of {self}", hint)
        return (world // self.replica_size, self.pp, self.fsdp, self.tp)

    def coordinate(self, rank: int, world: int) -> Coordinate:
        _, pp, fsdp, tp = self.mesh_shape(world)
        return Coordinate(rank // (fsdp * tp) % pp, rank // tp % fsdp, rank % tp)

    def data_world(self, world: int) -> int:
        """How many workers have data of their own: replicas and shards. Slices and stages share theirs."""
        replicas, _, fsdp, _ = self.mesh_shape(world)
        return replicas * fsdp

    def data_rank(self, rank: int, world: int) -> int:
        """Which part of the data a worker has, of `data_world` parts."""
        _, pp, fsdp, tp = self.mesh_shape(world)
        return rank // (pp * fsdp * tp) * fsdp + rank // tp % fsdp


def chunk(length: int, parts: int, index: int) -> tuple[int, int]:
    """Piece `index` when torch.chunk cuts `length` into `parts`: pieces of equal size, the last ones short or empty."""
    size = -(-length // parts)
    return min(length, index * size), min(length, (index + 1) * size)


def box(shape: tuple[int, ...], tp_dim: int | None, at: Coordinate, tp: int, fsdp: int) -> Box:
    """The part of a parameter at a coordinate: a slice along `tp_dim`, and of that a shard of the first dimension."""
    spans = [(0, length) for length in shape]
    if tp_dim is not None:
        spans[tp_dim] = chunk(shape[tp_dim], tp, at.slice)
    first, last = spans[0]
    start, end = chunk(last - first, fsdp, at.shard)
    spans[0] = (first + start, first + end)
    return tuple(spans)


def overlap(one: Box, other: Box) -> Box | None:
    """What both boxes have in common, None if nothing."""
    found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return found if all(start < end for start, end in found) else None


def within(part: Box, outer: Box) -> tuple[slice, ...]:
    """Where a part of the full tensor lies in the local tensor that holds `outer`."""
    return tuple(slice(a - c, b - c) for (a, b), (c, _) in zip(part, outer, strict=True))


def cut(shape: tuple[int, ...], old: int, new: int) -> list[tuple[int, int, Box]]:
    """(old shard, new shard, what moves from one to the other) when FSDP's number of shards changes."""
    found = []
    for i in range(old):
        for j in range(new):
            mine, theirs = (box(shape, None, Coordinate(shard=k), 1, n) for k, n in ((i, old), (j, new)))
            common = overlap(mine, theirs)
            if common:
                found.append((i, j, common))
    return found


def _words(text: str | Mapping[str, int | str] | None) -> dict[str, str]:
    """{"fsdp": "2", "tp": "2"} of either way to write it; "" for a word without a size."""
    if text is None:
        return {}
    if isinstance(text, Mapping):
        found = [(str(key), str(value)) for key, value in text.items()]
    else:
        found = [_pair(word) for word in text.split(",") if word.strip()]
    words = dict(found)
    if len(words) < len(found):
        raise JobError(f"parallel={text!r} names a kind twice", HINT)
    if "ddp" in words:
        if len(words) > 1 or words["ddp"]:
            raise JobError(f"parallel={text!r}: ddp stands alone", HINT)
        return {}
    if "all" in words.values() and words != {"fsdp": "all"}:
        raise JobError(f"parallel={text!r}: only fsdp can be all, and cannot be combined then", HINT)
    return words


def _pair(word: str) -> tuple[str, str]:
    key, _, value = word.partition("=")
    return key.strip().lower(), value.strip().lower()


def _sizes(words: Mapping[str, str], min_workers: int) -> dict[str, int]:
    """A word without a size takes what the others leave of the least number of workers."""
    unknown = [key for key in words if key not in AXES]
    if unknown:
        raise JobError(f"parallel knows no {unknown[0]!r}", HINT)
    sizes = {key: _size(key, value) for key, value in words.items() if value}
    free = [key for key, value in words.items() if not value]
    if len(free) > 1:
        raise JobError(f"parallel: give a size to {' or '.join(free)}", HINT)
    return sizes | {key: max(1, min_workers // math.prod(sizes.values())) for key in free}


def _size(key: str, value: str) -> int:
    if not value.isdigit() or int(value) < 1:
        raise JobError(f"parallel: {key} must be a number, 1 or more, found {value!r}", HINT)
    return int(value)
