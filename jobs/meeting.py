"""Where the members of a job meet: the coordinator's half of membership. `membership.py` decides, this waits.

Every member holds a connection to here, its lifeline. A process that ends, closes it: that is how a loss is known
within milliseconds, long before Ray notices a dead node. A member whose connection breaks for another reason is taken
for lost, too; it is kept out, so that nothing goes wrong but a process that has to be started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from tradewind.jobs import membership
from tradewind.jobs.membership import Arrival, Change, Fenced

PATIENCE_S = 60.0  # for members that neither come nor die, once another waits


class Meeting:
    """Lives on the coordinator's event loop, which needs no locks."""

    def __init__(self, formed: Callable[[membership.Roster], None], lost: Callable[[list[int]], None]) -> None:
        self.now = membership.begin(1, 1)
        self._formed, self._lost = formed, lost
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._word = secrets.token_hex(16)  # strangers cannot have a member taken for lost
        self._over = False
        self.lost: frozenset[str] = frozenset()  # for ever; who was released is not
        self._doubts: dict[str, int] = {}  # members of this epoch that are in doubt about a step

    def begin(self, epoch: int, least: int, replica: int = 1, whole: bool = False) -> None:
        """New processes; whoever is left of the old ones is not let in."""
        self.now, self._over = membership.begin(epoch, least, replica, whole), False
        self._wake()

    def enroll(self, members: Iterable[str]) -> None:
        self._set(membership.enroll(self.now, members))

    def release(self, members: Iterable[str]) -> None:
        self._set(membership.release(self.now, members))

    def lose(self, members: Iterable[str]) -> None:
        lost = frozenset(members) & self.now.enrolled
        if lost and not self._over:
            self.lost |= lost
            if self.now.roster and (standing := lost.intersection(self.now.roster.members)):
                self._lost([self.now.roster.members.index(member) for member in standing])
            self._set(membership.lose(self.now, lost))

    def need(self, least: int) -> None:
        """So many must meet from now on. A smaller group that stands (it was only to save, and end) is called, and
        waits for others."""
        self._set(membership.need(self.now, least))
        if self.is_short and not self._over:
            self._set(membership.call(self.now))

    @property
    def is_short(self) -> bool:
        return self.now.roster is not None and len(self.now.roster.members) < self.now.least

    def call_the_roll(self, patience_s: float) -> None:
        """No step is taken: everybody shall leave the collective and come. Who does not within `patience_s` is lost."""
        if self.now.roster is not None and not self._over:
            self._set(membership.call(self.now))
            called = self.now.epoch
            asyncio.get_running_loop().call_later(patience_s, self._end_the_roll, called)

    def _end_the_roll(self, epoch: int) -> None:
        if self.now.epoch == epoch and self.now.arrived:
            self._give_up_on_the_missing()

    def close(self) -> None:
        """The last step is saved: who ends now is not lost."""
        self._over = True

    async def meet(self, arrival: Arrival) -> dict[str, Any] | None:
        """Wait for the next roster. None: this member is not part of it, and never will be."""
        try:
            self._set(membership.arrive(self.now, arrival))
        except Fenced:
            return None
        end = time.monotonic() + PATIENCE_S
        while arrival.member in self.now.arrived:  # until it stands in a roster, or is out
            await self._next_change(end - time.monotonic())
            if time.monotonic() >= end:
                end += PATIENCE_S
                self._give_up_on_the_missing()
        roster = self.now.roster
        return asdict(roster) if roster is not None and arrival.member in roster.members else None

    async def resolve(self, member: str, step: int) -> tuple[float, ...] | None:
        """A member has all gradients of `step`, and does not know whether the others have: the sums of the step, if one
        of them has taken it; then it can, too. None: nobody has."""
        self._doubts[member] = step
        self._wake()
        end = time.monotonic() + PATIENCE_S
        while member in self.now.enrolled and self._missing() and time.monotonic() < end:
            await self._next_change(end - time.monotonic())
        if self._missing():
            self.lose(self._missing())
        return next((arrival.sums for arrival in self.now.arrived.values() if arrival.step == step), None)

    def _missing(self) -> frozenset[str]:
        """Who has neither come nor asked."""
        return membership.expected(self.now) - self.now.arrived.keys() - self._doubts.keys()

    async def watch(self, epoch: int, seen: Change, timeout_s: float) -> Change | None:
        """Wait until the roster of `epoch` should do something else than `seen`. None: it does not stand any more."""
        end = time.monotonic() + timeout_s
        while self.now.epoch == epoch and membership.change(self.now) is seen and time.monotonic() < end:
            await self._next_change(end - time.monotonic())
        return membership.change(self.now) if self.now.epoch == epoch else None

    async def listen(self, host: str) -> tuple[str, int, str]:
        """Open the door for lifelines; where it is, and the word that opens it."""
        if self._server is None:
            self._server = await asyncio.start_server(self._hold, host, 0)
        found = self._server.sockets[0].getsockname()
        return found[0], found[1], self._word

    async def _hold(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word, _, member = (await reader.readline()).decode(errors="replace").strip().partition(" ")
        if not secrets.compare_digest(word, self._word):
            writer.close()
            return
        with contextlib.suppress(OSError):  # reset: the same as closed
            while await reader.read(1):
                continue
        writer.close()
        self.lose([member])

    def _give_up_on_the_missing(self) -> None:
        if self.now.roster is not None:
            self.lose(membership.expected(self.now) - self.now.arrived.keys())

    def _set(self, state: membership.Membership) -> None:
        before, self.now = self.now.epoch, membership.settle(state)
        if self.now.epoch != before and self.now.roster is not None:
            self._doubts = {}
            self._formed(self.now.roster)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next_change(self, timeout_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.0, timeout_s))
