"""The linear program over all ways to fill one node, by column generation. Not a benchmark itself; bound.py uses it.

Three things make it end at ten thousand nodes: it starts from the worths of a simpler program; a place of a request is
one for any smaller request, too, which is a column by itself (a swap) and spares the patterns that would say so; and
patterns that are far from being worth their price are forgotten. None of them touches that the answer is a bound: any
worths give one.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from planning.bins import Bins
from planning.worths import EPSILON, knapsacks, price_by
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from tradewind.autoscaler.packing_mix import swaps_of

ROUGH_ROUNDS = 4  # in which nothing is forgotten
FAR = 0.25  # of its price: a pattern that lacks so much
NEAR = 5e-4  # between the program and the bound: there is nothing left to gain


@dataclass(slots=True)
class Patterns:
    owner: np.ndarray  # the bin of each
    copies: np.ndarray  # patterns x shapes

    def add(self, owner: np.ndarray, copies: np.ndarray) -> None:
        self.owner, self.copies = np.concatenate([self.owner, owner]), np.concatenate([self.copies, copies])

    def keep(self, chosen: np.ndarray) -> None:
        self.owner, self.copies = self.owner[chosen], self.copies[chosen]


@dataclass(frozen=True, slots=True)
class Worths:
    """By the present patterns: of a copy of each shape, of the room of each existing node, and what all of it costs."""

    shapes: np.ndarray
    rooms: np.ndarray
    price: float
    used: np.ndarray  # how many of each pattern


def configurations(bins: Bins, start: np.ndarray, limit_cpu_s: float) -> float:
    """Quick knapsacks while they find anything, then exact ones, until none is worth its price. The time is that of
    this process, so that the answer does not depend on what runs beside it."""
    until_s = time.process_time() + limit_cpu_s
    patterns, swaps, best, round_ = _first_patterns(bins, start), swaps_of(bins.asked, bins.fits > 0), 0.0, 0
    while True:
        worths, round_ = _solved(bins, patterns, swaps), round_ + 1
        prices = np.concatenate([bins.price[: bins.num_offers], worths.rooms])
        if round_ > ROUGH_ROUNDS:
            lacks = prices[patterns.owner] - patterns.copies @ worths.shapes
            usual = np.maximum(bins.price[patterns.owner], worths.shapes.mean())
            patterns.keep((lacks <= FAR * usual) | (worths.used > 0))
        owner, copies = _quick_patterns(bins, worths.shapes, prices)
        is_late = time.process_time() > until_s
        if not len(owner) or is_late:
            values, exact = knapsacks(bins, worths.shapes, range(len(prices)))
            best = max(best, price_by(bins, worths.shapes, values[: bins.num_offers]))
            owner = np.flatnonzero(values > prices * (1 + 1e-4) + 1e-3)
            if not len(owner) or is_late or worths.price <= best * (1 + NEAR):
                return best
            copies = exact[owner]
        patterns.add(owner, copies)


def _first_patterns(bins: Bins, worth: np.ndarray) -> Patterns:
    """Offers with as many copies of one shape as fit, and all bins filled by the worths to start from."""
    owner, shape = np.nonzero(bins.fits[: bins.num_offers])
    copies = np.zeros((len(owner), len(bins.counts)))
    copies[np.arange(len(owner)), shape] = bins.fits[owner, shape]
    found = Patterns(owner, copies)
    for filled in _filled(bins, worth):
        found.add(np.arange(len(bins.price)), filled)
    return found


def _solved(bins: Bins, patterns: Patterns, swaps: np.ndarray) -> Worths:
    is_old, num_old = patterns.owner >= bins.num_offers, len(bins.price) - bins.num_offers
    places = patterns.owner[is_old] - bins.num_offers, np.flatnonzero(is_old)
    within = csr_matrix((np.ones(is_old.sum()), places), (num_old, len(patterns.owner)))
    result = linprog(
        np.concatenate([bins.price[patterns.owner], np.zeros(len(swaps))]),
        A_ub=hstack(
            [vstack([csr_matrix(-patterns.copies.T), within]), csr_matrix(-np.pad(swaps.T, ((0, num_old), (0, 0))))]
        ),
        b_ub=np.concatenate([-bins.counts, bins.many[bins.num_offers :]]),
        method="highs",
    )
    shapes, rooms = np.split(np.maximum(-result.ineqlin.marginals, 0.0), [len(bins.counts)])
    return Worths(shapes, rooms, float(result.fun), result.x[: len(patterns.owner)])


def _quick_patterns(bins: Bins, worth: np.ndarray, prices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    owners, copies = [], []
    for filled in _filled(bins, worth):
        better = np.flatnonzero(filled @ worth > prices * (1 + 1e-6) + 1e-3)
        owners.append(better)
        copies.append(filled[better])
    return np.concatenate(owners), np.concatenate(copies)


def _filled(bins: Bins, worth: np.ndarray) -> list[np.ndarray]:
    """Bins filled by worth per resource, once for all resources together and once for each alone."""
    weights = [np.ones(bins.asked.shape[1]), *(np.eye(bins.asked.shape[1]) + 0.05)]
    return [_fill(bins, np.argsort(-worth / (bins.asked @ weight), kind="stable"), worth) for weight in weights]


def _fill(bins: Bins, order: np.ndarray, worth: np.ndarray) -> np.ndarray:
    room, filled = bins.room.copy(), np.zeros(bins.fits.shape)
    for shape in order[worth[order] > 0]:
        asks = np.flatnonzero(bins.asked[shape])
        copies = ((room[:, asks] + EPSILON) / bins.asked[shape, asks]).min(axis=1)
        filled[:, shape] = np.minimum(np.floor(np.maximum(copies, 0.0)), bins.fits[:, shape])
        room -= filled[:, shape][:, None] * bins.asked[shape]
    return filled
