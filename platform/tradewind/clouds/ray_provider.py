"""Plain `ray up` and `ray down` on our providers: Ray's NodeProvider (v1) over one cell.

`ray up` starts the fleet's controller on this machine, which buys the head and, when work asks for them, workers; `ray
down` has it end all of them, or ends them itself where no controller lives. Machines boot by their user-data and are
never logged in to: Ray's command runner carries nothing out, and waits until the head is up.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ray.autoscaler.command_runner import CommandRunnerInterface
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, TAG_RAY_NODE_KIND

from tradewind.api import NodeInfo
from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.client import Fleet, connect
from tradewind.clouds.leftovers import look, remove
from tradewind.clouds.providers import CellCloud, open_cell
from tradewind.clouds.ray_file import bootstrapped, fleet_in, the_cell
from tradewind.clouds.ray_tags import TagBook
from tradewind.clouds.secret_stores import store_in
from tradewind.config import Settings
from tradewind.controller_process import CONTROLLER, find_controller
from tradewind.errors import ControllerError, InvalidRequest, Transient, Unsupported
from tradewind.home import FleetHome
from tradewind.model import Role
from tradewind.states import NodeState, is_alive

log = logging.getLogger(__name__)

END_TIMEOUT_S = 300.0
HEAD_WAIT_S = 300.0  # until the controller has bought one
POLL_S = 1.0
_ENDED = (CloudState.GONE, CloudState.STOPPING)
# What Ray itself runs on machines that are to be made ready or taken down: of no use where nobody logs in.
_RAYS_OWN = ("uptime", "ray stop", "mkdir -p", "true")


class TradewindNodeProvider(NodeProvider):  # type: ignore[misc]
    """One fleet with one cell. A node's id is its launch id."""

    controller: Sequence[str] = CONTROLLER  # what is started; tests give another

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.fleet = fleet_in(provider_config, cluster_name)
        self.cell: CellCloud = open_cell(the_cell(self.fleet), _no_launches)
        self.place = FleetHome(Settings.from_env().home, cluster_name)
        self.tags = TagBook(self.place.folder / "ray-tags.json")

    # --- what is there -----------------------------------------------------------------------------------------

    def _nodes(self) -> dict[str, CloudNode]:
        return {node.launch_id: node for node in self.cell.provider.list_nodes()}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        living = [name for name, node in self._nodes().items() if node.state not in _ENDED]
        return [name for name in living if tag_filters.items() <= self.node_tags(name).items()]

    def node_tags(self, node_id: str) -> dict[str, str]:
        """What Ray wrote on a head that it had made from this machine; everything else counts as a worker."""
        return self.tags.read().get(node_id) or {TAG_RAY_NODE_KIND: NODE_KIND_WORKER}

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        self.tags.set(node_id, tags)

    def is_running(self, node_id: str) -> bool:
        node = self._nodes().get(node_id)
        return node is not None and node.state is CloudState.RUNNING

    def is_terminated(self, node_id: str) -> bool:
        node = self._nodes().get(node_id)
        return node is None or node.state in _ENDED

    def internal_ip(self, node_id: str) -> str:
        node = self._nodes().get(node_id)
        return node.address if node is not None else ""

    def external_ip(self, node_id: str) -> str:
        """There is none: whoever comes to the head comes by the private network."""
        return self.internal_ip(node_id)

    # --- the head ----------------------------------------------------------------------------------------------

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        """The controller buys one head, however often it is asked for: repeated, it is the same one."""
        del node_config, count  # the fleet's keys say what a machine is
        if tags.get(TAG_RAY_NODE_KIND) != NODE_KIND_HEAD:
            hint = "take the worker types out of the file: the controller buys workers by itself"
            raise Unsupported("Ray asked for a worker, and workers are bought by Tradewind", hint)
        with self._connect(start=True) as fleet:
            head = _await_head(fleet)
        self.tags.set(head.launch_id, tags)

    def _connect(self, *, start: bool) -> Fleet:
        config = self._write_fleet_file() if start else None
        return connect(self.place.root, self.place.fleet, start, config=config, command=self.controller)

    def _write_fleet_file(self) -> Path:
        """The fleet in the Ray file, as a file of its own (JSON is YAML) for the controller."""
        self.place.make()
        path = self.place.folder / "ray-up.yaml"
        path.write_text(json.dumps({"name": self.cluster_name, **self.provider_config["tradewind"]}, indent=1))
        return path

    def _head_state(self, node_id: str) -> str:
        """What keeps it from being ready; nothing: it is."""
        node = self._nodes().get(node_id)
        if node is None or node.state in _ENDED:
            return f"{node_id} is gone: {node.detail if node else 'the cloud does not list it'}"
        with self._connect(start=False) as fleet:
            known = next((each for each in fleet.nodes() if each.launch_id == node_id), None)
        if known is None:
            return f"the controller does not know {node_id}"
        return "" if known.state is NodeState.READY else f"{node_id} is {known.state}"

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate_node(self, node_id: str) -> None:
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        """With the head goes the fleet: its controller ends jobs and nodes in order. Where none lives, by the cloud."""
        is_head = any(self.node_tags(name).get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD for name in node_ids)
        if is_head and find_controller(self.place) is not None:
            with self._connect(start=False) as fleet:
                fleet.down()
        self.cell.provider.terminate(node_ids)

    def cleanup_cluster_resources(self) -> None:
        """Ray calls it when `ray down` sees no node any more: what nodes left behind, and the cell's secrets."""
        for launch_id in self.tags.read():
            self.tags.forget(launch_id)
        secrets = store_in(self.fleet, self.cell.plan)
        seen = look(self.cell, secrets)
        left = [*remove(self.cell, secrets, seen.found, END_TIMEOUT_S), *seen.blind]
        if left:
            raise Transient(f"not removed: {', '.join(left)}", "run `tradewind reap` with this file")

    # --- nobody logs in ----------------------------------------------------------------------------------------

    def get_command_runner(
        self,
        log_prefix: str,
        node_id: str,
        auth_config: dict[str, Any],
        cluster_name: str,
        process_runner: Any,
        use_internal_ip: bool,
        docker_config: dict[str, Any] | None = None,
    ) -> CommandRunnerInterface:
        del log_prefix, auth_config, cluster_name, process_runner, use_internal_ip, docker_config
        return NoShell(node_id, lambda: self._head_state(node_id))

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return bootstrapped(cluster_config)


def _no_launches(spec: LaunchSpec) -> str:
    raise InvalidRequest(f"{spec.launch_id}: the controller launches, and nobody else", "this is a defect: report it")


def _await_head(fleet: Fleet) -> NodeInfo:
    """Until the cloud has taken the order for it: from then on it is listed."""
    until_s = time.monotonic() + HEAD_WAIT_S
    while time.monotonic() < until_s:
        heads = [node for node in fleet.nodes() if node.role is Role.HEAD and is_alive(node.state)]
        if bought := [node for node in heads if node.state is not NodeState.REQUESTED]:
            return bought[0]
        time.sleep(POLL_S)
    why = "; ".join(f"{line.what}: {line.hold}" for line in fleet.status().demand)
    message = f"no head within {HEAD_WAIT_S:g} s: {why or 'nothing is known of it'}"
    raise ControllerError(message, "`tradewind why now` tells more")


class NoShell(CommandRunnerInterface):  # type: ignore[misc]
    """In place of SSH: a machine boots by itself, and all that is done here is to wait for it."""

    def __init__(self, node_id: str, why_not_up: Callable[[], str]) -> None:
        self._node_id, self._why_not_up = node_id, why_not_up

    def run(self, cmd: str | None = None, *_: Any, **__: Any) -> str:
        if cmd and not cmd.startswith(_RAYS_OWN):
            hint = "use `ray job submit`, `tradewind logs node`, or boot.setup in the file"
            raise Unsupported(f"{self._node_id} has no SSH, so {cmd[:60]!r} cannot be run there", hint)
        if cmd == "uptime" and (why := self._why_not_up()):
            raise Transient(why, "Ray asks again by itself")
        return ""

    def run_rsync_up(self, source: str, target: str, options: Any = None) -> None:
        """Ray's own settings for its monitor, which does not run: the controller takes its place."""
        del source, options
        log.debug("not copied to %s: %s", self._node_id, target)

    def run_rsync_down(self, source: str, target: str, options: Any = None) -> None:
        del target, options
        raise Unsupported(f"{self._node_id} has no SSH, so {source} cannot be fetched", "write it to the storage")

    def remote_shell_command_str(self) -> str:
        return f"# {self._node_id} has no SSH: `tradewind logs node {self._node_id}` shows its console"

    def run_init(self, **_: Any) -> bool | None:
        return None
