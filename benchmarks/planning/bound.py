"""A price below which no plan can serve a case. Not a benchmark itself. docs/designs/packing.md says why it is valid.

Three relaxations, the largest counts. All put requests on the free room of nodes that exist (price 0) or on new nodes,
know labels, and let at most one bundle of a STRICT_SPREAD gang share a node (so at most as many of that shape as there
are gangs); bundles of a STRICT_PACK gang are one piece. All let a gang lie in several regions, which only lowers them.

- Configurations: the linear program over all ways to fill one node. Its dual prices p (one for each shape) give the
  bound sum p_j count_j - sum_existing value(room, p), when no new node can hold more than its price. The values are
  integer knapsacks, solved one by one, so the bound holds for any p.
- Parts of nodes: a linear program in which nodes may be bought in parts, and its worths as p. It needs seconds, and is
  what remains where the search for configurations is cut short by time.
- Whole nodes: the same, with whole numbers of new nodes; what lies on them need not be whole.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass

import numpy as np
from planning.cases import Case
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from scipy.sparse import coo_matrix, csr_matrix, vstack

from tradewind.autoscaler.packing_rooms import ANY_NUMBER, Rooms, Slot
from tradewind.autoscaler.packing_rules import pieces_of
from tradewind.autoscaler.packing_slots import slots_of
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.ray_snapshot import Strategy
from tradewind.autoscaler.shape import Shape

EPSILON = 1e-6


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


def lower_bound(case: Case, limit_s: float) -> float:
    """In micro-dollars per hour."""
    bins = bins_of(case)
    if not len(bins.counts):
        return 0.0
    program = _program(bins)
    parts = _parts_of_nodes(bins, program)
    configurations = _configurations(bins, time.perf_counter() + limit_s / 2)
    return max(0.0, parts, configurations, _whole_nodes(bins, program, limit_s / 2))


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


# --- whole nodes --------------------------------------------------------------------------------------------------


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


def _parts_of_nodes(bins: Bins, program: _Program) -> float:
    """By the worths of the linear program, in which nodes may be bought in parts: it ends within seconds at any size.
    What whole requests are worth on the room that exists is less than what parts of them are, so this is a little more
    than its optimum."""
    result = linprog(
        program.cost,
        A_ub=program.matrix,
        b_ub=program.upper,
        bounds=np.stack([np.zeros(len(program.most)), program.most], axis=1),
        method="highs-ipm",
    )
    if result.status != 0:
        return 0.0
    worth = np.maximum(-result.ineqlin.marginals[-len(bins.counts) :], 0.0)
    values, _ = _knapsacks(bins, worth, range(bins.num_offers))
    return _bound_by(bins, worth, values)


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


# --- configurations -----------------------------------------------------------------------------------------------


def _configurations(bins: Bins, until_s: float) -> float:
    """Column generation: quick knapsacks while they find anything, then exact ones, until none is worth its price."""
    owners, patterns = _first_patterns(bins)
    while True:
        worth, room_worth = _duals(bins, owners, patterns)
        new_owners, new_patterns = _quick_patterns(bins, worth, room_worth)
        if not len(new_owners) or time.perf_counter() > until_s:
            values, exact = _knapsacks(bins, worth, range(bins.num_offers))
            better = np.flatnonzero(values > bins.price[: bins.num_offers] * (1 + 1e-4))
            if not len(better) or time.perf_counter() > until_s:
                return _bound_by(bins, worth, values)
            new_owners, new_patterns = better, exact[better]
        owners, patterns = np.concatenate([owners, new_owners]), np.concatenate([patterns, new_patterns])


def _bound_by(bins: Bins, worth: np.ndarray, values: np.ndarray) -> float:
    """The worth of each shape is lowered by the most that any offer it fits on holds too much: then no new node holds
    more than its price (each of its shapes is lowered by at least as much as it needs), and every plan pays at least
    this."""
    excess = np.maximum(1.0, values / bins.price[: bins.num_offers])
    fits = bins.fits[: bins.num_offers] > 0
    lowered = worth / np.where(fits, excess[:, None], 1.0).max(axis=0, initial=1.0)
    existing, _ = _knapsacks(bins, lowered, range(bins.num_offers, len(bins.price)))
    return float(lowered @ bins.counts - existing @ bins.many[bins.num_offers :])


def _first_patterns(bins: Bins) -> tuple[np.ndarray, np.ndarray]:
    """As many copies of one shape as fit."""
    owners, shapes = np.nonzero(bins.fits)
    patterns = np.zeros((len(owners), len(bins.counts)))
    patterns[np.arange(len(owners)), shapes] = bins.fits[owners, shapes]
    return owners, patterns


def _duals(bins: Bins, owners: np.ndarray, patterns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a copy of each shape, and what the room of each existing node, is worth to the present patterns."""
    is_old = owners >= bins.num_offers
    num_old = len(bins.price) - bins.num_offers
    within = csr_matrix(
        (np.ones(is_old.sum()), (owners[is_old] - bins.num_offers, np.flatnonzero(is_old))), (num_old, len(owners))
    )
    result = linprog(
        bins.price[owners],
        A_ub=vstack([csr_matrix(-patterns.T), within]),
        b_ub=np.concatenate([-bins.counts, bins.many[bins.num_offers :]]),
        method="highs",
    )
    duals = -result.ineqlin.marginals
    return np.maximum(duals[: len(bins.counts)], 0.0), np.maximum(duals[len(bins.counts) :], 0.0)


def _quick_patterns(bins: Bins, worth: np.ndarray, room_worth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bins filled by worth per resource, once for all resources together and once for each alone."""
    asked = bins.asked
    weights = [np.ones(asked.shape[1]), *(np.eye(asked.shape[1]) + 0.05)]
    price = np.concatenate([bins.price[: bins.num_offers], room_worth])
    owners, patterns = [], []
    for weight in weights:
        filled = _fill(bins, np.argsort(-worth / (asked @ weight), kind="stable"), worth)
        better = np.flatnonzero(filled @ worth > price * (1 + 1e-6) + 1e-3)
        owners.append(better)
        patterns.append(filled[better])
    return np.concatenate(owners), np.concatenate(patterns)


def _fill(bins: Bins, order: np.ndarray, worth: np.ndarray) -> np.ndarray:
    room, filled = bins.room.copy(), np.zeros(bins.fits.shape)
    for shape in order[worth[order] > 0]:
        asks = np.flatnonzero(bins.asked[shape])
        copies = ((room[:, asks] + EPSILON) / bins.asked[shape, asks]).min(axis=1)
        filled[:, shape] = np.minimum(np.floor(np.maximum(copies, 0.0)), bins.fits[:, shape])
        room -= filled[:, shape][:, None] * bins.asked[shape]
    return filled


def _knapsacks(bins: Bins, worth: np.ndarray, chosen: range) -> tuple[np.ndarray, np.ndarray]:
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
            patterns[row, shapes] = np.rint(result.x)
    return values, patterns
