"""A cell booted by its user-data on this machine, with token and TLS: it joins, works, refuses, keeps its secrets to
itself, and ends itself when its head is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from node_boxes import AGENT_TOKEN, RAY_TOKEN, TREE, Box, Boxes, boxes_in, wait_for

from tradewind.autoscaler.providers.local_processes import members
from tradewind.cells.calls import Hello
from tradewind.cells.door import Lodging, create_door
from tradewind.cells.line import Line
from tradewind.cells.remote import RemoteJobs, RemoteRay
from tradewind.certificates import Authority
from tradewind.node.boot_plan import failure_in
from tradewind.server import Tls, serve

pytestmark = [pytest.mark.slow, pytest.mark.e2e, pytest.mark.timeout(900)]

SCRIPT = """
import ray
ray.init(log_to_driver=False)
from ray.util.placement_group import placement_group
group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
where = ray.remote(num_cpus=1, placement_group=group)(lambda: ray.util.get_node_ip_address())
each = [where.options(placement_group_bundle_index=index).remote() for index in range(2)]
print("ran on", sorted(ray.get(each)))
"""


@dataclass
class Cell:
    boxes: Boxes
    line: Line
    head: Box
    hello: Hello

    def worker(self, launch_id: str, **env: str) -> Box:
        plan = self.boxes.plan("worker", launch_id, head_address=self.hello.gcs_address, join_url=self.hello.join_url)
        return self.boxes.boot(replace(plan, dead_man_s=8.0), env)

    def alive(self) -> set[str]:
        return {node.launch_id for node in RemoteRay(self.line).snapshot().nodes if node.is_alive} - {""}


@pytest.fixture(scope="module")
def cell() -> Iterator[Cell]:
    """A controller's door in this process, and a head that was told of it."""
    root = Path(tempfile.mkdtemp(prefix="twb", dir="/tmp"))
    door_ca = Authority.make("door", time.time())
    door = door_ca.identity(["127.0.0.1"], time.time())
    (root / "door.crt").write_text(door.cert_pem)
    (root / "door.key").write_text(door.key_pem)
    line = Line("c")
    with (
        serve(create_door({"c": Lodging(line, AGENT_TOKEN)}), tls=Tls(root / "door.crt", root / "door.key")) as server,
        boxes_in(root, "127.77.0.") as boxes,
    ):
        plan = boxes.plan("head", "h1", controller_url=server.url, controller_ca_pem=door_ca.cert_pem)
        head = boxes.boot(plan)
        wait_for(lambda: line.present is not None, head, 240.0)
        hello = line.present
        assert hello is not None
        yield Cell(boxes, line, head, hello)
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def workers(cell: Cell) -> tuple[Box, Box]:
    found = cell.worker("w1"), cell.worker("w2")
    for box in found:
        wait_for(lambda box=box: box.is_up, box, 240.0)  # type: ignore[misc]
    return found


def until(what: Callable[[], bool], timeout_s: float = 120.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.2)


def test_the_head_says_hello_with_its_versions(cell: Cell) -> None:
    assert cell.hello.launch_id == "h1"
    assert cell.hello.gcs_address.startswith("127.77.0.2:")
    assert cell.hello.join_url.startswith("https://127.77.0.2:")
    assert {"tradewind", "ray", "python"} <= set(cell.hello.versions)


def test_workers_join_and_a_job_runs_on_them(cell: Cell, workers: tuple[Box, Box]) -> None:
    until(lambda: cell.alive() == {"w1", "w2"})
    jobs = RemoteJobs(cell.line)
    command = f"\"{sys.executable}\" -c '{SCRIPT}'"
    jobs.submit_job(entrypoint=command, submission_id="j1", runtime_env=None, metadata={})
    until(lambda: jobs.list_jobs()[0].status in ("SUCCEEDED", "FAILED"), 240.0)
    assert "ran on ['127.77.0.3', '127.77.0.4']" in jobs.get_job_logs("j1"), jobs.get_job_logs("j1")


def test_a_worker_with_another_torch_is_refused_with_its_reason(cell: Cell, workers: tuple[Box, Box]) -> None:
    other = cell.boxes.root / "other"
    (other / "torch-1.0.0.dist-info").mkdir(parents=True)
    (other / "torch-1.0.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.0.0\n")
    box = cell.worker("w3", PYTHONPATH=f"{other}:{TREE}")
    wait_for(lambda: not box.is_running, box)
    assert "torch 1.0.0 on the node" in failure_in(box.console), box.console
    assert box.was_shut_down
    reports = dict(cell.line.call("node.reports"))
    assert "torch 1.0.0 on the node" in reports["w3"]
    assert "booting worker w3" in cell.line.call("node.log", "w3")
    assert "w3" not in cell.alive()


def test_ray_does_not_speak_without_a_certificate(cell: Cell, workers: tuple[Box, Box]) -> None:
    """Not even to somebody who knows the token."""
    token = cell.head.folder / "n" / "ray-token"
    code = (
        f"from tradewind.autoscaler.ray_state import RayState; print(RayState({cell.hello.gcs_address!r}).is_there())"
    )
    env = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == "False"
    own = cell.head.folder / "n"
    tls = {
        "USE_TLS": "1",
        "TLS_SERVER_CERT": own / "node.crt",
        "TLS_SERVER_KEY": own / "node.key",
        "TLS_CA_CERT": own / "ca.crt",
    }
    env |= {f"RAY_{name}": str(value) for name, value in tls.items()}
    assert subprocess.check_output([sys.executable, "-c", code], env=env, text=True).strip() == "True"


def test_no_secret_is_to_be_seen(cell: Cell, workers: tuple[Box, Box]) -> None:
    """In user-data, consoles, logs, command lines or environments; only in files of mode 600 of the node's folder."""
    key_lines = cell.boxes.authority.key_pem.splitlines()[1:-1]
    secrets = [text.encode() for text in (RAY_TOKEN, AGENT_TOKEN, *key_lines)]
    private = {"ray-token", "node.key"}
    seen = 0
    for box in cell.boxes.boxes:
        for path in box.folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and path.name not in private:
                seen += 1
                text = path.read_bytes()
                assert not any(secret in text for secret in secrets), path
        assert all((box.folder / "n" / name).stat().st_mode & 0o777 == 0o600 for name in private if box.is_up)
        for stat in members(box.session):
            for name in ("cmdline", "environ"):
                text = Path(f"/proc/{stat.pid}/{name}").read_bytes()
                assert not any(secret in text for secret in secrets), (box.plan.launch_id, stat.pid, name)
                seen += 1
    assert seen > 60  # Ray's logs and processes were among them


def test_workers_end_themselves_when_their_head_is_gone(cell: Cell, workers: tuple[Box, Box]) -> None:
    cell.head.end()
    for box in workers:
        wait_for(lambda box=box: not box.is_running, box, 120.0)  # type: ignore[misc]
        assert box.was_shut_down
        assert "TRADEWIND NODE ENDS: its head has not answered for" in box.console, box.console
