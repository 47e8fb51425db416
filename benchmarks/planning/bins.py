"""A case as bins: nodes that exist and offers, with what they take. Not a benchmark itself; bound.py uses it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from planning.cases import Case

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Rooms, Slot
from tradewind.autoscaler.packing_rules import pieces_of
from tradewind.autoscaler.packing_slots import slots_of
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape


@dataclass(frozen=True, slots=True)
class Bins:
    """Nodes that exist (price 0, each `many` times) and offers (`many` is inf), and what they take."""

    price: np.ndarray
    many: np.ndarray
    room: np.ndarray  # bins x resources
    fits: np.ndarray  # bins x shapes: copies of one shape alone
    asked: np.ndarray  # shapes x resources
    counts: np.ndarray
    num_offers: int  # they stand first


def bins_of(case: Case) -> Bins:
    counts, most = _pieces(case)
    stock = Stock.of(case.view)
    shapes = [shape for shape in counts if (stock.copies(shape) > 0).any()]
    keys = sorted({key for shape in shapes for key, _ in shape.resources})
    existing = Rooms(slots_of(case.view, demand=case.view.demand))
    rooms = (stock.rooms, existing)
    caps = np.array([min(counts[shape], most.get(shape, ANY_NUMBER)) for shape in shapes])
    fits = np.concatenate(
        [np.array([room.copies(shape) for shape in shapes]).reshape(len(shapes), len(room)).T for room in rooms]
    )
    room = np.concatenate([_amounts(each.slots, keys) for each in rooms])
    price = np.concatenate([stock.prices, np.zeros(len(existing))])
    asked = np.array([[dict(shape.resources).get(key, 0.0) for key in keys] for shape in shapes])
    chosen, many = _merged(price, room, np.minimum(fits, caps), len(stock.offers))
    scale = np.maximum(asked.max(axis=0, initial=1e-9), 1e-9)
    return Bins(
        price[chosen], many, room[chosen] / scale, np.minimum(fits, caps)[chosen], asked / scale,
        np.array([counts[shape] for shape in shapes]), int(np.isinf(many).sum()),
    )  # fmt: skip


def _amounts(slots: list[Slot], keys: list[str]) -> np.ndarray:
    return np.array([[slot.free.get(key, 0.0) for key in keys] for slot in slots]).reshape(len(slots), len(keys))


def _pieces(case: Case) -> tuple[Counter[Shape], dict[Shape, int]]:
    """(how many of each shape, of which at most so many may share a node)"""
    counts: Counter[Shape] = Counter(dict(case.snapshot.pending))
    apart: Counter[Shape] = Counter()
    for gang in case.snapshot.gangs:
        pieces = pieces_of(gang)
        counts.update(pieces)
        if gang.strategy is Strategy.STRICT_SPREAD:
            apart.update(set(pieces))
    only_apart = {shape for shape in apart if shape not in dict(case.snapshot.pending)}
    others = {p for gang in case.snapshot.gangs if gang.strategy is not Strategy.STRICT_SPREAD for p in pieces_of(gang)}
    return counts, {shape: apart[shape] for shape in only_apart - others}


def _merged(price: np.ndarray, room: np.ndarray, fits: np.ndarray, num_offers: int) -> tuple[list[int], np.ndarray]:
    """Offers that another one beats in everything are left out; existing nodes that are alike are counted."""
    chosen: list[int] = []
    for index in range(num_offers):  # by price
        if fits[index].any():
            better = (room[chosen] >= room[index]).all(axis=1) & (fits[chosen] >= fits[index]).all(axis=1)
            if not better.any():
                chosen.append(index)
    many = [np.inf] * len(chosen)
    alike: dict[bytes, int] = {}
    for index in range(num_offers, len(price)):
        key = room[index].tobytes() + fits[index].tobytes()
        if fits[index].any() and key in alike:
            many[alike[key]] += 1
        elif fits[index].any():
            alike[key] = len(chosen)
            chosen.append(index)
            many.append(1.0)
    return chosen, np.array(many)
