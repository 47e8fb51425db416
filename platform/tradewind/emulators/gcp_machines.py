"""Machines and TPU slices of the emulated Google Cloud that run: startup scripts in processes, one for each host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from tradewind.emulators.gcp import GcpEmulator
from tradewind.emulators.gcp_compute import Vm
from tradewind.emulators.gcp_tpu import TpuNode, hosts_of
from tradewind.emulators.machines import Instance, Machines

T = TypeVar("T")


def run_on_gcp(cloud: GcpEmulator, machines: Machines, *, boots_in_s: float = 0.5, ends_in_s: float = 0.5) -> None:
    """From now on, what is launched there runs here."""
    compute, tpu = cloud.compute, cloud.tpu
    compute.provision_s, compute.boot_s, compute.delete_s = boots_in_s / 2, boots_in_s, ends_in_s
    tpu.answer_s, tpu.boot_s, tpu.delete_s = boots_in_s / 2, boots_in_s, ends_in_s
    compute.new_address = tpu.new_address = machines.new_address
    compute.console = lambda vm: machines.console(vm.name)
    compute.on_boot = lambda vm: machines.boot(_machine(cloud, vm))
    compute.on_end = lambda vm: machines.end(vm.name)
    tpu.on_boot = lambda node: _boot_slice(cloud, machines, node)
    tpu.on_end = lambda node: _end_slice(machines, node)


def _machine(cloud: GcpEmulator, vm: Vm) -> Instance:
    address = vm.body["networkInterfaces"][0]["networkIP"]
    return _instance(
        cloud, vm.name, address, vm.metadata("startup-script"), lambda: _locked(cloud, cloud.compute.stopped, vm)
    )


def _boot_slice(cloud: GcpEmulator, machines: Machines, node: TpuNode) -> None:
    script = node.metadata("startup-script")
    for number, end in enumerate(node.body["networkEndpoints"]):
        stopped = partial(_locked, cloud, cloud.tpu.stopped, node)
        machines.boot(_instance(cloud, host_name(node, number), end["ipAddress"], script, stopped))


def _end_slice(machines: Machines, node: TpuNode) -> None:
    for number in range(hosts_of(node.type)):
        machines.end(host_name(node, number))


def host_name(node: TpuNode, number: int) -> str:
    return f"{node.name}-w-{number}"


def _instance(cloud: GcpEmulator, name: str, address: str, script: str, stopped: Callable[[], None]) -> Instance:
    def env(url: str) -> Mapping[str, str]:
        host = url.removeprefix("http://")
        return {
            "GCE_METADATA_HOST": host,
            "GCE_METADATA_IP": host,
            "GCE_METADATA_ROOT": host,  # where pyarrow's client looks
            "GCE_METADATA_TIMEOUT": "10",
            "CLOUD_STORAGE_EMULATOR_ENDPOINT": cloud.url,
        }

    return Instance(name, address, script, lambda asked: cloud.metadata.told(name, asked), env, stopped)


def _locked(cloud: GcpEmulator, happens: Callable[[T], None], to: T) -> None:
    with cloud.time.lock:
        happens(to)
