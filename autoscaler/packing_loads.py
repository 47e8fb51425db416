"""What lies on the nodes that were bought, by shape. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.packing import Packing
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import Shape, add_up


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


def options(shapes: list[Shape], load: Ints, stock: Stock) -> Ints:
    """Offers that hold so many copies of each shape at once, the cheapest first."""
    present = np.flatnonzero(load).tolist()
    amounts = add_up({key: amount * load[i] for key, amount in shapes[i].resources} for i in present)
    holds = stock.rooms.copies(Shape.of(amounts)) > 0
    for i in present:
        holds &= stock.copies(shapes[i]) >= load[i]
    return np.flatnonzero(holds)
