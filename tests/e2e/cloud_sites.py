"""Emulated clouds that run their machines, each behind the same few questions, and a fleet there by our commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fleet_home import until

from tradewind.client import Fleet, connect
from tradewind.emulators.fleet_file import OFFERS, aws_section, azure_section, fleet_text, gcp_section
from tradewind.errors import ControllerError
from tradewind.home import FleetHome

FLEET = "clouded"
# In a folder that the head does not have: it is packed, fetched by its digest, and unpacked by Ray.
TRAIN = "import runpy\nrunpy.run_module('tradewind.jobs.examples.digits', run_name='__main__')\n"


@dataclass
class Cloud:
    """What differs between the clouds."""

    sections: dict[str, str]
    environment: dict[str, str]
    cell: str
    instance_type: str
    machines: Any
    take: Callable[[str, float], None]  # the node of a launch id goes, with notice, and there are no more spot ones
    left: Callable[[], list[str]]  # everything of anybody that costs money, and all secrets
    texts: Callable[[], list[str]]  # user-data of what runs
    secrets: Callable[[], tuple[str, ...]]  # what nobody may ever see
    ca_file: str = ""
    hosts: int = 1
    emulator: Any = None


@contextmanager
def on_aws(*regions: str) -> Iterator[Cloud]:
    from tradewind.emulators.aws import SECRET_KEY, AwsEmulator
    from tradewind.emulators.aws_machines import run_on_aws
    from tradewind.emulators.machines import Machines

    with AwsEmulator(tick_s=0.2) as cloud, Machines() as machines:
        run_on_aws(cloud, machines)

        def take(launch_id: str, notice_s: float) -> None:
            cloud.shop.sold_out.add(("us-east-1a", OFFERS["aws"], True))
            cloud.preempt(next(each for each in cloud.machines() if launch_id in str(each.tags)), notice_s)

        def left() -> list[str]:
            disks = [part.id for region in cloud.books.regions.values() for part in region.volumes.values()]
            kept = [name for name, secret in cloud.vault.secrets.items() if not secret.deleted_at_s]
            return [*(each.id for each in cloud.machines()), *disks, *kept]

        yield Cloud(
            {"aws": aws_section(cloud, *regions)},
            cloud.environment(),
            "aws-us-east-1",
            OFFERS["aws"],
            machines,
            take,
            left,
            lambda: [each.user_data for each in cloud.machines()],
            lambda: (SECRET_KEY,),
            emulator=cloud,
        )


@contextmanager
def on_gcp(instance_type: str = OFFERS["gcp"], region: str = "us-central1", hosts: int = 1) -> Iterator[Cloud]:
    import tempfile

    from tradewind.emulators.gcp import GcpEmulator
    from tradewind.emulators.gcp_machines import run_on_gcp
    from tradewind.emulators.machines import Machines

    cloud = GcpEmulator().start(tick_s=0.2)
    try:
        with Machines() as machines, tempfile.TemporaryDirectory() as folder:
            run_on_gcp(cloud, machines)

            def take(launch_id: str, notice_s: float) -> None:
                with cloud.time.lock:
                    everything = [*cloud.compute.vms.values(), *cloud.tpu.nodes.values()]
                    mine = next(each for each in everything if launch_id in each.name)
                    shop = cloud.tpu if hosts > 1 else cloud.compute
                    # Slices are sold on spot alone there, so another zone serves; machines have another market.
                    zones = [mine.zone] if hosts > 1 else [f"{region}-{letter}" for letter in "abcf"]
                    cloud.faults.sold_out |= {(zone, *mine.pool[1:]) for zone in zones}
                    shop.preempt(mine, notice_s)

            def left() -> list[str]:
                with cloud.time.lock:
                    parts = (cloud.compute.vms, cloud.compute.disks, cloud.tpu.nodes, cloud.tpu.queued)
                    return [*(str(key) for part in parts for key in part), *cloud.vault.secrets]

            def texts() -> list[str]:
                with cloud.time.lock:
                    everything = [*cloud.compute.vms.values(), *cloud.tpu.nodes.values()]
                    return [each.metadata("startup-script") for each in everything]

            yield Cloud(
                {"gcp": gcp_section(cloud, region)},
                dict(cloud.environment(Path(folder) / "login.json")),
                f"gcp-{region}",
                instance_type,
                machines,
                take,
                left,
                texts,
                lambda: cloud.secrets,
                hosts=hosts,
                emulator=cloud,
            )
    finally:
        cloud.close()


@contextmanager
def on_tpu() -> Iterator[Cloud]:
    with on_gcp("tpu-v5p-16", "us-south1", hosts=2) as found:
        yield found


@contextmanager
def on_azure() -> Iterator[Cloud]:
    from tradewind.emulators.azure import AzureEmulator
    from tradewind.emulators.azure_machines import run_on_azure
    from tradewind.emulators.machines import Machines

    cloud = AzureEmulator().start(tick_s=0.2)
    try:
        with Machines() as machines:
            run_on_azure(cloud, machines)

            def take(launch_id: str, notice_s: float) -> None:
                with cloud.time.lock:
                    vm = next(each for each in cloud.compute.vms.values() if launch_id in str(each.body.get("tags")))
                    cloud.faults.sold_out |= {(f"eastus{zone}", *vm.pool[1:]) for zone in ("", "-1", "-2", "-3")}
                    cloud.compute.evict(vm, notice_s)

            def left() -> list[str]:
                with cloud.time.lock:
                    parts = (cloud.compute.vms, cloud.compute.nics, cloud.compute.disks)
                    return [*(str(key) for part in parts for key in part), *cloud.vault.secrets]

            yield Cloud(
                {"azure": azure_section(cloud)},
                dict(cloud.environment()),
                "azure-eastus",
                OFFERS["azure"],
                machines,
                take,
                left,
                lambda: [vm.user_data for vm in list(cloud.compute.vms.values())],
                lambda: tuple(cloud.secrets),
                cloud.ca_file,
                emulator=cloud,
            )
    finally:
        cloud.close()


@dataclass
class Site:
    """A fleet there, by the command line, as somebody at a keyboard has it."""

    cloud: Cloud
    place: FleetHome
    told: list[str] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        return self.place.root.parent

    def tradewind(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "tradewind.cli", "--home", str(self.place.root), "--fleet", FLEET, *arguments]
        done = subprocess.run(command, env=os.environ.copy(), text=True, capture_output=True, timeout=300, check=False)
        self.told += [done.stdout, done.stderr]
        assert done.returncode == 0, f"{arguments}\n{done.stdout}{done.stderr}{self.place.log_tail(40)}"
        return done.stdout

    def up(self, offers: str = "") -> Fleet:
        """Of the cloud's one type, unless offers are given."""
        cloud, wanted = self.cloud, offers or f"{{instance_type: {self.cloud.instance_type}}}"
        text = fleet_text(cloud.sections, self.folder / "runs", name=FLEET, offers=wanted, ca_file=cloud.ca_file)
        (self.folder / "fleet.yaml").write_text(text)
        self.tradewind("up", str(self.folder / "fleet.yaml"), "--yes")
        return connect(self.place.root, FLEET, start=False)

    def consoles(self) -> str:
        machines = self.cloud.machines
        return "\n".join(f"--- {name}\n{machines.console(name)[-3000:]}" for name in machines.names())

    def until(self, holds: Any, what: str, timeout_s: float = 600.0) -> Any:
        try:
            return until(holds, what, self.place, timeout_s)
        except pytest.fail.Exception as error:
            pytest.fail(f"{error}\n{self.consoles()}")


@contextmanager
def site_on(cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    for name, value in cloud.environment.items():
        monkeypatch.setenv(name, value)
    (folder / "work").mkdir()
    (folder / "work" / "train.py").write_text(TRAIN)
    place = FleetHome(folder / "home", FLEET)
    try:
        yield Site(cloud, place)
    finally:
        with suppress(ControllerError):  # a test that failed has left one; the others have none
            connect(place.root, place.fleet, start=False).down()
