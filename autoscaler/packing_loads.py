"""What lies on the nodes that were bought, by shape. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.packing import Packing
from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Bools, Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape, add_up


@dataclass(frozen=True, slots=True)
class Loads:
    """Copies of each shape on each bought slot, shapes in the order of placing. Bundles of a gang count as bound to its
    region; those that must lie on different nodes are a shape of their own."""

    shapes: list[Shape]
    copies: Ints  # slots x shapes
    most: Ints  # of each shape on one node
    held: Bools  # slots that a constraint holds

    @classmethod
    def of(cls, packing: Packing) -> Loads:
        lays, constraints = list(packing.on_bought()), {id(lay) for lay in packing.held}
        index: dict[tuple[Shape, bool], int] = {}
        most: list[int] = []
        columns = []
        for lay, _, _ in lays:
            alone = lay.gang is not None and lay.gang.strategy is Strategy.STRICT_SPREAD
            column = index.setdefault((lay.bound or lay.shape, alone), len(index))
            if column == len(most):
                most.append(0 if alone else ANY_NUMBER)
            most[column] += alone  # as many as there are gangs
            columns.append(column)
        copies: Ints = np.zeros((len(packing.bought), len(index)), np.int64)
        held = np.zeros(len(packing.bought), np.bool_)
        for (lay, slots, number), column in zip(lays, columns, strict=True):
            np.add.at(copies[:, column], slots, number)
            held[slots] |= id(lay) in constraints
        return cls([shape for shape, _ in index], copies, np.array(most, np.int64), held)


def options(shapes: list[Shape], load: Ints, stock: Stock) -> Ints:
    """Offers that hold so many copies of each shape at once, the cheapest first."""
    present = np.flatnonzero(load).tolist()
    amounts = add_up({key: amount * load[i] for key, amount in shapes[i].resources} for i in present)
    holds = stock.rooms.copies(Shape.of(amounts)) > 0
    for i in present:
        holds &= stock.copies(shapes[i]) >= load[i]
    return np.flatnonzero(holds)
