"""An idea of what to buy: an integer program over patterns. Pure.

A pattern is one node of an offer with so many copies of each shape on it. The program (HiGHS) covers all that was
bought for at the least price:

    min  sum price_p x_p    s.t.  sum n_pj x_p >= count_j,  x whole

It starts with the patterns that first-fit made, and gets better ones by column generation: the dual prices of the
linear program say what a copy of each shape is worth, and nodes that hold more than they cost are added. First-fit
judges the answer (packing_basket.py), so that a poor one costs a moment and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix

from tradewind.autoscaler.packing import Packing
from tradewind.autoscaler.packing_loads import Loads
from tradewind.autoscaler.packing_mix import EVERYTHING_HERE, Fleet, advise_many, is_worth_it
from tradewind.autoscaler.packing_rooms import Floats, Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import EPSILON

# Where rounding to whole nodes matters: few nodes. And where the program is small: few shapes x offers.
_MOST_NODES = 100
_MOST_PAIRS = 8_000
_MOST_BESIDE_OTHERS = 4_000  # nodes x shapes, for a cell that shares the controller's time with others
_MOST_COPIES = 256  # of one shape on one node, for the bound by remainders
_ROUNDS = 4  # of column generation
_NEAR = 0.1  # patterns this close to being worth their price enter the integer program
_GAP = 0.005  # of the price: where less can be gained, the search is over, or not begun
_BRANCHES = 50  # of the search, not seconds: the same answer on a slow machine as on a fast one
_TIME_LIMIT_S = 1.0  # far above what programs of this size take


@dataclass(slots=True)
class _Program:
    """Shapes x offers, and the patterns so far."""

    counts: Ints
    asked: Floats  # shapes x resources
    room: Floats  # offers x resources
    fits: Ints  # offers x shapes: copies on one node
    prices: Floats  # of offers
    owner: Ints  # the offer of each pattern
    copies: Floats  # patterns x shapes

    def add(self, owner: Ints, copies: Floats) -> None:
        self.owner = np.concatenate([self.owner, owner])
        self.copies = np.concatenate([self.copies, copies])

    def drop_twins(self) -> None:
        """Of patterns that hold the same, the cheapest stays: first-fit fills most nodes alike, and some offers differ
        in nothing but their price. No others are in a cheapest answer."""
        cheapest: dict[bytes, int] = {}
        for index in np.argsort(self.prices[self.owner], kind="stable").tolist():
            cheapest.setdefault(self.copies[index].tobytes(), index)
        kept = sorted(cheapest.values())
        self.owner, self.copies = self.owner[kept], self.copies[kept]


def advise(packing: Packing, stock: Stock, fleet: Fleet = EVERYTHING_HERE) -> list[int]:
    """Offers of the stock to buy instead, in the order in which first-fit should meet them. Nothing where a search
    would take longer than it is worth, or where a constraint or a slice is among what was bought."""
    num_nodes, lays = len(packing.bought), list(packing.on_bought())
    num_shapes = len({(lay.bound or lay.shape, lay.num_apart > 0) for lay in lays})
    is_large = num_nodes > _MOST_NODES or num_shapes * len(stock.offers) > _MOST_PAIRS
    is_large |= fleet.beside > 0 and num_nodes * num_shapes > _MOST_BESIDE_OTHERS
    if packing.held or (is_large and not is_worth_it(num_nodes, num_shapes, fleet)):
        return []
    owner, loads = [stock.index_of(slot) for slot in packing.bought], Loads.of(lays, num_nodes)
    if None in owner or not all(shape.resources for shape in loads.shapes):
        return []
    bought = np.array(owner, np.int64)
    if _is_cheapest(loads, bought, stock):
        return []
    if is_large:
        return advise_many(loads, bought, stock)
    program = _program(loads, bought, stock)
    worth = _worth(program)
    for _ in range(_ROUNDS):
        if not _add_patterns(program, worth):
            break
        worth = _worth(program)
    if float((worth * program.counts).sum()) >= (1.0 - _GAP) * float(stock.prices[bought].sum()):
        return []
    chosen = _whole(program, worth)
    opener = (program.copies > 0).argmax(axis=1)  # the shape that comes first in first-fit
    order = np.lexsort((program.owner, opener))
    return [int(index) for index in np.repeat(program.owner[order], chosen[order])]


def _is_cheapest(loads: Loads, owner: Ints, stock: Stock) -> bool:
    """Whether nothing can be cheaper than what was bought, for a single shape: each copy costs at least what the
    cheapest offer takes for one, and so many nodes as there must be cost at least as much as the cheapest."""
    if len(loads.shapes) != 1:
        return False
    count, copies = int(loads.copies.sum()), stock.copies(loads.shapes[0])
    fitting = copies > 0
    prices, copies = stock.prices[fitting], copies[fitting]
    if not len(prices):
        return False
    least = max(_least_price(count, copies, prices), -(-count // int(copies.max())) * float(prices.min()))
    return float(stock.prices[owner].sum()) <= least * (1.0 + 1e-9)


def _least_price(count: int, copies: Ints, prices: Floats) -> float:
    """Below which no nodes hold so many copies of one shape. Let r be the least price per copy, of a node that holds f.
    A set of nodes with c copies costs r c and what each is dearer than that; beyond the count, copies are wasted at r
    each. Nodes of f copies cost nothing extra, so what counts is c modulo f: a shortest way over f remainders, by a
    node (its copies further) or by one wasted copy (one back). That the number of nodes of f copies may not be negative
    is not asked, which only lowers it. Of very small requests, of which thousands fit on a node, only r c is told."""
    copies = np.minimum(copies, count)  # more on one node serve nobody
    each = prices / copies
    best = int(each.argmin())
    rate, size = float(each[best]), int(copies[best])
    if size > _MOST_COPIES:
        return rate * count
    steps = np.append(copies, -1)
    # Never below zero, which rounding would make of some: ways would grow shorter for ever.
    extra = np.append(np.maximum(prices - rate * copies, 0.0), rate)
    to = (np.arange(size) - steps[:, None]) % size
    way = np.full(size, np.inf)
    way[0] = 0.0
    while True:
        shorter = np.minimum(way, (way[to] + extra[:, None]).min(axis=0))
        if np.array_equal(shorter, way):
            return rate * count + float(way[count % size])
        way = shorter


def _program(loads: Loads, owner: Ints, stock: Stock) -> _Program:
    keys = sorted({key for shape in loads.shapes for key, _ in shape.resources})
    asked = np.array([[dict(shape.resources).get(key, 0.0) for key in keys] for shape in loads.shapes])
    room = np.array([stock.rooms.column(key)[: len(stock.offers)] for key in keys]).T
    counts = loads.copies.sum(axis=0)
    fits = np.minimum(np.array([stock.copies(shape) for shape in loads.shapes]).T, np.minimum(loads.most, counts))
    used = loads.copies.any(axis=1)
    program = _Program(counts, asked, room, fits, stock.prices, owner[used], loads.copies[used].astype(np.float64))
    offer, shape = np.nonzero(fits)
    alone = np.zeros((len(offer), len(counts)))
    alone[np.arange(len(offer)), shape] = fits[offer, shape]
    program.add(*_cheapest_alone(program, offer, shape, alone))
    program.drop_twins()
    return program


def _cheapest_alone(program: _Program, offer: Ints, shape: Ints, copies: Floats) -> tuple[Ints, Floats]:
    """For each shape, the node that is cheapest per copy when it is alone there: a first idea of what it is worth."""
    each = program.prices[offer] / copies[np.arange(len(offer)), shape]
    order = np.lexsort((each, shape))
    first = order[np.unique(shape[order], return_index=True)[1]]
    return offer[first], copies[first]


def _worth(program: _Program) -> Floats:
    """What one more copy of each shape costs."""
    result = linprog(
        program.prices[program.owner], A_ub=csr_matrix(-program.copies.T), b_ub=-program.counts, method="highs-ds"
    )
    worth: Floats = -result.ineqlin.marginals
    return worth


def _add_patterns(program: _Program, worth: Floats) -> bool:
    """Nodes filled by worth per resource: per all resources together, and per each of them."""
    unit = np.where(program.room > 0, program.prices[:, None] / np.maximum(program.room, EPSILON), np.inf).min(axis=0)
    weights = np.array([unit, *(np.diag(unit) + 0.05 * unit)])
    density = -worth / np.maximum((program.asked[None] * weights[:, None]).sum(axis=2), EPSILON)
    copies = _filled(program, np.argsort(density, axis=1, kind="stable")[:, : np.count_nonzero(worth > 0)])
    found = False
    for filled in copies:
        better = np.flatnonzero((filled * worth).sum(axis=1) > program.prices * (1 + EPSILON))
        program.add(better, filled[better])
        found |= len(better) > 0
    if found:
        program.drop_twins()
    return found


def _filled(program: _Program, orders: Ints) -> Floats:
    """Each offer with as many copies as fit, shape after shape; once for each order, all side by side."""
    ways, (offers, shapes) = np.arange(len(orders)), program.fits.shape
    room = np.repeat(program.room[None], len(orders), axis=0)
    copies = np.zeros((len(orders), offers, shapes))
    divisors = np.where(program.asked > 0, program.asked, np.inf)
    nothing = np.where(program.asked > 0, 0.0, np.inf)  # what is not asked for sets no bound
    for shape in orders.T:
        asked = program.asked[shape][:, None]
        fit = ((room + EPSILON) / divisors[shape][:, None] + nothing[shape][:, None]).min(axis=2)
        taken = np.minimum(np.floor(fit), program.fits[:, shape].T)
        copies[ways, :, shape] = taken
        room -= taken[:, :, None] * asked
    return copies


def _whole(program: _Program, worth: Floats) -> Ints:
    """How many of each pattern, in whole numbers."""
    prices = program.prices[program.owner]
    near = np.flatnonzero(prices - program.copies @ worth <= _NEAR * prices)
    result = milp(
        prices[near],
        constraints=LinearConstraint(csr_matrix(program.copies[near].T), program.counts, np.inf),
        integrality=np.ones(len(near)),
        options={"mip_rel_gap": _GAP, "node_limit": _BRANCHES, "time_limit": _TIME_LIMIT_S},
    )
    chosen = np.zeros(len(prices), np.int64)
    if result.x is not None:
        chosen[near] = np.rint(result.x)
    return chosen
