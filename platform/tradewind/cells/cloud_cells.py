"""From a fleet file to the cells of a fleet in clouds: providers, keys, boot plans, lines and loops put together.

service.py opens them; from then on the controller knows no difference between these and a cell beside it.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tradewind.agent import Agent, time_to_save_s
from tradewind.autoscaler.beside import Threads
from tradewind.autoscaler.clock import SystemClock
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.secrets import SecretStore, open_secrets
from tradewind.autoscaler.turn import Turn
from tradewind.autoscaler.view import HeadSettings, LoopSettings
from tradewind.cells.cell import Cell, silence_of
from tradewind.cells.door import Lodging, create_door
from tradewind.cells.heads import RemoteHead
from tradewind.cells.keys import CellKeys, DoorKeys, forget
from tradewind.cells.line import Line
from tradewind.cells.remote import RemoteCoordinators, RemoteJobs, RemoteRay
from tradewind.clouds.cells import CellPlan, cells_of
from tradewind.clouds.providers import open_cell
from tradewind.config_models import FleetConfig
from tradewind.errors import ProviderError, Transient
from tradewind.journal import Journal
from tradewind.model import Role
from tradewind.node.boot_plan import DEFAULT_INSTALL, user_data
from tradewind.node.plans import CellBoot, head_plan, worker_plan
from tradewind.server import serve

log = logging.getLogger(__name__)

HEAD_BOOT_S = 900.0


@dataclass(frozen=True, slots=True)
class CloudCells:
    """The cells of one fleet, and what is left to clean up behind them."""

    cells: Mapping[str, Cell]
    url: str  # of the agents' door
    forget: Callable[[], list[str]]  # once no machine is left: secrets and keys go; what could not be removed


@contextmanager
def open_cloud_cells(
    config: FleetConfig,
    folder: Path,
    journal: Journal,
    settings: LoopSettings,
    credentials: Mapping[str, Any] | None = None,
) -> Iterator[CloudCells]:
    """`folder` is private to the fleet; `settings` are those of all loops, without cell and head."""
    now_s, keys_path = SystemClock().now_s(), folder / "keys"
    plans, turn = cells_of(config), Turn()
    lodgings: dict[str, Lodging] = {}
    with ExitStack() as stack:
        host, port = _listen(config, keys_path)
        door_keys = DoorKeys.keep(keys_path, _names(config, host), now_s)
        server = stack.enter_context(serve(create_door(lodgings), port, host, door_keys.tls))
        (keys_path / "door.port").write_text(str(server.port))
        url = config.controller.url or f"https://{_own_address(host)}:{server.port}"
        cells = {}
        for plan in plans:
            keys = CellKeys.keep(keys_path, plan.name, now_s)
            keys.hand_over(_store(config, plan, credentials), config.name, plan.name)
            line = Line(plan.name)
            lodgings[plan.name] = Lodging(line, keys.agent_token, folder / "folders")
            boot = _boot(config, plan, keys, url, door_keys.ca_pem)
            cell = _cell(config, plan, line, boot, journal, settings, turn, credentials)
            cells[plan.name] = cell
            stack.callback(cell.loop.close)
        yield CloudCells(cells, url, lambda: _forget(config, plans, keys_path, credentials))


def _cell(
    config: FleetConfig,
    plan: CellPlan,
    line: Line,
    boot: CellBoot,
    journal: Journal,
    settings: LoopSettings,
    turn: Turn,
    credentials: Mapping[str, Any] | None,
) -> Cell:
    cloud = open_cell(plan, lambda spec: text_for(spec, boot, line), credentials)
    fleet = journal.fleet.cell(plan.name)
    budgets, idle_s = config.budgets, config.timing.idle_timeout_s
    save_s = time_to_save_s(budgets.reserve_s, idle_s, fleet_pays=budgets.fleet_uusd is not None)
    agent = Agent("", plan.name, config.storage, journal.record, fleet, same_disk=False, save_s=save_s)
    agent.jobs, agent.coordinators = RemoteJobs(line), RemoteCoordinators(line)
    loop = Loop(
        clock=SystemClock(),
        record=journal.record,
        fleet=fleet,
        ray=RemoteRay(line),
        providers={plan.cloud: cloud.provider},
        prices=cloud.prices,
        settings=replace(settings, cell=plan.name, head=HeadSettings(offers=plan.heads, boot_timeout_s=HEAD_BOOT_S)),
        wishes=agent.wishes,
        past=(event for _, event in journal.log.read()),
        beside=Threads(),
        turn=turn,
        head_silent_s=silence_of(line),
    )
    return Cell(plan.name, plan.cloud, plan.region, RemoteHead(line), agent, loop, {plan.cloud: cloud.provider}, line)


def text_for(spec: LaunchSpec, boot: CellBoot, line: Line) -> str:
    """What the machine runs at its first boot. A worker without a head to join would only cost."""
    if spec.role == Role.HEAD:
        return user_data(head_plan(boot, spec))
    words = line.present
    if words is None:
        raise Transient(f"the head of cell {boot.cell} is not heard", cloud=boot.cloud)
    return user_data(worker_plan(boot, spec, words.join_url))


def _boot(config: FleetConfig, plan: CellPlan, keys: CellKeys, url: str, door_ca_pem: str) -> CellBoot:
    return CellBoot(
        fleet=config.name,
        cell=plan.name,
        cloud=plan.cloud,
        region=plan.region,
        ca_pem=keys.ca_pem,
        controller_url=url,
        controller_ca_pem=door_ca_pem,
        python=config.boot.python,
        install=config.boot.install or DEFAULT_INSTALL,
        setup=config.boot.setup,
        dead_man_s=config.boot.dead_man_s,
        storage=config.storage,
        endpoints={**_endpoints(config, plan), **config.boot.endpoints},
    )


def _endpoints(config: FleetConfig, plan: CellPlan) -> dict[str, str]:
    """Where machines find their secret, unless it is where their cloud has it for everybody."""
    if plan.cloud == "azure" and config.azure:
        return {"vault": config.azure.key_vault}
    section = config.aws if plan.cloud == "aws" else config.gcp
    return {"secrets": section.endpoint_url} if section and section.endpoint_url else {}


def _store(config: FleetConfig, plan: CellPlan, credentials: Mapping[str, Any] | None) -> SecretStore:
    given = (credentials or {}).get(plan.cloud)
    aws, gcp, azure = config.aws, config.gcp, config.azure
    if plan.cloud == "aws" and aws:
        return open_secrets("aws", plan.region, endpoint_url=aws.endpoint_url, credentials=given)
    if plan.cloud == "gcp" and gcp:
        return open_secrets("gcp", project=gcp.project, endpoint_url=gcp.endpoint_url, credentials=given)
    vault, ca_file = (azure.key_vault, azure.ca_file) if azure else ("", "")
    return open_secrets("azure", vault_url=vault, ca_file=ca_file, credentials=given)


def _forget(
    config: FleetConfig, plans: tuple[CellPlan, ...], keys_path: Path, credentials: Mapping[str, Any] | None
) -> list[str]:
    left = []
    for plan in plans:
        try:
            forget(keys_path, _store(config, plan, credentials), config.name, plan.name)
        except ProviderError as error:
            log.error("the secrets of cell %s are still there: %s", plan.name, error)
            left.append(plan.name)
    return left


# --- the door's address --------------------------------------------------------------------------------------------


def _listen(config: FleetConfig, keys_path: Path) -> tuple[str, int]:
    """Port 0 is any that is free, but the same one after a start: heads that run know no other."""
    host, _, port = config.controller.listen.rpartition(":")
    last = keys_path / "door.port"
    number = int(last.read_text()) if port == "0" and last.exists() else int(port)
    return host.strip("[]"), number


def _names(config: FleetConfig, host: str) -> tuple[str, ...]:
    named = urlsplit(config.controller.url).hostname
    return tuple(dict.fromkeys(name for name in (named, _own_address(host), "127.0.0.1", "localhost") if name))


def _own_address(host: str) -> str:
    """Where others reach this machine: what it listens on, or (for all addresses) that of the way out."""
    if host not in ("0.0.0.0", "::", ""):
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])
