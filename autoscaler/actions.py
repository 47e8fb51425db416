"""What a plan consists of: frozen actions, each with its reason and what it beat. Pure values.

An alternative that costs the same was not beaten: its words end with `AS_CHEAP`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.ray_snapshot import DrainReason
from tradewind.autoscaler.shape import Shape
from tradewind.model import Offer, Role, Target

AS_CHEAP = ", as cheap"
SAME_UUSD = 0.5  # amounts that differ by less are one


def alternative(words: str, is_tied: bool) -> str:
    return f"{words}{AS_CHEAP}" if is_tied else words


@dataclass(frozen=True, slots=True)
class Launch:
    """Buy one node. `fallbacks` are the next best offers, tried in this order when the cloud refuses."""

    offer: Offer
    reason: str
    alternatives: tuple[str, ...] = ()
    fallbacks: tuple[Offer, ...] = ()
    jobs: tuple[str, ...] = ()  # on whose behalf, as far as it is known
    ruled_out: tuple[str, ...] = ()  # offers that would fit and were not considered, each with the reason
    replaces: tuple[str, ...] = ()  # launch ids whose work it is to take over
    role: Role = Role.WORKER
    gang: str = ""  # whose other nodes it should be close to; empty: nobody's (placement.py)


@dataclass(frozen=True, slots=True)
class Drain:
    launch_id: str
    ray_node_ids: tuple[str, ...]  # of a slice: all hosts, the first host first
    why: DrainReason
    reason: str
    deadline_s: float | None = None
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Terminate:
    launch_id: str
    reason: str
    alternatives: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """Something is asked for and nothing is done about it, for this reason."""

    subject: str
    reason: str
    alternatives: tuple[str, ...] = ()
    shape: Shape | None = None  # set when no offer at all could ever serve it
    jobs: tuple[str, ...] = ()  # who asks for it, as far as it is known
    cause: str = ""  # the reason without what changes from tick to tick: it is recorded once; empty: the reason

    @property
    def key(self) -> tuple[str, str]:
        """The same for what was told already."""
        return self.subject, self.cause or self.reason


Action = Launch | Drain | Terminate | Hold


@dataclass(frozen=True, slots=True)
class Plan:
    """The decision of one tick."""

    at_s: float
    actions: tuple[Action, ...] = ()
    targets: Mapping[str, Target] = field(default_factory=dict)  # job id -> what it is granted

    def of(self, kind: type[Action]) -> list[Action]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def launches(self) -> list[Launch]:
        return [action for action in self.actions if isinstance(action, Launch)]

    @property
    def holds(self) -> list[Hold]:
        return [action for action in self.actions if isinstance(action, Hold)]
