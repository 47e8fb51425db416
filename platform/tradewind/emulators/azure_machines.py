"""Machines of the emulated Azure that run: their custom data in processes, metadata at their own address."""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.emulators.azure import AzureEmulator
from tradewind.emulators.azure_compute import Vm
from tradewind.emulators.machines import Instance, Machines


def run_on_azure(cloud: AzureEmulator, machines: Machines, *, boots_in_s: float = 0.5, ends_in_s: float = 0.5) -> None:
    """From now on, what is launched there runs here."""
    compute = cloud.compute
    compute.provision_s, compute.boot_s, compute.delete_s = boots_in_s / 2, boots_in_s, ends_in_s
    compute.new_address = machines.new_address
    compute.console = lambda vm: machines.console(vm.name)
    compute.on_boot = lambda vm: machines.boot(_instance(cloud, vm))
    compute.on_end = lambda vm: machines.end(vm.name)


def _instance(cloud: AzureEmulator, vm: Vm) -> Instance:
    def env(url: str) -> Mapping[str, str]:
        return {"AZURE_POD_IDENTITY_AUTHORITY_HOST": url, "REQUESTS_CA_BUNDLE": cloud.ca_file}

    def stopped() -> None:
        with cloud.time.lock:
            cloud.compute.stopped(vm)

    address = cloud.compute.address_of(vm)
    return Instance(vm.name, address, vm.user_data, lambda asked: cloud.metadata.told(vm.name, asked), env, stopped)
