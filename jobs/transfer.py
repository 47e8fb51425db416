"""What this worker can give when the group changes, and how it gets what it needs.

    remember (live state, copies in memory) -> roster: at which step to go on, who gives which part -> take_over

A loss in the middle leaves everybody with what it had, or with what the roster agreed on: claims follow the state.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist

from tradewind.jobs import named_state, peer_memory
from tradewind.jobs.layout import Layout
from tradewind.jobs.losses import StateLost
from tradewind.jobs.membership import NOTHING_YET, Roster
from tradewind.jobs.peer_memory import Holding, PeerMemory
from tradewind.jobs.refill import Move, refill
from tradewind.jobs.regroup import Group

LOSSES_PER_NODE_S = 0.1 / 3600  # of spot nodes


def part_of(layout: Layout, rank: int) -> int:
    """Which part of the state a rank holds."""
    return rank if layout.whole else rank % layout.replica_size


def parts(layout: Layout, world: int) -> int:
    """Into how many parts the state of a group is cut."""
    return world if layout.whole else layout.replica_size


def lacks(roster: Roster, layout: Layout, rank: int) -> bool:
    """Whether a rank has to be given its part. Pure: everybody knows it of everybody."""
    if layout.whole and len(roster.givers) != len(roster.members):
        return True
    return (roster.steps[rank], roster.held[rank]) != (roster.step, part_of(layout, rank))


class Holdings:
    """This worker's state, as far as others may need it."""

    def __init__(self, layout: Layout, step: int) -> None:
        self._layout = layout
        self.step, self.part, self.of = step, 0, layout.replica_size
        self._memory = PeerMemory()
        self.sums: tuple[float, ...] = ()  # of the last step
        self._live: Mapping[str, Any] = {}
        self._stale = False  # what is kept is not what this worker claims to have
        self._cost_s, self._copied_step = 0.0, 0

    @property
    def copies(self) -> tuple[tuple[int, int], ...]:
        """(part, step) in memory, of the state as it is cut now."""
        held = self._memory.supplies(None)
        return tuple((each.coordinate, each.step) for each in held if each.of == self.of)

    def remember(self, kept: Mapping[str, Any], step: int) -> None:
        """The group is about to be rebuilt, and with it what `kept` points to."""
        if self.step != NOTHING_YET:
            self.step = step
        self._live, self._stale = named_state.local(kept), False

    def stand(self, group: Group, step: int) -> None:
        """This worker holds its part of this group's state."""
        self.step, self.part = step, part_of(self._layout, group.rank)
        self.of = parts(self._layout, group.world)

    def take_over(self, group: Group, kept: Mapping[str, Any], words: Any, restore: Callable[[], int]) -> Any:
        """Have the state that the roster has agreed on. Returns what the giver of the first part says, to those that
        were given something."""
        roster, layout = group.roster, self._layout
        if roster.step == NOTHING_YET:
            found = restore()
            if not found:
                raise StateLost("a part of the model's state is lost, and there is no checkpoint")
            self.stand(group, found)
            return None
        receivers = [rank for rank in range(group.world) if lacks(roster, layout, rank)]
        mine = group.rank in receivers
        if receivers:
            held = {part: self._give(part, roster.step) for part, by in enumerate(roster.givers) if by == group.rank}
            said = [words]
            if group.world > 1:
                dist.broadcast_object_list(said, src=roster.givers[0], device=group.device)
            refill(kept, Move(layout, roster.givers, receivers), held)
            words = said[0]
        if self._stale and not mine:
            named_state.put(kept, self._live)
        self._stale = True  # from here on, until the next `remember`
        self.stand(group, roster.step)
        self._live = named_state.local(kept)
        return words if mine else None

    def _give(self, part: int, step: int) -> Mapping[str, Any]:
        if (part, step) == (self.part, self.step):
            return self._live
        found = self._memory.find(Holding(part, self.of, step))
        assert found is not None, f"part {part} of step {step} was promised and is not there"
        return found

    # --- copies in the memory of peers

    def wants_copy(self, group: Group, step: int, step_s: float) -> bool:
        """Asked on rank 0: whether it is time for one. Not where every part is on two nodes anyway."""
        if not self._is_exposed(group) or step <= self._copied_step:
            return False
        every = peer_memory.every_steps(self._cost_s, step_s, LOSSES_PER_NODE_S * group.world)
        return step - self._copied_step >= every

    def copy(self, group: Group, kept: Mapping[str, Any], step: int) -> None:
        """Everybody copies its part to its partner, at the same step."""
        if not self._is_exposed(group) or step == self._copied_step:
            return
        began_s = time.monotonic()
        holding = Holding(self.part, self.of, step)
        self._memory.exchange(named_state.local(kept), holding, peer_memory.partners(group.roster.hosts), group.rank)
        self._cost_s, self._copied_step = time.monotonic() - began_s, step

    def _is_exposed(self, group: Group) -> bool:
        if self.of == 1 or group.world == 1:
            return False
        held = [part_of(self._layout, rank) for rank in range(group.world)]
        return peer_memory.exposed(held, group.roster.hosts) or len(set(group.roster.hosts)) == 1
