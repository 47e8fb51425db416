"""The benchmark of one decision, on cases small enough to be checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tradewind.autoscaler.demand import demand_of
from tradewind.autoscaler.plan import make_plan
from tradewind.autoscaler.ray_snapshot import RaySnapshot
from tradewind.autoscaler.shape import Shape
from tradewind.autoscaler.testing import make_offer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        import plan_scale

        yield plan_scale


@pytest.mark.parametrize("scenario", ["uniform", "mixed", "gangs", "labels"])
def test_no_plan_is_cheaper_than_the_bound(bench: Any, scenario: str) -> None:
    case = bench.make_case(scenario, 4, 40, 20, seed=3)
    plan = make_plan(case.view)
    price = sum(launch.offer.price_uusd_per_h or 0 for launch in plan.launches)
    assert 0 < bench.lower_bound(case, 2.0) <= price * (1 + 1e-6)


def test_the_bound_sees_what_fits_a_node_as_a_whole(bench: Any) -> None:
    """3 + 3 + 2 GPUs fill a machine of 8; parts of requests would fill those of 4, which are cheaper by the GPU."""
    offers = (
        make_offer("aws/us-east-1a/g4", usd_per_h=1.78, cpus=48, gpus=4),
        make_offer("aws/us-east-1a/g8", usd_per_h=3.60, cpus=96, gpus=8),
    )
    pending = ((Shape.of({"CPU": 1, "GPU": 3}), 200), (Shape.of({"CPU": 1, "GPU": 2}), 100))
    drawn, snapshot = bench.make_case("mixed", 0, 0, 1, seed=1), RaySnapshot(pending=pending)
    case = replace(
        drawn, view=replace(drawn.view, offers=offers, demand=demand_of(snapshot)), snapshot=snapshot, scenario="mixed"
    )
    price = sum(launch.offer.price_uusd_per_h or 0 for launch in make_plan(case.view).launches)
    assert bench.lower_bound(case, 4.0) == pytest.approx(360e6, rel=1e-3)
    assert price == 360_000_000


def test_a_case_is_drawn_from_its_seed(bench: Any) -> None:
    assert bench.make_case("labels", 5, 20, 10, 1) == bench.make_case("labels", 5, 20, 10, 1)
    assert bench.make_case("labels", 5, 20, 10, 1) != bench.make_case("labels", 5, 20, 10, 2)


def test_every_bar_is_one_line(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    status = bench.main(
        ["--nodes", "20", "--requests", "20", "--offers", "20", "--repeat", "1", "--peer-limit", "0", "--json"]
    )
    bars = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert status == (0 if all(bar["holds"] for bar in bars) else 1)
    assert {"bar", "ours", "peers", "limit", "ratio", "goal", "holds"} <= bars[0].keys()
    assert len(bars) == 4


@pytest.mark.parametrize("everywhere", [True, False])
def test_cells_share_out_nodes_and_demand(bench: Any, everywhere: bool) -> None:
    case = bench.make_case("gangs", 60, 90, 40, seed=3)
    cells = bench.cells_of(case, 3, everywhere)
    views = [cell.look() for cell in cells]
    assert sorted(node.launch_id for view in views for node in view.nodes) == sorted(
        node.launch_id for node in case.view.nodes
    )
    assert all(len(view.nodes) + sum(lot.count for lot in view.elsewhere.workers) == 60 for view in views)
    asked = sum(need.count for view in views for need in view.demand.needs)
    assert asked == sum(need.count for need in case.view.demand.needs)
    assert sum(len(view.demand.gangs) for view in views) == len(case.view.demand.gangs)
    assert all(make_plan(view).launches for view in views)


def test_a_cell_of_its_own_regions_is_offered_nothing_else(bench: Any) -> None:
    case = bench.make_case("mixed", 60, 90, 40, seed=3)
    views = [cell.view for cell in bench.cells_of(case, 4)]
    assert sorted(offer.market.key for view in views for offer in view.offers) == sorted(
        offer.market.key for offer in case.view.offers
    )
    for view in views:
        assert {node.requested.offer.market.region for node in view.nodes} <= {o.market.region for o in view.offers}


def test_cells_know_their_markets(bench: Any) -> None:
    case = bench.make_case("mixed", 200, 10, 20, seed=3)
    knowledge = bench.cells_of(case, 1)[0].look().knowledge
    seen = {node.requested.offer.market for node in case.view.nodes}
    assert all(knowledge.evidence[market.key].boots_s for market in seen)
    assert any(each.taken > 0 for each in knowledge.evidence.values())


def test_cells_have_bars_for_the_slowest_and_for_all(bench: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(["--nodes", "30", "--requests", "30", "--offers", "20", "--repeat", "1", "--cells", "3", "--json"])
    bars = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [("slowest cell" in bar["bar"], "all cells" in bar["bar"]) for bar in bars] == [
        (True, False), (False, True), (True, False), (False, True), (False, False),
    ]  # fmt: skip
    assert all(bar["ours"] > 0 for bar in bars)
