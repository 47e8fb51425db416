"""Real heads and nodes: they join as described, and nothing of them is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tradewind.autoscaler.providers import raylets
from tradewind.errors import RayError

NODES = "import json, ray; ray.init(logging_level='ERROR'); print(json.dumps(ray.nodes()))"


@pytest.mark.ray
def test_a_node_joins_with_its_shape_and_goes_with_all_its_processes(cell: Any) -> None:
    node = cell.add_node(cpus=2, gpus=1, resources={"accelerator_type:L4": 1}, labels={"ray.io/market-type": "spot"})
    found = {entry["NodeManagerAddress"]: entry for entry in json.loads(cell.run(NODES).stdout)}[node.address_ip]
    assert found["Labels"]["ray.io/market-type"] == "spot"
    assert found["Labels"]["tradewind.io/launch-id"] == node.launch_id
    assert {key: found["Resources"][key] for key in ("CPU", "GPU", "accelerator_type:L4")} == {
        "CPU": 2.0,
        "GPU": 1.0,
        "accelerator_type:L4": 1.0,
    }
    pids = raylets.processes(node.folder)
    assert len(pids) >= 3
    cell.remove_node(node)
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists() and _state(pid) != "Z"]
    assert not node.folder.exists()
    assert cell.head.alive


@pytest.mark.ray
def test_a_head_lets_nobody_in_without_its_token(cell: Any) -> None:
    assert cell.head.token_path.stat().st_mode & 0o777 == 0o600
    other = cell.root / "other-token"
    raylets.write_token(other)
    env = {**cell.env, "RAY_AUTH_TOKEN_PATH": str(other)}
    ray = Path(sys.executable).parent / "ray"
    refused = subprocess.run([ray, "job", "list"], env=env, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "invalid" in (refused.stdout + refused.stderr).lower()


def test_a_folder_too_long_for_unix_sockets_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RayError, match="too long"):
        raylets.make_node_folder(tmp_path / ("x" * 60), "n")


def test_free_ports_differ_and_are_free() -> None:
    ports = raylets.free_ports(20)
    assert len(set(ports)) == 20
    assert all(raylets.FIRST_PORT <= port < raylets.LAST_PORT for port in ports)


def test_the_base_folder_is_private() -> None:
    base = raylets.default_base()
    assert base.stat().st_mode & 0o777 == 0o700
    assert base.stat().st_uid == os.getuid()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
