"""The process groups of a layout, made anew for each group of workers: `make_mesh`.

torch compares meshes by content and keeps what it has worked out for a mesh (how a tensor is redistributed, over which
process group) for ever. A mesh of the same shape after a change of the group would find the old, destroyed process
groups there, or others that have got their names meanwhile. So the axes of each mesh have names of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tradewind.jobs.layout import Layout

AXES = ("replica", "pp", "fsdp", "tp")


@dataclass(frozen=True, slots=True)
class Mesh:
    """A device mesh, with axes by their plain names. Of pp and tp only those are there that have a size."""

    devices: DeviceMesh
    epoch: int

    def has(self, axis: str) -> bool:
        return f"{axis}{self.epoch}" in (self.devices.mesh_dim_names or ())

    def take(self, *axes: str) -> DeviceMesh:
        found: DeviceMesh = self.devices[tuple(f"{axis}{self.epoch}" for axis in axes)]
        return found

    def group(self, axis: str) -> Any:
        return self.take(axis).get_group()


def make_mesh(layout: Layout, device: torch.device, epoch: int) -> Mesh:
    """The mesh of the present process group; a worker alone gets a group of one.

    `epoch` is the group's number, another one for each group. New process groups are made, with sockets of their own:
    whoever publishes ports does it after this.
    """
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    sizes = dict(zip(AXES, layout.mesh_shape(dist.get_world_size()), strict=True))
    needed = {axis: size for axis, size in sizes.items() if size > 1 or axis in ("replica", "fsdp")}
    names = tuple(f"{axis}{epoch}" for axis in needed)
    return Mesh(init_device_mesh(device.type, tuple(needed.values()), mesh_dim_names=names), epoch)
