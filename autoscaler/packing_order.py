"""In which order needs are placed: those first for whom a new node would be dear. Pure.

Room that is free goes to whoever is placed first, so it should go to those for whom a new node would be the dearest: a
task that may only run on H100s before one that could run on any GPU, and one of 3 GPUs, for which a machine of 4 must
be bought, before one of 4. What "dear" means is taken from the catalogue
alone (on-demand prices, sizes as listed, offers that are refused at the moment included): with the prices of the minute
the order would change while nodes boot, first-fit would no longer find the places that they were bought for, and would
buy again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tradewind.autoscaler.demand import Need
from tradewind.autoscaler.packing_catalogue import Catalogue, catalogue_of
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer

_STEPS_PER_DOUBLING = 4.0  # differences below this say little; there the old order (the large ones first) is better


def dearest_first(needs: Sequence[Need], offers: Sequence[Offer]) -> list[Need]:
    """The same needs; accelerators first, then by what their size and their ties cost. Without accelerators and
    selectors the order stays."""
    steps = _steps(list(dict.fromkeys(need.shape for need in needs)), catalogue_of(offers))
    return sorted(needs, key=lambda need: (_accelerators(need.shape) == 0, -steps[need.shape]))


def _steps(shapes: Sequence[Shape], catalogue: Catalogue) -> dict[Shape, float]:
    """How dear, in steps: a request with accelerators for each of them, another one against the same request without
    selectors. What only a slice serves, or nothing that has a price, comes first."""
    plain = [Shape(shape.resources) for shape in shapes]
    own, alone = np.split(catalogue.usual_prices([*shapes, *plain]), 2)
    accelerators = np.array([_accelerators(shape) for shape in shapes])
    ratio = own / np.where(accelerators > 0, accelerators, np.where((alone > 0) & np.isfinite(alone), alone, 1.0))
    known = np.isfinite(ratio) & (ratio > 0)
    steps = np.full(len(shapes), np.inf)
    steps[known] = np.rint(_STEPS_PER_DOUBLING * np.log2(ratio[known]))
    return dict(zip(shapes, steps.tolist(), strict=True))


def _accelerators(shape: Shape) -> float:
    return sum(amount for key, amount in shape.resources if key in ("GPU", "TPU"))
