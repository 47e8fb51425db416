"""What came after past looks that are like the present one, by several kinds of likeness. Pure.

Stands under growth.py, which says why there are several, and beside usual.py, which fills in where few are alike:

    weight = (exp(-distance^2 / 2) + PRIOR / looks) * fading
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.forecast import usual
from tradewind.autoscaler.forecast.judge import Chances
from tradewind.autoscaler.forecast.looks import Column

# Which signs count (looks.py), and how far apart they may lie to be alike: counts as a difference of logarithms, the
# hour on its clock's face in hours.
KINDS = {
    "rises in spans": ((0, 1, 2), (0.5, 0.7, 1.0)),
    "rises that fade": ((3, 4, 5), (0.6, 0.7, 0.8)),
    "rises that fade slowly": ((6, 7), (0.4, 0.4)),
    "the hour": ((7, 8, 9), (0.8, 1.0, 1.0)),
}
_FADING = slice(3, 6)  # the signs of rises that fade
PRIOR = 10.0  # looks: so many unlike ones count as one alike, so that a few likenesses do not decide alone


@dataclass(frozen=True, slots=True)
class Foretold:
    """By each kind of likeness, the chance of more than each growth, and how much of it is what is usual elsewhere."""

    growths: Column  # in order; whole numbers up to usual.LARGEST are among them
    chances: Chances  # (kind, growth)
    usual: Chances  # by kind

    def at(self, amounts: Sequence[float]) -> Chances:
        """(kind, amount); amounts are among the growths."""
        return np.asarray(self.chances[:, np.searchsorted(self.growths, amounts)])


def foretell(signs: Column, now: Column, rises: Column, fading: Column) -> Foretold:
    """`signs` and `rises` are of past looks, oldest first: how demand had risen before, and how far it rose after."""
    apart = signs - now[:, None]
    weights = [weights_of(apart[list(rows)], near, fading) for rows, near in KINDS.values()]
    by_the_usual = np.array([1.0 - float(each.sum()) for each in weights])
    grown = np.flatnonzero(rises)  # after most looks nothing grew: what is left is quick to sort
    rises, fading = rises[grown], fading[grown]
    growths = usual.growths_of(rises)
    alike = np.array([usual.more_than(growths, rises, each[grown]) for each in weights])
    unlike = usual.chance_of_growth(now[_FADING]) * usual.chances_of_more(growths, rises, fading)
    return Foretold(growths, alike + by_the_usual[:, None] * unlike, by_the_usual)


def weights_of(apart: Column, near: Sequence[float], fading: Column) -> Column:
    """Of each look by its likeness. All together below 1: the rest is left to what is usual."""
    alike = np.exp(np.float32(-0.5) / np.square(np.array(near, dtype=np.float32)) @ np.square(apart))
    weights = (alike + np.float32(PRIOR / len(alike))) * fading
    return np.asarray(weights / (weights.sum() + np.float32(usual.WORTH)))
