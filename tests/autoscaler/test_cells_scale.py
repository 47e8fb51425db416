"""What many cells share or look at once, held against the plain way to say the same."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.fleet import FleetState, NodeRecord
from tradewind.autoscaler.limits import Counted, Limits, Part, Rule, Tenants, bounds_of, launched_since
from tradewind.autoscaler.observe import Observation, build_view, learn_resources, look_again
from tradewind.autoscaler.packing_advice import _Program, _whole, _worth
from tradewind.autoscaler.packing_loads import _ranks
from tradewind.autoscaler.packing_rooms import Floats
from tradewind.autoscaler.packing_stock import limits_as_caps
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.roll import Roll
from tradewind.autoscaler.settle import Listing
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, NodeView, View
from tradewind.model import Wish
from tradewind.states import NodeState, is_alive

OFFERS = [make_offer(f"aws/us-east-1a/m{cpus}", cpus=cpus, usd_per_h=0.05 * cpus) for cpus in (2, 4, 8)]
NOW_S = 10_000.0


def node_of(name: str, state: NodeState, asked_s: float = NOW_S - 30.0, **more: object) -> NodeRecord:
    found = NodeRecord(name, OFFERS[len(name) % 3], "local", "test", state, asked_s, asked_s)
    return replace(found, **more)  # type: ignore[arg-type]


def ray_of(name: str, status: RayStatus, cpus: float = 4.0) -> RayNode:
    return RayNode(f"ray-{name}", name, status, {"CPU": cpus}, {"CPU": cpus})


# --- the roll -----------------------------------------------------------------------------------------------------

writes = st.lists(st.tuples(st.integers(0, 9), st.sampled_from(NodeState), st.integers(0, 59)), max_size=40)


@given(writes)
def test_the_roll_has_at_hand_what_a_look_at_all_nodes_finds(written: list[tuple[int, NodeState, int]]) -> None:
    roll = Roll()
    for turn, (number, state, late_s) in enumerate(written):
        asked_s = roll[f"n{number}"].requested_at_s if f"n{number}" in roll else 50.0 * turn + late_s
        roll[f"n{number}"] = node_of(f"n{number}", state, asked_s)
    assert roll.alive == [node for node in roll.values() if is_alive(node.state)]
    now_s = max((node.requested_at_s for node in roll.values()), default=0.0)
    for since_s in (now_s - 60.0, now_s - 1.0, now_s + 60.0):
        assert roll.launched_since(since_s) == launched_since(roll.values(), since_s)


def test_old_launches_are_let_go_and_a_copy_is_the_same() -> None:
    roll = Roll({f"n{number}": node_of(f"n{number}", NodeState.READY, 100.0 * number) for number in range(50)})
    assert len(roll._late) < 10
    copied = pickle.loads(pickle.dumps(roll))
    assert (copied, copied.alive, list(copied._late)) == (roll, roll.alive, list(roll._late))


# --- one look at the nodes ----------------------------------------------------------------------------------------

nodes = st.lists(
    st.builds(
        lambda state, status, notice_s: (state, status, notice_s),
        st.sampled_from([state for state in NodeState if is_alive(state)]),
        st.sampled_from([None, *RayStatus]),
        st.sampled_from([None, NOW_S + 60.0]),
    ),
    max_size=8,
)


@given(nodes)
def test_nodes_that_are_passed_over_are_at_work_and_stay(
    kinds: list[tuple[NodeState, RayStatus | None, float]],
) -> None:
    found = tuple(
        NodeView(
            node_of(f"n{number}", state, notice_deadline_s=notice_s),
            ray=None if status is None else ray_of(f"n{number}", status),
        )
        for number, (state, status, notice_s) in enumerate(kinds)
    )
    view = View(NOW_S, LoopSettings(fleet="test"), found)
    calm = [node for node in found if node not in view.stirring]
    for node in found:
        at_work = node.ray is not None and node.ray.status is RayStatus.RUNNING
        assert (node in calm) == (at_work and node.requested.state is NodeState.READY and not node.is_leaving)
    assert view.stirring is replace(view, now_s=0.0).stirring  # looked for once
    fewer = replace(view, nodes=found[1:])
    assert fewer.stirring == tuple(node for node in found[1:] if node in view.stirring)
    assert view.stirring == tuple(node for node in found if node not in calm)  # not those of the other


def a_moment(settings_: LoopSettings) -> tuple[FleetState, Observation, LoopSettings]:
    states = [NodeState.READY, NodeState.BOOTING, NodeState.DRAINING, NodeState.GONE, NodeState.FAILED]
    records = {f"n{number}": node_of(f"n{number}", state) for number, state in enumerate(states * 3)}
    ray = tuple(ray_of(name, RayStatus.RUNNING) for name in ("n0", "n5", "n10"))
    snapshot = RaySnapshot(nodes=ray, pending=((Shape.of({"CPU": 2}), 9),))
    return FleetState(Roll(records)), Observation(NOW_S, snapshot, Listing(), tuple(OFFERS)), settings_


def test_a_second_look_is_the_same_as_a_new_one() -> None:
    fleet, seen, settings_ = a_moment(LoopSettings(fleet="test"))
    wishing = replace(seen, wishes=(Wish("job-1", 1, 4, {"CPU": 1.0}),))
    first = build_view(fleet, seen, settings_)
    assert look_again(first, fleet, wishing) == build_view(fleet, wishing, settings_) != first
    assert [node.launch_id for node in first.nodes] == [f"n{n}" for n in range(15) if n % 5 < 3]
    assert first.launched_last_minute == 12  # refused ones do not count, those that are gone do


def test_limits_leave_the_same_by_the_census_as_by_the_records() -> None:
    limits = Limits(40, 50_000_000, None, rules=(Rule(Part(instance_type="m4"), 9, 9_000_000),))
    fleet, seen, settings_ = a_moment(LoopSettings(fleet="test", limits=limits))
    view = build_view(fleet, seen, settings_)
    assert view.on_record is not None
    by_census, by_records = limits_as_caps(view), limits_as_caps(replace(view, on_record=None))
    assert len(by_census) == 4
    assert [(purse.nodes_left, purse.uusd_left) for purse in by_census] == [
        (purse.nodes_left, purse.uusd_left) for purse in by_records
    ]
    everything = Counted.of(list(fleet.nodes.values()), Tenants(), NOW_S)
    assert all(view.on_record.used(bound) == everything.used(bound) for bound in bounds_of(limits))


def test_of_nodes_that_are_alike_the_least_is_learnt_all_the_same() -> None:
    records = {name: node_of(name, NodeState.READY) for name in ("a", "b", "c", "dd")}
    rays = [ray_of(name, RayStatus.IDLE, cpus) for name, cpus in (("a", 4.0), ("b", 3.0), ("c", 4.0), ("dd", 8.0))]
    rays += [ray_of("c", RayStatus.DEAD, 1.0), ray_of("stranger", RayStatus.RUNNING, 1.0)]
    here, there, anywhere = (("aws", zone, "m8", 8.0, 16.0, 0.0) for zone in ("us-east-1a", "us-east-1b", ""))
    learnt = learn_resources({there: {"CPU": 7.0}}, rays, records)
    assert learnt["aws", "us-east-1a", "m4", 4.0, 16.0, 0.0] == {"CPU": 3.0}
    assert (learnt[here], learnt[there]) == ({"CPU": 8.0}, {"CPU": 7.0})
    assert learnt[anywhere] == {"CPU": 8.0}, "the most of two places"
    assert learn_resources(learnt, rays, records) == learnt


# --- columns of the program ---------------------------------------------------------------------------------------


@st.composite
def programs(draw: st.DrawFn) -> _Program:
    """Patterns with twins: the same offers filled alike, and others that hold the same at another price. Every shape
    is held by some pattern."""
    shapes, offers = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    prices = np.array(draw(st.lists(st.integers(1, 50), min_size=offers, max_size=offers)), np.float64)
    rows = draw(st.lists(st.lists(st.integers(0, 3), min_size=shapes, max_size=shapes), min_size=1, max_size=6))
    rows = [row for row in rows if any(row)] + np.eye(shapes, dtype=int).tolist()
    rows += draw(st.lists(st.sampled_from(rows), max_size=6))
    owner = np.array(draw(st.lists(st.integers(0, offers - 1), min_size=len(rows), max_size=len(rows))), np.int64)
    counts = np.array(draw(st.lists(st.integers(1, 9), min_size=shapes, max_size=shapes)), np.int64)
    nothing = np.zeros((0, 0))
    return _Program(counts, nothing, nothing, np.zeros((0, 0), np.int64), prices, owner, np.array(rows, np.float64))


def least(program: _Program, worth: Floats) -> float:
    return float(program.prices[program.owner] @ _whole(program, worth))


@settings(deadline=None, max_examples=80)
@given(programs())
def test_without_twins_the_answer_costs_the_same(program: _Program) -> None:
    with_twins = replace(program)
    program.drop_twins()
    kept = {row.tobytes(): price for row, price in zip(program.copies, program.prices[program.owner], strict=True)}
    assert len(kept) == len(program.owner)
    for row, owner in zip(with_twins.copies, with_twins.owner, strict=True):
        assert kept[row.tobytes()] <= with_twins.prices[owner]
    worth, before = _worth(program), _worth(with_twins)
    assert np.isclose(worth @ program.counts, before @ program.counts)
    nearly = 0.01  # the search ends within so much of the best
    assert abs(least(program, worth) - least(with_twins, worth)) <= nearly * least(program, worth)


# --- what could stand in for a node -------------------------------------------------------------------------------


@given(st.data())
def test_stand_ins_are_ranked_as_by_one_sort_of_all(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 8))
    row = st.lists(st.integers(0, 4), min_size=size, max_size=size)
    prices = np.sort(np.array(data.draw(st.lists(st.integers(1, 9), min_size=size, max_size=size)), np.float64))
    part = np.array(data.draw(st.lists(row, min_size=1, max_size=5)), np.int64)
    whole = (part > 0) & (part == 4)
    for mine, is_whole, found in zip(part, whole, _ranks(prices, part, whole), strict=True):
        usable = [index for index in range(size) if mine[index]]
        plain = sorted(usable, key=lambda index: (not is_whole[index], prices[index] / mine[index], index))
        assert found.tolist() == plain
