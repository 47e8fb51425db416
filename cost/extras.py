"""What a job's data costs beside its nodes: storing checkpoints, and moving them out of a cloud. Pure estimates.

No cloud tells these by job, so they are worked out from what was saved, at list prices, and stand beside the total of a
receipt, never in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

GIB = 2**30
MONTH_MS = 30 * 24 * 3_600_000
KEPT = 3  # checkpoints that a training job keeps, unless told otherwise

# Micro-dollars a GiB-month of the clouds' standard object storage in the United States, lists of 2026.
STORED_UUSD_PER_GIB_MONTH = {"s3": 23_000, "gs": 20_000, "abfs": 18_000, "abfss": 18_000, "az": 18_000}
# Micro-dollars a GiB that leaves a cloud; within one region of it, nothing is charged.
LEAVING_UUSD_PER_GIB = {"aws": 90_000, "gcp": 120_000, "azure": 87_500}
_CLOUD_OF = {"s3": "aws", "gs": "gcp", "abfs": "azure", "abfss": "azure", "az": "azure"}


class Save(NamedTuple):
    """One checkpoint, and on which clouds its job ran when it was written."""

    at_ms: int
    size_bytes: int
    scheme: str  # of its address: "s3"; empty: a folder
    clouds: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Estimates:
    """Not in any total. Checkpoints go out once from each part of the job that runs on another cloud than they lie."""

    storage_uusd: int = 0
    egress_uusd: int = 0
    stored_gib: float = 0.0  # at the end
    egress_gib: float = 0.0


def estimate(saves: Sequence[Save], until_ms: int) -> Estimates:
    """Storage is paid until `until_ms`: the last KEPT checkpoints at any moment."""
    stored, egress, egress_gib = 0.0, 0.0, 0.0
    for i, save in enumerate(saves):
        gib = save.size_bytes / GIB
        deleted_ms = saves[i + KEPT].at_ms if i + KEPT < len(saves) else until_ms
        stored += gib * STORED_UUSD_PER_GIB_MONTH.get(save.scheme, 0) * max(deleted_ms - save.at_ms, 0) / MONTH_MS
        home = _CLOUD_OF.get(save.scheme, "")
        away = [cloud for cloud in save.clouds if home and cloud != home]
        for cloud in away:
            part_gib = gib / len(save.clouds)
            egress_gib += part_gib
            egress += part_gib * LEAVING_UUSD_PER_GIB.get(cloud, 0)
    kept_gib = sum(save.size_bytes for save in saves[-KEPT:] if save.scheme) / GIB
    return Estimates(round(stored), round(egress), kept_gib, egress_gib)
