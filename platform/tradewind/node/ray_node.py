"""Ray on this machine: the command, its environment, its start and its end. An edge.

Token and key stand in files of mode 600, and only their paths in the environment: nothing secret is ever on a command
line. Ray's own output goes to a file, whose end tells why a start failed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from tradewind.autoscaler.providers.raylets import MAX_SOCKET_PATH, TUNED_ENV, auth_env
from tradewind.certificates import Identity
from tradewind.errors import RayError
from tradewind.model import LABEL_LAUNCH_ID, STORAGE_ENV
from tradewind.node.boot_plan import BootPlan

GCS_PORT, CLIENT_PORT, DASHBOARD_PORT = 6379, 10001, 8265  # Ray's own custom; another one where it is taken
START_TIMEOUT_S = 180.0
_SOCKET_TAIL = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_STARTED = b"Ray runtime started"
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class HeadPorts:
    gcs: int
    client: int
    dashboard: int


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """What Ray reads at its start; each process that it starts later reads the files again."""

    folder: Path

    @property
    def token(self) -> Path:
        return self.folder / "ray-token"

    @property
    def cert(self) -> Path:
        return self.folder / "node.crt"

    @property
    def key(self) -> Path:
        return self.folder / "node.key"

    @property
    def ca(self) -> Path:
        return self.folder / "ca.crt"

    @property
    def ray_log(self) -> Path:
        return self.folder / "ray.log"

    def write(self, token: str, ca_pem: str) -> None:
        write_private(self.token, token)
        write_private(self.ca, ca_pem)

    def write_identity(self, identity: Identity) -> None:
        """Key and certificate change together as far as files can: a process that starts in between tries again."""
        write_private(self.key, identity.key_pem)
        write_private(self.cert, identity.cert_pem)


def write_private(path: Path, text: str) -> None:
    """Whole or not at all, and never readable for others."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def ray_env(plan: BootPlan, files: NodeFiles) -> dict[str, str]:
    """What every process of the cell has in its environment on this node; jobs inherit it."""
    found = {
        **TUNED_ENV,
        **auth_env(files.token),
        "RAY_USE_TLS": "1",
        "RAY_TLS_SERVER_CERT": str(files.cert),
        "RAY_TLS_SERVER_KEY": str(files.key),
        "RAY_TLS_CA_CERT": str(files.ca),
        "RAY_CLOUD_INSTANCE_ID": plan.launch_id,
    }
    if plan.storage:
        found[STORAGE_ENV] = plan.storage
    if plan.cloud == "aws" and plan.region:
        found["AWS_DEFAULT_REGION"] = plan.region  # where data and secrets are asked for by the machine's identity
    return found


def ray_command(plan: BootPlan, address: str, temp_folder: Path, ports: HeadPorts | None = None) -> list[str]:
    """`ports`: for a head, which brings no CPUs of its own and shows its dashboard to itself alone."""
    labels = {**plan.labels, LABEL_LAUNCH_ID: plan.launch_id}
    cpus = 0 if ports else plan.num_cpus
    common = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start"),
        "--block",
        f"--node-ip-address={address}",
        f"--temp-dir={temp_folder}",
        *([] if cpus is None else [f"--num-cpus={cpus:g}"]),
        *([] if plan.num_gpus is None else [f"--num-gpus={plan.num_gpus:g}"]),
        *([f"--memory={plan.memory_bytes}"] if plan.memory_bytes else []),
        f"--resources={json.dumps(dict(plan.resources))}",
        f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--log-style=record",
    ]
    if ports is None:
        return [*common, f"--address={plan.head_address}"]
    return [
        *common,
        "--head",
        "--no-monitor",
        f"--port={ports.gcs}",
        f"--ray-client-server-port={ports.client}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={ports.dashboard}",
    ]


def start_ray(
    command: list[str], env: Mapping[str, str], log: Path, timeout_s: float = START_TIMEOUT_S
) -> subprocess.Popen[bytes]:
    """Returns when the node has joined; raises RayError with its last words otherwise."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    until_s = time.monotonic() + timeout_s
    while _STARTED not in log.read_bytes():
        late = time.monotonic() > until_s
        if late or process.poll() is not None:
            stop_ray(process)
            what = f"did not start within {timeout_s:.0f} s" if late else f"ended with status {process.returncode}"
            raise RayError(f"Ray {what}: {tail(log)}", "the whole log lies beside the machine's boot plan")
        time.sleep(_POLL_S)
    return process


def has_raylet(process: subprocess.Popen[bytes]) -> bool:
    """The raylet of a drained node ends with status 0, and then `ray start --block` blocks on, with no node left."""
    try:
        children = psutil.Process(process.pid).children()
        return any(each.name() == "raylet" and each.status() != psutil.STATUS_ZOMBIE for each in children)
    except psutil.NoSuchProcess:
        return False


def stop_ray(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> None:
    """It ends its own processes. Never `ray stop`, which is not choosy."""
    process.terminate()
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def tail(log: Path, lines: int = 5) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    return " | ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:]) or "it printed nothing"


def check_temp_folder(folder: Path) -> None:
    excess = len(os.fsencode(folder)) + _SOCKET_TAIL - MAX_SOCKET_PATH
    if excess > 0:
        raise RayError(f"{folder} is {excess} bytes too long for the sockets of Ray", "set a shorter TMPDIR")


def pick_ports() -> HeadPorts:
    return HeadPorts(_free(GCS_PORT), _free(CLIENT_PORT), _free(DASHBOARD_PORT))


def _free(wanted: int) -> int:
    """The wanted port; where it is taken, the next hundreds: a machine of its own never gets there."""
    candidates: list[int] = [wanted, *range(20_000 + wanted % 1000, 32_000, 100)]
    for port in candidates:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("0.0.0.0", port))
            return port
    raise RayError("this machine has no free port", "end what runs on it")


@contextlib.contextmanager
def alone(lock: str) -> Iterator[None]:
    """Emulated machines share one kernel: nodes that start at the same time take each other's ports."""
    if not lock:
        yield
        return
    with open(lock, "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
