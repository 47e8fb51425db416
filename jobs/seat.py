"""A worker's seat in the group: it holds the lifeline, meets the others, and hears when the group has to change.

Stands between `run.py` (the training loop), the coordinator (who is in) and `regroup.py` (sockets, process groups).
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import asdict
from typing import Any

from tradewind.jobs import regroup
from tradewind.jobs.layout import Layout
from tradewind.jobs.membership import Arrival, Change, Roster
from tradewind.jobs.transfer import Holdings

logger = logging.getLogger(__name__)

WATCH_TIMEOUT_S = 30.0


class Dismissed(BaseException):
    """This worker is not part of the group any more: it was let go, or taken for lost. Its function ends here.
    Not an Exception: the user's code must not catch it."""


class Resting(BaseException):
    """The group has saved and ends here, to go on later. Not an Exception, for the same reason."""


class Seat:
    def __init__(self, coordinator: Any, member: str, host: str, device: Any, layout: Layout) -> None:
        import ray

        self._coordinator, self._member, self._host = coordinator, member, host
        self._device, self._layout = device, layout
        self.group: regroup.Group | None = None
        self.wanted = False  # a meeting at the next boundary
        where, port, word = ray.get(coordinator.lifeline.remote())
        self._lifeline = socket.create_connection((where, port), timeout=10)
        self._lifeline.sendall(f"{word} {member}\n".encode())
        os.register_at_fork(after_in_child=self._forget)

    def meet(self, holds: Holdings, broken: bool) -> regroup.Group:
        """Leave the present group, and stand in the next one. Raises what torch raises when that breaks, too."""
        import ray

        self.leave()
        store = regroup.open_store(self._host)
        epoch = self.group.roster.epoch if self.group else 0
        arrival = Arrival(
            self._member, epoch, holds.step, self._host, store.port, broken, holds.part, holds.copies, holds.sums
        )
        found = ray.get(self._coordinator.meet.remote(asdict(arrival)))
        if found is None:
            raise Dismissed
        roster = Roster(**found)
        self.wanted = False
        self.group = group = regroup.Group(roster, roster.members.index(self._member), self._device, self._layout)
        threading.Thread(target=self._watch, args=(group,), name="seat-watch", daemon=True).start()
        group.build(store)
        return group

    def fail(self) -> None:
        """A collective has failed here: nobody can use this group any more."""
        if self.group is not None:
            self.group.abort()

    def resolve(self, step: int) -> tuple[float, ...] | None:
        """Whether another worker has taken a step that this one was interrupted in at the very end: its sums."""
        import ray

        found: tuple[float, ...] | None = ray.get(self._coordinator.resolve.remote(self._member, step))
        return found

    def leave(self) -> None:
        if self.group is not None:
            self.group.abort()
            self.group.close()

    def _forget(self) -> None:
        """In a child of this process, such as a DataLoader's worker, which lives for seconds after this one is killed:
        it must not hold the connections open by which a loss is noticed."""
        self._lifeline.close()
        if self.group is not None:
            regroup.forget(self.group.ports | {self.group.roster.port})

    def _watch(self, group: regroup.Group) -> None:
        import ray

        seen: str | None = Change.NONE.value
        while seen is not None and seen != Change.HARD.value:
            try:
                seen = ray.get(self._coordinator.watch_group.remote(group.roster.epoch, seen, WATCH_TIMEOUT_S))
            except ray.exceptions.RayError as error:
                logger.info("the group is not watched any more: %s", error)
                return
            if seen == Change.SOFT.value:
                self.wanted = True
        if seen == Change.HARD.value:
            group.abort()
