"""What people ask of the controller, checked when it is built. Beside api.py, which holds what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field

from tradewind.api import Count, Text
from tradewind.errors import ConfigError, Problem
from tradewind.model import Contract, JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest:
    """The fields of a JobSpec, checked, and no others."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: Text
    entrypoint: Text
    working_dir: str = ""
    tenant: Text = "default"
    team: str = ""
    min_workers: Count = 0
    max_workers: Count = 0
    worker_resources: Mapping[str, Annotated[float, Field(ge=0)]] = field(default_factory=dict)
    worker_labels: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    deadline_at_s: float | None = None
    work_s: Annotated[float, Field(gt=0)] | None = None
    budget_uusd: Annotated[int, Field(gt=0)] | None = None
    max_retries: Count = 0

    @classmethod
    def of(cls, spec: JobSpec) -> SubmitRequest:
        return cls(
            name=spec.name,
            entrypoint=spec.entrypoint,
            working_dir=spec.working_dir,
            tenant=spec.tenant,
            team=spec.team,
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
            worker_resources=dict(spec.worker_resources),
            worker_labels=dict(spec.worker_labels),
            env=dict(spec.env),
            deadline_at_s=spec.contract.deadline_at_s,
            budget_uusd=spec.contract.budget_uusd,
            work_s=spec.contract.work_s,
            max_retries=spec.max_retries,
        )

    def to_spec(self) -> JobSpec:
        if not self.entrypoint.strip():
            raise ConfigError([Problem("request", "entrypoint", "is blank; give a command, like `python train.py`")])
        if self.min_workers > self.max_workers:
            found = f"min {self.min_workers} is above max {self.max_workers}"
            raise ConfigError([Problem("request", "workers", found)])
        return JobSpec(
            name=self.name,
            entrypoint=self.entrypoint,
            working_dir=self.working_dir,
            tenant=self.tenant,
            team=self.team,
            min_workers=self.min_workers,
            max_workers=self.max_workers,
            worker_resources=self.worker_resources,
            worker_labels=self.worker_labels,
            env=self.env,
            contract=Contract(self.deadline_at_s, self.budget_uusd, self.work_s),
            max_retries=self.max_retries,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest:
    """What a job may cost from now on: so much more than it was, or so much in all; neither: as before."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    add_uusd: Annotated[int, Field(gt=0)] | None = None
    budget_uusd: Annotated[int, Field(gt=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptRequest:
    """Play the cloud: take a node away (local cloud only)."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    target: Text  # a launch id, or a glob over market keys, "aws/*/spot"
    notice_s: Annotated[float, Field(ge=0)] | None = None  # None: without notice
