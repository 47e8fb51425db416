"""Whole fleets in the simulator: figures that can be reckoned by hand, and what must hold in any world."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Plan
from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.simulate.contestants import CONTESTANTS, contestants
from tradewind.autoscaler.simulate.contracts import Growth
from tradewind.autoscaler.simulate.engine import Setting, Simulation, simulate
from tradewind.autoscaler.simulate.job import SimJob
from tradewind.autoscaler.simulate.place import ANY_NUMBER, Node, Venue
from tradewind.autoscaler.simulate.remembered import Remembered
from tradewind.autoscaler.simulate.steps import Steps
from tradewind.autoscaler.simulate.tally import Tally
from tradewind.autoscaler.simulate.workload import Workload, spells
from tradewind.autoscaler.simulate.world import Physics, World
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.errors import ConfigError, TradewindError
from tradewind.model import Capacity

H = 3600.0
PHYSICS = Physics(boot_s=180, boot_spread=0, notice_s=120, save_s=15, restart_s=30, checkpoint_s=600)
LOOP = LoopSettings(fleet="simulated", limits=Limits(max_nodes=50, launches_per_minute=None), idle_timeout_s=600)
DEAR = Venue(make_offer("aws/us-east-1a/g6", usd_per_h=10.0, gpus=8, cpus=64, capacity=Capacity.ON_DEMAND))


def spot(zone: str = "us-east-1a", stock: Steps | None = None, usd_per_h: float = 3.0) -> Venue:
    return Venue(make_offer(f"aws/{zone}/g6", usd_per_h=usd_per_h, gpus=8, cpus=64), stock)


def world(*venues: Venue, physics: Physics = PHYSICS, loop: LoopSettings = LOOP) -> Setting:
    return Setting(venues, loop, physics)


def usd(tally: Tally) -> float:
    return tally.total().cost / 3.6e6 / 1e6


def open_until(hours: float, days: float = 30.0) -> Steps:
    """Then closed."""
    return Steps.of([(0.0, ANY_NUMBER), (hours * H, 0)], days * 86400.0)


# --- by hand ---


def test_a_job_waits_for_the_tick_and_the_boot_and_pays_until_its_end() -> None:
    tally = simulate(world(DEAR), [SimJob(30.0, 3600.0, 4)], CONTESTANTS["reactive"])
    whole = tally.total()
    assert whole.wait_s == pytest.approx(210.0)  # 30 s to the tick, 180 s to boot
    assert whole.completion_s == pytest.approx(3810.0)
    assert usd(tally) == pytest.approx(10.0 * (180 + 3600) / H)  # the simulation ends with its last job
    assert whole.useful_gpu_s == pytest.approx(4 * 3600)
    assert whole.lost_gpu_s == pytest.approx(0.0)


def test_what_a_notice_lets_a_job_save_is_not_done_again() -> None:
    """Spot closes after an hour: the job saves, goes on elsewhere, and pays a restart and no work."""
    jobs = [SimJob(0.0, 2 * H, 8)]
    tally = simulate(world(spot(stock=open_until(1.0)), DEAR), jobs, CONTESTANTS["reactive"])
    whole = tally.total()
    assert (tally.preemptions, tally.restarts) == (1, 1)
    assert whole.useful_gpu_s == pytest.approx(8 * 2 * H)
    assert whole.lost_gpu_s == pytest.approx(8 * 30.0)
    assert 0 < whole.spot_cost < whole.cost


def test_without_a_notice_the_work_since_the_last_checkpoint_is_done_again() -> None:
    physics = replace(PHYSICS, notice_s=0.0)
    tally = simulate(
        world(spot(stock=open_until(1.0)), DEAR, physics=physics), [SimJob(0.0, 2 * H, 8)], CONTESTANTS["reactive"]
    )
    # It began after 180 s of boot, so it had worked for 57 minutes: the last 7 of them were not saved.
    assert tally.total().lost_gpu_s == pytest.approx(8 * (420.0 + 30.0))
    assert tally.total().useful_gpu_s == pytest.approx(8 * 2 * H)


def test_a_replacement_is_bought_while_the_notice_runs() -> None:
    with_notice = simulate(
        world(spot(stock=open_until(1.0)), DEAR, physics=replace(PHYSICS, notice_s=600.0)),
        [SimJob(0.0, 2 * H, 8)],
        CONTESTANTS["reactive"],
    )
    assert with_notice.total().completion_s == pytest.approx(2 * H + 180.0 + 30.0, abs=1.0)  # one boot, one restart


STAYING = replace(LOOP, market=replace(LOOP.market, exchange=False))


def test_who_fell_back_to_on_demand_goes_back_to_spot_when_it_returns() -> None:
    """Spot is gone from 1 h to 3 h. The job moves new node first: it stands still for a hand-over, and saves most of
    what the rest would have cost on demand."""
    back = Steps.of([(0.0, ANY_NUMBER), (H, 0), (3 * H, ANY_NUMBER)], 30 * 86400.0)
    setting = world(spot(stock=back), DEAR)
    moved, stayed = (
        simulate(each, [SimJob(0.0, 12 * H, 8)], CONTESTANTS["reactive"])
        for each in (setting, replace(setting, loop=STAYING))
    )
    assert (moved.moves, moved.restarts, stayed.moves) == (1, 1, 0)
    whole = moved.total()
    assert whole.useful_gpu_s == pytest.approx(8 * 12 * H)
    assert whole.lost_gpu_s == pytest.approx(8 * (30.0 + LOOP.market.handover_s))  # one restart, one hand-over
    assert usd(stayed) > 0.9 * 10.0 * 11  # on demand to the end
    assert usd(moved) < 10.0 * 5 + 3.0 * 10
    assert moved.end_s == pytest.approx(stayed.end_s + LOOP.market.handover_s)


def test_two_half_empty_nodes_become_one() -> None:
    """Four jobs on two nodes; on each of them one ends."""
    jobs = [SimJob(0.0, 20 * H, 4), SimJob(0.0, H, 4), SimJob(0.0, 20 * H, 4), SimJob(0.0, H, 4)]
    moved = simulate(world(DEAR), jobs, CONTESTANTS["on-demand"])
    stayed = simulate(world(DEAR, loop=STAYING), jobs, CONTESTANTS["on-demand"])
    assert (moved.moves, moved.launches, stayed.moves) == (1, 2, 0)
    assert usd(moved) < 0.65 * usd(stayed)


def test_stock_that_is_told_by_number_is_never_passed() -> None:
    tally = simulate(world(spot(stock=Steps.always(2)), DEAR), [SimJob(0.0, H, 32)], CONTESTANTS["spot-first"])
    assert tally.refusals > 0
    assert tally.launches == 4
    assert 0 < tally.total().spot_cost < tally.total().cost


def test_a_price_that_changes_is_paid_from_then_on() -> None:
    changing = replace(spot(), price=Steps.of([(0.0, 3_000_000), (1800.0, 6_000_000)], 30 * 86400.0))
    tally = simulate(world(changing), [SimJob(0.0, H, 8)], CONTESTANTS["reactive"])
    assert usd(tally) == pytest.approx(3.0 * 0.5 + 6.0 * (H + 180.0 - 1800.0) / H)


def test_a_job_larger_than_the_limits_is_said_not_to_fit() -> None:
    tally = simulate(world(DEAR), [SimJob(0.0, H, 8), SimJob(1.0, H, 8 * 51)], CONTESTANTS["reactive"])
    assert (tally.never_fit, tally.largest_gpus, tally.total().jobs) == (1, 408, 1)


def test_jobs_that_can_never_start_are_an_error_not_an_endless_run() -> None:
    closed = spot(stock=Steps.of([(0.0, 0), (60.0, 1), (120.0, 0)], 86400.0))
    with pytest.raises(TradewindError, match="can never start"):
        simulate(world(closed), [SimJob(0.0, H, 64)], CONTESTANTS["reactive"])


def test_a_job_that_is_never_bought_for_is_named_where_no_market_ever_changes() -> None:
    """The cheapest machines are small, and six of them are all that the limit allows."""
    small = Venue(make_offer("aws/us-east-1b/g1", usd_per_h=0.5, gpus=1, cpus=8))
    few = replace(LOOP, limits=Limits(max_nodes=6, launches_per_minute=None))
    with pytest.raises(TradewindError, match="waits for 8 GPUs; policies have bought 6 GPUs"):
        simulate(world(small, DEAR, loop=few), [SimJob(0.0, H, 8)], CONTESTANTS["reactive"])


def test_nothing_to_buy_is_an_error() -> None:
    with pytest.raises(TradewindError, match="can buy nothing"):
        simulate(world(spot()), [SimJob(0.0, H)], CONTESTANTS["on-demand"])


# --- policies ---


def test_unknown_policies_are_named_with_those_that_are_known() -> None:
    with pytest.raises(ConfigError, match="there is no such policy; known are reactive, forecast") as error:
        contestants(["reactive", "magic"])
    assert "magic" in str(error.value)
    with pytest.raises(ConfigError, match="twice"):
        contestants(["reactive", "reactive"])
    with pytest.raises(ConfigError, match="names no policy"):
        contestants([])


def limited_to(usd_per_h: int, **more: object) -> LoopSettings:
    limits = Limits(max_uusd_per_h=usd_per_h * 1_000_000, launches_per_minute=None, **more)  # type: ignore[arg-type]
    return replace(LOOP, limits=limits)


@pytest.mark.parametrize("usd_per_h", [20, 30])
def test_work_without_a_deadline_leaves_room_for_the_safety_net(usd_per_h: int) -> None:
    """No spot. Two long jobs would take both nodes that $20 an hour pay for, before the third must begin on demand."""
    never = spot(stock=Steps.of([(0.0, 0), (200 * H, ANY_NUMBER)], 300 * 86400.0))
    jobs = [SimJob(0.0, 4 * H, 8, 12 * H), SimJob(60.0, 30 * H, 8), SimJob(120.0, 30 * H, 8)]
    tally = simulate(world(never, DEAR, loop=limited_to(usd_per_h)), jobs, CONTESTANTS["contract"])
    assert tally.total().misses == 0
    assert (tally.total().wait_s > 15 * H) == (usd_per_h == 20)  # the last one waits until the first is done


def test_a_contract_counts_on_machines_of_which_the_limits_leave_enough() -> None:
    """The cheapest on-demand market, and a spot market that always has machines, may have one node each."""
    few = replace(DEAR, offer=make_offer("gcp/us-central1-a/g2", usd_per_h=5.0, gpus=8, capacity=Capacity.ON_DEMAND))
    scarce = Venue(make_offer("gcp/us-central1-a/g2", usd_per_h=2.0, gpus=8))
    loop = limited_to(100, rules=(Rule(Part(cloud="gcp"), max_nodes=1),))
    tally = simulate(world(scarce, few, DEAR, loop=loop), [SimJob(0.0, 4 * H, 16, 6 * H)], CONTESTANTS["contract"])
    assert (tally.total().misses, tally.launches) == (0, 2)
    assert usd(tally) == pytest.approx(2 * 10.0 * (4 * H + 180.0) / H, rel=0.01)


def test_a_contract_leaves_markets_alone_that_others_have_filled() -> None:
    """The cheapest markets may have two nodes, and one is held for long: it was waited for until the deadline was over,
    on spot and then on demand."""
    cheap = make_offer("gcp/us-central1-a/g2", usd_per_h=2.0, gpus=8)
    dearer = make_offer("gcp/us-central1-a/g2", usd_per_h=5.0, gpus=8, capacity=Capacity.ON_DEMAND)
    few = [Venue(cheap), Venue(dearer)]
    loop = limited_to(100, rules=(Rule(Part(cloud="gcp"), max_nodes=2),))
    jobs = [SimJob(0.0, 30 * H, 8), SimJob(600.0, 2 * H, 16, 5 * H)]
    for venues in ([*few, spot(), DEAR], [*few, DEAR]):
        tally = simulate(world(*venues, loop=loop), jobs, CONTESTANTS["contract"])
        assert tally.total().misses == 0


def test_the_contract_waits_for_spot_while_it_can_and_is_in_time() -> None:
    """Closed for the first four hours. With 12 h for 4 h of work it waits; with 5 h it does not."""
    late = Steps.of([(0.0, 0), (4 * H, ANY_NUMBER)], 30 * 86400.0)
    patient = simulate(world(spot(stock=late), DEAR), [SimJob(0.0, 4 * H, 8, 12 * H)], CONTESTANTS["contract"])
    hurried = simulate(world(spot(stock=late), DEAR), [SimJob(0.0, 4 * H, 8, 5 * H)], CONTESTANTS["contract"])
    for tally in (patient, hurried):
        assert tally.total().misses == 0
    assert patient.total().spot_cost == patient.total().cost
    assert hurried.total().spot_cost < 0.5 * hurried.total().cost


def test_a_contract_grows_a_job_that_would_be_late_on_its_own_gpus() -> None:
    jobs = [SimJob(0.0, 4 * H, 8, 3 * H)]
    alone = simulate(world(DEAR), jobs, CONTESTANTS["contract"])
    grown = simulate(replace(world(DEAR), growth=Growth(replicas=4)), jobs, CONTESTANTS["contract"])
    assert (alone.total().misses, alone.hopeless) == (1, 1)
    assert grown.total().misses == 0


def test_a_contract_without_on_demand_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs on-demand"):
        simulate(world(spot()), [SimJob(0.0, H)], CONTESTANTS["contract"])


def test_spot_first_buys_by_list_price_and_reactive_by_what_losses_cost() -> None:
    """Spot at 96 % of the price of on-demand is dearer when losses are counted."""
    near = spot(usd_per_h=9.6)
    jobs = [SimJob(0.0, H, 8)]
    assert simulate(world(near, DEAR), jobs, CONTESTANTS["spot-first"]).total().spot_cost > 0
    hasty = replace(LOOP, market=replace(LOOP.market, usual_hazard_per_h=0.7))
    assert simulate(world(near, DEAR, loop=hasty), jobs, CONTESTANTS["reactive"]).total().spot_cost == 0


# --- what must hold in any world ---


class Watched(World):
    """Checks the world after every event."""

    most = 0  # nodes at once

    def _happen(self, *given: object) -> None:
        super()._happen(*given)  # type: ignore[arg-type]
        self.most = max(self.most, len(self.nodes))
        for place in self.places.values():
            assert len(place.nodes) <= place.stock
        for node in self.nodes.values():
            held = sum(count for run in node.runs.values() for where, count in run.held if where is node)
            assert node.joined_at_s is None or held + node.free == node.slots
            for run in node.runs.values():
                assert sum(count for _, count in run.held) == run.gpus  # all or none, and once
                assert run.bucket is None  # it does not wait as well
                assert run.where in ("", node.place.key)
        rooms = [node for node in self.nodes.values() if node.is_open]
        assert self.free_gpus == sum(node.free for node in rooms)
        runs = {id(run): run for node in self.nodes.values() for run in node.runs.values()}
        assert self.busy_gpus == sum(run.gpus for run in runs.values())
        assert self.running == len(runs)


def watched(setting: Setting, jobs: Sequence[SimJob], policy: str, seed: int = 0) -> tuple[Tally, int]:
    found = Simulation(setting, iter(jobs), CONTESTANTS[policy], seed)
    found.world.__class__ = Watched
    tally = found.run()
    return tally, getattr(found.world, "most", 0)


JOBS = st.lists(
    st.builds(
        lambda at, long, gpus, slack: SimJob(at, long, gpus, None if slack is None else at + slack * long + 3600.0),
        st.floats(0, 40_000),
        st.floats(1, 20_000),
        st.integers(1, 24),
        st.none() | st.floats(1.0, 4.0),
    ),
    max_size=12,
).map(lambda jobs: sorted(jobs, key=lambda job: job.submit_s))


@settings(deadline=None, max_examples=25)
@given(
    jobs=JOBS,
    policy=st.sampled_from(["reactive", "on-demand", "spot-first", "contract"]),
    seed=st.integers(0, 1000),
    notice_s=st.sampled_from([0.0, 10.0, 120.0]),
    nodes=st.sampled_from([2, ANY_NUMBER]),
)
def test_work_is_conserved_capacity_is_held_and_all_is_paid(
    jobs: list[SimJob], policy: str, seed: int, notice_s: float, nodes: int
) -> None:
    zones = [spot(zone, spells(f"{seed}{zone}", 2.0, 1.0, 3.0, nodes)) for zone in ("us-east-1a", "us-east-1b")]
    setting = world(*zones, DEAR, physics=replace(PHYSICS, notice_s=notice_s, boot_spread=0.2))
    tally, most = watched(setting, jobs, policy, seed)
    whole = tally.total()
    assert whole.jobs == len(jobs)  # each ends once
    assert most <= 50
    assert whole.useful_gpu_s == pytest.approx(sum(job.gpus * job.duration_s for job in jobs), rel=1e-6, abs=1e-3)
    assert whole.useful_gpu_s + whole.lost_gpu_s == pytest.approx(whole.busy_gpu_s, rel=1e-6, abs=1e-2)
    assert whole.busy_gpu_s <= whole.paid_gpu_s * (1 + 1e-6) + 1.0
    assert whole.completion_s >= sum(job.duration_s for job in jobs) - 1e-3


@settings(deadline=None, max_examples=15)
@given(jobs=JOBS, seed=st.integers(0, 1000))
def test_contracts_that_can_be_kept_are_kept(jobs: list[SimJob], seed: int) -> None:
    """By on-demand alone, asked for at once, with a tick and a boot: the policy is never worse than that."""
    zones = [spot(zone, spells(f"{seed}{zone}", 2.0, 1.0, 3.0)) for zone in ("us-east-1a", "us-east-1b")]
    tally = simulate(world(*zones, DEAR), jobs, CONTESTANTS["contract"], seed)
    assert tally.total().misses == 0


@pytest.mark.parametrize("policy", sorted(CONTESTANTS))
def test_the_same_seed_gives_the_same_simulation(policy: str) -> None:
    setting = world(spot(stock=spells("a")), spot("us-east-1b", spells("b")), DEAR, physics=Physics())
    work = Workload(60, 30.0, slack=3.0)
    first, again, other = (simulate(setting, work.jobs(4), CONTESTANTS[policy], seed) for seed in (1, 1, 2))
    assert first == again or _sums(first) == _sums(again)
    assert _sums(first) != _sums(other)  # boots take other times


class Forgetful(Simulation):
    """Makes every plan anew."""

    def _plan(self, now_s: float) -> tuple[Plan, Mapping[str, Node]]:
        self._remembered = Remembered()
        return super()._plan(now_s)


@settings(deadline=None, max_examples=20)
@given(
    jobs=JOBS,
    policy=st.sampled_from(["contract", "reactive", "spot-first"]),
    seed=st.integers(0, 1000),
    nodes=st.sampled_from([1, 2, ANY_NUMBER]),
    limits=st.builds(Limits, max_nodes=st.sampled_from([3, 50]), launches_per_minute=st.sampled_from([None, 2])),
)
def test_plans_that_are_remembered_are_those_that_would_be_made(
    jobs: list[SimJob], policy: str, seed: int, nodes: int, limits: Limits
) -> None:
    zones = [spot(zone, spells(f"{seed}{zone}", 2.0, 1.0, 3.0, nodes)) for zone in ("us-east-1a", "us-east-1b")]
    prices = Steps.of([(0.0, 10_000_000), (20 * H, 2_000_000), (40 * H, 12_000_000)], 60 * H)
    setting = world(*zones, replace(DEAR, price=prices), loop=replace(LOOP, limits=limits))
    found = [each(setting, iter(jobs), CONTESTANTS[policy], seed).run() for each in (Simulation, Forgetful)]
    assert _sums(found[0]) == _sums(found[1])


def _sums(tally: Tally) -> list[object]:
    whole = tally.total()
    return [whole.cost, whole.wait_s, whole.completion_s, whole.busy_gpu_s, tally.plans, tally.events, tally.launches]


def test_jobs_are_streamed_and_must_be_in_order() -> None:
    alive = 0

    def stream() -> Iterator[SimJob]:
        nonlocal alive
        for number in range(300):
            alive = number
            yield SimJob(number * 600.0, 300.0)

    found = Simulation(world(DEAR), stream(), CONTESTANTS["reactive"])
    found.world.advance(6000.0)
    assert alive < 15  # nobody has read on
    with pytest.raises(TradewindError, match="order of their submission"):
        simulate(world(DEAR), [SimJob(100.0, 1.0), SimJob(50.0, 1.0)], CONTESTANTS["reactive"])


def test_windows_stay_few_however_long_it_takes() -> None:
    tally = simulate(world(DEAR), [SimJob(0.0, 200 * 86400.0, 8)], CONTESTANTS["on-demand"])
    assert len(tally.windows) <= 128
    assert usd(tally) == pytest.approx(10.0 * (200 * 24 + 180 / H))


def test_a_stock_of_offers_is_made_from_the_view() -> None:
    """The view of the simulator is one that the policies' own parts take."""
    found = Simulation(world(spot(), DEAR), iter([SimJob(0.0, H, 8)]), CONTESTANTS["reactive"])
    found.world.advance(0.0)
    assert len(Stock.of(found.look(0.0)).offers) == 2
