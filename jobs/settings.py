"""What `fit` was told, as far as workers need it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tradewind.jobs.layout import Layout


@dataclass(frozen=True, slots=True)
class RunSettings:
    job_id: str
    where: str  # folder or URI of the run
    checkpoint_every: int | None = None  # steps
    checkpoint_every_s: float | None = None
    keep: int = 3
    seed: int = 0
    threads: int = 1
    max_workers: int = 1
    layout: Layout = field(default_factory=Layout)
    precision: str | None = None  # "bf16": forward passes under autocast
    on_nan: str = "fail"  # or "skip"
    ledger: Path | None = None
    curve: Path | None = None

    @property
    def max_data_ranks(self) -> int:
        """The most workers that have data of their own at the same time."""
        return self.layout.data_world(self.max_workers)
