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
    totals: dict[Role, dict[Offer, int]] = field(default_factory=lambda: {role: {} for role in Role})  # of all cells

    def born(self, cell: str, role: Role, offer: Offer) -> None:
        by_cell, total = self.counts.setdefault((role, offer), {}), self.totals[role]
        by_cell[cell] = by_cell.get(cell, 0) + 1
        total[offer] = total.get(offer, 0) + 1

    def died(self, cell: str, role: Role, offer: Offer) -> None:
        by_cell, total = self.counts[role, offer], self.totals[role]
        by_cell[cell] -= 1
        total[offer] -= 1
        if not by_cell[cell]:
            del by_cell[cell]
        if not by_cell:
            del self.counts[role, offer], total[offer]

    def everywhere(self) -> tuple[list[tuple[Offer, int]], list[tuple[Offer, int]]]:
        """(workers of all cells, heads of all): how many of each offer. Copied: another thread may apply an event."""
        return list(self.totals[Role.WORKER].items()), list(self.totals[Role.HEAD].items())

    def beside_the_workers_of(self, cell: str) -> tuple[list[tuple[Offer, int]], list[tuple[Offer, int]]]:
        """(workers of all other cells, heads of all): how many of each offer."""
        worker, others = Role.WORKER, []
        for (role, offer), by_cell in list(self.counts.items()):  # not by looking offers up: they are slow to hash
            if role is worker and (count := sum(list(by_cell.values())) - by_cell.get(cell, 0)):
                others.append((offer, count))
        return others, self.everywhere()[1]
