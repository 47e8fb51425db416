"""Which machines for many requests: a linear program over patterns, where the integer one would take too long. Pure.

A pattern is one node of an offer with so many copies of each shape on it. First-fit buys for one shape at a time, so it
does not see that two kinds of requests fill a large machine together. The linear program does:

    min  sum price_p x_p    s.t.  sum n_pj x_p + sum swaps >= count_j,  x >= 0

It starts with the patterns that first-fit made. A swap turns the place of a request into one for a smaller request, for
nothing: that says in one column what many patterns would say, and halves the rounds. The dual prices tell what a copy
of each shape is worth; nodes that hold more than they cost are added, until there are none.

Of many nodes, the parts that x has weigh little: they are carried on from pattern to pattern. First-fit judges the
answer (packing_basket.py), puts on these nodes what it would put there, and buys what lacks.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import linprog

from tradewind.autoscaler.packing_loads import Loads
from tradewind.autoscaler.packing_rooms import Bools, Floats, Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import EPSILON

_FROM_NODES = 50  # bought at once, for a search to be worth its time; more, where a cell is a small part of the fleet
_MOST_SHAPES = 400  # the program grows with their square
_ROUNDS = 8  # of column generation; it mostly ends by itself before
_GAIN = 0.004  # of the price: where less can be gained, first-fit's own basket will do
_MOST_OFFERS = 1_000  # the cheapest ones, of those that differ: all are compared with all
_BEST_OFFERS = 8  # for each shape, which are filled with it first
_NEAR = 0.0005  # so near to the least price there is nothing left to find


@dataclass(slots=True)
class Mix:
    """Shapes x offers that none beats, and the patterns so far."""

    counts: Ints
    asked: Floats  # shapes x resources
    room: Floats  # offers x resources
    fits: Ints  # offers x shapes: copies on one node
    prices: Floats  # of offers
    places: Ints  # of offers, in the stock
    swaps: Floats  # columns of the program: one place of a shape less, one of a smaller one more
    owner: Ints  # the offer of each pattern
    copies: Floats  # patterns x shapes
    known: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, loads: Loads, bought: Ints, stock: Stock) -> Mix:
        keys = sorted({key for shape in loads.shapes for key, _ in shape.resources})
        asked = np.array([[dict(shape.resources).get(key, 0.0) for key in keys] for shape in loads.shapes])
        room = np.array([stock.rooms.column(key)[: len(stock.offers)] for key in keys]).T
        copies = np.array([stock.copies(shape) for shape in loads.shapes]).T
        counts = loads.copies.sum(axis=0)
        allowed = copies[:, [bool(shape.selectors) for shape in loads.shapes]] > 0
        able = _first_of_each(room, allowed, np.flatnonzero(copies.any(axis=1)))
        places = np.union1d(able[unbeaten(room[able], allowed[able])], bought)
        fits = np.minimum(copies[places], np.minimum(loads.most, counts))
        nothing = np.zeros(0, np.int64), np.zeros((0, len(counts)))
        prices = np.maximum(stock.prices[places], 1.0)  # what costs nothing is filled by its price, too
        mix = cls(counts, asked, room[places], fits, prices, places, swaps_of(asked, fits > 0), *nothing)
        mix.add(np.searchsorted(places, bought), loads.copies.astype(np.float64))
        return mix

    def add(self, owner: Ints, copies: Floats) -> bool:
        """Whether any of these patterns is new."""
        rows = np.column_stack([owner, copies]).astype(np.int32)
        keys = {row.tobytes(): index for index, row in enumerate(rows)}
        fresh = [index for key, index in keys.items() if key not in self.known]
        self.known.update(keys)
        self.owner = np.concatenate([self.owner, owner[fresh]])
        self.copies = np.concatenate([self.copies, copies[fresh]])
        return bool(fresh)


def _first_of_each(room: Floats, allowed: Bools, places: Ints) -> Ints:
    """Of offers that hold the same, as in many zones, the cheapest; and not more than can be compared in a moment."""
    alike = np.column_stack([room[places], allowed[places]])
    found: Ints = np.sort(np.unique(alike, axis=0, return_index=True)[1])[:_MOST_OFFERS]
    return places[found]


def unbeaten(room: Floats, allowed: Bools) -> Bools:
    """Of offers by price: those of which no cheaper one has as much room, and takes all that is tied to labels."""
    larger = np.ones((len(room), len(room)), np.bool_)
    ties = {column.tobytes(): column for column in allowed.T}
    for column in (*room.T, *ties.values()):
        larger &= column[:, None] >= column
    beaten: Bools = np.triu(larger, 1).max(axis=0, initial=False)
    return ~beaten


def swaps_of(asked: Floats, allowed: Bools) -> Floats:
    """From each shape to the next smaller ones that may lie wherever it may."""
    smaller = (asked[:, None] >= asked).all(axis=2) & (allowed[:, :, None] <= allowed[:, None]).all(axis=0)
    smaller &= ~(smaller.T & np.tri(len(asked), dtype=np.bool_))  # of equals one way, and none to itself
    steps = smaller.astype(np.int32)  # whole numbers: a product of others would wake threads
    source, target = np.nonzero(smaller & (steps @ steps == 0))  # what two swaps do needs no third
    found = np.zeros((len(source), len(asked)))
    found[np.arange(len(source)), source] = -1.0
    found[np.arange(len(source)), target] = 1.0
    return found


@dataclass(frozen=True, slots=True)
class Fleet:
    """How many nodes there are: in the cell for which is bought, and beside it."""

    here: int = 0
    beside: int = 0


EVERYTHING_HERE = Fleet()


def is_worth_it(num_nodes: int, num_shapes: int, fleet: Fleet) -> bool:
    """All cells of a fleet share one controller and its time: what a small part of it may search for is more nodes."""
    here = fleet.here + num_nodes
    return num_shapes <= _MOST_SHAPES and num_nodes * here >= _FROM_NODES * (here + fleet.beside)


def advise_many(loads: Loads, bought: Ints, stock: Stock) -> list[int]:
    """Offers of the stock to buy instead of `bought`, in the order in which first-fit should meet them. Nothing where
    there is next to nothing to gain."""
    mix, most = Mix.of(loads, bought, stock), float(stock.prices[bought].sum()) * (1.0 - _GAIN)
    number = np.zeros(0)
    for _ in range(_ROUNDS):
        solved = _solved(mix)
        if solved is None:
            return []
        worth, number = solved
        better = filled(mix, worth)
        if better.least_price >= most:
            return []
        if not mix.add(better.owner, better.copies) or better.least_price >= (1.0 - _NEAR) * (worth * mix.counts).sum():
            break
    return _in_order(mix, number)


def _solved(mix: Mix) -> tuple[Floats, Floats] | None:
    """(what one more copy of each shape costs, how many of each pattern). What first-fit bought is an answer, so there
    is one; None where the solver gives up on its numbers: then that stands."""
    result = linprog(
        np.append(mix.prices[mix.owner], np.zeros(len(mix.swaps))),
        A_ub=-np.concatenate([mix.copies, mix.swaps]).T,
        b_ub=-mix.counts,
        method="highs-ds",
        options={"presolve": False},  # it takes longer than it spares
    )
    return (np.maximum(-result.ineqlin.marginals, 0.0), result.x[: len(mix.owner)]) if result.status == 0 else None


def _in_order(mix: Mix, number: Floats) -> list[int]:
    """Nodes by what lies on them, as first-fit will place it: the first shapes first, the fullest with them first."""
    used = np.flatnonzero(number > EPSILON)
    order = used[np.lexsort((mix.owner[used], *-mix.copies[used].T[::-1]))]
    owner, whole = mix.owner[order], np.zeros(len(order), np.int64)
    for offer in np.unique(owner):
        mine = owner == offer
        whole[mine] = _whole(number[order][mine])
    return [int(place) for place in np.repeat(mix.places[owner], whole)]


def _whole(number: Floats) -> Ints:
    """Parts are carried on to the next pattern, which is the most like it: the sum is as large as it can be."""
    found: Ints = np.diff(np.floor(np.cumsum(number) + EPSILON), prepend=0.0).astype(np.int64)
    return found


@dataclass(frozen=True, slots=True)
class Filled:
    """Patterns that hold more than they cost, and next to a price below which nothing serves all."""

    owner: Ints
    copies: Floats
    least_price: float


def filled(mix: Mix, worth: Floats) -> Filled:
    """Offers filled by worth per resource: each once, and for each shape, of which as many as fit go first, those that
    hold the most of it for their price."""
    order = _by_density(mix, worth)
    owner, first = _starts(mix, order)
    copies = _fill(mix, owner, first, order)
    value = (copies * worth).sum(axis=1) / mix.prices[owner]
    best = np.union1d(_best(first, value), _best(owner, value))
    best = best[value[best] > 1.0 + EPSILON]
    return Filled(owner[best], copies[best], _least_price(mix, worth, owner, value))


def _starts(mix: Mix, order: Ints) -> tuple[Ints, Ints]:
    """(offers, the shapes that go first)"""
    fits = mix.fits[:, order]
    chosen, dearness = fits > 0, -fits / mix.prices[:, None]
    if len(fits) > _BEST_OFFERS:
        chosen &= dearness <= np.partition(dearness, _BEST_OFFERS - 1, axis=0)[_BEST_OFFERS - 1]
    if len(order):
        chosen[np.arange(len(fits)), fits.astype(np.bool_).argmax(axis=1)] |= fits.any(axis=1)
    owner, place = np.nonzero(chosen)
    return owner, order[place]


def _least_price(mix: Mix, worth: Floats, owner: Ints, value: Floats) -> float:
    """Worths under which no node holds more than it costs sum up to a price below which nothing serves all. So each is
    lowered by the most that any offer it fits on holds too much. The fullest nodes are not sure to be found, so this is
    next to a bound, not one."""
    excess = np.ones(len(mix.prices))
    np.maximum.at(excess, owner, value)
    lowered = worth / np.where(mix.fits > 0, excess[:, None], 1.0).max(axis=0)
    return float((lowered * mix.counts).sum())


def _by_density(mix: Mix, worth: Floats) -> Ints:
    unit = np.where(mix.room > 0, mix.prices[:, None] / np.maximum(mix.room, EPSILON), np.inf).min(axis=0)
    density = worth / np.maximum((mix.asked * unit).sum(axis=1), EPSILON)
    order: Ints = np.argsort(-density, kind="stable")[: np.count_nonzero(worth > 0)]
    return order


def _best(group: Ints, value: Floats) -> Ints:
    """The place of the largest value of each group."""
    order = np.lexsort((-value, group))
    found: Ints = order[np.unique(group[order], return_index=True)[1]]
    return found


def _fill(mix: Mix, owner: Ints, first: Ints, order: Ints) -> Floats:
    rows = np.arange(len(owner))
    copies = np.zeros((len(owner), len(mix.counts)))
    copies[rows, first] = mix.fits[owner, first]
    room = mix.room[owner] - mix.asked[first] * copies[rows, first][:, None]
    for shape in order.tolist():
        keys = np.flatnonzero(mix.asked[shape])
        fit = ((room[:, keys] + EPSILON) / mix.asked[shape, keys]).min(axis=1)
        taken = np.minimum(np.floor(np.maximum(fit, 0.0)), mix.fits[owner, shape] - copies[:, shape])
        copies[:, shape] += taken
        room[:, keys] -= taken[:, None] * mix.asked[shape, keys]
    return copies
