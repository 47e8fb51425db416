"""The simulator: waits, dollars and knowledge, on traces small enough to reckon by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.expected import history_needed_s
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.simulate import (
    AfterRises,
    Clairvoyant,
    HeadRoom,
    Learned,
    Nothing,
    Scenario,
    TraceJob,
    made_up,
    replay,
)
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import Limits, LoopSettings
from tradewind.errors import TradewindError

SETTINGS = LoopSettings(
    fleet="replay",
    buy_ahead=True,
    limits=Limits(launches_per_minute=None),
    idle_timeout_s=600,
    spare_timeout_s=600,
    usual_boot_s=300,
)
ONE = Scenario(Shape.of({"GPU": 1}), (make_offer("aws/us-east-1a/g6", usd_per_h=1.0, gpus=1),), SETTINGS)
EIGHT = replace(ONE, offers=(make_offer("aws/us-east-1a/g6", usd_per_h=8.0, gpus=8, cpus=64),))


def test_a_job_waits_for_the_tick_and_the_boot() -> None:
    jobs = [TraceJob(30.0, 100.0), TraceJob(3630.0, 100.0)]
    found = replay(jobs, ONE, Nothing())
    assert found.waits_s == (330.0, 330.0)  # 30 s to the tick, 300 s to boot; the first node is gone by then
    # From 60 s: boot until 360, job until 460, idle until 1060 (the next tick is at 1080). The second is not counted.
    assert found.uusd == pytest.approx((1080 - 60) / 3600 * 1e6, abs=1)
    assert found.launches == 2


def test_a_free_node_serves_at_once() -> None:
    jobs = [TraceJob(0.0, 100.0), TraceJob(700.0, 100.0)]
    found = replay(jobs, ONE, Nothing())
    assert found.waits_s == (300.0, 0.0)
    assert found.launches == 1


def test_workers_share_a_node_and_a_large_job_takes_several() -> None:
    jobs = [TraceJob(0.0, 5000.0, 3), TraceJob(1000.0, 100.0, 5), TraceJob(2000.0, 100.0, 13)]
    found = replay(jobs, EIGHT, Nothing())
    assert found.waits_s == (300.0, 0.0, 340.0)  # at 2000 five are free, one node more brings thirteen; tick at 2040
    assert found.launches == 2


def test_head_room_serves_what_fits_into_it() -> None:
    jobs = [TraceJob(0.0, 5000.0), TraceJob(1000.0, 5000.0), TraceJob(2000.0, 100.0, 2)]
    found = replay(jobs, ONE, HeadRoom(1))
    assert found.waits_s[1] == 0.0
    assert found.waits_s[2] > 0.0


def test_a_head_room_after_rises_is_there_for_a_while() -> None:
    """The second comes within the hour after the first and is served at once; the third comes when it is over."""
    jobs = [TraceJob(0.0, 100.0), TraceJob(1800.0, 100.0), TraceJob(9000.0, 100.0)]
    found = replay(jobs, ONE, AfterRises(1, 3600.0, rise=1))
    assert found.waits_s == (300.0, 0.0, 300.0)
    assert found.node_h < replay(jobs, ONE, HeadRoom(1)).node_h
    assert replay(jobs, ONE, AfterRises(1, 3600.0, rise=2)).waits_s[1] > 0.0  # nothing rises by two


def test_the_clairvoyant_waits_for_nothing_but_the_first_tick() -> None:
    jobs = [TraceJob(100.0 + 2000.0 * number, 300.0, 1 + number % 3) for number in range(8)]
    found = replay(jobs, ONE, Clairvoyant(jobs, ONE.key, 360.0, 60.0))
    assert found.waits_s[0] > 0.0  # submitted before a node could have booted
    assert set(found.waits_s[1:]) == {0.0}
    assert found.mean_wait_s < replay(jobs, ONE, Nothing()).mean_wait_s


def test_limits_make_jobs_wait_and_never_are_passed() -> None:
    tight = replace(ONE, settings=replace(SETTINGS, limits=Limits(max_nodes=1)))
    found = replay([TraceJob(0.0, 1000.0), TraceJob(10.0, 1000.0)], tight, Nothing())
    assert found.waits_s[1] == pytest.approx(1290.0)
    assert found.launches == 1


def test_a_job_that_can_never_start_is_an_error() -> None:
    tight = replace(ONE, settings=replace(SETTINGS, limits=Limits(max_nodes=1)))
    with pytest.raises(TradewindError, match="never start"):
        replay([TraceJob(0.0, 1000.0, 2)], tight, Nothing())


def test_no_jobs_cost_nothing() -> None:
    assert replay([], ONE, Nothing()).uusd == 0


def test_the_same_seed_gives_the_same_replay() -> None:
    jobs = made_up(3, days=0.2)
    assert jobs == made_up(3, days=0.2)
    assert jobs != made_up(4, days=0.2)
    assert replay(jobs, EIGHT, Learned(SETTINGS)) == replay(jobs, EIGHT, Learned(SETTINGS))


@pytest.mark.parametrize("scenario", [ONE, EIGHT], ids=["nodes of one", "nodes of eight"])
def test_without_history_it_is_reactive_in_every_launch_and_every_end(scenario: Scenario) -> None:
    """Whatever an hour of waiting costs."""
    until_s = history_needed_s(SETTINGS) - 600.0  # the last one has started before there is a forecast
    jobs = [job for job in made_up(seed=3, days=1.0, jobs_per_day=4000) if job.submit_s < until_s]
    eager = replace(scenario, settings=replace(SETTINGS, waiting_factor=1000.0, spare_timeout_s=None))
    assert len(jobs) > 10
    found = replay(jobs, eager, Learned(eager.settings))
    assert replace(found, plans=0) == replace(replay(jobs, scenario, Nothing()), plans=0)


def test_what_is_learnt_spares_waiting() -> None:
    """Two jobs every quarter of an hour: more than half of them find a node once that is known."""
    lean = replace(ONE, settings=replace(SETTINGS, idle_timeout_s=120, waiting_factor=8))
    jobs = [TraceJob(900.0 * number + 60.0 * twin, 200.0) for number in range(48) for twin in range(2)]
    learnt = replay(jobs, lean, Learned(lean.settings))
    assert learnt.mean_wait_s < 0.6 * replay(jobs, lean, Nothing()).mean_wait_s


@settings(deadline=None, max_examples=25)
@given(
    jobs=st.lists(st.builds(TraceJob, st.floats(0, 20_000), st.floats(1, 5000), st.integers(1, 12)), max_size=15),
    head_room=st.integers(0, 3),
)
def test_every_job_starts_once_and_is_paid_for(jobs: list[TraceJob], head_room: int) -> None:
    found = replay(jobs, EIGHT, HeadRoom(8 * head_room))
    assert len(found.waits_s) == len(jobs)
    assert all(wait_s >= 0 for wait_s in found.waits_s)
    last_s = max((job.submit_s for job in jobs), default=0.0)
    ran_h = sum(
        job.workers * max(min(job.duration_s, last_s - job.submit_s - wait_s), 0.0) / 3600.0
        for job, wait_s in zip(sorted(jobs), found.waits_s, strict=True)
    )
    assert found.node_h * 8 >= ran_h - 1e-6
