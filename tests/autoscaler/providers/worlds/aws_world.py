"""AWS as a world of the contract: boto3 against the shipped emulator, over HTTP on loopback."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud_world import CELL, FLEET, Truth, World, make_spec, max_price, run_and_kill

from tradewind.autoscaler.providers.aws import AwsProvider
from tradewind.autoscaler.providers.aws_clients import SdkClients
from tradewind.autoscaler.providers.aws_prices import AwsPrices
from tradewind.autoscaler.providers.aws_requests import TAG_CELL, TAG_FLEET, TAG_LAUNCH_ID, offer_text
from tradewind.autoscaler.providers.aws_settings import AwsRegion, AwsSettings
from tradewind.autoscaler.providers.base import LaunchSpec, PriceSource, Provider
from tradewind.emulators.aws import ACCESS_KEY, SECRET_KEY, AwsEmulator
from tradewind.emulators.aws_books import Machine, Part, quota_code
from tradewind.emulators.aws_placement import members_of
from tradewind.model import Capacity, Market, Offer

TYPE, SPOT_UUSD, ON_DEMAND_UUSD = "g5.xlarge", 400_000, 1_006_000
_IMAGE, _GROUP = "ami-0123456789abcdef0", "sg-0123456789abcdef0"


def _offer(zone: str, capacity: Capacity = Capacity.SPOT) -> Offer:
    price_uusd = SPOT_UUSD if capacity is Capacity.SPOT else ON_DEMAND_UUSD
    market = Market("aws", zone[:-1], zone, TYPE, capacity)
    return Offer(market, 4, 16, "A10G", 1, 1, price_uusd, ON_DEMAND_UUSD, "test", "2026-11-01")


SPOT, ON_DEMAND = _offer("us-east-1a"), _offer("us-east-1a", Capacity.ON_DEMAND)
OTHER_ZONE, OTHER_REGION = _offer("us-east-1b"), _offer("us-west-2a")
OFFERS = (SPOT, ON_DEMAND, OTHER_ZONE, OTHER_REGION)


def user_data(spec: LaunchSpec) -> str:
    return f"#!/bin/sh\n# {spec.launch_id}\n"


def settings_at(url: str, fleet: str) -> AwsSettings:
    regions = tuple(
        AwsRegion(name, _IMAGE, {f"{name}{letter}": f"subnet-{n:017x}" for n, letter in enumerate("abc", 1)}, (_GROUP,))
        for name in ("us-east-1", "us-west-2")
    )
    return AwsSettings(fleet, regions, instance_profile="tradewind-node", endpoint_url=url)


@functools.cache
def _emulator() -> AwsEmulator:
    """One address for all worlds of this process, one after another: making SDK clients takes longer than a case."""
    return AwsEmulator()


@functools.cache
def _clients(url: str) -> SdkClients:
    import boto3

    return SdkClients(url, boto3.Session(aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY))


@dataclass
class AwsWorld:
    emulator: AwsEmulator
    name: str = "aws"
    spot: Offer = SPOT
    on_demand: Offer = ON_DEMAND
    other_zone: Offer = OTHER_ZONE
    other_region: Offer = OTHER_REGION
    secrets: Sequence[str] = (SECRET_KEY,)
    cannot: Mapping[str, str] = field(
        default_factory=lambda: {"half_launch": "a launch is one instance, by one RunInstances"}
    )
    now: float = 1_790_000_000.0
    ahead_s: float = 0.0

    def __post_init__(self) -> None:
        self.emulator.reset(lambda: self.now + self.ahead_s)

    def provider(self, fleet: str = FLEET) -> Provider:
        return self._provider(settings_at(self.emulator.url, fleet))

    def _provider(self, settings: AwsSettings) -> Provider:
        clients = _clients(self.emulator.url)
        return AwsProvider(settings, user_data, offers=OFFERS, clients=clients, clock=self.now_s, sleep=self.advance)

    def prices(self) -> PriceSource:
        return AwsPrices(OFFERS, _clients(self.emulator.url))

    def now_s(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """In steps, as time goes by with somebody looking."""
        self.now += seconds
        self.emulator.machines()

    def close(self) -> None:
        self.emulator.reset(lambda: self.now)

    # --- the truth ---

    def instances(self) -> list[Truth]:
        return [_truth(machine) for machine in self.emulator.machines()]

    def debris(self) -> list[str]:
        self.emulator.machines()
        return [
            f"{region.name}/{part.id}"
            for region in self.emulator.books.regions.values()
            for part in (*region.volumes.values(), *region.interfaces.values())
            if not part.machine_id
        ]

    def groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for region in self.emulator.books.regions.values():
            for name in region.placement_groups:
                found[name] = sorted(machine.tags[TAG_LAUNCH_ID] for machine in members_of(name, region))
        return found

    # --- bad days ---

    def limit_group(self, n: int) -> None:
        self.emulator.shop.group_room.usual = n

    def deny_groups(self) -> str:
        self.emulator.faults.denied |= {"CreatePlacementGroup", "DescribePlacementGroups"}
        return "ec2:CreatePlacementGroup"

    def stock_out(self, offer: Offer) -> None:
        market = offer.market
        self.emulator.shop.sold_out.add((market.zone, market.instance_type, market.capacity is Capacity.SPOT))

    def restock(self) -> None:
        self.emulator.shop.sold_out.clear()

    def limit_quota(self, n: int) -> None:
        for region in self.emulator.books.regions.values():
            region.quotas[quota_code(TYPE, is_spot=True)] = 4.0 * n
            region.quotas[quota_code(TYPE, is_spot=False)] = 4.0 * n

    def price_above(self, offer: Offer) -> None:
        market = offer.market
        prices = self.emulator.books.regions[market.region].spot_prices
        prices[market.zone, market.instance_type] = 2 * max_price(offer) / 1e6

    def throttle(self, calls: int) -> None:
        self.emulator.faults.throttled = calls

    def fail_server(self, calls: int) -> None:
        self.emulator.faults.failing = calls

    def expire_credentials(self) -> None:
        self.emulator.faults.expired = True

    def deny(self) -> str:
        self.emulator.faults.denied.add("RunInstances")
        return "ec2:RunInstances"

    def refuse_unknown(self, code: str) -> None:
        self.emulator.faults.refusals.append(("RunInstances", code, 400))

    def cut_after_sending(self, calls: int) -> None:
        self.emulator.faults.cut_after = calls

    def cut_before_doing(self, calls: int) -> None:
        self.emulator.faults.cut_before = calls

    def killed_launch(self, launch_id: str) -> None:
        self.emulator.faults.held = 1
        code = "import sys; from worlds.aws_world import launch_alone; launch_alone(*sys.argv[1:])"
        run_and_kill(code, [self.emulator.url, launch_id], lambda: bool(self.emulator.machines()))

    def half_launch(self, launches: int) -> None:
        raise NotImplementedError("see `cannot`")

    def fail_boot(self, launches: int) -> None:
        self.emulator.shop.failing_boots = launches

    def lag_listing(self, seconds: float) -> None:
        self.emulator.calls.listing_lag_s = seconds

    def blackout(self, region: str) -> None:
        self.emulator.faults.dead_regions.add(region)

    def preempt(self, launch_id: str, notice_s: float) -> None:
        self.emulator.preempt(self._machine(launch_id), notice_s)

    def speak(self, launch_id: str, text: str) -> None:
        speaker = self._machine(launch_id)
        self.emulator.books.console = lambda machine: text if machine is speaker else ""

    def vanish(self, launch_id: str) -> None:
        self.emulator.books.vanish(self._machine(launch_id))

    def skew(self, seconds: float) -> None:
        self.ahead_s = seconds

    # --- others and leftovers ---

    def crowd(self, n: int) -> None:
        for number in range(n):
            self._plant(_tags(f"tw-crowd-{number}", FLEET))

    def foreign(self) -> None:
        self._plant({"Name": "somebody's database"})
        self._plant_disk("vol-0000000000000f0f0", {"Name": "somebody's backup"})

    def litter(self) -> None:
        self._plant_disk("vol-0000000000000d0d0", _tags("tw-old", FLEET))
        region = self.emulator.books.regions["us-west-2"]
        interface = Part("eni-0000000000000d0d0", "us-west-2a", _tags("tw-older", FLEET))
        region.interfaces[interface.id] = interface

    def flawed(self) -> Iterable[tuple[str, Provider]]:
        both = settings_at(self.emulator.url, FLEET)
        region = both.regions[0]
        right = replace(both, regions=(region,))
        other_subnet = {"us-east-1a": region.subnets["us-east-1b"]}
        wrong: dict[str, AwsSettings] = {
            "an image that is not there": replace(right, regions=(replace(region, image="ami-00000000"),)),
            "a subnet that is not there": replace(right, regions=(replace(region, subnets={"us-east-1a": "none"}),)),
            "a subnet of another zone": replace(right, regions=(replace(region, subnets=other_subnet),)),
            "a group that is not there": replace(right, regions=(replace(region, security_groups=("sg-none",)),)),
            "a profile that is not there": replace(right, instance_profile="nobody"),
            "another root device": replace(right, root_device="/dev/xvda"),
            "a disk smaller than the image": replace(right, disk_gib=20),
        }
        yield from ((flaw, self._provider(settings)) for flaw, settings in wrong.items())
        self.limit_quota(0)
        yield "no quota", self._provider(right)

    def _machine(self, launch_id: str) -> Machine:
        return next(each for each in self.emulator.machines() if each.tags.get(TAG_LAUNCH_ID) == launch_id)

    def _plant(self, tags: dict[str, str]) -> None:
        books = self.emulator.books
        region = books.regions["us-east-1"]
        machine = Machine(
            id=books.new_id("i"),
            region=region.name,
            zone="us-east-1a",
            type=TYPE,
            is_spot=True,
            image=_IMAGE,
            subnet=region.subnet_of("us-east-1a"),
            tags=tags,
            token="",
            user_data="",
            launched_at_s=self.now,
            runs_at_s=self.now,
            spot_request=books.new_id("sir"),
        )
        region.machines[machine.id] = machine

    def _plant_disk(self, name: str, tags: dict[str, str]) -> None:
        self.emulator.books.regions["us-east-1"].volumes[name] = Part(name, "us-east-1a", tags)


def _tags(launch_id: str, fleet: str) -> dict[str, str]:
    return {TAG_LAUNCH_ID: launch_id, TAG_FLEET: fleet, TAG_CELL: CELL, "tradewind:offer": offer_text(SPOT)}


def _ours(tags: Mapping[str, str]) -> dict[str, str]:
    keys = {"launch_id": TAG_LAUNCH_ID, "fleet": TAG_FLEET, "cell": TAG_CELL}
    return {name: tags[key] for name, key in keys.items() if key in tags}


def _truth(machine: Machine) -> Truth:
    capacity = Capacity.SPOT if machine.is_spot else Capacity.ON_DEMAND
    unsafe = {
        "has a public address": machine.has_public_address,
        "answers to IMDSv1": machine.metadata_tokens != "required",
        "metadata can be asked from containers": machine.hop_limit != 1,
        "stays when it is shut down": machine.shutdown != "terminate",
        "disk is not encrypted": not all(volume.encrypted for volume in machine.volumes),
        "disk stays": not all(volume.ends_with_machine for volume in machine.volumes),
        "interface stays": not all(interface.ends_with_machine for interface in machine.interfaces),
    }
    return Truth(
        launch_id=machine.tags.get(TAG_LAUNCH_ID, ""),
        instance_id=machine.id,
        state="stopping" if machine.state == "shutting-down" else machine.state,
        market=Market("aws", machine.region, machine.zone, machine.type, capacity),
        tags=_ours(machine.tags),
        parts={part.id: _ours(part.tags) for part in (*machine.volumes, *machine.interfaces)},
        user_data=machine.user_data,
        unsafe=[what for what, so in unsafe.items() if so],
    )


def open_world(folder: Path) -> World:
    del folder  # all in memory
    return AwsWorld(_emulator())


def launch_alone(url: str, launch_id: str) -> None:
    """In a process of its own, see `killed_launch`."""
    AwsProvider(settings_at(url, FLEET), user_data, clients=_clients(url)).launch(make_spec(launch_id, SPOT))
