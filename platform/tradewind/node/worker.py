"""From a fresh machine to a worker of a cell: secret, join desk, Ray, watcher. An edge; boot.py calls it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial

from tradewind.autoscaler.ray_snapshot import DrainReason, RayNode
from tradewind.autoscaler.ray_state import RayState
from tradewind.autoscaler.slices import LABEL_TPU_WORKER
from tradewind.certificates import Identity, make_key, make_request
from tradewind.cost.energy_meter import meter_here
from tradewind.errors import ProviderError, RayError
from tradewind.node.boot_plan import BootPlan
from tradewind.node.desk_client import DeskClient
from tradewind.node.guard import Up
from tradewind.node.join_desk import JoinRequest
from tradewind.node.machine import Machine
from tradewind.node.patience import keep_trying
from tradewind.node.power import start as start_meter
from tradewind.node.ray_node import NodeFiles, alone, check_temp_folder, has_raylet, ray_command, ray_env, start_ray
from tradewind.node.versions import versions_here
from tradewind.node.watch import Watcher, source_of

log = logging.getLogger(__name__)

JOIN_PATIENCE_S = 300.0  # a head may be busy with a thousand others
METADATA_PATIENCE_S = 60.0


@dataclass(slots=True)
class Worker:
    plan: BootPlan
    machine: Machine
    address: str
    ray_token: str = field(repr=False)
    stop: threading.Event
    desk: DeskClient = field(init=False)
    tpu_env: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        ask = partial(self.machine.tpu_env, self.plan)
        self.tpu_env = keep_trying(ask, "place in the slice", (ProviderError,), METADATA_PATIENCE_S, self.stop)
        self.desk = DeskClient(self.plan.join_url, self.plan.ca_pem, self.ray_token, self.address)

    @property
    def host_number(self) -> str:
        return self.tpu_env.get("TPU_WORKER_ID", "")

    def bring_up(self) -> Up:
        plan, files = self.plan, NodeFiles(self.machine.folder)
        check_temp_folder(self.machine.temp_folder)
        identity = keep_trying(self._join, "join", (RayError,), JOIN_PATIENCE_S, self.stop)
        files.write(self.ray_token, plan.ca_pem)
        files.write_identity(identity)
        env = {**ray_env(plan, files), **self.tpu_env}
        command = ray_command(plan, self.address, self.machine.temp_folder)
        with alone(self.machine.start_lock):
            ray = start_ray(command, {**self.machine.env, **env}, files.ray_log)
        self.machine.adopt(env)
        state = RayState(plan.head_address)
        if plan.cloud != "local":  # its machines are pretended, and share the meters of this one
            start_meter(meter_here(), self.desk.measured, plan.launch_id, self.host_number, self.stop)
        drain = Drain(state, plan.launch_id, self.host_number)
        return Up(
            plan,
            files,
            ray,
            identity.cert_pem,
            answers=state.is_there,
            renew=lambda: files.write_identity(self._join()),
            has_raylet=lambda: has_raylet(ray),
            drain=drain,
            threads=self._watcher(drain),
            close=state.close,
        )

    def _join(self) -> Identity:
        key_pem = make_key()
        request = JoinRequest(
            self.plan.launch_id, versions_here(), make_request(key_pem, self.plan.launch_id), (self.address,)
        )
        return Identity(self.desk.join(request), key_pem)

    def _watcher(self, drain: Drain) -> dict[str, threading.Thread]:
        """The cloud's notices become drains of this node. The local cloud tells its notices by its listing."""
        if self.plan.cloud == "local":
            return {}
        watcher = Watcher(source_of(self.plan.cloud, self.plan.endpoints), drain, is_idle=drain.is_done)
        thread = threading.Thread(target=watcher.run, args=(self.stop,), name="notice-watcher", daemon=True)
        thread.start()
        return {"notice watcher": thread}


@dataclass(frozen=True, slots=True)
class Drain:
    """Tell Ray that this node goes: no new work, and what runs here hands over until the deadline."""

    state: RayState
    launch_id: str
    host_number: str  # in its slice; empty: no slice

    def __call__(self, message: str, deadline_s: float | None = None) -> tuple[bool, str]:
        node = own_node(self.state.snapshot().nodes, self.launch_id, self.host_number)
        if node is None:
            return False, "Ray does not know this node"
        return self.state.drain(node.ray_node_id, DrainReason.PREEMPTION, message, deadline_s)

    def is_done(self) -> bool:
        """Nothing runs here any more."""
        try:
            node = own_node(self.state.snapshot().nodes, self.launch_id, self.host_number)
        except RayError as error:
            log.warning("whether work is left here cannot be seen: %s", error)
            return False
        return node is None or all(node.available.get(name, 0.0) >= count for name, count in node.total.items())


def own_node(nodes: tuple[RayNode, ...], launch_id: str, host_number: str = "") -> RayNode | None:
    """By launch id; the hosts of a slice share one, and differ by their number."""
    mine = [node for node in nodes if node.launch_id == launch_id and node.is_alive]
    exact = [node for node in mine if node.labels.get(LABEL_TPU_WORKER, "") == host_number]
    return next(iter(mine if len(mine) == 1 else exact), None)
