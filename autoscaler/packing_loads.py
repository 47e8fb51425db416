"""What lies on the nodes that were bought, by shape, and which offers could stand in for them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Floats, Ints, Lay
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
        copies: Ints = np.zeros((num_slots, len(index)), np.int64)
        for lay, column in zip(lays, columns, strict=True):
            copies[:, column] += np.bincount(lay.slots, lay.copies, num_slots).astype(np.int64)
            most[column] += lay.num_apart
        return cls([shape for shape, _ in index], copies, most)


@dataclass(frozen=True, slots=True)
class Options:
    """Which offers could stand in for a node, for all loads at once."""

    row_of: list[int]  # of each slot: its load among the distinct ones below
    served: Ints  # distinct loads x offers: requests of the load that one node takes; 0: none
    ranks: Ints  # distinct loads x offers: indices in the stock, the best first
    num_usable: list[int]  # of each row: how many of them serve anything

    @classmethod
    def of(cls, loads: Loads, stock: Stock) -> Options:
        kinds: dict[bytes, int] = {}
        row_of = [kinds.setdefault(load.tobytes(), len(kinds)) for load in loads.copies]
        distinct = np.frombuffer(b"".join(kinds), np.int64).reshape(len(kinds), len(loads.shapes))
        served, whole = _served(loads.shapes, distinct, stock)
        return cls(row_of, served, _ranks(stock.prices, served, whole), np.count_nonzero(served, axis=1).tolist())

    def best_of(self, row: int, but: int) -> list[int]:
        """Indices in the stock, without one."""
        found: list[int] = self.ranks[row, : self.num_usable[row]].tolist()
        return [index for index in found if index != but]


def _served(shapes: list[Shape], loads: Ints, stock: Stock) -> tuple[Ints, Bools]:
    """(how many requests of a load one node takes, whether that is all of it). Of a load that it cannot hold as a
    whole, a node takes what comes first in it."""
    num_offers = len(stock.offers)
    fits = np.array([stock.copies(shape) for shape in shapes], np.int64).reshape(len(shapes), num_offers)
    number = loads.sum(axis=1)
    first = (loads > 0).argmax(axis=1) if len(shapes) else np.zeros(len(loads), np.int64)
    part = np.minimum(fits[first], number[:, None]) if len(shapes) else np.zeros((len(loads), num_offers), np.int64)
    whole = _whole(shapes, loads, fits, stock)
    return np.where(whole, number[:, None], part), whole


def _whole(shapes: list[Shape], loads: Ints, fits: Ints, stock: Stock) -> Bools:
    found = np.ones((len(loads), len(stock.offers)), np.bool_)
    for key in {key for shape in shapes for key, _ in shape.resources}:
        asked = loads @ np.array([dict(shape.resources).get(key, 0.0) for shape in shapes])
        found &= asked[:, None] <= stock.rooms.column(key)[: len(stock.offers)] + EPSILON
    for shape, copies in enumerate(fits):
        rows = np.flatnonzero(loads[:, shape])
        found[rows] &= copies >= loads[rows, shape, None]
    return found


def _ranks(prices: Floats, served: Ints, whole: Bools) -> Ints:
    """First those that hold the whole load, by price; then those that serve a part of it; then the others."""
    each = np.where(served > 0, prices / np.maximum(served, 1), np.inf)
    beyond = 1.0 + 2.0 * np.max(each, initial=0.0, where=np.isfinite(each))
    ranks: Ints = np.argsort(np.where(whole, each, each + beyond), axis=1, kind="stable")
    return ranks
