"""What an instance of the local cloud is made of: a real Ray node for each host, or (to try policies at speed) nothing
at all."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tradewind.autoscaler.providers import raylets
from tradewind.autoscaler.providers.local_instances import Instance
from tradewind.autoscaler.providers.local_processes import SessionRecord, is_running
from tradewind.autoscaler.slices import tpu_hosts
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID

_NODE = "r"  # below an instance's folder; short, because of the paths of Ray's sockets. Further hosts: r1, r2


class Machines(Protocol):
    """The edge between the books of the local cloud and the processes of this machine. Hosts are numbered from 0."""

    def queue(self) -> contextlib.AbstractContextManager[None]:
        """Held while one machine boots, so that they boot one after another."""
        ...

    def start(self, instance: Instance, folder: Path, host: int) -> None:
        """Begin to boot one host; returns at once."""
        ...

    def wait_joined(self, instance: Instance, folder: Path, host: int) -> None:
        """Returns when it has joined Ray; raises RayError if it will not."""
        ...

    def is_running(self, instance: Instance, folder: Path) -> bool:
        """All hosts are."""
        ...

    def console(self, folder: Path) -> str:
        """What its hosts have written."""
        ...

    def end(self, folder: Path, grace_s: float) -> None:
        """End all hosts and remove what they left. May be repeated."""
        ...


@dataclass(frozen=True, slots=True)
class RayMachines:
    """Each host is one Ray node in a session of processes."""

    token_path: Path
    boot_timeout_s: float = 90.0

    def queue(self) -> contextlib.AbstractContextManager[None]:
        return raylets.one_start_at_a_time()

    def start(self, instance: Instance, folder: Path, host: int) -> None:
        tpus = tpu_hosts(instance.offer, instance.launch_id)
        raylets.spawn_node(
            raylets.make_node_folder(folder, _folder_name(host)),
            instance.launch_id,
            head_address=instance.head_address,
            token_path=self.token_path,
            address_ip=instance.address_ip(host),
            shape=shape_of(instance),
            env=tpus[host].env if tpus else {},  # Ray makes labels and resources of it, as on a TPU machine
        )

    def wait_joined(self, instance: Instance, folder: Path, host: int) -> None:
        del instance
        raylets.wait_started(folder / _folder_name(host), self.boot_timeout_s)

    def is_running(self, instance: Instance, folder: Path) -> bool:
        records = [folder / _folder_name(host) / "session.json" for host in range(instance.offer.hosts)]
        try:
            return all(is_running(SessionRecord.load(record)) for record in records)
        except FileNotFoundError:
            return False

    def console(self, folder: Path) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted(folder.glob(f"{_NODE}*/{raylets.LOG}")))

    def end(self, folder: Path, grace_s: float) -> None:
        for node in sorted(folder.glob(f"{_NODE}*")):
            raylets.end_node(node, grace_s)


@dataclass(slots=True)
class PretendMachines:
    """No process at all: everything joins at once. `crash` makes one end by itself."""

    failing_boots: int = 0  # how many of the next boots fail
    running: set[str] = field(default_factory=set)  # "n1/r", of a slice "n1/r1", too
    ended: list[str] = field(default_factory=list)
    consoles: dict[str, str] = field(default_factory=dict)  # by folder: "n1"

    def queue(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def start(self, instance: Instance, folder: Path, host: int) -> None:
        del instance
        self.running.add(f"{folder.name}/{_folder_name(host)}")

    def wait_joined(self, instance: Instance, folder: Path, host: int) -> None:
        name = f"{folder.name}/{_folder_name(host)}"
        if self.failing_boots > 0 or name not in self.running:
            self.failing_boots -= 1
            self.running.discard(name)
            raise RayError(f"{instance.launch_id} ended while it started")

    def is_running(self, instance: Instance, folder: Path) -> bool:
        return all(f"{folder.name}/{_folder_name(host)}" in self.running for host in range(instance.offer.hosts))

    def console(self, folder: Path) -> str:
        return self.consoles.get(folder.name, "")

    def end(self, folder: Path, grace_s: float) -> None:
        del grace_s
        self.running -= {name for name in self.running if name.startswith(f"{folder.name}/")}
        self.ended.append(folder.name)

    def crash(self, number: int, host: int = 0) -> None:
        self.running.discard(f"n{number}/{_folder_name(host)}")


def _folder_name(host: int) -> str:
    return f"{_NODE}{host or ''}"


def shape_of(instance: Instance) -> raylets.NodeShape:
    """The offer as Ray counts it: everything that is not CPU, GPU or memory is a custom resource."""
    resources = instance.offer.resources
    cpus, gpus = int(resources.pop("CPU")), int(resources.pop("GPU", 0))
    memory_bytes = int(resources.pop("memory"))
    labels = {**instance.offer.labels, LABEL_LAUNCH_ID: instance.launch_id, **instance.labels}
    return raylets.NodeShape(cpus, gpus, memory_bytes or None, resources, labels)
