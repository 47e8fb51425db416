"""Ray heads and Ray nodes as processes on this machine: the edge where the local cloud touches Ray.

Each node is `ray start --block` in a session of its own (see local_processes.py), with an own loopback address, an
own short temp folder and an own token-protected cluster. `ray stop` is never used: it would end every Ray here.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tradewind.autoscaler.providers.local_processes import (
    SessionRecord,
    end_session,
    is_running,
    members,
    start_session,
    write_atomically,
)
from tradewind.errors import RayError

HEAD_IP = "127.0.0.2"  # 127.0.0.1 is rewritten by Ray to the address of the network card
OBJECT_STORE_BYTES = 80_000_000  # about the least that Ray takes
FIRST_PORT, LAST_PORT = 20_000, 32_000  # above Ray's own worker ports, below the range of outgoing connections
MAX_SOCKET_PATH = 107  # of a unix socket, in bytes, on Linux
# What Ray puts below a temp folder: /session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store
LOG = "ray.log"  # in a node's folder
_SOCKET_TAIL = len("/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store")
_STARTED = b"Ray runtime started"
_POLL_S = 0.05
_log = logging.getLogger(__name__)

# A killed node refuses connections, so three checks notice it in 1 to 2 s (instead of 13 to 15 s); one that is only
# slow, because this machine is busy, has three times the time-out. No workers in advance: they would cost each node
# seconds of a core, and a training job cannot use them (its own environment comes with spares of its own).
TUNED_ENV: Mapping[str, str] = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "5000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "2",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True, slots=True)
class NodeShape:
    """What a node brings to Ray. Accelerators are counted, not there."""

    cpus: int
    gpus: int = 0
    memory_bytes: int | None = None  # None: what Ray finds on this machine
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LocalNode:
    """One Ray node that was started here. Everything of it is in `folder` and in the session on record."""

    launch_id: str
    address_ip: str
    folder: Path
    session: SessionRecord

    @property
    def alive(self) -> bool:
        return is_running(self.session)

    def end(self, grace_s: float = 0.0) -> None:
        end_node(self.folder, grace_s)


@dataclass(frozen=True, slots=True)
class LocalHead:
    """The Ray head of one cell: no CPUs of its own, no autoscaler of Ray's, dashboard on loopback."""

    folder: Path
    gcs_address: str
    dashboard_url: str
    token_path: Path
    session: SessionRecord

    @classmethod
    def start(
        cls, root: Path, *, cpus: int = 0, env: Mapping[str, str] | None = None, timeout_s: float = 120.0
    ) -> LocalHead:
        """Start a head with its folder in `root`; returns when Ray serves, raises RayError otherwise.

        Whatever is left there of an earlier head is ended and removed first. Ray gives itself 30 s, which cannot be
        changed and is short on a busy machine: so there is a second try.
        """
        try:
            return cls._start_once(root, cpus, env or {}, timeout_s)
        except RayError as error:
            _log.warning("starting the Ray head once more: %s", error.message)
            return cls._start_once(root, cpus, env or {}, timeout_s)

    @classmethod
    def _start_once(cls, root: Path, cpus: int, env: Mapping[str, str], timeout_s: float) -> LocalHead:
        end_node(root / "head")
        folder = make_node_folder(root, "head")
        token_path = write_token(folder / "token")
        with one_start_at_a_time():
            gcs_port, dashboard_port, client_port = free_ports(3)
            command = [
                *_ray_start(HEAD_IP, folder, NodeShape(cpus)),
                "--head",
                "--no-monitor",
                f"--port={gcs_port}",
                f"--ray-client-server-port={client_port}",
                "--include-dashboard=true",
                "--dashboard-host=127.0.0.1",
                f"--dashboard-port={dashboard_port}",
            ]
            session = _spawn(command, _node_env(token_path, "head", folder, env), folder)
            wait_started(folder, timeout_s)
        head = cls(folder, f"{HEAD_IP}:{gcs_port}", f"http://127.0.0.1:{dashboard_port}", token_path, session)
        write_atomically(folder / "head.json", json.dumps({"gcs": head.gcs_address, "dashboard": head.dashboard_url}))
        return head

    @classmethod
    def adopt(cls, root: Path) -> LocalHead | None:
        """The head that an earlier process started in `root`, if it still lives."""
        folder = root / "head"
        try:
            session = SessionRecord.load(folder / "session.json")
            where = json.loads((folder / "head.json").read_text())
        except FileNotFoundError:
            return None
        head = cls(folder, where["gcs"], where["dashboard"], folder / "token", session)
        return head if head.alive else None

    @property
    def env(self) -> dict[str, str]:
        """What a driver or a job client must have in its environment to be let in."""
        return {
            "RAY_ADDRESS": self.gcs_address,
            "RAY_API_SERVER_ADDRESS": self.dashboard_url,  # `ray job submit` and JobSubmissionClient()
            **auth_env(self.token_path),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @property
    def alive(self) -> bool:
        return is_running(self.session)

    def stop(self, grace_s: float = 3.0) -> None:
        """End it with everything that runs on it (jobs' drivers included), and remove its folder. May be repeated."""
        end_node(self.folder, grace_s)


def start_node(
    root: Path,
    launch_id: str,
    *,
    head_address: str,
    token_path: Path,
    address_ip: str,
    shape: NodeShape,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 90.0,
) -> LocalNode:
    """Start one Ray node with its folder `root/launch_id`; returns when it has joined, raises RayError otherwise."""
    with one_start_at_a_time():
        node = spawn_node(
            make_node_folder(root, launch_id),
            launch_id,
            head_address=head_address,
            token_path=token_path,
            address_ip=address_ip,
            shape=shape,
            env=env,
        )
        wait_started(node.folder, timeout_s)
    return node


def spawn_node(
    folder: Path,
    launch_id: str,
    *,
    head_address: str,
    token_path: Path,
    address_ip: str,
    shape: NodeShape,
    env: Mapping[str, str] | None = None,
) -> LocalNode:
    """Start the processes and return at once. Hold `one_start_at_a_time` until `wait_started` has returned."""
    command = [*_ray_start(address_ip, folder, shape), f"--address={head_address}"]
    session = _spawn(command, _node_env(token_path, launch_id, folder, env or {}), folder)
    return LocalNode(launch_id, address_ip, folder, session)


def end_node(folder: Path, grace_s: float = 0.0) -> None:
    """End every process of the node in `folder` and remove the folder. Nothing there counts as done."""
    try:
        session = SessionRecord.load(folder / "session.json")
    except FileNotFoundError:
        session = None
    if session is not None and (survivors := end_session(session, grace_s)):
        raise RayError(f"processes {survivors} of {folder} do not end", "end them by hand and remove the folder")
    shutil.rmtree(folder, ignore_errors=True)


def processes(folder: Path) -> list[int]:
    """The living processes of the node in `folder`."""
    try:
        return [stat.pid for stat in members(SessionRecord.load(folder / "session.json"))]
    except FileNotFoundError:
        return []


def make_node_folder(root: Path, name: str, *, create: bool = True) -> Path:
    folder = root / name
    longest = len(os.fsencode(folder / "t")) + _SOCKET_TAIL
    if longest > MAX_SOCKET_PATH:
        excess = longest - MAX_SOCKET_PATH
        raise RayError(f"{folder} is {excess} bytes too long for the sockets of Ray", "give a shorter folder")
    if create:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    return folder


def write_token(path: Path) -> Path:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def auth_env(token_path: Path) -> dict[str, str]:
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token_path)}


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, held open together so that they differ."""
    with contextlib.ExitStack() as stack:
        found: list[int] = []
        while len(found) < count:
            probe = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):  # taken: try another
                probe.bind(("0.0.0.0", FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)))
                found.append(probe.getsockname()[1])
        return found


@contextlib.contextmanager
def one_start_at_a_time() -> Iterator[None]:
    """Ray nodes that start at the same time on one machine take each other's ports and time out."""
    with (default_base() / "start.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def default_base() -> Path:
    """Where this user's local fleets live: short, private, and not shared with other users."""
    base = Path(tempfile.gettempdir()) / f"tw-{os.getuid()}"
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise RayError(f"{base} belongs to another user", "set TMPDIR to a folder of your own")
    base.chmod(0o700)
    return base


def _ray_start(address_ip: str, folder: Path, shape: NodeShape) -> list[str]:
    labels = ",".join(f"{key}={value}" for key, value in shape.labels.items())
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start"),
        "--block",
        f"--node-ip-address={address_ip}",
        f"--temp-dir={folder / 't'}",
        f"--num-cpus={shape.cpus}",
        f"--num-gpus={shape.gpus}",
        f"--resources={json.dumps(dict(shape.resources))}",
        *([f"--memory={shape.memory_bytes}"] if shape.memory_bytes else []),
        *([f"--labels={labels}"] if labels else []),
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        "--min-worker-port=0",
        "--max-worker-port=0",
        "--dashboard-agent-listen-port=0",
        "--disable-usage-stats",
        "--log-style=record",
    ]


def _node_env(token_path: Path, launch_id: str, folder: Path, extra: Mapping[str, str]) -> dict[str, str]:
    """This process's environment without its own ties to some Ray cluster, and with ours."""
    inherited = {key: value for key, value in os.environ.items() if not key.upper().startswith("RAY_")}
    # An entrypoint's `python` comes from PATH: it must be the one that Tradewind runs in.
    path = os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)])
    # Temporary files of a machine go with the machine; processes that are killed do not remove theirs.
    own_tmp = folder / "tmp"
    own_tmp.mkdir(exist_ok=True)
    ours = {
        **TUNED_ENV,
        **auth_env(token_path),
        "RAY_CLOUD_INSTANCE_ID": launch_id,
        "PATH": path,
        "TMPDIR": str(own_tmp),
    }
    return {**inherited, **ours, **extra}


def _spawn(command: list[str], env: Mapping[str, str], folder: Path) -> SessionRecord:
    return start_session(command, env, folder / LOG, folder / "session.json")


def wait_started(folder: Path, timeout_s: float) -> None:
    """Wait until the node in `folder` has joined. If it does not, end it and raise RayError with its last words."""
    log, session = folder / LOG, SessionRecord.load(folder / "session.json")
    deadline_s = time.monotonic() + timeout_s
    while _STARTED not in _read(log):
        late = time.monotonic() > deadline_s
        if late or not is_running(session):
            end_session(session)
            what = f"did not start within {timeout_s:.0f} s" if late else "ended while it started"
            raise RayError(f"the Ray node in {folder} {what}: {_tail(log)}")
        time.sleep(_POLL_S)


def has_started(folder: Path) -> bool:
    return _STARTED in _read(folder / LOG)


def _read(log: Path) -> bytes:
    """Empty when the file is gone: then someone has ended the node meanwhile."""
    try:
        return log.read_bytes()
    except FileNotFoundError:
        return b""


def _tail(log: Path) -> str:
    lines = [line.strip() for line in _read(log).decode(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-3:]) or "it printed nothing"
