"""Receipts and bills as text and JSON."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

from pydantic import TypeAdapter

from tradewind.cost.compare import SingleCloud
from tradewind.cost.receipt import Bill, Receipt, bill, receipt
from tradewind.cost.render import render_bill, render_receipt
from tradewind.model import EndReason, Offer, Phase
from tradewind.states import JobState

History = Any  # the builder of conftest.py


def trained(history: History) -> History:
    history.job("j", tenant="vision").node("n", 0.0, 2.0).hold("j", "n", 2.0).phase("j", 2.0, Phase.STARTING)
    history.steps("j", 4.0, 8.0, 1, 4).phase("j", 9.0, Phase.DONE).state("j", 9.0, JobState.SUCCEEDED)
    return history.gone("n", 10.0, EndReason.TERMINATED)


def amounts(text: str, first: str, last: str) -> list[Decimal]:
    """The exact amounts of the lines from `first` to `last`."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith(first))
    end = next(i for i, line in enumerate(lines) if i >= begin and line.startswith(last))
    return [Decimal(line.split("$")[1].split()[0]) for line in lines[begin : end + 1]]


def test_the_lines_of_a_receipt_add_up_as_printed(history: History) -> None:
    text = render_receipt(receipt(trained(history).ledger, "j", 20.0))
    *labels, total = amounts(text, "useful", "total")
    assert labels == [Decimal("0.004"), Decimal("0.002"), Decimal("0.002")]
    assert sum(labels) == total
    assert "tenant vision, succeeded, 9.0s" in text
    assert "4 steps (0 recomputed), 40 samples, 1 attempt, 0 preemptions" in text
    assert "saved $0.0080 (50.0%)" in text
    assert "simulated" not in text


def test_every_amount_of_the_local_cloud_is_marked(history: History) -> None:
    ledger = trained(history.simulated()).ledger
    for text in (render_receipt(receipt(ledger, "j", 20.0)), render_bill(bill(ledger, 20.0))):
        heads = [line for line in text.splitlines() if "cost" in line.split("(")[0]]
        assert heads
        assert all(line.endswith("(simulated)") or "(simulated)   share" in line for line in heads)
        alone = [line for line in text.splitlines() if line.startswith(("paid", "effective", "on-demand", "Bill"))]
        assert all("(simulated)" in line for line in alone)


def test_bill_tells_jobs_overhead_markets_and_nodes(history: History) -> None:
    text = render_bill(bill(trained(history).ledger, 20.0))
    assert amounts(text, "overhead", "overhead") == [Decimal("0.002")]
    assert "aws/use1-az4/g5.xlarge/spot" in text
    assert "terminated" in text
    assert "now $0.00 per hour" in text


def test_unknown_prices_are_said_aloud(history: History, gpu_offer: Offer) -> None:
    unknown = replace(gpu_offer, price_uusd_per_h=None, on_demand_uusd_per_h=None)
    history.job("j").node("n", 0.0, 0.0, offer=unknown).hold("j", "n", 0.0)
    assert "no price is known for n" in render_receipt(receipt(history.ledger, "j", 5.0))
    assert "on-demand  unknown" in render_receipt(receipt(history.ledger, "j", 5.0))
    assert "+ unpriced" in render_bill(bill(history.ledger, 5.0))


def test_nothing_yet_renders(history: History) -> None:
    history.job("j")
    text = render_receipt(receipt(history.ledger, "j", 5.0))
    assert amounts(text, "total", "total") == [Decimal(0)]
    assert "0 nodes" in render_bill(bill(history.ledger, 5.0))


def test_json_and_back(history: History) -> None:
    ledger = trained(history).ledger
    told, all_of_it = receipt(ledger, "j", 20.0), bill(ledger, 20.0)
    receipts, bills = TypeAdapter(Receipt), TypeAdapter(Bill)
    assert receipts.validate_json(receipts.dump_json(told)) == told
    assert bills.validate_json(bills.dump_json(all_of_it)) == all_of_it


def test_a_receipt_prints_as_its_text(history: History) -> None:
    found, whole = receipt(trained(history).ledger, "j", 20.0), bill(trained(history).ledger, 20.0)
    assert str(found) == render_receipt(found)
    assert str(whole) == render_bill(whole)


def test_one_cloud_is_compared_only_where_there_were_several_and_never_as_if_more_was_paid(history: History) -> None:
    alone = receipt(trained(history).ledger, "j", 20.0)
    ideal = SingleCloud("azure", alone.total_uusd // 2)
    assert "one cloud" not in render_receipt(replace(alone, single_cloud=ideal))
    other = replace(alone.markets[0], market="gcp/us-central1-a/g2-standard-4/spot")
    several = replace(alone, markets=(*alone.markets, other), single_cloud=ideal)
    assert "one cloud  no less than $0.0040: on azure alone" in render_receipt(several)
    assert "less than here" not in render_receipt(several)
    dear = replace(several, single_cloud=replace(ideal, cost_uusd=2 * alone.total_uusd))
    assert "even so dearer than here" in render_receipt(dear)


def test_old_price_lists_are_told_with_their_age(history: History) -> None:
    ledger = trained(history).ledger
    assert "lists that are old" not in render_receipt(receipt(ledger, "j", 20.0))
    found = receipt(ledger, "j", 4_102_444_800.0)  # 2100: any list is old then
    assert found.old_lists_days["aws"] > 180
    assert f"aws {found.old_lists_days['aws']} days" in render_receipt(found)
