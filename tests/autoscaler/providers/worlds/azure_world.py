"""Azure as a world of the contract: its own SDK against the emulator, over TLS on loopback, by a clock of the test."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud_world import CELL, FLEET, Truth, World, make_spec, max_price, run_and_kill

from tradewind.autoscaler.providers.azure import AzureProvider
from tradewind.autoscaler.providers.azure_prices import AzurePrices
from tradewind.autoscaler.providers.azure_settings import (
    TAG_CELL,
    TAG_FLEET,
    TAG_LAUNCH_ID,
    AzureRegion,
    AzureSettings,
    Names,
)
from tradewind.autoscaler.providers.azure_vm import market_of, nic_body, vm_body
from tradewind.autoscaler.providers.base import LaunchSpec, PriceSource, Provider
from tradewind.emulators.azure import AzureEmulator, load_credential
from tradewind.emulators.azure_compute import Vm
from tradewind.emulators.azure_placement import place_in
from tradewind.model import Capacity, Market, Offer

TYPE, SPOT_UUSD, ON_DEMAND_UUSD = "Standard_NC4as_T4_v3", 190_000, 526_000
REGIONS = ("eastus", "westus2")
_TAGS = {"launch_id": TAG_LAUNCH_ID, "fleet": TAG_FLEET, "cell": TAG_CELL}
_KEY = "ssh-rsa AAAA"


def _offer(region: str, zone: str, capacity: Capacity = Capacity.SPOT) -> Offer:
    price_uusd = SPOT_UUSD if capacity is Capacity.SPOT else ON_DEMAND_UUSD
    return Offer(Market("azure", region, zone, TYPE, capacity), 4, 28, "T4", 1, 1, price_uusd, ON_DEMAND_UUSD)


SPOT, ON_DEMAND = _offer("eastus", "eastus-1"), _offer("eastus", "eastus-1", Capacity.ON_DEMAND)
OTHER_ZONE, OTHER_REGION = _offer("eastus", "eastus-2"), _offer("westus2", "westus2-1")
OFFERS = (SPOT, ON_DEMAND, OTHER_ZONE, OTHER_REGION)


def user_data(spec: LaunchSpec) -> str:
    return f"#!/bin/bash\necho {spec.launch_id}\n"


def settings_at(subscription: str, subnets: Mapping[str, str], url: str, ca_file: str, fleet: str) -> AzureSettings:
    regions = tuple(AzureRegion(name, subnet) for name, subnet in subnets.items())
    prices_url = f"{url}/api/retail/prices"
    return AzureSettings(
        fleet, subscription, "tradewind", regions, endpoint_url=url, ca_file=ca_file, prices_url=prices_url
    )


def tags_of(tags: Mapping[str, str]) -> dict[str, str]:
    return {name: tags[key] for name, key in _TAGS.items() if key in tags}


@dataclass
class AzureWorld:
    folder: Path
    name: str = "azure"
    spot: Offer = SPOT
    on_demand: Offer = ON_DEMAND
    other_zone: Offer = OTHER_ZONE
    other_region: Offer = OTHER_REGION
    cannot: Mapping[str, str] = field(
        default_factory=lambda: {
            "half_launch": "a launch is one machine",
            "notice_listed": "Azure tells an eviction to the machine's metadata service alone (Scheduled Events)",
        }
    )
    now: float = 1_790_000_000.0

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self.emulator = AzureEmulator(clock=self.now_s).start()

    @property
    def secrets(self) -> Sequence[str]:
        return self.emulator.secrets

    def settings(self, fleet: str = FLEET) -> AzureSettings:
        emulator = self.emulator
        subnets = {region: emulator.subnet(region) for region in REGIONS}
        return settings_at(emulator.subscription, subnets, emulator.url, emulator.ca_file, fleet)

    def provider(self, fleet: str = FLEET) -> Provider:
        return self.azure(self.settings(fleet))

    def azure(self, settings: AzureSettings) -> AzureProvider:
        credential = self.emulator.credential()
        return AzureProvider(
            settings, user_data, offers=OFFERS, credential=credential, clock=self.now_s, sleep=self.advance
        )

    def prices(self) -> PriceSource:
        return AzurePrices(OFFERS, self.settings())

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
        return [self._truth(vm) for vm in self.emulator.compute.vms.values() if _state(vm)]

    def _truth(self, vm: Vm) -> Truth:
        compute, path = self.emulator.compute, vm.body["id"]
        disks = {f"disk {name}": disk for (_, name), disk in compute.disks.items() if disk.get("managedBy") == path}
        nics = {
            f"nic {name}": nic
            for (_, name), nic in compute.nics.items()
            if nic["properties"].get("virtualMachine", {}).get("id") == path
        }
        return Truth(
            launch_id=vm.body["tags"].get(TAG_LAUNCH_ID, ""),
            instance_id=vm.properties["vmId"],
            state=_state(vm),
            market=market_of(vm.body),
            tags=tags_of(vm.body["tags"]),
            parts={name: tags_of(part["tags"]) for name, part in {**disks, **nics}.items()},
            user_data=vm.user_data,
            unsafe=_unsafe(vm, nics),
        )

    def debris(self) -> list[str]:
        self.emulator.settle()
        compute = self.emulator.compute
        return [
            *(f"virtualMachines/{vm.name}" for vm in compute.vms.values() if not _state(vm)),
            *(
                f"networkInterfaces/{n['name']}"
                for n in compute.nics.values()
                if "virtualMachine" not in n["properties"]
            ),
            *(f"disks/{disk['name']}" for disk in compute.disks.values() if not disk.get("managedBy")),
        ]

    def groups(self) -> dict[str, list[str]]:
        self.emulator.settle()
        compute, found = self.emulator.compute, dict[str, list[str]]()
        for group, name in compute.placement.groups:
            machines = (vm for vm in compute.vms.values() if place_in(vm.body) == (group, name) and _state(vm))
            found[name] = sorted(vm.body["tags"][TAG_LAUNCH_ID] for vm in machines)
        return found

    # --- bad days ---

    def limit_group(self, n: int) -> None:
        self.emulator.faults.group_room = n

    def deny_groups(self) -> str:
        self.emulator.faults.denied |= {
            f"Microsoft.Compute/proximityPlacementGroups/{what}" for what in ("read", "write")
        }
        return "Microsoft.Compute/proximityPlacementGroups/write"

    def stock_out(self, offer: Offer) -> None:
        market = offer.market
        self.emulator.faults.sold_out.add((market.zone, market.instance_type, market.capacity is Capacity.SPOT))

    def restock(self) -> None:
        self.emulator.faults.sold_out.clear()

    def limit_quota(self, n: int) -> None:
        self.emulator.faults.quota = n

    def price_above(self, offer: Offer) -> None:
        key = (offer.market.region, offer.market.instance_type)
        self.emulator.faults.spot_usd[key] = (max_price(offer) + 10_000) / 1e6

    def throttle(self, calls: int) -> None:
        self.emulator.faults.throttled = calls

    def fail_server(self, calls: int) -> None:
        self.emulator.faults.broken = calls

    def expire_credentials(self) -> None:
        self.emulator.faults.credentials_expired = True

    def deny(self) -> str:
        self.emulator.faults.denied.add("Microsoft.Compute/virtualMachines/write")
        return "Microsoft.Compute/virtualMachines/write"

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
        login = self.emulator.login_file(self.folder / "login.json")
        code = "import sys; from worlds.azure_world import launch_alone; launch_alone(*sys.argv[1:])"
        arguments = [self.emulator.subscription, self.emulator.subnet("eastus"), str(login), launch_id, str(self.now)]
        run_and_kill(code, arguments, lambda: bool(self.emulator.compute.vms))
        self.emulator.faults.hang_after_s = 0.0

    def preempt(self, launch_id: str, notice_s: float) -> None:
        self.emulator.compute.evict(self._vm(launch_id), notice_s)

    def speak(self, launch_id: str, text: str) -> None:
        speaker = self._vm(launch_id)
        self.emulator.compute.console = lambda vm: text if vm is speaker else ""

    def vanish(self, launch_id: str) -> None:
        """Azure keeps a record of everything: the most that can be is that somebody deletes it by hand."""
        self.emulator.compute.deleted_by_somebody(self._vm(launch_id))

    def _vm(self, launch_id: str) -> Vm:
        found = self.emulator.compute.vms.values()
        return next(vm for vm in found if vm.body["tags"].get(TAG_LAUNCH_ID) == launch_id)

    # --- others and leftovers ---

    def crowd(self, n: int) -> None:
        for number in range(n):
            self._put(f"tw-crowd-{number}")

    def _put(self, launch_id: str, name: str = "", tags: Mapping[str, str] | None = None) -> None:
        """A machine that runs, as a launch makes it."""
        compute, settings, names = self.emulator.compute, self.settings(), Names(FLEET)
        spec = make_spec(launch_id, self.spot)
        group, name = f"/subscriptions/{settings.subscription}/resourceGroups/tradewind", name or names.vm(launch_id)
        body, nic = copy.deepcopy(vm_body(spec, settings, "", _KEY)), nic_body(spec, settings)
        path = f"{group}/providers/Microsoft.Compute/virtualMachines/{name}"
        body.update(id=path, name=name)
        body["tags"] = nic["tags"] = dict(body["tags"] if tags is None else tags)
        body["properties"].update(provisioningState="Succeeded", vmId=name, timeCreated="2026-09-21T14:13:20+00:00")
        nic_name = names.nic(launch_id)
        nic.update(id=f"{group}/providers/Microsoft.Network/networkInterfaces/{nic_name}", name=nic_name)
        compute.nics["tradewind", nic_name] = nic
        compute.add(Vm(body, power="running", since_s=self.now))

    def foreign(self) -> None:
        self._put("somebodys", "somebodys-machine", {"team": "weather"})
        group = f"/subscriptions/{self.emulator.subscription}/resourceGroups/tradewind"
        path = f"{group}/providers/Microsoft.Compute/disks/somebodys-disk"
        self.emulator.compute.add_disk(path, {"team": "weather"}, "eastus")

    def litter(self) -> None:
        tags = {TAG_FLEET: FLEET, TAG_CELL: CELL, TAG_LAUNCH_ID: "tw-old"}
        group = f"/subscriptions/{self.emulator.subscription}/resourceGroups/tradewind"
        self.emulator.compute.add_disk(f"{group}/providers/Microsoft.Compute/disks/tw-old-disk", tags, "eastus")
        path = f"{group}/providers/Microsoft.Network/networkInterfaces/tw-old-nic"
        nic = {"id": path, "name": "tw-old-nic", "location": "eastus", "tags": tags, "properties": {}}
        self.emulator.compute.nics["tradewind", "tw-old-nic"] = nic

    def flawed(self) -> Iterable[tuple[str, Provider]]:
        good, reader = self.settings(), self.emulator.reader
        east, west = good.regions
        wrong: dict[str, AzureSettings] = {
            "a group that is not there": replace(good, resource_group="nobodys"),
            "a subscription that is not there": replace(good, subscription="none"),
            "an image that is not there": replace(good, image="canonical:none:none:latest"),
            "an image id that is not there": replace(good, image=good.path("Microsoft.Compute/images", "none")),
            "a subnet that is not there": replace(good, regions=(AzureRegion("eastus", f"{east.subnet}s"), west)),
            "a subnet of another region": replace(good, regions=(AzureRegion("eastus", west.subnet), west)),
            "a region that is not there": replace(good, regions=(AzureRegion("nowhere", east.subnet),)),
        }
        yield from ((flaw, self.azure(settings)) for flaw, settings in wrong.items())
        reader.usage["eastus", "lowPriorityCores"] = (8, 6)
        yield "no quota for spot", self.azure(good)
        reader.usage = {("eastus", "Standard NCASv3_T4 Family"): (0, 0)}
        yield "no quota for the family", self.azure(good)
        reader.usage = {}
        reader.restricted["eastus", TYPE] = "2"
        yield "a size that is barred in a zone", self.azure(good)

    def half_launch(self, launches: int) -> None:
        raise NotImplementedError("see `cannot`")


def _state(vm: Vm) -> str:
    """ "" for a machine that is only a leftover: it has no hardware."""
    if vm.state == "Deleting":
        return "stopping" if vm.power else ""
    if vm.state == "Creating":
        return "pending"
    return "running" if vm.power in ("starting", "running") else ""


def _unsafe(vm: Vm, nics: Mapping[str, Mapping[str, object]]) -> list[str]:
    properties = vm.properties
    linux, disk = properties["osProfile"]["linuxConfiguration"], properties["storageProfile"]["osDisk"]
    interfaces = properties["networkProfile"]["networkInterfaces"]
    found = {
        "has a public address": "publicIPAddress" in repr(nics),
        "takes passwords": not linux.get("disablePasswordAuthentication"),
        "is not encrypted on its host": not properties.get("securityProfile", {}).get("encryptionAtHost"),
        "leaves its disk": disk.get("deleteOption") != "Delete",
        "leaves its interface": any(each["properties"].get("deleteOption") != "Delete" for each in interfaces),
        "stays when it is evicted": vm.is_spot and properties.get("evictionPolicy") != "Delete",
    }
    return [what for what, so in found.items() if so]


def open_world(folder: Path) -> World:
    return AzureWorld(folder)


def launch_alone(subscription: str, subnet: str, login: str, launch_id: str, now_s: str) -> None:
    """In a process of its own, see `killed_launch`."""
    url, ca_file, credential = load_credential(Path(login))
    settings = settings_at(subscription, {"eastus": subnet}, url, ca_file, FLEET)
    AzureProvider(settings, user_data, offers=[SPOT], credential=credential, clock=lambda: float(now_s)).launch(
        make_spec(launch_id, SPOT)
    )
