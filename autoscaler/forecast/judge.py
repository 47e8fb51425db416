"""Which of several rival forecasts of one series has foretold it best so far, and how much each should count. Bounded.

Stands beside growth.py, whose kinds of likeness are the rivals. Each says how likely a growth of more than some amounts
is; when the outcome is known, each loses what it made the outcome unlikely by:

    loss    = -log(chance that it gave to what happened), over all amounts, fading
    weight  = exp(-PACE * loss), in shares of the sum; a small part is shared by all alike

so that none is forgotten, and one that becomes right again is soon heeded. To trust the best alone, or sooner, does
worse: losses are noisy (docs/designs/simulate.md).
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

Chances = npt.NDArray[np.float64]

AMOUNTS = (0, 1, 2, 4, 8, 16, 24, 32, 48, 64)  # growths that are judged
PACE = 0.1
SHARED = 0.1  # of the weight
_LEAST = 1e-4  # a chance: nobody loses everything by one outcome


class Judge:
    """`ahead`: forecasts after which the outcome of one is known. `half_life`: of losses, in outcomes."""

    def __init__(self, rivals: int, ahead: int, half_life: float) -> None:
        self._losses = np.zeros(rivals)
        self._fading = 0.5 ** (1.0 / half_life)
        self._ahead = ahead
        self._open: deque[Chances | None] = deque()

    @property
    def weights(self) -> Chances:
        trust = np.exp(PACE * (self._losses.min() - self._losses))
        return np.asarray((1.0 - SHARED) * trust / trust.sum() + SHARED / len(trust))

    def foretold(self, chances: Chances | None) -> None:
        """(rival, amount): the chance of more than each of AMOUNTS. None: this moment is not judged."""
        self._open.append(chances)

    def saw(self, outcome: float | None) -> None:
        """After the moment that was foretold `ahead` moments ago. None: nobody looked."""
        chances = self._open.popleft() if len(self._open) > self._ahead else None
        if chances is None or outcome is None:
            return
        given = np.where(outcome > np.array(AMOUNTS), chances, 1.0 - chances)
        self._losses = self._losses * self._fading - np.log(np.clip(given, _LEAST, 1.0)).sum(axis=1)
