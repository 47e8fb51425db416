"""Give every worker its part of the state after the group has changed: from whoever holds it, on any layout.

    attach (no state) -> refill: each holder cuts what lies in a receiver's box out of its own part, and sends it

A joiner with the coordinate of a lost worker gets one whole part. With `fsdp=all` and another number of workers,
parts are cut differently, and each new part is made of pieces of old ones. Both are intersections of boxes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from tradewind.jobs import named_state
from tradewind.jobs.build_parallel import Part
from tradewind.jobs.layout import Box, Coordinate, Layout, overlap, within
from tradewind.jobs.peer_memory import Holding, Snapshot, receive, send
from tradewind.jobs.sharded import ShardedModel

CUTS = "//cuts"  # beside the pieces: type and place of each

Place = tuple[Coordinate, int]  # and the number of shards


@dataclass(frozen=True, slots=True)
class Move:
    """Who gives what to whom, the same on every member of the new group."""

    layout: Layout
    holders: Sequence[int]  # rank in the new group, by the coordinate of the part that it holds
    receivers: Sequence[int]  # ranks that need their part

    def old(self, coordinate: int) -> Place:
        """Where a part was, and how many shards there were."""
        count = len(self.holders)
        return self.layout.coordinate(coordinate, count), self.layout.mesh_shape(count)[2]

    def new(self, rank: int, world: int) -> Place:
        return self.layout.coordinate(rank, world), self.layout.mesh_shape(world)[2]

    def sources(self, stage: int) -> list[int]:
        """Coordinates of the parts of one stage."""
        return [each for each in range(len(self.holders)) if self.old(each)[0].stage == stage]


def refill(kept: Mapping[str, Any], move: Move, held: Mapping[int, Mapping[str, Any]]) -> None:
    """`held`: the parts (as `named_state.local` gives them) that this worker was chosen to give, by coordinate.

    All members call it, on the new group, with models attached. Raises what torch raises when a peer is lost.
    """
    rank, world = dist.get_rank(), dist.get_world_size()
    parts = Parts(kept)
    works: list[tuple[Any, Any]] = []
    own: dict[int, Snapshot] = {}
    for receiver in move.receivers:
        at, shards = move.new(receiver, world)
        for source in move.sources(at.stage):
            if move.holders[source] == rank:
                piece = _cut(held[source], parts, move.old(source), (at, shards), move.layout.tp)
                if receiver == rank:
                    own[source] = piece
                else:
                    works += send(piece, receiver)
    if rank in move.receivers:
        named_state.put(kept, _join(parts, move, own))
    for work, _ in works:
        work.wait()


def _cut(state: Mapping[str, Any], parts: Parts, old: Place, new: Place, tp: int) -> Snapshot:
    """The pieces of a part that a receiver needs, with their place in the full tensor. What is not cut goes along."""
    pieces: dict[str, Any] = {}
    cuts: dict[str, tuple[torch.dtype, Box | None]] = {}
    for name, value in state.items():
        part = parts.find(name)
        mine = part.box(old[0], tp, old[1]) if part else ()
        if part is None or not _is_cut(value, mine):
            pieces[name] = value
            continue
        common = overlap(mine, part.box(new[0], tp, new[1]))
        cuts[name] = (value.dtype, common)
        if common:
            pieces[name] = value[within(common, mine)]
    found = Snapshot()
    found.take(Holding(0, 0, 0), {**pieces, CUTS: cuts})
    return found


def _join(parts: Parts, move: Move, own: Mapping[int, Snapshot]) -> dict[str, Any]:
    """This worker's part, out of pieces of the parts before."""
    rank = dist.get_rank()
    at, shards = move.new(rank, dist.get_world_size())
    state: dict[str, Any] = {}
    for source in move.sources(at.stage):
        piece = own.get(source) or receive(Snapshot(), move.holders[source])
        given = piece.state()
        for name, (dtype, box) in given.pop(CUTS).items():
            part = parts.find(name)
            assert part is not None, name
            mine = part.box(at, move.layout.tp, shards)
            whole = state.setdefault(name, torch.empty([end - start for start, end in mine], dtype=dtype))
            if box:
                whole[within(box, mine)] = given.pop(name)
        state = {**given, **state}
    return state


def _is_cut(value: Any, box: Box) -> bool:
    """Whether it is sharded as its parameter is: step counters, buffers and settings are not."""
    return isinstance(value, torch.Tensor) and bool(box) and tuple(value.shape) == tuple(b - a for a, b in box)


class Parts:
    """How the parameters are cut to which the items of `kept` belong."""

    def __init__(self, kept: Mapping[str, Any]) -> None:
        models = {key: item for key, item in kept.items() if isinstance(item, ShardedModel)}
        self._by_key: dict[str, Mapping[str, Part]] = {key: item.parts for key, item in models.items()}
        for key, item in kept.items():
            for model in models.values():
                if model.has_adopted(item):
                    self._by_key[key] = model.parts

    def find(self, entry: str) -> Part | None:
        """Of "0:Net/fc1.weight" and of "1:Adam/fc1.weight/exp_avg"."""
        key, _, rest = entry.partition("/")
        named = self._by_key.get(key, {})
        return named.get(rest) or named.get(rest.rpartition("/")[0])
