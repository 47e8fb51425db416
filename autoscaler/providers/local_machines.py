"""What an instance of the local cloud is made of: a real Ray node, or (to try policies at speed) nothing at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tradewind.autoscaler.providers import raylets
from tradewind.autoscaler.providers.local_instances import Instance
from tradewind.autoscaler.providers.local_processes import SessionRecord, is_running
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID

_NODE = "r"  # below an instance's folder; short, because of the paths of Ray's sockets


class Machines(Protocol):
    """The edge between the books of the local cloud and the processes of this machine."""

    def queue(self) -> contextlib.AbstractContextManager[None]:
        """Held while one machine boots, so that they boot one after another."""
        ...

    def start(self, instance: Instance, folder: Path) -> None:
        """Begin to boot; returns at once."""
        ...

    def wait_joined(self, instance: Instance, folder: Path) -> None:
        """Returns when it has joined Ray; raises RayError if it will not."""
        ...

    def is_running(self, instance: Instance, folder: Path) -> bool: ...

    def end(self, folder: Path, grace_s: float) -> None:
        """End all of it and remove what it left. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class RayMachines:
    """Each instance is one Ray node in a session of processes."""

    token_path: Path
    boot_timeout_s: float = 90.0

    def queue(self) -> contextlib.AbstractContextManager[None]:
        return raylets.one_start_at_a_time()

    def start(self, instance: Instance, folder: Path) -> None:
        raylets.spawn_node(
            raylets.make_node_folder(folder, _NODE),
            instance.launch_id,
            head_address=instance.head_address,
            token_path=self.token_path,
            address_ip=instance.address_ip,
            shape=shape_of(instance),
        )

    def wait_joined(self, instance: Instance, folder: Path) -> None:
        del instance
        raylets.wait_started(folder / _NODE, self.boot_timeout_s)

    def is_running(self, instance: Instance, folder: Path) -> bool:
        del instance
        try:
            return is_running(SessionRecord.load(folder / _NODE / "session.json"))
        except FileNotFoundError:
            return False

    def end(self, folder: Path, grace_s: float) -> None:
        raylets.end_node(folder / _NODE, grace_s)


@dataclass(slots=True)
class PretendMachines:
    """No process at all: everything joins at once. `crash` makes one end by itself, `broken` makes boots fail."""

    broken: bool = False
    running: set[str] = field(default_factory=set)
    ended: list[str] = field(default_factory=list)

    def queue(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start(self, instance: Instance, folder: Path) -> None:
        del instance
        self.running.add(folder.name)

    def wait_joined(self, instance: Instance, folder: Path) -> None:
        if self.broken or folder.name not in self.running:
            self.running.discard(folder.name)
            raise RayError(f"{instance.launch_id} ended while it started")

    def is_running(self, instance: Instance, folder: Path) -> bool:
        del instance
        return folder.name in self.running

    def end(self, folder: Path, grace_s: float) -> None:
        del grace_s
        self.running.discard(folder.name)
        self.ended.append(folder.name)

    def crash(self, number: int) -> None:
        self.running.discard(f"n{number}")


def shape_of(instance: Instance) -> raylets.NodeShape:
    """The offer as Ray counts it: everything that is not CPU, GPU or memory is a custom resource."""
    resources = instance.offer.resources
    cpus, gpus = int(resources.pop("CPU")), int(resources.pop("GPU", 0))
    memory_bytes = int(resources.pop("memory"))
    labels = {**instance.offer.labels, LABEL_LAUNCH_ID: instance.launch_id, **instance.labels}
    return raylets.NodeShape(cpus, gpus, memory_bytes or None, resources, labels)
