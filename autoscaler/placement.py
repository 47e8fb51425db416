"""Which nodes a cloud is asked to put side by side: placement groups for gangs. Pure.

A gang of several nodes with accelerators talks all the time, and nodes under one switch talk faster. AWS has cluster
placement groups, Google compact placement policies, Azure proximity placement groups; a TPU slice is wired together
anyway. One group for a gang and a zone: none of these spans zones. docs/designs/placement.md tells what happens when a
group has no room.
"""

from __future__ import annotations

import hashlib
import re

from tradewind.model import Market, Offer

_DIGITS = 12
# Compute Engine has compact placement for these families of machines with accelerators, and not for N1 with any GPU.
_GCP = re.compile(r"(a2|a3|a4|a4x|g2)-")


def has_groups(offer: Offer) -> bool:
    """Whether its cloud takes machines of this type into a group. Those without accelerators need none."""
    if not offer.accelerator or offer.hosts > 1 or offer.accelerator.startswith("TPU"):
        return False
    cloud = offer.market.cloud
    return cloud in ("aws", "azure") or (cloud == "gcp" and bool(_GCP.match(offer.market.instance_type)))


def group_name(fleet: str, cell: str, gang: str, market: Market) -> str:
    """The same for every node of a gang in a zone, at every tick and after a restart. All clouds take it as a name, Ray
    as the value of a label."""
    told = "|".join((cell, gang, market.cloud, market.zone))
    return f"{_prefix(fleet)}{hashlib.sha256(told.encode()).hexdigest()[:_DIGITS]}"


def is_group_of(fleet: str, name: str) -> bool:
    """By its name alone, where a cloud puts no tags on groups. Fleet `a` has nothing of fleet `a-b`."""
    return re.fullmatch(f"{re.escape(_prefix(fleet))}[0-9a-f]{{{_DIGITS}}}", name) is not None


def _prefix(fleet: str) -> str:
    return f"tw-{re.sub(r'[^a-z0-9]', '-', fleet.lower())}-"
