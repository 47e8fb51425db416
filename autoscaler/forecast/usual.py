"""What comes after such moments in most series: counts where the own past knows few moments like this one. Pure.

A series that is new, or that sees its first sitting, has nothing to compare it with. That more comes after what has
just come is true of most people who send jobs, though:

    chance of any growth    logistic in the logarithms of rises that fade within one, six and thirty-six steps
    chance of more than g   (1 + g) ^ -FALL, given that it grows; own growths count as soon as there are some

The numbers were fitted on the demand of eight clusters; those of four do as well on the other four, so they are not of
any one cluster (docs/designs/simulate.md).
"""

from __future__ import annotations

import math

import numpy as np

from tradewind.autoscaler.forecast.looks import Column

WORTH = 100.0  # looks of the own past that are like this one and count as much
SIZES_WORTH = 10.0  # looks of the own past after which demand grew
BASE, BY_RISES = -1.4, (0.6, 0.3, 0.3)
FALL = 0.8
LARGEST = 64.0  # what is larger is known from the own past alone
_GROWTHS = np.arange(LARGEST + 1.0, dtype=np.float32)


def chance_of_growth(signs: Column) -> float:
    """`signs`: of the rises that fade, on their logarithmic scale."""
    return 1.0 / (1.0 + math.exp(-BASE - float(np.dot(signs, BY_RISES))))


def growths_of(rises: Column) -> Column:
    """All growths at which the chance changes, those of the own past and the usual ones."""
    return np.union1d(rises, _GROWTHS)


def chances_of_more(growths: Column, rises: Column, fading: Column) -> Column:
    """Of each growth, the chance of more than it, given that demand grows. `rises`: after those looks of the own past
    after which it grew."""
    usual = np.where(growths < LARGEST, (1.0 + growths) ** -FALL, 0.0)
    own = more_than(growths, rises, fading)
    return np.asarray((own + SIZES_WORTH * usual) / (fading.sum() + SIZES_WORTH))


def more_than(growths: Column, rises: Column, weights: Column) -> Column:
    """Of each growth, the weight of the looks after which demand grew by more."""
    # Each of `rises` is among `growths`, which are in order.
    by_growth = np.bincount(np.searchsorted(growths, rises), weights, minlength=len(growths))
    return np.asarray(np.maximum(by_growth.sum() - np.cumsum(by_growth), 0.0))
