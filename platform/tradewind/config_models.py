"""What may stand in a fleet file and in a job file. Frozen and checked when built; config.py loads them.

Keys in the file carry no units, their values do (`tick: 2s`); the attributes carry the unit in the name (`tick_s`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, Strict, ValidationInfo, field_validator, model_validator

from tradewind.config import FLEET_NAME
from tradewind.config_clouds import (
    AwsCloud,
    AzureCloud,
    Boot,
    CloudName,
    ControllerDoor,
    GcpCloud,
    Head,
    Placement,
    StorageUrl,
)
from tradewind.config_types import (
    Capacities,
    DeadlineField,
    Duration,
    DurationRange,
    EnvText,
    Hazards,
    Number,
    OptionalDuration,
    Section,
    Usd,
    Whole,
    Workers,
)
from tradewind.model import Capacity, Contract, JobSpec

# --- the fleet file --------------------------------------------------------------------------------------------


class OfferSelector(Section):
    """What may be bought. Everything that is left out fits anything."""

    cloud: CloudName | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerator: str | None = Field(default=None, description="Like L4, A100 or H100.")
    capacity: Capacities = (Capacity.SPOT, Capacity.ON_DEMAND)


_PARTS = ("tenant", "cloud", "region", "zone", "instance_type", "accelerator", "capacity")


class LimitRule(Section):
    """Limits on a part of the fleet: what it is about, and at least one limit. What is left out fits anything."""

    tenant: Annotated[str, Field(pattern=r"^(\*|[A-Za-z0-9][A-Za-z0-9._-]{0,62})$")] | None = Field(
        default=None, description='Whose jobs; "*": each tenant by itself.'
    )
    cloud: CloudName | None = None
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    accelerator: str | None = Field(default=None, description="Like L4, A100 or H100.")
    capacity: Capacities | None = None
    max_nodes: Annotated[Whole, Field(ge=0)] | None = None
    max_uusd_per_h: Usd | None = Field(default=None, alias="max_usd_per_hour", description="US dollars per hour.")
    max_accelerators: Annotated[Number, Field(ge=0)] | None = Field(
        default=None, description="Over all nodes, as clouds count a quota."
    )
    max_launches_per_minute: Annotated[Whole, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _says_what_and_how_much(self) -> LimitRule:
        if not any(getattr(self, name) for name in _PARTS):
            raise ValueError(f"says not what it is about; give one of {', '.join(_PARTS)}")
        limits = (self.max_nodes, self.max_uusd_per_h, self.max_accelerators, self.max_launches_per_minute)
        if all(limit is None for limit in limits):
            names = ", ".join(info.alias or name for name, info in LimitRule.model_fields.items() if "max_" in name)
            raise ValueError(f"has no limit; give one of {names}")
        return self


class Limits(Section):
    """What the fleet never goes beyond."""

    max_nodes: Annotated[Whole, Field(ge=0)] = 10
    max_uusd_per_h: Usd | None = Field(
        default=None, alias="max_usd_per_hour", description="US dollars per hour over all nodes; left out: no limit."
    )
    max_launches_per_minute: Annotated[Whole, Field(ge=1)] = 30
    rules: tuple[LimitRule, ...] = Field(
        default=(), description="Further limits, each on a part of the fleet: a cloud, a region, a quota, a tenant."
    )


class Budgets(Section):
    """What may be paid in all. At the limit jobs save and stop; nothing is bought that the rest would not pay for."""

    fleet_uusd: Usd | None = Field(default=None, alias="fleet", description="US dollars.")
    tenants_uusd: Mapping[str, Usd] = Field(
        default_factory=dict,
        alias="tenants",
        description='By tenant, in US dollars; "*": each of the others by itself.',
    )
    per: Literal["all", "month"] = Field(default="all", description="month: they begin anew with each month (UTC).")
    reserve_s: Annotated[Duration, Field(gt=0)] = Field(
        default=120.0,
        alias="reserve",
        description="A job stops while this much time is still paid for: to save, and to have its nodes ended.",
    )
    horizon_s: Annotated[Duration, Field(gt=0)] = Field(
        default=600.0, alias="horizon", description="A node is bought if all could go on with it for this long."
    )

    @model_validator(mode="after")
    def _in_order(self) -> Budgets:
        if self.horizon_s <= self.reserve_s:
            raise ValueError("horizon must be longer than reserve: what is bought would be stopped at once")
        return self


class Carbon(Section):
    """Jobs whose deadline leaves slack rest while electricity is dirty (or dear), and go on in better hours."""

    grid: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="A CSV file with hourly figures up to now (zone, ts, ...), read again when it changes; none: off.",
    )
    column: str = Field(default="g_per_kwh", description="Of that file: what is to be low.")
    zone: str = Field(default="", description="The zone of that file in which the fleet runs.")
    zones: Mapping[str, str] = Field(default_factory=dict, description="By region of a cloud, where there are several.")
    restart_s: Annotated[Duration, Field(gt=0)] = Field(
        default=300.0, alias="restart", description="What each start costs: boot, load, what was not saved."
    )
    margin_s: Duration = Field(default=1800.0, alias="margin", description="Kept free before each deadline.")

    @model_validator(mode="after")
    def _some_zone(self) -> Carbon:
        if self.grid is not None and not self.zone and not self.zones:
            raise ValueError("say `zone`, or `zones` by region: which lines of the file count")
        if self.grid is not None and not Path(self.grid).expanduser().is_absolute():
            raise ValueError(f"grid: {self.grid!r} must begin with / or ~, since the controller runs elsewhere")
        return self


class Forecast(Section):
    """Buying before the demand comes, where waiting for it is expected to cost more than idling."""

    buy_ahead: Annotated[bool, Strict()] = False
    step_s: Annotated[Duration, Field(gt=0)] = Field(
        default=300.0, alias="step", description="Demand is forecast in steps of this length."
    )
    usual_boot_s: Annotated[Duration, Field(gt=0)] = Field(
        default=180.0,
        alias="usual_boot",
        description="How long a node takes to join, as a rule: how far to look ahead.",
    )
    waiting_factor: Annotated[Number, Field(ge=0)] = Field(
        default=16.0,
        description="An hour in which the work of a node waits costs as much as so many hours of the node.",
    )
    spare_timeout_s: Duration | None = Field(
        default=None,
        alias="spare_timeout",
        description="A node without work goes after this time where no demand is forecast; left out: step / 5.",
    )


class Markets(Section):
    """What a node costs beside its price, and when work is moved to a cheaper one."""

    move_work: Annotated[bool, Strict()] = Field(
        default=True, description="Jobs that can move leave dear or half-empty nodes; false: never to save money."
    )
    steady_s: Annotated[Duration, Field(le=3600)] = Field(
        default=900.0, alias="steady", description="Prices and stock must have been so for this long before work moves."
    )
    horizon_s: Annotated[Duration, Field(gt=0)] = Field(
        default=7200.0, alias="horizon", description="For how long a node is expected to be used from now on."
    )
    max_share: Annotated[Number, Field(gt=0, le=1)] | None = Field(
        default=None, description="At most this share of a job in one market, so that one reclaim takes no more."
    )
    usual_hazard_per_h: Annotated[Number, Field(gt=0)] = Field(
        default=0.1,
        alias="usual_hazard_per_hour",
        description="Preemptions of a spot node in an hour, where nothing is known.",
    )
    lost_per_preemption_s: Duration = Field(
        default=600.0, alias="lost_per_preemption", description="Work that is done again after one."
    )
    move_cell_after_s: Duration = Field(
        default=300.0,
        alias="move_cell_after",
        description="A job that has had less than its minimum for this long leaves a cell that has nothing to sell.",
    )
    data_region: str = Field(default="", description="Where the data lies; left out: anywhere.")
    egress_uusd_per_h: Usd = Field(
        default=0, alias="egress_usd_per_hour", description="Of a node in any other region, for reading the data."
    )


class Timing(Section):
    tick_s: Annotated[Duration, Field(ge=0.1)] = Field(
        default=1.0, alias="tick", description="How often the fleet looks and decides."
    )
    idle_timeout_s: Duration = Field(
        default=60.0, alias="idle_timeout", description="A node without work goes after this time."
    )
    boot_timeout_s: Annotated[Duration, Field(gt=0)] = Field(
        default=180.0, alias="boot_timeout", description="A node that has not joined Ray after this time is given up."
    )
    min_node_life_s: Duration = Field(
        default=30.0, alias="min_node_life", description="A node is kept at least this long, so that sizes do not flap."
    )
    look_deadline_s: Annotated[Duration, Field(gt=0)] = Field(
        default=30.0, alias="look_deadline", description="How long a cloud may take to list its nodes or its prices."
    )
    launch_deadline_s: Annotated[Duration, Field(gt=0)] = Field(
        default=60.0,
        alias="launch_deadline",
        description="How long a launch call may take; after that, the listing tells what came of it.",
    )
    end_deadline_s: Annotated[Duration, Field(gt=0)] = Field(
        default=60.0,
        alias="end_deadline",
        description="How long the call to end nodes may take, before it is repeated.",
    )


# What each action takes beside `at`, `do` and `market`.
_STEP_KEYS: Mapping[str, frozenset[str]] = {
    "preempt": frozenset({"notice", "count"}),
    "stockout": frozenset({"for"}),
    "restock": frozenset(),
    "price": frozenset({"price_factor", "for"}),
    "boot_failure": frozenset({"count", "for"}),
}


class ScriptStep(Section):
    """Something that happens to a pretend market at a given time."""

    at_s: Duration = Field(alias="at", description="A duration like 20s, from the start of the fleet.")
    do: Literal["preempt", "stockout", "restock", "price", "boot_failure"]
    market: str = Field(default="*", description="A glob over cloud/zone/type/capacity, like aws/*/*/spot.")
    notice_s: OptionalDuration = Field(
        default=None, alias="notice", description="Of a preemption; left out: as in `local`; none: without notice."
    )
    count: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="How many nodes; left out: all.")
    for_s: Annotated[Duration, Field(gt=0)] | None = Field(default=None, alias="for", description="Left out: for good.")
    price_factor: Annotated[Number, Field(gt=0)] | None = None

    @model_validator(mode="before")
    @classmethod
    def _keys_fit_the_action(cls, data: Any) -> Any:
        taken = _STEP_KEYS.get(str(data.get("do"))) if isinstance(data, dict) else None
        if taken is None:
            return data  # told by the checks of the fields
        useless = sorted(({"notice", "count", "for", "price_factor"} & set(data)) - taken)
        if useless:
            raise ValueError(f"`do: {data['do']}` has no use for {', '.join(useless)}")
        if data["do"] == "price" and data.get("price_factor") is None:
            raise ValueError("`do: price` needs a price_factor, like 1.5")
        return data


class LocalCloud(Section):
    """How the pretend markets on this machine behave."""

    seed: Whole = 0
    launch_delay_s: DurationRange = Field(default=(0.5, 2.0), alias="launch_delay")
    boot_failures: Annotated[Number, Field(ge=0, le=1)] = Field(
        default=0.0, description="The share of nodes that never come up."
    )
    hazards_per_h: Hazards = Field(default_factory=dict, alias="hazard_per_hour")
    notice_s: OptionalDuration = Field(default=30.0, alias="notice", description="Of a preemption; none: without.")
    stock: Annotated[Whole, Field(ge=0)] | None = Field(
        default=None, description="How many nodes each market has at once; left out: any number."
    )
    script: tuple[ScriptStep, ...] = ()
    cpus_per_node: Annotated[Whole, Field(ge=1)] | None = Field(
        default=None, description="Logical CPUs of every node; left out: as many as the real type has."
    )

    @property
    def steps(self) -> tuple[ScriptStep, ...]:
        """The script in the order of time; where a preemption says nothing of its notice, the usual one."""
        steps = [
            step if "notice_s" in step.model_fields_set else step.model_copy(update={"notice_s": self.notice_s})
            for step in self.script
        ]
        return tuple(sorted(steps, key=lambda step: step.at_s))


class FleetConfig(Section):
    """A fleet file."""

    name: Annotated[str, Field(pattern=f"^{FLEET_NAME}$")] = Field(
        description="Up to 32 small letters, digits and inner dashes."
    )
    cloud: Literal["local", "aws", "gcp", "azure"] = Field(
        default="local", description="Where nodes are bought; local: on this machine, under the names of real clouds."
    )
    clouds: tuple[CloudName, ...] = Field(default=(), description="Instead of `cloud`: several, like [aws, gcp].")
    offers: tuple[OfferSelector, ...] = Field(default=(), description="What may be bought; empty: everything.")
    limits: Limits = Limits()
    budgets: Budgets = Budgets()
    carbon: Carbon = Carbon()
    timing: Timing = Timing()
    forecast: Forecast = Forecast()
    market: Markets = Markets()
    placement: Placement = Placement()
    dry_run: Annotated[bool, Strict()] = Field(
        default=False, description="Look and decide, and tell what would be done, but launch and end nothing."
    )
    local: LocalCloud = LocalCloud()
    aws: AwsCloud | None = None
    gcp: GcpCloud | None = None
    azure: AzureCloud | None = None
    head: Head = Head()
    boot: Boot = Boot()
    controller: ControllerDoor = ControllerDoor()
    storage: StorageUrl = Field(
        default="",
        description="Where checkpoints go: s3://..., gs://..., abfs://... or a folder that all nodes have; "
        "left out: a folder of this machine (local) or of the head.",
    )

    @property
    def cloud_names(self) -> tuple[CloudName, ...]:
        """The clouds for real; none for a fleet on this machine."""
        return self.clouds or (() if self.cloud == "local" else (self.cloud,))

    @model_validator(mode="after")
    def _clouds_have_their_sections(self) -> FleetConfig:
        if self.clouds and "cloud" in self.model_fields_set:
            raise ValueError("has both `cloud` and `clouds`; keep one")
        if len(set(self.clouds)) != len(self.clouds):
            raise ValueError("`clouds` names one twice")
        for name in ("aws", "gcp", "azure"):
            if name in self.cloud_names and getattr(self, name) is None:
                raise ValueError(f"{name} is among its clouds, and a section `{name}:` is missing")
            if name not in self.cloud_names and getattr(self, name) is not None:
                raise ValueError(
                    f"there is a section `{name}:`, but {name} is not among its clouds; add it to `clouds`"
                )
        return self


# --- the job file ----------------------------------------------------------------------------------------------

_Amount = Annotated[Number, Field(ge=0)]


class WorkerResources(Section):
    """What one worker needs."""

    cpu: _Amount = 1.0
    gpu: _Amount | None = None
    tpu: _Amount | None = None
    memory_gib: _Amount | None = None
    accelerator: str | None = Field(default=None, description="Like L4, A100 or H100. Alone, it means one of them.")
    custom: dict[str, _Amount] = Field(default_factory=dict, description="Ray's custom resources, by name.")

    def to_ray(self) -> dict[str, float]:
        """As Ray counts them, without zeros."""
        gpu, tpu = self.gpu, self.tpu
        if self.accelerator and gpu is None and tpu is None:
            gpu, tpu = (None, 1.0) if self.accelerator.startswith("TPU") else (1.0, None)
        memory = None if self.memory_gib is None else self.memory_gib * 2**30
        amounts = {"CPU": self.cpu, "GPU": gpu, "TPU": tpu, "memory": memory, **self.custom}
        if self.accelerator:
            amounts[f"accelerator_type:{self.accelerator}"] = 0.001  # as Ray itself asks for `accelerator_type=`
        return {name: amount for name, amount in amounts.items() if amount}


class JobConfig(Section):
    """A job file."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        default="job", description="Up to 63 letters, digits, dots, dashes and underscores."
    )
    entrypoint: Annotated[str, Field(pattern=r"\S")] = Field(
        description="A shell command, like `python train.py`; it runs on the head of the cluster."
    )
    working_dir: str = Field(
        default="", description="Relative to this file. Left out: its folder. May be a remote URI."
    )
    tenant: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")] = Field(
        default="default", description="Who pays: up to 63 letters, digits, dots, dashes and underscores."
    )
    team: str = Field(default="", description="Which part of the tenant, for reports.")
    workers: Workers | None = Field(default=None, description="Left out: the program asks Ray for what it needs.")
    resources: WorkerResources = WorkerResources()
    labels: dict[str, str] = Field(
        default_factory=dict, description="Ray's label selector, like {ray.io/market-type: spot}."
    )
    deadline: DeadlineField | None = None
    budget_uusd: Usd | None = Field(default=None, alias="budget", description="In US dollars.")
    work_s: Annotated[Duration, Field(gt=0)] | None = Field(
        default=None,
        alias="work",
        description="How long one replica would need, like 48h: until its own steps tell, a deadline is kept by it.",
    )
    env: dict[str, EnvText] = Field(default_factory=dict)
    max_retries: Annotated[Whole, Field(ge=0)] = Field(
        default=0, description="Of the program; nodes that were taken away do not count."
    )

    @field_validator("working_dir")
    @classmethod
    def _resolve(cls, value: str, info: ValidationInfo) -> str:
        """Against the folder of the file, which comes as context."""
        if not value or "://" in value:
            return value
        folder = (info.context or {}).get("folder", Path.cwd())
        path = (folder / Path(value).expanduser()).resolve()
        if not path.is_dir():
            raise ValueError(f"there is no folder {path}")
        return str(path)

    def to_spec(self, now_s: float) -> JobSpec:
        """What the controller is asked for; a deadline that is a span begins at `now_s`."""
        fewest, most = self.workers or (0, 0)
        deadline_at_s = self.deadline.resolve_s(now_s) if self.deadline else None
        return JobSpec(
            name=self.name,
            entrypoint=self.entrypoint,
            working_dir=self.working_dir,
            tenant=self.tenant,
            team=self.team,
            min_workers=fewest,
            max_workers=most,
            worker_resources=self.resources.to_ray() if self.workers or "resources" in self.model_fields_set else {},
            worker_labels=dict(self.labels),
            env=dict(self.env),
            contract=Contract(deadline_at_s=deadline_at_s, budget_uusd=self.budget_uusd, work_s=self.work_s),
            max_retries=self.max_retries,
        )
