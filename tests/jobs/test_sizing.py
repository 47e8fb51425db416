"""How many workers, and when to change: decisions on values."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.jobs import sizing
from tradewind.jobs.sizing import Group, Keep, Limits, Lost, NodeView, Resize, Rest, SaveOnly, decide
from tradewind.model import Target

LIMITS = Limits(2, 4)
WORKER = {"CPU": 1.0, "GPU": 1.0}
FULL = {"CPU": 1.0, "GPU": 1.0}


def node(name: str, free: Mapping[str, float] = FULL, drain: float | None = None) -> NodeView:
    return NodeView(name, FULL, free, {"zone": name}, drain)


def decision(group: Group, nodes: list[NodeView], target: Target | None = None) -> sizing.Decision:
    held = {name: group.nodes.count(name) for name in group.nodes}
    fits = sum(sizing.rooms(nodes, WORKER, held, {}).values())
    return decide(group, LIMITS, target, fits, nodes)


def test_a_new_node_is_taken() -> None:
    group = Group(1, ("a", "b"))
    assert decision(group, [node("a", {}), node("b", {}), node("c")]) == Resize(3, "room for 3 workers")


def test_a_leaving_node_is_left() -> None:
    group = Group(1, ("a", "b", "c"))
    nodes = [node("a", {}), node("b", {}, drain=100.0), node("c", {}, drain=0.0)]
    assert decision(Group(1, ("a", "b", "b")), [*nodes[:2], node("d")]) == Resize(2, "1 node leaving", 100.0)
    assert isinstance(decision(group, nodes), SaveOnly)


def test_a_leaving_node_is_replaced_at_the_same_size() -> None:
    group = Group(1, ("a", "b"))
    nodes = [node("a", {}), node("b", {}, drain=100.0), node("c")]
    assert decision(group, nodes) == Resize(2, "1 node leaving", 100.0)


def test_with_nowhere_to_go_it_saves_and_goes_on() -> None:
    found = decision(Group(1, ("a", "b")), [node("a", {}), node("b", {}, drain=0.0)])
    assert isinstance(found, SaveOnly)
    assert found.nodes == ("b",)


def test_a_node_that_is_gone_is_a_loss() -> None:
    assert isinstance(decision(Group(1, ("a", "b")), [node("a", {})]), Lost)


def test_room_of_others_is_not_ours() -> None:
    assert decision(Group(1, ("a", "b")), [node("a", {}), node("b", {}), node("c", {"CPU": 1.0})]) == Keep()


def test_the_platform_can_shrink_it_but_not_below_its_minimum() -> None:
    group, nodes = Group(1, ("a", "b", "c")), [node(name, {}) for name in "abc"]
    assert decision(group, nodes, Target(1, 2)) == Resize(2, "2 workers granted")
    assert decision(group, nodes, Target(2, 1)) == Resize(2, "2 workers granted")
    assert decision(group, nodes, Target(3, 9)) == Keep()


def test_granted_nothing_it_rests_whatever_else_happens_but_a_loss() -> None:
    group, nodes = Group(1, ("a", "b")), [node("a", {}), node("b", {}, 9.0)]
    assert isinstance(decision(group, nodes, Target(2, 0)), Rest)
    assert isinstance(decision(group, nodes[:1], Target(2, 0)), Lost)
    assert not sizing.rests(None)
    assert not sizing.rests(Target(3, 1))


def test_who_cannot_move_saves_at_the_notice_and_again_and_again_before_the_end() -> None:
    assert sizing.save_is_due(None, 100.0, 70.0, 1)
    assert sizing.save_is_due((69.0, 1), 100.0, 70.0, 2), "another group has saved nothing yet"
    asked = [69.0]
    for now_s in range(70, 101):
        if sizing.save_is_due((asked[-1], 1), 100.0, float(now_s), 1):
            asked.append(float(now_s))
    assert asked[1:] == [94.0, 96.0, 98.0, 100.0]
    assert not sizing.save_is_due((69.0, 1), 0.0, 70.0, 1)
    assert sizing.save_is_due((50.0, 1), 0.0, 70.0, 1), "without a deadline, now and then"


def test_the_platform_grants_replicas() -> None:
    limits = Limits(3, 8).in_replicas(2)
    assert limits == Limits(4, 8, 2)
    assert sizing.goal(limits, Target(1, 3, replica_workers=2)) == 6
    assert sizing.goal(limits, Target(1, 1, replica_workers=2)) == 4  # never below its least
    assert sizing.goal(limits, Target(1, 5)) == 4  # counted in workers, before the job had told its layout


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=8),
    st.integers(1, 3),
    st.integers(0, 4),
    st.one_of(st.none(), st.integers(0, 12)),
)
def test_a_size_is_always_within_limits_and_room(
    free: list[tuple[int, bool]], least: int, more: int, granted: int | None
) -> None:
    limits = Limits(least, least + more)
    nodes = [
        NodeView(str(at), {"CPU": 3.0}, {"CPU": float(count)}, {}, 5.0 if drains else None)
        for at, (count, drains) in enumerate(free)
    ]
    fits = sum(sizing.rooms(nodes, {"CPU": 1.0}, {}, {}).values())
    target = None if granted is None else Target(1, granted)
    found = decide(Group(1, ()), limits, target, fits, nodes)
    if isinstance(found, Resize):
        assert limits.min_workers <= found.size <= limits.max_workers
        assert found.size <= fits


@pytest.mark.parametrize(
    ("wanted", "found", "holds"),
    [
        ("a", "a", True),
        ("!a", "a", False),
        ("!a", None, True),
        ("in(a, b)", "b", True),
        ("in(a,b)", None, False),
        ("!in(a,b)", "c", True),
        ("!in(a,b)", "a", False),
    ],
)
def test_label_selectors_mean_what_they_mean_in_ray(wanted: str, found: str | None, holds: bool) -> None:
    assert sizing.matches({"key": found} if found else {}, {"key": wanted}) is holds


def test_nodes_without_the_label_or_to_be_avoided_have_no_room() -> None:
    nodes = [node("a"), node("b"), node("c", drain=1.0)]
    assert sizing.rooms(nodes, WORKER, {}, {"zone": "in(b,c)"}) == {"b": 1}
    assert sizing.rooms(nodes, WORKER, {}, {}, avoid=["a"]) == {"b": 1}


def test_fractions_add_up() -> None:
    third = NodeView("a", {"GPU": 1.0}, {"GPU": 0.1}, {})
    assert sizing.room(third, {"GPU": 0.3}, held=3) == 3


def test_the_first_group_waits_for_nodes_on_their_way_and_others_do_not() -> None:
    assert not sizing.may_start(1, least=2, goal=4, first=False, waited_s=99.0, settle_s=5.0)
    assert not sizing.may_start(2, least=2, goal=4, first=True, waited_s=4.0, settle_s=5.0)
    assert sizing.may_start(2, least=2, goal=4, first=True, waited_s=5.0, settle_s=5.0)
    assert sizing.may_start(4, least=2, goal=4, first=True, waited_s=0.0, settle_s=5.0)
    assert sizing.may_start(2, least=2, goal=4, first=False, waited_s=0.0, settle_s=5.0)


def ripe(change: Resize, grows: bool, warm: bool, waited_s: float) -> bool:
    return sizing.ripe(change, grows, warm, waited_s, settle_s=5.0, now_s=1000.0)


def test_a_growth_waits_for_further_nodes_and_for_warm_processes() -> None:
    grow = Resize(4, "room")
    assert not ripe(grow, grows=True, warm=True, waited_s=4.9)
    assert ripe(grow, grows=True, warm=True, waited_s=5.0)
    assert not ripe(grow, grows=True, warm=False, waited_s=5.0)
    assert ripe(grow, grows=True, warm=False, waited_s=60.0)  # not for ever


def test_a_leaving_node_is_used_until_the_next_group_is_warm_or_time_runs_out() -> None:
    assert ripe(Resize(2, "leaving", leaves_at_s=1100.0), grows=False, warm=True, waited_s=0.0)
    assert not ripe(Resize(2, "leaving", leaves_at_s=1100.0), grows=False, warm=False, waited_s=0.0)
    assert ripe(Resize(2, "leaving", leaves_at_s=1009.0), grows=False, warm=False, waited_s=0.0)
    assert ripe(Resize(2, "leaving", leaves_at_s=0.0), grows=False, warm=False, waited_s=0.0)  # at any moment
    assert ripe(Resize(2, "granted"), grows=False, warm=True, waited_s=0.0)
