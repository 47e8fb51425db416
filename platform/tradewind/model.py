"""The nouns of the domain: frozen, typed values that every part shares. Imports nothing of ours but units."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

Resources = Mapping[str, float]  # as Ray counts them: {"CPU": 4, "GPU": 1}
Labels = Mapping[str, str]

# Ray's own label keys, and ours beside them.
LABEL_MARKET_TYPE = "ray.io/market-type"  # "spot" or "on-demand"
LABEL_REGION = "ray.io/availability-region"
LABEL_ZONE = "ray.io/availability-zone"
LABEL_ACCELERATOR = "ray.io/accelerator-type"
LABEL_CLOUD = "tradewind.io/cloud"
LABEL_INSTANCE_TYPE = "tradewind.io/instance-type"
LABEL_LAUNCH_ID = "tradewind.io/launch-id"
LABEL_PLACEMENT_GROUP = "tradewind.io/placement-group"  # of nodes that a cloud was asked to put side by side

# Names under which `jobs`, the agent and Ray's job table find each other.
RAY_NAMESPACE = "tradewind"
COORDINATOR_PREFIX = "coordinator:"  # + job id: the named actor of a job
JOB_ID_ENV = "TRADEWIND_JOB_ID"  # set for every entrypoint that the controller starts
GRANT_ENV = "TRADEWIND_WORKERS"  # likewise, as JSON: what the job was submitted with, see `Wish`
RUN_ENV = "TRADEWIND_RUN"  # likewise, where it goes on with another job's run: that job's id
STORAGE_ENV = "TRADEWIND_STORAGE"  # likewise: the folder for checkpoints of jobs that name none
HOME_ENV = "TRADEWIND_HOME"  # the folder of all fleets, for runs outside of one


LOCAL_CELL = "local"  # the one cell of a fleet on this machine
_SUBMISSION = re.compile(r"(.+)\.tw\d+")


def submission_id(job_id: str, placements: int) -> str:
    """Under which Ray knows a job. It may come back to a cell where it ran before, and Ray keeps its ids for ever."""
    return job_id if placements <= 1 else f"{job_id}.tw{placements}"


def job_of_submission(name: str) -> str:
    found = _SUBMISSION.fullmatch(name)
    return found[1] if found else name


def driver_job_id(ray_job_id: str, head_node_id: str) -> str:
    """Of a program that connected to Ray without a submission. Every Ray cluster counts its drivers from one, and a
    fleet has a new cluster after each start: the head tells them apart."""
    return "-".join(part for part in ("ray", head_node_id[:6], ray_job_id) if part)


class Role(StrEnum):
    """What a node is for."""

    WORKER = "worker"
    HEAD = "head"  # of a cell: Ray's head, the drivers of jobs and their coordinators; the fleet pays for it


class Capacity(StrEnum):
    SPOT = "spot"
    ON_DEMAND = "on-demand"


class _Named:
    """Room for a name and a hash that are made once. No fields: they are neither compared nor sent anywhere."""

    __slots__ = ("_hash", "_key")
    _hash: int
    _key: str


@dataclass(frozen=True, slots=True)
class Market(_Named):
    """One place where one type is sold, in one way."""

    cloud: str  # "aws", "gcp", "azure"
    region: str
    zone: str
    instance_type: str
    capacity: Capacity

    @property
    def key(self) -> str:
        """Every decision asks for the keys of all that is sold, several times."""
        try:
            return self._key
        except AttributeError:
            object.__setattr__(self, "_key", f"{self.cloud}/{self.zone}/{self.instance_type}/{self.capacity}")
            return self._key

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            object.__setattr__(self, "_hash", hash(self.key))  # without the region, which the zone is in
            return self._hash

    def __str__(self) -> str:
        return self.key


@lru_cache(maxsize=4096)  # every tick looks at all offers
def _labels(market: Market, accelerator: str) -> tuple[tuple[str, str], ...]:
    found = {
        LABEL_MARKET_TYPE: str(market.capacity),
        LABEL_REGION: market.region,
        LABEL_ZONE: market.zone,
        LABEL_CLOUD: market.cloud,
        LABEL_INSTANCE_TYPE: market.instance_type,
        LABEL_ACCELERATOR: accelerator,
    }
    return tuple((key, re.sub(r"[^A-Za-z0-9._-]", "_", value)) for key, value in found.items() if value)


@dataclass(frozen=True, slots=True)
class Offer:
    """Something that can be launched, at a price. An unknown price is None, never 0."""

    market: Market
    vcpus: float
    memory_gib: float
    accelerator: str = ""  # "A100", "L4", "TPU-V4"; empty: none
    accelerator_count: float = 0.0
    hosts: int = 1  # a TPU slice is one offer with several hosts, all or nothing
    price_uusd_per_h: int | None = None
    on_demand_uusd_per_h: int | None = None  # the same type in the same place, for comparison
    price_source: str = ""
    price_date: str = ""  # ISO date of the price list

    @property
    def resources(self) -> dict[str, float]:
        """What one host brings to Ray."""
        found: dict[str, float] = {"CPU": self.vcpus, "memory": self.memory_gib * 2**30}
        if self.accelerator:
            found["TPU" if self.accelerator.startswith("TPU") else "GPU"] = self.accelerator_count
            found[f"accelerator_type:{self.accelerator}"] = 1.0
        return found

    @property
    def labels(self) -> dict[str, str]:
        """As Ray takes them: other signs than letters, digits, '-', '_' and '.' become '_'."""
        return dict(_labels(self.market, self.accelerator))


@dataclass(frozen=True, slots=True)
class Contract:
    """What a person was promised."""

    deadline_at_s: float | None = None
    budget_uusd: int | None = None
    work_s: float | None = None  # what one replica would need, as the person says; the job's own steps tell it better

    @property
    def is_empty(self) -> bool:
        return self.deadline_at_s is None and self.budget_uusd is None


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What a person asked for. `workers` is (min, max); both 0 for a job that asks Ray for its resources itself."""

    name: str
    entrypoint: str  # a shell command, run on the cell's head
    working_dir: str = ""
    tenant: str = "default"
    team: str = ""  # a part of the tenant, for reports
    min_workers: int = 0
    max_workers: int = 0
    worker_resources: Resources = field(default_factory=dict)  # {"CPU": 1, "GPU": 1}
    worker_labels: Labels = field(default_factory=dict)  # label selector, {"ray.io/market-type": "spot"}
    env: Mapping[str, str] = field(default_factory=dict)
    contract: Contract = field(default_factory=Contract)
    continues: str = ""  # a job that stopped: this one goes on from its checkpoints
    max_retries: int = 0  # of the driver; lost nodes are not counted


class Phase(StrEnum):
    """What a training job is doing while it takes no step."""

    STARTING = "starting"  # workers start, import, build the group for the first time
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    RESIZING = "resizing"  # a planned change of size, state saved
    RESTARTING = "restarting"  # an unplanned loss
    DONE = "done"
    RESTING = "resting"  # granted nothing: saved, without workers, and waits to go on


class EndReason(StrEnum):
    """Why the cloud no longer has a node."""

    TERMINATED = "terminated"  # we asked
    PREEMPTED = "preempted"  # the cloud took it
    CRASHED = "crashed"  # it ended by itself, or never booted
    LOST = "lost"  # the cloud no longer lists it and does not say why


@dataclass(frozen=True, slots=True)
class Asked:
    """So much is asked for of one shape, by one tenant. `where` are label selectors, any of which will do: rules of
    (key, values, negated) that must all hold."""

    tenant: str
    resources: Resources
    amount: float
    where: tuple[tuple[tuple[str, tuple[str, ...], bool], ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Wish:
    """What a running training job could use: between min and max workers of one shape. Told by its coordinator."""

    job_id: str
    min_workers: int
    max_workers: int
    resources: Resources
    labels: Labels = field(default_factory=dict)
    replica_workers: int = 1  # of one replica: they come and go together
    can_move: bool = False  # a drained node costs the job nothing: it hands over at a step boundary

    @property
    def min_replicas(self) -> int:
        return -(-max(0, self.min_workers) // self.replica_workers)

    @property
    def max_replicas(self) -> int:
        return self.max_workers // self.replica_workers


@dataclass(frozen=True, slots=True)
class Target:
    """What the platform grants a training job. A higher epoch replaces a lower one."""

    epoch: int
    replicas: int
    deadline_s: float | None = None
    replica_workers: int = 1  # as the platform counted: before the job has told its layout, a worker is a replica

    @property
    def workers(self) -> int:
        return self.replicas * self.replica_workers
