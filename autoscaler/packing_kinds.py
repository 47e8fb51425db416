"""Gangs of equal bundles, many at once: the usual case, and the one whose number grows. Pure.

Does what packing_gangs.py does one by one, with one look at the rooms for all gangs of a kind. Bundles that may share a
node follow first-fit, so that gang after gang takes the next ones; bundles that may not take the first nodes with room,
as long as all of them have some left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from tradewind.autoscaler.packing_rooms import Ints, Rooms, first_fit
from tradewind.autoscaler.ray_snapshot import Gang, Strategy
from tradewind.autoscaler.shape import Shape


@dataclass(frozen=True, slots=True)
class Kind:
    """What gangs have in common: runs of equal bundles."""

    strategy: Strategy
    runs: tuple[tuple[Shape, int], ...]

    @classmethod
    def of(cls, gang: Gang) -> Kind:
        runs: list[tuple[Shape, int]] = []
        for bundle in gang.bundles:
            if runs and (bundle is runs[-1][0] or bundle == runs[-1][0]):
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((bundle, 1))
        return cls(gang.strategy, tuple(runs))

    @property
    def largest_first(self) -> tuple[object, ...]:
        """The hard ones first, in an order that does not depend on who else waits."""
        amounts = [dict(shape.resources) for shape, _ in self.runs]
        accelerators = max(each.get("GPU", 0.0) + each.get("TPU", 0.0) for each in amounts)
        cpus = max(each.get("CPU", 0.0) for each in amounts)
        together = self.strategy is Strategy.STRICT_PACK
        return (not together, -accelerators, -cpus, -sum(count for _, count in self.runs), self.strategy, self.runs)


def by_kind(gangs: Sequence[Gang]) -> Iterator[tuple[Kind, list[Gang]]]:
    found: dict[Kind, list[Gang]] = {}
    for gang in gangs:
        found.setdefault(Kind.of(gang), []).append(gang)
    for kind in sorted(found, key=lambda kind: kind.largest_first):
        yield kind, sorted(found[kind], key=lambda gang: gang.gang_id)


@dataclass(slots=True)
class Rows:
    """Gangs placed side by side: the slots of one in each row."""

    size: int
    count: int = 0
    parts: list[Ints] = field(default_factory=list)  # each gangs x size

    def add(self, part: Ints) -> None:
        self.parts.append(part)
        self.count += len(part)

    @property
    def slots(self) -> Ints:
        return np.concatenate(self.parts) if self.parts else np.zeros((0, self.size), np.int64)


def sharing(copies: Ints, rows: Rows, most: int) -> None:
    """More gangs, up to `most`, whose bundles may share nodes, by first-fit. Takes from `copies`."""
    whole = min(most - rows.count, int(copies.sum()) // rows.size)
    if whole:
        taken = first_fit(copies, whole * rows.size)
        copies -= taken
        chosen = np.flatnonzero(taken)
        rows.add(np.repeat(chosen, taken[chosen]).reshape(whole, rows.size))


def apart(copies: Ints, rows: Rows, most: int) -> None:
    """More gangs, up to `most`, whose bundles lie on different nodes. Takes from `copies`. By plain lists: the steps
    are many and short."""
    open_slots = np.flatnonzero(copies)
    coming = zip(open_slots.tolist(), copies[open_slots].tolist(), strict=True)
    found, repeats, count = list[list[int]](), list[int](), rows.count
    row = list(islice(coming, rows.size))
    while count < most and len(row) == rows.size:
        times = min(most - count, *(left for _, left in row))
        found.append([slot for slot, _ in row])
        repeats.append(times)
        count += times
        row = [(slot, left - times) for slot, left in row if left > times]
        row += islice(coming, rows.size - len(row))
    if found:
        part = np.repeat(np.array(found, np.int64), repeats, axis=0)
        np.subtract.at(copies, part.ravel(), 1)
        rows.add(part)


def put_rows(rooms: Rooms, shape: Shape, slots: Ints) -> None:
    if slots.size:
        indices, copies = np.unique(slots, return_counts=True)
        rooms.put(indices, shape, copies)
