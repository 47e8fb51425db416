"""What is learnt of markets, and what that makes of their prices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.effective import Pricing, effective_price, pricing_of
from tradewind.autoscaler.fleet import FleetState
from tradewind.autoscaler.knowledge import HALF_LIFE_S, PRIOR_TAKEN, Experience, Knowledge
from tradewind.autoscaler.market import MarketSettings
from tradewind.autoscaler.packing_stock import Stock
from tradewind.autoscaler.quotes import note_quotes, price_range
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.events import (
    AnyEvent,
    HoldingChanged,
    JobSubmitted,
    LaunchRefused,
    LaunchRequested,
    NodeGone,
    NodeJoined,
    NodeLaunched,
    NoticeReceived,
)
from tradewind.model import Capacity, EndReason, JobSpec, Offer

HERE = make_offer("aws/us-east-1a/g6", usd_per_h=1.0, gpus=1)
BESIDE = make_offer("aws/us-east-1b/g6", usd_per_h=1.0, gpus=1)  # the same type in another zone
OTHER_TYPE = make_offer("aws/us-east-1a/p4", usd_per_h=1.0, gpus=1)
ELSEWHERE = make_offer("gcp/us-central1-a/g2", usd_per_h=1.0, gpus=1)
ON_DEMAND = make_offer("aws/us-east-1a/g6", usd_per_h=2.0, gpus=1, capacity=Capacity.ON_DEMAND)
USUAL = 0.1
HOUR_S = 3600.0


def known(experience: Experience, now_s: float) -> Knowledge:
    return Knowledge.of(experience, now_s, USUAL, 180.0)


def watched(hours: float, taken: int, offer: Offer = HERE) -> Experience:
    """One node for so long, and so many preemptions at the end of it."""
    found = Experience()
    found.launched(offer.market, 0.0, 0.0)
    for _ in range(taken):
        found.taken(offer.market, hours * HOUR_S)
    return found


# --- hazard ---------------------------------------------------------------------------------------------------------


def test_nothing_known_is_what_is_usual_and_on_demand_is_never_taken() -> None:
    knowledge = known(Experience(), 0.0)
    assert knowledge.hazard_per_h(HERE.market) == USUAL
    assert knowledge.hazard_per_h(ON_DEMAND.market) == 0.0
    assert knowledge.boot_s(HERE.market) == 180.0


def test_a_market_from_which_many_are_taken_is_feared_most_its_kin_less_others_not_at_all() -> None:
    knowledge = known(watched(5, taken=5), 5 * HOUR_S)
    here, beside, other, elsewhere = (
        knowledge.hazard_per_h(offer.market) for offer in (HERE, BESIDE, OTHER_TYPE, ELSEWHERE)
    )
    assert here > beside > other > elsewhere == USUAL
    assert here == pytest.approx(1.0, rel=0.15)  # five in five hours


def test_quiet_hours_lower_the_hazard_below_one_over_them_and_never_to_nothing() -> None:
    for hours in (1.0, 10.0, 40.0):
        hazard = known(watched(hours, taken=0), hours * HOUR_S).hazard_per_h(HERE.market)
        assert 0 < hazard < min(USUAL, PRIOR_TAKEN / (hours * 0.7))  # 0.7: the first of these hours have faded


@given(st.floats(0.1, 200.0), st.integers(0, 20))
def test_more_preemptions_never_lower_the_hazard_and_more_quiet_never_raises_it(hours: float, taken: int) -> None:
    now_s = hours * HOUR_S
    hazard = known(watched(hours, taken), now_s).hazard_per_h(HERE.market)
    assert math.isfinite(hazard)
    assert hazard > 0
    assert known(watched(hours, taken + 1), now_s).hazard_per_h(HERE.market) > hazard
    assert known(watched(hours, taken), now_s + HOUR_S).hazard_per_h(HERE.market) < hazard or taken == 0


def test_old_evidence_fades_by_half_in_a_half_life() -> None:
    experience = watched(10, taken=4)
    experience.ended(HERE.market, 10 * HOUR_S)
    then = known(experience, 10 * HOUR_S).evidence[HERE.market.key]
    later = known(experience, 10 * HOUR_S + HALF_LIFE_S).evidence[HERE.market.key]
    assert later.taken == pytest.approx(then.taken / 2)
    assert later.node_h == pytest.approx(then.node_h / 2)


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.1, 100)), min_size=1, max_size=20))
def test_node_hours_are_those_of_a_direct_count(lives: list[tuple[float, float]]) -> None:
    """Event by event, and as one integral of the fading over each life."""
    experience, now_s, tau_s = Experience(), 300 * HOUR_S, HALF_LIFE_S / math.log(2)
    spans = [(from_h * HOUR_S, (from_h + hours) * HOUR_S) for from_h, hours in lives]
    events = sorted([(began_s, "began") for began_s, _ in spans] + [(ended_s, "ended") for _, ended_s in spans])
    for at_s, what in events:
        if what == "began":
            experience.launched(HERE.market, at_s, at_s)
        else:
            experience.ended(HERE.market, at_s)
    direct_s = sum(tau_s * (math.exp((e - now_s) / tau_s) - math.exp((b - now_s) / tau_s)) for b, e in spans)
    assert known(experience, now_s).evidence[HERE.market.key].node_h * HOUR_S == pytest.approx(direct_s, rel=1e-6)


def test_a_clock_that_was_set_back_does_no_harm() -> None:
    experience = watched(10, taken=1)
    experience.ended(HERE.market, 2 * HOUR_S)
    experience.launched(HERE.market, 3 * HOUR_S, 3 * HOUR_S)
    hazard = known(experience, 4 * HOUR_S).hazard_per_h(HERE.market)
    assert 0 < hazard < 1


# --- boot times -----------------------------------------------------------------------------------------------------


def test_boot_times_are_learnt_and_one_slow_boot_does_not_count_for_much() -> None:
    experience = Experience()
    for number in range(20):
        experience.joined(HERE.market, 1000.0 * number + (900 if number == 7 else 60), 1000.0 * number)
    knowledge = known(experience, 20_000)
    assert knowledge.boot_s(HERE.market) == pytest.approx(60, abs=5)
    assert 60 < knowledge.boot_s(OTHER_TYPE.market) < 180
    assert knowledge.boot_s(ELSEWHERE.market) == 180.0


# --- from the log ---------------------------------------------------------------------------------------------------


def life(name: str, end: EndReason, *, notice: bool = False, offer: Offer = HERE) -> list[AnyEvent]:
    events: list[AnyEvent] = [
        LaunchRequested(at_s=0.0, launch_id=name, offer=offer, reason="r"),
        NodeLaunched(at_s=10.0, launch_id=name, instance_id=name),
        NodeJoined(at_s=100.0, launch_id=name, ray_node_id="aa"),
    ]
    if notice:
        events.append(NoticeReceived(at_s=7100.0, launch_id=name, deadline_s=7200.0))
    return [*events, NodeGone(at_s=7210.0, launch_id=name, end=end)]


@pytest.mark.parametrize(
    ("end", "notice", "taken"),
    [
        (EndReason.TERMINATED, False, 0.0),
        (EndReason.CRASHED, False, 0.0),
        (EndReason.PREEMPTED, False, 1.0),
        (EndReason.PREEMPTED, True, 1.0),  # told twice, taken once
        (EndReason.TERMINATED, True, 1.0),  # we were quicker than the cloud
        (EndReason.LOST, False, 1.0),
    ],
)
def test_what_counts_as_a_preemption(end: EndReason, notice: bool, taken: float) -> None:
    fleet = FleetState.fold(life("n1", end, notice=notice))
    evidence = known(fleet.experience, 7210.0).evidence[HERE.market.key]
    assert evidence.taken == pytest.approx(taken, rel=0.01)
    assert evidence.node_h == pytest.approx(2.0, rel=0.02)
    assert evidence.boots_s == (100.0,)


def test_what_a_node_replaces_and_since_when_its_work_is_the_same_is_on_record() -> None:
    fleet = FleetState.fold(
        [
            *life("n1", EndReason.TERMINATED)[:3],
            JobSubmitted(at_s=150.0, job_id="j", spec=JobSpec("j", "true")),
            HoldingChanged(at_s=200.0, job_id="j", launch_id="n1", resources={"GPU": 1}),
            LaunchRequested(at_s=300.0, launch_id="n2", offer=HERE, reason="r", replaces=("n1",)),
        ]
    )
    assert (fleet.nodes["n1"].held_since_s, fleet.nodes["n1"].tried_s) == (200.0, 300.0)
    assert fleet.nodes["n2"].replaces == ("n1",)
    refused = LaunchRefused(at_s=301.0, launch_id="n2", error="Stockout", message="", scope="zone", block_s=60.0)
    fleet.apply(refused)
    assert fleet.nodes["n1"].tried_s is None  # nothing was tried that could have worked


# --- prices ---------------------------------------------------------------------------------------------------------


def test_the_effective_price_by_hand() -> None:
    settings = MarketSettings(lost_s_per_preemption=720.0, exchange_horizon_s=3600.0)
    knowledge = Knowledge(0.1, 180.0)
    # 0.1 preemptions an hour x (0.2 h lost + 0.05 h boot) = 2.5 %; a boot of 0.05 h in an hour of use = 5 %
    assert effective_price(HERE, knowledge, settings) == pytest.approx(1_075_000)
    assert effective_price(ON_DEMAND, knowledge, settings) == pytest.approx(2_100_000)


def test_data_elsewhere_costs_egress() -> None:
    settings = MarketSettings(data_region="us-central1", egress_uusd_per_h=50_000)
    pricing = Pricing(Knowledge(0.1, 180.0), settings)
    assert pricing(HERE) == pytest.approx(pricing(ELSEWHERE) + 50_000)
    assert "$0.0500/h for data from us-central1" in pricing.describe(HERE)


def test_an_offer_without_a_price_has_no_effective_price() -> None:
    with pytest.raises(ValueError, match="no price"):
        effective_price(replace(HERE, price_uusd_per_h=None), Knowledge(0.1, 180.0), MarketSettings())


def test_the_stock_is_sorted_by_what_is_known() -> None:
    """Spot is cheaper on the list, and dearer where nodes are taken all the time."""
    dear = replace(ON_DEMAND, price_uusd_per_h=1_200_000)
    settings = LoopSettings(fleet="t", market=MarketSettings(lost_s_per_preemption=600))
    view = View(0.0, settings, offers=(HERE, dear))
    assert [offer.market.capacity for offer in Stock.of(view).offers] == [Capacity.SPOT, Capacity.ON_DEMAND]
    feared = replace(view, knowledge=known(watched(10, taken=20), 10 * HOUR_S))
    stock = Stock.of(feared)
    assert [offer.market.capacity for offer in stock.offers] == [Capacity.ON_DEMAND, Capacity.SPOT]
    assert stock.describe is not None
    assert stock.describe(HERE).startswith("$1.00/h list, $1.")
    assert "preemptions expected at 2" in stock.describe(HERE) or "expected at 1.9" in stock.describe(HERE)
    assert pricing_of(view) is None


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be negative"):
        MarketSettings(handover_s=-1)
    with pytest.raises(ValueError, match="must be positive"):
        MarketSettings(exchange_horizon_s=0)
    with pytest.raises(ValueError, match="at most"):
        MarketSettings(exchange_hysteresis_s=1e6)


# --- quotes ---------------------------------------------------------------------------------------------------------


def quoted(prices: list[int | None], keep_s: float = 900.0) -> tuple[tuple[float, int], ...]:
    """One price every 100 s."""
    seen: dict[str, tuple[tuple[float, int], ...]] = {}
    for number, price in enumerate(prices):
        seen = note_quotes(seen, [replace(HERE, price_uusd_per_h=price)], 100.0 * number, keep_s)
    return seen.get(HERE.market.key, ())


def test_the_range_of_prices_looks_back_just_so_far() -> None:
    quotes = quoted([5, 9, 9, 4, 4, 4])
    assert price_range(quotes, 0.0) == (4, 9)
    assert price_range(quotes, 250.0) == (4, 9)
    assert price_range(quotes, 300.0) == (4, 4)
    assert price_range(quotes, -1.0) is None  # it was not watched for so long
    assert price_range((), 0.0) is None


def test_a_price_that_was_away_begins_anew() -> None:
    assert quoted([5, None]) == ()
    assert quoted([5, None, 6]) == ((200.0, 6),)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(0, 900))
def test_what_is_forgotten_is_not_needed(prices: list[int], back_s: int) -> None:
    now_s = 100.0 * (len(prices) - 1)
    whole, kept = quoted(prices, keep_s=1e9), quoted(prices)
    assert price_range(kept, now_s - back_s) == price_range(whole, now_s - back_s)
    assert len(kept) <= 12
