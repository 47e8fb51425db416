"""From a fleet file to clouds: its cells, their providers and offers; the price table, preflight and orphans.

`cells_of` is pure; `open_cell` makes the provider and the price source, which call a cloud when they are used.
"""

from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.clouds.providers import CellCloud, open_cell, open_cells, providers_of

__all__ = ["CellCloud", "CellPlan", "cells_of", "open_cell", "open_cells", "providers_of"]
