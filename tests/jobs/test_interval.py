"""How often to save follows from what it costs and what is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.jobs.interval import DRAG, FIRST_S, LONGEST_S, Costs, Interval, Rate, choose

NEVER = Rate(0.0, 1.0)
seconds = st.floats(0.001, 600)


def at(costs: Costs, per_h: float, *, noticed: float = 0.0, notice_s: float = 0.0, nodes: int = 1) -> Interval:
    return choose(costs, nodes=nodes, sudden=Rate(per_h, 1.0), noticed=Rate(noticed, 1.0), notice_s=notice_s)


@settings(deadline=None)
@given(seconds, seconds, st.floats(0.001, 20), st.integers(1, 64))
def test_no_other_interval_loses_less(stall_s: float, write_s: float, per_h: float, nodes: int) -> None:
    costs = Costs(stall_s, write_s)
    every_s = at(costs, per_h, nodes=nodes).every_s
    between_s = 3600 / (per_h * nodes)

    def lost(interval_s: float) -> float:
        return costs.training_s / interval_s + interval_s / (2 * between_s)

    for other_s in (0.5 * every_s, 0.9 * every_s, 1.1 * every_s, 2 * every_s):
        if write_s <= other_s <= LONGEST_S:
            assert lost(every_s) <= lost(other_s) + 1e-12


def test_by_hand() -> None:
    # A save costs 2 s of training, and every half hour state is lost: sqrt(2 * 2 * 1800) = 84.85 s.
    found = at(Costs(2.0 - 10 * DRAG, 10.0), 0.5, nodes=4)
    assert found.every_s == pytest.approx(84.853, abs=0.001)
    assert str(found) == "every 1m25s: a save costs 2.0s and is durable after 11s, 2 losses/h"


def test_slow_storage_is_given_the_time_it_needs_and_people_are_not_kept_waiting() -> None:
    assert at(Costs(0.1, 300.0), 60.0).every_s == 300.0
    assert at(Costs(0.1, 1.0), 0.0).every_s == LONGEST_S


def test_losses_with_notice_count_only_when_it_is_too_short() -> None:
    quick, slow = Costs(0.1, 5.0), Costs(0.1, 200.0)
    assert at(quick, 0.1, noticed=5.0, notice_s=120.0).every_s == at(quick, 0.1).every_s
    assert at(slow, 0.1, noticed=5.0, notice_s=120.0).every_s < at(slow, 0.1).every_s
    assert "2m00s of notice is too short to save in" in at(slow, 0.1, noticed=5.0, notice_s=120.0).why


def test_before_the_first_save_there_is_a_guess() -> None:
    found = choose(None, nodes=1, sudden=NEVER, noticed=NEVER, notice_s=0.0)
    assert (found.every_s, str(found)) == (FIRST_S, "every 1m00s: nothing was measured yet")


def test_what_is_seen_outweighs_the_prior_with_time() -> None:
    rate = Rate.prior(0.01, weight_h=24.0)
    assert rate.per_node_h == pytest.approx(0.01)
    assert rate.seen(events=0, node_h=24.0).per_node_h == pytest.approx(0.005)
    assert rate.seen(events=100, node_h=1000.0).per_node_h == pytest.approx(0.1, rel=0.05)


def test_costs_follow_the_last_saves() -> None:
    costs = Costs(1.0, 4.0).then(3.0, 8.0)
    assert (costs.stall_s, costs.write_s) == (2.0, 6.0)
