"""Rooms: many nodes as columns of numbers, so that one shape is compared with all of them at once. Pure arithmetic;
packing.py decides with it what lies where.

A column is made when a shape first asks for its resource or label. Nodes are only added at the end, and taken off there
again when a gang could not be placed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tradewind.autoscaler.shape import EPSILON, LabelRule, Selector, Shape
from tradewind.model import Labels, Offer, Resources

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

ANY_NUMBER = 1_000_000  # copies of a shape that asks for nothing


@dataclass(slots=True)
class Slot:
    """A node as room: there, coming, or about to be bought. The hosts of one slice share its name."""

    name: str  # launch id, or "ray:<id>" for a node that is not ours
    ray_node_id: str
    free: Resources
    total: Resources
    labels: Labels
    offer: Offer | None = None  # what was or will be bought; None: not ours


@dataclass(frozen=True, slots=True)
class Lay:
    """Copies of one shape that lie on slots: `slots[i]` has `copies[i]`, for `sources[i]` or for the only source."""

    shape: Shape
    sources: Sequence[str]
    slots: Ints
    copies: Ints
    num_apart: int = 0  # gangs whose bundles must lie on different nodes
    bound: Shape | None = None  # of gangs: the shape inside the region where they lie


class Rooms:
    """The free (or, with `whole`, the total) amounts of slots, and what they allow."""

    def __init__(self, slots: Iterable[Slot], whole: bool = False) -> None:
        self.slots: list[Slot] = list(slots)
        self._whole = whole
        self._columns: dict[str, Floats] = {}
        self._labels: dict[str, _Codes] = {}

    def __len__(self) -> int:
        return len(self.slots)

    def copies(self, shape: Shape, first: int = 0) -> Ints:
        """How many of these fit into each slot, now; from the slot `first` on."""
        n = len(self.slots)
        if not shape.resources:
            found = np.full(n - first, ANY_NUMBER, dtype=np.int64)
        else:
            (key, amount), *others = shape.resources
            least = self.column(key)[first:n] + EPSILON
            least /= amount
            for key, amount in others:
                part = self.column(key)[first:n] + EPSILON
                part /= amount
                np.minimum(least, part, out=least)
            found = np.maximum(least, 0.0, out=least).astype(np.int64)
        return found * self._allowed(shape.selectors, first) if shape.selectors else found

    def table(self, shapes: Sequence[Shape]) -> Ints:
        """`copies` of many shapes at once, one in each row: for few slots, where the calls cost more than the work."""
        n = len(self.slots)
        least = np.full((len(shapes), n), float(ANY_NUMBER))
        asked: dict[str, list[tuple[int, float]]] = {}
        tied: dict[tuple[Selector, ...], list[int]] = {}
        for row, shape in enumerate(shapes):
            tied.setdefault(shape.selectors, []).append(row)
            for key, amount in shape.resources:
                asked.setdefault(key, []).append((row, amount))
        for key, pairs in asked.items():
            rows, amounts = [row for row, _ in pairs], np.array([amount for _, amount in pairs])
            least[rows] = np.minimum(least[rows], (self.column(key)[:n] + EPSILON) / amounts[:, None])
        found: Ints = np.maximum(least, 0.0).astype(np.int64)
        for selectors, rows in tied.items():
            if selectors:
                found[rows] *= self._allowed(selectors, 0)
        return found

    def fits_at(self, index: int, shape: Shape) -> bool:
        """The same question for one slot; cheaper there than a look at all."""
        for key, amount in shape.resources:
            if self.column(key)[index] + EPSILON < amount:
                return False
        return shape.allows(self.slots[index].labels)

    def put(self, indices: Ints | int, shape: Shape, copies: Ints | int) -> None:
        for key, amount in shape.resources:
            self.column(key)[indices] -= amount * copies

    def put_all(self, first: int, shape: Shape, copies: Ints) -> None:
        """So many on each slot from `first` on."""
        for key, amount in shape.resources:
            part = self.column(key)[first : first + len(copies)]
            part -= amount * copies

    def append(self, slots: Sequence[Slot]) -> None:
        before = len(self.slots)
        self.slots.extend(slots)
        amounts = self._distinct(slots)
        for key, column in self._columns.items():
            if len(self.slots) > len(column):
                column = self._columns[key] = _grown(column, len(self.slots))
            found = [each.get(key, 0.0) for each in amounts]
            column[before : len(self.slots)] = found[0] if len(found) == 1 else found

    def truncate(self, length: int) -> None:
        del self.slots[length:]
        for codes in self._labels.values():
            codes.known = min(codes.known, length)

    def _distinct(self, slots: Sequence[Slot]) -> list[Resources]:
        """The amounts of each; one for all where they are those of one purchase, which share them."""
        amounts = [self._amounts(slot) for slot in slots]
        return amounts[:1] if amounts and all(each is amounts[0] for each in amounts) else amounts

    def _amounts(self, slot: Slot) -> Resources:
        return slot.total if self._whole else slot.free

    def column(self, key: str) -> Floats:
        """What is free of one resource; longer than there are slots."""
        column = self._columns.get(key)
        if column is None:
            amounts = (self._amounts(slot).get(key, 0.0) for slot in self.slots)
            column = self._columns[key] = np.fromiter(amounts, np.float64, len(self.slots))
        return column

    def label(self, key: str) -> tuple[Ints, dict[str | None, int]]:
        """(the number of its value for each slot, the numbers of values)"""
        codes = self._labels.setdefault(key, _Codes(key)).extended(self.slots)
        return codes.codes[: len(self.slots)], codes.values

    def _allowed(self, selectors: tuple[Selector, ...], first: int) -> Bools:
        found = np.zeros(len(self.slots) - first, np.bool_)
        for selector in selectors:
            holds = np.ones(len(found), np.bool_)
            for rule in selector:
                holds &= self._holds(rule, first)
            found |= holds
        return found

    def _holds(self, rule: LabelRule, first: int) -> Bools:
        """Every distinct value is judged once."""
        codes, values = self.label(rule.key)
        verdicts = np.array([(value in rule.values) is not rule.negated for value in values], np.bool_)
        return verdicts[codes[first:]]


@dataclass(slots=True)
class _Codes:
    """One label of all slots, as numbers of its distinct values. A missing label is a value, too."""

    key: str
    values: dict[str | None, int] = field(default_factory=dict)  # value -> its number
    codes: Ints = field(default_factory=lambda: np.zeros(0, np.int64))
    known: int = 0

    def extended(self, slots: Sequence[Slot]) -> _Codes:
        if len(slots) > len(self.codes):
            self.codes = _grown(self.codes, len(slots))
        if self.known < len(slots):
            new = [slot.labels.get(self.key) for slot in slots[self.known :]]
            for value in dict.fromkeys(new):
                self.values.setdefault(value, len(self.values))
            self.codes[self.known : len(slots)] = [self.values[value] for value in new]
            self.known = len(slots)
        return self


def first_fit(copies: Ints, count: int) -> Ints:
    """How many go where, filling from the front."""
    return counted_fit(copies, count)[0]


def counted_fit(copies: Ints, count: int) -> tuple[Ints, int]:
    """The same, and how many that are in all."""
    sums = copies.cumsum()
    room = int(sums[-1]) if len(sums) else 0
    if room <= count:
        return copies.copy(), room
    left: Ints = copies - sums
    left += count
    np.maximum(left, 0, out=left)
    np.minimum(left, copies, out=left)
    return left, count


def _grown(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    larger = np.zeros(max(length, 2 * len(array), 16), array.dtype)
    larger[: len(array)] = array
    return larger
