"""Electricity and carbon of a receipt: the ledger's entries as uses of energy.py. Pure.

Nothing on a node tells the ledger its watts (yet), so these are estimates: a labelled second in which the accelerators
worked counts as busy, one of which nobody knows (a foreign job's) as half busy, every other one as idle.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tradewind.cost.account import Entry, NodeAccount
from tradewind.cost.energy import Footprint, Use, added, footprint
from tradewind.cost.history import WHOLE_PPM
from tradewind.cost.labels import Label
from tradewind.units import MS_PER_H

BUSY = 0.8  # of what a card can take, while it trains
UTILISATION = {Label.USEFUL: BUSY, Label.RECOMPUTED: BUSY, Label.UNMEASURED: 0.5}


def footprint_of(parts: Iterable[tuple[NodeAccount, Sequence[Entry]]]) -> Footprint | None:
    """Of entries, each with its node. None where there are none."""
    return added(footprint(_use(account, entry)) for account, entries in parts for entry in entries)


def _use(account: NodeAccount, entry: Entry) -> Use:
    offer = account.offer
    return Use(
        cloud=offer.market.cloud,
        region=offer.market.region,
        hours=_node_hours(account, entry),
        hosts=offer.hosts,
        accelerator=offer.accelerator,
        accelerators=offer.accelerator_count,
        vcpus=offer.vcpus,
        memory_gib=offer.memory_gib,
        utilisation=UTILISATION.get(entry.label, 0.0),
    )


def _node_hours(account: NodeAccount, entry: Entry) -> float:
    """Of the whole node: by what was held of its accelerators; on a node without, by what was paid of it."""
    if account.accelerators:
        return entry.accelerator_ppm_ms / WHOLE_PPM / MS_PER_H
    if not account.cost_uusd:
        return entry.duration_ms / MS_PER_H
    return entry.cost_uusd / account.cost_uusd * account.duration_ms / MS_PER_H
