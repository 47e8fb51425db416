"""A Ray cluster file with a fleet in it (config_ray.py), as `ray up` hands it to our node provider. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.config_models import FleetConfig
from tradewind.config_ray import RAY_FLEET, fleet_part
from tradewind.config_yaml import Document, check
from tradewind.errors import ConfigError, Problem

MODULE = "tradewind.clouds.ray_provider.TradewindNodeProvider"
# Ray runs these by SSH, which the machines do not have.
_BY_SSH = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)


def fleet_in(provider: Mapping[str, Any], cluster_name: str) -> FleetConfig:
    """The fleet in the `provider` section of a Ray cluster file."""
    document = Document("cluster file", {"cluster_name": cluster_name, "provider": provider})
    return check(fleet_part(document), FleetConfig)


def the_cell(config: FleetConfig) -> CellPlan:
    """`ray up` makes one Ray cluster, which is one cell."""
    cells = cells_of(config)
    if len(cells) != 1:
        found = ", ".join(cell.name for cell in cells) or "none: its cloud is local"
        problem = Problem("cluster file", ".".join(RAY_FLEET), f"`ray up` starts one cell, and this names {found}")
        raise ConfigError([problem], "keep one region, or start it with `tradewind up`")
    return cells[0]


def bootstrapped(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """What Ray expects to stand in a checked cluster file. Raises ConfigError for what would be left undone."""
    the_cell(fleet_in(cluster["provider"], cluster["cluster_name"]))
    undone = [key for key in (*_BY_SSH, "file_mounts", "docker") if cluster.get(key)]
    if undone:
        message = "is carried out by SSH, and the machines have none"
        hint = f"put commands into {'.'.join(RAY_FLEET)}.boot.setup, and files into the image"
        raise ConfigError([Problem("cluster file", key, message) for key in undone], hint)
    empty: dict[str, Any] = {**{key: [] for key in _BY_SSH}, "file_mounts": {}, "cluster_synced_files": [], "auth": {}}
    return {**empty, **cluster}
