"""The same code decides in a simulated world and on the local cloud: with the same scripted market, the same decisions.

On one side contract_sim.py, which has no loop at all; on the other the real loop with the real local cloud (its books,
its market script, its refusals and preemptions), on machines that are pretended. The simulator that ships
(`tradewind simulate`) is a third one: it sees whether a market has machines, where a fleet must ask, and it knows the
work, where a fleet learns it; so the moments differ, and the places must not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from contract_sim import Sim
from contract_world import DEAR, OTHER, SETTINGS, SPOT, Closed, H, Voyage

from tradewind.autoscaler.providers.base import CloudNode, CloudState
from tradewind.autoscaler.providers.local import LocalCloud
from tradewind.autoscaler.providers.local_machines import PretendMachines
from tradewind.autoscaler.providers.local_market import Action, MarketEvent, MarketScript
from tradewind.autoscaler.simulate.contestants import CONTESTANTS
from tradewind.autoscaler.simulate.engine import Setting, Simulation
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.physics import Physics
from tradewind.autoscaler.simulate.place import ANY_NUMBER, Venue
from tradewind.autoscaler.simulate.steps import Steps
from tradewind.autoscaler.testing import World
from tradewind.events import NodeLaunched
from tradewind.model import Contract, Offer

BOOT_S = 12.0


class LocalMarket(LocalCloud):
    """The local cloud, as FakeRay sees its machines."""

    start_s, boot_s = 0.0, BOOT_S

    def alive(self) -> list[CloudNode]:
        return [node for node in self.list_nodes() if node.state is not CloudState.GONE]

    def booted(self) -> list[CloudNode]:
        return [node for node in self.alive() if node.state is CloudState.RUNNING]


def script_of(closed: Closed) -> MarketScript:
    events = [
        event
        for key, spells in closed.items()
        for start, end in spells
        for event in (
            MarketEvent(at_s=start, action=Action.STOCKOUT, market=key, for_s=end - start),
            MarketEvent(at_s=start, action=Action.PREEMPT, market=key),
        )
    ]
    return MarketScript(launch_delay_s=(BOOT_S, BOOT_S), events=sorted(events, key=lambda event: event.at_s))


class LocalVoyage(Voyage):
    folder: Path

    def __post_init__(self) -> None:
        super().__post_init__()
        clock = self.world.clock
        cloud = LocalMarket(
            self.folder,
            "test",
            self.offers,
            script_of(self.closed),
            clock=clock.now_s,
            machines=PretendMachines(),
            watch=False,
        )
        log, self.market = self.world.log, cloud
        clouds = {offer.market.cloud: cloud for offer in self.offers}
        self.world = World(self.offers, self.settings, clock, log, self.world.wishes, clouds=clouds)  # type: ignore[arg-type]
        self.cloud, self.ray = cloud, self.world.ray  # type: ignore[assignment]

    def _weather(self) -> None:
        self.market.step()


def on_local_cloud(
    folder: Path, work_h: float, contract: Contract, closed: Closed, offers: tuple[Offer, ...]
) -> Voyage:
    LocalVoyage.folder = folder
    return LocalVoyage(work_h, contract, closed, offers=offers)


A, B = SPOT.market.key, OTHER.market.key
CASES = {
    "runs dry half-way": (1.0, 2.0, {A: [(1500.0, 9 * H)]}, (SPOT, DEAR)),
    "comes back": (1.0, 3.0, {A: [(1000.0, 3500.0)]}, (SPOT, DEAR)),
    "nothing at first": (1.0, 1.8, {A: [(0.0, 2600.0)]}, (SPOT, DEAR)),
    "no slack": (1.0, 1.05, {A: [(400.0, 900.0)]}, (SPOT, DEAR)),
    "two markets": (1.0, 1.7, {A: [(900.0, 4000.0)], B: [(2000.0, 9 * H)]}, (SPOT, OTHER, DEAR)),
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_market_brings_the_same_decisions(name: str, tmp_path: Path) -> None:
    work_h, deadline_h, closed, offers = CASES[name]
    contract = Contract(deadline_at_s=deadline_h * H, work_s=work_h * H)
    there = on_local_cloud(tmp_path / "cloud", work_h, contract, closed, offers).run(4 * H)
    here = Sim(work_h, contract, closed, offers).run(4 * H)
    assert here.told == [(event.at_s - there.began_s, event.reason) for event in there.decisions]
    assert here.told
    assert here.ended_s is not None
    assert there.ended_s is not None
    assert max(here.ended_s, there.ended_s) <= deadline_h * H


# --- the simulator that ships -----------------------------------------------------------------------------------------

PHYSICS = Physics(boot_s=BOOT_S, boot_spread=0.0, notice_s=0.0, restart_s=30.0, checkpoint_s=100.0)
SLACK = {
    name: case for name, case in CASES.items() if name != "no slack"
}  # 5 % more work in a fleet, for safety's sake
SLACK |= {
    "little slack": (1.0, 1.4, {A: [(400.0, 9 * H)]}, (SPOT, DEAR)),
    "comes and goes": (2.0, 5.0, {A: [(1000.0, 3500.0), (5000.0, 7000.0), (9000.0, 12000.0)]}, (SPOT, DEAR)),
    "never anything": (1.0, 2.0, {A: [(0.0, 9 * H)], B: [(0.0, 9 * H)]}, (SPOT, OTHER, DEAR)),
}


def stock_of(spells: Sequence[tuple[float, float]]) -> Steps:
    changes = [change for start, end in spells for change in ((start, 0), (end, ANY_NUMBER))]
    return Steps.of([(0.0, ANY_NUMBER), *changes], 30 * 86400.0)


def simulated_places(work_h: float, deadline_h: float, closed: Closed, offers: tuple[Offer, ...]) -> list[str]:
    venues = [Venue(offer, stock_of(closed.get(offer.market.key, ()))) for offer in offers]
    jobs = iter([SimJob(0.0, work_h * H, 1, deadline_h * H)])
    simulation = Simulation(Setting(venues, SETTINGS, PHYSICS, tick_s=20.0), jobs, CONTESTANTS["contract"])
    found: list[str] = []
    assert simulation.contracts is not None
    simulation.contracts.on_course = lambda run, _now_s: found.append(run.where)
    tally = simulation.run()
    assert tally.total().misses == 0
    return [place for place in found if place]


@pytest.mark.parametrize("name", SLACK)
def test_the_simulator_that_ships_buys_the_same_machines_in_the_same_order(name: str, tmp_path: Path) -> None:
    work_h, deadline_h, closed, offers = SLACK[name]
    contract = Contract(deadline_at_s=deadline_h * H, work_s=work_h * H)
    fleet = on_local_cloud(tmp_path / "cloud", work_h, contract, closed, offers).run(6 * H)
    sold = [event.launch_id for event in fleet.world.events if isinstance(event, NodeLaunched)]
    places = [fleet.world.fleet.nodes[launch_id].offer.market.key for launch_id in sold]
    assert places == simulated_places(work_h, deadline_h, closed, offers)
