"""How many nodes are alive, by cell, role and offer: kept event by event, inside of FleetState.

Every cell's loop counts the nodes of all cells against the fleet's limits, at every tick. By the record that would take
cells x nodes steps; a count that follows the events takes as many as there are offers in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tradewind.model import Offer, Role


@dataclass(slots=True)
class Census:
    counts: dict[tuple[Role, Offer], dict[str, int]] = field(default_factory=dict)  # by role and offer, then by cell

    def born(self, cell: str, role: Role, offer: Offer) -> None:
        by_cell = self.counts.setdefault((role, offer), {})
        by_cell[cell] = by_cell.get(cell, 0) + 1

    def died(self, cell: str, role: Role, offer: Offer) -> None:
        by_cell = self.counts[role, offer]
        by_cell[cell] -= 1
        if not by_cell[cell]:
            del by_cell[cell]
        if not by_cell:
            del self.counts[role, offer]

    def beside_the_workers_of(self, cell: str) -> tuple[list[tuple[Offer, int]], list[tuple[Offer, int]]]:
        """(workers of all other cells, heads of all): how many of each offer."""
        workers, heads = [], []
        for (role, offer), by_cell in list(self.counts.items()):  # copied: another thread may apply an event
            count = sum(list(by_cell.values()))
            if role is Role.WORKER:
                workers.append((offer, count - by_cell.get(cell, 0)))
            else:
                heads.append((offer, count))
        return workers, heads
