"""Second thoughts on what was bought: each node in the smallest size and cheapest market that holds its load. Pure."""

from __future__ import annotations

import numpy as np

from tradewind.autoscaler.packing import Packing
from tradewind.autoscaler.packing_rooms import Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import Shape, add_up


def tightened(packing: Packing, stock: Stock) -> list[int]:
    """Offers of the stock, one for each bought node with a load, in the same order. Nodes that a constraint holds stay as
    they are; slices are left out, since first-fit buys them again."""
    bought, held = packing.bought, {id(lay) for lay in packing.held}
    shapes: dict[Shape, int] = {}
    lays = list(packing.on_bought())
    for lay, _, _ in lays:
        shapes.setdefault(lay.bound or lay.shape, len(shapes))
    load: Ints = np.zeros((len(bought), len(shapes)), np.int64)
    fixed = np.zeros(len(bought), np.bool_)
    for lay, slots, copies in lays:
        np.add.at(load, (slots, shapes[lay.bound or lay.shape]), copies)
        fixed[slots] |= id(lay) in held
    known: dict[bytes, int] = {}
    found = []
    for index in np.flatnonzero(load.any(axis=1)).tolist():
        own, alike = stock.index_of(bought[index]), load[index].tobytes()
        if own is not None and not fixed[index]:
            if alike not in known:
                known[alike] = _cheapest(list(shapes), load[index], stock)
            own = known[alike]
        if own is not None:
            found.append(own)
    return found


def options(shapes: list[Shape], load: Ints, stock: Stock) -> Ints:
    """Offers that hold so many copies of each shape at once, the cheapest first."""
    present = np.flatnonzero(load).tolist()
    amounts = add_up({key: amount * load[i] for key, amount in shapes[i].resources} for i in present)
    holds = stock.rooms.copies(Shape.of(amounts)) > 0
    for i in present:
        holds &= stock.copies(shapes[i]) >= load[i]
    return np.flatnonzero(holds)


def _cheapest(shapes: list[Shape], load: Ints, stock: Stock) -> int:
    return int(options(shapes, load, stock)[0])
