"""Google's TPUs once more, asked for as queued resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cloud_world import Truth, World
from worlds.gcp_world import tags_of
from worlds.tpu_world import CANNOT, TpuWorld

from tradewind.autoscaler.providers.gcp_settings import LABEL_LAUNCH_ID, region_of
from tradewind.model import Capacity, Market

_STATES = {
    **dict.fromkeys(("ACCEPTED", "WAITING_FOR_RESOURCES", "PROVISIONING"), "pending"),
    "DELETING": "stopping",
}


@dataclass
class TpuQueueWorld(TpuWorld):
    name: str = "tpu_queue"
    queue_s: float = 300.0
    cannot: Mapping[str, str] = field(
        default_factory=lambda: {
            **CANNOT,
            "stock_out": "a queued request is not refused: it waits until it is served, or its time is over",
            "limit_quota": "a queued request over the quota is accepted, and fails in the queue",
        }
    )

    def instances(self) -> list[Truth]:
        """A request that waits counts: it will be a slice."""
        made = super().instances()
        there = {truth.instance_id for truth in made}
        return [*made, *(truth for truth in self._waiting() if truth.instance_id not in there)]

    def _waiting(self) -> Iterator[Truth]:
        for name, queued in self.emulator.tpu.queued.items():
            if queued["state"]["state"] in _STATES:
                zone, node = name.split("/")[3], queued["tpu"]["nodeSpec"][0]["node"]
                capacity = Capacity.SPOT if "spot" in queued else Capacity.ON_DEMAND
                yield Truth(
                    launch_id=node["labels"][LABEL_LAUNCH_ID],
                    instance_id=name.rpartition("/")[2],
                    state=_STATES[queued["state"]["state"]],
                    market=Market("gcp", region_of(zone), zone, f"tpu-{node['acceleratorType']}", capacity),
                    tags=tags_of(node["labels"]),
                    user_data=node["metadata"]["startup-script"],
                )

    def litter(self) -> None:
        super().litter()
        zone, project = self.spot.market.zone, self.emulator.project
        [node] = [each for each in self.emulator.tpu.nodes.values() if each.name == "tw-old-00000000"]
        self.emulator.tpu.remove(node)
        name = f"projects/{project}/locations/{zone}/queuedResources/{node.name}"
        inner = {key: value for key, value in node.body.items() if key in ("acceleratorType", "labels")}
        self.emulator.tpu.queued[name] = {
            "name": name,
            "createTime": node.body["createTime"],
            "spot": {},
            "tpu": {"nodeSpec": [{"nodeId": node.name, "node": inner}]},
            "state": {"state": "SUSPENDED"},
        }


def open_world(folder: Path) -> World:
    return TpuQueueWorld(folder)
