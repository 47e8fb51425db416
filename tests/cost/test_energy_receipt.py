"""A receipt's electricity: what the job held, busy where the accelerators worked."""

from __future__ import annotations

from typing import Any

import pytest

from tradewind.cost.energy import Known
from tradewind.cost.energy_receipt import BUSY, footprint_of
from tradewind.cost.grid_file import Grid
from tradewind.cost.receipt import receipt
from tradewind.cost.render import _three, render_receipt
from tradewind.events import EnergyMeasured
from tradewind.model import Capacity, Market, Offer, Phase


def one_hour(history: Any, resources: dict[str, float] | None = None) -> Any:
    """A job that trains for an hour on a node of one A10G (4 vCPUs, 16 GiB, us-east-1)."""
    history.job("j").node("n", 0.0, 0.0, 3600.0).hold("j", "n", 0.0, resources)
    return history.phase("j", 0.0, Phase.TRAINING).steps("j", 0.0, 3600.0, 1, 100)


def test_a_busy_hour_of_a_whole_node(history: Any) -> None:
    found = receipt(one_hour(history).ledger, "j", 3600.0)
    watts = 150 * (0.2 + 0.8 * BUSY) + 4 * (0.7 + 2.8 * BUSY) + 16 * 0.392
    assert found.footprint is not None
    assert found.footprint.kwh == pytest.approx(watts * 1.2 / 1000, rel=0.01)
    assert found.footprint.operational_g == pytest.approx(found.footprint.kwh * 415.8)
    assert found.footprint.known is Known.ESTIMATED
    assert "kWh" in render_receipt(found)
    assert "(estimated, PUE 1.20)" in render_receipt(found)


def test_half_of_the_accelerators_is_half_of_the_electricity(history: Any) -> None:
    whole = receipt(one_hour(history).ledger, "j", 3600.0).footprint
    half = receipt(one_hour(type(history)(), {"CPU": 1.0, "GPU": 0.5}).ledger, "j", 3600.0).footprint
    assert whole is not None
    assert half is not None
    assert half.kwh == pytest.approx(whole.kwh / 2, rel=0.01)


def test_a_node_without_accelerators_is_shared_by_what_was_paid(history: Any) -> None:
    market = Market("gcp", "us-central1", "us-central1-a", "e2-standard-4", Capacity.ON_DEMAND)
    offer = Offer(market, 4.0, 16.0, price_uusd_per_h=3_600_000, on_demand_uusd_per_h=3_600_000)
    history.job("j", foreign=True).node("n", 0.0, 0.0, 3600.0, offer=offer).hold("j", "n", 0.0, {"CPU": 2.0})
    found = receipt(history.ledger, "j", 3600.0)
    assert found.footprint is not None
    share = found.total_uusd / 3_600_000
    assert found.footprint.kwh == pytest.approx(share * (4 * 2.1 + 16 * 0.392) * 1.12 / 1000, rel=0.01)


def test_a_job_that_held_nothing_took_nothing(history: Any) -> None:
    found = receipt(history.job("j").ledger, "j", 10.0)
    assert found.footprint is None
    assert "kWh" not in render_receipt(found)


def measured(history: Any, seconds: float, cards: float | None, processors: float | None) -> Any:
    event = EnergyMeasured(at_s=seconds, launch_id="n", seconds=seconds, card_joules=cards, processor_joules=processors)
    history.events.append(event)
    return history


def test_a_node_with_meters_took_what_they_read(history: Any) -> None:
    ledger = measured(one_hour(history), 3000.0, 3000.0 * 90.0, 3000.0 * 30.0).ledger  # 90 and 30 W
    found = receipt(ledger, "j", 3600.0).footprint
    assert found is not None
    assert found.kwh == pytest.approx((90 + 30) * 1.2 / 1000, rel=0.001)
    assert found.known is Known.MEASURED


def test_cards_alone_are_a_part(history: Any) -> None:
    ledger = measured(one_hour(history), 3000.0, 3000.0 * 90.0, None).ledger
    found = receipt(ledger, "j", 3600.0)
    assert found.footprint is not None
    estimated = 4 * (0.7 + 2.8 * BUSY) + 16 * 0.392
    assert found.footprint.kwh == pytest.approx((90 + estimated) * 1.2 / 1000, rel=0.001)
    assert "(partly measured, PUE 1.20)" in render_receipt(found)


def test_what_was_measured_is_shared_out_by_what_was_done(history: Any) -> None:
    """Half an hour of training, half an hour of nothing: the sum is the meter's, and the job has the larger part."""
    history.job("j").node("n", 0.0, 0.0, 3600.0).hold("j", "n", 0.0).release("j", "n", 1800.0)
    history.phase("j", 0.0, Phase.TRAINING).steps("j", 0.0, 1800.0, 1, 100)
    ledger = measured(history, 3600.0, 3600.0 * 100.0, 3600.0 * 20.0).ledger
    whole = footprint_of((account, account.entries) for account in ledger.accounts(3600.0))
    mine = receipt(ledger, "j", 3600.0).footprint
    assert whole is not None
    assert mine is not None
    assert whole.kwh == pytest.approx(120 * 1.2 / 1000, rel=0.001)
    assert 0.7 * whole.kwh < mine.kwh < 0.9 * whole.kwh


def test_the_longest_reading_counts_and_late_ones_change_a_closed_bill(history: Any) -> None:
    ledger = measured(one_hour(history), 1800.0, 1800.0 * 50.0, 1800.0 * 10.0).ledger
    before = receipt(ledger, "j", 4000.0).footprint
    for seconds, watts in ((3600.0, 80.0), (600.0, 500.0)):
        joules = {"card_joules": seconds * watts, "processor_joules": seconds * 10.0}
        ledger.apply(EnergyMeasured(at_s=4100.0, launch_id="n", seconds=seconds, **joules))
    after = receipt(ledger, "j", 4200.0).footprint
    assert before is not None
    assert after is not None
    assert before.kwh == pytest.approx(60 * 1.2 / 1000, rel=0.001)
    assert after.kwh == pytest.approx(90 * 1.2 / 1000, rel=0.001)


def test_a_reading_of_a_node_that_nobody_launched_is_left_alone(history: Any) -> None:
    ledger = one_hour(history).ledger
    ledger.apply(EnergyMeasured(at_s=1.0, launch_id="stranger", seconds=60.0, card_joules=1.0))
    found = receipt(ledger, "j", 3600.0).footprint
    assert found is not None
    assert found.known is Known.ESTIMATED


def test_carbon_by_the_hours_in_which_it_ran_and_of_one_step(history: Any) -> None:
    """The node ran in the first hour of 1970: 600 g/kWh then, 100 in the next one."""
    grid = Grid({"east": {0: 600.0, 1: 100.0}})
    found = receipt(
        one_hour(history).ledger, "j", 3600.0, lambda _, from_s, until_s: grid.mean("east", from_s, until_s)
    )
    assert found.footprint is not None
    assert found.footprint.hourly
    assert found.footprint.operational_g == pytest.approx(found.footprint.kwh * 600.0)
    assert found.sci_g_per_step == pytest.approx((found.footprint.total_g or 0.0) / 100)
    text = render_receipt(found)
    assert "grid by the hour" in text
    assert "g CO2e per step" in text
    elsewhere = receipt(history.ledger, "j", 3600.0, lambda *_: None).footprint
    assert elsewhere is not None
    assert not elsewhere.hourly


def test_the_mean_of_hours_that_are_known() -> None:
    grid = Grid({"east": {10: 100.0, 11: 200.0, 13: 600.0}})
    assert grid.mean("east", 10 * 3600.0, 12 * 3600.0) == 150.0
    assert grid.mean("east", 10.5 * 3600.0, 10.6 * 3600.0) == 100.0
    assert grid.mean("east", 12 * 3600.0, 14 * 3600.0) == 600.0
    assert grid.mean("east", 20 * 3600.0, 21 * 3600.0) is None
    assert grid.mean("west", 10 * 3600.0, 12 * 3600.0) is None


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.00721, "0.00721"), (33.64, "33.6"), (397.4, "397"), (999.6, "1,000"), (12345.6, "12,346")],
)
def test_amounts_are_written_without_exponents(amount: float, text: str) -> None:
    assert _three(amount) == text
