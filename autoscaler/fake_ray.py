"""The fake Ray of testing.py: schedules by resources, labels and strategies, over the nodes of fake clouds."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tradewind.autoscaler.clock import Clock
from tradewind.autoscaler.packing import together
from tradewind.autoscaler.providers.base import CloudNode
from tradewind.autoscaler.ray_snapshot import (
    ACCELERATORS,
    DrainReason,
    Gang,
    RayJob,
    RayNode,
    RayReport,
    RaySnapshot,
    RayStatus,
    Strategy,
)
from tradewind.autoscaler.shape import Shape, add_up, take
from tradewind.autoscaler.slices import tpu_hosts
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID, Labels, Resources


class Machines(Protocol):
    """Where raylets run: a cloud that tells which of its machines are up."""

    def booted(self) -> Sequence[CloudNode]: ...


@dataclass(slots=True)
class _Work:
    """Something that waits for or holds room: a task, an actor, or a bundle of a gang."""

    job_id: str
    shape: Shape
    on: str = ""  # ray node id
    gang_id: str = ""


@dataclass(slots=True)
class _Raylet:
    node: CloudNode | None  # None: the head
    ray_node_id: str
    total: dict[str, float]
    labels: dict[str, str]
    idle_since_s: float
    draining: bool = False
    dead: bool = False


class FakeRay:
    """RayPort. Work that waits is placed at every look, as Ray would."""

    def __init__(self, clock: Clock, clouds: Sequence[Machines], head_cpus: float = 0.0) -> None:
        self.clock, self.clouds = clock, clouds
        self.is_down = False
        self.host_gap_s = 0.0  # between two hosts of a slice that join
        self.broken_zones: frozenset[str] = frozenset()  # whose nodes find no accelerator, and tell Ray of none
        self.jobs: list[RayJob] = []
        self.constraints: tuple[tuple[Shape, int], ...] = ()
        self.guests: dict[str, frozenset[str]] = {}  # by ray node id: see RaySnapshot
        self.reports: list[RayReport] = []
        self.drains: list[tuple[str, DrainReason]] = []
        self._work: list[_Work] = []
        self._gangs: dict[str, Gang] = {}
        self._ids = itertools.count()
        head = _Raylet(None, _hex_id("head"), {"CPU": head_cpus}, {}, clock.now_s())
        self._raylets: dict[str, _Raylet] = {"": head}  # by `host_name`
        self._first_seen_s: dict[str, float] = {}

    # --- RayPort ----------------------------------------------------------------------------------------------

    def snapshot(self) -> RaySnapshot:
        self._check_up()
        self.schedule()
        return RaySnapshot(
            nodes=tuple(self._node(raylet) for raylet in self._raylets.values()),
            pending=self._pending(),
            pending_actors={job_id: self._pending(job_id) for job_id in {work.job_id for work in self._work}},
            gangs=tuple(gang for gang_id, gang in self._gangs.items() if self._waits(gang_id)),
            constraints=self.constraints,
            jobs=tuple(self.jobs),
            holdings=self._holdings(),
            guests=dict(self.guests),
        )

    def drain(
        self,
        ray_node_id: str,
        reason: DrainReason,
        message: str,  # noqa: ARG002
        deadline_s: float | None = None,  # noqa: ARG002
    ) -> tuple[bool, str]:
        self._check_up()
        if not re.fullmatch(r"[0-9a-f]{56}", ray_node_id):
            raise RayError(f"{ray_node_id!r} is not a Ray node id")
        raylet = next((r for r in self._raylets.values() if r.ray_node_id == ray_node_id and not r.dead), None)
        if raylet is None:
            return False, "Ray has no living node of this id"
        if reason is DrainReason.IDLE and self._is_busy(raylet):
            return False, "The node to be idle terminated is no longer idle."
        self.drains.append((ray_node_id, reason))
        raylet.draining = True
        return True, ""

    def report(self, report: RayReport) -> None:
        self._check_up()
        self.reports.append(report)

    # --- what a test does to it -------------------------------------------------------------------------------

    def submit(
        self, resources: Resources, count: int = 1, labels: Labels | None = None, job_id: str = "ray-01000000"
    ) -> None:
        self._work.extend(_Work(job_id, Shape.of(resources, labels)) for _ in range(count))

    def submit_gang(
        self,
        bundles: Sequence[Resources],
        strategy: Strategy,
        labels: Labels | None = None,
        job_id: str = "ray-01000000",
    ) -> str:
        gang_id = f"{next(self._ids):08x}{0:028x}"  # the first signs tell them apart, as in Ray
        shapes = tuple(Shape.of(bundle, labels) for bundle in bundles)
        self._gangs[gang_id] = Gang(gang_id, strategy, shapes, job_id)
        self._work.extend(_Work(job_id, shape, gang_id=gang_id) for shape in shapes)
        return gang_id

    def finish(self, job_id: str | None = None) -> None:
        """The work of a job (or all work) ends."""
        self._work = [work for work in self._work if job_id is not None and work.job_id != job_id]
        self.schedule()

    def hand_over(self, job_id: str) -> None:
        """The workers of an elastic job leave the nodes that drain, for room that there is elsewhere."""
        draining = {raylet.ray_node_id for raylet in self._raylets.values() if raylet.draining}
        for work in self._work:
            work.on = "" if work.job_id == job_id and work.on in draining else work.on
        self.schedule()

    def nodes_of(self, job_id: str) -> set[str]:
        return {work.on for work in self._work if work.job_id == job_id and work.on}

    @property
    def waiting(self) -> int:
        self.schedule()
        return sum(1 for work in self._work if not work.on)

    def kill(self, launch_id: str, host: int = 0) -> None:
        """The raylet dies, the machine stays."""
        self._raylets[host_name(launch_id, host)].dead = True
        self._restart_lost_work()

    # --- inside -----------------------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Nodes come and go; waiting work is placed."""
        self._join_and_leave()
        for gang_id, gang in self._gangs.items():
            if self._waits(gang_id):
                self._place_gang(gang)
        for work in self._work:
            if not work.on and not work.gang_id:
                work.on = next((r.ray_node_id for r in self._open() if self._fits(r, work.shape)), "")
        for raylet in self._raylets.values():
            if self._is_busy(raylet):
                raylet.idle_since_s = self.clock.now_s()

    def _check_up(self) -> None:
        if self.is_down:
            raise RayError("Ray's head does not answer")

    def _join_and_leave(self) -> None:
        alive = {node.launch_id: node for cloud in self.clouds for node in cloud.booted()}
        for node in alive.values():
            for number in range(self._joined_hosts(node)):
                self._join(node, number)
        for raylet in self._raylets.values():
            taken = raylet.node is not None and raylet.node.launch_id not in alive
            drained = raylet.draining and not self._is_busy(raylet)
            raylet.dead = raylet.dead or taken or drained
        self._restart_lost_work()

    def _joined_hosts(self, node: CloudNode) -> int:
        """Hosts of a slice join one after another."""
        booted_s = self.clock.now_s() - self._first_seen_s.setdefault(node.launch_id, self.clock.now_s())
        return min(node.offer.hosts, 1 + int(booted_s // self.host_gap_s)) if self.host_gap_s else node.offer.hosts

    def _join(self, node: CloudNode, number: int) -> None:
        name = host_name(node.launch_id, number)
        if name in self._raylets:
            return
        labels, total = {**node.offer.labels, LABEL_LAUNCH_ID: node.launch_id}, dict(node.offer.resources)
        total["memory"] *= 0.7
        for tpu in tpu_hosts(node.offer, node.launch_id)[number : number + 1]:
            labels |= tpu.labels
            total |= tpu.resources
        if node.offer.market.zone in self.broken_zones:
            total = {name: amount for name, amount in total.items() if name not in ACCELERATORS}
        self._raylets[name] = _Raylet(node, _hex_id(name), total, labels, self.clock.now_s())

    def _restart_lost_work(self) -> None:
        dead = {raylet.ray_node_id for raylet in self._raylets.values() if raylet.dead}
        for work in self._work:
            work.on = "" if work.on in dead else work.on

    def _open(self) -> list[_Raylet]:
        return [raylet for raylet in self._raylets.values() if not raylet.dead and not raylet.draining]

    def _free(self, raylet: _Raylet) -> dict[str, float]:
        free = dict(raylet.total)
        for work in self._work:
            if work.on == raylet.ray_node_id:
                take(free, work.shape)
        return free

    def _fits(self, raylet: _Raylet, shape: Shape) -> bool:
        return shape.allows(raylet.labels) and shape.copies_in(self._free(raylet)) > 0

    def _is_busy(self, raylet: _Raylet) -> bool:
        return any(work.on == raylet.ray_node_id for work in self._work)

    def _waits(self, gang_id: str) -> bool:
        return any(work.gang_id == gang_id and not work.on for work in self._work)

    def _place_gang(self, gang: Gang) -> None:
        """All or nothing, by brute first-fit; SPREAD and PACK are only preferences."""
        mine = [work for work in self._work if work.gang_id == gang.gang_id]
        before = [work.on for work in mine]
        if gang.strategy is Strategy.STRICT_PACK:
            whole = together(gang.bundles)
            spot = next((r.ray_node_id for r in self._open() if self._fits(r, whole)), "")
            for work in mine:
                work.on = spot
            return
        for work in mine:
            taken = {other.on for other in mine} if gang.strategy is Strategy.STRICT_SPREAD else set()
            fitting = [r for r in self._open() if self._fits(r, work.shape) and r.ray_node_id not in taken]
            work.on = work.on or (fitting[0].ray_node_id if fitting else "")
        if not all(work.on for work in mine):
            for work, on in zip(mine, before, strict=True):
                work.on = on

    def _pending(self, job_id: str = "") -> tuple[tuple[Shape, int], ...]:
        counts: dict[Shape, int] = {}
        for work in self._work:
            if not work.on and not work.gang_id and job_id in ("", work.job_id):
                counts[work.shape] = counts.get(work.shape, 0) + 1
        return tuple(sorted(counts.items()))

    def _holdings(self) -> dict[tuple[str, str], dict[str, float]]:
        held: dict[tuple[str, str], dict[str, float]] = {}
        for work in self._work:
            if work.on:
                key = (work.job_id, work.on)
                held[key] = add_up([held.get(key, {}), dict(work.shape.resources)])
        return held

    def _node(self, raylet: _Raylet) -> RayNode:
        busy = self._is_busy(raylet)
        status = RayStatus.RUNNING if busy else RayStatus.IDLE
        status = RayStatus.DRAINING if raylet.draining else status
        return RayNode(
            ray_node_id=raylet.ray_node_id,
            launch_id=raylet.node.launch_id if raylet.node else "",
            status=RayStatus.DEAD if raylet.dead else status,
            total={} if raylet.dead else raylet.total,
            available={} if raylet.dead else self._free(raylet),
            labels=raylet.labels,
            idle_s=0.0 if busy else self.clock.now_s() - raylet.idle_since_s,
        )


def host_name(launch_id: str, number: int) -> str:
    return f"{launch_id}/{number}" if number else launch_id


def _hex_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:56]
