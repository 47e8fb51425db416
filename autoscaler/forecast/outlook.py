"""What a forecast says: quantiles at each horizon, how they came about, how good such forecasts have been. Values."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

import numpy as np

from tradewind.autoscaler.forecast.candidates import LEVELS


@dataclass(frozen=True, slots=True)
class Outlook:
    """One horizon."""

    horizon_s: float
    values: tuple[float, ...]  # at LEVELS, in order
    has_interval: bool  # False: too few past errors; every quantile is the last value
    model: str
    reason: str
    scored: int  # past forecasts whose outcome is known
    wape: float | None  # sum of absolute errors of the median by sum of demand, fading; None: no demand yet
    persistence_wape: float | None
    coverage: tuple[float, float] | None  # share of outcomes under the 90 % quantile, and under or at it
    chances: tuple[tuple[float, float], ...] = ()  # (amount, chance of more), in order, where more than LEVELS is known

    def quantile(self, level: float) -> float:
        """Any level between 0 and 1; linear between the LEVELS, and level beyond the outermost."""
        if not 0.0 <= level <= 1.0:
            raise ValueError(f"a quantile lies between 0 and 1, not at {level}")
        return float(np.interp(level, LEVELS, self.values))

    @property
    def p10(self) -> float:
        return self.quantile(0.1)

    @property
    def p50(self) -> float:
        return self.quantile(0.5)

    @property
    def p90(self) -> float:
        return self.quantile(0.9)

    def chance_above(self, amount: float) -> float:
        """How likely demand is to be above `amount`. Where only quantiles are known, outside of the outermost ones:
        their chance, never 0 or 1."""
        if self.chances:
            known = bisect.bisect_right(self.chances, amount, key=lambda pair: pair[0])
            return self.chances[known - 1][1] if known else 1.0
        above = [level for level, value in zip(LEVELS, self.values, strict=True) if value > amount]
        if len(above) == len(LEVELS):
            return 1.0 - LEVELS[0]
        if not above:
            return 1.0 - LEVELS[-1] if self.values[-1] >= amount else 0.0
        upper = LEVELS.index(above[0])
        low, high = self.values[upper - 1], self.values[upper]
        share = (amount - low) / (high - low)
        return 1.0 - (LEVELS[upper - 1] + share * (LEVELS[upper] - LEVELS[upper - 1]))


@dataclass(frozen=True, slots=True)
class Forecast:
    made_at_s: float | None  # the end of the newest step; None: no step is over yet
    age_s: float  # how much older than now that is
    steps: int  # of history
    outlooks: tuple[Outlook, ...]  # by horizon; empty: no step is over yet, be reactive

    def at(self, horizon_s: float) -> Outlook | None:
        """The first horizon that reaches as far; None where nothing is known, or nothing so far ahead."""
        return next((each for each in self.outlooks if each.horizon_s >= horizon_s - 1e-9), None)
