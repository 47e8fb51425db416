"""The ledger beside bills as AWS, Google and Azure write them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from tradewind.cost.bills import Charge, parse, parse_focus, read
from tradewind.cost.focus import focus_csv
from tradewind.cost.reconcile import Reconciliation, compare, render
from tradewind.errors import ConfigError

History = Any  # the builder of conftest.py
DAY_S = 86_400.0

CUR_HEAD = (
    "lineItem/LineItemType,lineItem/UsageStartDate,lineItem/ProductCode,lineItem/UsageType,lineItem/ResourceId,"
    "lineItem/UsageAmount,lineItem/UnblendedCost,resourceTags/user:tradewind-launch-id\n"
)


def cur(*rows: str) -> str:
    return CUR_HEAD + "".join(f"{row}\n" for row in rows)


def usage(instance: str, hours: float, usd: float, launch_id: str = "") -> str:
    return f"Usage,1970-01-01T00:00:00Z,AmazonEC2,SpotUsage:g5.xlarge,{instance},{hours},{usd},{launch_id}"


@pytest.fixture
def ledger(history: History) -> list[Charge]:
    """Two nodes of AWS: one for two hours, one for half an hour. 3.60 dollars an hour."""
    history.node("n", 0.0, 0.0, 7200.0).node("m", 0.0, 0.0, 1800.0)
    return parse_focus("".join(focus_csv(history.ledger, "demo", DAY_S)))


def reasons(found: Reconciliation) -> dict[str, str]:
    return {each.resource: each.why for each in found.differences}


def test_a_bill_that_agrees(ledger: list[Charge]) -> None:
    found = compare(ledger, parse(cur(usage("i-n", 2.0, 7.20), usage("i-m", 0.5, 1.80))))
    assert found.agrees
    assert (found.agreeing, found.ledger_uusd, found.billed_uusd) == (2, 9_000_000, 9_000_000)
    assert "2 machines agree" in render(found)


def test_each_kind_of_difference_has_its_reason(ledger: list[Charge]) -> None:
    bill = cur(
        usage("i-n", 2.0, 8.00),
        usage("i-stranger", 1.0, 5.00),
        usage("i-orphan", 1.0, 4.00, "tw-unknown"),
        "Usage,1970-01-01T00:00:00Z,AmazonEC2,EBS:VolumeUsage.gp3,vol-1,10,0.80,",
        "Tax,1970-01-01T00:00:00Z,AmazonEC2,,,,1.23,",
    )
    found = compare(ledger, parse(bill))
    why = reasons(found)
    assert why["i-n"] == "price: billed at $4.00/h, in the ledger $3.60/h: the spot price moved between our looks"
    assert why["i-stranger"] == "this fleet did not launch it"
    assert "does not know it" in why["i-orphan"]
    assert "first hour" in why["i-m"]
    assert {(each.what, each.cost_uusd) for each in found.others} == {
        ("EBS:VolumeUsage.gp3", 800_000),
        ("Tax", 1_230_000),
    }
    told = sum(each.billed_uusd for each in found.differences) + sum(each.cost_uusd for each in found.others)
    assert told + found.agreeing_billed_uusd == found.billed_uusd == 19_030_000
    assert not found.agrees
    assert "4 machines differ" in render(found)


def test_a_difference_in_time_is_told_as_such(ledger: list[Charge]) -> None:
    found = compare(ledger, parse(cur(usage("i-n", 3.0, 10.80), usage("i-m", 0.5, 1.80))))
    assert reasons(found) == {"i-n": "time: billed for 3h00m, in the ledger 2h00m"}


def test_only_the_days_and_the_cloud_of_the_bill_count(history: History) -> None:
    history.node("n", 0.0, 0.0, DAY_S + 3600.0)
    ours = parse_focus("".join(focus_csv(history.ledger, "demo", DAY_S * 3)))
    found = compare(ours, parse(cur(usage("i-n", 24.0, 86.40))))
    assert found.agrees
    assert found.ledger_uusd == 86_400_000
    azure = "Date,ResourceId,MeterCategory,MeterName,Quantity,CostInBillingCurrency\n"
    azure += "01/01/1970,/x/vm-1,Storage,P10,1,2.50\n"
    other = compare(ours, parse(azure))
    assert (other.clouds, other.ledger_uusd, other.billed_uusd) == (("azure",), 0, 2_500_000)


def test_the_second_spelling_of_aws() -> None:
    text = (
        "line_item_line_item_type,line_item_usage_start_date,line_item_usage_type,line_item_resource_id,"
        "line_item_usage_amount,line_item_unblended_cost,resource_tags\n"
        'Usage,2025-03-01 00:00:00,USE2-BoxUsage:p4d.24xlarge,i-1,1.5,49.1,"{""tradewind-launch-id"": ""tw-9""}"\n'
    )
    assert parse(text) == [
        Charge("aws", "i-1", "2025-03-01", 49_100_000, "USE2-BoxUsage:p4d.24xlarge", True, 1.5, "tw-9", False)
    ]


def test_google_adds_parts_of_a_machine_and_its_credits(history: History) -> None:
    head = "service.description,sku.description,usage_start_time,resource.name,cost,credits,labels\n"
    rows = (
        "Compute Engine,Spot Preemptible N1 Instance Core,1970-01-01 05:00:00 UTC,projects/p/instances/tw-a,2.0,,",
        "Compute Engine,Nvidia T4 GPU attached to Spot VMs,1970-01-01 05:00:00 UTC,instances/tw-a,3.0,"
        '"[{""amount"": -0.5}]",',
        "Compute Engine,Storage PD Capacity,1970-01-01 05:00:00 UTC,disks/d,1.0,,",
    )
    bill = parse(head + "\n".join(rows) + "\n")
    assert [(each.resource, each.cost_uusd, each.is_machine) for each in bill] == [
        ("tw-a", 2_000_000, True),
        ("tw-a", 2_500_000, True),
        ("d", 1_000_000, False),
    ]
    assert bill[0].is_spot


def test_a_machine_is_found_by_its_launch_id_too(history: History) -> None:
    history.node("tw-a", 0.0, 0.0, 3600.0)
    ours = parse_focus("".join(focus_csv(history.ledger, "demo", DAY_S)))
    found = compare(ours, parse(cur(usage("i-renamed", 1.0, 3.60, "tw-a"))))
    assert found.agrees


def test_azure_with_its_tags_without_braces() -> None:
    text = (
        "Date,ResourceId,MeterCategory,MeterName,Quantity,CostInBillingCurrency,ChargeType,Tags\n"
        "03/31/2025,/subscriptions/s/virtualMachines/tw-b,Virtual Machines,NC24 Spot,2,7.5,Usage,"
        '"""tradewind-launch-id"": ""tw-b"""\n'
    )
    (charge,) = parse(text)
    assert (charge.resource, charge.day, charge.hours, charge.launch_id) == ("tw-b", "2025-03-31", 2.0, "tw-b")
    assert charge.is_machine
    assert charge.is_spot


def test_a_file_that_is_no_bill_says_what_is_known(tmp_path: Path) -> None:
    path = tmp_path / "bill.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match="no bill that is known"):
        read(path)
    path.write_text(cur(usage("i-n", 1.0, 1.0).replace(",1.0,1.0", ",1.0,many")))
    with pytest.raises(ConfigError, match=r"bill.csv:2.*many"):
        read(path)


def test_packed_bills_are_read(tmp_path: Path) -> None:
    path = tmp_path / "bill.csv.gz"
    path.write_bytes(gzip.compress(cur(usage("i-n", 1.0, 3.5)).encode()))
    assert [charge.cost_uusd for charge in read(path)] == [3_500_000]


def test_time_and_price_are_told_apart_by_what_explains_more(ledger: list[Charge]) -> None:
    short = compare(ledger, parse(cur(usage("i-n", 2.0, 7.20), usage("i-m", 0.51, 1.836))), tolerance=0.0)
    assert reasons(short) == {"i-m": "time: billed for 30m36s, in the ledger 30m00s"}
    both = compare(ledger, parse(cur(usage("i-n", 3.0, 12.00), usage("i-m", 0.5, 1.80))))
    assert reasons(both)["i-n"].startswith("time: billed for 3h00m, in the ledger 2h00m; and price: billed at $4.00/h")


def test_a_savings_plan_is_named_and_discounts_are_told_by_their_kind(ledger: list[Charge]) -> None:
    plan = "SavingsPlan{},1970-01-01T00:00:00Z,AmazonEC2,BoxUsage:g5.xlarge,i-n,2.0,{},"
    bill = cur(
        plan.format("CoveredUsage", 7.20),
        plan.format("Negation", -7.20),
        "EdpDiscount,1970-01-01T00:00:00Z,AmazonEC2,SpotUsage:g5.xlarge,i-m,0,-0.10,",
        usage("i-m", 0.5, 1.80),
    )
    found = compare(ledger, parse(bill))
    assert "savings plan" in reasons(found)["i-n"]
    assert [each.what for each in found.others] == ["EdpDiscount: SpotUsage:g5.xlarge"]


def test_bills_in_other_currencies() -> None:
    google = "service.description,sku.description,usage_start_time,resource.name,cost,currency,{}credits,cost_type\n"
    row = "Compute Engine,N1 Instance Core,1970-01-01 05:00:00 UTC,tw-a,0.92,EUR,{},{}\n"
    with_rate = google.format("currency_conversion_rate,") + row.format('0.92,"[{""amount"": -0.46}]"', "regular")
    (charge,) = parse(with_rate + "\n")
    assert (charge.cost_uusd, charge.credits_uusd) == (500_000, -500_000)
    with pytest.raises(ConfigError, match="amounts are in EUR"):
        parse(google.format("") + row.format("", "regular"))
    azure = "date,ResourceId,meterCategory,costInBillingCurrency,costInUsd,billingCurrency\n"
    (there,) = parse(azure + "03/31/2025,/x/virtualMachines/VM-1,Virtual Machines,9.2,10,EUR\n")
    assert (there.resource, there.cost_uusd) == ("vm-1", 10_000_000)


def test_what_google_bills_beside_a_machine_is_no_machine() -> None:
    head = "service.description,sku.description,usage_start_time,resource.name,cost,cost_type\n"
    rows = [
        "Compute Engine,Licensing Fee for Ubuntu Pro on VM with 4 VCPU core,2025-03-01 05:00:00 UTC,tw-a,1,regular",
        "Compute Engine,A3 Instance Core,2025-03-01 05:00:00 UTC,tw-a,1,adjustment",
        "Invoice,Tax,2025-03-01 05:00:00 UTC,,1,tax",
        "Cloud TPU,TpuV5e Preemptible,2025-03-01T23:30:00-08:00,tw-b,1,regular",
    ]
    found = parse(head + "\n".join(rows) + "\n")
    assert [each.is_machine for each in found] == [False, False, False, True]
    assert [each.what for each in found[1:3]] == ["adjustment: A3 Instance Core", "Tax"]
    assert found[3].day == "2025-03-02", "in UTC"


def test_machines_without_names_are_told_as_such(ledger: list[Charge]) -> None:
    head = "service.description,sku.description,usage_start_time,cost\n"
    found = compare(ledger, parse(head + "Compute Engine,A3 Instance Core,1970-01-01 05:00:00 UTC,5\n"))
    assert "names no machine" in render(found)


def test_files_that_are_no_csv_or_empty_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "bill.parquet"
    for content, said in (
        (b"PAR1xxxx", "Parquet"),
        (CUR_HEAD.encode(), "no charges"),
        (b"\x1f\x8bzz", "cannot be read"),
    ):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=said):
            read(path)
