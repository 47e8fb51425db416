"""What is wanted: what jobs have stated and what is asked of Ray. The loop and the log say the same of it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.expected import look_s_of
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.forecast import (
    DemandFold,
    SeriesKey,
    Span,
    asked_of,
    key_of,
    part_of,
    spans_of_events,
    told_after,
)
from tradewind.autoscaler.loop import _of_cell
from tradewind.autoscaler.ray_snapshot import Gang, RayJob, RayNode, RaySnapshot, RayStatus, Strategy
from tradewind.autoscaler.shape import LabelRule, Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import LoopSettings
from tradewind.autoscaler.wanted import CROWDED_S, MOST_SERIES, asked_of_ray, demand_change, lost_demand, wanted_of
from tradewind.events import (
    AnyEvent,
    DemandChanged,
    HoldingChanged,
    JobPlaced,
    JobSubmitted,
    LaunchRequested,
    decode,
    encode,
)
from tradewind.model import Asked, JobSpec, Wish

GPU, BOTH = Shape.of({"GPU": 1}), Shape.of({"GPU": 1, "CPU": 2})
STATED = JobSpec("s", "x", tenant="a", min_workers=1, max_workers=8, worker_resources={"GPU": 1})
PLAIN = JobSpec("p", "x", tenant="b")
NODES = tuple(RayNode(f"r{i}", f"n{i}", RayStatus.RUNNING, {}, {}) for i in range(3))


def fleet_of(*specs: JobSpec) -> FleetState:
    bought = [LaunchRequested(at_s=0.0, launch_id=f"n{i}", offer=make_offer(), reason="") for i in range(3)]
    return FleetState.fold([*bought, *(JobSubmitted(at_s=0.0, job_id=spec.name, spec=spec) for spec in specs)])


def found_in(snapshot: RaySnapshot, fleet: FleetState, wishes: Sequence[Wish] = ()) -> Mapping[SeriesKey, float]:
    return wanted_of(fleet.open_jobs, asked_of_ray(snapshot, fleet, wishes))


def test_it_is_what_is_stated_held_and_waits() -> None:
    snapshot = RaySnapshot(
        nodes=NODES,
        pending=((BOTH, 3),),
        holdings={
            ("p", "r1"): {"GPU": 2.0, "CPU": 4.0},
            ("s", "r2"): {"GPU": 4.0},
            ("p", "head"): {"CPU": 1.0},  # no node of ours
        },
    )
    found = found_in(snapshot, fleet_of(STATED, PLAIN), [Wish("s", 1, 8, {"GPU": 1})])
    assert found == {SeriesKey("a", GPU): 8.0, SeriesKey("b", BOTH): 5.0}
    assert found_in(RaySnapshot(), fleet_of(STATED)) == {SeriesKey("a", GPU): 8.0}


def test_actors_of_a_job_that_states_its_workers_are_not_counted_twice() -> None:
    snapshot = RaySnapshot(pending=((GPU, 10),), pending_actors={"s": ((GPU, 8),)})
    found = found_in(snapshot, fleet_of(STATED, PLAIN))
    assert found == {SeriesKey("a", GPU): 8.0, SeriesKey("b", GPU): 2.0}


def test_a_job_that_wishes_when_it_runs_counts_with_its_maximum() -> None:
    gang = Gang("g", Strategy.PACK, (GPU, GPU), "p")
    snapshot = RaySnapshot(nodes=NODES, gangs=(gang,), holdings={("p", "r1"): {"GPU": 1.0}})
    assert found_in(snapshot, fleet_of(PLAIN), [Wish("p", 1, 3, {"GPU": 1})]) == {SeriesKey("b", GPU): 3.0}
    assert found_in(snapshot, fleet_of(PLAIN)) == {SeriesKey("b", GPU): 3.0}


def test_what_is_to_be_kept_at_hand_counts_beyond_what_is_wanted_anyway() -> None:
    held = {("p", "r1"): {"GPU": 2.0, "CPU": 4.0}}
    snapshot = RaySnapshot(nodes=NODES, constraints=((GPU, 5),), holdings=held)
    assert found_in(snapshot, fleet_of(PLAIN)) == {SeriesKey("b", BOTH): 2.0, SeriesKey("b", GPU): 3.0}
    fewer = RaySnapshot(nodes=NODES, constraints=((GPU, 2),), holdings=held)
    assert found_in(fewer, fleet_of(PLAIN)) == {SeriesKey("b", BOTH): 2.0}
    assert found_in(snapshot, fleet_of(STATED, PLAIN))[SeriesKey("a", GPU)] == 8.0


RULES = st.builds(LabelRule, st.text(max_size=3), st.tuples(st.text(max_size=3)), st.booleans())
KEYS = st.builds(
    lambda tenant, amounts, selectors: SeriesKey(tenant, Shape.of(amounts, selectors=selectors)),
    st.text(max_size=3),
    st.dictionaries(st.sampled_from(["CPU", "GPU", "x"]), st.floats(0.1, 9), min_size=1),
    st.lists(st.lists(RULES, min_size=1, max_size=2).map(tuple), max_size=2),
)


@given(KEYS, st.floats(0.1, 1e6))
def test_a_series_is_found_again_in_what_was_recorded(key: SeriesKey, amount: float) -> None:
    asked = asked_of(key, amount)
    assert (key_of(asked), asked.amount) == (key, amount)


# --- on record ------------------------------------------------------------------------------------------------------


SOME = [SeriesKey("a", Shape.of({"GPU": 1, f"r{number}": 1})) for number in range(40)]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.floats(0.5, 1000), st.dictionaries(st.sampled_from(SOME[:6]), st.integers(0, 50))), max_size=60
    ),
    st.floats(1, 60),
)
def test_it_is_told_when_it_changes_and_not_again_at_once(
    looks: list[tuple[float, dict[SeriesKey, int]]], quiet_s: float
) -> None:
    now_s, told, events = 0.0, None, list[DemandChanged]()
    for passed_s, amounts in looks:
        now_s += passed_s
        asked = {key: float(amount) for key, amount in amounts.items() if amount}
        for event in demand_change(asked, told, "c", now_s, quiet_s):
            before, told = told.wanted if told else {}, told_after(told, decode(encode(event)))
            events.append(event)
            assert told.wanted != before, "only what is new is told"
        last_s, known = (told.at_s, told.wanted) if told else (-1e9, {})
        assert known == asked or now_s - last_s < quiet_s, "what is on record is never older than the quiet time"
    assert all(b.at_s - a.at_s >= quiet_s for a, b in pairwise(events))
    whole = DemandFold()
    for event in events:
        whole.apply(event)
    assert whole.wanted() == (told.wanted if told else {})


def test_a_day_of_a_cell_that_is_busy_all_the_time_is_short() -> None:
    """Every minute all of its series change, and there are more than are told of."""
    chance, told, size, number = random.Random(3), None, 0, 0
    for minute in range(24 * 60):
        asked = {key: float(chance.randint(0, 99)) for key in SOME}
        for event in demand_change(asked, told, "aws-us-east-1", 60.0 * minute, 60.0):
            told, size, number = told_after(told, event), size + len(encode(event)), number + 1
    assert number == 24 * 60, "nothing is left out for it"
    assert size < 1_200_000


def test_what_is_new_in_a_crowded_cell_is_told_within_ten_minutes() -> None:
    asked = dict.fromkeys(SOME[:MOST_SERIES], 1.0)
    (event,) = demand_change(asked, None, "c", 0.0, 60.0)
    told, more = told_after(None, event), asked | {SOME[-1]: 99.0}
    assert demand_change(more, told, "c", 300.0, 60.0) == []
    (event,) = demand_change(more, told, "c", CROWDED_S, 60.0)
    assert told_after(told, event).wanted[SOME[-1]] == 99.0


def test_changes_of_a_list_that_nobody_knows_are_left_out() -> None:
    """Of a log that was cut: the next whole list is at most an hour away."""
    event = DemandChanged(at_s=5.0, cell="c", goes_on=True, changes=((3, 2.0),))
    assert told_after(None, event).wanted == {}
    assert told_after(told_after(None, event), event).wanted == {}
    (whole,) = demand_change({SOME[0]: 2.0}, told_after(None, event), "c", 100.0, 60.0)
    assert not whole.goes_on


@given(st.dictionaries(st.sampled_from(["CPU", "GPU", "TPU", "custom"]), st.sampled_from([0.001, 0.5, 1, 3, 64, 256])))
def test_a_series_is_the_same_after_it_was_told(amounts: dict[str, float]) -> None:
    part = part_of("a", Shape.of(amounts))
    if part is not None:
        assert key_of(asked_of(*part)) == part[0]


def test_of_many_series_the_largest_are_told() -> None:
    asked = {SeriesKey("a", Shape.of({"CPU": 1, f"r{i}": 1})): float(i) for i in range(1, 100)}
    (event,) = demand_change(asked, None, "c", 5.0, 60.0)
    assert [each.amount for each in event.asked] == [float(99 - i) for i in range(MOST_SERIES)]


def test_after_a_clock_was_set_back_it_is_told_at_once() -> None:
    last = DemandChanged(at_s=5000.0, cell="c", asked=(Asked("a", {"GPU": 1.0}, 1.0),))
    assert demand_change({}, told_after(None, last), "c", 100.0, 60.0) == [DemandChanged(at_s=100.0, cell="c")]


def test_the_log_counts_what_cells_tell_and_no_holdings_beside_it() -> None:
    asked = (Asked("b", {"GPU": 1.0}, 3.0),)
    events: list[AnyEvent] = [
        JobSubmitted(at_s=0.0, job_id="p", spec=PLAIN),
        HoldingChanged(at_s=5.0, job_id="p", launch_id="n1", resources={"GPU": 2.0}),  # by an older version
        DemandChanged(at_s=10.0, cell="one", asked=asked),
        HoldingChanged(at_s=12.0, job_id="p", launch_id="n2", resources={"GPU": 1.0}),
        DemandChanged(at_s=20.0, cell="two", asked=asked),
        DemandChanged(at_s=30.0, cell="one"),
    ]
    spans = spans_of_events(events, 40.0)
    assert spans == {SeriesKey("b", GPU): [Span(5.0, 10.0, 2.0), Span(10.0, 30.0, 3.0), Span(20.0, 40.0, 3.0)]}


def test_of_a_cell_that_is_no_more_nothing_is_asked() -> None:
    asked = (Asked("b", {"GPU": 1.0}, 3.0),)
    told = [DemandChanged(at_s=1.0, cell=cell, asked=asked if cell != "idle" else ()) for cell in ("a", "b", "idle")]
    assert lost_demand(FleetState.fold(told), ["a"], 9.0) == [DemandChanged(at_s=9.0, cell="b")]


def world() -> World:
    """Nodes of two CPUs that join at once; what waits longer than a look is told."""
    quick = LoopSettings(fleet="t", head_address="127.0.0.2:20379", forecast_step_s=50, usual_boot_s=10)
    return World([make_offer(cpus=2)], quick)


def in_log(w: World) -> dict[SeriesKey, float]:
    fold = DemandFold()
    for event in w.events:
        fold.apply(event)
    return fold.wanted()


@pytest.mark.parametrize("is_new", [False, True])
def test_what_waits_in_ray_alone_is_on_record_for_the_next_controller(is_new: bool) -> None:
    w = world()
    w.ray.jobs.append(RayJob("01000000", "", is_dead=False, metadata={"tenant": "lab"}))
    w.ray.submit({"CPU": 64}, count=3, job_id=w.ray.jobs[0].job_id)  # no node is so large
    w.run(30)
    if is_new:
        w.start()
        w.run(30)
    key = SeriesKey("lab", Shape.of({"CPU": 1}))
    assert in_log(w) == {key: 192.0}
    assert len([event for event in w.events if isinstance(event, DemandChanged)]) == 1
    assert w.loop.end_all("down", 10.0) == []
    assert in_log(w) == {}


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.sampled_from(["ask", "finish", "gang", "restart", "rest"]), st.integers(1, 4)), max_size=8)
)
def test_loop_and_log_agree(steps: list[tuple[str, int]]) -> None:
    w = world()
    w.ray.jobs.append(RayJob("01000000", "", is_dead=False))
    job_id = w.ray.jobs[0].job_id
    for what, number in steps:
        if what == "ask":
            w.ray.submit({"CPU": 1}, count=number, job_id=job_id)
        elif what == "gang":
            w.ray.submit_gang([{"CPU": 2}] * number, Strategy.PACK, job_id=job_id)
        elif what == "finish":
            w.ray.finish()
        elif what == "restart":
            w.start()
        w.run(2 * look_s_of(w.settings))
        snapshot = w.ray.snapshot()
        assert in_log(w) == wanted_of(w.fleet.open_jobs, asked_of_ray(snapshot, w.fleet, ()))


def test_a_cell_learns_from_its_own_past() -> None:
    here, there = (DemandChanged(at_s=1.0, cell=cell, asked=()) for cell in ("here", "there"))
    job = JobSubmitted(at_s=2.0, job_id="j", spec=JobSpec("j", "x"))
    placed = JobPlaced(at_s=3.0, job_id="j", cell="there", reason="cheapest")
    fleet = FleetState.fold([job, placed])
    assert list(_of_cell([here, there, job, placed], "here", fleet.cell("here"))) == [here]
    assert list(_of_cell([here, there, job, placed], "there", fleet.cell("there"))) == [there, job, placed]
