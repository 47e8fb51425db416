"""From a fresh machine to the head of a cell: Ray's head, the join desk for workers, the agent that dials out to the
controller. An edge; boot.py calls it."""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from tradewind.agent import JobsPort, RayCoordinators
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.ray_state import RayState
from tradewind.cells.calls import Hello
from tradewind.cells.dial import CellAgent
from tradewind.certificates import AUTHORITY_LIFE_S, Authority, Identity
from tradewind.errors import RayError
from tradewind.model import RAY_NAMESPACE
from tradewind.node.boot_plan import BootPlan
from tradewind.node.desk_server import desk_app, open_desk
from tradewind.node.guard import Up
from tradewind.node.join_desk import LOCAL_NAMES, JoinDesk
from tradewind.node.machine import Machine
from tradewind.node.ray_node import (
    HeadPorts,
    NodeFiles,
    alone,
    check_temp_folder,
    has_raylet,
    pick_ports,
    ray_command,
    ray_env,
    start_ray,
)
from tradewind.node.versions import versions_here
from tradewind.server import Tls

log = logging.getLogger(__name__)

_FRESH_S = 5.0
HEARD_S = 60.0  # the agent asks the controller more often than this


@dataclass(slots=True)
class Head:
    plan: BootPlan
    machine: Machine
    address: str
    secret: Mapping[str, str] = field(repr=False)
    stop: threading.Event

    def bring_up(self) -> Up:
        files = NodeFiles(self.machine.folder)
        authority = Authority.of(self.plan.ca_pem, self.secret["ca_key_pem"])
        first = self._identity(authority)
        files.write(self.secret["ray_token"], self.plan.ca_pem)
        files.write_identity(first)
        ray, ports = self._start_ray(files)
        state = RayState(f"{self.address}:{ports.gcs}")
        desk = JoinDesk(authority, versions_here(), time.time, is_alive=Living(state.snapshot))
        server = open_desk(desk_app(desk, self.secret["ray_token"]), self.address, Tls(files.cert, files.key))
        log.info("Ray at %s, join desk at %s", state.gcs_address, server.url)
        agent = self._agent(state, f"http://127.0.0.1:{ports.dashboard}", desk, server.url)

        def renew() -> None:
            files.write_identity(self._identity(authority))
            server.renew()

        def close() -> None:
            server.stop()
            state.close()

        return Up(
            self.plan,
            files,
            ray,
            first.cert_pem,
            answers=lambda: agent is None or _hears(agent),
            renew=renew,
            is_busy=lambda: _has_jobs(state),
            has_raylet=lambda: has_raylet(ray),
            threads=_start(agent, self.stop) if agent else {},
            close=close,
        )

    def _start_ray(self, files: NodeFiles) -> tuple[subprocess.Popen[bytes], HeadPorts]:
        check_temp_folder(self.machine.temp_folder)
        env = ray_env(self.plan, files)
        with alone(self.machine.start_lock):
            ports = pick_ports()
            command = ray_command(self.plan, self.address, self.machine.temp_folder, ports)
            ray = start_ray(command, {**self.machine.env, **env}, files.ray_log)
        self.machine.adopt(env)
        return ray, ports

    def _identity(self, authority: Authority) -> Identity:
        """As long as the authority: a head cannot be exchanged while its jobs run, as a worker can."""
        return authority.identity((self.address, *LOCAL_NAMES), time.time(), AUTHORITY_LIFE_S)

    def _agent(self, state: RayState, dashboard_url: str, desk: JoinDesk, join_url: str) -> CellAgent | None:
        """It takes the controller's calls and carries them out here."""
        if not self.plan.controller_url:
            return None
        hello = Hello(
            launch_id=self.plan.launch_id,
            gcs_address=state.gcs_address,
            dashboard_url=dashboard_url,
            join_url=join_url,
            versions={name: found for name, found in asdict(desk.versions).items() if found},
            started_at_s=time.time(),
        )
        return CellAgent(
            self.plan.controller_url,
            self.plan.controller_ca_pem,
            self.plan.cell,
            self.secret["agent_token"],
            hello,
            state,
            connect(state.gcs_address, dashboard_url),
            RayCoordinators(),
            desk=desk,
            folders=self.machine.folder / "folders",
        )


def _start(agent: CellAgent, stop: threading.Event) -> dict[str, threading.Thread]:
    def run() -> None:
        log.info("the cell agent stops: %s", agent.run(stop) or "it was told to")

    thread = threading.Thread(target=run, name="cell-agent", daemon=True)
    thread.start()
    return {"cell agent": thread}


def _hears(agent: CellAgent) -> bool:
    return agent.heard_at_s is not None and time.monotonic() - agent.heard_at_s < HEARD_S


def connect(gcs_address: str, dashboard_url: str) -> JobsPort:
    """This process becomes a driver of the cell (the coordinators are actors), and a client of its Jobs API."""
    import ray
    from ray.job_submission import JobSubmissionClient

    try:
        ray.init(
            address=gcs_address,
            namespace=RAY_NAMESPACE,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
        jobs: JobsPort = JobSubmissionClient(dashboard_url)
    except (ConnectionError, RuntimeError) as error:
        raise RayError(f"cannot reach Ray at {gcs_address}: {error}") from error
    return jobs


def _has_jobs(state: RayState) -> bool:
    """A head that cannot be asked has none that could go on."""
    try:
        return any(not job.is_dead and not job.is_internal for job in state.snapshot().jobs)
    except RayError as error:
        log.warning("%s", error)
        return False


@dataclass(slots=True)
class Living:
    """Whether Ray has a living node of a launch id. Looks at most every few seconds: many join at the same time."""

    look: Callable[[], RaySnapshot]
    _at_s: float = float("-inf")
    _known: frozenset[str] = frozenset()

    def __call__(self, launch_id: str) -> bool:
        if time.monotonic() - self._at_s > _FRESH_S:
            self._known = frozenset(node.launch_id for node in self.look().nodes if node.is_alive)
            self._at_s = time.monotonic()
        return launch_id in self._known
