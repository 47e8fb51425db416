"""Google Compute Engine as a world of the contract: Google's own SDK against the emulator, by a clock of the test."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud_world import CELL, FLEET, Truth, World, make_spec, run_and_kill

from tradewind.autoscaler.providers.base import LaunchSpec, PriceSource, Provider
from tradewind.autoscaler.providers.gcp import GcpCompute
from tradewind.autoscaler.providers.gcp_instance import instance_type_of
from tradewind.autoscaler.providers.gcp_settings import (
    LABEL_CELL,
    LABEL_FLEET,
    LABEL_LAUNCH_ID,
    GcpSettings,
    Names,
    region_of,
)
from tradewind.emulators.gcp import GcpEmulator, load_credentials
from tradewind.emulators.gcp_compute import Vm
from tradewind.model import Capacity, Market, Offer

SPOT = Offer(Market("gcp", "us-central1", "us-central1-a", "g2-standard-8", Capacity.SPOT), 8, 32, "L4", 1, 1, 340_000)
REGIONS = ("us-central1", "europe-west4")
_STATES = {"PROVISIONING": "pending", "STAGING": "pending", "RUNNING": "running", "STOPPING": "stopping"}
_TAGS = {"launch_id": LABEL_LAUNCH_ID, "fleet": LABEL_FLEET, "cell": LABEL_CELL}


def at(spot: Offer, zone: str, capacity: Capacity = Capacity.SPOT) -> Offer:
    market = replace(spot.market, region=region_of(zone), zone=zone, capacity=capacity)
    price_uusd = 850_000 if capacity is Capacity.ON_DEMAND else 350_000
    return replace(spot, market=market, price_uusd_per_h=price_uusd)


def tags_of(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: labels[label] for name, label in _TAGS.items() if label in labels}


def user_data(spec: LaunchSpec) -> str:
    return f"#!/bin/bash\necho {spec.launch_id}\n"


@dataclass
class GcpWorld:
    folder: Path
    name: str = "gcp"
    spot: Offer = SPOT
    on_demand: Offer = field(init=False)
    other_zone: Offer = field(init=False)
    other_region: Offer = field(init=False)
    cannot: Mapping[str, str] = field(
        default_factory=lambda: {
            "price_above": "Google takes no price limit: spot has a list price that changes once a day at most",
            "half_launch": "a launch is one machine",
            "notice_listed": "Google tells a preemption to the machine's metadata service alone",
        }
    )
    now: float = 1_790_000_000.0

    def __post_init__(self) -> None:
        self.on_demand = at(self.spot, self.spot.market.zone, Capacity.ON_DEMAND)
        self.other_zone = at(self.spot, f"{self.spot.market.region}-b")
        self.other_region = at(self.spot, "europe-west4-b")
        self._lock = threading.Lock()
        self.emulator = GcpEmulator(clock=self.now_s).start()

    @property
    def secrets(self) -> Sequence[str]:
        return self.emulator.secrets

    @property
    def offers(self) -> tuple[Offer, ...]:
        return (self.spot, self.on_demand, self.other_zone, self.other_region)

    def settings(self, fleet: str = FLEET) -> GcpSettings:
        project, url = self.emulator.project, self.emulator.url
        return GcpSettings(fleet, project, REGIONS, endpoint_url=url, service_account="nodes@emulated")

    def provider(self, fleet: str = FLEET) -> Provider:
        return self._compute(self.settings(fleet))

    def _compute(self, settings: GcpSettings) -> GcpCompute:
        return GcpCompute(
            settings,
            user_data,
            offers=self.offers,
            credentials=self.emulator.credentials(),
            clock=self.now_s,
            sleep=self.advance,
        )

    def prices(self) -> PriceSource:
        return self._compute(self.settings())

    def now_s(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds
        self.emulator.settle()

    def close(self) -> None:
        self.emulator.close()

    # --- the truth ---

    def instances(self) -> list[Truth]:
        self.emulator.settle()
        return [self._truth(vm) for vm in self.emulator.compute.vms.values() if vm.body["status"] in _STATES]

    def _truth(self, vm: Vm) -> Truth:
        cards = {each["acceleratorType"]: each["acceleratorCount"] for each in vm.body.get("guestAccelerators", [])}
        capacity = Capacity.SPOT if vm.is_spot else Capacity.ON_DEMAND
        labels, disks = vm.body.get("labels", {}), self.emulator.compute.disks
        used = [disk for disk in disks.values() if vm.body["selfLink"] in disk["users"]]
        return Truth(
            launch_id=labels.get(LABEL_LAUNCH_ID, ""),
            instance_id=vm.name,
            state=_STATES[vm.body["status"]],
            market=Market("gcp", region_of(vm.zone), vm.zone, instance_type_of(vm.machine, cards), capacity),
            tags=tags_of(labels),
            parts={f"disk {disk['name']}": tags_of(disk["labels"]) for disk in used},
            user_data=vm.metadata("startup-script"),
            unsafe=_unsafe(vm),
        )

    def debris(self) -> list[str]:
        self.emulator.settle()
        compute = self.emulator.compute
        stopped = [
            f"zones/{vm.zone}/instances/{vm.name}" for vm in compute.vms.values() if vm.body["status"] not in _STATES
        ]
        return [
            *stopped,
            *(f"zones/{z}/disks/{name}" for (z, name), disk in compute.disks.items() if not disk["users"]),
        ]

    def groups(self) -> dict[str, list[str]]:
        self.emulator.settle()
        compute = self.emulator.compute
        found: dict[str, list[str]] = {}
        for region, name in compute.placement.policies:
            machines = (compute.vms[place] for place in compute.placement.members(region, name))
            found[name] = sorted(vm.body["labels"][LABEL_LAUNCH_ID] for vm in machines)
        return found

    # --- bad days ---

    def limit_group(self, n: int) -> None:
        self.emulator.faults.group_room = n

    def deny_groups(self) -> str:
        self.emulator.faults.denied |= {f"compute.resourcePolicies.{what}" for what in ("create", "list")}
        return "compute.resourcePolicies.create"

    def stock_out(self, offer: Offer) -> None:
        market = offer.market
        self.emulator.faults.sold_out.add((market.zone, market.instance_type, market.capacity is Capacity.SPOT))

    def restock(self) -> None:
        self.emulator.faults.sold_out.clear()

    def limit_quota(self, n: int) -> None:
        self.emulator.faults.quota = n

    def throttle(self, calls: int) -> None:
        self.emulator.faults.throttled = calls

    def fail_server(self, calls: int) -> None:
        self.emulator.faults.broken = calls

    def expire_credentials(self) -> None:
        self.emulator.faults.credentials_expired = True

    def deny(self) -> str:
        self.emulator.faults.denied.add("compute.instances.create")
        return "compute.instances.create"

    def refuse_unknown(self, code: str) -> None:
        self.emulator.faults.unknown_code = code

    def cut_after_sending(self, calls: int) -> None:
        self.emulator.faults.cut_after = calls

    def cut_before_doing(self, calls: int) -> None:
        self.emulator.faults.cut_before = calls

    def fail_boot(self, launches: int) -> None:
        self.emulator.faults.failed_boots = launches

    def lag_listing(self, seconds: float) -> None:
        self.emulator.faults.listing_lag_s = seconds

    def blackout(self, region: str) -> None:
        self.emulator.faults.dead_regions.add(region)

    def skew(self, seconds: float) -> None:
        self.emulator.time.skew_s = seconds

    def killed_launch(self, launch_id: str) -> None:
        self.emulator.faults.hang_after_s = 60.0
        login = self.emulator.credentials_file(self.folder / "login.json")
        code = "import sys; from worlds.gcp_world import launch; launch(*sys.argv[1:])"
        run_and_kill(
            code,
            [self.emulator.url, str(login), launch_id, str(self.now)],
            lambda: bool(self.emulator.compute.vms),
            240,
        )
        self.emulator.faults.hang_after_s = 0.0

    def preempt(self, launch_id: str, notice_s: float) -> None:
        self.emulator.compute.preempt(self._vm(launch_id), notice_s)

    def speak(self, launch_id: str, text: str) -> None:
        speaker = self._vm(launch_id)
        self.emulator.compute.console = lambda vm: text if vm is speaker else ""

    def vanish(self, launch_id: str) -> None:
        self.emulator.compute.remove(self._vm(launch_id))

    def _vm(self, launch_id: str) -> Vm:
        found = self.emulator.compute.vms.values()
        return next(vm for vm in found if vm.body["labels"].get(LABEL_LAUNCH_ID) == launch_id)

    # --- others and leftovers ---

    def crowd(self, n: int) -> None:
        names = Names.of(FLEET, self.offers)
        for number in range(n):
            spec = make_spec(f"tw-crowd-{number}", self.spot)
            self._put(names.name(spec), names.labels(spec))

    def _put(self, name: str, labels: Mapping[str, str]) -> None:
        zone = self.spot.market.zone
        disk = {"autoDelete": True, "initializeParams": {"diskName": name, "labels": dict(labels)}}
        body = {
            "name": name,
            "machineType": f"zones/{zone}/machineTypes/{self.spot.market.instance_type}",
            "labels": dict(labels),
            "scheduling": {"provisioningModel": "SPOT"},
            "disks": [disk],
            "networkInterfaces": [{}],
        }
        vm = self.emulator.compute.add(Vm(zone, body))
        vm.body.update(status="RUNNING", lastStartTimestamp=vm.body["creationTimestamp"])

    def foreign(self) -> None:
        self._put("somebodys-machine", {"team": "weather"})
        self.emulator.compute.add_disk(self.spot.market.zone, "somebodys-disk", {"team": "weather"}, [])

    def litter(self) -> None:
        labels = {LABEL_FLEET: FLEET, LABEL_CELL: CELL, LABEL_LAUNCH_ID: "tw-old"}
        self.emulator.compute.add_disk(self.spot.market.zone, "tw-old-00000000", labels, [])

    def flawed(self) -> Iterable[tuple[str, Provider]]:
        good = self.settings()
        yield "image", self._compute(replace(good, image="no-such-image"))
        yield "disk smaller than the image", self._compute(replace(good, disk_gib=10))
        yield "subnetwork", self._compute(replace(good, subnetwork="no-such-subnetwork"))
        yield "region", self._compute(replace(good, regions=("us-nowhere1",)))
        self.emulator.compute.quotas["us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS"] = (0.0, 0.0)
        yield "quota", self._compute(good)
        self.emulator.compute.quotas["us-central1", "PREEMPTIBLE_NVIDIA_L4_GPUS"] = (8.0, 0.0)
        self.emulator.compute.quotas["", "GPUS_ALL_REGIONS"] = (0.0, 0.0)
        yield "quota of all regions", self._compute(good)

    def price_above(self, offer: Offer) -> None:
        raise NotImplementedError("see `cannot`")

    def half_launch(self, launches: int) -> None:
        raise NotImplementedError("see `cannot`")


def _unsafe(vm: Vm) -> list[str]:
    found = []
    if any(card.get("accessConfigs") for card in vm.body["networkInterfaces"]):
        found.append("has an external address")
    if vm.metadata("block-project-ssh-keys") != "TRUE" or vm.metadata("enable-oslogin") != "TRUE":
        found.append("takes the project's SSH keys")
    shield = vm.body.get("shieldedInstanceConfig", {})
    if not (shield.get("enableVtpm") and shield.get("enableIntegrityMonitoring")):
        found.append("is no shielded machine")
    if not all(disk.get("autoDelete") for disk in vm.body["disks"]):
        found.append("leaves its disk")
    return found


def open_world(folder: Path) -> World:
    return GcpWorld(folder)


def launch(url: str, login: str, launch_id: str, now_s: str) -> None:
    """In a process of its own, see `killed_launch`."""
    GcpCompute(
        GcpSettings(FLEET, "emulated", REGIONS, endpoint_url=url),
        user_data,
        offers=[SPOT],
        credentials=load_credentials(Path(login)),
        clock=lambda: float(now_s),
    ).launch(make_spec(launch_id, SPOT))
