"""Make the parallel module of one worker for one mesh: stage, slices, shards and replicas, as torch does them.

skeleton (shapes only) -> stage of the pipeline -> tensor parallelism by a plan -> fully_shard by blocks -> memory
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module

from tradewind.errors import JobError
from tradewind.jobs import layout as boxes
from tradewind.jobs.layout import Box, Coordinate, Layout
from tradewind.jobs.mesh import Mesh
from tradewind.jobs.pipeline import blocks, split


@dataclass(frozen=True, slots=True)
class Part:
    """How a parameter of the full model is cut."""

    shape: tuple[int, ...]
    tp_dim: int | None

    def box(self, at: Coordinate, tp: int, fsdp: int) -> Box:
        return boxes.box(self.shape, self.tp_dim, at, tp, fsdp)


def skeleton(module: torch.nn.Module) -> Any:
    """A copy without memory: tensors have shapes only."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        empty = torch.empty_like(parameter, device="meta")
        memo[id(parameter)] = torch.nn.Parameter(empty, requires_grad=parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(module, memo)


def plan_of(module: Any, layout: Layout, given: Mapping[str, Any] | None) -> dict[str, Any]:
    if layout.tp == 1:
        return {}
    if given is None and not hasattr(module, "tp_plan"):
        hint = "give it a method tp_plan() -> {name of a module: ColwiseParallel() or RowwiseParallel()}"
        raise JobError(f"{type(module).__name__} does not say how to cut it for tensor parallelism", hint)
    plan = dict(given if given is not None else module.tp_plan())
    names = [name for name, _ in module.named_modules()]
    unknown = [key for key in plan if not any(fnmatch(name, key) for name in names)]
    if unknown:
        raise JobError(f"the tp plan names {unknown}, which the model does not have", "use names of named_modules()")
    return plan


def build(
    bones: Any, layout: Layout, plan: Mapping[str, Any], mesh: Mesh, device: torch.device
) -> tuple[Any, dict[str, Part]]:
    """This worker's parallel module, with memory and without values, and how its parameters are cut."""
    built = copy.deepcopy(bones)
    shapes = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    if layout.pp > 1:
        built = split(built, layout.pp)[mesh.take("pp").get_local_rank()]
    if plan:
        names = [name for name, _ in built.named_modules()]
        here = {key: style for key, style in plan.items() if any(fnmatch(name, key) for name in names)}
        parallelize_module(built, mesh.take("tp"), here)
    parts = {name: Part(shapes[name], _tp_dim(parameter)) for name, parameter in built.named_parameters()}
    _shard(built, mesh.take("replica", "fsdp"), reshard=mesh.take("fsdp").size() > 1)
    built.to_empty(device=device)
    return built, parts


def _shard(built: Any, mesh: DeviceMesh, reshard: bool) -> None:
    """One unit of communication for each block, and one for the rest."""
    for block in blocks(built).values():
        if any(True for _ in block.parameters()):
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(built, mesh=mesh, reshard_after_forward=reshard)
    for part in sharded_parts(built):
        # A sum, also on gloo, which knows neither averages nor factors.
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)


def sharded_parts(built: Any) -> Iterator[Any]:
    yield from (module for module in built.modules() if isinstance(module, FSDPModule))


def _tp_dim(parameter: Any) -> int | None:
    if not isinstance(parameter, DTensor):
        return None
    (placement,) = parameter.placements
    return placement.dim if isinstance(placement, Shard) else None
