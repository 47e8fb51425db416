"""Where more room comes from: the seam between first-fit, which runs out of room, and a shop. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tradewind.autoscaler.packing_rooms import Slot
from tradewind.autoscaler.ray_snapshot import Gang
from tradewind.autoscaler.shape import Shape


@dataclass(frozen=True, slots=True)
class Asker:
    """For whom is bought."""

    source: str
    size: int  # how many requests the whole need or gang has
    is_gang: bool = False
    alone: bool = False  # its requests must lie on different nodes ...
    sharers: int = 1  # ... each of which so many like it may share
    may_pass_share: bool = False  # of one market
    zone: str = ""  # where it would rather be, see `near_zone`
    packs: bool = False  # it would rather have few nodes

    def nodes_for(self, count: int, served: int) -> int:
        """How many nodes that serve so many requests each to buy for `count` of them. Those that must lie apart need
        a node each; when all of a gang lacks one, the others that may share them are bought for at once."""
        if not self.alone:
            return max(1, count // served)
        return count * max(1, self.sharers // served) if count == self.size else count


class Buyer(Protocol):
    """Where more room comes from."""

    @property
    def regions(self) -> Sequence[str]:
        """Where anything is sold."""
        ...

    @property
    def counts_askers(self) -> bool:
        """Whether it matters for whom is bought."""
        ...

    def buy(self, shape: Shape, count: int, asker: Asker) -> Sequence[Slot]:
        """New slots for some of these `count` requests, or nothing. Each takes one at the least, but for the further
        hosts of a slice."""
        ...

    def buy_slice(self, gang: Gang) -> Sequence[Slot]:
        """The hosts of one slice that takes the whole gang, or nothing."""
        ...

    def undo(self, slots: Sequence[Slot]) -> None:
        """Give back what was bought for a gang that could not be placed as a whole."""
        ...

    def by_price(
        self, regions: Sequence[str], pieces: Sequence[Shape], is_apart: bool, gangs: int = 1
    ) -> Sequence[str]:
        """The regions where these are cheapest first, if so many gangs of them wait; apart: no two pieces of one gang
        on one node."""
        ...

    def near_zone(self, pieces: Sequence[Shape]) -> str:
        """The cheapest zone that has all of these for little more than they cost elsewhere; empty: there is none."""
        ...


class NoBuyer:
    """Only what is there and what is coming."""

    regions: Sequence[str] = ()
    counts_askers = False

    def buy(self, shape: Shape, count: int, asker: Asker) -> Sequence[Slot]:  # noqa: ARG002
        return ()

    def buy_slice(self, gang: Gang) -> Sequence[Slot]:  # noqa: ARG002
        return ()

    def undo(self, slots: Sequence[Slot]) -> None:
        pass

    def by_price(
        self,
        regions: Sequence[str],
        pieces: Sequence[Shape],  # noqa: ARG002
        is_apart: bool,  # noqa: ARG002
        gangs: int = 1,  # noqa: ARG002
    ) -> Sequence[str]:
        return regions

    def near_zone(self, pieces: Sequence[Shape]) -> str:  # noqa: ARG002
        return ""
