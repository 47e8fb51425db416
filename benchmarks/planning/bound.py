"""A price below which no plan can serve a case. Not a benchmark itself. docs/designs/packing.md says why it is valid.

Three relaxations, the largest counts. All put requests on the free room of nodes that exist (price 0) or on new nodes,
know labels, and let at most one bundle of a STRICT_SPREAD gang share a node (so at most as many of that shape as there
are gangs); bundles of a STRICT_PACK gang are one piece. All let a gang lie in several regions, which only lowers them.

- Configurations (configurations.py): the linear program over all ways to fill one node. Its dual prices p (one for each
  shape) give the bound sum p_j count_j - sum_existing value(room, p), when no new node can hold more than its price.
  The values are integer knapsacks, solved one by one, so the bound holds for any p.
- Parts of nodes: a linear program in which nodes may be bought in parts, and its worths as p. It needs seconds, and is
  what remains where the search for configurations is cut short by time.
- Whole nodes: the same, with whole numbers of new nodes; what lies on them need not be whole. It counts where few nodes
  are bought.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from planning.bins import Bins, bins_of
from planning.cases import Case
from planning.configurations import configurations
from planning.worths import EPSILON, knapsacks, price_by
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_matrix, csr_matrix


def lower_bound(case: Case, limit_s: float) -> float:
    """In micro-dollars per hour."""
    bins = bins_of(case)
    if not len(bins.counts):
        return 0.0
    program = _program(bins)
    worth = _worth_of_parts(bins, program)
    values, _ = knapsacks(bins, worth, range(bins.num_offers))
    parts = price_by(bins, worth, values)
    return max(0.0, parts, configurations(bins, worth, limit_s / 2), _whole_nodes(bins, program, limit_s / 2))


@dataclass(frozen=True, slots=True)
class _Program:
    """min sum price x: x bins of each kind, y copies on each, within its room, y <= fits x, all served (these rows
    stand last)."""

    cost: np.ndarray
    matrix: csr_matrix
    upper: np.ndarray
    most: np.ndarray
    num_pairs: int


def _program(bins: Bins) -> _Program:
    num_bins, num_shapes = bins.fits.shape
    bin_of, shape_of = np.nonzero(bins.fits)
    num_pairs, num_keys = len(bin_of), bins.room.shape[1]
    pair = num_bins + np.arange(num_pairs)
    entries = [
        (np.repeat(np.arange(num_bins), num_keys) * num_keys + np.tile(np.arange(num_keys), num_bins),
         np.repeat(np.arange(num_bins), num_keys), -bins.room.ravel()),
        *((bin_of * num_keys + key, pair, bins.asked[shape_of, key]) for key in range(num_keys)),
        (num_bins * num_keys + np.arange(num_pairs), pair, np.ones(num_pairs)),
        (num_bins * num_keys + np.arange(num_pairs), bin_of, -bins.fits[bin_of, shape_of].astype(float)),
        (num_bins * num_keys + num_pairs + shape_of, pair, -np.ones(num_pairs)),
    ]  # fmt: skip
    rows, columns, values = (np.concatenate(part) for part in zip(*entries, strict=True))
    num_rows = num_bins * num_keys + num_pairs + num_shapes
    return _Program(
        np.concatenate([bins.price, np.zeros(num_pairs)]),
        coo_matrix((values, (rows, columns)), shape=(num_rows, num_bins + num_pairs)).tocsr(),
        np.concatenate([np.zeros(num_bins * num_keys + num_pairs), -bins.counts]) + EPSILON,
        np.concatenate([bins.many, np.full(num_pairs, np.inf)]),
        num_pairs,
    )


def _worth_of_parts(bins: Bins, program: _Program) -> np.ndarray:
    """Of a copy of each shape, by the linear program in which nodes may be bought in parts: it ends within seconds at
    any size. What whole requests are worth on the room that exists is less than what parts of them are, so the price by
    these worths is a little more than its optimum."""
    result = linprog(
        program.cost,
        A_ub=program.matrix,
        b_ub=program.upper,
        bounds=np.stack([np.zeros(len(program.most)), program.most], axis=1),
        method="highs-ipm",
    )
    if result.status != 0:
        return np.zeros(len(bins.counts))
    return np.maximum(-result.ineqlin.marginals[-len(bins.counts) :], 0.0)


def _whole_nodes(bins: Bins, program: _Program, limit_s: float) -> float:
    result = milp(
        program.cost,
        constraints=LinearConstraint(program.matrix, -np.inf, program.upper),
        integrality=np.concatenate([np.isinf(bins.many), np.zeros(program.num_pairs)]),
        bounds=Bounds(0, program.most),
        options={"time_limit": limit_s, "mip_rel_gap": 1e-3},
    )
    bound = result.mip_dual_bound
    return 0.0 if bound is None or not np.isfinite(bound) else float(bound)
