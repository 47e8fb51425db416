"""Everything that is asked for now, grouped by shape. Pure: a snapshot of Ray, wishes and targets in, Demand out.

A training job asks Ray for its maximum; the platform may grant it less. So where a job has told its wish, its target
stands in the demand, and what Ray queues on its behalf is taken out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tradewind.autoscaler.ray_snapshot import Gang, Holdings, RaySnapshot, Strategy
from tradewind.autoscaler.shape import EPSILON, Shape
from tradewind.model import Target, Wish


@dataclass(frozen=True, slots=True)
class Need:
    """So many requests of one shape, and who asks."""

    shape: Shape
    count: int
    source: str


@dataclass(frozen=True, slots=True)
class Demand:
    needs: tuple[Need, ...] = ()
    gangs: tuple[Gang, ...] = ()
    constraints: tuple[Need, ...] = ()  # compared with totals: what the cluster must be able to hold at all

    @property
    def is_empty(self) -> bool:
        return not (self.needs or self.gangs or self.constraints)

    def lines(self) -> tuple[str, ...]:
        """One line per group, for people."""
        needs = [f"{need.count} x {need.shape} ({need.source})" for need in (*self.needs, *self.constraints)]
        gangs = [f"gang of {len(gang.bundles)}, {gang.strategy}: {gang.bundles[0]}" for gang in self.gangs]
        return (*needs, *gangs)


def demand_of(
    snapshot: RaySnapshot,
    wishes: Sequence[Wish] = (),
    targets: Mapping[str, Target] | None = None,
    leaving: frozenset[str] = frozenset(),
    doomed: frozenset[str] = frozenset(),
    misplaced: Mapping[str, frozenset[str]] | None = None,
) -> Demand:
    """`leaving` are ray node ids that no longer count, `doomed` those among them that the cloud takes with work on;
    `misplaced`, by job, those that it is to leave: what it has there is wanted elsewhere."""
    wishing = {wish.job_id for wish in wishes}
    needs = [
        *pending_needs(snapshot, wishing),
        *_wished(wishes, targets or {}, snapshot.holdings, leaving, misplaced or {}),
    ]
    lost_needs, lost_gangs = _replacements(snapshot, wishing, doomed)
    needs += lost_needs
    return Demand(
        needs=tuple(sorted(needs, key=_largest_first)),
        gangs=tuple(
            gang
            for gang in sorted((*snapshot.gangs, *lost_gangs), key=lambda gang: gang.gang_id)  # the same at every tick
            if gang.bundles and gang.job_id not in wishing
        ),
        constraints=tuple(Need(shape, count, "request_resources") for shape, count in snapshot.constraints),
    )


def workers_held(wish: Wish, holdings: Holdings, leaving: frozenset[str] = frozenset()) -> int:
    """How many workers of its shape the job has on nodes that stay."""
    shape = Shape.of(wish.resources)
    held = (amounts for (job_id, node), amounts in holdings.items() if job_id == wish.job_id and node not in leaving)
    return sum(shape.copies_in(amounts) for amounts in held) if shape.resources else 0


def at_once(wishes: Iterable[Wish], holdings: Holdings) -> dict[str, int]:
    """By who asks, how many more workers jobs cannot start without."""
    lacking = {f"job {wish.job_id}": wish.min_workers - workers_held(wish, holdings) for wish in wishes}
    return {source: count for source, count in lacking.items() if count > 0}


def pending_needs(snapshot: RaySnapshot, wishing: Collection[str]) -> list[Need]:
    """Tasks and actors; without the actors of jobs whose target is counted instead. The queue does not say whose a
    request is, the actor table does, but without selectors: they are matched by resources."""
    theirs: Counter[tuple[tuple[str, float], ...]] = Counter()
    for job_id in wishing:
        for shape, count in snapshot.pending_actors.get(job_id, ()):
            theirs[shape.resources] += count
    needs = []
    for shape, count in snapshot.pending:
        dropped = min(count, theirs[shape.resources])
        theirs[shape.resources] -= dropped
        if count > dropped:
            needs.append(Need(shape, count - dropped, "tasks and actors"))
    return needs


def _wished(
    wishes: Iterable[Wish],
    targets: Mapping[str, Target],
    holdings: Holdings,
    leaving: frozenset[str],
    misplaced: Mapping[str, frozenset[str]],
) -> list[Need]:
    needs = []
    for wish in wishes:
        granted = targets[wish.job_id].workers if wish.job_id in targets else wish.max_workers
        missing = granted - workers_held(wish, holdings, leaving | misplaced.get(wish.job_id, frozenset()))
        if missing > 0:
            needs.append(Need(Shape.of(wish.resources, wish.labels), missing, f"job {wish.job_id}"))
    return needs


def _replacements(snapshot: RaySnapshot, wishing: set[str], doomed: frozenset[str]) -> tuple[list[Need], list[Gang]]:
    """What other jobs hold on a node that the cloud will take: it is wanted elsewhere, before the node dies. What lies
    on several hosts of one slice is wanted on one slice again."""
    if not doomed:
        return [], []
    launch_ids = {node.ray_node_id: node.launch_id for node in snapshot.nodes if node.ray_node_id in doomed}
    held: dict[tuple[str, str], list[Shape]] = {}
    for (job_id, ray_node_id), amounts in sorted(snapshot.holdings.items()):
        launch_id = launch_ids.get(ray_node_id, ray_node_id)
        # Hosts of a slice bring its name as a resource, which no other slice has.
        moving = {name: amount for name, amount in amounts.items() if name != launch_id and amount > EPSILON}
        if ray_node_id in doomed and job_id not in wishing and moving:
            held.setdefault((job_id, launch_id), []).append(Shape.of(moving))
    needs = [
        Need(shapes[0], 1, f"job {job_id}, whose node is taken away")
        for (job_id, _), shapes in held.items()
        if len(shapes) == 1
    ]
    gangs = [
        Gang(f"{launch_id}:{job_id}", Strategy.SPREAD, tuple(shapes), job_id)
        for (job_id, launch_id), shapes in held.items()
        if len(shapes) > 1
    ]
    return needs, gangs


def _largest_first(need: Need) -> tuple[float, ...]:
    """First-fit packs best when the hard pieces go first: accelerators, and among them what is tied to some nodes by
    selectors (fewer alternatives are a closer tie); then the large ones."""
    amounts = dict(need.shape.resources)
    accelerators = amounts.get("GPU", 0.0) + amounts.get("TPU", 0.0)
    return (
        accelerators == 0,
        len(need.shape.selectors) or float("inf"),
        -accelerators,
        -amounts.get("CPU", 0.0),
        -amounts.get("memory", 0.0),
    )
