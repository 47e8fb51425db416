"""The weather of the local cloud: a pure function of script, time and nodes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tradewind.autoscaler.providers import local_market as lm
from tradewind.autoscaler.providers.base import LaunchSpec
from tradewind.autoscaler.providers.local_market import Action, MarketEvent, MarketScript, Subject
from tradewind.errors import ConfigError, InvalidRequest, PriceTooHigh, Stockout, Unsupported
from tradewind.model import Capacity, Market, Offer

SPOT = Market("aws", "us-east-1", "us-east-1a", "g5.xlarge", Capacity.SPOT)
ON_DEMAND = replace(SPOT, capacity=Capacity.ON_DEMAND)
GCP = Market("gcp", "us-central1", "us-central1-a", "g2-standard-4", Capacity.SPOT)
START_S = 1000.0


def nodes(count: int, market: Market = SPOT) -> list[Subject]:
    return [Subject(f"n-{i}", market, START_S + i, START_S + i) for i in range(count)]


def scripted(*events: MarketEvent) -> MarketScript:
    return MarketScript(events=events)


def test_fair_weather_takes_nothing() -> None:
    assert lm.preemptions(MarketScript(), START_S, START_S, START_S + 1e9, nodes(9)) == []
    assert not lm.is_out_of_stock(MarketScript(), START_S, START_S + 1e9, SPOT)
    assert lm.price_factor(MarketScript(), START_S, START_S, SPOT) == 1.0


@pytest.mark.parametrize(
    ("at_s", "out"), [(9.9, False), (10.0, True), (29.9, True), (30.0, False), (40.0, True), (50.0, False)]
)
def test_a_stockout_lasts_for_its_time_or_until_restocked(at_s: float, out: bool) -> None:
    script = scripted(
        MarketEvent(10, Action.STOCKOUT, "aws/*/spot", for_s=20),
        MarketEvent(40, Action.STOCKOUT, "aws/*"),
        MarketEvent(50, Action.RESTOCK, "*"),
    )
    assert lm.is_out_of_stock(script, START_S, START_S + at_s, SPOT) is out
    assert not lm.is_out_of_stock(script, START_S, START_S + at_s, GCP)


def test_a_price_changes_for_a_while_and_an_unknown_one_stays_unknown() -> None:
    script = scripted(MarketEvent(10, Action.PRICE, "*/spot", for_s=5, price_factor=2.5))
    offer = Offer(SPOT, 4, 16, price_uusd_per_h=1_000_001)
    assert lm.priced(offer, script, START_S, START_S + 12).price_uusd_per_h == 2_500_002
    assert lm.priced(offer, script, START_S, START_S + 15).price_uusd_per_h == 1_000_001
    unknown = replace(offer, price_uusd_per_h=None)
    assert lm.priced(unknown, script, START_S, START_S + 12).price_uusd_per_h is None


def test_a_scheduled_preemption_takes_the_oldest_once_with_its_notice() -> None:
    script = scripted(MarketEvent(60, Action.PREEMPT, "aws/*", notice_s=30, count=2))
    now_s = START_S + 60.4
    taken = lm.preemptions(script, START_S, START_S + 59, now_s, [*nodes(3), *nodes(2, GCP)])
    assert [(p.launch_id, p.noticed_at_s, p.deadline_s) for p in taken] == [
        ("n-0", now_s, now_s + 30),
        ("n-1", now_s, now_s + 30),
    ]
    assert "30 s of notice" in taken[0].reason
    assert lm.preemptions(script, START_S, now_s, now_s + 1, nodes(3)) == []


def test_on_demand_booting_and_already_taken_nodes_are_not_taken() -> None:
    script = replace(scripted(MarketEvent(1, Action.PREEMPT)), hazard_per_h={"*": 1e9})
    booting = Subject("b", SPOT, START_S)
    noticed = Subject("t", SPOT, START_S, START_S, taken_from_s=START_S + 5)
    subjects = [*nodes(2, ON_DEMAND), booting, noticed]
    assert lm.preemptions(script, START_S, START_S, START_S + 3600, subjects) == []


@given(seed=st.integers(), name=st.text(min_size=1), rate=st.floats(0.01, 1e4))
def test_chance_is_the_same_whenever_it_is_asked(seed: int, name: str, rate: float) -> None:
    script = MarketScript(seed=seed, hazard_per_h={"gcp/*": 0.0, "*": rate}, launch_delay_s=(2, 5))
    subject = Subject(name, SPOT, START_S, START_S)
    life_s = lm.lifetime_s(script, subject)
    assert 0 <= life_s < math.inf
    assert lm.lifetime_s(script, replace(subject, created_at_s=0)) == life_s
    assert lm.lifetime_s(script, replace(subject, market=GCP)) == math.inf
    assert 2 <= lm.launch_delay_s(script, name) <= 5


@given(st.floats(0.1, 50), st.lists(st.floats(0, 7200), min_size=1, max_size=20))
def test_each_node_dies_once_at_its_time_however_often_one_looks(rate: float, looks_s: list[float]) -> None:
    script = MarketScript(seed=7, hazard_per_h={"*": rate}, notice_s=10)
    alive = {subject.launch_id: subject for subject in nodes(5)}
    since_s, taken = START_S, set()
    for now_s in sorted(START_S + look_s for look_s in looks_s):
        for p in lm.preemptions(script, START_S, since_s, now_s, alive.values()):
            subject = alive.pop(p.launch_id)
            assert p.launch_id not in taken
            taken.add(p.launch_id)
            assert now_s >= subject.running_since_s + lm.lifetime_s(script, subject)
        since_s = now_s
    assert all(since_s < s.running_since_s + lm.lifetime_s(script, s) for s in alive.values())


def test_lifetimes_follow_the_hazard() -> None:
    script = MarketScript(hazard_per_h={"*": 2.0})
    lives_s = [lm.lifetime_s(script, Subject(f"n-{i}", SPOT, 0, 0)) for i in range(4000)]
    assert sum(lives_s) / 4000 == pytest.approx(1800, rel=0.05)
    assert sum(life_s > 1800 for life_s in lives_s) / 4000 == pytest.approx(math.exp(-1), rel=0.05)


def test_scripted_boot_failures_hit_the_first_launches_after_them() -> None:
    script = scripted(MarketEvent(1.5, Action.BOOT_FAILURE, "aws/*", count=2))
    launched = [*nodes(5), Subject("g", GCP, START_S + 2)]
    failed = [s.launch_id for s in launched if lm.fails_to_boot(script, START_S, s, launched)]
    assert failed == ["n-2", "n-3"]


def test_boots_fail_at_the_given_rate() -> None:
    script = MarketScript(boot_failure_rate=0.3)
    failed = sum(lm.fails_to_boot(script, 0, Subject(f"n-{i}", SPOT, 0), []) for i in range(4000))
    assert failed / 4000 == pytest.approx(0.3, abs=0.03)


@pytest.mark.parametrize(
    ("script", "field"),
    [
        ({"launch_delay_s": (5, 2)}, "launch_delay"),
        ({"boot_failure_rate": 1.5}, "boot_failures"),
        ({"hazard_per_h": {"*": -1}}, "hazard_per_hour"),
        ({"events": (MarketEvent(-1, Action.PREEMPT),)}, "script[0]"),
        ({"events": (MarketEvent(1, Action.PREEMPT, count=0),)}, "script[0].count"),
        ({"events": (MarketEvent(1, Action.PRICE, price_factor=0),)}, "script[0].price_factor"),
    ],
)
def test_a_script_without_sense_is_refused(script: dict[str, object], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MarketScript(**script)  # type: ignore[arg-type]
    assert [problem.field for problem in caught.value.problems] == [field]


OFFER = Offer(SPOT, 4, 16, "A10G", 1, price_uusd_per_h=500_000)
SLICE = Offer(GCP, 4, 16, "TPU-V4", 4, hosts=9, price_uusd_per_h=500_000)
SPEC = LaunchSpec("n-1", "fleet", "local", OFFER, "127.0.0.2:20000")


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        (replace(SPEC, launch_id=""), InvalidRequest),
        (replace(SPEC, launch_id="../../etc"), InvalidRequest),
        (replace(SPEC, launch_id="a" * 64), InvalidRequest),
        (replace(SPEC, offer=replace(OFFER, market=replace(SPOT, zone="mars-1a"))), InvalidRequest),
        (replace(SPEC, offer=SLICE), Unsupported),
        (replace(SPEC, max_price_uusd_per_h=499_999), PriceTooHigh),
    ],
)
def test_launches_are_refused_as_a_cloud_would(spec: LaunchSpec, refusal: type[Exception]) -> None:
    catalogue = {offer.market.key: offer for offer in (OFFER, SLICE)}
    with pytest.raises(refusal):
        lm.admit(spec, catalogue, MarketScript(), START_S, START_S)


def test_a_launch_is_sold_at_the_present_price_unless_out_of_stock() -> None:
    script = scripted(MarketEvent(0, Action.PRICE, price_factor=0.5), MarketEvent(5, Action.STOCKOUT))
    sold = lm.admit(replace(SPEC, max_price_uusd_per_h=250_000), {SPOT.key: OFFER}, script, START_S, START_S)
    assert sold.price_uusd_per_h == 250_000
    with pytest.raises(Stockout) as caught:
        lm.admit(SPEC, {SPOT.key: OFFER}, script, START_S, START_S + 5)
    assert caught.value.cloud == "aws"


def test_a_market_sells_no_more_than_its_stock() -> None:
    script = MarketScript(stock=2)
    assert lm.admit(SPEC, {SPOT.key: OFFER}, script, START_S, START_S, taken=1).market == SPOT
    with pytest.raises(Stockout, match="out of stock"):
        lm.admit(SPEC, {SPOT.key: OFFER}, script, START_S, START_S, taken=2)
