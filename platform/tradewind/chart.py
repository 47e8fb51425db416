"""A chart in characters: lines in braille (two by four dots a cell), a shaded band, axes. Pure; colours only when told.

Knows nothing of forecasts: whoever draws maps time and amount to columns between 0 and 1 first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Points = Sequence[tuple[float, float]]  # (x between 0 and 1, amount)
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille, by row and column
_RESET = "\x1b[0m"
SHADE = "░"


@dataclass(slots=True)
class Canvas:
    """`columns` x `rows` cells. Later lines lie above earlier ones where they share a cell."""

    columns: int
    rows: int
    top: float  # the amount at the upper edge; 0 is at the lower one
    _bits: dict[tuple[int, int], int] = field(default_factory=dict)  # (row, column) -> dots
    _styles: dict[tuple[int, int], str] = field(default_factory=dict)
    _band: dict[tuple[int, int], str] = field(default_factory=dict)
    _rules: dict[int, tuple[str, str]] = field(default_factory=dict)  # by column: mark and style

    def line(self, points: Points, style: str = "", dotted: bool = False) -> None:
        """Along straight pieces; `dotted` leaves out every other dot."""
        for (x0, y0), (x1, y1) in itertools.pairwise(points):
            left, right = self._dot_x(x0), self._dot_x(x1)
            low, high = self._dot_y(y0), self._dot_y(y1)
            count = max(abs(right - left), abs(high - low), 1)
            for number in range(count + 1):
                x = round(left + (right - left) * number / count)
                y = round(low + (high - low) * number / count)
                if not (dotted and x % 2):
                    self._set(x, y, style)

    def band(self, lower: Points, upper: Points, style: str = "") -> None:
        """Everything between two lines that have their points at the same places."""
        xs = [x for x, _ in lower]
        for column in range(self.columns):
            x = (column + 0.5) / self.columns
            if xs and xs[0] <= x <= xs[-1]:
                low, high = self._row(_between(lower, x)), self._row(_between(upper, x))
                for row in range(high, low + 1):
                    self._band[row, column] = style

    def rule(self, x: float, style: str = "", mark: str = "┊") -> None:
        """A line from top to bottom."""
        self._rules[column_of(x, self.columns)] = (mark, style)

    def lines(self, coloured: bool) -> list[str]:
        return [
            "".join(self._cell(row, column, coloured) for column in range(self.columns)) for row in range(self.rows)
        ]

    def _cell(self, row: int, column: int, coloured: bool) -> str:
        place = (row, column)
        bits, band = self._bits.get(place, 0), self._band.get(place)
        if bits:
            text, style = chr(0x2800 + bits), self._styles[place]
        elif column in self._rules:
            text, style = self._rules[column]
        elif band is not None:
            text, style = SHADE, band
        else:
            return " "
        return f"{style}{text}{_RESET}" if coloured and style else text

    def _set(self, x: int, y: int, style: str) -> None:
        place = (self.rows - 1 - y // 4, x // 2)
        self._bits[place] = self._bits.get(place, 0) | _DOTS[3 - y % 4][x % 2]
        self._styles[place] = style

    def _dot_x(self, x: float) -> int:
        return min(max(int(x * self.columns * 2), 0), self.columns * 2 - 1)

    def _dot_y(self, amount: float) -> int:
        share = amount / self.top if self.top > 0 else 0.0
        return min(max(round(share * (self.rows * 4 - 1)), 0), self.rows * 4 - 1)

    def _row(self, amount: float) -> int:
        return self.rows - 1 - self._dot_y(amount) // 4


def column_of(x: float, columns: int) -> int:
    return min(int(x * columns), columns - 1)


def _between(points: Points, x: float) -> float:
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if x0 <= x <= x1:
            return y0 if x1 == x0 else y0 + (y1 - y0) * (x - x0) / (x1 - x0)
    return points[-1][1]


def nice_top(amount: float) -> float:
    """A round number that is not below it: 1, 2, 4, 5, 10, 20, ... so that halves are round, too."""
    if amount <= 1.0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(amount))
    return next(
        size * step for step in (1.0, 1.2, 1.6, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0) if size * step >= amount - 1e-9
    )


def with_labels(labels: Sequence[tuple[float, str]], columns: int) -> str:
    """Labels under an axis, each in the middle under its place; one that would touch another is left out."""
    line = [" "] * columns
    for x, text in labels:
        start = min(max(round(x * columns - len(text) / 2), 0), columns - len(text))
        around = line[max(start - 1, 0) : start + len(text) + 1]
        if start >= 0 and not "".join(around).strip():
            line[start : start + len(text)] = text
    return "".join(line).rstrip()
