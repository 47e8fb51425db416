"""What Ray says of one cell at one moment, as values, and the port through which it is asked. Pure: no Ray here."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tradewind.autoscaler.shape import Shape, add_up
from tradewind.autoscaler.slices import LABEL_TPU_WORKER
from tradewind.model import RAY_NAMESPACE, Labels, Resources, driver_job_id, job_of_submission

ACCELERATORS = ("GPU", "TPU")  # as Ray calls them


class RayStatus(StrEnum):
    """From busy to dead."""

    RUNNING = "running"
    IDLE = "idle"
    DRAINING = "draining"
    DEAD = "dead"


class Strategy(StrEnum):
    """How the bundles of a placement group lie: the STRICT ones are laws, the others wishes."""

    PACK = "PACK"
    SPREAD = "SPREAD"
    STRICT_PACK = "STRICT_PACK"
    STRICT_SPREAD = "STRICT_SPREAD"


class DrainReason(StrEnum):
    IDLE = "idle"  # Ray refuses when the node has got work meanwhile
    PREEMPTION = "preemption"  # Ray always takes it; work may stay until the deadline


@dataclass(frozen=True, slots=True)
class RayNode:
    ray_node_id: str  # hex
    launch_id: str  # empty: not one of ours (the head, or a machine that somebody added)
    status: RayStatus
    total: Resources
    available: Resources
    labels: Labels = field(default_factory=dict)
    idle_s: float = 0.0

    @property
    def is_alive(self) -> bool:
        return self.status is not RayStatus.DEAD

    def lacks(self, offered: Resources) -> str:
        """The accelerator that it was bought for and did not bring: Ray does not name what no driver has found."""
        return next((name for name in ACCELERATORS if offered.get(name) and not self.total.get(name)), "")


@dataclass(frozen=True, slots=True)
class Gang:
    """A placement group that waits: all of its bundles or none."""

    gang_id: str
    strategy: Strategy
    bundles: tuple[Shape, ...]
    job_id: str = ""
    placed_on: frozenset[str] = frozenset()  # ray node ids that hold other bundles of it already


@dataclass(frozen=True, slots=True)
class RayJob:
    """A driver, a submission of the Jobs API, or both."""

    ray_job_id: str  # hex; empty: submitted, its driver has not connected
    submission_id: str  # empty: a plain driver
    is_dead: bool
    status: str = ""  # of the submission: PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED
    namespace: str = ""
    entrypoint: str = ""
    message: str = ""
    metadata: Mapping[str, str] = field(default_factory=dict)
    started_at_s: float | None = None
    ended_at_s: float | None = None
    head_node_id: str = ""

    @property
    def job_id(self) -> str:
        return job_of_submission(self.submission_id) or driver_job_id(self.ray_job_id, self.head_node_id)

    @property
    def is_internal(self) -> bool:
        """Drivers of Ray and of Tradewind themselves: nobody's job."""
        ours = self.namespace == RAY_NAMESPACE or self.namespace.startswith("_ray_internal")
        return ours and not self.submission_id


Counted = tuple[tuple[Shape, int], ...]
Holdings = Mapping[tuple[str, str], Resources]  # (job id, ray node id) -> what the job holds there
Guests = Mapping[str, frozenset[str]]  # ray node id -> jobs with actors there that hold nothing, as Ray's actors do


@dataclass(frozen=True, slots=True)
class RaySnapshot:
    nodes: tuple[RayNode, ...] = ()
    pending: Counted = ()  # tasks and actors
    pending_actors: Mapping[str, Counted] = field(default_factory=dict)  # the part of `pending` known by job id
    gangs: tuple[Gang, ...] = ()
    constraints: Counted = ()  # request_resources: compared with totals, not with what is free
    jobs: tuple[RayJob, ...] = ()
    holdings: Holdings = field(default_factory=dict)
    guests: Guests = field(default_factory=dict)
    version: int = 0


@dataclass(frozen=True, slots=True)
class RayReport:
    """What `ray status` shows of our side."""

    pending: tuple[tuple[str, str, str], ...] = ()  # (instance type, launch id, details)
    infeasible: tuple[Shape, ...] = ()
    failed: tuple[tuple[str, str, float], ...] = ()  # (instance type, why, when)
    version: int = 0  # of the snapshot that was answered


class RayPort(Protocol):
    """One cell's Ray. Every call raises RayError when the head cannot be reached."""

    def snapshot(self) -> RaySnapshot: ...

    def drain(
        self, ray_node_id: str, reason: DrainReason, message: str, deadline_s: float | None = None
    ) -> tuple[bool, str]:
        """(accepted, Ray's message). `deadline_s` is a time, not a duration."""
        ...

    def report(self, report: RayReport) -> None: ...


def alive_by_launch_id(nodes: Sequence[RayNode], slices: Mapping[str, int] | None = None) -> dict[str, RayNode]:
    """The best entry per launch id: a machine whose raylet was restarted has a dead one, too. Of `slices` (launch id
    -> number of hosts), all hosts as one."""
    dead = RayStatus.DEAD
    found = {name: node for node in nodes if (name := node.launch_id) and node.status is not dead}
    for node in nodes:
        if node.status is dead and node.launch_id:
            found.setdefault(node.launch_id, node)
    for launch_id, hosts in by_slice(nodes, slices or {}).items():
        whole = as_one(hosts, (slices or {})[launch_id])
        if whole is None:
            del found[launch_id]
        else:
            found[launch_id] = whole
    return found


def by_slice(nodes: Sequence[RayNode], slices: Container[str]) -> dict[str, list[RayNode]]:
    """The Ray nodes of each slice, dead ones included."""
    found: dict[str, list[RayNode]] = {}
    if slices:
        for node in nodes:
            if node.launch_id in slices:
                found.setdefault(node.launch_id, []).append(node)
    return found


def as_one(nodes: Sequence[RayNode], hosts: int) -> RayNode | None:
    """A slice as one node: busy while any host is, dead when any host is. None: some hosts have not joined yet.

    A host that has drained is dead before the others are: then the slice is still draining."""
    alive = [node for node in nodes if node.is_alive]
    if len(alive) < hosts and len(alive) == len(nodes):
        return None
    status = min((node.status for node in nodes), key=list(RayStatus).index)  # the busiest
    if len(alive) < hosts and status is not RayStatus.DRAINING:
        status = RayStatus.DEAD
    first = min(alive or nodes, key=_number)
    return RayNode(
        ray_node_id=first.ray_node_id,
        launch_id=first.launch_id,
        status=status,
        total=add_up(node.total for node in alive),
        available=add_up(node.available for node in alive),
        labels=first.labels,
        idle_s=min((node.idle_s for node in alive), default=0.0),
    )


def living_hosts(nodes: Sequence[RayNode], slices: Container[str]) -> dict[str, tuple[RayNode, ...]]:
    """The hosts of each slice that live in Ray, the first host first."""
    return {
        launch_id: tuple(sorted((host for host in hosts if host.is_alive), key=_number))
        for launch_id, hosts in by_slice(nodes, slices).items()
    }


def _number(host: RayNode) -> int:
    return int(host.labels.get(LABEL_TPU_WORKER) or 0)
