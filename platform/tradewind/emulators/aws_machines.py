"""Instances of the emulated AWS that run: their user-data in processes, IMDSv2 at their own address.

with AwsEmulator(tick_s=0.1) as cloud, Machines() as machines:
    run_on_aws(cloud, machines)
"""

from __future__ import annotations

from collections.abc import Mapping

from tradewind.emulators.aws import AwsEmulator, Cut
from tradewind.emulators.aws_books import Machine
from tradewind.emulators.machines import Instance, Machines
from tradewind.emulators.metadata_server import Asked, Told


def run_on_aws(cloud: AwsEmulator, machines: Machines, *, boots_in_s: float = 0.5, ends_in_s: float = 0.5) -> None:
    """From now on (until `cloud.reset`), what is launched there runs here."""
    books = cloud.books
    books.boots_in_s, books.ends_in_s = boots_in_s, ends_in_s
    books.new_address = machines.new_address
    books.on_boot = lambda machine: machines.boot(_instance(cloud, machine))
    books.on_end = lambda machine: machines.end(machine.id)
    books.console = lambda machine: machines.console(machine.id)


def _instance(cloud: AwsEmulator, machine: Machine) -> Instance:
    def metadata(asked: Asked) -> Told | None:
        try:
            told = cloud.metadata_answer(asked.method, f"/imds/{machine.id}{asked.target}", asked.headers)
        except Cut:
            return None
        return Told(told.status, told.body, {"Content-Type": told.content_type})

    def env(url: str) -> Mapping[str, str]:
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "AWS_METADATA_SERVICE_TIMEOUT": "10",  # this machine is shared by all of them
            "AWS_ENDPOINT_URL": cloud.url,
        }

    return Instance(
        machine.id, machine.private_address, machine.user_data, metadata, env, lambda: cloud.stopped(machine)
    )
