"""Who trains together: the pure part of the coordinator's work. Worker processes outlive changes of the group.

    enroll -> every member arrives -> Roster of epoch e -> ... a loss, a joiner, a notice ... -> arrive -> Roster e + 1

A roster is formed when every member that is expected has come: those of the last roster that are neither lost nor
leaving, and the joiners that stand at the door. Nothing is decided by the members themselves, so there are never two
groups. Who was once taken for lost stays out, also when it comes back: `Fenced`.

Replicas are the unit: a roster has whole ones only, who is left over waits in reserve. The state is cut into parts (one
for plain data parallelism, the coordinates of a replica for sharded models); the roster says at which step the group
goes on, and who gives each part: the newest step of which every part is in somebody's memory.
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
    part: int = 0  # of the state that it holds
    copies: tuple[tuple[int, int], ...] = ()  # (part, step) that it has beside, in its memory
    sums: tuple[float, ...] = ()  # of its last step, for those that are in doubt about it

    def has(self, part: int, step: int) -> bool:
        return (self.part, self.step) == (part, step) or (part, step) in self.copies


@dataclass(frozen=True, slots=True)
class Roster:
    """One epoch's group: members in the order of their ranks."""

    epoch: int
    members: tuple[str, ...]
    hosts: tuple[str, ...]
    steps: tuple[int, ...]  # that each member's state holds
    held: tuple[int, ...]  # the part of it
    host: str
    port: int
    step: int = 0  # where the group goes on; NOTHING_YET: from storage, if there is anything
    givers: tuple[int, ...] = ()  # of each part: the rank that has it, as of `step`
    first: bool = False  # the first roster of these processes: they start from storage, or from nothing


class Fenced(Exception):
    """This member is not, or no longer, part of the job: it was taken for lost, or released."""


@dataclass(frozen=True, slots=True)
class Membership:
    """Frozen: every function below returns the next one."""

    epoch: int = 0  # of the roster that stands, or stood last
    least: int = 1
    replica: int = 1  # workers in each
    whole: bool = False  # one copy of the state, cut into as many parts as there are members
    order: tuple[str, ...] = ()  # of ranks: as they were enrolled
    enrolled: frozenset[str] = frozenset()  # may take part
    starters: frozenset[str] = frozenset()  # the first roster waits for all of them
    roster: Roster | None = None
    arrived: Mapping[str, Arrival] = field(default_factory=dict)
    leaving: frozenset[str] = frozenset()
    gone: frozenset[str] = frozenset()  # lost or released; for ever
    called: bool = False  # everybody is to come at once: somebody hangs


def begin(epoch: int, least: int, replica: int = 1, whole: bool = False) -> Membership:
    """A new set of worker processes, whose first roster will have the number `epoch`."""
    return Membership(epoch=epoch - 1, least=least, replica=replica, whole=whole)


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
    number nobody is released. Who waits in reserve goes at once."""
    asked = frozenset(members) & now.enrolled
    if now.roster is not None:
        now = lose(now, asked & now.arrived.keys() - frozenset(now.roster.members))
    wanted = (asked & now.enrolled) | now.leaving
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
    if now.called or standing & now.gone or any(now.arrived[name].broken for name in standing & now.arrived.keys()):
        return Change.HARD
    if standing & now.leaving or len(now.arrived.keys() - standing) >= now.replica:
        return Change.SOFT
    return Change.NONE


def settle(now: Membership) -> Membership:
    """Form the next roster if everybody is there, and enough."""
    if not expected(now) <= now.arrived.keys():
        return now
    out = now.leaving & now.arrived.keys()
    if not _can_spare(now, out):
        out = _NOBODY  # they cannot go yet: who stays needs their state, or is too few
    staying = [now.arrived[name] for name in now.order if name in now.arrived and name not in out]
    seated = seat(staying, now.roster, now.replica)
    if len(seated) < max(now.least, now.replica) or all(arrival.step == NOTHING_YET for arrival in seated):
        return now
    roster = _roster(now, seated)
    return replace(
        now,
        epoch=roster.epoch,
        roster=roster,
        arrived={arrival.member: arrival for arrival in staying if arrival.member not in roster.members},
        gone=now.gone | out,
        enrolled=now.enrolled - out,
        leaving=_NOBODY,
        called=False,
    )


def need(now: Membership, least: int) -> Membership:
    """From now on so many are enough. Fewer are, for those that are only to save what they hold, and end."""
    return replace(now, least=least)


def call(now: Membership) -> Membership:
    """Have everybody come, whatever it is doing."""
    return replace(now, called=now.roster is not None)


def seat(staying: Sequence[Arrival], before: Roster | None, replica: int) -> list[Arrival]:
    """Who sits where: rank = row * replica + part. Whole replicas stay as they are and come first; in the rows after
    them, everybody sits at the part that it holds where that is free. The rest follows, node by node. Who is left over
    waits."""
    rows = len(staying) // replica
    if before is None:
        return _by_host(staying)[: rows * replica]
    intact, rest = _intact(staying, before, replica)
    free = [[None] * replica for _ in range(rows - len(intact))]
    seats: list[list[Arrival | None]] = [*intact[:rows], *free]  # type: ignore[list-item]
    rest = [*rest, *(arrival for row in intact[rows:] for arrival in row)]
    for arrival in [each for each in rest if each.step > NOTHING_YET]:
        row = next((row for row in seats if row[arrival.part % replica] is None), None)
        if row is not None:
            row[arrival.part % replica] = arrival
            rest.remove(arrival)
    waiting = iter(_by_host(rest))
    return [found for row in seats for found in (each or next(waiting) for each in row)]


def agree(arrivals: Sequence[Arrival], parts: int) -> tuple[int, tuple[int, ...]] | None:
    """The newest step of which every part is in somebody's memory, and whose: an index for each part."""
    steps = {arrival.step for arrival in arrivals} | {step for arrival in arrivals for _, step in arrival.copies}
    for step in sorted(steps - {NOTHING_YET}, reverse=True):
        holders = [
            next((at for at, arrival in enumerate(arrivals) if arrival.has(part, step)), None) for part in range(parts)
        ]
        if None not in holders:
            return step, tuple(at for at in holders if at is not None)
    return None


def _roster(now: Membership, seated: Sequence[Arrival]) -> Roster:
    found = agree(seated, _parts(now)) if now.roster else (max(arrival.step for arrival in seated), ())
    step, givers = found or (NOTHING_YET, ())
    return Roster(
        epoch=now.epoch + 1,
        members=tuple(arrival.member for arrival in seated),
        hosts=tuple(arrival.host for arrival in seated),
        steps=tuple(arrival.step for arrival in seated),
        held=tuple(arrival.part for arrival in seated),
        host=seated[0].host,
        port=seated[0].port,
        step=step,
        givers=givers,
        first=now.roster is None,
    )


def _parts(now: Membership) -> int:
    """Into how many parts the state of the last roster is cut."""
    return len(now.roster.members) if now.whole and now.roster else now.replica


def _intact(
    staying: Sequence[Arrival], before: Roster | None, replica: int
) -> tuple[list[list[Arrival]], list[Arrival]]:
    """Replicas of the roster before that are still whole, and everybody else."""
    by_name = {arrival.member: arrival for arrival in staying}
    rows: list[list[Arrival]] = []
    members = before.members if before else ()
    for first in range(0, len(members), replica):
        row = members[first : first + replica]
        if all(name in by_name for name in row):
            rows.append([by_name.pop(name) for name in row])
    return rows, list(by_name.values())


def _by_host(arrivals: Sequence[Arrival]) -> list[Arrival]:
    hosts = list(dict.fromkeys(arrival.host for arrival in arrivals))
    return sorted(arrivals, key=lambda arrival: hosts.index(arrival.host))


def _can_spare(now: Membership, out: frozenset[str]) -> bool:
    """Whether the others are enough, and need not go back for the state of those that leave."""
    others = [arrival for arrival in now.arrived.values() if arrival.member not in out]
    if len(others) < max(now.least, now.replica) or all(arrival.step == NOTHING_YET for arrival in others):
        return False
    with_them, without = agree(list(now.arrived.values()), _parts(now)), agree(others, _parts(now))
    return with_them is None or (without is not None and without[0] == with_them[0])
