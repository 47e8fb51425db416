"""What can never start is told at submission, and nothing else is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.autoscaler.limits import Limits, Part, Rule
from tradewind.autoscaler.ray_snapshot import RayNode, RaySnapshot, RayStatus
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.model import LABEL_ACCELERATOR, JobSpec, Labels, Offer, Resources
from tradewind.prospects import doubt

GPU = {"CPU": 1.0, "GPU": 1.0}
ONE = make_offer("gcp/us-central1-a/g2", usd_per_h=0.50, cpus=4, gpus=1)
FOUR = make_offer("gcp/us-central1-a/g2-four", usd_per_h=3.00, cpus=16, gpus=4)
T4 = replace(make_offer("aws/us-east-1a/g4dn", usd_per_h=0.40, cpus=4, gpus=1), accelerator="T4")


def spec(workers: int = 1, resources: Resources | None = None, labels: Labels | None = None) -> JobSpec:
    return JobSpec(
        "a",
        "x",
        min_workers=workers,
        max_workers=workers,
        worker_resources=resources or GPU,
        worker_labels=labels or {},
    )


def sees(*offers: Offer, limits: Limits | None = None) -> View:
    return View(0.0, LoopSettings("lab", limits=limits or Limits()), offers=offers)


@pytest.mark.parametrize(
    ("workers", "limits", "told"),
    [
        (24, Limits(max_nodes=6), ""),
        (25, Limits(max_nodes=6), "it needs 25 at once, and the limit of 6 nodes allows 24"),
        (64, Limits(max_nodes=6), "it needs 64 at once, and the limit of 6 nodes allows 24"),
        (8, Limits(max_uusd_per_h=3_500_000), ""),
        (9, Limits(max_uusd_per_h=3_500_000), "it needs 9 at once, and the limit of $3.50 per hour allows 8"),
        (64, Limits(), ""),
        (9, Limits(rules=(Rule(Part(cloud="aws"), max_nodes=1),)), ""),
        (9, Limits(rules=(Rule(Part(tenant="default"), max_accelerators=8),)), "the limit of 8 accelerators of tenant"),
        (9, Limits(rules=(Rule(Part(tenant="other"), max_accelerators=8),)), ""),
        (64, Limits(launches_per_minute=1), ""),
    ],
)
def test_more_workers_at_once_than_a_limit_allows(workers: int, limits: Limits, told: str) -> None:
    said = doubt(spec(workers), [sees(ONE, FOUR, T4, limits=limits)])
    assert (told in said) if told else said == "", said


def test_an_accelerator_that_no_offer_has() -> None:
    for asked in (spec(labels={LABEL_ACCELERATOR: "H100"}), spec(resources={**GPU, "accelerator_type:H100": 0.001})):
        said = doubt(asked, [sees(ONE), sees(T4)])
        assert said == "its workers can never start: no offer has the accelerator H100: this fleet's have L4, T4"
    assert doubt(spec(labels={LABEL_ACCELERATOR: "T4"}), [sees(ONE), sees(T4)]) == ""
    several = doubt(spec(labels={LABEL_ACCELERATOR: "in(H100, H200)"}), [sees(ONE), sees(T4)])
    assert "no offer has the accelerator H100 or H200" in several
    for open_ in ("!T4", "in(H100, L4)", "!in(H100, T4)"):
        assert doubt(spec(labels={LABEL_ACCELERATOR: open_}), [sees(ONE), sees(T4)]) == ""


def test_what_is_too_large_for_all_offers() -> None:
    assert "no offer has GPU: 8 (the largest has 4)" in doubt(spec(resources={"GPU": 8.0}), [sees(ONE, FOUR)])


def test_nodes_that_nobody_bought_count() -> None:
    by_hand = RayNode("n", "", RayStatus.IDLE, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 64.0, "GPU": 8.0})
    view = sees(ONE, limits=Limits(max_nodes=2))
    assert doubt(spec(10), [replace(view, snapshot=RaySnapshot(nodes=(by_hand,)))]) == ""
    assert "allows 2" in doubt(spec(10), [view])


def test_where_too_little_is_known_nothing_is_said() -> None:
    assert doubt(spec(64), []) == ""
    assert doubt(spec(64), [sees(limits=Limits(max_nodes=1))]) == "", "no offers are listed yet"
    asks_itself = replace(spec(), min_workers=0, max_workers=0)
    assert doubt(asks_itself, [sees(ONE, limits=Limits(max_nodes=0))]) == ""
