"""What lies on the nodes that were bought, by shape, and which offers could stand in for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Floats, Ints, Lay, Slot
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import EPSILON, Shape


@dataclass(frozen=True, slots=True)
class Loads:
    """Copies of each shape on each bought slot, shapes in the order of placing. Bundles of a gang count as bound to its
    region; those that must lie on different nodes are a shape of their own."""

    shapes: list[Shape]
    copies: Ints  # slots x shapes
    most: Ints  # of each shape on one node

    @classmethod
    def of(cls, lays: Sequence[Lay], num_slots: int) -> Loads:
        index: dict[tuple[Shape, bool], int] = {}
        columns = [index.setdefault((lay.bound or lay.shape, lay.num_apart > 0), len(index)) for lay in lays]
        most = np.array([0 if alone else ANY_NUMBER for _, alone in index], np.int64)
        for lay, column in zip(lays, columns, strict=True):
            most[column] += lay.num_apart
        slot, copies = _flat(lays)
        cell = slot * len(index) + np.repeat(np.array(columns, np.int64), [len(lay.slots) for lay in lays])
        found: Ints = np.bincount(cell, copies, num_slots * len(index)).astype(np.int64)
        return cls([shape for shape, _ in index], found.reshape(num_slots, len(index)), most)

    def at(self, slots: Sequence[int]) -> Loads:
        return Loads(self.shapes, self.copies[slots], self.most)


def _flat(lays: Sequence[Lay]) -> tuple[Ints, Ints]:
    """(slots, copies) of all lays, one after the other."""
    if not lays:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return np.concatenate([lay.slots for lay in lays]), np.concatenate([lay.copies for lay in lays])


Use = list[tuple[str, str, int]]  # (shape in words, who asks, how many)


@dataclass(frozen=True, slots=True)
class Uses:
    """Who lies on each bought node. Equal keys are equal uses: words for one serve for all nodes that have it."""

    keys: list[tuple[int, bytes]]  # of each node on which something lies: its (first) slot, its use
    names: list[tuple[str, str]]  # of columns: shape in words, who asks

    @classmethod
    def of(cls, lays: Sequence[Lay], bought: Sequence[Slot]) -> Uses:
        columns: dict[tuple[str, str], int] = {}
        parts: list[int] = []
        for lay in lays:
            shape = str(lay.shape)
            mine = [columns.setdefault((shape, source), len(columns)) for source in lay.sources]
            parts += mine * (len(lay.slots) // len(mine))
        (slot, copies), column = _flat(lays), np.array(parts, np.int64)
        pairs, where = np.unique(_owners(bought)[slot] * max(1, len(columns)) + column, return_inverse=True)
        owner, column = np.divmod(pairs, max(1, len(columns)))
        counts = np.bincount(where, copies, len(pairs)).astype(np.int64)
        first = np.flatnonzero(np.diff(owner, prepend=-1))
        table = np.stack([column, counts], axis=1).tobytes()
        ends = (16 * np.append(first, len(pairs))).tolist()  # in bytes: two numbers of eight in each row
        keys = [(slot, table[a:b]) for slot, a, b in zip(owner[first].tolist(), ends, ends[1:], strict=False)]
        return cls(keys, list(columns))

    def read(self, key: bytes) -> Use:
        rows = np.frombuffer(key, np.int64).reshape(-1, 2).tolist()
        return [(*self.names[column], count) for column, count in rows]


def _owners(bought: Sequence[Slot]) -> Ints:
    """Of each slot, the first one of the same name: hosts of a slice are one purchase."""
    first: dict[str, int] = {}
    return np.array([first.setdefault(slot.name, index) for index, slot in enumerate(bought)], np.int64)


@dataclass(frozen=True, slots=True)
class Options:
    """Which offers could stand in for a node, for all loads at once."""

    row_of: list[int]  # of each slot: its load among the distinct ones below
    served: Ints  # distinct loads x offers: requests of the load that one node takes; 0: none
    ranks: list[Ints]  # of each distinct load: indices in the stock of those that serve anything, the best first

    @classmethod
    def of(cls, loads: Loads, stock: Stock) -> Options:
        kinds: dict[bytes, int] = {}
        row_of = [kinds.setdefault(load.tobytes(), len(kinds)) for load in loads.copies]
        distinct = np.frombuffer(b"".join(kinds), np.int64).reshape(len(kinds), len(loads.shapes))
        part, whole = _served(loads.shapes, distinct, stock)
        served = np.where(whole, distinct.sum(axis=1)[:, None], part)
        return cls(row_of, served, _ranks(stock.prices, part, whole & (part > 0)))

    def best_of(self, row: int, but: int) -> Ints:
        """Indices in the stock, without one."""
        found = self.ranks[row]
        others: Ints = found[found != but]
        return others


def _served(shapes: list[Shape], loads: Ints, stock: Stock) -> tuple[Ints, Bools]:
    """(how many requests of what comes first in a load one node takes, whether it holds the load as a whole)"""
    num_offers = len(stock.offers)
    fits = np.array([stock.copies(shape) for shape in shapes], np.int64).reshape(len(shapes), num_offers)
    number = loads.sum(axis=1)
    first = (loads > 0).argmax(axis=1) if len(shapes) else np.zeros(len(loads), np.int64)
    part = np.minimum(fits[first], number[:, None]) if len(shapes) else np.zeros((len(loads), num_offers), np.int64)
    return part, _whole(shapes, loads, fits, stock)


def _whole(shapes: list[Shape], loads: Ints, fits: Ints, stock: Stock) -> Bools:
    """By sums over what lies there, not by products of matrices: those would wake other threads for little work."""
    found = np.ones((len(loads), len(stock.offers)), np.bool_)
    load, shape = np.nonzero(loads)  # load after load
    if not len(load):
        return found
    rows, starts = np.unique(load, return_index=True)
    keys = list(dict.fromkeys(key for each in shapes for key, _ in each.resources))
    asked = np.array([[dict(each.resources).get(key, 0.0) for key in keys] for each in shapes])
    totals = np.add.reduceat(asked[shape] * loads[load, shape][:, None], starts, axis=0)
    for key, total in zip(keys, totals.T, strict=True):
        found[rows] &= total[:, None] <= stock.rooms.column(key)[: len(stock.offers)] + EPSILON
    found[rows] &= np.logical_and.reduceat(fits[shape] > 0, starts, axis=0)  # labels: what is too large is known
    return found


def _ranks(prices: Floats, part: Ints, whole: Bools) -> list[Ints]:
    """First those that hold the whole load, by price, which is how the stock stands; then those that serve a part of
    it, by the price of each request served: sorted once for all loads that begin alike."""
    by_part: dict[bytes, Ints] = {}
    found = []
    for mine, is_whole in zip(part, whole, strict=True):
        key = mine.tobytes()
        if key not in by_part:
            some = mine.nonzero()[0]
            by_part[key] = some[np.argsort(prices[some] / mine[some], kind="stable")]
        order = by_part[key]
        found.append(np.concatenate((is_whole.nonzero()[0], order[~is_whole[order]])))
    return found
