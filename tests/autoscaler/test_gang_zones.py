"""Gangs lie close together: on one node, in one zone where that costs little more, never in two regions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tradewind.autoscaler.demand import Demand
from tradewind.autoscaler.packing_stock import Cap
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.policies.buy import Buy
from tradewind.autoscaler.ray_snapshot import Gang, RaySnapshot, Strategy
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import make_offer
from tradewind.autoscaler.view import LoopSettings, View
from tradewind.model import Offer

GPU, CPU = Shape.of({"CPU": 1, "GPU": 1}), Shape.of({"CPU": 32})
GPU_A = make_offer("aws/us-east-1a/g6", usd_per_h=0.40, gpus=1)
GPU_B = make_offer("aws/us-east-1b/g6", usd_per_h=0.41, gpus=1)
GPU_FAR = make_offer("gcp/us-west1-b/g2", usd_per_h=0.38, gpus=1)
CPU_A = make_offer("aws/us-east-1a/m5", usd_per_h=1.04, cpus=32)
CPU_B = make_offer("aws/us-east-1b/m5", usd_per_h=1.00, cpus=32)


def view_of(offers: list[Offer], *gangs: Gang) -> View:
    return View(1000.0, LoopSettings(fleet="test"), (), RaySnapshot(), Demand(gangs=gangs), tuple(offers))


def zones(view: View, buy: Buy | None = None) -> list[str]:
    actions = make_plan(view).launches if buy is None else make_plan(view, policies=(buy,)).launches
    return sorted(launch.offer.market.zone for launch in actions)


@pytest.mark.parametrize("strategy", [Strategy.PACK, Strategy.SPREAD])
@pytest.mark.parametrize("bundles", [(GPU, CPU), (CPU, GPU)], ids=["gpu first", "cpu first"])
def test_a_gang_is_bought_in_one_zone_where_that_costs_little_more(
    bundles: tuple[Shape, ...], strategy: Strategy
) -> None:
    found = zones(view_of([GPU_A, GPU_B, CPU_A, CPU_B], Gang("g", strategy, bundles)))
    assert len(found) == 2
    assert len(set(found)) == 1


def test_a_zone_that_costs_much_more_is_not_worth_it() -> None:
    dear = replace(CPU_A, price_uusd_per_h=1_060_000)
    assert zones(view_of([GPU_A, dear, CPU_B], Gang("g", Strategy.PACK, (GPU, CPU)))) == ["us-east-1a", "us-east-1b"]


def test_what_a_quota_leaves_over_is_bought_in_the_same_zone() -> None:
    other_type = make_offer("aws/us-east-1a/g5", usd_per_h=0.42, gpus=1)
    quota = Cap("two g6 in a", offers=lambda offer: offer.market == GPU_A.market, max_nodes=2)
    view = view_of([GPU_A, GPU_B, other_type], Gang("g", Strategy.PACK, (GPU,) * 4))
    assert zones(view, Buy(caps=(quota,))) == ["us-east-1a"] * 4


def test_no_gang_is_bought_in_two_regions_however_cheap() -> None:
    quota = Cap("two g2", offers=lambda offer: offer.market == GPU_FAR.market, max_nodes=2)
    view = view_of([GPU_A, GPU_FAR], Gang("g", Strategy.PACK, (GPU,) * 4))
    assert zones(view, Buy(caps=(quota,))) == ["us-east-1a"] * 4


def test_needs_that_are_no_gang_go_where_it_is_cheapest() -> None:
    gangs = (Gang("g", Strategy.PACK, (GPU,)), Gang("h", Strategy.PACK, (CPU,)))
    assert zones(view_of([GPU_A, GPU_B, CPU_A, CPU_B], *gangs)) == ["us-east-1a", "us-east-1b"]


def test_a_refused_launch_may_still_go_to_another_zone() -> None:
    """Near is a wish: a zone that is sold out does not stop a gang."""
    launches = make_plan(view_of([GPU_A, GPU_B, CPU_A, CPU_B], Gang("g", Strategy.PACK, (GPU, CPU)))).launches
    assert {len({offer.market.zone for offer in (each.offer, *each.fallbacks)}) for each in launches} == {2}


def test_a_strict_pack_gang_lies_on_one_node() -> None:
    twice = make_offer("aws/us-east-1b/g6-2", usd_per_h=5.0, gpus=2)
    view = view_of([GPU_A, twice], Gang("g", Strategy.STRICT_PACK, (GPU, GPU)))
    assert [launch.offer for launch in make_plan(view).launches] == [twice]


def test_a_pack_gang_prefers_one_node_that_costs_the_same() -> None:
    twice = make_offer("aws/us-east-1a/g6-2", usd_per_h=0.80, gpus=2)
    view = view_of([GPU_A, twice], Gang("g", Strategy.PACK, (GPU, GPU)))
    assert [launch.offer for launch in make_plan(view).launches] == [twice]
