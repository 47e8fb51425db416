"""Contracts on the real loop, with pretend machines and scripted markets: where jobs run, what is bought, who waits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from contract_world import DEAR, JOB, OTHER, SETTINGS, SPOT, Closed, H, Voyage
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.limits import Limits
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.steer import Kept
from tradewind.autoscaler.treasury import Unlimited
from tradewind.autoscaler.view import View
from tradewind.events import LaunchRequested, StepCommitted
from tradewind.model import Capacity, Contract

DRY = {SPOT.market.key: [(1500.0, 6000.0)]}
SPOT_X1, DEAR_X1 = f"{SPOT.market.key} x 1", "on demand x 1"


def voyage(
    deadline_h: float | None = 2.0, closed: Closed | None = None, work_h: float = 1.0, **changes: object
) -> Voyage:
    stated_h = changes.pop("stated_h", work_h)
    contract = Contract(
        deadline_at_s=None if deadline_h is None else deadline_h * H,
        work_s=None if stated_h is None else stated_h * H,  # type: ignore[operator]
    )
    return Voyage(work_h, contract, closed or {}, **changes)  # type: ignore[arg-type]


def bought(v: Voyage) -> list[str]:
    """Markets in which nodes were had, in order."""
    had = [node for node in v.world.fleet.nodes.values() if node.launched_at_s is not None]
    return [node.offer.market.key for node in had]


def kept_by(v: Voyage) -> Kept:
    assert v.world.loop.view is not None
    return v.world.loop.view.kept


# --- stories --------------------------------------------------------------------------------------------------------


def test_spot_while_there_is_some_and_on_demand_in_time_when_it_runs_dry() -> None:
    v = voyage(closed=DRY).run(3 * H)
    assert v.ended_s is not None
    assert v.ended_s <= 2 * H
    assert v.choices[:2] == [SPOT_X1, "waits for spot"]
    assert v.choices[-1] == DEAR_X1
    assert bought(v) == [SPOT.market.key, DEAR.market.key]
    assert "of slack" in v.decisions[0].reason
    assert v.decisions[1].alternatives, "what it beat is on record"


def test_with_plenty_of_time_nothing_is_bought_on_demand() -> None:
    v = voyage(deadline_h=6.0, closed=DRY).run(6 * H)
    assert v.ended_s is not None
    assert set(bought(v)) == {SPOT.market.key}


def test_without_slack_it_begins_on_demand() -> None:
    v = voyage(deadline_h=1.08).run(2 * H)
    assert v.choices[0] == DEAR_X1
    assert v.ended_s is not None
    assert v.ended_s <= 1.08 * H


def test_while_it_waits_its_demand_is_withheld_and_said() -> None:
    v = voyage(closed=DRY).run(1800)
    plan = v.world.loop.plan
    assert plan is not None
    assert [hold.jobs for hold in plan.holds if "waits for spot" in hold.reason] == [(JOB,)]
    assert not v.markets()


def test_back_to_spot_when_it_comes_with_the_new_node_first() -> None:
    v = voyage(deadline_h=3.0, work_h=2.0, closed={SPOT.market.key: [(0.0, 1900.0)]})
    both = False
    while v.ended_s is None and v.now_s < 3 * H:
        before = v.done
        v.tick()
        both = both or v.markets() == {SPOT.market.key, DEAR.market.key}
        assert v.done >= before, "nothing is done twice: it hands over"
    assert bought(v)[0] == DEAR.market.key
    assert SPOT.market.key in bought(v)
    assert both, "both are there while it moves"
    assert v.ended_s is not None


def test_the_safety_net_moves_a_job_off_spot_and_loses_no_work() -> None:
    """It was said to be half as long as it is: with its steps, the slack is seen to be too short for a loss."""
    v = voyage(deadline_h=1.09, work_h=1.0, stated_h=0.5)
    before = 0.0
    while v.ended_s is None and v.now_s < 2 * H:
        v.tick()
        assert v.done >= before
        before = v.done
    assert bought(v) == [SPOT.market.key, DEAR.market.key]
    assert v.ended_s is not None
    assert v.ended_s <= 1.09 * H
    drained = [node for node in v.world.fleet.nodes.values() if node.offer.market.capacity is Capacity.SPOT]
    assert drained[0].ended_at_s is not None


def test_another_spot_market_is_taken_before_on_demand() -> None:
    v = voyage(closed=DRY, offers=(SPOT, OTHER, DEAR)).run(3 * H)
    assert bought(v) == [SPOT.market.key, OTHER.market.key]
    assert v.choices == [SPOT_X1, f"{OTHER.market.key} x 1"]


def test_more_workers_when_the_deadline_asks_for_them() -> None:
    v = voyage(deadline_h=1.0, work_h=1.5, workers=(1, 2)).run(2 * H)
    assert v.ended_s is not None
    assert v.ended_s <= H
    slow = voyage(deadline_h=5.0, work_h=1.5, workers=(1, 2)).run(600)
    assert slow.world.loop.targets[JOB].workers == 1
    assert slow.choices == [SPOT_X1]


# --- who is left alone ----------------------------------------------------------------------------------------------


def test_without_a_contract_nothing_is_decided_and_nothing_changes() -> None:
    free, bound = voyage(deadline_h=None, stated_h=None, closed=DRY).run(2400), voyage(closed=DRY).run(2400)
    assert free.choices == []
    assert not free.world.fleet.paces
    assert free.markets() == {DEAR.market.key}
    assert bound.markets() == set()


def test_what_is_not_known_costs_money_and_no_deadline() -> None:
    v = voyage(deadline_h=1.5, stated_h=None, closed={SPOT.market.key: [(0.0, 9 * H)]}, reports=False).run(2 * H)
    assert v.choices == ["on demand, as fast as it can"]
    assert "not known" in v.decisions[0].reason
    assert v.ended_s is not None
    assert v.ended_s <= 1.5 * H


def test_its_steps_tell_what_nobody_said() -> None:
    v = voyage(deadline_h=4.0, stated_h=None, closed=DRY).run(4 * H)
    assert v.choices[0] == "on demand, as fast as it can"
    assert SPOT_X1 in v.choices
    assert v.ended_s is not None


def test_half_of_its_nodes_are_taken_with_notice_and_it_stays_on_spot() -> None:
    """For a moment it has fewer workers than it can run with: that is no size by which a restart could be reckoned."""
    v = Voyage(2.0, Contract(deadline_at_s=6 * H, work_s=2 * H), workers=(2, 4)).run(600)
    assert v.markets() == {SPOT.market.key}
    held = sorted(v.world.fleet.jobs[JOB].holdings)
    assert len(held) >= 2
    v.cloud.preempt(held[0], notice_s=60)
    v.run(1200)
    assert DEAR.market.key not in bought(v)
    assert all(choice.startswith(SPOT.market.key) for choice in v.choices)


def test_a_job_that_cannot_move_is_not_moved() -> None:
    v = voyage(deadline_h=1.09, work_h=1.0, stated_h=0.5, can_move=False).run(2 * H)
    assert bought(v) == [SPOT.market.key]


def test_exchange_does_not_move_it_against_its_contract() -> None:
    """Spot is cheaper, and steady: without a contract the work would go there, with this one it stays."""
    market = MarketSettings(exchange_hysteresis_s=60, exchange_horizon_s=50 * H)
    dry = {SPOT.market.key: [(0.0, 650.0)]}
    free = Voyage(1.0, Contract(), dry, settings=replace(SETTINGS, market=market)).run(2 * H)
    assert SPOT.market.key in bought(free)
    v = voyage(deadline_h=1.03, closed=dry, settings=replace(SETTINGS, market=market)).run(2 * H)
    assert bought(v) == [DEAR.market.key]


def test_work_that_is_never_to_be_moved_to_save_money_stays() -> None:
    market = MarketSettings(exchange=False)
    closed = {SPOT.market.key: [(0.0, 1900.0)]}
    v = voyage(deadline_h=3.0, work_h=2.0, closed=closed, settings=replace(SETTINGS, market=market)).run(3 * H)
    assert set(bought(v)) == {DEAR.market.key}


def test_where_limits_allow_one_node_the_old_one_goes_first() -> None:
    limits = replace(SETTINGS, limits=Limits(max_nodes=1))
    v = voyage(deadline_h=1.1, work_h=1.0, stated_h=0.5, settings=limits).run(2 * H)
    assert bought(v) == [SPOT.market.key, DEAR.market.key]
    assert v.ended_s is not None


def test_what_its_net_may_need_is_kept_free_of_the_limit() -> None:
    """On spot, the rest of what on-demand costs; while it waits, all of it; on demand, nothing."""
    dear, cheap = DEAR.price_uusd_per_h or 0, SPOT.price_uusd_per_h or 0
    limited = replace(SETTINGS, limits=Limits(max_uusd_per_h=2 * dear))
    v = voyage(closed=DRY, settings=limited).run(1200)
    assert kept_by(v) == Kept(dear - cheap, frozenset({JOB}))
    assert kept_by(v.run(1800)).uusd_per_h == dear
    assert kept_by(voyage(deadline_h=1.1, settings=limited).run(600)).uusd_per_h == 0
    assert kept_by(voyage().run(600)) == Kept()  # there is no limit


def test_nobody_waits_for_a_net_that_cannot_be_bought_or_comes_too_late() -> None:
    dear = DEAR.price_uusd_per_h or 0
    too_low = replace(SETTINGS, limits=Limits(max_uusd_per_h=dear - 1))
    assert kept_by(voyage(settings=too_low).run(1200)) == Kept(0, frozenset({JOB}))
    enough = replace(SETTINGS, limits=Limits(max_uusd_per_h=2 * dear))
    late = voyage(deadline_h=0.5, work_h=1.0, stated_h=0.1, settings=enough).run(0.6 * H)
    assert late.ended_s is None
    assert kept_by(late) == Kept(0, frozenset({JOB}))


def test_only_jobs_with_a_deadline_may_buy_with_what_is_kept() -> None:
    kept = Kept(500_000, frozenset({JOB}))
    for job_id, number in ((JOB, 1), ("other", 0)):
        need = Need(Shape.of({"GPU": 1}), 1, f"job {job_id}")
        loop = replace(SETTINGS, limits=Limits(max_uusd_per_h=1_200_000))
        view = View(0.0, loop, snapshot=RaySnapshot(()), demand=Demand((need,)), offers=(DEAR,), kept=kept)
        plan = make_plan(view)
        assert len(plan.launches) == number
        reasons = [hold.reason for hold in plan.holds]
        assert number or "less what is kept for jobs with a deadline" in reasons[0]


class Purse(Unlimited):
    def __init__(self, left_uusd: int) -> None:
        self.left = left_uusd

    def left_uusd(self) -> dict[str, int]:
        return {JOB: self.left}


def test_a_budget_alone_waits_for_spot_only_where_on_demand_would_not_be_paid() -> None:
    for left_uusd, wanted in ((5_000_000, set()), (400_000, {"waits for spot"})):
        v = Voyage(1.0, Contract(budget_uusd=left_uusd, work_s=H), DRY)
        v.world.loop.keep_within(Purse(left_uusd))
        v.run(2400)
        assert set(v.choices) & {"waits for spot"} == wanted


def test_a_budget_pays_for_on_demand_at_a_smaller_size_and_nobody_waits() -> None:
    """Two workers on demand would cost 1.23 dollars, one 1.08: the budget lies between."""
    v = Voyage(1.0, Contract(budget_uusd=1_180_000, work_s=H), {SPOT.market.key: [(0.0, 9 * H)]}, workers=(1, 2))
    v.world.loop.keep_within(Purse(1_180_000))
    v.run(600)
    assert v.choices[:2] == [SPOT_X1, DEAR_X1], "spot is asked for, and refuses"
    assert "pays for on-demand" in v.decisions[1].reason


def test_a_deadline_that_is_not_paid_gives_way_and_the_record_says_so() -> None:
    """Spot runs dry, and half of the work on demand is all that could be paid: it waits for spot, and is late."""
    v = Voyage(
        1.0, Contract(deadline_at_s=1.6 * H, budget_uusd=500_000, work_s=H), {SPOT.market.key: [(600.0, 2.0 * H)]}
    )
    v.world.loop.keep_within(Purse(500_000))
    v.run(4 * H)
    assert DEAR.market.key not in bought(v)
    assert "waits for spot, the deadline gives way to the budget" in v.choices
    assert v.ended_s is not None
    assert v.ended_s > 1.6 * H


def test_first_steps_are_taken_before_anybody_waits() -> None:
    """The job is four times as long as it is said to be. By its word it could wait for half the day."""
    closed = {SPOT.market.key: [(0.0, 9 * H)]}
    v = voyage(deadline_h=3.0, work_h=2.0, stated_h=0.5, closed=closed).run(4 * H)
    assert v.choices[:2] == [SPOT_X1, DEAR_X1], "spot is asked for, and refuses"
    assert "first steps" in v.decisions[1].reason
    assert v.ended_s is not None
    assert v.ended_s <= 3.0 * H


def test_who_loses_his_machine_before_his_first_step_is_safe_the_next_time() -> None:
    closed = {SPOT.market.key: [(40.0, 400.0)]}
    v = voyage(deadline_h=2.6, work_h=2.0, stated_h=0.5, closed=closed).run(3 * H)
    assert v.choices[:2] == [SPOT_X1, DEAR_X1]
    assert "before its first steps" in v.decisions[1].reason
    assert v.ended_s is not None
    assert v.ended_s <= 2.6 * H


def test_steps_that_never_say_how_many_there_are_leave_it_to_what_was_stated() -> None:
    v = voyage(deadline_h=3.0, stated_h=1.0, closed=DRY, can_move=False).run(1800)
    assert v.choices == [SPOT_X1, "waits for spot"], "it cannot move and may never tell: what was stated is believed"
    assert "rests on the 1h00m of work that were stated" in v.decisions[0].reason


def test_a_job_whose_steps_are_taken_keeps_its_node_while_it_ends() -> None:
    v = voyage(deadline_h=4.0, work_h=0.1).run(200)
    job = v.world.fleet.jobs[JOB]
    last = StepCommitted(
        at_s=v.world.clock.now_s(),
        job_id=JOB,
        attempt=9,
        sequence=999,
        began_s=v.world.clock.now_s() - 1,
        first_step=job.step + 1,
        last_step=v.total_steps,
        workers=1,
        samples=1,
        total_steps=v.total_steps,
    )
    v.world.record(last)
    for _ in range(10):
        v.world.loop.tick()
        v.world.clock.sleep(20.0)
    assert v.choices[-1] == "ends where it is"
    assert v.markets() == {SPOT.market.key}
    assert not v.ray.drains


# --- laws -----------------------------------------------------------------------------------------------------------

_SPELLS = st.lists(st.tuples(st.integers(0, 9000), st.integers(60, 4000)), max_size=4)


def keeps(spells: list[tuple[int, int]], factor: float, stated: float | None) -> None:
    closed = {SPOT.market.key: [(float(start), float(start + length)) for start, length in spells]}
    blank = voyage(work_h=0.6)
    allowed_s = blank.all_on_demand_s() * factor
    stated_h = None if stated is None else stated * 0.6
    v = voyage(allowed_s / H, closed, work_h=0.6, stated_h=stated_h).run(allowed_s + H)
    assert v.ended_s is not None
    assert v.ended_s <= allowed_s


@pytest.mark.parametrize(
    ("spells", "factor", "stated"),
    [
        ([(0, 9999)], 1.0, 1.0),
        ([(400, 9999)], 1.2, None),
        ([(300, 500), (1500, 9000)], 1.5, 2.0),
        ([(0, 9999)], 1.02, 0.5),
        ([(60, 9999)], 1.2, 0.2),
    ],
)
def test_deadlines_are_kept(spells: list[tuple[int, int]], factor: float, stated: float | None) -> None:
    keeps(spells, factor, stated)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(_SPELLS, st.sampled_from([1.0, 1.02, 1.1, 1.2, 1.5, 2.5]), st.sampled_from([None, 1.0, 2.0]))
def test_a_deadline_that_on_demand_would_keep_is_kept(
    spells: list[tuple[int, int]], factor: float, stated: float | None
) -> None:
    """Whatever the market does, where on-demand from the first tick on would be in time. The work may have been left
    out or overstated."""
    keeps(spells, factor, stated)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(_SPELLS, st.sampled_from([1.2, 1.35, 1.5, 2.5, 5.0]), st.sampled_from([0.1, 0.25, 0.5, 0.8]))
def test_understated_work_costs_no_deadline_that_has_room_for_two_starts(
    spells: list[tuple[int, int]], factor: float, stated: float
) -> None:
    """Its first steps tell. A spot machine may be lost before that, so slack for two starts is what it takes."""
    keeps(spells, factor, stated)


def restarts_change_nothing(spells: list[tuple[int, int]], restarts: list[int]) -> None:
    closed = {SPOT.market.key: [(float(start), float(start + length)) for start, length in spells]}
    through = voyage(1.4, closed, work_h=0.6).run(2 * H)
    again = voyage(1.4, closed, work_h=0.6).run(2 * H, [float(at_s) for at_s in restarts])
    assert [(e.at_s, e.reason) for e in again.decisions] == [(e.at_s, e.reason) for e in through.decisions]
    assert again.ended_s == through.ended_s
    folded, live = FleetState.fold(again.world.events), again.world.fleet
    assert (folded.paces, folded.spells, folded.courses) == (live.paces, live.spells, live.courses)


def test_a_new_controller_changes_nothing() -> None:
    restarts_change_nothing([(700, 1300)], [650, 900])


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(_SPELLS, st.lists(st.integers(100, 5000), min_size=1, max_size=3))
def test_a_new_controller_in_the_middle_changes_nothing(spells: list[tuple[int, int]], restarts: list[int]) -> None:
    restarts_change_nothing(spells, restarts)


def test_nodes_say_for_whom_they_were_bought() -> None:
    v = voyage().run(100)
    launches = [event for event in v.world.events if isinstance(event, LaunchRequested)]
    assert [event.jobs for event in launches] == [(JOB,)]
