"""Plain `ray up` and `ray down` on our providers: Ray's NodeProvider (v1) over one cell.

Machines boot by their user-data and are never logged in to: Ray's command runner carries nothing out, and waits until
the machine runs. `ray up` makes the head. Workers are bought by the controller, and `ray down` ends them, too: whatever
carries the fleet's tag.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.autoscaler.command_runner import CommandRunnerInterface
from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, NODE_KIND_WORKER, TAG_RAY_NODE_KIND

from tradewind.autoscaler.providers.base import CloudNode, CloudState, LaunchSpec
from tradewind.autoscaler.providers.secrets import SecretStore
from tradewind.clouds.cells import CellPlan
from tradewind.clouds.leftovers import look, remove
from tradewind.clouds.providers import CellCloud, UserData, open_cell
from tradewind.clouds.ray_boot import head_user_data
from tradewind.clouds.ray_file import bootstrapped, fleet_in, the_cell
from tradewind.clouds.ray_tags import TagBook, is_head, new_id
from tradewind.clouds.secret_stores import store_in
from tradewind.config import Settings
from tradewind.config_models import FleetConfig
from tradewind.errors import ProviderError, Stockout, Transient, Unsupported
from tradewind.model import LABEL_LAUNCH_ID, Offer, Role

log = logging.getLogger(__name__)

END_TIMEOUT_S = 300.0
LISTED_LATE_S = 60.0  # a new machine may not be listed at once
_ENDED = (CloudState.GONE, CloudState.STOPPING)
# What Ray itself runs on machines that are to be made ready or taken down: of no use where nobody logs in.
_RAYS_OWN = ("uptime", "ray stop", "mkdir -p", "true")


class TradewindNodeProvider(NodeProvider):  # type: ignore[misc]
    """One fleet with one cell. A node's id is its launch id."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self.fleet = fleet_in(provider_config, cluster_name)
        self.cell: CellCloud = open_cell(the_cell(self.fleet), self._user_data)
        self.tags = TagBook(Settings.from_env().home / cluster_name / "ray-tags.json")
        self._lock = threading.Lock()
        self._young: dict[str, tuple[CloudNode, float]] = {}  # launched here, and perhaps not listed yet
        self._boot: UserData | None = None

    def _user_data(self, spec: LaunchSpec) -> str:
        with self._lock:
            self._boot = self._boot or self.make_user_data(self.fleet, self.cell.plan)
        return self._boot(spec)

    def make_user_data(self, fleet: FleetConfig, plan: CellPlan) -> UserData:
        """Called once, before the first launch: makes the cell's secrets."""
        return head_user_data(fleet, plan)

    # --- what is there -----------------------------------------------------------------------------------------

    def _nodes(self) -> dict[str, CloudNode]:
        listed = {node.launch_id: node for node in self.cell.provider.list_nodes()}
        with self._lock:
            self._young = {
                name: (node, since_s)
                for name, (node, since_s) in self._young.items()
                if name not in listed and time.time() - since_s < LISTED_LATE_S
            }
            late = {name: node for name, (node, _) in self._young.items()}
        return {**late, **listed}

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        living = [name for name, node in self._nodes().items() if node.state not in _ENDED]
        return [name for name in living if tag_filters.items() <= self.node_tags(name).items()]

    def node_tags(self, node_id: str) -> dict[str, str]:
        kind = NODE_KIND_HEAD if is_head(node_id) else NODE_KIND_WORKER
        return {TAG_RAY_NODE_KIND: kind, **self.tags.read().get(node_id, {})}

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

    # --- launch ------------------------------------------------------------------------------------------------

    def create_node(self, node_config: dict[str, Any], tags: dict[str, str], count: int) -> None:
        del node_config  # the fleet's keys say what a machine is
        if tags.get(TAG_RAY_NODE_KIND) != NODE_KIND_HEAD:
            hint = "take the worker types out of the file: the controller buys workers by itself"
            raise Unsupported("Ray asked for a worker, and workers are bought by Tradewind", hint)
        for _ in range(count):
            self._create_head(tags)

    def _create_head(self, tags: Mapping[str, str]) -> None:
        refused: ProviderError | None = None
        for offer in self.cell.plan.heads:
            launch_id = self._unanswered(offer) or new_id(head=True)
            self.tags.set(launch_id, {**tags, "tradewind-market": offer.market.key})
            try:
                node = self._launch(launch_id, offer)
            except (Stockout, Unsupported) as error:  # the next zone, or the next type
                log.warning("%s: %s", offer.market, error)
                self.tags.forget(launch_id)
                refused = error
                continue
            with self._lock:
                self._young[launch_id] = (node, time.time())
            return
        raise refused or Stockout("there is nothing that could be the head", cloud=self.cell.plan.cloud)

    def _unanswered(self, offer: Offer) -> str:
        """A launch on record of which the cloud lists nothing: it was never sent, or its answer was lost. Under its own
        id it is the same machine."""
        listed = self._nodes()
        book = self.tags.read()
        wanted = (name for name, tags in book.items() if tags.get("tradewind-market") == offer.market.key)
        return next((name for name in wanted if is_head(name) and name not in listed), "")

    def _launch(self, launch_id: str, offer: Offer) -> CloudNode:
        labels = {**offer.labels, LABEL_LAUNCH_ID: launch_id}
        spec = LaunchSpec(launch_id, self.fleet.name, self.cell.plan.name, offer, "", labels, role=Role.HEAD)
        return self.cell.provider.launch(spec)

    # --- ends --------------------------------------------------------------------------------------------------

    def terminate_node(self, node_id: str) -> None:
        self.terminate_nodes([node_id])

    def terminate_nodes(self, node_ids: Sequence[str]) -> None:
        self.cell.provider.terminate(node_ids)
        for node_id in node_ids:
            with self._lock:
                self._young.pop(node_id, None)

    def cleanup_cluster_resources(self) -> None:
        """Ray calls it when `ray down` sees no node any more: what nodes left behind, and the cell's secrets."""
        for launch_id in self.tags.read():
            self.tags.forget(launch_id)
        secrets = self.secret_store()
        seen = look(self.cell, secrets)
        left = [*remove(self.cell, secrets, seen.found, END_TIMEOUT_S), *seen.blind]
        if left:
            raise Transient(f"not removed: {', '.join(left)}", "run `tradewind reap` with this file")

    def secret_store(self) -> SecretStore | None:
        return store_in(self.fleet, self.cell.plan)

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
        return NoShell(node_id, lambda: self._why_not_up(node_id))

    def _why_not_up(self, node_id: str) -> str:
        node = self._nodes().get(node_id)
        if node is None or node.state in _ENDED:
            return f"{node_id} is gone: {node.detail if node else 'the cloud does not list it'}"
        return "" if node.state is CloudState.RUNNING else f"{node_id} is {node.state}"

    @staticmethod
    def bootstrap_config(cluster_config: dict[str, Any]) -> dict[str, Any]:
        return bootstrapped(cluster_config)


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
