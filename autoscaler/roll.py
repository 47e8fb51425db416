"""The nodes on record, by launch id, with those at hand that every tick asks for.

A fleet that has run for months has a hundred times as many nodes behind it as it has, and every cell looks several
times a second: what it looks for must not take as long as its past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from tradewind.autoscaler.records import NodeRecord
from tradewind.states import NodeState, is_alive

_LATE_S = 600.0  # more than anybody counts launches back
_DISORDER_S = 60.0  # launches of several cells may be on record in another order than that of their times; far too much


class Roll(dict[str, NodeRecord]):
    """In the order in which nodes were asked for. Written by `roll[launch_id] = node` and `update`; no node is ever
    taken off."""

    __slots__ = ("_alive", "_late")

    def __init__(self, nodes: Mapping[str, NodeRecord] | None = None) -> None:
        super().__init__()
        self._alive: dict[str, NodeRecord] = {}
        self._late: dict[str, None] = {}  # launch ids
        self.update((nodes or {}).items())

    @property
    def alive(self) -> list[NodeRecord]:
        """In the same order. Copied at once: another thread may write."""
        return list(self._alive.values())

    def launched_since(self, since_s: float) -> list[NodeRecord]:
        """In the same order. Refused launches are not counted: failing over is not buying."""
        found = []
        for launch_id in reversed(list(self._late)):
            node = self[launch_id]
            if node.requested_at_s <= since_s - _DISORDER_S:
                break
            if node.requested_at_s > since_s and node.state is not NodeState.FAILED:
                found.append(node)
        return found[::-1]

    def __setitem__(self, launch_id: str, node: NodeRecord) -> None:
        is_new = launch_id not in self
        super().__setitem__(launch_id, node)
        if not is_alive(node.state):
            self._alive.pop(launch_id, None)
        elif is_new or launch_id in self._alive:
            self._alive[launch_id] = node
        else:  # it was dead: back to its place
            self._alive = {name: each for name, each in self.items() if is_alive(each.state)}
        if is_new:
            self._note_launch(node)

    def update(self, nodes: Iterable[tuple[str, NodeRecord]]) -> None:  # type: ignore[override]
        for launch_id, node in nodes:
            self[launch_id] = node

    def __reduce__(self) -> tuple[Any, ...]:
        return Roll, (dict(self),)

    def _note_launch(self, node: NodeRecord) -> None:
        self._late[node.launch_id] = None
        while self[first := next(iter(self._late))].requested_at_s < node.requested_at_s - _LATE_S:
            del self._late[first]
