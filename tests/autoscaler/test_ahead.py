"""Buying ahead: what the forecast wants is bought within the limits, kept while it is wanted, and let go after."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.actions import Drain, Plan
from tradewind.autoscaler.demand import Demand, Need
from tradewind.autoscaler.fleet import NodeRecord
from tradewind.autoscaler.forecast import Forecast, Growth, GrowthBook, Outlook, SeriesKey, Span, unit_of, usual
from tradewind.autoscaler.forecast.candidates import LEVELS
from tradewind.autoscaler.forecast.growth import MODEL, MODEL_WHEN_NEW
from tradewind.autoscaler.forecast.likeness import weights_of
from tradewind.autoscaler.forecast.looks import Looks
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import World, make_offer
from tradewind.autoscaler.view import Limits, LoopSettings, NodeView, View, price_of
from tradewind.states import NodeState

GPU = Shape.of({"GPU": 1})
KEY = SeriesKey("a", GPU)
CHEAP = make_offer("aws/us-east-1a/g6", usd_per_h=0.35, gpus=1)
DEAR = make_offer("aws/us-east-1b/g6", usd_per_h=0.40, gpus=1)
SETTINGS = LoopSettings(
    fleet="test",
    buy_ahead=True,
    idle_timeout_s=600,
    spare_timeout_s=60,
    min_node_life_s=60,
    usual_boot_s=300,
    waiting_factor=4,
)


def outlook(*values: float) -> Forecast:
    found = (*values, *values[-1:] * (len(LEVELS) - len(values)))  # the last one at all levels beyond
    return Forecast(1000.0, 0.0, 99, (Outlook(300.0, found, True, "test", "", 50, None, None, None),))


def node(name: str, busy: bool = False, idle_s: float = 0.0, booted: bool = True) -> NodeView:
    state = NodeState.READY if booted else NodeState.BOOTING
    record = NodeRecord(name, CHEAP, "c", "", state, 0.0, 0.0, launched_at_s=0.0, joined_at_s=1.0 if booted else None)
    room = {"GPU": 1.0}
    status = RayStatus.RUNNING if busy else RayStatus.IDLE
    ray = RayNode(name, name, status, room, {"GPU": 0.0} if busy else room, CHEAP.labels, idle_s)
    return NodeView(record, ray=ray if booted else None)


def view(nodes: tuple[NodeView, ...] = (), wanted: float = 0.0, **changes: object) -> View:
    plain = View(
        now_s=1000.0,
        settings=SETTINGS,
        nodes=nodes,
        snapshot=RaySnapshot(tuple(each.ray for each in nodes if each.ray is not None)),
        offers=(CHEAP, DEAR),
        wanted={KEY: wanted},
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def with_nodes(seen: View, nodes: tuple[NodeView, ...]) -> View:
    return replace(seen, nodes=nodes, snapshot=RaySnapshot(tuple(each.ray for each in nodes if each.ray is not None)))


def drained(plan: Plan) -> set[str]:
    return {action.launch_id for action in plan.actions if isinstance(action, Drain)}


def test_without_a_forecast_nothing_happens() -> None:
    assert make_plan(view()).actions == ()


def test_it_buys_the_cheapest_and_says_both_costs() -> None:
    plan = make_plan(view(forecasts={KEY: outlook(2)}))
    assert [launch.offer for launch in plan.launches] == [CHEAP, CHEAP]
    assert plan.launches[0].fallbacks == (DEAR,)
    reason = plan.launches[0].reason
    assert "bought ahead" in reason
    assert "waiting for it would cost $" in reason
    assert "idling $" in reason


def test_what_is_there_coming_or_bought_in_this_tick_counts() -> None:
    nodes = (node("free"), node("coming", booted=False), node("busy", busy=True))
    waiting = Demand((Need(GPU, 3, "tasks"),))  # two find room, one is bought
    plan = make_plan(view(nodes, wanted=4, demand=waiting, forecasts={KEY: outlook(6)}))
    assert sum("bought ahead" in launch.reason for launch in plan.launches) == 2
    assert len(plan.launches) == 3


def test_it_is_silent_when_there_is_enough() -> None:
    assert make_plan(view((node("a"), node("b")), forecasts={KEY: outlook(2)})).actions == ()


def test_an_unlikely_need_is_not_worth_it() -> None:
    unlikely = outlook(0, 0, 0, 0, 0, 0, 1)  # more than nothing with a chance of 5 to 10 %
    assert make_plan(view(forecasts={KEY: unlikely})).launches == []
    precious = replace(SETTINGS, waiting_factor=50.0)
    assert make_plan(view(settings=precious, forecasts={KEY: unlikely})).launches


def test_it_can_be_turned_off() -> None:
    off = replace(SETTINGS, buy_ahead=False)
    assert make_plan(view(settings=off, forecasts={KEY: outlook(5)})).actions == ()


def test_nothing_is_known_while_the_head_is_away() -> None:
    assert make_plan(view(snapshot=None, forecasts={KEY: outlook(5)})).launches == []


def test_two_series_do_not_count_the_same_room_twice() -> None:
    other = SeriesKey("b", GPU)
    plan = make_plan(view((node("free"),), forecasts={KEY: outlook(1), other: outlook(1)}))
    assert len(plan.launches) == 1


def test_idle_nodes_stay_while_the_forecast_wants_them_and_go_early_when_not() -> None:
    nodes = tuple(node(f"n{i}", idle_s=120.0) for i in range(3))
    assert len(drained(make_plan(view(nodes, forecasts={KEY: outlook(2)})))) == 1
    old = tuple(node(f"n{i}", idle_s=10_000.0) for i in range(3))
    assert len(drained(make_plan(view(old, forecasts={KEY: outlook(2)})))) == 1
    assert drained(make_plan(view(nodes))) == set()  # nothing is forecast: the long time-out holds
    seen = view(nodes, forecasts={KEY: outlook(2)})
    unset = replace(seen, settings=replace(SETTINGS, spare_timeout_s=None))  # a look: 60 s
    assert len(drained(make_plan(unset))) == 1
    fresh = tuple(node(f"n{i}", idle_s=50.0) for i in range(3))
    assert drained(make_plan(replace(unset, nodes=view(fresh).nodes, snapshot=view(fresh).snapshot))) == set()
    half_known = replace(seen, wanted={KEY: 0.0, SeriesKey("b", GPU): 1.0})
    assert drained(make_plan(half_known)) == set()


@settings(deadline=None, max_examples=40)
@given(
    expected=st.floats(0, 40),
    waiting=st.integers(0, 10),
    there=st.integers(0, 5),
    max_nodes=st.integers(0, 20),
    max_usd=st.integers(0, 6),
    per_minute=st.integers(0, 20),
)
def test_limits_hold_over_what_is_wanted_now_and_later(
    expected: float, waiting: int, there: int, max_nodes: int, max_usd: int, per_minute: int
) -> None:
    limits = Limits(max_nodes, max_usd * 1_000_000, per_minute)
    nodes = tuple(node(f"n{i}", busy=True) for i in range(there))
    seen = view(
        nodes,
        wanted=float(there + waiting),
        settings=replace(SETTINGS, limits=limits),
        demand=Demand((Need(GPU, waiting, "tasks"),) if waiting else ()),
        forecasts={KEY: outlook(expected)},
        launched_last_minute=2,
    )
    bought = make_plan(seen).launches
    assert not bought or len(bought) + there <= max_nodes
    assert not bought or len(bought) + 2 <= per_minute
    spent = sum(launch.offer.price_uusd_per_h or 0 for launch in bought) + price_of(nodes)
    assert not bought or spent <= max_usd * 1_000_000


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.floats(0, 12), min_size=7, max_size=7).map(sorted),
    wanted=st.integers(0, 6),
    factor=st.sampled_from([0.5, 4.0, 20.0, 100.0]),
)
def test_what_was_bought_is_not_let_go_while_nothing_changes(values: list[float], wanted: int, factor: float) -> None:
    """No flapping: with the bought nodes there and idle, the same forecast lets none of them go, and buys none."""
    seen = view(wanted=wanted, forecasts={KEY: outlook(*values)}, settings=replace(SETTINGS, waiting_factor=factor))
    busy = tuple(node(f"b{i}", busy=True) for i in range(wanted))
    bought = make_plan(with_nodes(seen, busy)).launches
    now_there = tuple(node(f"n{i}", idle_s=1e6) for i in range(len(bought)))
    assert make_plan(with_nodes(seen, (*busy, *now_there))).actions == ()


# --- growth -------------------------------------------------------------------------------------------------------


def test_growth_is_forecast_on_top_of_the_present() -> None:
    growth = Growth(300.0)
    for step in range(60):  # each step two come, and two go before it ends
        growth.observe(step * 300.0, 10.0)
        growth.observe(step * 300.0 + 100.0, 12.0)
        growth.observe(step * 300.0 + 200.0, 10.0)
    growth.observe(60 * 300.0, 5.0)
    found = growth.forecast(60 * 300.0).at(300.0)
    assert found is not None
    assert found.has_interval
    assert found.p50 == pytest.approx(7.0)


def chance_of_more(growth: Growth, level: float) -> float:
    found = growth.forecast(0.0).at(300.0)
    assert found is not None
    assert found.has_interval
    return found.chance_above(level)


def feed(growth: Growth, minutes: range, comes: Callable[[int], bool]) -> float:
    level = 0.0
    for minute in minutes:
        level += comes(minute)
        growth.observe(60.0 * minute, level)
    return level


def test_more_is_expected_in_a_sitting_than_on_a_quiet_night() -> None:
    """Every twelve hours somebody sends a job a minute, for half an hour. Told at once, not when a step is over."""
    growth = Growth(300.0)
    level = feed(growth, range(4 * 1440), lambda minute: minute % 720 < 30)
    assert chance_of_more(growth, level) < 0.1
    for minute in range(2):
        growth.observe(4 * 86400.0 + 60.0 * minute, level + minute + 1)
    assert chance_of_more(growth, level + 2) > 0.4  # less than sure: eight sittings are few beside the usual


def test_the_chance_is_the_share_of_moments_after_which_it_rose() -> None:
    """Where all moments are alike: one comes every hour, so within the next six minutes one does in a tenth."""
    random = np.random.default_rng(5)
    growth = Growth(300.0)
    level = feed(growth, range(7 * 1440), lambda _: bool(random.random() < 1 / 60))
    chances = []
    for minute in range(7 * 1440, 7 * 1440 + 300):
        level += bool(random.random() < 1 / 60)
        growth.observe(60.0 * minute, level)
        chances.append(chance_of_more(growth, level))
    assert 0.05 < np.mean(chances) < 0.16


def test_a_rise_is_counted_in_its_span_and_fades() -> None:
    """One rise, seven looks ago: gone from the first span, in the second, and faded. Also when old looks are gone."""
    for quiet in (0, 1000):
        looks = Looks(window=100, ahead=6, spans=(5, 30), slow=(60,))
        for look in range(quiet + 50):
            looks.begin(is_known=True)
            looks.see(1.0 if look >= quiet + 42 else 0.0)
        faded = np.exp(-7 / np.array([5.0, 30.0, 60.0])) + np.array([0.1, 0.1, 0.3])
        assert looks.signs()[:-2] == pytest.approx(np.log([0.25, 1.25, *faded]), abs=1e-5)


def test_the_chances_are_those_of_all_kinds_of_likeness() -> None:
    """Of two past looks, one is like now by its counts in spans, the other by its fading counts. Both count the same,
    and little beside the usual: they are two."""
    near = [1e-3, 1e-3, 1e-3]
    first, second = np.array([[0.0, 9.0]] * 3, dtype=np.float32), np.array([[9.0, 0.0]] * 3, dtype=np.float32)
    alike = [weights_of(signs, near, np.ones(2, dtype=np.float32)) for signs in (first, second)]
    assert sum(alike) == pytest.approx([11 / 111, 11 / 111])
    assert alike[0][0] == pytest.approx(6 / 111)  # (1 + 5) by (1 + 5 + 5 + 100): the prior is ten looks, shared by two


def test_a_first_sitting_is_met_by_what_is_usual() -> None:
    """Nothing like it has been seen here: after half a day without anything, two jobs within two minutes."""
    growth = Growth(300.0)
    level = feed(growth, range(720), lambda minute: minute == 0)
    quiet = chance_of_more(growth, level)
    for minute in (720, 721):
        growth.observe(60.0 * minute, level + minute - 719)
    assert growth.forecast(60.0 * 721).outlooks[0].model == MODEL_WHEN_NEW
    is_bought = 1 / 17  # at the default price of waiting
    assert quiet < is_bought < 0.15 < chance_of_more(growth, level + 2)


def test_the_own_past_outweighs_what_is_usual() -> None:
    """One of four comes every half hour, a week long, and never two within six minutes."""
    growth = Growth(300.0)
    level = 0.0
    for minute in range(7 * 1440 + 3):
        level += 4.0 * (minute % 30 == 0)
        growth.observe(60.0 * minute, level)
    assert chance_of_more(growth, level) < 0.1
    assert chance_of_more(growth, level + 4.0) < 0.01
    assert growth.forecast(60.0 * (7 * 1440 + 2)).outlooks[0].model == MODEL


@given(
    st.lists(st.tuples(st.floats(0.0078125, 500.0, width=32), st.floats(0.0078125, 1.0, width=32)), max_size=40),
    st.lists(st.floats(-2.5, 6.0, width=32), min_size=3, max_size=3),
)
def test_usual_chances_fall_with_the_growth_and_end(past: list[tuple[float, float]], signs: list[float]) -> None:
    rises, fading = (np.array([each[index] for each in past], dtype=np.float32) for index in range(2))
    growths = usual.growths_of(rises)
    chances = usual.chances_of_more(growths, rises, fading)
    assert chances[0] == pytest.approx(1.0, abs=1e-5)
    assert (np.diff(chances) <= 1e-9).all()
    assert chances[-1] == pytest.approx(0.0, abs=1e-5)  # else nodes without end were bought
    assert 0.0 < usual.chance_of_growth(np.array(signs, dtype=np.float32)) < 1.0


def test_a_span_that_nobody_looked_at_is_not_learned_from() -> None:
    """While nobody looks nothing seems to come: that is not a quiet time."""
    growth = Growth(300.0)
    feed(growth, range(600), lambda _: True)
    known = growth.forecast(0.0).outlooks[0].scored
    growth.observe(60.0 * 2000, 5.0)
    after = growth.forecast(0.0).outlooks[0].scored
    assert known <= after <= known + 6  # the last ones of the old span, whose outcome came within a step


def test_memory_is_bounded_and_the_newest_stay() -> None:
    growth = Growth(300.0, window=24)
    for look in range(3000):
        growth.observe(60.0 * look, float(look % 50))
    found = growth.forecast(0.0)
    assert found.outlooks[0].scored == 24 * 5
    assert found.steps < 200


@pytest.mark.parametrize("at_s", [math.nan, 0.0, 1e9], ids=["no time", "set back", "far ahead"])
def test_a_clock_that_jumps_does_no_harm(at_s: float) -> None:
    growth = Growth(300.0)
    feed(growth, range(5000, 5200), lambda minute: minute % 3 == 0)
    growth.observe(at_s, 7.0)
    growth.observe(at_s + 60.0 if math.isfinite(at_s) else 60.0 * 5200, 9.0)
    assert all(value >= 9.0 for value in growth.forecast(at_s).outlooks[0].values)


def test_the_past_from_the_log_is_the_past_that_was_seen() -> None:
    spans = [Span(step * 600.0, step * 600.0 + 250.0, 3.0) for step in range(40)]
    seen, loaded = GrowthBook(300.0), GrowthBook(300.0)
    for span in spans:
        seen.observe(span.start_s, {KEY: 3.0})
        seen.observe(span.end_s, {})
    loaded.load({KEY: spans}, 24_000.0)
    seen.observe(24_000.0, {})
    loaded.observe(24_000.0, {})
    assert loaded.forecasts(24_000.0)[KEY].outlooks == seen.forecasts(24_000.0)[KEY].outlooks


def test_a_series_that_nobody_wants_any_more_is_forgotten() -> None:
    book = GrowthBook(300.0, window=24)
    book.observe(0.0, {KEY: 1.0})
    book.observe(300.0, {})
    assert KEY in book.forecasts(300.0)
    book.observe(25 * 300.0, {})
    assert book.forecasts(25 * 300.0) == {}


# --- what is wanted -----------------------------------------------------------------------------------------------


def test_requests_and_holdings_are_counted_by_accelerator() -> None:
    assert unit_of(Shape.of({"GPU": 4, "CPU": 8})) == (Shape.of({"GPU": 1, "CPU": 2}), 4)
    assert unit_of(Shape.of({"CPU": 3})) == (Shape.of({"CPU": 1}), 3)
    assert unit_of(Shape.of({"GPU": 0.5})) == (Shape.of({"GPU": 0.5}), 1)


@pytest.mark.parametrize("buys_ahead", [True, False])
def test_the_loop_learns_to_have_a_node_before_it_is_asked(buys_ahead: bool) -> None:
    """Once a minute somebody asks for two CPUs; a node takes 12 s to come and leaves after 10 idle ones."""
    brisk = LoopSettings(
        fleet="t",
        head_address="127.0.0.2:20379",
        buy_ahead=buys_ahead,
        forecast_step_s=60,
        usual_boot_s=12,
        idle_timeout_s=10,
        spare_timeout_s=10,
        min_node_life_s=1,
    )
    world = World([make_offer(cpus=2)], brisk)
    for _ in range(14):
        world.ray.submit({"CPU": 2}, job_id="j")
        world.run(40, interval_s=5)
        world.ray.finish()
        world.run(20, interval_s=5)
    world.ray.submit({"CPU": 2}, job_id="j")
    assert world.ray.waiting == (0 if buys_ahead else 1)


def test_what_was_last_wanted_before_the_window_is_not_loaded() -> None:
    """A log of years has thousands of shapes; each would be looked at ten thousand times."""
    book, now_s = GrowthBook(300.0, window=24), 1e6
    gone, here = SeriesKey("t", Shape.of({"GPU": 1})), SeriesKey("t", Shape.of({"GPU": 2}))
    book.load({gone: [Span(0.0, now_s - 25 * 300.0, 1.0)], here: [Span(0.0, now_s - 10 * 300.0, 1.0)]}, now_s)
    assert list(book.forecasts(now_s)) == [here]
