"""The local cloud as a world of the contract: pretend machines, and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud_world import FLEET, Truth, World, make_spec, max_price, run_and_kill

from tradewind.autoscaler.providers.base import PriceSource, Provider
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_instances import RECORD, InstanceBook
from tradewind.autoscaler.providers.local_machines import PretendMachines
from tradewind.autoscaler.providers.local_market import Action, MarketEvent
from tradewind.model import LABEL_PLACEMENT_GROUP, Capacity, Market, Offer

_IN_PROCESS = "the local cloud is called in this process: no requests, no network"
_NO_LIMIT = "the local cloud has no quotas"
_MINE = "the local cloud's books are its own: what is in them is listed"

SPOT = Offer(Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT), 4, 16, "A10G", 1, 1, 400_000)
_STRANGERS = "strangers"  # a fleet of somebody else on the same machine


def _at(zone: str, capacity: Capacity = Capacity.SPOT) -> Offer:
    market = replace(SPOT.market, region=zone[:-1], zone=zone, capacity=capacity)
    price_uusd = 1_006_000 if capacity is Capacity.ON_DEMAND else 410_000
    return replace(SPOT, market=market, price_uusd_per_h=price_uusd)


ON_DEMAND, OTHER_ZONE, OTHER_REGION = _at("us-east-1a", Capacity.ON_DEMAND), _at("us-east-1b"), _at("us-west-2a")


@dataclass
class LocalWorld:
    folder: Path
    name: str = "local"
    spot: Offer = SPOT
    on_demand: Offer = ON_DEMAND
    other_zone: Offer = OTHER_ZONE
    other_region: Offer = OTHER_REGION
    secrets: Sequence[str] = ()
    cannot: Mapping[str, str] = field(
        default_factory=lambda: {
            **dict.fromkeys(("throttle", "fail_server", "cut_after_sending", "cut_before_doing"), _IN_PROCESS),
            **dict.fromkeys(("refuse_unknown", "expire_credentials", "deny", "secrets", "blackout"), _IN_PROCESS),
            **dict.fromkeys(("lag_listing", "vanish"), _MINE),
            "limit_quota": _NO_LIMIT,
            "group_room": "a group is a label here: all machines are this one",
            "deny_groups": "likewise",
            "debris": "a group is a label of its nodes, and goes with them",
            "half_launch": "an instance is one machine",
            "skew": "its clock is ours",
            "user_data": "a node is started with its arguments, not with user-data",
            "disks": "a node has one folder and nothing beside it",
            "preflight_ok": "it checks this machine, which may be short of memory while tests run",
            "flawed": "its only setting is the folder; the machine's checks have tests of their own",
        }
    )
    now: float = 1_000_000.0
    machines: dict[str, PretendMachines] = field(default_factory=dict)
    _open: dict[str, LocalCloud] = field(default_factory=dict)
    _events: tuple[MarketEvent, ...] = ()

    def provider(self, fleet: str = FLEET) -> Provider:
        return self._cloud(fleet)

    def _cloud(self, fleet: str = FLEET) -> LocalCloud:
        """A folder has one owner at a time: the last object gives it up."""
        if fleet in self._open:
            self._open[fleet].detach()
        offers = (self.spot, self.on_demand, self.other_zone, self.other_region)
        machines = self.machines.setdefault(fleet, PretendMachines())
        cloud = LocalCloud(self.folder / fleet, fleet, offers, clock=self.now_s, machines=machines, watch=False)
        self._open[fleet] = cloud
        self._tell_weather()
        return cloud

    def prices(self) -> PriceSource:
        return self._cloud()

    def now_s(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for cloud in self._open.values():
            cloud.step()

    def close(self) -> None:
        """Nothing runs that would have to be ended: the folder is all of it."""
        for cloud in self._open.values():
            cloud.detach()

    # --- the truth: the files on disk ---

    def instances(self) -> list[Truth]:
        books = {path.name: InstanceBook.open(path) for path in sorted(self.folder.iterdir())}
        return [
            Truth(
                "" if fleet == _STRANGERS else each.launch_id, f"local-{each.number:04d}", each.state, each.offer.market
            )
            for fleet, book in books.items()
            for each in book.by_launch_id.values()
            if each.is_alive
        ]

    def debris(self) -> list[str]:
        folders = sorted(self.folder.glob("*/n[0-9]*"))
        return [str(path) for path in folders if not (path / RECORD).exists() or any(path.glob("*/"))]

    def groups(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for instance in InstanceBook.open(self.folder / FLEET).by_launch_id.values():
            if instance.is_alive and (group := instance.labels.get(LABEL_PLACEMENT_GROUP)):
                found.setdefault(group, []).append(instance.launch_id)
        return {name: sorted(members) for name, members in found.items()}

    # --- bad days ---

    def _tell_weather(self) -> None:
        for cloud in self._open.values():
            cloud.script = replace(cloud.script, events=self._events)

    def _happens(self, event: MarketEvent) -> None:
        began_s = next((cloud._started_at_s for cloud in self._open.values()), self.now)
        self._events = (*self._events, replace(event, at_s=self.now - began_s))
        self._tell_weather()

    def stock_out(self, offer: Offer) -> None:
        self._happens(MarketEvent(0, Action.STOCKOUT, offer.market.key))

    def restock(self) -> None:
        self._happens(MarketEvent(0, Action.RESTOCK, "*"))

    def price_above(self, offer: Offer) -> None:
        factor = 2 * max_price(offer) / (offer.price_uusd_per_h or 1)
        self._happens(MarketEvent(0, Action.PRICE, offer.market.key, price_factor=factor))

    def fail_boot(self, launches: int) -> None:
        self._happens(MarketEvent(0, Action.BOOT_FAILURE, "*", count=launches))

    def preempt(self, launch_id: str, notice_s: float) -> None:
        self._open[FLEET].preempt(launch_id, notice_s or None)

    def speak(self, launch_id: str, text: str) -> None:
        number = InstanceBook.open(self.folder / FLEET).by_launch_id[launch_id].number
        self.machines[FLEET].consoles[f"n{number}"] = text

    def killed_launch(self, launch_id: str) -> None:
        """Here the cloud is a part of the controller's process and dies with it; its books stay."""
        code = "import sys; from worlds.local_world import launch_and_hang; launch_and_hang(*sys.argv[1:])"
        record = self.folder / FLEET / "n1" / RECORD
        run_and_kill(code, [str(self.folder), launch_id], record.exists)
        self._cloud()  # nothing boots in a cloud that is not there

    def crowd(self, n: int) -> None:
        self._cloud().launch(make_spec("tw-crowd-1", self.spot))
        book = InstanceBook.open(self.folder / FLEET)
        first = book.by_launch_id["tw-crowd-1"]
        for number in range(2, n + 1):
            book.put(replace(first, number=number, launch_id=f"tw-crowd-{number}"))

    def foreign(self) -> None:
        cloud = self._cloud(_STRANGERS)
        cloud.launch(make_spec("somebody", self.spot, fleet=_STRANGERS))
        (cloud.root / "n900" / "left").mkdir(parents=True)

    def litter(self) -> None:
        (self.folder / FLEET / "n800" / "left").mkdir(parents=True)

    # --- what it cannot do (see `cannot`) ---

    def _not_here(self, *_: object) -> None:
        raise NotImplementedError("see `cannot`")

    limit_group = limit_quota = throttle = fail_server = cut_after_sending = cut_before_doing = half_launch = _not_here
    refuse_unknown = expire_credentials = lag_listing = blackout = vanish = skew = _not_here

    def deny(self) -> str:
        raise NotImplementedError("see `cannot`")

    deny_groups = deny

    def flawed(self) -> Iterable[tuple[str, Provider]]:
        raise NotImplementedError("see `cannot`")


def open_world(folder: Path) -> World:
    return LocalWorld(folder)


def launch_and_hang(folder: str, launch_id: str) -> None:
    """In a process of its own, see `killed_launch`."""
    import time

    world = LocalWorld(Path(folder))
    world.provider().launch(make_spec(launch_id, SPOT))
    time.sleep(600)
