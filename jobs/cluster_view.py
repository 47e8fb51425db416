"""What the control loop of a job sees of the cluster: live nodes, what is free there, which drain or do not answer."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray._private.state import state as ray_state

from tradewind.jobs import sizing

PROBE_TIMEOUT_S = 0.5


def look_at_nodes() -> list[sizing.NodeView]:
    """The live nodes, with what is free on them and whether they drain."""
    draining: Mapping[str, int] = ray_state.get_draining_nodes()
    free = ray_state.available_resources_per_node()
    return [
        sizing.NodeView(
            node_id=node["NodeID"],
            total=node["Resources"],
            available=free.get(node["NodeID"], {}),
            labels=node["Labels"],
            drain_deadline_s=draining[node["NodeID"]] / 1000 if node["NodeID"] in draining else None,
        )
        for node in ray.nodes()
        if node["Alive"]
    ]


def find_silent_nodes(wanted: set[str]) -> list[str]:
    """Those of `wanted` that are dead, or whose raylet takes no connection (Ray needs seconds to notice)."""
    nodes = {node["NodeID"]: node for node in ray.nodes() if node["NodeID"] in wanted}
    if not nodes:
        return sorted(wanted)
    with ThreadPoolExecutor(min(32, len(nodes))) as pool:
        answers = dict(zip(nodes, pool.map(_answers, nodes.values()), strict=True))
    return sorted(node for node in wanted if not answers.get(node, False))


def _answers(node: Mapping[str, Any]) -> bool:
    if not node["Alive"]:
        return False
    try:
        socket.create_connection((node["NodeManagerAddress"], node["NodeManagerPort"]), PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True
