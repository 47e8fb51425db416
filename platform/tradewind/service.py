"""The controller as a process: `python -m tradewind.service --home H --fleet F [--config fleet.yaml]`.

Wires the parts of a fleet (on this machine, or in clouds), serves them over HTTP, and ends them in order on SIGTERM,
Ctrl-C or `tradewind down`. A controller that was killed leaves heads and nodes running; the next one adopts them.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tradewind import __version__
from tradewind.agent import Agent, time_to_save_s
from tradewind.autoscaler.beside import Threads
from tradewind.autoscaler.clock import SystemClock
from tradewind.autoscaler.loop import Loop
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_fleets import clean_up
from tradewind.autoscaler.providers.local_market import Action, MarketEvent, MarketScript
from tradewind.autoscaler.providers.local_processes import write_atomically
from tradewind.autoscaler.providers.raylets import LocalHead, default_base
from tradewind.autoscaler.ray_state import RayState
from tradewind.autoscaler.view import LoopSettings
from tradewind.autoscaler.wanted import lost_demand
from tradewind.cells.cell import Cell
from tradewind.cells.folders import DIGEST_SCHEME, pack_folder
from tradewind.cells.route import Router
from tradewind.config import FleetConfig, load_fleet
from tradewind.controller import STOP_TIMEOUT_S, Controller
from tradewind.cost import catalog
from tradewind.cost.budget import Budgets
from tradewind.cost.clean_hours import CleanHours
from tradewind.cost.grid_file import read_grid
from tradewind.cost.shop import stale_warnings
from tradewind.errors import TradewindError
from tradewind.events import JobStateChanged
from tradewind.fleet_offers import limits_of, offers_of
from tradewind.home import FleetHome
from tradewind.journal import Journal
from tradewind.model import LOCAL_CELL, STORAGE_ENV
from tradewind.rests import Rests
from tradewind.server import create_app, serve
from tradewind.states import JobState
from tradewind.store import EventLog

log = logging.getLogger(__name__)

CLOUD_END_TIMEOUT_S = 600.0  # machines with accelerators take minutes to end
INTERRUPTED = 130  # the exit status after Ctrl-C, by custom


# --- from the fleet file to the parts; pure ----------------------------------------------------------------------


def script_of(config: FleetConfig) -> MarketScript:
    local = config.local
    events = [
        MarketEvent(
            at_s=step.at_s,
            action=Action(step.do),
            market=step.market,
            notice_s=step.notice_s,
            count=step.count,
            for_s=step.for_s,
            price_factor=step.price_factor or 1.0,
        )
        for step in local.steps
    ]
    return MarketScript(
        seed=local.seed,
        launch_delay_s=local.launch_delay_s,
        boot_failure_rate=local.boot_failures,
        hazard_per_h=local.hazards_per_h,
        notice_s=local.notice_s,
        stock=local.stock,
        events=events,
    )


def settings_of(config: FleetConfig, head_address: str) -> LoopSettings:
    timing, forecast = config.timing, config.forecast
    return LoopSettings(
        fleet=config.name,
        head_address=head_address,
        limits=limits_of(config),
        idle_timeout_s=timing.idle_timeout_s,
        min_node_life_s=timing.min_node_life_s,
        boot_timeout_s=timing.boot_timeout_s,
        look_deadline_s=timing.look_deadline_s,
        launch_deadline_s=timing.launch_deadline_s,
        end_deadline_s=timing.end_deadline_s,
        buy_ahead=forecast.buy_ahead,
        forecast_step_s=forecast.step_s,
        usual_boot_s=forecast.usual_boot_s,
        waiting_factor=forecast.waiting_factor,
        spare_timeout_s=forecast.spare_timeout_s,
        dry_run=config.dry_run,
        market=MarketSettings(
            usual_hazard_per_h=config.market.usual_hazard_per_h,
            lost_s_per_preemption=config.market.lost_per_preemption_s,
            data_region=config.market.data_region,
            egress_uusd_per_h=config.market.egress_uusd_per_h,
            exchange=config.market.move_work,
            exchange_hysteresis_s=config.market.steady_s,
            exchange_horizon_s=config.market.horizon_s,
            max_share=config.market.max_share,
        ),
        placement_groups=config.placement.groups == "auto",
    )


def digest_of(config: FleetConfig) -> str:
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:16]


def budgets_of(config: FleetConfig) -> Budgets:
    given = config.budgets
    monthly, tenants = given.per == "month", dict(given.tenants_uusd)
    return Budgets(given.fleet_uusd, tenants, monthly, given.reserve_s, given.horizon_s)


def rests_of(config: FleetConfig, journal: Journal, cells: Iterable[Cell] = ()) -> Rests:
    given = config.carbon
    if given.grid is None:
        return Rests(journal)
    path = Path(given.grid).expanduser()
    read_grid(path, given.column)  # a mistake in it is told at the start, not in the log of a night
    wish = CleanHours(given.restart_s, given.margin_s, dict(given.zones), given.zone)

    def knows(job_id: str) -> bool:
        return any(cell.agent.knows_of_rest(job_id) for cell in cells)

    return Rests(journal, wish, path, given.column, knows=knows)


def local_root(place: FleetHome) -> Path:
    """The fleet's Ray files. Short, since the sockets below it must fit into 107 bytes; one for each home and fleet."""
    digest = hashlib.sha256(str(place.folder.resolve()).encode()).hexdigest()[:8]
    return default_base() / digest


# --- life of the process -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """The cells of a fleet, and what differs between one on this machine and one in clouds."""

    cells: Mapping[str, Cell]
    simulated: bool
    pack: Callable[[Path], str] | None = None
    end_timeout_s: float = STOP_TIMEOUT_S
    clean_up: Callable[[], Sequence[str]] = tuple  # when no node is left
    watch: Callable[[], None] = lambda: None  # again and again, while it runs


def run(place: FleetHome, config: FleetConfig, *, ephemeral: bool) -> None:
    """Everything that is opened is closed again in the opposite order, whatever happens in between."""
    parent_pid = os.getppid() if ephemeral else None
    with ExitStack() as stack:
        journal = Journal.load(stack.enter_context(EventLog.open(place.folder / "events.db")))
        gc.collect()
        gc.freeze()  # what was folded stays: of a long log, the collector would take long to look at it again and again
        if config.cloud_names:
            opened = _open_clouds(place, config, journal, stack)
        else:
            opened = _open_here(place, config, journal, stack, ephemeral=ephemeral)
        journal.record(*lost_demand(journal.fleet, opened.cells, time.time()))
        controller = Controller(
            config.name,
            journal,
            opened.cells,
            place.folder / "job-logs",
            config.timing.tick_s,
            Router(config.market.move_cell_after_s),
            simulated=opened.simulated,
            pack=opened.pack,
            end_timeout_s=opened.end_timeout_s,
            clean_up=opened.clean_up,
            config_digest=digest_of(config),
            budgets=budgets_of(config),
        )
        rests = rests_of(config, journal, opened.cells.values())
        controller.intensity = rests.intensity
        for cell in opened.cells.values():
            cell.loop.resting = rests.resting
        server = stack.enter_context(serve(create_app(controller, place.make_token())))
        controller.start()
        place.announce(server.url, os.getpid(), __version__)
        stack.callback(place.withdraw)
        log.info("fleet %s at %s, cells: %s", config.name, server.url, ", ".join(opened.cells))
        _until_ended(controller, parent_pid, opened.watch)


def _open_clouds(place: FleetHome, config: FleetConfig, journal: Journal, stack: ExitStack) -> Opened:
    from tradewind.cells.cloud_cells import open_cloud_cells
    from tradewind.clouds.cells import is_emulated

    settings = settings_of(config, "")
    for warning in stale_warnings(catalog.load(), time.time()):
        log.warning("%s", warning)
    found = stack.enter_context(open_cloud_cells(config, place.folder, journal, settings))
    log.info("the cells' agents call at %s", found.url)
    folders = place.folder / "folders"
    return Opened(
        found.cells,
        simulated=is_emulated(config),
        pack=lambda folder: f"{DIGEST_SCHEME}{pack_folder(folder, folders)}",
        end_timeout_s=CLOUD_END_TIMEOUT_S,
        clean_up=found.forget,
    )


def _open_here(place: FleetHome, config: FleetConfig, journal: Journal, stack: ExitStack, *, ephemeral: bool) -> Opened:
    for folder in clean_up():
        log.info("cleaned up after a fleet whose controller died: %s", folder)
    cloud = LocalCloud(
        local_root(place),
        config.name,
        offers_of(config),
        script_of(config),
        cpus_per_node=config.local.cpus_per_node,
        ephemeral=ephemeral,
    )
    stack.callback(cloud.close)
    storage = place.folder / "storage"
    head = _head(cloud, journal, storage, dry_run=config.dry_run)
    os.environ.update(head.env)  # before Ray is imported: its token is read then
    fleet, clouds = journal.fleet.cell(LOCAL_CELL), dict.fromkeys(("aws", "gcp", "azure"), cloud)
    budgets, idle_s = config.budgets, config.timing.idle_timeout_s
    save_s = time_to_save_s(budgets.reserve_s, idle_s, fleet_pays=budgets.fleet_uusd is not None)
    agent = Agent(head.gcs_address, head.dashboard_url, storage, journal.record, fleet, save_s=save_s)
    agent.connect()
    stack.callback(agent.close)
    loop = Loop(
        clock=SystemClock(),
        record=journal.record,
        fleet=fleet,
        ray=RayState(head.gcs_address),
        providers=clouds,
        prices=cloud,
        settings=settings_of(config, head.gcs_address),
        wishes=agent.wishes,
        past=(event for _, event in journal.log.read()),
        beside=Threads(),
    )
    stack.callback(loop.close)
    log.info("Ray at %s", head.gcs_address)

    def watch() -> None:
        if not head.alive:
            _start_over(head, cloud, place)

    return Opened({LOCAL_CELL: Cell(LOCAL_CELL, "local", "here", head, agent, loop, clouds)}, True, watch=watch)


def _head(cloud: LocalCloud, journal: Journal, storage: Path, *, dry_run: bool) -> LocalHead:
    """The head that a killed controller left running, or a new one; then what ran on the old one is lost or resumes."""
    head = LocalHead.adopt(cloud.root)
    if head is not None:
        return head
    journal.record(*_orphaned_jobs(journal))
    if not dry_run:
        cloud.terminate(node.launch_id for node in cloud.list_nodes())
    return LocalHead.start(cloud.root, env={STORAGE_ENV: str(storage)})  # for jobs of plain `ray job submit`


def _orphaned_jobs(journal: Journal) -> Iterator[JobStateChanged]:
    """Jobs of ours are started again by the agent and resume from their checkpoints; foreign ones cannot be."""
    for job in journal.fleet.open_jobs:
        if job.foreign:
            reason = "its Ray head ended"
            yield JobStateChanged(at_s=time.time(), job_id=job.job_id, state=JobState.FAILED, reason=reason)


def _until_ended(controller: Controller, parent_pid: int | None, watch: Callable[[], None]) -> None:
    """`down` over HTTP, SIGTERM and Ctrl-C all end the fleet in order; the answer to `down` is sent first.

    An ephemeral fleet ends with the process that started it, too, however that one ended.
    """
    asked = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked.set())
    while not controller.ended.wait(timeout=0.2):
        if asked.is_set() or (parent_pid is not None and os.getppid() != parent_pid):
            controller.shutdown()
        elif not controller.closing:
            watch()
    time.sleep(0.3)  # the answer to `down` is on its way


def _start_over(head: LocalHead, cloud: LocalCloud, place: FleetHome) -> None:
    """The head died. Ray would end this process a minute later, and cannot connect to another head before: so the same
    process begins anew, as after a kill. What is billed is in the log; jobs resume from their checkpoints."""
    log.error("the Ray head is gone: starting another one; jobs resume from their checkpoints")
    place.withdraw()
    nodes = [node.launch_id for node in cloud.list_nodes()]
    cloud.terminate(nodes)  # worth nothing without their head
    cloud.wait_terminated(nodes, STOP_TIMEOUT_S)
    head.stop(grace_s=0.0)
    logging.shutdown()
    os.execv(sys.executable, sys.orig_argv)


def remembered_config(place: FleetHome, path: Path | None) -> FleetConfig:
    """The fleet file, kept beside the log, so that a start without one goes on with the last; else the defaults."""
    kept = place.folder / "fleet.yaml"
    if path is None:
        return load_fleet(kept) if kept.exists() else FleetConfig(name=place.fleet)
    config = load_fleet(path)
    place.make()
    if path.resolve() != kept.resolve():
        write_atomically(kept, path.read_text())
    return config


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="tradewind.service", description=__doc__)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--config", type=Path, help="a fleet file; left out: the defaults")
    parser.add_argument("--dry-run", action="store_true", help="look and decide, but launch and end nothing")
    parser.add_argument("--ephemeral", action="store_true", help="a fleet that is worth nothing without its controller")
    given = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)  # while it starts; later `_until_ended` hears both
    try:
        place = FleetHome(given.home, given.fleet)
        catalog.use(given.home / catalog.FOLDER)
        config = remembered_config(place, given.config)
        config = config.model_copy(update={"dry_run": True}) if given.dry_run else config
        run(place, config, ephemeral=given.ephemeral)
    except TradewindError as error:
        log.error("%s", error)
        return 1
    except KeyboardInterrupt:
        log.info("interrupted while starting; what was started is ended")
        return INTERRUPTED
    return 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
