"""Google's TPUs as a world of the contract: slices of four hosts, asked for as nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cloud_world import CELL, FLEET, Truth, World, make_spec, run_and_kill
from worlds.gcp_world import GcpWorld, tags_of, user_data

from tradewind.autoscaler.providers.base import PriceSource, Provider
from tradewind.autoscaler.providers.gcp_settings import (
    LABEL_CELL,
    LABEL_FLEET,
    LABEL_LAUNCH_ID,
    GcpSettings,
    Names,
    region_of,
)
from tradewind.autoscaler.providers.gcp_tpu import GcpTpu
from tradewind.emulators.gcp import load_credentials
from tradewind.emulators.gcp_tpu import TpuNode
from tradewind.model import Capacity, Market, Offer

_MARKET = Market("gcp", "us-central1", "us-central1-a", "tpu-v5litepod-16", Capacity.SPOT)
SPOT = Offer(_MARKET, 112, 192, "TPU-V5LITEPOD", 4, hosts=4, price_uusd_per_h=9_600_000)
_STATES = {"CREATING": "pending", "READY": "running", "DELETING": "stopping"}
CANNOT = {
    "price_above": "Google takes no price limit: spot has a list price that changes once a day at most",
    "notice_listed": "Google tells a preemption to the hosts' metadata service alone",
    "speak": "Google shows no console of a slice's hosts",
    **dict.fromkeys(("groups", "group_room"), "a slice is wired together: it is its own group"),
    "disks": "a slice's disks are Google's own: they are not in the project",
}


@dataclass
class TpuWorld(GcpWorld):
    name: str = "tpu"
    spot: Offer = SPOT
    cannot: Mapping[str, str] = field(default_factory=lambda: dict(CANNOT))
    queue_s: float = 0.0

    def settings(self, fleet: str = FLEET) -> GcpSettings:
        return replace(super().settings(fleet), tpu_queue_s=self.queue_s)

    def provider(self, fleet: str = FLEET) -> Provider:
        return self._tpu(self.settings(fleet))

    def _tpu(self, settings: GcpSettings) -> GcpTpu:
        login = self.emulator.credentials()
        return GcpTpu(settings, user_data, offers=self.offers, credentials=login, clock=self.now_s, sleep=self.advance)

    def prices(self) -> PriceSource:
        return self._tpu(self.settings())

    # --- the truth ---

    def instances(self) -> list[Truth]:
        self.emulator.settle()
        return [self._slice(node) for node in self.emulator.tpu.nodes.values() if node.body["state"] in _STATES]

    def _slice(self, node: TpuNode) -> Truth:
        capacity = Capacity.SPOT if node.is_spot else Capacity.ON_DEMAND
        labels = node.body.get("labels", {})
        external = node.body.get("networkConfig", {}).get("enableExternalIps")
        return Truth(
            launch_id=labels.get(LABEL_LAUNCH_ID, ""),
            instance_id=node.name,
            state=_STATES[node.body["state"]],
            market=Market("gcp", region_of(node.zone), node.zone, f"tpu-{node.type}", capacity),
            tags=tags_of(labels),
            user_data=node.metadata("startup-script"),
            unsafe=["has an external address"] if external else [],
        )

    def debris(self) -> list[str]:
        self.emulator.settle()
        tpu = self.emulator.tpu
        left = [node.body["name"] for node in tpu.nodes.values() if node.body["state"] not in _STATES]
        return [
            *left,
            *(name for name, each in tpu.queued.items() if each["state"]["state"] in ("FAILED", "SUSPENDED")),
        ]

    # --- bad days ---

    def stock_out(self, offer: Offer) -> None:
        market = offer.market
        kind = market.instance_type.removeprefix("tpu-")
        self.emulator.faults.sold_out.add((market.zone, kind, market.capacity is Capacity.SPOT))

    def deny(self) -> str:
        self.emulator.faults.denied.add("tpu.nodes.create")
        return "tpu.nodes.create"

    def half_launch(self, launches: int) -> None:
        self.emulator.faults.half_launches = launches

    def killed_launch(self, launch_id: str) -> None:
        self.emulator.faults.hang_after_s = 60.0
        login = self.emulator.credentials_file(self.folder / "login.json")
        code = "import sys; from worlds.tpu_world import launch; launch(*sys.argv[1:])"
        tpu, arguments = self.emulator.tpu, [self.emulator.url, str(login), launch_id, str(self.now), str(self.queue_s)]
        run_and_kill(code, arguments, lambda: bool(tpu.nodes or tpu.queued), 240)
        self.emulator.faults.hang_after_s = 0.0

    def preempt(self, launch_id: str, notice_s: float) -> None:
        self.emulator.tpu.preempt(self._node(launch_id), notice_s)

    def vanish(self, launch_id: str) -> None:
        node = self._node(launch_id)
        self.emulator.tpu.remove(node)
        self.emulator.tpu.queued.pop(node.body.get("queuedResource", ""), None)

    def _node(self, launch_id: str) -> TpuNode:
        found = self.emulator.tpu.nodes.values()
        return next(node for node in found if node.body["labels"].get(LABEL_LAUNCH_ID) == launch_id)

    # --- others and leftovers ---

    def crowd(self, n: int) -> None:
        names = Names.of(FLEET, self.offers)
        for number in range(n):
            spec = make_spec(f"tw-crowd-{number}", self.spot)
            self._place(names.name(spec), names.labels(spec), "READY")

    def _place(self, name: str, labels: Mapping[str, str], state: str) -> None:
        zone, tpu = self.spot.market.zone, self.emulator.tpu
        body = {
            "name": f"projects/{self.emulator.project}/locations/{zone}/nodes/{name}",
            "acceleratorType": self.spot.market.instance_type.removeprefix("tpu-"),
            "labels": dict(labels),
            "schedulingConfig": {"spot": True},
        }
        tpu.add(TpuNode(zone, body)).body["state"] = state

    def foreign(self) -> None:
        self._place("somebodys-slice", {"team": "weather"}, "READY")
        self._place("somebodys-old-slice", {"team": "weather"}, "PREEMPTED")

    def litter(self) -> None:
        labels = {LABEL_FLEET: FLEET, LABEL_CELL: CELL, LABEL_LAUNCH_ID: "tw-old"}
        self._place("tw-old-00000000", labels, "PREEMPTED")

    def flawed(self) -> Iterable[tuple[str, Provider]]:
        good = self.settings()
        yield "runtime", self._tpu(replace(good, tpu_runtime="no-such-runtime"))
        self.emulator.faults.denied.add("tpu.nodes.delete")
        yield "permission", self._tpu(good)


def open_world(folder: Path) -> World:
    return TpuWorld(folder)


def launch(url: str, login: str, launch_id: str, now_s: str, queue_s: str) -> None:
    """In a process of its own, see `killed_launch`."""
    GcpTpu(
        GcpSettings(FLEET, "emulated", ("us-central1",), endpoint_url=url, tpu_queue_s=float(queue_s)),
        user_data,
        offers=[SPOT],
        credentials=load_credentials(Path(login)),
        clock=lambda: float(now_s),
    ).launch(make_spec(launch_id, SPOT))
