"""`choose` is `decide` without what cannot win: the same choice, whatever there is to choose from."""

from __future__ import annotations

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tradewind.autoscaler.contract import Choice, ContractView, Running, SpotMarket, Tally, choose, decide
from tradewind.autoscaler.contract.decide import choices
from tradewind.model import Capacity

H = 3600.0
NO_SHRINKING = (Phase.explicit, Phase.generate)  # it takes minutes
TALLIES = st.builds(
    Tally,
    st.tuples(*[st.floats(0.0, 200.0)] * 4),
    st.tuples(*[st.floats(0.0, 40.0)] * 4),
    st.tuples(st.floats(0.5, 2.0), st.floats(0.5, 2.0)),
)


@st.composite
def views(draw: st.DrawFn) -> ContractView:
    numbers = range(draw(st.integers(0, 4)))
    price = st.integers(100_000, 1_100_000)
    spot = tuple(
        SpotMarket(f"zone {number}", draw(price), draw(st.booleans()), draw(st.floats(0.0, 9.0)), draw(TALLIES))
        for number in numbers
    )
    open_ = [market for market in spot if market.is_open]
    warming_s = st.just(0.0) | st.floats(0.0, 400.0)
    here: list[st.SearchStrategy[Running | None]] = [
        st.none(),
        st.builds(Running, st.just("dear"), st.just(Capacity.ON_DEMAND), st.just(1), warming_s),
        *(st.builds(Running, st.just(each.key), st.just(Capacity.SPOT), st.just(1), warming_s) for each in open_),
    ]
    work_s = draw(st.sampled_from([0.3, 4.0, 30.0, 100.0, 2000.0])) * H
    slack_s = draw(st.sampled_from([0.0, 0.1, 0.3, 2.0, 10.0, 50.0, 900.0])) * H
    return ContractView(
        now_s=1000.0,
        work_left_s=work_s,
        restart_s=draw(st.sampled_from([120.0, 400.0, 1200.0])),
        tick_s=draw(st.sampled_from([60.0, 1800.0])),
        on_demand_key="dear",
        on_demand_uusd_per_h=1_000_000,
        deadline_at_s=1000.0 + work_s + slack_s,
        spot=spot,
        together=draw(TALLIES),
        together_age_h=draw(st.floats(0.0, 9.0)),
        running=draw(st.one_of(here)),
    )


def same(one: Choice, other: Choice) -> bool:
    return (one.key, one.capacity, one.replicas) == (other.key, other.capacity, other.replicas)


@settings(deadline=None, max_examples=100, phases=NO_SHRINKING)
@given(view=views())
def test_what_is_chosen_is_what_is_decided(view: ContractView) -> None:
    """But where two cost the same."""
    chosen, decided = choose(view), decide(view).choice
    if not same(chosen, decided):
        cost_uusd = next(each.cost_uusd for each in choices(view) if same(each, chosen))
        assert cost_uusd <= decided.cost_uusd * (1.0 + 1e-9)


@settings(deadline=None, max_examples=100, phases=NO_SHRINKING)
@given(view=views())
def test_nobody_leaves_spot_that_works_and_is_no_dearer_for_on_demand(view: ContractView) -> None:
    """On-demand costs the same restart later, and nothing if the machine is never lost."""
    running, decided = view.running, decide(view)
    if running is not None and running.capacity is Capacity.SPOT and not running.warming_s:
        price = next(market.price_uusd_per_h for market in view.spot if market.key == running.key)
        is_in_time = any(each.key == running.key for each in choices(view))
        assert decided.choice.capacity is not Capacity.ON_DEMAND or not is_in_time or price > view.on_demand_uusd_per_h
