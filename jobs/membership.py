"""Who trains together: the pure part of the coordinator's work. Worker processes outlive changes of the group.

    enroll -> every member arrives -> Roster of epoch e -> ... a loss, a joiner, a notice ... -> arrive -> Roster e + 1

A roster is formed when every member that is expected has come: those of the last roster that are neither lost nor
leaving, and the joiners that stand at the door. Nothing is decided by the members themselves, so there are never two
groups. Who was once taken for lost stays out, also when it comes back: `Fenced`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

_NOBODY: frozenset[str] = frozenset()
NOTHING_YET = -1  # the step of a joiner: it has no state to give


class Change(StrEnum):
    """What the members of the standing roster should do."""

    NONE = "none"
    SOFT = "soft"  # meet at the next step boundary: somebody joins or leaves
    HARD = "hard"  # leave the collective at once: somebody is lost


@dataclass(frozen=True, slots=True)
class Arrival:
    """A member that is ready for the next roster."""

    member: str
    epoch: int  # of the roster that it was in last; 0 for a newcomer
    step: int  # optimizer steps that its state holds; NOTHING_YET for a joiner
    host: str
    port: int  # where its store for the next group listens
    broken: bool = False  # its collective does not work any more


@dataclass(frozen=True, slots=True)
class Roster:
    """One epoch's group: members in the order of their ranks."""

    epoch: int
    members: tuple[str, ...]
    steps: tuple[int, ...]  # that each member's state holds
    host: str
    port: int

    @property
    def leader(self) -> int:
        """The rank whose state counts: the most advanced, the lowest of these."""
        return self.steps.index(max(self.steps))

    @property
    def step(self) -> int:
        return max(max(self.steps), 0)

    @property
    def agreed(self) -> bool:
        """Whether all hold the same state already."""
        return len(set(self.steps)) == 1


class Fenced(Exception):
    """This member is not, or no longer, part of the job: it was taken for lost, or released."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Frozen: every function below returns the next one."""

    epoch: int = 0  # of the roster that stands, or stood last
    least: int = 1
    order: tuple[str, ...] = ()  # of ranks: as they were enrolled
    enrolled: frozenset[str] = frozenset()  # may take part
    starters: frozenset[str] = frozenset()  # the first roster waits for all of them
    roster: Roster | None = None
    arrived: Mapping[str, Arrival] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()  # lost or released; for ever


def begin(epoch: int, least: int, gone: Iterable[str] = ()) -> Membership:
    """A new set of worker processes, whose first roster will have the number `epoch`."""
    return Membership(epoch=epoch - 1, least=least, gone=frozenset(gone))


def enroll(now: Membership, members: Iterable[str]) -> Membership:
    """Members that may take part. Those that are enrolled before the first roster are waited for by it."""
    new = [name for name in members if name not in now.gone | now.enrolled]
    starters = now.starters.union(new) if now.roster is None else now.starters
    return replace(now, order=(*now.order, *new), enrolled=now.enrolled.union(new), starters=starters)


def arrive(now: Membership, arrival: Arrival) -> Membership:
    if arrival.member in now.gone or arrival.member not in now.enrolled:
        raise Fenced(f"{arrival.member} is not part of the group")
    in_roster = now.roster is not None and arrival.member in now.roster.members
    if in_roster and arrival.epoch != now.epoch:
        raise Fenced(f"{arrival.member} comes from epoch {arrival.epoch}, it is {now.epoch}")
    return replace(now, arrived={**now.arrived, arrival.member: arrival})


def lose(now: Membership, members: Iterable[str]) -> Membership:
    """They are taken for dead. It need not be true; they stay out."""
    lost = frozenset(members)
    return replace(
        now,
        gone=now.gone | lost,
        enrolled=now.enrolled - lost,
        starters=now.starters - lost,
        leaving=now.leaving - lost,
        arrived={name: arrival for name, arrival in now.arrived.items() if name not in lost},
    )


def release(now: Membership, members: Iterable[str]) -> Membership:
    """They are to leave at the next boundary, once: who cannot be spared there has to be asked again. Below the least
    number nobody is released."""
    wanted = (frozenset(members) & now.enrolled) | now.leaving
    return replace(now, leaving=wanted) if len(now.enrolled - wanted) >= now.least else now


def expected(now: Membership) -> frozenset[str]:
    """Who must come before a roster is formed. Those that leave, too: they hold state, and hear that they may go."""
    if now.roster is None:
        return now.starters
    return frozenset(now.roster.members) - now.gone


def change(now: Membership) -> Change:
    """What the standing roster should do now."""
    if now.roster is None:
        return Change.NONE
    standing = frozenset(now.roster.members)
    if standing & now.gone or any(now.arrived[name].broken for name in standing & now.arrived.keys()):
        return Change.HARD
    if standing & now.leaving or now.arrived.keys() - standing:
        return Change.SOFT
    return Change.NONE


def settle(now: Membership) -> Membership:
    """Form the next roster if everybody is there. Survivors keep their order, joiners come after them."""
    if not expected(now) <= now.arrived.keys():
        return now
    out = now.leaving & now.arrived.keys()
    if not _can_train([arrival for name, arrival in now.arrived.items() if name not in out], now.least):
        out = frozenset()  # they cannot go yet: who stays needs their state, or is too few
    staying = [arrival for name, arrival in now.arrived.items() if name not in out]
    if not _can_train(staying, now.least):
        return now
    ordered = sorted(staying, key=lambda arrival: now.order.index(arrival.member))
    roster = Roster(
        epoch=now.epoch + 1,
        members=tuple(arrival.member for arrival in ordered),
        steps=tuple(arrival.step for arrival in ordered),
        host=ordered[0].host,
        port=ordered[0].port,
    )
    return replace(
        now,
        epoch=roster.epoch,
        roster=roster,
        arrived={},
        gone=now.gone | out,
        enrolled=now.enrolled - out,
        leaving=_NOBODY,
    )


def _can_train(members: Sequence[Arrival], least: int) -> bool:
    return len(members) >= least and any(arrival.step > NOTHING_YET for arrival in members)
