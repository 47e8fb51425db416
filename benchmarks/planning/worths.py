"""What requests are worth, and the price that follows from it. Not a benchmark itself; bound.py uses it.

Any worths give a price below which no plan is (docs/designs/packing.md), since knapsacks are solved exactly."""

from __future__ import annotations

import numpy as np
from planning.bins import Bins
from scipy.optimize import Bounds, LinearConstraint, milp

EPSILON = 1e-6


def price_by(bins: Bins, worth: np.ndarray, values: np.ndarray) -> float:
    """The worth of each shape is lowered by the most that any offer it fits on holds too much: then no new node holds
    more than its price (each of its shapes is lowered by at least as much as it needs), and every plan pays at least
    this."""
    excess = np.maximum(1.0, values / bins.price[: bins.num_offers])
    fits = bins.fits[: bins.num_offers] > 0
    lowered = worth / np.where(fits, excess[:, None], 1.0).max(axis=0, initial=1.0)
    existing, _ = knapsacks(bins, lowered, range(bins.num_offers, len(bins.price)))
    return float(lowered @ bins.counts - existing @ bins.many[bins.num_offers :])


def knapsacks(bins: Bins, worth: np.ndarray, chosen: range) -> tuple[np.ndarray, np.ndarray]:
    """(an upper bound on the worth that fits, the best pattern) of each bin."""
    values, patterns = np.zeros(len(chosen)), np.zeros((len(chosen), len(worth)))
    for row, index in enumerate(chosen):
        shapes = np.flatnonzero((bins.fits[index] > 0) & (worth > 0))
        if len(shapes):
            result = milp(
                -worth[shapes],
                constraints=LinearConstraint(bins.asked[shapes].T, -np.inf, bins.room[index] + EPSILON),
                integrality=np.ones(len(shapes)),
                bounds=Bounds(0, bins.fits[index, shapes]),
                options={"mip_rel_gap": 1e-5, "time_limit": 1.0},
            )
            values[row] = -result.mip_dual_bound
            if result.x is not None:  # cut short by time; its bound is one all the same
                patterns[row, shapes] = np.rint(result.x)
    return values, patterns
