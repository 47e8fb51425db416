"""Electricity and carbon of a receipt: the ledger's entries as uses of energy.py. Pure.

A labelled second in which the accelerators worked counts as busy, one of which nobody knows (a foreign job's) as half
busy, every other one as idle. Where a node has a meter, these estimates only say how its electricity is shared out:
what was measured of its life, by what was estimated of it, is a factor on each of its entries. So the entries of a node
add up to what it took.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tradewind.cost.account import Entry, NodeAccount
from tradewind.cost.energy import Footprint, Use, added, estimated_card_watts, estimated_processor_watts, footprint
from tradewind.cost.history import WHOLE_PPM
from tradewind.cost.labels import Label
from tradewind.units import MS_PER_H

BUSY = 0.8  # of what a card can take, while it trains
UTILISATION = {Label.USEFUL: BUSY, Label.RECOMPUTED: BUSY, Label.UNMEASURED: 0.5}


# (region, from, until, in seconds) -> gCO2/kWh of the hours in which a node ran; None: not known
Intensity = Callable[[str, float, float], float | None]


def footprint_of(
    parts: Iterable[tuple[NodeAccount, Sequence[Entry]]], intensity: Intensity | None = None
) -> Footprint | None:
    """Of entries, each with its node. None where there are none."""
    return added(footprint(use) for account, entries in parts for use in _uses(account, entries, intensity))


def _uses(account: NodeAccount, entries: Sequence[Entry], intensity: Intensity | None) -> list[Use]:
    span_s = (account.launched_ms / 1000, account.until_ms / 1000)
    hourly = intensity(account.offer.market.region, *span_s) if intensity else None
    uses = [replace(_use(account, entry), g_per_kwh=hourly) for entry in entries]
    if not account.energy:
        return uses
    factors = _factors(account)
    return [
        replace(
            use,
            card_watts=None if factors.cards is None else factors.cards * estimated_card_watts(use),
            processor_watts=None if factors.processors is None else factors.processors * estimated_processor_watts(use),
        )
        for use in uses
    ]


@dataclass(frozen=True, slots=True)
class _Factors:
    """Measured by estimated, of a node's life. None: not measured, or nothing was estimated to share it out by."""

    cards: float | None
    processors: float | None


def _factors(account: NodeAccount) -> _Factors:
    whole = [_use(account, entry) for entry in account.entries]
    cards = _mean_watts((each.card_joules, each.seconds) for each in account.energy)
    processors = _mean_watts((each.processor_joules, each.seconds) for each in account.energy)
    return _Factors(
        _ratio(cards, _estimated(whole, estimated_card_watts)),
        _ratio(processors, _estimated(whole, estimated_processor_watts)),
    )


def _mean_watts(readings: Iterable[tuple[float | None, float]]) -> float | None:
    """Of one host: hosts of a node are alike, and some may not have told yet."""
    known = [joules / seconds for joules, seconds in readings if joules is not None and seconds > 0]
    return sum(known) / len(known) if known else None


def _estimated(uses: Sequence[Use], watts: Callable[[Use], float]) -> float:
    hours = sum(use.hours for use in uses)
    return sum(watts(use) * use.hours for use in uses) / hours if hours > 0 else 0.0


def _ratio(measured: float | None, estimated: float) -> float | None:
    return None if measured is None or estimated <= 0 else measured / estimated


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
