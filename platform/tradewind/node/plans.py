"""A launch -> the boot plan of its node. Pure; a cell hands `user_data(worker_plan(...))` to its provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.slices import is_tpu, tpu_hosts
from tradewind.node.boot_plan import DEFAULT_INSTALL, BootPlan, Role

_OWN_OPTIONS = ("CPU", "GPU", "memory")  # of `ray start`


@dataclass(frozen=True, slots=True)
class CellBoot:
    """What all machines of a cell share."""

    fleet: str
    cell: str
    cloud: str
    region: str
    ca_pem: str
    controller_url: str = ""
    controller_ca_pem: str = ""
    python: str = ""
    install: str = DEFAULT_INSTALL
    setup: tuple[str, ...] = ()
    dead_man_s: float = 900.0
    storage: str = ""
    endpoints: Mapping[str, str] = field(default_factory=dict)

    def plan(self, role: Role, launch_id: str, **more: object) -> BootPlan:
        return BootPlan(
            fleet=self.fleet,
            cell=self.cell,
            launch_id=launch_id,
            cloud=self.cloud,
            region=self.region,
            role=role,
            secret=secret_name(self.fleet, self.cell, role),
            ca_pem=self.ca_pem,
            python=self.python,
            install=self.install,
            setup=self.setup,
            dead_man_s=self.dead_man_s,
            storage=self.storage,
            endpoints=self.endpoints,
            **more,  # type: ignore[arg-type]
        )


def secret_name(fleet: str, cell: str, role: Role) -> str:
    """Each role may read its own alone."""
    return f"tradewind/{fleet}/{cell}/{'head' if role == 'head' else 'node'}"


def head_plan(cell: CellBoot, spec: LaunchSpec) -> BootPlan:
    return cell.plan(
        "head",
        spec.launch_id,
        labels=dict(spec.labels),
        controller_url=cell.controller_url,
        controller_ca_pem=cell.controller_ca_pem,
    )


def worker_plan(cell: CellBoot, spec: LaunchSpec, join_url: str) -> BootPlan:
    """What the node brings is said by its offer, so that Ray counts what was planned for. Of a TPU machine it is
    Ray that counts, by what `tpu` tells it."""
    offer, brings = spec.offer, spec.offer.resources
    return cell.plan(
        "worker",
        spec.launch_id,
        head_address=spec.head_address,
        join_url=join_url,
        labels=dict(spec.labels),
        resources={name: amount for name, amount in brings.items() if name not in _OWN_OPTIONS},
        num_cpus=offer.vcpus,
        num_gpus=brings.get("GPU", 0.0),
        memory_bytes=int(brings["memory"]) or None,
        tpu=tpu_hosts(offer)[0].env if is_tpu(offer) else {},
    )
