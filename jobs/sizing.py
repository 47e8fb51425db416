"""How many workers a training job should have now, and whether to change: pure functions of values.

`ray_train.py` looks at the cluster and asks here; what comes out is executed there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from tradewind.model import Labels, Resources, Target

MAX_WARM_UP_S = 30.0
HANDOVER_MARGIN_S = 10.0  # before a node's end: time for a step, a checkpoint, and a slow disk
LAST_SAVES_S = 6.0  # before a node's end, when there is nowhere to move to: saves follow each other
SAVE_AGAIN_S = 2.0
SAVE_WITHOUT_DEADLINE_S = 15.0
REST_AGAIN_S = 5.0  # a request to rest may be lost together with a worker
EPSILON = 1e-6  # Ray counts resources in units of 1e-4; sums of fractions are a little off


@dataclass(frozen=True, slots=True)
class Limits:
    min_workers: int
    max_workers: int
    replica: int = 1  # workers in each: they come and go together

    def whole(self, workers: int) -> int:
        """So many workers in whole replicas."""
        return workers // self.replica * self.replica

    def in_replicas(self, size: int) -> Limits:
        """The same, with replicas of this size: the least is rounded up, so that it is one that can be had."""
        return Limits(-(-self.min_workers // size) * size, self.max_workers, size)


@dataclass(frozen=True, slots=True)
class NodeView:
    """One live node, as Ray's tables show it."""

    node_id: str
    total: Resources
    available: Resources
    labels: Labels = field(default_factory=dict)
    drain_deadline_s: float | None = None  # epoch seconds; 0 where it drains without one; None: it does not drain

    @property
    def draining(self) -> bool:
        return self.drain_deadline_s is not None


@dataclass(frozen=True, slots=True)
class Group:
    """The present workers: the node of each rank."""

    attempt: int
    nodes: tuple[str, ...]

    @property
    def size(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Keep:
    reason: str = "the size is right"


@dataclass(frozen=True, slots=True)
class Lost:
    """Nodes of the group are gone: start over from the last checkpoint."""

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Resize:
    """Save at the next step boundary, then become a group of `size`."""

    size: int
    reason: str
    leaves_at_s: float | None = None  # when the first node of the group will be taken away; 0: at any moment


@dataclass(frozen=True, slots=True)
class SaveOnly:
    """Save at the next step boundary and go on: a node is leaving, but there is no room to move to."""

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Rest:
    """Save at the next step boundary, wait until that is done, and end: nothing is granted for now."""

    reason: str


Decision = Keep | Lost | Resize | SaveOnly | Rest


def rests(target: Target | None) -> bool:
    """Whether the platform grants nothing at all: the job keeps its driver and waits."""
    return target is not None and target.replicas == 0


def goal(limits: Limits, target: Target | None) -> int:
    """What the job may have at most: its own limit, or less where the platform grants less; never below its minimum."""
    granted = limits.max_workers if target is None else limits.whole(target.workers)
    return max(limits.min_workers, min(limits.max_workers, granted))


def room(node: NodeView, worker: Resources, held: int) -> int:
    """Workers that a node can hold for this job: what is free, and what the job itself holds there."""
    counts = []
    for name, need in worker.items():
        if need > 0:
            free = min(node.total.get(name, 0.0), node.available.get(name, 0.0) + held * need)
            counts.append(int((free + EPSILON) // need))
    return min(counts, default=0)


def rooms(
    nodes: Sequence[NodeView], worker: Resources, held: Mapping[str, int], selector: Labels, avoid: Collection[str] = ()
) -> dict[str, int]:
    """Workers that each live node can hold, those left out that drain, are in `avoid`, or lack a label."""
    return {
        node.node_id: room(node, worker, held.get(node.node_id, 0))
        for node in nodes
        if not node.draining and node.node_id not in avoid and matches(node.labels, selector)
    }


def matches(labels: Labels, selector: Labels) -> bool:
    """Ray's label selectors: `value`, `!value`, `in(a,b)`, `!in(a,b)`."""
    return all(_matches_one(labels.get(key), wanted) for key, wanted in selector.items())


def _matches_one(found: str | None, wanted: str) -> bool:
    negated, plain = wanted.startswith("!"), wanted.removeprefix("!")
    values = plain[3:-1].split(",") if plain.startswith("in(") and plain.endswith(")") else [plain]
    return (found in [value.strip() for value in values]) != negated


def decide(group: Group, limits: Limits, target: Target | None, fits: int, nodes: Sequence[NodeView]) -> Decision:
    """What to do with a running group, given what fits (the sum of `rooms`) and the live nodes."""
    alive = {node.node_id: node for node in nodes}
    gone = tuple(sorted({node for node in group.nodes if node not in alive}))
    if gone:
        return Lost(gone, f"{_count(gone)} lost without notice")
    if rests(target):
        return Rest("nothing is granted for now")
    wanted = min(goal(limits, target), limits.whole(fits))
    leaving = tuple(sorted({node for node in group.nodes if alive[node].draining}))
    if leaving and wanted < limits.min_workers:
        return SaveOnly(leaving, f"{_count(leaving)} leaving, room for {fits} of at least {limits.min_workers} workers")
    if leaving:
        return Resize(
            wanted, f"{_count(leaving)} leaving", min(alive[node].drain_deadline_s or 0.0 for node in leaving)
        )
    if wanted < limits.min_workers or wanted == group.size:
        return Keep()
    grows = wanted > group.size
    number = fits if grows else goal(limits, target)
    workers = f"{number} worker{'' if number == 1 else 's'}"
    return Resize(wanted, f"room for {workers}" if grows else f"{workers} granted")


def may_start(fits: int, least: int, goal: int, first: bool, waited_s: float, settle_s: float) -> bool:
    """Whether to start a group. The first one waits a little for nodes that are still on their way, so that it need
    not be changed at once; after a loss every second counts."""
    return fits >= least and (not first or fits >= goal or waited_s >= settle_s)


def ripe(change: Resize, grows: bool, warm: bool, waited_s: float, settle_s: float, now_s: float) -> bool:
    """Whether to act on a wanted change now. The old group goes on training until the next one's processes are warm:
    no change but a node's end is urgent. A growth also waits until it has been the same for `settle_s`: nodes tend to
    come in a row, and each change costs a restart."""
    if change.leaves_at_s is not None:
        return warm or change.leaves_at_s - now_s <= HANDOVER_MARGIN_S
    patience_s = settle_s if grows else 0.0
    return waited_s >= patience_s and (warm or waited_s >= patience_s + MAX_WARM_UP_S)


def save_is_due(last: tuple[float, int] | None, deadline_s: float, now_s: float, attempt: int) -> bool:
    """Of a node that leaves while there is nowhere to move to: `last` is when its group was last asked to save, and the
    attempt that was. A deadline of 0 may be over at any moment."""
    if last is None or last[1] != attempt:
        return True
    if not deadline_s:
        return now_s - last[0] >= SAVE_WITHOUT_DEADLINE_S
    return deadline_s - now_s <= LAST_SAVES_S and now_s - last[0] >= SAVE_AGAIN_S


def _count(nodes: Sequence[str]) -> str:
    return "1 node" if len(nodes) == 1 else f"{len(nodes)} nodes"
