"""How many nodes are alive, by cell, role and offer: kept event by event, inside of FleetState.

Every cell's loop counts the nodes of all cells against the fleet's limits, at every tick. By the record that would take
cells x nodes steps; a count that follows the events takes as many as there are offers in use.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tradewind.model import Offer, Role


class Group(NamedTuple):
    """Nodes that limits cannot tell apart, but for whose they are."""

    cell: str
    role: Role
    offer: Offer


@dataclass(slots=True)
class Census:
    counts: dict[Group, int] = field(default_factory=dict)

    def born(self, group: Group) -> None:
        self.counts[group] = self.counts.get(group, 0) + 1

    def died(self, group: Group) -> None:
        left = self.counts[group] - 1
        if left:
            self.counts[group] = left
        else:
            del self.counts[group]

    def beside_the_workers_of(self, cell: str) -> tuple[list[tuple[Offer, int]], list[tuple[Offer, int]]]:
        """(workers of all other cells, heads of all): how many of each offer."""
        workers: dict[int, tuple[Offer, int]] = {}
        heads: dict[int, tuple[Offer, int]] = {}
        for (where, role, offer), count in list(self.counts.items()):  # copied: another thread may apply an event
            if role is not Role.WORKER or where != cell:
                found, key = workers if role is Role.WORKER else heads, id(offer)  # equal ones are one object on record
                found[key] = (offer, found[key][1] + count if key in found else count)
        return list(workers.values()), list(heads.values())
