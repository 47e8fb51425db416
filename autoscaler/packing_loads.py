"""What lies on the nodes that were bought, by shape. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.packing import Packing
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Ints
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
    def of(cls, packing: Packing) -> Loads:
        lays = list(packing.on_bought())
        index: dict[tuple[Shape, bool], int] = {}
        columns = [index.setdefault((lay.bound or lay.shape, lay.num_apart > 0), len(index)) for lay in lays]
        most = np.array([0 if alone else ANY_NUMBER for _, alone in index], np.int64)
        copies: Ints = np.zeros((len(packing.bought), len(index)), np.int64)
        for lay, column in zip(lays, columns, strict=True):
            np.add.at(copies[:, column], lay.slots, lay.copies)
            most[column] += lay.num_apart
        return cls([shape for shape, _ in index], copies, most)


@dataclass(frozen=True, slots=True)
class Options:
    """Which offers could stand in for a node, for all loads at once."""

    kinds: dict[bytes, int]  # a load -> its row below
    loads: Ints  # distinct loads x shapes
    whole: Bools  # distinct loads x offers: holds all of it
    fits: Ints  # shapes x offers: copies on one node

    @classmethod
    def of(cls, loads: Loads, stock: Stock) -> Options:
        kinds: dict[bytes, int] = {}
        rows: list[int] = []
        for index, load in enumerate(loads.copies):
            key = load.tobytes()
            if key not in kinds:
                kinds[key] = len(rows)
                rows.append(index)
        distinct = loads.copies[rows]
        fits = np.array([stock.copies(shape) for shape in loads.shapes]).reshape(len(loads.shapes), len(stock.offers))
        return cls(kinds, distinct, _whole(loads.shapes, distinct, fits, stock), fits)

    def for_load(self, load: Ints) -> int:
        return self.kinds[load.tobytes()]


def _whole(shapes: list[Shape], loads: Ints, fits: Ints, stock: Stock) -> Bools:
    found = np.ones((len(loads), len(stock.offers)), np.bool_)
    for key in {key for shape in shapes for key, _ in shape.resources}:
        asked = loads @ np.array([dict(shape.resources).get(key, 0.0) for shape in shapes])
        found &= asked[:, None] <= stock.rooms.column(key)[: len(stock.offers)] + EPSILON
    for shape, copies in enumerate(fits):
        rows = np.flatnonzero(loads[:, shape])
        found[rows] &= copies >= loads[rows, shape, None]
    return found
