"""Which offers to open for which shape: a linear program over patterns. Pure.

First-fit (packing.py) says what lies where; this only says what to buy when it runs out of room, so a poor or missing
answer costs money, never correctness.

A pattern is one node of an offer, opened for one shape and filled up with later ones, as first-fit would. The program
(HiGHS) buys patterns so that all that is missing is covered at the least cost within the caps:

    min  sum price_p x_p + penalty sum u_j    s.t.  sum n_pj x_p + u_j >= count_j,   sum_{p in cap} x_p <= left_cap
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import LinearConstraint, linprog, milp
from scipy.sparse import csr_matrix

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Floats, Ints
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.shape import EPSILON, Shape

_MOST_PAIRS = 10_000_000  # shapes x offers: above this, it would take too long
_BEST_OFFERS = 6  # of each ranking, for each shape
_MOST_CREDIT = 0.9  # no room that is left over makes a node free
_NEAR = 0.1  # patterns this close to being worth their price may enter the integer program
_GAP = 0.005
_NODES = 50  # of the search tree: the same answer on a slow machine as on a fast one
_TIME_LIMIT_S = 1.0  # never reached by programs of this size; should one be, first-fit buys without advice



@dataclass(frozen=True, slots=True)
class Missing:
    """So many copies have no room. `most` is how many of them may share a node."""

    shape: Shape
    count: int
    most: int = ANY_NUMBER


@dataclass(frozen=True, slots=True)
class _Table:
    """Missing shapes x offers of the stock."""

    counts: Ints
    most: Ints  # of each shape on one node
    asked: Floats  # shapes x resources
    prices: Floats
    room: Floats  # offers x resources
    fits: Ints  # shapes x offers: how many copies


def advise(missing: Sequence[Missing], stock: Stock) -> list[int]:
    """Which offers of the stock to buy, in the order in which first-fit should meet them. Nothing where the program
    would be too large."""
    missing = [each for each in missing if each.shape.resources]
    if not missing or len(missing) * len(stock.offers) > _MOST_PAIRS:
        return []
    table = _table(missing, stock)
    offer, opener, copies = _patterns(table)
    chosen = _solve(table.prices[offer], copies, table.counts)
    order = np.lexsort((offer, opener))
    return [int(index) for index in np.repeat(offer[order], chosen[order])]


def _table(missing: Sequence[Missing], stock: Stock) -> _Table:
    index = {key: i for i, key in enumerate(sorted({key for each in missing for key, _ in each.shape.resources}))}
    room = np.array([[slot.free.get(key, 0.0) for key in index] for slot in stock.rooms.slots])
    asked = np.zeros((len(missing), len(index)))
    for row, each in enumerate(missing):
        for key, amount in each.shape.resources:
            asked[row, index[key]] = amount
    counts = np.array([each.count for each in missing])
    most = np.minimum(counts, [each.most for each in missing])
    fits = np.minimum(np.array([stock.copies(each.shape) for each in missing]), most[:, None])
    return _Table(counts, most, asked, stock.prices, room, fits)


def _patterns(table: _Table) -> tuple[Ints, Ints, Floats]:
    """(offer, opening shape, copies of each shape) of every pattern that is worth a thought."""
    opener, offer = _openings(table)
    room, fits = table.room[offer], table.fits[:, offer]
    copies = np.zeros((len(offer), len(table.counts)))
    for shape in range(len(table.counts)):
        rows = np.flatnonzero((opener <= shape) & (fits[shape] > 0))
        asks = np.flatnonzero(table.asked[shape])
        fit = (room[rows[:, None], asks] + EPSILON) / table.asked[shape, asks]
        number = np.minimum(fit.min(axis=1, initial=ANY_NUMBER).astype(np.int64), table.most[shape])
        copies[rows, shape] = number
        room[rows] -= number[:, None] * table.asked[shape]
    return offer, opener, copies


def _openings(table: _Table) -> tuple[Ints, Ints]:
    """For each shape the offers that are cheapest per copy, with and without credit for the room that is left over."""
    copies = np.maximum(table.fits, 1)
    worth = _unit_prices(table)
    left = table.room[None] - copies[:, :, None] * table.asked[:, None]
    credited = table.prices - np.minimum(np.maximum(left, 0.0) @ worth, table.prices * _MOST_CREDIT)
    chosen = np.zeros(table.fits.shape, np.bool_)
    for price in (np.broadcast_to(table.prices, credited.shape), credited):
        score = np.where(table.fits > 0, price / copies, np.inf)
        best = np.argsort(score, axis=1, kind="stable")[:, :_BEST_OFFERS]
        np.put_along_axis(chosen, best, True, axis=1)
    opener, offer = np.nonzero(chosen & (table.fits > 0))
    return opener, offer


def _unit_prices(table: _Table) -> Floats:
    """What a unit of each resource costs where it is cheapest; half of it, since it is sold with others."""
    with np.errstate(divide="ignore"):
        return 0.5 * np.where(table.room > 0, table.prices[:, None] / table.room, np.inf).min(axis=0)


def _solve(prices: Floats, copies: Floats, counts: Ints) -> Ints:
    """How many of each pattern. The linear program finds the patterns, the integer one the numbers."""
    columns = csr_matrix(copies.T)
    relaxed = linprog(prices, A_ub=-columns, b_ub=-counts, method="highs-ds")
    if relaxed.x is None:
        return np.zeros(len(prices), np.int64)
    reduced = prices + copies @ relaxed.ineqlin.marginals
    near = np.flatnonzero(reduced <= _NEAR * prices)
    whole = milp(
        prices[near],
        constraints=LinearConstraint(columns[:, near], counts, np.inf),
        integrality=np.ones(len(near)),
        options={"mip_rel_gap": _GAP, "node_limit": _NODES, "time_limit": _TIME_LIMIT_S},
    )
    found = np.zeros(len(prices), np.int64)
    found[near] = np.floor(relaxed.x[near] + EPSILON) if whole.x is None else np.rint(whole.x)
    return found
