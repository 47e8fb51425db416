"""The last steps of one series, and what can be read off them: lags, means, the time of day. Bounded memory.

Rows are counted from the oldest step that is kept. Whatever is asked about row r looks at r and earlier rows alone, so
nothing that is computed here can see the future.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Rows = npt.NDArray[np.intp]
DAY_S = 86400.0


class History:
    """Values with their times. `fitted` keeps, for each horizon, what the regression said at that step."""

    def __init__(self, step_s: float, horizons: int, window: int, reach: int) -> None:
        """`window` rows are learned from, each of which looks back `reach` further ones."""
        self.step_s = step_s
        self.day = max(round(DAY_S / step_s), 1)  # steps
        self.window = window
        self.keep = window + max(reach, 7 * self.day)
        size = self.keep + max(self.keep // 4, 64)  # moved to the front when full: now and then, not at each step
        self._values, self._times_s, self._known = np.zeros(size), np.zeros(size), np.zeros(size, dtype=bool)
        self._fitted = np.zeros((size, horizons))
        self.length = 0

    def append(self, at_s: float, value: float, known: bool) -> None:
        arrays: tuple[npt.NDArray[Any], ...] = (self._values, self._times_s, self._known, self._fitted)
        if self.length == len(self._values):
            for array in arrays:
                array[: self.keep] = array[self.length - self.keep :]
            self.length = self.keep
        for array, entry in zip(arrays, (value, at_s, known, value), strict=True):
            array[self.length] = entry
        self.length += 1

    @property
    def values(self) -> Array:
        return self._values[: self.length]

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        return self._known[: self.length]

    @property
    def fitted(self) -> Array:
        return self._fitted[: self.length]

    @property
    def newest(self) -> Rows:
        return np.array([self.length - 1])

    def origins(self, horizon: int) -> Rows:
        """The rows of the window from which `horizon` steps later is known by now."""
        newest = self.length - 1 - horizon
        return np.arange(max(newest - self.window + 1, 0), newest + 1)

    def lag(self, rows: Rows, steps: int) -> Array:
        """The value so many steps before; where there is none yet, the value at the row itself."""
        back = rows - steps
        return np.where(back >= 0, self.values[np.maximum(back, 0)], self.values[rows])

    def seasonal(self, rows: Rows, horizon: int, period: int) -> Array:
        """The value one period (or as many as it takes to be known) before the step that is forecast."""
        return self.lag(rows, period * -(-horizon // period) - horizon)

    def mean(self, rows: Rows, width: int) -> Array:
        """Of the last `width` values, or of as many as there are."""
        sums = np.concatenate([[0.0], np.cumsum(self.values)])
        first = np.maximum(rows + 1 - width, 0)
        return np.asarray((sums[rows + 1] - sums[first]) / (rows + 1 - first))

    def day_angle(self, rows: Rows, ahead: int = 0) -> Array:
        """Time of day as an angle."""
        return np.asarray((self._times_s[rows] + ahead * self.step_s) % DAY_S * (2 * np.pi / DAY_S))

    def is_weekend(self, rows: Rows, ahead: int = 0) -> Array:
        days = (self._times_s[rows] + ahead * self.step_s) // DAY_S
        return ((days + 3) % 7 >= 5).astype(float)  # the epoch began on a Thursday
