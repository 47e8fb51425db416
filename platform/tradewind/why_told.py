"""From the log to a story, for a running fleet (controller.py) and for one that is down (past.py)."""

from __future__ import annotations

from collections.abc import Sequence

from tradewind.api import About, Story
from tradewind.events import KINDS, AnyEvent
from tradewind.store import EventLog
from tradewind.why import LAST, Scene, job_story, node_story
from tradewind.why_now import now_story

TOLD_EVENTS: dict[About, int] = {"node": 2000, "job": 2000, "now": 200}  # the newest, from which a story is told
_EXPLAINING = KINDS - {"step_committed", "checkpoint_committed", "demand_changed"}  # of these, a log has most
TELLING: dict[About, frozenset[str]] = {
    "node": _EXPLAINING,
    "job": _EXPLAINING,
    "now": frozenset({"decision_recorded"}),
}


def told_of(log: EventLog, about: About, name: str) -> tuple[Sequence[AnyEvent], bool]:
    """The newest events that name it, and whether there are older ones."""
    found = log.naming(name, TELLING[about], TOLD_EVENTS[about] + 1)
    return found[-TOLD_EVENTS[about] :], len(found) > TOLD_EVENTS[about]


def story(scene: Scene, about: About, name: str, last: int | None) -> Story:
    """`name`: of the node or job; of the fleet for `now`."""
    lines = last or LAST[about]
    if about == "now":
        return now_story(scene, name, lines)
    return node_story(scene, name, lines) if about == "node" else job_story(scene, name, lines)
