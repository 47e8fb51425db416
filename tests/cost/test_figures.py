"""Summaries, forecasts, comparisons and estimates, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tradewind.cost.compare import cheapest_single_cloud
from tradewind.cost.extras import GIB, MONTH_MS, Save, estimate
from tradewind.cost.figures import OVERHEAD_NAME, summary
from tradewind.cost.focus import COLUMNS, focus_csv, summary_csv
from tradewind.cost.labels import Label
from tradewind.cost.outlook import forecast, job_rate
from tradewind.cost.page import Report, render_page
from tradewind.cost.receipt import receipt
from tradewind.cost.render import render_receipt, render_summary, render_units
from tradewind.events import JobSubmitted
from tradewind.model import EndReason, JobSpec, Offer, Phase

History = Any  # the builder of conftest.py
DAY_S = 86_400.0


def two_days(history: History) -> History:
    """Two jobs on two nodes, from an hour before midnight to an hour after it."""
    history.job("a", tenant="research").job("b", tenant="vision")
    for name, job in (("n", "a"), ("m", "b")):
        history.node(name, DAY_S - 3600.0, DAY_S - 3600.0).hold(job, name, DAY_S - 3600.0)
        history.phase(job, DAY_S - 3600.0, Phase.TRAINING)
        history.gone(name, DAY_S + 3600.0, EndReason.TERMINATED)
    history.steps("a", DAY_S - 3600.0, DAY_S + 1800.0, 1, 90)
    history.release("a", "n", DAY_S + 1800.0)
    return history


def by_name(found: Any) -> dict[str, int]:
    return {line.name: line.cost_uusd for line in found.lines}


def test_the_same_cost_by_each_word(history: History) -> None:
    ledger = two_days(history).ledger
    now_s = DAY_S * 2
    assert by_name(summary(ledger, "day", now_s)) == {"1970-01-01": 7_200_000, "1970-01-02": 7_200_000}
    assert by_name(summary(ledger, "job", now_s)) == {"b": 7_200_000, "a": 5_400_000, OVERHEAD_NAME: 1_800_000}
    assert list(by_name(summary(ledger, "tenant", now_s))) == ["vision", "research", OVERHEAD_NAME]
    assert by_name(summary(ledger, "market", now_s)) == {"aws/use1-az4/g5.xlarge/spot": 14_400_000}
    assert by_name(summary(ledger, "cloud", now_s)) == {"aws": 14_400_000}
    assert by_name(summary(ledger, "label", now_s))["useful"] == 5_400_000
    assert by_name(summary(ledger, "job", now_s, from_s=DAY_S + 5.0))["a"] == 1_800_000  # whole days


def test_a_line_says_what_an_hour_cost_and_how_it_was_used(history: History) -> None:
    total = summary(two_days(history).ledger, "job", DAY_S * 2).total
    assert total.accelerator_hours == pytest.approx(4.0)
    assert total.paid_uusd_per_accelerator_h == 3_600_000
    assert total.effective_uusd_per_accelerator_h == 9_600_000  # 14.4 dollars for an hour and a half of new steps
    assert total.on_demand_uusd == 28_800_000
    assert total.saved_uusd == 14_400_000
    assert total.utilisation is not None
    assert (total.utilisation.allocated, total.utilisation.useful) == pytest.approx((0.875, 0.375))


def test_teams_are_parts_of_tenants(history: History) -> None:
    for job_id, team in (("a", "speech"), ("b", "")):
        spec = JobSpec(name=job_id, entrypoint="x", tenant="research", team=team)
        history.events.append(JobSubmitted(at_s=0.0, job_id=job_id, spec=spec))
        history.node(job_id, 0.0, 0.0).hold(job_id, job_id, 0.0)
    assert by_name(summary(history.ledger, "team", 10.0)) == {"research": 10_000, "research/speech": 10_000}


def test_an_unknown_price_is_never_nothing(history: History, gpu_offer: Offer) -> None:
    unknown = replace(gpu_offer, price_uusd_per_h=None, on_demand_uusd_per_h=None)
    history.node("n", 0.0, 0.0, offer=unknown)
    total = summary(history.ledger, "day", 5.0).total
    assert (total.unpriced_s, total.saved_uusd, total.on_demand_uusd) == (5.0, None, None)
    assert total.paid_uusd_per_accelerator_h is None
    assert "+ unpriced" in render_summary(summary(history.ledger, "day", 5.0))


# --- to the end of a job ----------------------------------------------------------------------------------------------


def steady(history: History, seconds: list[float], total_steps: int) -> History:
    """Ten steps in each of these times."""
    history.job("j").node("n", 0.0, 0.0).hold("j", "n", 0.0).phase("j", 0.0, Phase.TRAINING)
    at_s = 0.0
    for number, took_s in enumerate(seconds):
        history.steps("j", at_s, at_s + took_s, number * 10 + 1, number * 10 + 10)
        history.events[-1] = replace(history.events[-1], total_steps=total_steps)
        at_s += took_s
    return history


def test_a_steady_job_is_forecast_exactly(history: History) -> None:
    ledger = steady(history, [10.0] * 12, total_steps=240).ledger
    found = forecast(ledger, "j", 120_000, 120.0)
    assert found is not None
    assert (found.total_uusd, found.low_uusd, found.high_uusd) == (240_000, 240_000, 240_000)
    assert (found.ends_at_s, found.steps_left) == (240.0, 120)
    assert job_rate(ledger, "j", 120.0) == 3_600_000


def test_an_unsteady_job_has_a_range_around_its_forecast(history: History) -> None:
    ledger = steady(history, [5.0, 15.0] * 6, total_steps=240).ledger
    found = forecast(ledger, "j", 120_000, 120.0)
    assert found is not None
    assert 120_000 < found.low_uusd < found.total_uusd == 240_000 < found.high_uusd


def test_without_a_number_of_steps_there_is_no_forecast(history: History) -> None:
    history.job("j").node("n", 0.0, 0.0).hold("j", "n", 0.0).phase("j", 0.0, Phase.TRAINING)
    history.steps("j", 0.0, 10.0, 1, 10)
    assert forecast(history.ledger, "j", 1, 10.0) is None


# --- comparisons and estimates ----------------------------------------------------------------------------------------


def test_the_cheapest_single_cloud_must_sell_everything() -> None:
    prices = {("A100", "aws"): 2_000_000, ("A100", "gcp"): 1_000_000, ("L4", "aws"): 300_000}
    found = cheapest_single_cloud({"A100": 10.0, "L4": 1.0}, ("aws", "gcp"), lambda *asked: prices.get(asked))
    assert found is not None
    assert (found.cloud, found.cost_uusd) == ("aws", 20_300_000)
    assert cheapest_single_cloud({"H100": 1.0}, ("aws",), lambda *asked: prices.get(asked)) is None
    assert cheapest_single_cloud({"no-such-thing": 1.0}) is None  # by the built-in list


def test_checkpoints_cost_storage_and_leave_a_cloud_only_for_another() -> None:
    at_home = [Save(0, 10 * GIB, "s3", ("aws",))]
    assert estimate(at_home, MONTH_MS).storage_uusd == 230_000
    assert estimate(at_home, MONTH_MS).egress_uusd == 0
    away = estimate([Save(0, 10 * GIB, "s3", ("aws", "gcp"))], MONTH_MS)
    assert (away.egress_gib, away.egress_uusd) == (5.0, 600_000)
    assert estimate([Save(0, 10 * GIB, "", ("aws",))], MONTH_MS).storage_uusd == 0  # a folder
    rolling = [Save(i * 1000, GIB, "gs", ("gcp",)) for i in range(10)]
    assert estimate(rolling, 10_000).stored_gib == 3.0


# --- as text ----------------------------------------------------------------------------------------------------------


def test_a_receipt_tells_samples_epochs_tokens_and_use(history: History) -> None:
    found = receipt(steady(history, [10.0] * 12, total_steps=240).ledger, "j", 120.0)
    text = render_receipt(found)
    assert found.uusd_per_million_samples == 100_000_000  # 0.12 dollars for 1200 samples
    assert "samples    $100.00 per million" in text
    assert "forecast   $0.24 in all" in text
    assert "use        100% allocated, 100% busy, 100% useful" in text
    assert render_units(found, 1000, 10) == "epochs     $0.10 each\ntokens     $10.00 per million\n"


def test_focus_rows_add_up_to_the_bill_and_have_every_column(history: History) -> None:
    import csv

    ledger = two_days(history).ledger
    rows = list(csv.DictReader(focus_csv(ledger, "demo", DAY_S * 2)))
    assert list(rows[0]) == list(COLUMNS)
    assert sum(round(float(row["BilledCost"]) * 1e6) for row in rows) == 14_400_000
    assert {row["ChargePeriodStart"] for row in rows} == {"1970-01-01T00:00:00Z", "1970-01-02T00:00:00Z"}
    assert {row["ChargePeriodEnd"] for row in rows} == {"1970-01-02T00:00:00Z", "1970-01-03T00:00:00Z"}
    assert {row["BillingPeriodEnd"] for row in rows} == {"1970-02-01T00:00:00Z"}
    useful = [row for row in rows if row["x_Label"] == "useful"]
    assert {(row["ResourceId"], row["x_Tenant"], row["PricingCategory"]) for row in useful} == {
        ("i-n", "research", "Dynamic")
    }
    mandatory = "BilledCost BillingAccountId BillingCurrency ChargeCategory ContractedCost EffectiveCost ListCost"
    assert all(row[name] for row in rows for name in (*mandatory.split(), "ProviderName", "ServiceName", "PricingUnit"))


def test_csv_of_a_summary_ends_with_the_total(history: History) -> None:
    lines = summary_csv(summary(two_days(history).ledger, "tenant", DAY_S * 2)).splitlines()
    assert lines[0].startswith("tenant,cost_usd,")
    assert [line.split(",")[:2] for line in lines[1:]] == [
        ["vision", "7.200000"],
        ["research", "5.400000"],
        ["(overhead)", "1.800000"],
        ["total", "14.400000"],
    ]


def test_the_page_needs_no_network_and_names_are_escaped(history: History) -> None:
    history.job("<script>", tenant="x").node("k", 0.0, 0.0, DAY_S).hold("<script>", "k", 0.0)
    ledger, now_s = two_days(history.simulated()).ledger, DAY_S * 2
    words = ("day", "tenant", "job", "market")
    page = render_page(Report("demo", *(summary(ledger, word, now_s) for word in words)))
    assert "http" not in page
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "Simulated" in page
    assert page.count("<rect") >= 3
    assert f'title="{Label.USEFUL}' in page


def test_a_page_of_nothing() -> None:
    from tradewind.cost.ledger import Ledger

    empty = Ledger()
    page = render_page(Report("demo", *(summary(empty, word, 0.0) for word in ("day", "tenant", "job", "market"))))
    assert "Nothing was billed yet." in page
