"""A listing that some regions did not answer. An error, so that nobody takes it for the whole; with what was found."""

from __future__ import annotations

from collections.abc import Sequence

from tradewind.autoscaler.providers.base import CloudNode
from tradewind.errors import Transient


class PartialListing(Transient):
    """`nodes` were listed; of what is in the regions `blind`, nothing may be concluded. One who does not know this
    class is blind for the whole cloud, which is safe."""

    default_hint = "the regions that answer are looked after; it is tried again by itself"

    def __init__(self, message: str, *, cloud: str, nodes: Sequence[CloudNode], blind: frozenset[str]) -> None:
        super().__init__(message, cloud=cloud)
        self.nodes = tuple(nodes)
        self.blind = blind
